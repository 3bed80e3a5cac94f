"""Importance matrices on the disk: what a file holds, in llama.cpp's GGUF form and in the older one.

In the GGUF form each weight W has two tensors: W.in_sum2 [row length, matrices], sums of squared activations, and
W.counts [1, matrices], how many rows of activations were summed; a matrix is one expert, or all of a plain weight.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from pyclover import arguments
from pyclover.errors import FileError, PathLike
from pyclover.files.header import MAGIC, Header
from pyclover.files.header_read import read_header
from pyclover.files.types import F32
from pyclover.files.values import Array

SUMS, COUNTS = ".in_sum2", ".counts"
DATASETS, CHUNK_COUNT, CHUNK_SIZE = "imatrix.datasets", "imatrix.chunk_count", "imatrix.chunk_size"
_MAX_NAME = 1 << 10


@dataclass(frozen=True)
class ImatrixFile:
    """What an importance matrix says of itself.

    Attributes:
        n_values: weight's name -> numbers held for it (row length times matrices).
        n_chunks: of the text that it was made from, 0 where not known.
        datasets: names of that text.
    """

    path: Path
    n_values: Mapping[str, int]
    n_chunks: int
    datasets: tuple[str, ...]


def read_imatrix(path: PathLike) -> ImatrixFile:
    """Reads what the file is about; of the GGUF form the header alone.

    Raises:
        UsageError: the path is none; FileError: the file cannot be read, or is no importance matrix.
    """
    where = arguments.path("imatrix", path).expanduser()
    try:
        with where.open("rb") as file:
            if file.read(4) == MAGIC:
                return _gguf(where, read_header(where))
            file.seek(0)
            return _legacy(where, file)
    except OSError as e:
        raise FileError(f"{where}: the importance matrix cannot be read: {e.strerror or e}", path=where) from None
    except (struct.error, EOFError, UnicodeDecodeError):
        raise FileError(
            f"{where}: this is no importance matrix, or a damaged one; make one with 'clover-run imatrix'", path=where
        ) from None


def _gguf(path: Path, header: Header) -> ImatrixFile:
    tensors = {t.name: t for t in header.tensors}
    values: dict[str, int] = {}
    for name, t in tensors.items():
        if not name.endswith(SUMS):
            continue
        counts = tensors.get(name.removesuffix(SUMS) + COUNTS)
        if counts is None or counts.type is not F32 or t.type is not F32:
            raise FileError(f"{path}: '{name}' has no counts beside it; make the importance matrix again", path=path)
        values[name.removesuffix(SUMS)] = t.n_elements
    metadata = header.metadata
    missing = [key for key in (DATASETS, CHUNK_COUNT, CHUNK_SIZE) if key not in metadata]
    if not values or missing:
        what = f"the metadata key '{missing[0]}' is missing" if missing else "no sums are in it"
        raise FileError(f"{path}: this is no importance matrix: {what}", path=path)
    datasets, chunks = metadata[DATASETS], metadata[CHUNK_COUNT]
    names = tuple(str(name) for name in datasets) if isinstance(datasets, Array) else ()
    return ImatrixFile(path, values, chunks if isinstance(chunks, int) else 0, names)


def _legacy(path: Path, file: BinaryIO) -> ImatrixFile:
    """Number of entries; of each the name, calls, values; then calls in all and the text's name."""
    size = path.stat().st_size
    values: dict[str, int] = {}
    n_entries = _int(file)
    if not 0 < n_entries <= 1 << 20:
        raise EOFError
    for _ in range(n_entries):
        name = _text(file)
        _int(file)
        n = _int(file)
        if n < 1 or file.tell() + 4 * n > size:
            raise EOFError
        values[name] = n
        file.seek(4 * n, 1)
    try:
        return ImatrixFile(path, values, _int(file), (_text(file),))
    except (EOFError, struct.error):  # both may be absent
        return ImatrixFile(path, values, 0, ())


def _int(file: BinaryIO) -> int:
    (value,) = struct.unpack("<i", file.read(4))
    return int(value)


def _text(file: BinaryIO) -> str:
    n = _int(file)
    if not 0 < n <= _MAX_NAME:
        raise EOFError
    return file.read(n).decode()
