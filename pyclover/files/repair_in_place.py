"""Change the header of a file where it stands, when the new one is as long as the old one with its padding.

How that survives a crash: the old headers of all files of the set are first written to FIRST.undo beside the first
file, and are on the disk before a byte of the model changes; the undo file goes when all new headers are on the disk.
While it is there, nothing here opens the model, and the next repair puts the old headers back. The undo file itself
appears as a whole or not at all. The data section is never written to.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pyclover.errors import RepairError
from pyclover.files.repair_write import read_old_header
from pyclover.files.shards import ShardSet, undo_path
from pyclover.files.write_copy import write_full
from pyclover.files.write_new import NewFile, sync_folder

try:
    import fcntl
except ImportError:  # no such locks on Windows
    fcntl = None  # type: ignore[assignment]

_MAGIC = b"pyclover undo 1\n"


def check_fits(shards: ShardSet, headers: Sequence[bytes]) -> None:
    """Raises RepairError where a new header would move the data, or the file is not to be written to."""
    for header, raw in zip(shards.headers, headers, strict=True):
        difference = len(raw) - header.data_offset
        if difference:
            text = f"is {difference} bytes too long" if difference > 0 else f"is {-difference} bytes too short"
            raise RepairError(
                f"{header.path}: the new header {text} for its place before the data; repair into a new file instead",
                path=header.path,
            )  # fmt: skip
        if header.path.is_symlink():
            raise RepairError(
                f"{header.path}: this is a link to {os.readlink(header.path)}, which others may use as it is; repair "
                "that file, or into a new one", path=header.path,
            )  # fmt: skip
        if not os.access(header.path, os.W_OK):
            raise RepairError(f"{header.path}: there is no permission to write to it", path=header.path)


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
    undo = undo_path(path)
    if not undo.exists():
        return False
    first = undo.with_name(undo.name.removesuffix(".undo"))
    try:
        with _locked(first):
            for file, size, raw in _read_undo(undo):
                if os.stat(file).st_size != size:
                    raise RepairError(
                        f"{undo}: {file.name} has another size than when it was repaired; remove the undo file if the "
                        "model is another one now", path=undo,
                    )  # fmt: skip
                _overwrite(file, raw)
            os.unlink(undo)
            sync_folder(undo.parent)
    except OSError as e:
        raise RepairError(f"{undo}: the old header cannot be put back: {e.strerror or e}", path=undo) from e
    return True


def _write_undo(undo: Path, shards: ShardSet) -> None:
    """Magic; SHA-256 of the rest; length of the table, the table (name, size, length of its header); the headers."""
    raws = [read_old_header(header) for header in shards.headers]
    table = json.dumps(
        [[h.path.name, h.file_bytes, len(raw)] for h, raw in zip(shards.headers, raws, strict=True)]
    ).encode()
    body = struct.pack("<Q", len(table)) + table + b"".join(raws)
    with NewFile(undo) as file:
        write_full(file.fd, _MAGIC + hashlib.sha256(body).digest() + body, 0)
        file.sync()
        file.commit(overwrite=False)


def _read_undo(undo: Path) -> list[tuple[Path, int, bytes]]:
    content = undo.read_bytes()
    start = len(_MAGIC) + 32
    body = content[start:]
    if not content.startswith(_MAGIC) or hashlib.sha256(body).digest() != content[len(_MAGIC) : start]:
        raise RepairError(f"{undo}: not an undo file of a repair, or a damaged one; remove it by hand", path=undo)
    (n_table,) = struct.unpack_from("<Q", body)
    at = 8 + n_table
    out: list[tuple[Path, int, bytes]] = []
    for name, size, n in json.loads(body[8:at]):
        out.append((undo.with_name(name), size, body[at : at + n]))
        at += n
    return out


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
