"""Where downloads lie, and what is known of them.

    <cache>/models/<owner>/<repo>/<quant>-<key>/    the files of one set, under their own names
        .download.json                              what they are, and that they were checked
        <name>.part                                 a file on its way
        <name>.changed                              what somebody made of a file, when it had to be fetched again
        .lock                                       held by the process that downloads

The key comes from names, sizes and checksums: other content has another folder, so nothing is ever overwritten, and a
new commit that leaves the files alone costs nothing.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import platformdirs
from filelock import FileLock, Timeout

from pyclover import arguments
from pyclover.errors import CloverError, DownloadError, PathLike
from pyclover.files.kept import RECORD
from pyclover.hub.checksums import Digests
from pyclover.hub.listing import HubFile, Offer, size
from pyclover.hub.progress import Meter

_FORMAT = 1
_MAX_ASKED = 50


@dataclass(frozen=True)
class Kept:
    """A file that was checked.

    Attributes:
        name: in the repository.
        path: where it lies; relative to the set's folder for our own files.
        mtime_ns: of the file when it was checked; another one means that it was touched since.
    """

    name: str
    path: str
    size: int
    sha256: str
    git_sha1: str
    mtime_ns: int


@dataclass(frozen=True)
class Record:
    """What is known of a set's folder.

    Attributes:
        commit: at which the set was last seen.
        asked: revisions that led here.
        names: of the files of the whole set, in order.
        seen_s: when the hub last offered it, seconds since 1970.
        kept: the files that were checked, by name.
        unnamed: revisions of which a name without a quantization led here.
    """

    repo: str
    quant: str
    commit: str
    asked: tuple[str, ...]
    names: tuple[str, ...]
    seen_s: float
    kept: dict[str, Kept]
    unnamed: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        return bool(self.names) and all(name in self.kept for name in self.names)

    def offer(self) -> Offer:
        """The set as the hub once offered it."""
        kept = [self.kept[name] for name in self.names]
        files = tuple(HubFile(k.name, k.size, k.sha256, k.git_sha1 or None) for k in kept)
        return Offer(self.repo, self.quant, files)


class Store:
    """The cache folder.

    Args:
        folder: None: PYCLOVER_CACHE, else the user's cache folder.
    """

    def __init__(self, folder: PathLike | None = None) -> None:
        chosen = folder if folder is not None else os.environ.get("PYCLOVER_CACHE") or None
        default = platformdirs.user_cache_path("pyclover", appauthor=False)
        self.root = (default if chosen is None else arguments.path("cache_dir", chosen).expanduser()).absolute()

    def folder(self, offer: Offer) -> Path:
        """Where a set lies; it need not be there."""
        return self._repo(offer.repo) / offer.key

    def _repo(self, repo: str) -> Path:
        return self.root.joinpath("models", *repo.split("/"))

    def records(self, repo: str, revision: str) -> list[tuple[Path, Record]]:
        """Complete sets of a repository that a revision led to, the last seen first."""
        found = []
        with contextlib.suppress(OSError):
            for folder in self._repo(repo).iterdir():
                record = read_record(folder)
                if record is not None and record.complete and record.repo == repo and revision in record.asked:
                    found.append((folder, record))
        return sorted(found, key=lambda item: -item[1].seen_s)

    def set_folders(self) -> Iterator[Path]:
        """The folder of every set, in order."""
        yield from sorted(path for path in self.root.glob("models/*/*/*") if path.is_dir() and not path.is_symlink())

    def every_record(self) -> Iterator[tuple[Path, Record]]:
        """All that is known, set by set."""
        for folder in self.set_folders():
            record = read_record(folder)
            if record is not None:
                yield folder, record


def read_record(folder: Path) -> Record | None:
    """What is known of a folder; None when nothing is, or when the record cannot be read."""
    try:
        data = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        if data["format"] != _FORMAT:
            return None
        kept = {item["name"]: Kept(**item) for item in data["files"]}
        names = tuple(map(str, data["names"]))
        if any("/" in k.path and not os.path.isabs(k.path) for k in kept.values()):
            return None
        return Record(
            str(data["repo"]), str(data["quant"]), str(data["commit"]), tuple(map(str, data["asked"])), names,
            float(data["seen_s"]), kept, tuple(map(str, data.get("unnamed", ()))),
        )  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def write_record(folder: Path, record: Record) -> None:
    """Remembers. That it does not work costs a second check later, nothing else, so it is no error."""
    data: dict[str, Any] = {
        "format": _FORMAT, "repo": record.repo, "quant": record.quant, "commit": record.commit,
        "asked": list(record.asked), "names": list(record.names), "seen_s": record.seen_s,
        "unnamed": list(record.unnamed), "files": [asdict(kept) for kept in record.kept.values()],
    }  # fmt: skip
    draft = folder / f".{RECORD}.{os.getpid()}-{os.urandom(4).hex()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        draft.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
        os.replace(draft, folder / RECORD)
    except OSError:
        with contextlib.suppress(OSError):
            draft.unlink()


def seen(
    folder: Path, offer: Offer, commit: str, revision: str, kept: dict[str, Kept], *, unnamed: bool = False
) -> Record:
    """The record of a set that the hub offers now, with what was known before."""
    before = read_record(folder)
    names = tuple(file.name for file in offer.files)
    asked = _with_names(() if before is None else before.asked, commit, revision)
    without = () if before is None else before.unnamed
    if unnamed:
        without = _with_names(without, commit, revision)
    return Record(offer.repo, offer.quant, commit, asked, names, time.time(), kept, without)


def _with_names(before: tuple[str, ...], commit: str, revision: str) -> tuple[str, ...]:
    kept = [name for name in before if name not in (revision, commit)]
    return tuple([*kept, *dict.fromkeys((commit, revision))][-_MAX_ASKED:])


def with_file(record: Record, file: HubFile, path: str, where: Path, digests: Digests) -> Record:
    """The record with one checked file more."""
    kept = Kept(file.name, path, digests.size, digests.sha256, digests.git_sha1, where.stat().st_mtime_ns)
    return replace(record, kept={**record.kept, file.name: kept})


def is_right(file: HubFile, digests: Digests | Kept) -> bool:
    """Whether a file is what the hub announces."""
    if file.size != digests.size or (file.sha256 is None and file.git_sha1 is None):
        return False
    if file.sha256 is not None and file.sha256 != digests.sha256:
        return False
    return file.git_sha1 is None or file.git_sha1 == digests.git_sha1


def untouched(folder: Path, kept: Kept) -> Path | None:
    """The file, when it is as it was when it was checked."""
    path = folder / kept.path
    try:
        state = path.stat()
    except OSError:
        return None
    return path if (state.st_size, state.st_mtime_ns) == (kept.size, kept.mtime_ns) else None


@contextlib.contextmanager
def locked(folder: Path, meter: Meter) -> Iterator[None]:
    """Holds a set's folder for this process; waits for another one, telling so.

    Raises:
        OSError: the folder cannot be made, or not be locked.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / ".lock")
    while True:
        try:
            lock.acquire(timeout=0.5, poll_interval=0.1)
            break
        except Timeout:
            meter.begin(folder.name)
        except NotImplementedError as error:
            raise OSError(errno.ENOLCK, "this file system has no locks") from error
    try:
        yield
    finally:
        lock.release()


def check_room(folder: Path, needed_bytes: int, repo: str) -> None:
    """Raises DownloadError when a folder's disk has not so much room."""
    free = shutil.disk_usage(folder).free
    if needed_bytes > free:
        raise DownloadError(
            f"{folder}: {size(needed_bytes)} are needed and {size(free)} are free; make room, or "
            "choose another folder with cache_dir (--cache-dir, PYCLOVER_CACHE)",
            path=folder, repo=repo, reason="no_room", needed_bytes=needed_bytes, free_bytes=free,
        )  # fmt: skip


@contextlib.contextmanager
def disk_errors(folder: Path, repo: str) -> Iterator[None]:
    """While the block runs, an error of the file system becomes one sentence."""
    try:
        yield
    except CloverError:
        raise
    except OSError as error:
        where = error.filename if isinstance(error.filename, str) else str(folder)
        elsewhere = "choose another folder with cache_dir (--cache-dir, PYCLOVER_CACHE)"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            text, reason = f"no room left; make some and run it again, it continues there, or {elsewhere}", "no_room"
        elif error.errno == errno.EFBIG:
            text, reason = (
                f"no file may be so large here (a limit, see ulimit -f, or the file system); {elsewhere}",
                "disk",
            )
        else:
            text, reason = f"{error.strerror or error}; {elsewhere}", "disk"
        raise DownloadError(f"{where}: {text}", path=where, repo=repo, reason=reason) from error
