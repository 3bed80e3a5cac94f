"""A checkpoint on the hub as a source of a conversion: headers by byte ranges, weight files one by one when needed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from pathlib import Path

from pyclover.errors import DownloadError, ModelNotFoundError
from pyclover.files.cursor import Readable
from pyclover.hub import resolve, store
from pyclover.hub.client import Hub
from pyclover.hub.download import Job, part_path, size_of
from pyclover.hub.listing import SAFETENSORS, HubFile
from pyclover.hub.names import check_revision, parse_name
from pyclover.hub.patience import Retry
from pyclover.hub.progress import DownloadProgress, Meter
from pyclover.hub.remote import RemoteFile


class HubSource:
    """The original weights of a repository, one commit of it.

    Files lie where `pyclover.download("owner/repo:safetensors")` puts them, checked as by that. What is here already,
    by it or in Hugging Face's own cache, is used.

    Args:
        keep: whether a weight file stays when its tensors were converted. Those that were here before always stay.
        progress: of the downloads.
        others: as of `pyclover.download`.

    Raises:
        UsageError, ModelNotFoundError, IncompleteSetError, DownloadError: as `pyclover.download`.
    """

    def __init__(
        self,
        name: str,
        *,
        revision: str | None = None,
        cache_dir: str | None = None,
        offline: bool | None = None,
        keep: bool = True,
        progress: Callable[[DownloadProgress], object] | None = None,
        retry: Retry | None = None,
    ) -> None:
        wanted = parse_name(name, quant=SAFETENSORS)
        if wanted.repo is None:
            raise ModelNotFoundError(f"{name} names no repository: give owner/repo", path=name)
        self._hub = Hub(offline=offline, retry=retry)
        found = resolve.resolve(self._hub, store.Store(cache_dir), wanted, check_revision(revision), None)
        self._found, self._keep, self._progress = found, keep, progress
        self._files = {file.base: file for file in found.offer.files}
        self._fetched: set[str] = set()
        self._job = Job(self._hub, found, progress)
        if self._job.missing() and found.folder.is_dir():
            self._job.check_present()
        if self._job.missing():
            self._job.adopt()
        self.title = found.offer.repo
        self.model_name = found.offer.repo.rpartition("/")[2]
        self.names = tuple(sorted(self._files))
        self.commit = found.commit

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is odd about where it comes from."""
        return tuple(self._job.warnings)

    @property
    def folder(self) -> Path:
        """Where the files lie, or will."""
        return self._found.folder

    def size(self, name: str) -> int:
        return self._files[name].size

    def identity(self, name: str) -> str:
        file = self._files[name]
        return f"{file.sha256 or file.git_sha1}:{file.size}"

    def open(self, name: str) -> AbstractContextManager[Readable]:
        here = self._here(name)
        if here is not None:
            return here.open("rb")
        file = self._files[name]
        url = self._hub.url(self.title, self._found.commit, file.name)
        return closing(RemoteFile(self._hub, url, name=f"{self.title}/{name}", repo=self.title, size=file.size))

    def read(self, name: str) -> bytes:
        return self.fetch(name).read_bytes()

    def fetch(self, name: str) -> Path:
        """The file on this machine, downloaded and checked when it is not here.

        Raises:
            DownloadError, CancelledError: as `pyclover.download`.
        """
        here = self._here(name)
        if here is not None:
            return here
        if not self._found.online:
            raise DownloadError(
                f"{self.title}: {name} is not on this machine, and the hub cannot be asked for it now; run it again "
                "with a network", path=self.folder, repo=self.title, reason="offline",
            )  # fmt: skip
        file, job = self._files[name], self._job
        with (
            store.disk_errors(self.folder, self.title),
            store.locked(self.folder, Meter(self._progress, "wait", file.size)),
        ):
            job.read()  # another process may have been at it
            if any(one.name == file.name for one in job.missing()):
                done = min(size_of(part_path(self.folder, file)) or 0, file.size)
                store.check_room(self.folder, file.size - done, self.title)
                job.fetch(file, Meter(self._progress, "download", file.size, done_bytes=done), resumed=done > 0)
                self._fetched.add(name)
        path = self._here(name)
        assert path is not None
        return path

    def release(self, name: str) -> None:
        if not self._keep and name in self._fetched:
            (self.folder / self._files[name].base).unlink(missing_ok=True)

    def missing_bytes(self) -> tuple[int, int]:
        """Weights that are still to come: all together, and the largest file of them."""
        sizes = [
            file.size - min(size_of(part_path(self.folder, file)) or 0, file.size) for file in self._weights_to_come()
        ]
        return sum(sizes), max(sizes, default=0)

    def _weights_to_come(self) -> list[HubFile]:
        return [file for file in self._job.missing() if file.base.endswith(".safetensors")]

    def _here(self, name: str) -> Path | None:
        kept = self._job.record.kept.get(self._files[name].name)
        return None if kept is None else store.untouched(self.folder, kept)
