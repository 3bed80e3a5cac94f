"""From a model's name to the files that it means: asked from the hub, or known on this machine."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from pyclover.errors import CloverError, DownloadError, ModelNotFoundError
from pyclover.hub import catalogue, checksums, here, store
from pyclover.hub.auto import Auto, Judge, by_memory
from pyclover.hub.client import Hub, offline_error
from pyclover.hub.here import Found
from pyclover.hub.listing import HubFile, Listing, choose
from pyclover.hub.names import AUTO, ModelName, is_commit


def resolve(hub: Hub, place: store.Store, name: ModelName, revision: str, judge: Judge | None) -> Found:
    """The set of files that a name means.

    Raises:
        ModelNotFoundError, IncompleteSetError: there is no such set, or it lacks files.
        DownloadError: the hub cannot be asked and nothing is here, or two checksums contradict each other.
    """
    if name.repo is not None:
        is_auto = name.quant is not None and name.quant.lower() == AUTO
        if is_auto or (name.quant is None and judge is not None):
            auto = Auto(hub, place, (name.repo,), revision, judge or by_memory(), only_one=not is_auto)
            return _with_sums(hub, auto.choose())
        return _named(hub, place, name.repo, name.quant, revision)
    last: CloverError | None = None
    wanted = "model that fits" if name.quant is None or name.quant.lower() == AUTO else name.quant
    for repos in catalogue.auto_repositories():
        try:
            if name.quant is None or name.quant.lower() == AUTO:
                return _with_sums(hub, Auto(hub, place, repos, revision, judge or by_memory()).choose())
            return _first_named(hub, place, repos, name.quant, revision)
        except ModelNotFoundError as error:
            last = error
        except DownloadError as error:
            if error.reason not in ("offline", "network", "server"):
                raise
            last = error
    if isinstance(last, DownloadError):
        raise offline_error("a model of the catalogue") if hub.offline else last
    raise ModelNotFoundError(
        f"auto finds no {wanted}: {last}; `clover-run download --list` shows the catalogue", path=AUTO
    )


def _first_named(hub: Hub, place: store.Store, repos: Iterable[str], quant: str, revision: str) -> Found:
    errors: list[CloverError] = []
    for repo in repos:
        try:
            return _named(hub, place, repo, quant, revision)
        except (ModelNotFoundError, DownloadError) as error:
            if isinstance(error, DownloadError) and error.reason != "offline":
                raise
            errors.append(error)
    raise errors[0]  # of the repository that comes first in the catalogue


def _named(hub: Hub, place: store.Store, repo: str, quant: str | None, revision: str) -> Found:
    local = _on_this_machine(place, repo, quant, revision)
    if hub.offline:
        if local is None:
            raise here.not_here(place, repo, quant, revision)
        return local
    if (
        local is not None
        and is_commit(revision)
        and (quant is not None or local.unnamed)
        and here.is_complete(local.folder, local.offer)
    ):
        return local  # a commit never changes: there is nothing to ask, unless files must be fetched again
    try:
        asking = hub if local is None else hub.less_patient()
        there = asking.list(repo, revision)
    except DownloadError as error:
        if local is None or error.reason not in ("network", "server"):
            raise
        return replace(local, warnings=(f"{error}; what was downloaded earlier is used",))
    offer = choose(repo, there.offers(), quant)
    folder = place.folder(offer)
    found = Found(offer, there.commit, revision, folder, online=True, unnamed=quant is None)
    return _with_sums(hub, found, there)


def _on_this_machine(place: store.Store, repo: str, quant: str | None, revision: str) -> Found | None:
    """The set as it was downloaded earlier, by us or into Hugging Face's cache."""
    found = here.sets(place, repo, revision)
    for one in found:
        if quant is None and one.unnamed:
            return one
    try:
        offer = choose(repo, [one.offer for one in found], quant)
    except CloverError:
        return None
    return next(one for one in found if one.offer is offer)


def _with_sums(hub: Hub, found: Found, there: Listing | None = None) -> Found:
    """What the hub offers with all checksums, where it is not here already."""
    if not found.online or here.is_complete(found.folder, found.offer):
        return found
    there = there or hub.list(found.offer.repo, found.commit)
    return replace(found, offer=replace(found.offer, files=with_sums(hub, there, found.offer.files)))


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
