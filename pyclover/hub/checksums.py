"""Checksums: what a file should be, and whether it is.

The hub knows the SHA-256 of a large file and git's own SHA-1 of a small one; a repository may list SHA-256 sums in a
file called SHA256SUMS as well. A file on disk is read once for all of them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

CHUNK_BYTES = 1 << 22
SUMS_NAME = "SHA256SUMS"
MAX_SUMS_BYTES = 1 << 20

# "<sum>  name" and "<sum> *name" of sha256sum, and "SHA256 (name) = <sum>" of the BSDs
_LINE = re.compile(r"\\?([0-9a-fA-F]{64})[ \t]+\*?(.+)|SHA256 ?\((.+)\) ?= ?([0-9a-fA-F]{64})")


@dataclass(frozen=True)
class Digests:
    """What was computed of a file: its size, SHA-256 and git's SHA-1 of it as a blob, both in hexadecimal."""

    size: int
    sha256: str
    git_sha1: str


def parse_sums(text: str) -> dict[str, str]:
    """SHA-256 by file name, as in the output of sha256sum; other lines do not count."""
    sums: dict[str, str] = {}
    for line in text.splitlines():
        hit = _LINE.fullmatch(line.strip())
        if hit is None:
            continue
        digest, name = (hit[1], hit[2]) if hit[1] else (hit[4], hit[3])
        sums[name.strip().removeprefix("./")] = digest.lower()
    return sums


def digest_bytes(data: bytes) -> Digests:
    """Digests of bytes in memory."""
    git = hashlib.sha1(b"blob %d\0" % len(data), usedforsecurity=False)
    git.update(data)
    return Digests(len(data), hashlib.sha256(data).hexdigest(), git.hexdigest())


def digest_file(path: Path, *, git: bool, step: Callable[[int], None] | None = None) -> Digests:
    """Digests of a file.

    Args:
        git: whether git's SHA-1 is wanted, too; "" otherwise.
        step: called with the number of bytes read since the last call; may raise to stop.
    """
    sha256 = hashlib.sha256()
    size = 0
    with path.open("rb", buffering=0) as file:
        sha1 = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False) if git else None
        buffer = bytearray(CHUNK_BYTES)
        view = memoryview(buffer)
        while n := file.readinto(buffer):
            sha256.update(view[:n])
            if sha1 is not None:
                sha1.update(view[:n])
            size += n
            if step is not None:
                step(n)
    return Digests(size, sha256.hexdigest(), "" if sha1 is None else sha1.hexdigest())


def sum_for(name: str, sums: Mapping[str, Mapping[str, str]]) -> str | None:
    """What SHA256SUMS files say about a file of the repository.

    Args:
        name: path inside the repository.
        sums: parsed SHA256SUMS files by the folder they lie in, "" for the root.
    """
    for folder, entries in sums.items():
        if folder and not name.startswith(f"{folder}/"):
            continue
        relative = name[len(folder) + 1 :] if folder else name
        if relative in entries:
            return entries[relative]
    return None
