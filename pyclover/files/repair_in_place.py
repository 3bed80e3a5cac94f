"""Change the header of a file where it stands, when the new one is as long as the old one with its padding.

How that survives a crash: the old headers of all files of the set are first written to FIRST.undo beside the first
file, and are on the disk before a byte of the model changes; the undo file goes when all new headers are on the disk.
While it is there, nothing here opens the model, and the next repair puts the old headers back. The undo file itself
appears as a whole or not at all. The data section is never written to.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pyclover.errors import RepairError
from pyclover.files.kept import keeper
from pyclover.files.repair_write import read_old_header
from pyclover.files.shards import ShardSet
from pyclover.files.undo import SUFFIX, OldHeader, encode, find_undo, read, undo_path
from pyclover.files.write_copy import write_full
from pyclover.files.write_new import NewFile, sync_folder

try:
    import fcntl
except ImportError:  # no such locks on Windows
    fcntl = None  # type: ignore[assignment]


def check_fits(shards: ShardSet, headers: Sequence[bytes]) -> None:
    """Raises RepairError where a new header would move the data, or the file must not be written to."""
    for header, raw in zip(shards.headers, headers, strict=True):
        difference = len(raw) - header.data_offset
        if difference:
            text = f"is {difference} bytes too long" if difference > 0 else f"is {-difference} bytes too short"
            raise RepairError(
                f"{header.path}: the new header {text} for its place before the data; repair into a new file instead",
                path=header.path,
            )  # fmt: skip
        _check_alone(header.path)
        if header.path.is_symlink():
            raise RepairError(
                f"{header.path}: this is a link to {os.readlink(header.path)}, which others may use as it is; repair "
                "that file, or into a new one", path=header.path,
            )  # fmt: skip
        if not os.access(header.path, os.W_OK):
            raise RepairError(f"{header.path}: there is no permission to write to it", path=header.path)


def _check_alone(path: Path) -> None:
    """Raises RepairError where somebody else counts on the file's content."""
    cache = keeper(path)
    if cache:
        raise RepairError(
            f"{path}: {cache} keeps this file as it was downloaded; changed, it would count as damaged and be fetched "
            "again: repair into a new file instead, or copy it elsewhere first", path=path,
        )  # fmt: skip
    n_names = os.stat(path).st_nlink
    if n_names > 1:
        raise RepairError(
            f"{path}: this file has {n_names} names (hard links), and the model would change under all of them; repair "
            "into a new file instead, or copy it first", path=path,
        )  # fmt: skip


def write_in_place(shards: ShardSet, headers: Sequence[bytes]) -> None:
    """Put the new headers in the place of the old ones.

    Raises:
        RepairError: another process is repairing the file, or it cannot be written.
    """
    undo = undo_path(shards.first_path)
    try:
        with _locked(shards.first_path):
            _write_undo(undo, shards)
            for header, raw in zip(shards.headers, headers, strict=True):
                _overwrite(header.path, raw)
            os.unlink(undo)
            sync_folder(undo.parent)
    except OSError as e:
        raise RepairError(
            f"{shards.first_path}: cannot be changed in place: {e.strerror or e}", path=shards.first_path
        ) from e


def put_back(path: Path) -> bool:
    """Put the old headers back where a repair in place did not come to its end; whether there was one.

    Raises:
        RepairError: a repair is still running, or the undo file is not one of ours or does not go with the files.
    """
    undo = find_undo(path)
    if undo is None:
        return False
    first = undo.with_name(undo.name.removesuffix(SUFFIX))
    try:
        with _locked(first):
            for old in read(undo):
                file = undo.with_name(old.name)
                if os.stat(file).st_size != old.file_bytes:
                    raise RepairError(
                        f"{undo}: {file.name} has another size than when it was repaired; remove the undo file if the "
                        "model is another one now", path=undo,
                    )  # fmt: skip
                _overwrite(file, old.raw)
            os.unlink(undo)
            sync_folder(undo.parent)
    except OSError as e:
        raise RepairError(f"{undo}: the old header cannot be put back: {e.strerror or e}", path=undo) from e
    return True


def _write_undo(undo: Path, shards: ShardSet) -> None:
    old = [OldHeader(h.path.name, h.file_bytes, read_old_header(h)) for h in shards.headers]
    with NewFile(undo) as file:
        write_full(file.fd, encode(old), 0)
        file.sync()
        file.commit(overwrite=False)


def _overwrite(path: Path, raw: bytes) -> None:
    fd = os.open(path, os.O_RDWR)
    try:
        write_full(fd, raw, 0)
        os.fsync(fd)
    finally:
        os.close(fd)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Only one process at a time changes the set or puts it back."""
    fd = os.open(path, os.O_RDWR)
    try:
        if fcntl is not None:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RepairError(
                    f"{path}: another process is repairing it; wait until it is done", path=path
                ) from None
        yield
    finally:
        os.close(fd)
