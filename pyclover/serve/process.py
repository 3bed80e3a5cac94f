"""One run of a program: its lines are read as they come, and it never outlives this process."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

GUARD = Path(__file__).with_name("guard.py")
KEPT_LINES = 60
# A batch in the making is finished first. But while a client has a stream open llama.cpp's server never ends, and it
# has nothing to lose by being ended at once.
STOP_S = 3.0
_PREFIX = re.compile(r"^(?:\d+\.)+\d+ ([A-Z]) +(?:(?:srv|slot|cmn|que|res|cli) +[\w:()~]+: )?(.*)$")
_FAULT = re.compile(
    r"^error[: ]|^\S+\.(?:cpp|c|h|cu|m):\d+: |GGML_ASSERT|\babort|terminate called|exception|^libc\+\+abi",
    re.IGNORECASE,
)
_PLACE = re.compile(r"^\S*?([\w.-]+\.(?:cpp|c|h|cu|m)):\d+: ")

Sink = Callable[[str], None]


class Process:
    """A running program with both outputs in one pipe.

    Start it in a thread that lives as long: Linux ends the program with the *thread* that started it.

    Args:
        command: program and arguments.
        environment: all of it.
        sink: called with each line, from a thread of its own.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str] | None = None, sink: Sink | None = None):
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._faults: list[str] = []
        self._sink = sink
        if sys.platform == "linux" and sys.executable:
            command = [sys.executable, "-I", "-S", str(GUARD), str(os.getpid()), *command]
        self._popen = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment,
            start_new_session=True,  # Ctrl-C in the terminal is ours alone
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, name="clover-log", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._popen.pid

    def ended(self) -> bool:
        """Whether it has ended; then all its lines are there."""
        if self._popen.poll() is None:
            return False
        self._reader.join(1)
        return True

    def wait(self, timeout_s: float) -> bool:
        """Waits at most so long; whether it has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(timeout_s)
        return self.ended()

    @property
    def lines(self) -> tuple[str, ...]:
        """The last ones."""
        return tuple(self._lines)

    def why(self) -> str:
        """How it ended, and the words that explain it best."""
        code = self._popen.returncode
        if code is None:
            return "it runs"
        how = f"exit code {code}"
        if code < 0:
            try:
                how = f"signal {signal.Signals(-code).name}"
            except ValueError:
                how = f"signal {-code}"
        words = self._faults[0] if self._faults else self._lines[-1] if self._lines else ""
        if not self._faults and _PREFIX.match(words):  # a line of the log that tells of nothing wrong
            words = ""
        return f"{how}: {plain(words)}" if words else how

    def stop(self, timeout_s: float = STOP_S) -> None:
        """Asks it to end, and ends it when it does not."""
        with contextlib.suppress(ProcessLookupError):
            self._popen.terminate()
        try:
            self._popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
        self._reader.join(1)

    def kill(self) -> None:
        """Ends it at once."""
        with contextlib.suppress(ProcessLookupError):
            self._popen.kill()
        self._popen.wait()

    def _read(self) -> None:
        assert self._popen.stdout is not None
        with self._popen.stdout as out:
            for raw in out:
                line = raw.decode("utf-8", "replace").rstrip()
                if not line:
                    continue
                self._lines.append(line)
                if len(self._faults) < KEPT_LINES and is_fault(line):
                    self._faults.append(line)
                if self._sink is not None:
                    with contextlib.suppress(OSError, ValueError):  # a full disk or closed log stops no server
                        self._sink(line)


def is_fault(line: str) -> bool:
    """Whether a line of the server's log tells of an error."""
    hit = _PREFIX.match(line)
    return hit[1] == "E" if hit else bool(_FAULT.search(line))


def plain(line: str) -> str:
    """A line of the log without its time, level and place in the source."""
    hit = _PREFIX.match(line)
    text = _PLACE.sub("", hit[2] if hit else line)
    return re.sub(r"^error: ", "", text, flags=re.IGNORECASE).strip().rstrip(".")
