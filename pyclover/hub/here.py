"""What is on this machine of a repository, downloaded by us or into Hugging Face's cache."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pyclover.errors import DownloadError
from pyclover.hub import hf_cache, store
from pyclover.hub.client import offline_error
from pyclover.hub.listing import Offer
from pyclover.hub.names import is_commit


@dataclass(frozen=True)
class Found:
    """What a name means.

    Attributes:
        folder: of our store, for these files.
        online: the hub said so now; False when it is only known from before.
        unnamed: the name left the quantization open, and nobody was asked what fits.
        why: of a choice, why this one; "" where there was none.
    """

    offer: Offer
    commit: str
    revision: str
    folder: Path
    online: bool
    unnamed: bool = False
    why: str = ""
    warnings: tuple[str, ...] = ()


def sets(place: store.Store, repo: str, revision: str) -> list[Found]:
    """The sets that a revision led to, one for each quantization, the one seen last."""
    newest: dict[str, Found] = {}
    for folder, record in place.records(repo, revision):
        offer = record.offer()
        unnamed = revision in record.unnamed
        newest.setdefault(
            offer.quant.lower(), Found(offer, record.commit, revision, folder, online=False, unnamed=unnamed)
        )
    cached = hf_cache.listing(repo, revision)
    for offer in () if cached is None else cached.offers():
        assert cached is not None
        newest.setdefault(offer.quant.lower(), Found(offer, cached.commit, revision, place.folder(offer), online=False))
    return list(newest.values())


def all_sets(place: store.Store, repo: str) -> Iterator[tuple[Found, tuple[str, ...]]]:
    """All sets of a repository, whatever led to them, each with the revisions by which it is found again offline."""
    taken: set[tuple[str, str]] = set()
    keys: set[str] = set()
    records = [(folder, record) for folder, record in place.every_record() if record.repo == repo and record.complete]
    for folder, record in sorted(records, key=lambda item: -item[1].seen_s):
        offer = record.offer()
        quant = offer.quant.lower()
        # of two sets that the same branch led to, the branch means the one seen last
        names = tuple(n for n in record.asked if not is_commit(n) and (n, quant) not in taken)
        taken.update((name, quant) for name in names)
        keys.add(offer.key)
        revisions = names or (record.commit,)
        yield Found(offer, record.commit, revisions[0], folder, online=False), revisions
    for revision in hf_cache.revisions(repo):
        cached = hf_cache.listing(repo, revision)
        for offer in () if cached is None else cached.offers():
            assert cached is not None
            if offer.key not in keys and not offer.missing:
                keys.add(offer.key)
                yield Found(offer, cached.commit, revision, place.folder(offer), online=False), (revision,)


def repositories(place: store.Store) -> list[str]:
    """Repositories of which complete sets were downloaded, by name."""
    return sorted({record.repo for _, record in place.every_record() if record.complete})


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


def is_usable(found: Found) -> bool:
    """Whether a set can be used as it is: complete, or waiting whole in Hugging Face's cache."""
    return not found.offer.missing and (is_complete(found.folder, found.offer) or bool(hf_cache.find(found.offer)))


def not_here(place: store.Store, repo: str, quant: str | None, revision: str) -> DownloadError:
    """The error about a set that is not here, in offline mode; it names another revision where that helps."""
    what = repo if quant is None else f"{repo}:{quant}"
    for found, revisions in all_sets(place, repo):
        if (quant is None or found.offer.quant.lower() == quant.lower()) and revision not in revisions:
            error = offline_error(what, repo)
            return DownloadError(
                f"{error}; {repo}:{found.offer.quant} is here, but at {revisions[0]}, not at {revision}: ask for that "
                "with revision (--revision)", repo=repo, reason="offline",
            )  # fmt: skip
    return offline_error(what, repo)
