"""A program in a pseudo-terminal of its own: keys in, what it shows out."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import struct
import subprocess
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from terminal import Terminal

WAIT_S = 90.0  # for what takes a moment on an idle machine


class EditorTerminal(Terminal):
    """A terminal that also knows what line editors send."""

    def _sequence(self, args: str, final: str) -> None:
        if final in "hl" and args in ("?1", "?12", "?25", "?2004"):
            return  # keys of the cursor, its look, marks around pastes: nothing that is seen here
        if final == "C":
            self.pending = False
            self.column = min(self.column + max(int(args or 1), 1), self.width - 1)
        elif final == "D":
            self.pending = False
            self.column = max(self.column - max(int(args or 1), 1), 0)
        elif final == "m" and args.startswith("0;"):  # all styles off, and others on
            self.style = args[2:]
        else:
            super()._sequence(args, final)


class PtyProgram:
    """A running program and the terminal that it sees.

    Attributes:
        seen: all that it wrote.
        terminal: what that looks like, from watch() on.
    """

    def __init__(self, argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, width: int = 80, height: int = 24):
        self.seen = ""
        self.terminal: EditorTerminal | None = None
        self._bytes = b""
        self._master, slave = os.openpty()
        self._set_size(width, height)

        def take_terminal() -> None:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        self.process = subprocess.Popen(
            argv, stdin=slave, stdout=slave, stderr=slave, env=dict(env), cwd=cwd, start_new_session=True,
            preexec_fn=take_terminal,
        )  # fmt: skip
        os.close(slave)

    def type(self, keys: str | bytes) -> None:
        data = keys.encode() if isinstance(keys, str) else keys
        while data:
            data = data[os.write(self._master, data) :]

    def expect(self, text: str, *, timeout: float = WAIT_S) -> str:
        """Reads until `text` has come since the last expect(); returns all up to and with it."""
        end = time.monotonic() + timeout
        while True:
            before, found, rest = self._unread().partition(text)
            if found:
                self._at = len(self.seen) - len(rest)
                return before + found
            assert self._read(end - time.monotonic()), f"{text!r} did not come; the rest was {self._unread()!r}"

    def prompt(self) -> str:
        """Reads until the program waits for a line: only its line editor switches the wrapping of lines off."""
        return self.expect("\x1b[?7l")

    def settle(self, quiet_s: float = 1.0) -> None:
        """Reads and forgets what comes until nothing has come for so long."""
        while self._read(quiet_s):
            pass
        self._at = len(self.seen)

    def finish(self, *, timeout: float = WAIT_S) -> int:
        """Reads all that comes until the program ends; returns its exit code."""
        end = time.monotonic() + timeout
        while self._read(end - time.monotonic()):
            pass
        return self.process.wait(max(end - time.monotonic(), 1))

    def watch(self, width: int, height: int) -> EditorTerminal:
        """Shows what comes from now on in a terminal of that size, which resize() changes, too."""
        self.terminal = EditorTerminal(width, height)
        self.terminal.feed("\n")
        self._set_size(width, height)
        return self.terminal

    def resize(self, width: int, height: int) -> None:
        if self.terminal is not None:
            self.terminal.resize(width, height)
        self._set_size(width, height)  # which tells the program

    def echoes(self) -> bool:
        """Whether the terminal shows what is typed."""
        return bool(termios.tcgetattr(self._master)[3] & termios.ECHO)

    _at = 0

    def _unread(self) -> str:
        return self.seen[self._at :]

    def _read(self, wait_s: float) -> bool:
        """Reads what is there; False when nothing came in time, or nothing more will."""
        if wait_s <= 0 or not select.select([self._master], [], [], wait_s)[0]:
            return False
        try:
            data = os.read(self._master, 65536)
        except OSError:  # the other end is closed
            return False
        self._bytes += data
        text = self._bytes.decode("utf-8", errors="ignore")  # a character may be incomplete yet
        rest = self._bytes[len(text.encode()) :]
        text, self._bytes = text.replace("\r\n", "\n"), rest
        self.seen += text
        if self.terminal is not None:
            self.terminal.feed(text)
        return bool(data)

    def _set_size(self, width: int, height: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait(10)
        with contextlib.suppress(OSError):
            os.close(self._master)


@contextlib.contextmanager
def in_terminal(
    argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, width: int = 80, height: int = 24
) -> Iterator[PtyProgram]:
    program = PtyProgram(argv, env=env, cwd=cwd, width=width, height=height)
    try:
        yield program
    finally:
        program.close()
