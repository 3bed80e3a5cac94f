"""A program of the package that works on a file: run it, watch the file grow, end it when this process ends."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from pyclover.errors import NativeError

POLL_S = 0.1
_KEPT_BYTES = 1 << 16
_TELLING = re.compile(r"failed|error|cannot|exception|not found|GGML_ASSERT|terminate called|imatrix", re.IGNORECASE)
# Linux ends the program with the thread that started it, however that ends. A step between fork and exec would not be
# safe beside other threads, so a small Python does it and then becomes the program.
_GUARD = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, int(signal.SIGKILL), 0, 0, 0)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""


def run_child(command: Sequence[str], *, folder: Path, keep: Sequence[int], watch: Callable[[], None]) -> None:
    """Run a program to its end.

    Args:
        command: its path and arguments.
        folder: where it runs.
        keep: open files that it shall hold too, so that their locks last as long as it does.
        watch: called about ten times a second meanwhile; when it raises, the program is ended.

    Raises:
        NativeError: it failed; the message ends with its own words, where it has any.
    """
    if sys.platform == "linux" and sys.executable:
        command = [sys.executable, "-I", "-S", "-c", _GUARD, str(os.getpid()), *command]
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT,
            pass_fds=keep if os.name != "nt" else (),
            start_new_session=True,  # Ctrl-C in the terminal is ours alone
        )  # fmt: skip
        try:
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(POLL_S)
                    break
                watch()
        except BaseException:
            process.kill()
            process.wait()
            raise
        if process.returncode != 0:
            raise _failure(process.returncode, _last_words(said.fileno()))


def _failure(code: int, words: str) -> NativeError:
    if code == -9:
        return NativeError("the quantizing program was ended from outside, most likely for lack of memory")
    how = f"exit code {code}" if code > 0 else f"signal {-code}"
    return NativeError(f"the quantizing program failed ({how})" + (f": {words}" if words else ""))


def _last_words(fd: int) -> str:
    """The line that tells most, from the end of what the program said."""
    size = os.fstat(fd).st_size
    n = min(size, _KEPT_BYTES)
    lines = os.pread(fd, n, size - n).decode("utf-8", "replace").splitlines()
    lines = [line.strip() for line in lines if line.strip(" =\t")]
    telling = [line for line in lines if _TELLING.search(line) and not line.startswith("llama_model_loader: - ")]
    # the program's own last line only says that it failed
    better = [line for line in telling if not line.startswith("llama_quantize:")]
    found = (better or telling or lines or [""])[-1]
    return re.sub(r"^[\w:]+: (?:failed to quantize: )?", "", found).rstrip(".")
