"""The file with a reference's logits, in the form of llama-perplexity's --kl-divergence-base: either program reads it.

    "_logits_"                          8 bytes
    n_ctx, n_vocab, n_chunks            3 x 4 bytes, little-endian as all numbers
    tokens                              n_chunks x n_ctx x 4 bytes
    rows of each chunk                  n_chunks x scored(n_ctx) x row_words(n_vocab) x 2 bytes, see rows.py

While it is written it is called NAME.part, and NAME.json says what of. Each chunk is on the disk before the next one
is computed, so that an interrupted run goes on behind the last whole chunk.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from pyclover.errors import FileError, InvalidFileError
from pyclover.tuning.quality.chunks import Chunks, scored
from pyclover.tuning.quality.rows import Words, row_words

MAGIC = b"_logits_"
_HEAD = struct.Struct("<Iii")
_SPARE_BYTES = 64 << 20  # that stay free on the disk


def chunk_bytes(n_ctx: int, n_vocab: int) -> int:
    """Bytes of a chunk's rows."""
    return scored(n_ctx) * row_words(n_vocab) * 2


def head_bytes(chunks: Chunks, n_vocab: int) -> bytes:
    """All that stands before the rows."""
    return MAGIC + _HEAD.pack(chunks.n_ctx, n_vocab, chunks.n_chunks) + chunks.tokens.astype("<i4").tobytes()


class LogitsFile:
    """A finished file, read chunk by chunk.

    Raises:
        InvalidFileError: it is no such file, or a part of it is missing.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                magic, head = file.read(len(MAGIC)), file.read(_HEAD.size)
                n_file = os.fstat(file.fileno()).st_size
                if magic != MAGIC or len(head) < _HEAD.size:
                    raise InvalidFileError(
                        f"{path} is no file of logits, such as llama-perplexity --kl-divergence-base writes: give "
                        "another one, or a new name", path=path,
                    )  # fmt: skip
                n_ctx, self.n_vocab, n_chunks = _HEAD.unpack(head)
                self._offset = len(MAGIC) + _HEAD.size + 4 * n_ctx * n_chunks
                sane = n_ctx >= 3 and self.n_vocab > 0 and n_chunks > 0 and self._offset <= n_file
                self._chunk_bytes = chunk_bytes(n_ctx, self.n_vocab) if sane else 0
                if not sane or n_file < self._offset + n_chunks * self._chunk_bytes:
                    raise InvalidFileError(
                        f"{path} is damaged or not complete: it has {n_file} bytes, and its head speaks of {n_chunks} "
                        f"chunks of {n_ctx} tokens; make it anew", path=path,
                    )  # fmt: skip
                tokens = np.frombuffer(file.read(4 * n_ctx * n_chunks), dtype="<i4").reshape(n_chunks, n_ctx)
        except OSError as error:
            raise FileError(f"{path}: cannot be read: {error.strerror or error}", path=path) from error
        if tokens.min() < 0 or tokens.max() >= self.n_vocab:
            raise InvalidFileError(f"{path} is damaged: it has tokens beyond its vocabulary; make it anew", path=path)
        self.chunks = Chunks(tokens.astype(np.int32))

    @property
    def n_bytes(self) -> int:
        """Size of the whole."""
        return int(self._offset + self.chunks.n_chunks * self._chunk_bytes)

    def rows(self, k: int) -> Words:
        """The kept rows of chunk k, [n_scored, row_words(n_vocab)]."""
        try:
            flat = np.fromfile(
                self.path, dtype="<u2", count=self._chunk_bytes // 2, offset=self._offset + k * self._chunk_bytes
            )
        except OSError as error:
            raise FileError(f"{self.path}: cannot be read: {error.strerror or error}", path=self.path) from error
        if flat.nbytes < self._chunk_bytes:
            raise InvalidFileError(f"{self.path} became shorter while it was read; make it anew", path=self.path)
        return flat.reshape(self.chunks.n_scored, -1)


class LogitsWriter:
    """Writes such a file; goes on with what an earlier run left of it.

    Args:
        facts: what it is made of, in types that JSON has; an earlier part made of something else is dropped.
        resume: False: an earlier part is dropped anyway.

    Raises:
        FileError: the disk has no room, or cannot be written.
    """

    def __init__(
        self, path: Path, chunks: Chunks, n_vocab: int, facts: Mapping[str, Any], *, resume: bool = True
    ) -> None:
        self.path = path
        self.part = path.with_name(path.name + ".part")
        self._chunk_bytes = chunk_bytes(chunks.n_ctx, n_vocab)
        self._n_chunks = chunks.n_chunks
        head = head_bytes(chunks, n_vocab)
        self.n_bytes = len(head) + chunks.n_chunks * self._chunk_bytes
        self._file: BinaryIO | None = None
        try:
            self.n_done = self._left(head) if resume and read_facts(path) == dict(facts) else 0
            there = self.part.stat().st_size if self.part.exists() else 0
            self._check_room(self.n_bytes - there)
            if self.n_done == 0:
                self.part.unlink(missing_ok=True)
                write_facts(path, facts)
            self._file = self.part.open("r+b" if self.n_done else "w+b")
            if self.n_done == 0:
                self._file.write(head)
            self._file.truncate(len(head) + self.n_done * self._chunk_bytes)
            self._file.seek(0, os.SEEK_END)
        except OSError as error:
            raise _disk_error(self.part, error) from error

    def _left(self, head: bytes) -> int:
        """Whole chunks that an earlier run left."""
        try:
            with self.part.open("rb") as file:
                if file.read(len(head)) != head:
                    return 0
                n = os.fstat(file.fileno()).st_size
        except FileNotFoundError:
            return 0
        return min((n - len(head)) // self._chunk_bytes, self._n_chunks)

    def _check_room(self, needed: int) -> None:
        free = shutil.disk_usage(self.path.parent).free - _SPARE_BYTES
        if needed > free:
            n_fit = max(0, free // self._chunk_bytes)
            raise FileError(
                f"{self.path.parent}: the reference's logits need {_shown(needed)}, and "
                f"{_shown(max(free, 0))} are free; {n_fit} chunks would fit: give fewer with n_chunks "
                "(--chunks), or another place with logits (--logits)", path=self.path,
            )  # fmt: skip

    def append(self, rows: Words) -> None:
        """The next chunk's rows; they are on the disk afterwards."""
        assert self._file is not None
        try:
            self._file.write(rows.astype("<u2", copy=False).tobytes())
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise _disk_error(self.part, error) from error
        self.n_done += 1

    def finish(self) -> None:
        """Gives the file its name."""
        assert self._file is not None
        assert self.n_done == self._n_chunks
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            os.replace(self.part, self.path)
        except OSError as error:
            raise _disk_error(self.part, error) from error

    def close(self) -> None:
        """What is written stays, for a later run."""
        if self._file is not None:
            with contextlib.suppress(OSError):  # a write that failed is tried once more here, and has been told
                self._file.close()


def _shown(n_bytes: int) -> str:
    """A number of bytes in a message, in GiB, below a tenth of one in MiB."""
    return f"{n_bytes / 2**30:.2f} GiB" if n_bytes >= 2**30 // 10 else f"{n_bytes / 2**20:.2f} MiB"


def facts_path(path: Path) -> Path:
    """Where it is written what a file of logits is made of."""
    return path.with_name(path.name + ".json")


def read_facts(path: Path) -> dict[str, Any] | None:
    """What a file of logits, or its part, is made of; None when nothing says it."""
    try:
        data = json.loads(facts_path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None


def write_facts(path: Path, facts: Mapping[str, Any]) -> None:
    """Says what a file of logits will be made of."""
    draft = path.with_name(f"{path.name}.{os.getpid()}.json.part")
    draft.write_text(json.dumps(facts, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    os.replace(draft, facts_path(path))


def _disk_error(path: Path, error: OSError) -> FileError:
    return FileError(
        f"{path}: cannot be written: {error.strerror or error}; make room or choose another place with logits "
        "(--logits) and run it again: it goes on where it was", path=path,
    )  # fmt: skip
