"""From a model's name to the files that it means: asked from the hub, or known on this machine."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from pyclover import arguments
from pyclover.errors import CloverError, DownloadError, ModelNotFoundError, UsageError, shortened
from pyclover.hub import catalogue, checksums, hf_cache, store
from pyclover.hub.client import Hub, offline_error
from pyclover.hub.listing import Fits, HubFile, Listing, Offer, choose
from pyclover.hub.names import AUTO, ModelName, is_commit

# What a model needs beside its weights, where nobody has counted it: context, buffers, the system.
SPARE_BYTES = 2 << 30


@dataclass(frozen=True)
class Found:
    """What a name means.

    Attributes:
        folder: of our store, for these files.
        online: the hub said so now; False when it is only known from before.
    """

    offer: Offer
    commit: str
    revision: str
    folder: Path
    online: bool
    warnings: tuple[str, ...] = ()


def fits_from(fits: object) -> Fits | None:
    """The question "does it fit", from a function or a number of bytes that weights may take.

    Raises:
        UsageError: it is neither.
    """
    if fits is None:
        return None
    if callable(fits):
        return lambda offer: bool(fits(offer))
    if isinstance(fits, int) and not isinstance(fits, bool):
        n_bytes = arguments.integer("fits", fits, 0, 2**63 - 1)
        return lambda offer: offer.n_bytes <= n_bytes
    raise UsageError(
        f"fits is {shortened(fits)}: it must be a number of bytes or a function of an offer", option="fits"
    )


def fits_memory(offer: Offer) -> bool:
    """Whether the weights fit into the memory that is available now: the answer when no planner gives a better one."""
    return offer.n_bytes + SPARE_BYTES <= psutil.virtual_memory().available


def resolve(hub: Hub, place: store.Store, name: ModelName, revision: str, fits: Fits | None) -> Found:
    """The set of files that a name means.

    Raises:
        ModelNotFoundError, IncompleteSetError: there is no such set, or it lacks files.
        DownloadError: the hub cannot be asked and nothing is here, or two checksums contradict each other.
    """
    if name.repo is not None:
        if name.quant is not None and name.quant.lower() == AUTO:
            fits = fits or fits_memory
        return _in_repository(hub, place, name.repo, name.quant, revision, fits)
    last: CloverError | None = None
    for repo in catalogue.auto_repositories():
        try:
            return _in_repository(hub, place, repo, name.quant or AUTO, revision, fits or fits_memory)
        except ModelNotFoundError as error:
            last = error
        except DownloadError as error:
            if error.reason != "offline":
                raise
            last = error
    if isinstance(last, DownloadError):
        raise offline_error("a model of the catalogue")
    raise ModelNotFoundError(
        f"auto finds no model that fits: {last}; `clover-run download --list` shows the catalogue", path=AUTO
    )


def _in_repository(
    hub: Hub, place: store.Store, repo: str, quant: str | None, revision: str, fits: Fits | None
) -> Found:
    local = _on_this_machine(place, repo, quant, revision, fits)
    if hub.offline:
        if local is None:
            raise offline_error(repo if quant is None else f"{repo}:{quant}", repo)
        return local
    if local is not None and is_commit(revision) and quant is not None and quant.lower() != AUTO:
        return local  # a commit never changes: there is nothing to ask
    try:
        asking = hub if local is None else hub.less_patient()
        there = asking.list(repo, revision)
    except DownloadError as error:
        if local is None or error.reason not in ("network", "server"):
            raise
        return replace(local, warnings=(f"{error}; what was downloaded earlier is used",))
    offer = choose(repo, there.offers(), quant, fits)
    folder = place.folder(offer)
    if not is_complete(folder, offer):
        offer = replace(offer, files=with_sums(hub, there, offer.files))
    return Found(offer, there.commit, revision, folder, online=True)


def _on_this_machine(
    place: store.Store, repo: str, quant: str | None, revision: str, fits: Fits | None
) -> Found | None:
    """The set as it was downloaded earlier, by us or into Hugging Face's cache."""
    newest: dict[str, tuple[Path, store.Record]] = {}
    for folder, record in place.records(repo, revision):
        newest.setdefault(record.quant.lower(), (folder, record))
    offer = _chosen(repo, [record.offer() for _, record in newest.values()], quant, fits)
    if offer is not None:
        folder, record = newest[offer.quant.lower()]
        return Found(offer, record.commit, revision, folder, online=False)
    cached = hf_cache.listing(repo, revision)
    offer = None if cached is None else _chosen(repo, cached.offers(), quant, fits)
    if cached is None or offer is None:
        return None
    return Found(offer, cached.commit, revision, place.folder(offer), online=False)


def _chosen(repo: str, offers: Iterable[Offer], quant: str | None, fits: Fits | None) -> Offer | None:
    try:
        return choose(repo, tuple(offers), quant, fits)
    except CloverError:
        return None


def is_complete(folder: Path, offer: Offer) -> bool:
    """Whether all files are here, were checked, and were not touched since."""
    record = store.read_record(folder)
    if record is None:
        return False
    for file in offer.files:
        kept = record.kept.get(file.name)
        if kept is None or not store.is_right(file, kept) or store.untouched(folder, kept) is None:
            return False
    return True


def with_sums(hub: Hub, there: Listing, files: Iterable[HubFile]) -> tuple[HubFile, ...]:
    """The files, with what the repository's SHA256SUMS says about them.

    Raises:
        DownloadError: it contradicts the hub, or neither knows a checksum.
    """
    sums: dict[str, dict[str, str]] = {}
    for file in there.files:
        if file.base == checksums.SUMS_NAME and file.size <= checksums.MAX_SUMS_BYTES:
            folder = file.name.rpartition("/")[0]
            text = hub.read_small(there.repo, there.commit, file).decode(errors="replace")
            sums[folder] = checksums.parse_sums(text)
    result = []
    for file in files:
        sha256 = checksums.sum_for(file.name, sums)
        if sha256 is not None and file.sha256 is not None and sha256 != file.sha256:
            raise DownloadError(
                f"{there.repo}: {checksums.SUMS_NAME} says that {file.name} has the SHA-256 {sha256}, the hub says "
                f"{file.sha256}; nothing was downloaded, tell the owner of the repository",
                repo=there.repo, reason="checksum",
            )  # fmt: skip
        if sha256 is None and file.sha256 is None and file.git_sha1 is None:
            raise DownloadError(
                f"{there.repo}: {hub.host} gives no checksum for {file.name}, so it could not be checked; use another "
                "endpoint", repo=there.repo, reason="server",
            )  # fmt: skip
        result.append(replace(file, sha256=file.sha256 or sha256))
    return tuple(result)
