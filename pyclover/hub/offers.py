"""What a repository offers, and what of it is here: for people who choose."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from pyclover.errors import ModelNotFoundError, PathLike, UsageError
from pyclover.hub import here, store
from pyclover.hub.client import Hub, offline_error
from pyclover.hub.listing import Offer
from pyclover.hub.names import check_revision, parse_name
from pyclover.hub.patience import Retry


@dataclass(frozen=True)
class OfferState:
    """A set of files, and whether it was downloaded.

    Attributes:
        is_here: complete and as it was when it was checked.
        revisions: offline: branches and tags by which it is found, else its commit; () where the hub was asked.
    """

    offer: Offer
    is_here: bool
    revisions: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data."""
        offer = self.offer
        return {
            "quant": offer.quant, "n_bytes": offer.n_bytes, "is_here": self.is_here,
            "revisions": list(self.revisions), "files": [asdict(file) for file in offer.files],
            "missing": list(offer.missing),
        }  # fmt: skip


def list_offers(
    name: str,
    *,
    quant: str | None = None,
    revision: str | None = None,
    cache_dir: PathLike | None = None,
    token: str | bool | None = None,
    endpoint: str | None = None,
    offline: bool | None = None,
    retry: Retry | None = None,
) -> tuple[str, tuple[OfferState, ...]]:
    """The commit, and the sets of a repository or the one that is named.

    Offline: the sets that are here, without a revision those of all revisions; the commit is that of the first one.
    Arguments and errors are those of `download`.
    """
    wanted, asked = parse_name(name, quant=quant), check_revision(revision)
    if wanted.repo is None:
        raise UsageError("auto is a choice, not a repository: name one, or leave the name out for the catalogue")
    hub, place = Hub(endpoint=endpoint, token=token, offline=offline, retry=retry), store.Store(cache_dir)
    if hub.offline:
        commit, found = _here(place, wanted.repo, None if revision is None else asked)
    else:
        there = hub.list(wanted.repo, asked)
        commit = there.commit
        found = [OfferState(o, here.is_complete(place.folder(o), o)) for o in there.offers()]
    named = [item for item in found if wanted.quant is None or item.offer.quant.lower() == wanted.quant.lower()]
    if not named:
        what = "model file" if wanted.quant is None or not found else f"{wanted.quant}; there are " + ", ".join(
            item.offer.quant for item in found
        )  # fmt: skip
        raise ModelNotFoundError(f"{wanted.repo} offers no {what}", path=wanted.repo)
    return commit, tuple(named)


def list_here(cache_dir: PathLike | None = None) -> dict[str, tuple[OfferState, ...]]:
    """All sets that pyclover downloaded to this machine, by repository."""
    place = store.Store(cache_dir)
    return {repo: tuple(_here(place, repo, None)[1]) for repo in here.repositories(place)}


def _here(place: store.Store, repo: str, revision: str | None) -> tuple[str, list[OfferState]]:
    """What was downloaded of a repository, by us or into Hugging Face's cache."""
    commit, found = "", []
    if revision is None:
        every = list(here.all_sets(place, repo))
    else:
        every = [(item, (revision,)) for item in here.sets(place, repo, revision)]
    for item, names in every:
        commit = commit or item.commit
        found.append(OfferState(item.offer, here.is_usable(item), names))
    if not found:
        raise offline_error(repo, repo)
    return commit, found
