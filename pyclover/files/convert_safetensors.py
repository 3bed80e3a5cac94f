"""The header of a safetensors file: names, types, shapes and places of its tensors, held against the file's size.

The format: 8 bytes with the length of a JSON object, the object, then the data; offsets count from the data's start.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import prod
from typing import Any, NoReturn

from pyclover.errors import InvalidFileError
from pyclover.files.cursor import Readable

MAX_HEADER_BYTES = 100_000_000  # the limit of the format's own library
ITEM_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2,
    "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
}  # fmt: skip


@dataclass(frozen=True)
class Stored:
    """A tensor in a safetensors file; `begin` and `end` count bytes from the file's start."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def read_tensors(file: Readable, file_bytes: int, name: str) -> tuple[bytes, dict[str, Stored]]:
    """The raw header (everything before the data), and the tensors by name; no data is read.

    Args:
        file: binary, seekable.
        file_bytes: size of the whole file.
        name: the file in messages.

    Raises:
        InvalidFileError: it is no safetensors file, damaged, or cut short.
    """

    def fail(what: str, key: str = "") -> NoReturn:
        raise InvalidFileError(f"{name}: {what}; download it again", path=name, key=key)

    if file_bytes < 8:
        fail(f"the file has only {file_bytes} bytes, too few for a safetensors file")
    file.seek(0)
    start = _read(file, 8)
    n_header = int.from_bytes(start, "little")
    if n_header > MAX_HEADER_BYTES:
        fail("not a safetensors file: it does not begin with the length of a header")
    if 8 + n_header > file_bytes:
        fail(f"the header has {n_header} bytes and the file only {file_bytes}: it is cut short")
    raw = _read(file, n_header)
    try:
        header = json.loads(raw.decode("utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as e:
        fail(f"the header cannot be read ({e})")
    if not isinstance(header, dict):
        fail("the header is no JSON object")
    header.pop("__metadata__", None)
    data = 8 + n_header
    tensors = {}
    for key, entry in header.items():
        stored = _entry(entry, data)
        if stored is None:
            fail(f"the header's entry for '{key}' makes no sense", key)
        tensors[key] = stored
    at = data
    for key, stored in sorted(tensors.items(), key=lambda item: (item[1].begin, item[1].end)):
        if stored.begin != at:
            fail(f"the data of '{key}' does not begin where that of the tensor before it ends", key)
        if stored.end > file_bytes:
            fail(f"the data of '{key}' ends at byte {stored.end}, and the file has {file_bytes}: it is cut short", key)
        at = stored.end
    if at != file_bytes:
        fail(f"{file_bytes - at} bytes follow the last tensor")
    return start + raw, tensors


def _entry(entry: object, data: int) -> Stored | None:
    """One tensor's entry, None when it contradicts itself."""
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        return None
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in ITEM_BYTES or not _counts(shape) or not _counts(offsets):
        return None
    if len(offsets) != 2 or offsets[1] - offsets[0] != prod(shape) * ITEM_BYTES[dtype]:
        return None
    return Stored(dtype, tuple(shape), data + offsets[0], data + offsets[1])


def _counts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in value)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        raise ValueError("a name appears twice")
    return out


def _read(file: Readable, n: int) -> bytes:
    parts = []
    while n and (piece := file.read(n)):
        parts.append(piece)
        n -= len(piece)
    return b"".join(parts)
