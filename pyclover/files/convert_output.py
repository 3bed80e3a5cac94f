"""The new file of a conversion while it is written: locked, continued where an earlier run stopped, named at the end.

Until then it is NAME.convert.part; beside it, NAME.convert.json says what is written in it and how much of that is on
the disk. A killed run leaves both. The next run for the same file continues there if it would write the same bytes,
and begins anew otherwise.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import time
from pathlib import Path
from types import TracebackType

from pyclover.errors import ConvertError, RepairError
from pyclover.files.write_new import check_replaceable, sync_folder

try:
    import fcntl
except ImportError:  # no such locks on Windows
    fcntl = None  # type: ignore[assignment]

PART_SUFFIX = ".convert.part"
JOURNAL_SUFFIX = ".convert.json"
_FORMAT = 1
# A killed run's child ends by itself within moments; until then it holds the lock.
LOCK_WAIT_S = 15.0


class Output:
    """The file in the making; a context manager that keeps the lock.

    Attributes:
        part: where it is now.
        fd: open, holds the lock; a child that writes inherits it.
        kept_bytes: of an earlier run, on the disk and usable for this one.

    Raises:
        ConvertError: another process is writing it, or its place is taken by something that is no file.
        OSError: it cannot be made.
    """

    def __init__(self, path: Path, key: str, *, resume: bool) -> None:
        _check_replaceable(path)
        self.path = path
        self.part = path.with_name(path.name + PART_SUFFIX)
        self._journal = path.with_name(path.name + JOURNAL_SUFFIX)
        self._key = key
        self.keep = True
        self.fd = self._open()
        self.kept_bytes = self._known() if resume else 0
        if os.fstat(self.fd).st_size > self.kept_bytes:  # what is behind was never synced
            os.ftruncate(self.fd, self.kept_bytes)
        if not self.kept_bytes:
            self._write_journal(0)

    def _open(self) -> int:
        for path in (self.part, self._journal):
            with contextlib.suppress(FileNotFoundError):
                if not stat.S_ISREG(os.lstat(path).st_mode):
                    raise ConvertError(f"{path}: this is no ordinary file; move it out of the way", path=self.path)
        until = time.monotonic() + LOCK_WAIT_S
        while True:
            flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
            fd = os.open(self.part, flags, 0o666)
            try:
                if self._locked(fd, until) and _same_file(fd, self.part):
                    if os.fstat(fd).st_nlink == 1:
                        return fd
                    # its writer was killed after it had given the file its name: that file is finished, and not ours
                    os.unlink(self.part)
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)

    def _locked(self, fd: int, until: float) -> bool:
        if fcntl is None:
            return True
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                if time.monotonic() > until:
                    raise ConvertError(
                        f"{self.part}: another process is writing this file; wait until it is done", path=self.path
                    ) from None
                time.sleep(0.1)
            except OSError:  # a file system without locks
                return True

    def _known(self) -> int:
        """How much an earlier run with the same key has on the disk."""
        try:
            data = json.loads(self._journal.read_text(encoding="utf-8"))
            if data["format"] != _FORMAT or data["key"] != self._key:
                return 0
            synced = int(data["synced"])
            return synced if 0 < synced <= os.fstat(self.fd).st_size else 0
        except (OSError, ValueError, KeyError, TypeError):
            return 0

    def _write_journal(self, synced: int) -> None:
        draft = self._journal.with_name(self._journal.name + ".new")
        draft.write_text(json.dumps({"format": _FORMAT, "key": self._key, "synced": synced}) + "\n", encoding="utf-8")
        os.replace(draft, self._journal)

    def synced(self, n_bytes: int) -> None:
        """So many bytes from the start are on the disk and final."""
        self._write_journal(n_bytes)

    def check_room(self, n_bytes: int) -> None:
        """Raises ConvertError where the disk has no room for a file of that size, less what is there already."""
        free = shutil.disk_usage(self.path.parent).free
        needed = max(n_bytes - os.fstat(self.fd).st_blocks * 512, 0)
        if needed > free:
            raise no_room(self.path, needed, free)

    def commit(self, *, overwrite: bool) -> None:
        """Sync the file and give it its name.

        Raises:
            ConvertError: there is a file of that name, and `overwrite` is false.
        """
        os.fsync(self.fd)
        _check_replaceable(self.path)
        if overwrite:
            os.replace(self.part, self.path)
        else:
            try:
                os.link(self.part, self.path)  # unlike a rename it never takes the place of another file
            except FileExistsError:
                raise exists(self.path) from None
            except OSError:  # a file system without links
                if os.path.lexists(self.path):
                    raise exists(self.path) from None
                os.replace(self.part, self.path)
            else:
                os.unlink(self.part)
        self._remove_journal()
        sync_folder(self.path.parent)

    def discard(self) -> None:
        """Nothing of it is kept when the block ends."""
        self.keep = False

    def _remove_journal(self) -> None:
        for path in (self._journal, self._journal.with_name(self._journal.name + ".new")):
            with contextlib.suppress(OSError):
                os.unlink(path)

    def __enter__(self) -> Output:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if _same_file(self.fd, self.part) and (not self.keep or self._known() == 0):
            with contextlib.suppress(OSError):
                os.unlink(self.part)
            self._remove_journal()
        os.close(self.fd)


def exists(path: Path) -> ConvertError:
    """The error about a file that is in the way."""
    return ConvertError(
        f"{path}: there is a file of that name; give another name, or take its place with overwrite=True (--force)",
        path=path,
    )


def no_room(path: Path, needed: int, free: int) -> ConvertError:
    """The error about a disk that is too small."""
    return ConvertError(
        f"{path}: {_shown(needed)} are needed and {_shown(free)} are free; make room, or write it elsewhere with out "
        "(-o)", path=path, needed_bytes=needed, free_bytes=free,
    )  # fmt: skip


def _shown(n_bytes: int) -> str:
    """A number of bytes in a message, in GiB, below a tenth of one in MiB."""
    return f"{n_bytes / 2**30:.2f} GiB" if n_bytes >= 2**30 // 10 else f"{n_bytes / 2**20:.2f} MiB"


def _check_replaceable(path: Path) -> None:
    try:
        check_replaceable(path)
    except RepairError as e:
        raise ConvertError(str(e), path=path) from None


def _same_file(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False
