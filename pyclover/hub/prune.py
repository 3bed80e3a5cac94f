"""Old downloads: which sets a newer one has taken the place of, and how they are removed.

A set is old when every branch and tag that led to it leads to a newer complete set of the same quantization now; one
that was asked for by its commit alone is never old. Only what the cache itself wrote is removed, and only as it wrote
it: a file that was changed or added there stays.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import psutil
from filelock import FileLock, Timeout

from pyclover.errors import DownloadError, PathLike, UsageError
from pyclover.files.kept import RECORD
from pyclover.hub import here, store
from pyclover.hub.names import is_commit, parse_name

LOCK = ".lock"
PART_SUFFIX = ".part"


@dataclass(frozen=True)
class OldSet:
    """A set that may go.

    Attributes:
        quant: "" where the download was stopped before its first file was whole, and nothing else says it.
        files: what of it would be removed, models and parts of them.
        stays: files in the folder that are not the cache's, or not as it wrote them.
        n_bytes: of `files`.
        in_use: why it cannot go now, "" when it can.
    """

    repo: str
    quant: str
    folder: Path
    files: tuple[Path, ...]
    stays: tuple[Path, ...]
    n_bytes: int
    in_use: str = ""

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data; paths as text."""
        paths = {name: [str(path) for path in getattr(self, name)] for name in ("files", "stays")}
        return {**asdict(self), "folder": str(self.folder), **paths}


def find_old(name: str | None = None, *, cache_dir: PathLike | None = None) -> tuple[OldSet, ...]:
    """Sets that a newer one has taken the place of, by folder.

    Args:
        name: owner/repo or owner/repo:quant; None: of all repositories.
        cache_dir: None: PYCLOVER_CACHE, else the user's cache folder.

    Raises:
        UsageError: the name is none.
    """
    wanted = None if name is None else parse_name(name)
    if wanted is not None and wanted.repo is None:
        raise UsageError("auto is a choice, not a repository: name one, or leave the name out", option="name")
    place = store.Store(cache_dir)
    old = []
    for folder in _old_folders(place):
        one = _describe(folder)
        if not one.files and not (folder / RECORD).exists():
            continue  # what is left of it is not the cache's
        if wanted is None or (
            one.repo == wanted.repo and (wanted.quant is None or one.quant.lower() == wanted.quant.lower())
        ):
            old.append(one)
    used = _open_files() if old else frozenset()
    return tuple(_with_use(one, used) for one in old)


def remove(old: Iterable[OldSet]) -> tuple[int, tuple[str, ...]]:
    """Removes sets that `find_old` named, but those in use. What was opened or changed since it was named stays, too.

    Returns:
        Bytes that were freed, and one sentence for each file that could not be removed.
    """
    ready = [one for one in old if not one.in_use]
    used = _open_files() if ready else frozenset()
    freed, failed = 0, []
    for one in ready:
        try:
            with _held(one.folder):
                now = _describe(one.folder)
                if busy := _busy(now, used):
                    raise DownloadError(busy, path=one.folder, reason="disk")
                for path in now.files:
                    if path not in one.files:
                        continue
                    size = path.stat().st_size
                    path.unlink()
                    freed += size
                (one.folder / RECORD).unlink(missing_ok=True)
                _remove_folder(one.folder)
        except (OSError, DownloadError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            failed.append(f"{one.folder}: not removed as a whole: {reason}")
    return freed, tuple(failed)


def _old_folders(place: store.Store) -> Iterator[Path]:
    """Folders of the same repository and quantization stand together: their names begin alike."""
    groups: dict[tuple[Path, str], list[Path]] = {}
    for folder in place.set_folders():
        stem, dash, key = folder.name.rpartition("-")
        if dash and len(key) == 16:
            groups.setdefault((folder.parent, stem), []).append(folder)
    for folders in groups.values():
        newest: dict[str, float] = {}  # branch or tag -> when it last led to a complete set
        for folder in folders:
            record = store.read_record(folder)
            if record is not None and record.complete and here.is_complete(folder, record.offer()):
                for name in _branches(record):
                    newest[name] = max(newest.get(name, 0.0), record.seen_s)
        for folder in folders:
            record = store.read_record(folder)
            if record is None:
                # stopped before a file was whole: old when it was begun before the newest complete set was seen
                if newest and _touched_s(folder) < max(newest.values()):
                    yield folder
            elif (names := _branches(record)) and all(record.seen_s < newest.get(name, 0.0) for name in names):
                yield folder


def _branches(record: store.Record) -> tuple[str, ...]:
    return tuple(name for name in record.asked if not is_commit(name))


def _touched_s(folder: Path) -> float:
    with contextlib.suppress(OSError):
        return max(path.stat().st_mtime for path in (folder, *folder.iterdir()))
    return float("inf")


def _describe(folder: Path) -> OldSet:
    record = store.read_record(folder)
    known = {} if record is None else {kept.path: kept for kept in record.kept.values()}
    files, stays, n_bytes = [], [], 0
    for path in sorted(folder.iterdir()):
        if path.name in (RECORD, LOCK):
            continue
        kept = known.get(path.name)
        if path.is_symlink() or not path.is_file():
            stays.append(path)
        elif path.name.endswith(PART_SUFFIX) or (kept is not None and store.untouched(folder, kept) is not None):
            files.append(path)
            n_bytes += path.stat().st_size
        else:
            stays.append(path)
    repo = f"{folder.parent.parent.name}/{folder.parent.name}"
    quant = folder.name.rpartition("-")[0] if record is None else record.quant
    return OldSet(repo, quant, folder, tuple(files), tuple(stays), n_bytes)


def _with_use(one: OldSet, used: frozenset[str]) -> OldSet:
    why = _busy(one, used)
    if not why:
        try:
            with _held(one.folder):
                pass
        except (OSError, DownloadError) as error:
            why = str(error)
    return replace(one, in_use=why)


def _busy(one: OldSet, used: frozenset[str]) -> str:
    """Why a set must not go, "" when it may."""
    names = [path.name for path in one.files if os.path.realpath(path) in used]
    return f"{names[0]} is open in a running program" if names else ""


def _open_files() -> frozenset[str]:
    """Files that are open or mapped in processes that may be looked into."""
    found: set[str] = set()
    if sys.platform == "linux":  # psutil's way there counts every page of every process
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                lines = (process / "maps").read_text(errors="surrogateescape").splitlines()
                found.update(line[line.index("/") :] for line in lines if "/" in line)
            with contextlib.suppress(OSError):
                for fd in (process / "fd").iterdir():
                    with contextlib.suppress(OSError):
                        found.add(os.readlink(fd))
        return frozenset(found)
    for one in psutil.process_iter():
        for look in ("open_files", "memory_maps"):  # the second is not there on every system
            with contextlib.suppress(psutil.Error, OSError, AttributeError, NotImplementedError):
                found.update(item.path for item in getattr(one, look)())
    return frozenset(found)


@contextlib.contextmanager
def _held(folder: Path) -> Iterator[None]:
    """No download writes into the folder meanwhile.

    Raises:
        DownloadError: one does now.
    """
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise DownloadError("a download is writing there", path=folder, reason="disk") from None
    try:
        yield
    finally:
        lock.release()


def _remove_folder(folder: Path) -> None:
    """The folder, if nothing but its lock is left in it, and the ones above that are empty then."""
    with contextlib.suppress(OSError):
        if {path.name for path in folder.iterdir()} <= {LOCK}:
            (folder / LOCK).unlink(missing_ok=True)
            folder.rmdir()
            folder.parent.rmdir()
            folder.parent.parent.rmdir()
