"""What was measured, a line a turn, so that an interrupted run goes on where it was.

JSON lines: first what is measured (the header), then turns. Each line is on the disk before the next turn begins.
A line that was torn by a crash is dropped. A turn that was not finished is no line: its runs were to be neighbours in
time, so all of it is run again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import filelock

from pyclover.errors import UsageError

FORMAT = 1


class Journal:
    """Turns on disk, or in memory alone for path None.

    Args:
        path: the file; its folder is made.
        header: what is measured; a journal of something else cannot be resumed.
        resume: go on with the turns that it holds; False: begin anew.

    Raises:
        UsageError: there is nothing to resume, it is of another run, or another process writes to it.
        OSError: the file cannot be written.
    """

    def __init__(self, path: Path | None, header: Mapping[str, Any], *, resume: bool = False) -> None:
        self.path = path
        self.turns: list[dict[str, Any]] = []
        # as JSON has it: tuples are lists, keys are texts
        self.header = json.loads(json.dumps({"format": FORMAT, **header}))
        self._file: Any = None
        self._lock: filelock.BaseFileLock | None = None
        if path is None:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = filelock.FileLock(f"{path}.lock")
        try:
            self._lock.acquire(timeout=0)
        except filelock.Timeout:
            raise UsageError(
                f"{path} is in use by another run: wait for it, or give another --journal", option="journal"
            ) from None
        try:
            size = self._read(path) if resume else 0
            self._file = path.open("r+b" if resume else "wb")
            self._file.truncate(size)
            self._file.seek(size)
            if not resume:
                self._write(self.header)
        except BaseException:
            self.close()
            raise

    def _read(self, path: Path) -> int:
        """Takes the whole lines; returns where they end."""
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            raise UsageError(
                "there is nothing to resume for this file, machine, build and these settings: leave --resume out",
                option="resume",
            ) from None
        size = 0
        for number, line in enumerate(data.splitlines(keepends=True)):
            try:
                value = json.loads(line) if line.endswith(b"\n") else None
            except ValueError:
                value = None
            if not isinstance(value, dict):
                break
            if number == 0 and value != self.header:
                differ = sorted(k for k in {*value, *self.header} if value.get(k) != self.header.get(k))
                raise UsageError(
                    f"{path} is of a run with another {', '.join(differ)}: leave --resume out to begin anew",
                    option="resume",
                )
            if number > 0:
                self.turns.append(value)
            size += len(line)
        if size == 0:
            raise UsageError(f"{path} has no turn in it: leave --resume out to begin anew", option="resume")
        return size

    def append(self, turn: Mapping[str, Any]) -> None:
        """Keeps a turn; it is on the disk when this returns.

        Raises:
            OSError: it cannot be written.
        """
        self.turns.append(json.loads(json.dumps(turn)))
        if self._file is not None:
            self._write(turn)

    def _write(self, value: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(value, allow_nan=False).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        if self._lock is not None:
            self._lock.release()  # its file stays: deleting it could part two who wait for it
            self._lock = None

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
