"""A file that comes into being as a whole or not at all: filled beside its place, synced, then renamed.

Until then it is called NAME.repair.part. It is locked while it is written, so that a second writer is refused, and what
a killed writer left behind is taken over by the next one: a file of that name with no other name, and nothing else.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from pyclover.errors import RepairError

try:
    import fcntl
except ImportError:  # no such locks on Windows
    fcntl = None  # type: ignore[assignment]

PART_SUFFIX = ".repair.part"


class NewFile:
    """A file in the making; a context manager that removes what was not committed.

    Attributes:
        part: where it is now.
        fd: open for reading and writing, empty at first.

    Raises:
        RepairError: another process is writing it.
        OSError: it cannot be made.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.part = path.with_name(path.name + PART_SUFFIX)
        self.fd = self._open()

    def _open(self) -> int:
        while True:
            flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
            with suppress(FileNotFoundError):
                if not stat.S_ISREG(os.lstat(self.part).st_mode):
                    raise RepairError(f"{self.part}: this is no ordinary file; move it out of the way", path=self.path)
            fd = os.open(self.part, flags, 0o666)
            try:
                self._lock(fd)
                if _same_file(fd, self.part):
                    if os.fstat(fd).st_nlink == 1:
                        os.ftruncate(fd, 0)
                        return fd
                    # its writer was killed after it had given the file its name: that file is finished, and not ours
                    os.unlink(self.part)
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)  # its writer has just renamed or removed it: this is not the file of that name any more

    def _lock(self, fd: int) -> None:
        if fcntl is None:
            return
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RepairError(
                f"{self.part}: another process is writing this file; wait until it is done", path=self.path
            ) from None
        except OSError:  # a file system without locks
            pass

    def sync(self) -> None:
        """Everything written so far is on the disk when this returns."""
        os.fsync(self.fd)

    def commit(self, *, overwrite: bool) -> None:
        """Give the synced file its name.

        Raises:
            RepairError: there is a file of that name, and `overwrite` is false; or it is none that may be replaced.
        """
        check_replaceable(self.path)
        if overwrite:
            os.replace(self.part, self.path)
        else:
            try:
                os.link(self.part, self.path)  # unlike a rename it never takes the place of another file
            except FileExistsError:
                raise exists(self.path) from None
            except OSError:  # a file system without links
                if self.path.exists():
                    raise exists(self.path) from None
                os.replace(self.part, self.path)
            else:
                os.unlink(self.part)
        sync_folder(self.path.parent)

    def __enter__(self) -> NewFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if _same_file(self.fd, self.part):
            with suppress(OSError):
                os.unlink(self.part)
        os.close(self.fd)


def exists(path: Path) -> RepairError:
    """The error about a file that is in the way."""
    return RepairError(
        f"{path}: there is a file of that name; give another name, or take its place with overwrite=True (--force)",
        path=path,
    )


def check_replaceable(path: Path) -> None:
    """Raises RepairError where something else than a file has the name: a folder, a device, a pipe.

    A rename would put a file in the place of a device, and the system would go without it. A link may go, but not one
    that leads to such a thing: who names /dev/stdout does not mean the link.
    """
    for look in (os.lstat, os.stat):
        with suppress(FileNotFoundError):
            mode = look(path).st_mode
            if not stat.S_ISREG(mode) and not stat.S_ISLNK(mode):
                what = "a folder" if stat.S_ISDIR(mode) else "no regular file"
                raise RepairError(f"{path}: this is {what}; give the name of a file", path=path)


def sync_folder(folder: Path) -> None:
    """Names in a folder are on the disk when this returns, where the system can say so."""
    with suppress(OSError):
        fd = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def take_mode(fd: int, like: Path) -> None:
    """Give an open file the permissions of another, so far as they may be given."""
    with suppress(OSError):
        os.fchmod(fd, stat.S_IMODE(os.stat(like).st_mode) | stat.S_IWUSR)


def _same_file(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False
