"""The only door to C: `ffi`, `lib`, `check()`, and the callbacks that C may call.

Importing it checks the processor first and loads the library; nothing else in the package imports `_lib`.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyclover import errors
from pyclover._native import cpu


def generated(package: str, name: str) -> Path:
    """A file or folder that the build made, which an editable install keeps apart from the Python files.

    Raises:
        FileNotFoundError: it was not built.
    """
    for folder in sys.modules[package].__path__:
        path = Path(folder) / name
        if path.exists():
            return path
    raise FileNotFoundError(name)


def build_facts() -> dict[str, Any]:
    """What the build wrote down about itself."""
    facts: dict[str, Any] = json.loads(generated(__name__, "_build.json").read_text(encoding="utf-8"))
    return facts


def _load() -> tuple[Any, Any]:
    try:
        facts = build_facts()
    except FileNotFoundError:
        raise errors.NativeError(
            "pyclover's native library is not here: Python has found the source folder "
            f"{Path(__file__).parents[1]} before the installed package; start it in another folder, or install the "
            "package first (pip install .)"
        ) from None
    lacking = cpu.missing(facts["cpu_needs"])
    if lacking:
        raise errors.UnsupportedCPUError(
            f"this build of pyclover needs processor features that {cpu.model_name()} lacks: {', '.join(lacking)}; "
            'build it for this machine: CMAKE_ARGS="-DGGML_NATIVE=ON" pip install --no-binary pyclover pyclover',
            missing=lacking,
        )
    from pyclover._native import _lib

    return _lib.ffi, _lib.lib


ffi, lib = _load()
_pending = threading.local()


def _keep(exception: type[BaseException], value: BaseException, traceback: object) -> None:
    """An exception inside a callback (Ctrl-C arrives there too): kept, and raised when C has returned."""
    _pending.exception = value


@ffi.def_extern(name="pyclover_poll", onerror=_keep, error=1)  # type: ignore[untyped-decorator]
def _poll(user: Any) -> int:
    # Running this at all is the point: the interpreter handles signals on entry, so Ctrl-C is raised here.
    return 0


@ffi.def_extern(name="pyclover_progress", onerror=_keep, error=1)  # type: ignore[untyped-decorator]
def _progress(fraction: float, user: Any) -> int:
    callback = ffi.from_handle(user)
    return 1 if callback is not None and callback(fraction) is False else 0


def _error(status: int, path: str) -> Exception:
    message = ffi.string(lib.pc_last_error()).decode("utf-8", "replace")
    if status == lib.PC_LOAD_FAILED:
        return errors.LoadError(f"{path}: {message}", path=path)
    if status == lib.PC_OUT_OF_MEMORY:
        return errors.OutOfMemoryError(f"not enough memory: {message}")
    classes: dict[int, type[errors.CloverError]] = {
        lib.PC_BAD_ARGUMENT: errors.UsageError,
        lib.PC_CANCELLED: errors.CancelledError,
        lib.PC_BAD_STATE: errors.StateError,
        lib.PC_BAD_GRAMMAR: errors.GrammarError,
        lib.PC_NO_BLOCK_PASS: errors.SpeculationUnavailableError,
    }
    return classes.get(status, errors.NativeError)(message)


def check(status: int, *, path: str = "") -> None:
    """Turns the status of a native call into an exception. Call it right after, in the same thread."""
    kept: BaseException | None = getattr(_pending, "exception", None)
    if kept is not None:
        _pending.exception = None
        raise kept
    if status == lib.PC_CONTEXT_FULL:
        message = ffi.string(lib.pc_last_error()).decode("utf-8", "replace")
        raise errors.ContextFullError(message, n_ctx=0, n_needed=0)
    if status != lib.PC_OK:
        raise _error(status, path)


@contextlib.contextmanager
def buffer() -> Iterator[Any]:
    """A pc_buffer to be filled by a call, freed afterwards."""
    out = ffi.new("pc_buffer *")
    try:
        yield out
    finally:
        lib.pc_buffer_free(out)


def taken(out: Any) -> bytes:
    """Bytes of a filled pc_buffer."""
    return bytes(ffi.buffer(out.data, out.size))


check(lib.pc_init())
