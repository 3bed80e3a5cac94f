"""Saved states: the memory of a context as a file.

A file is a line `pyclover-state 1`, a line of JSON (what the state belongs to, and the SHA-256 of the rest), and the
bytes that native code wrote. Native code sees them only when model, settings and hash agree.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO

from pyclover import arguments
from pyclover.engine.context import Context
from pyclover.errors import ContextFullError, OutOfMemoryError, PathLike, StateError, shortened

MAGIC = b"pyclover-state 1\n"
MAX_HEAD_BYTES = 1 << 16


def _belongs_to(context: Context) -> dict[str, Any]:
    return {
        "model": context.model.fingerprint,
        "cache_type_k": context.options.cache_type_k,
        "cache_type_v": context.options.cache_type_v,
        "flash_attn": context.options.flash_attn,
    }


def _target(path: Path) -> tuple[Path, int | None]:
    """Where to write: the file that links lead to, and its mode when it is there already.

    Raises:
        StateError: something else than a file is there; replacing a device or a pipe by a file would break it.
    """
    target = Path(os.path.realpath(path))
    try:
        mode = os.stat(target).st_mode
    except FileNotFoundError:
        return target, None
    if not stat.S_ISREG(mode):
        what = "a folder" if stat.S_ISDIR(mode) else "no regular file"
        raise StateError(f"cannot save the state to {path}: this is {what}; give the name of a file", path=path)
    return target, stat.S_IMODE(mode)


def save(context: Context, path: PathLike) -> None:
    """Writes the state beside `path` and puts it there when it is whole; an earlier file survives a failure.

    Raises:
        StateError: the file cannot be written, or something else than a file is there.
    """
    where = arguments.path("path", path)
    temporary = None
    try:
        target, mode = _target(where)
        data = context.get_state()
        head = {
            **_belongs_to(context),
            "n_tokens": len(context.tokens()),
            "n_bytes": len(data),
            "sha256": hashlib.sha256(data).hexdigest(),
        }
        draft = target.with_name(f".{os.getpid()}-{os.urandom(8).hex()}.tmp")
        with draft.open("xb") as f:  # a new file gets the mode that the umask leaves
            temporary = draft
            if mode is not None:
                os.chmod(draft, mode)
            f.write(MAGIC + json.dumps(head).encode() + b"\n")
            f.write(data)
            f.flush()
            os.fsync(f.fileno())
        os.replace(draft, target)
    except BaseException as e:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        if isinstance(e, OSError):
            raise StateError(
                f"cannot save the state to {where}: {e.strerror or e}; choose another place", path=where
            ) from None
        raise


def _read_head(file: BinaryIO, path: Path) -> dict[str, Any]:
    if file.read(len(MAGIC)) != MAGIC:
        raise StateError(f"{path} is not a state saved by this version of pyclover: save it again", path=path)
    try:
        head = json.loads(file.readline(MAX_HEAD_BYTES))
    except (ValueError, RecursionError):
        raise _damaged(path) from None
    sound = isinstance(head, dict) and isinstance(head.get("sha256"), str)
    if not sound or any(type(head.get(name)) is not int or head[name] < 0 for name in ("n_tokens", "n_bytes")):
        raise _damaged(path)
    return dict(head)


def _damaged(path: Path) -> StateError:
    return StateError(f"the state {path} is damaged or cut short: save it again", path=path)


def _check_head(context: Context, head: dict[str, Any], path: Path) -> None:
    """Whether the state can be this context's; before the rest of the file is read."""
    for name, value in _belongs_to(context).items():
        if head.get(name) != value:
            saved_with = f"{name}={shortened(head.get(name))}, and this context has {value!r}"
            what = "another model file" if name == "model" else saved_with
            raise StateError(f"the state {path} was saved with {what}: load it with the same settings", path=path)
    n_tokens = head["n_tokens"]
    if n_tokens > context.n_ctx:
        raise ContextFullError(
            f"the state {path} holds {n_tokens} tokens, and this context has room for {context.n_ctx}: load the model "
            f"with n_ctx={n_tokens} or more",
            n_ctx=context.n_ctx, n_needed=n_tokens,
        )  # fmt: skip
    # a state is a copy of caches, with some numbers for each cell: a larger one was not saved here
    held = sum(use.bytes for use in context.memory() if use.kind == "context")
    if head["n_bytes"] > 2 * held + 4 * context.model.info.n_vocab + 256 * context.n_ctx + (1 << 20):
        raise _damaged(path)


def load(context: Context, path: PathLike) -> int:
    """Restores a saved state; returns the number of tokens that the memory holds now.

    Raises:
        StateError: unreadable, damaged, or saved with another model or other cache settings.
        ContextFullError: it holds more tokens than this context has room for.
    """
    source = arguments.path("path", path)
    try:
        if source.exists() and not source.is_file():  # opening a pipe would wait for ever
            raise StateError(
                f"cannot read the state {source}: this is no regular file; give a saved state", path=source
            )
        with source.open("rb") as f:
            head = _read_head(f, source)
            _check_head(context, head, source)
            if os.fstat(f.fileno()).st_size - f.tell() != head["n_bytes"]:
                raise _damaged(source)
            data = f.read(head["n_bytes"])
    except OSError as e:
        raise StateError(f"cannot read the state {source}: {e.strerror or e}; check the path", path=source) from None
    except MemoryError:
        raise OutOfMemoryError(f"not enough memory to read the state {source}: free some") from None
    if hashlib.sha256(data).hexdigest() != head["sha256"]:
        raise _damaged(source)
    context.set_state(data, head["n_tokens"])
    return int(head["n_tokens"])
