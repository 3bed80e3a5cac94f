"""Copy a range of one file into another without taking it through memory, and prove that it arrived."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import TypeAlias

Progress: TypeAlias = Callable[[int], None]  # bytes done since the last call

_STEP = 64 << 20  # bytes that one system call is asked to copy: between calls progress is shown and Ctrl-C is heard
_CHUNK = 4 << 20
Copier: TypeAlias = Callable[[int, int, int, int, int], int]


def copy_range(source: int, target: int, at: int, to: int, n_bytes: int, progress: Progress | None = None) -> None:
    """Copy `n_bytes` from offset `at` of one open file to offset `to` of another.

    The kernel copies, by copy_file_range or else sendfile, where it can for these two files; else this process does.

    Raises:
        OSError: reading or writing failed; EOFError: the source ends before the range does.
    """
    ways = list(_ways)
    done = 0
    while done < n_bytes:
        try:
            n = ways[0](source, target, at + done, to + done, min(_STEP, n_bytes - done))
        except OSError:
            # which pairs of files a way can copy between is up to the kernel and the file systems: the last one can
            # always, and a true fault comes up there again
            if len(ways) == 1:
                raise
            n = 0
        if n <= 0:
            if len(ways) == 1:
                raise EOFError(f"the source ends {n_bytes - done} bytes early")
            del ways[0]
            continue
        done += n
        if progress is not None:
            progress(n)


def compare_ranges(
    source: int,
    target: int,
    at: int,
    to: int,
    n_bytes: int,
    digest: Callable[[bytearray], object],
    progress: Progress | None = None,
) -> bool:
    """Whether both files hold the same bytes in their ranges; `digest` gets these bytes piece by piece."""
    ours, theirs = bytearray(_CHUNK), bytearray(_CHUNK)
    done = 0
    while done < n_bytes:
        n = min(_CHUNK, n_bytes - done)
        if n < len(ours):
            ours, theirs = bytearray(n), bytearray(n)
        if not _read_full(source, at + done, ours) or not _read_full(target, to + done, theirs) or ours != theirs:
            return False
        digest(ours)
        done += n
        if progress is not None:
            progress(n)
    return True


def forget_cached(file: int) -> None:
    """Ask the kernel to read a synced file from the disk next time, not from memory, where it takes such advice."""
    if hasattr(os, "posix_fadvise"):
        with suppress(OSError):
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)


def write_full(file: int, data: bytes, at: int) -> None:
    """Write all of `data` at an offset."""
    view = memoryview(data)
    while view:
        n = os.pwrite(file, view, at)
        view, at = view[n:], at + n


def _read_full(file: int, at: int, into: bytearray) -> bool:
    view = memoryview(into)
    while view:
        n = os.preadv(file, [view], at)
        if n == 0:
            return False
        view, at = view[n:], at + n
    return True


def _copy_file_range(source: int, target: int, at: int, to: int, n: int) -> int:
    return os.copy_file_range(source, target, n, at, to)


def _sendfile(source: int, target: int, at: int, to: int, n: int) -> int:
    os.lseek(target, to, os.SEEK_SET)
    return os.sendfile(target, source, at, n)


def _read_and_write(source: int, target: int, at: int, to: int, n: int) -> int:
    data = os.pread(source, min(n, _CHUNK), at)
    write_full(target, data, to)
    return len(data)


_ways: list[Copier] = [_read_and_write]
if hasattr(os, "sendfile"):
    _ways.insert(0, _sendfile)
if hasattr(os, "copy_file_range"):
    _ways.insert(0, _copy_file_range)
