"""Downloads: a name in, checked files out.

A file gets its final name only after its size and checksum were found right, and then it is never written to again.
What was checked is remembered with the file's time, so that it is read once, not at every start.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from pyclover.errors import DownloadError, PathLike
from pyclover.hub import hf_cache, resolve, store, transfer
from pyclover.hub.auto import judge_from
from pyclover.hub.checksums import Digests, digest_file
from pyclover.hub.client import Hub
from pyclover.hub.here import Found
from pyclover.hub.listing import HubFile, Offer
from pyclover.hub.names import check_revision, parse_name
from pyclover.hub.patience import Retry
from pyclover.hub.progress import Meter, ProgressFunction


@dataclass(frozen=True)
class Download:
    """A model on this machine.

    Attributes:
        revision: the commit.
        paths: its files in order; llama.cpp wants the first one.
        sha256: of each file, by its name in the repository.
        from_cache: nothing had to be transferred.
        why: of a choice ("auto"), why this one; "" where there was none.
        warnings: one sentence each.
    """

    repo: str
    revision: str
    quant: str
    paths: tuple[Path, ...]
    n_bytes: int
    sha256: dict[str, str]
    from_cache: bool
    why: str = ""
    warnings: tuple[str, ...] = field(default=())

    @property
    def path(self) -> Path:
        """The first file."""
        return self.paths[0]

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data; paths as text."""
        return {**asdict(self), "paths": [str(path) for path in self.paths], "warnings": list(self.warnings)}


def download(
    name: str,
    *,
    quant: str | None = None,
    revision: str | None = None,
    cache_dir: PathLike | None = None,
    token: str | bool | None = None,
    endpoint: str | None = None,
    offline: bool | None = None,
    fits: object = None,
    accept: Callable[[Offer], None] | None = None,
    progress: ProgressFunction | None = None,
    retry: Retry | None = None,
) -> Download:
    """Brings a model to this machine, unless it is here already. Arguments and errors as of `pyclover.download`, but:

    Args:
        fits: None: what memory is available now, less 2 GiB; a planner stands above this layer.
        accept: called with the `Offer` that the name means, before anything is transferred; may raise.
    """
    wanted = parse_name(name, quant=quant)
    asked = check_revision(revision)
    choice = judge_from(fits)
    Meter(progress, "wait", 0)  # a wrong argument should show before anything is asked
    hub = Hub(endpoint=endpoint, token=token, offline=offline, retry=retry)
    found = resolve.resolve(hub, store.Store(cache_dir), wanted, asked, choice)
    if accept is not None:
        accept(found.offer)
    with store.disk_errors(found.folder, found.offer.repo):
        return bring(hub, found, progress)


def bring(hub: Hub, found: Found, progress: ProgressFunction | None) -> Download:
    """The files that were found, checked; downloaded where they are not here."""
    job = Job(hub, found, progress)
    if not job.missing():
        return job.result(from_cache=True)
    job.check_present()
    if job.missing():
        job.adopt()
    if not job.missing():
        return job.result(from_cache=True)
    if not found.online:
        known = store.read_record(found.folder) is not None
        gone = [file.name for file in job.missing() if known and size_of(found.folder / file.base) is None]
        names = ", ".join(gone or [file.name for file in job.missing()])
        what = "is gone from this machine" if gone else "was changed or damaged after the download"
        raise DownloadError(
            f"{found.offer.repo}: {names} {what}, and the hub cannot be asked for it now; run it again with a network",
            path=found.folder, repo=found.offer.repo,
            reason="offline" if hub.offline else "network",
        )  # fmt: skip
    waiting = Meter(progress, "wait", found.offer.n_bytes)
    with store.locked(found.folder, waiting):
        job.read()  # another process may have been at it
        job.check_present()
        transferred = bool(job.missing())
        if transferred:
            job.transfer()
    return job.result(from_cache=not transferred)


class Job:
    """One set on its way to its folder.

    Attributes:
        record: what is known of the files that are here and right.
        warnings: what is odd about them, one sentence each.
    """

    def __init__(self, hub: Hub, found: Found, progress: ProgressFunction | None) -> None:
        self._hub = hub
        self._found = found
        self._offer: Offer = found.offer
        self._folder = found.folder
        self._progress = progress
        self.warnings = list(found.warnings)
        self.read()

    def read(self) -> None:
        """What is remembered of the folder; what was touched since is forgotten."""
        found, before = self._found, store.read_record(self._folder)
        kept = {}
        for file in self._offer.files:
            known = None if before is None else before.kept.get(file.name)
            if known and store.is_right(file, known) and store.untouched(self._folder, known):
                kept[file.name] = known
        if before is not None and not found.online:
            self.record = replace(before, kept=kept)
        else:
            self.record = store.seen(
                self._folder, self._offer, found.commit, found.revision, kept, unnamed=found.unnamed
            )
        self._known = None if before is None else before.kept

    def missing(self) -> list[HubFile]:
        return [file for file in self._offer.files if file.name not in self.record.kept]

    def check_present(self) -> None:
        """Checks files that lie in the folder, but are not remembered as they are now."""
        there = [file for file in self.missing() if size_of(self._folder / file.base) == file.size]
        meter = Meter(self._progress, "verify", sum(file.size for file in there))
        for file in there:
            path = self._folder / file.base
            digests = _digest(file, path, meter)
            if store.is_right(file, digests):
                self._remember(file, file.base, path, digests)

    def adopt(self) -> None:
        """Uses the set as it lies in Hugging Face's cache, if it lies there and is right."""
        paths = hf_cache.find(self._offer)
        meter = Meter(self._progress, "verify", self._offer.n_bytes)
        record = replace(self.record, kept={})
        for file, path in zip(self._offer.files, paths, strict=False):
            try:
                digests = _digest(file, path, meter)
            except OSError:
                return  # not ours to complain about
            if not store.is_right(file, digests):
                self.warnings.append(f"{path} is damaged: its SHA-256 is {digests.sha256}; it is not used, delete it")
                return
            record = store.with_file(record, file, str(path.absolute()), path, digests)
        if paths:
            self.record = record

    def transfer(self) -> None:
        """Downloads what is missing, file by file."""
        missing = self.missing()
        parts = {file.name: min(size_of(part_path(self._folder, file)) or 0, file.size) for file in missing}
        total, done = sum(file.size for file in missing), sum(parts.values())
        store.check_room(self._folder, total - done, self._offer.repo)
        meter = Meter(self._progress, "download", total, done_bytes=done)
        for file in missing:
            self.fetch(file, meter, resumed=parts[file.name] > 0)

    def fetch(self, file: HubFile, meter: Meter, *, resumed: bool) -> None:
        """Downloads a file, checks it and gives it its name; the folder's lock is held.

        Args:
            resumed: a part of it is here already.

        Raises:
            DownloadError: it does not come, or is not what was announced.
        """
        repo, part, path = self._offer.repo, part_path(self._folder, file), self._folder / file.base
        url = self._hub.url(repo, self._found.commit, file.name)
        while True:
            meter.begin(file.name)
            transfer.fetch(self._hub, url, part, file.size, meter, repo=repo)
            digests = _digest(file, part, Meter(self._progress, "verify", file.size))
            if store.is_right(file, digests):
                break
            part.unlink()
            if not resumed:
                raise DownloadError(
                    f"{repo}: what came for {file.name} is wrong (SHA-256 {digests.sha256}, announced is "
                    f"{file.sha256 or file.git_sha1}); it was thrown away, try again or use another endpoint",
                    path=path, repo=repo, reason="checksum",
                )  # fmt: skip
            resumed = False  # what an earlier run left may have been the fault
            meter.take_back(file.size)
        self._set_aside(path)
        os.replace(part, path)
        _sync(self._folder)
        self._remember(file, file.base, path, digests)
        store.write_record(self._folder, self.record)

    def _set_aside(self, path: Path) -> None:
        """A file of that name is not what was downloaded: somebody's work, perhaps, and not ours to throw away."""
        if not os.path.lexists(path):
            return
        number = 1
        while os.path.lexists(aside := path.with_name(f"{path.name}.changed{number if number > 1 else ''}")):
            number += 1
        os.rename(path, aside)
        self.warnings.append(
            f"{path} had been changed since it was downloaded, so it was fetched again; the changed one is kept as "
            f"{aside}, delete it if nobody needs it"
        )

    def _remember(self, file: HubFile, path: str, where: Path, digests: Digests) -> None:
        self.record = store.with_file(self.record, file, path, where, digests)

    def result(self, *, from_cache: bool) -> Download:
        record, offer = self.record, self._offer
        if self._found.online or record.kept != self._known:
            store.write_record(self._folder, record)
        kept = [record.kept[file.name] for file in offer.files]
        return Download(
            repo=offer.repo, revision=self._found.commit, quant=offer.quant,
            paths=tuple(self._folder / item.path for item in kept), n_bytes=sum(item.size for item in kept),
            sha256={item.name: item.sha256 for item in kept}, from_cache=from_cache, why=self._found.why,
            warnings=tuple(self.warnings),
        )  # fmt: skip


def _digest(file: HubFile, path: Path, meter: Meter) -> Digests:
    meter.begin(file.name)
    return digest_file(path, git=file.git_sha1 is not None, step=meter.add)


def part_path(folder: Path, file: HubFile) -> Path:
    """Where a file is while it is downloaded."""
    return folder / f"{file.base}.part"


def size_of(path: Path) -> int | None:
    """Bytes of a file, None where there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return None


def _sync(folder: Path) -> None:
    """Makes a new name last through a power cut, where the system can do that."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
