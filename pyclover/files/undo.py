"""The undo file of a repair in place: the old headers of a set, beside its first file, until the new ones are written.

It is called FIRST.undo and says itself which files it is about. Their names would not do: a file that is not split may
be called like a shard, and then it has nothing to do with the other files of that pattern.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pyclover.errors import RepairError
from pyclover.files.shard_names import parse_shard_name, shard_name

SUFFIX = ".undo"
_MAGIC = b"pyclover undo 1\n"
_START = len(_MAGIC) + hashlib.sha256().digest_size
_MAX_TABLE_BYTES = 1 << 24


@dataclass(frozen=True)
class OldHeader:
    """What a file began with: its name, its size in bytes, the bytes in front of its data."""

    name: str
    file_bytes: int
    raw: bytes


def undo_path(first: Path) -> Path:
    """Where the old headers of a set lie; `first` is its first file."""
    return first.with_name(first.name + SUFFIX)


def find_undo(path: Path) -> Path | None:
    """The undo file that is about a model file, None when there is none: then no repair of it was interrupted."""
    if not path.name:
        return None
    try:
        own = undo_path(path)
        if own.exists():
            return own
        named = parse_shard_name(path.name)
        if named is None:
            return None
        first = undo_path(path.with_name(shard_name(named[0], 0, named[2])))
        # one that cannot be read may be about this file
        return first if first.exists() and path.name in (_names(first) or (path.name,)) else None
    except OSError:  # a name that is too long, a folder that may not be entered: the file's own error says it better
        return None


def encode(headers: Sequence[OldHeader]) -> bytes:
    """Magic; SHA-256 of the rest; length of the table; the table of names, sizes and lengths; the headers."""
    table = json.dumps([[h.name, h.file_bytes, len(h.raw)] for h in headers]).encode()
    body = struct.pack("<Q", len(table)) + table + b"".join(h.raw for h in headers)
    return _MAGIC + hashlib.sha256(body).digest() + body


def read(undo: Path) -> list[OldHeader]:
    """The old headers.

    Raises:
        RepairError: it is not an undo file, or a damaged one.
        OSError: it cannot be read.
    """
    content = undo.read_bytes() if undo.is_file() else b""  # a pipe of that name would be waited for
    body = content[_START:]
    if not content.startswith(_MAGIC) or hashlib.sha256(body).digest() != content[len(_MAGIC) : _START]:
        raise RepairError(f"{undo}: not an undo file of a repair, or a damaged one; remove it by hand", path=undo)
    (n_table,) = struct.unpack_from("<Q", body)
    at = 8 + n_table
    out: list[OldHeader] = []
    for name, size, n in json.loads(body[8:at]):
        out.append(OldHeader(name, size, body[at : at + n]))
        at += n
    return out


def _names(undo: Path) -> tuple[str, ...] | None:
    """Names of the files that it is about, None where it cannot be read as far as that."""
    if not undo.is_file():
        return None
    try:
        with undo.open("rb") as file:
            start = file.read(_START + 8)
            if not start.startswith(_MAGIC) or len(start) < _START + 8:
                return None
            (n_table,) = struct.unpack_from("<Q", start, _START)
            table = json.loads(file.read(min(n_table, _MAX_TABLE_BYTES)))
        return tuple(str(name) for name, _, _ in table)
    except (OSError, ValueError, TypeError):
        return None
