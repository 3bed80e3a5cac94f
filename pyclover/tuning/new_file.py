"""Files that a program of the package writes: whole under their name, or not there at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from pyclover.errors import FileError
from pyclover.files.write_new import NewFile, check_replaceable, exists

SPARE_BYTES = 1 << 20  # for the file system's own records


class PartFile(NewFile):
    """A file in the making, called NAME`suffix` until it is committed; see files.write_new."""

    def __init__(self, path: Path, suffix: str) -> None:
        self.path = path
        self.part = path.with_name(path.name + suffix)
        self.fd = self._open()

    def __enter__(self) -> PartFile:
        return self

    @property
    def size(self) -> int:
        """Bytes written so far."""
        return os.fstat(self.fd).st_size


def check_new(path: Path, sources: Sequence[Path], suffix: str, *, overwrite: bool) -> None:
    """Raises FileError where a file of that name cannot or must not be made; `sources` are files to be read."""
    try:
        _check_new(path, sources, suffix, overwrite=overwrite)
    except OSError as e:
        if isinstance(e, FileError):
            raise
        raise FileError(f"{path}: no file can be made there: {e.strerror or e}", path=path) from e


def _check_new(path: Path, sources: Sequence[Path], suffix: str, *, overwrite: bool) -> None:
    if not path.parent.is_dir():
        raise FileError(f"{path.parent}: there is no such folder; make it, or give another", path=path.parent)
    check_replaceable(path)
    for source in sources:
        for candidate in (path, path.with_name(path.name + suffix)):
            with suppress(FileNotFoundError):
                if os.path.samefile(candidate, source):
                    raise FileError(f"{candidate}: this file is to be read; give the new one another name", path=path)
    if os.path.lexists(path) and not overwrite:
        raise exists(path)


def check_room(folder: Path, n_bytes: int, what: str) -> None:
    """Raises FileError where the disk has no room for so many bytes."""
    free = shutil.disk_usage(folder).free
    if n_bytes + SPARE_BYTES > free:
        raise FileError(
            f"{folder}: {what} needs {n_bytes} bytes, and {free} are free; make room, or give a folder on another disk",
            path=folder,
        )
