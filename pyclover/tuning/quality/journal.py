"""Scores of a file, kept chunk by chunk: an interrupted evaluation goes on, a finished one is not computed twice.

A record is the SCORE array of a chunk and the CRC-32 of its bytes. While chunks are missing the file is called
NAME.part; a record that was not written as a whole is dropped.
"""

from __future__ import annotations

import contextlib
import os
import struct
import zlib
from pathlib import Path
from typing import BinaryIO

import numpy as np

from pyclover.errors import FileError
from pyclover.tuning.quality.rows import SCORE, Scores

_CRC = struct.Struct("<I")


class Journal:
    """The scores of one file.

    Args:
        path: the finished file's name; its folder exists.
        n_scored: tokens of a chunk.

    Raises:
        FileError: the disk cannot be written or read.
    """

    def __init__(self, path: Path, n_scored: int) -> None:
        self.path = path
        self.part = path.with_name(path.name + ".part")
        self._record_bytes = n_scored * SCORE.itemsize + _CRC.size
        self._file: BinaryIO | None = None

    def finished(self) -> list[Scores] | None:
        """All chunks; None when the file is not finished, or damaged."""
        try:
            data = self.path.read_bytes()
        except OSError:
            return None
        chunks = self._records(data)
        return chunks if chunks and len(chunks) * self._record_bytes == len(data) else None

    def begin(self, n_chunks: int, *, resume: bool) -> list[Scores]:
        """Opens the part for writing; returns the chunks that an earlier run left in it."""
        try:
            chunks = self._records(self.part.read_bytes())[:n_chunks] if resume and self.part.exists() else []
            self._file = self.part.open("r+b" if chunks else "w+b")
            self._file.truncate(len(chunks) * self._record_bytes)
            self._file.seek(0, os.SEEK_END)
        except OSError as error:
            raise self._error(error) from error
        return chunks

    def append(self, scores: Scores) -> None:
        """The next chunk."""
        assert self._file is not None
        data = scores.tobytes()
        try:
            self._file.write(data + _CRC.pack(zlib.crc32(data)))
            self._file.flush()
        except OSError as error:
            raise self._error(error) from error

    def finish(self) -> None:
        """Gives the file its name."""
        assert self._file is not None
        try:
            os.fsync(self._file.fileno())
            self._file.close()
            os.replace(self.part, self.path)
        except OSError as error:
            raise self._error(error) from error

    def close(self) -> None:
        """What is written stays, for a later run."""
        if self._file is not None:
            with contextlib.suppress(OSError):  # a write that failed is tried once more here, and has been told
                self._file.close()

    def _records(self, data: bytes) -> list[Scores]:
        """The whole records from the first on."""
        found = []
        for at in range(0, len(data) - self._record_bytes + 1, self._record_bytes):
            record = data[at : at + self._record_bytes]
            body, crc = record[: -_CRC.size], record[-_CRC.size :]
            if _CRC.pack(zlib.crc32(body)) != crc:
                break
            found.append(np.frombuffer(body, dtype=SCORE))
        return found

    def _error(self, error: OSError) -> FileError:
        return FileError(
            f"{self.path}: cannot be written: {error.strerror or error}; make room or choose another folder with "
            "cache_dir (PYCLOVER_CACHE) and run it again: it goes on where it was", path=self.path,
        )  # fmt: skip
