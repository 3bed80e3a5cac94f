"""What `clover-run download` lists: the catalogue, what a repository offers, what is here, what of it may go."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from pyclover.cli.output import Output, size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyclover.hub.offers import OfferState
    from pyclover.hub.prune import OldSet


def is_offline() -> bool:
    """Whether the usual variables forbid to ask a hub."""
    from pyclover.hub import client

    return client.is_offline()


def show_catalogue(out: Output) -> None:
    """The catalogue, ours and the user's."""
    from pyclover.hub import catalogue

    entries = catalogue.entries()
    if out.mode == "json":
        return out.json({"repositories": entries})
    rows = []
    for entry in entries:
        maker = f"{entry.maker} (official)" if entry.official else entry.maker
        known = list(entry.quants.items()) or [("original weights" if entry.format == "safetensors" else "-", None)]
        for quant, n_bytes in known:
            about = "-" if n_bytes is None else size(n_bytes)
            rows.append((entry.repo, quant, about, ", ".join(entry.modes) or "-", "yes" if entry.auto else "no", maker))
    out.table(("repository", "quant", "size", "known to do", "auto", "made by"), rows, right=("size",))
    out.talk("download one with: clover-run download REPOSITORY:QUANT")
    return None


def show_offers(out: Output, model: str, quant: str | None, where: dict[str, Any]) -> None:
    """What a repository offers now; offline: what of it is here."""
    from pyclover.hub.offers import list_offers

    commit, offers = list_offers(model, quant=quant, **where)
    if out.mode == "json":
        return out.json({"repo": offers[0].offer.repo, "revision": commit, "offers": [o.to_dict() for o in offers]})
    local = any(item.revisions for item in offers)
    head = ("quant", "size", "files", *(("revision",) if local else ()), "on this machine")
    out.table(head, [_row(item, local=local) for item in offers], right=("size", "files"))
    return None


def show_here(out: Output, cache_dir: str | None) -> None:
    """What was downloaded to this machine, of all repositories."""
    from pyclover.hub.offers import list_here

    here = list_here(cache_dir)
    if out.mode == "json":
        return out.json({"repositories": {repo: [o.to_dict() for o in offers] for repo, offers in here.items()}})
    rows = [(repo, *_row(item, local=True)) for repo, offers in here.items() for item in offers]
    if not rows:
        out.talk("nothing was downloaded to this machine yet.")
        return None
    out.table(("repository", "quant", "size", "files", "revision", "on this machine"), rows, right=("size", "files"))
    return None


def _row(item: OfferState, *, local: bool) -> tuple[str, ...]:
    n_missing = len(item.offer.missing)
    missing = f"incomplete: {n_missing} file{'s are' if n_missing > 1 else ' is'} missing"
    state = missing if item.offer.missing else "here" if item.is_here else "changed or gone" if local else "-"
    revision = (", ".join(item.revisions),) if local else ()
    return (item.offer.quant, size(item.offer.n_bytes), str(len(item.offer.files)), *revision, state)


def prune(out: Output, model: str | None, *, cache_dir: str | None, yes: bool) -> None:
    """Lists old sets, and removes them when the user says so."""
    from pyclover.hub.prune import find_old, remove

    old = find_old(model, cache_dir=cache_dir)
    ready = [one for one in old if not one.in_use]
    if out.mode != "json":
        _list_old(out, old)
    sure = bool(ready) and (yes or _confirmed(out, ready))
    freed, failed = remove(ready) if sure else (0, ())
    if out.mode == "json":
        out.json({"old": [one.to_dict() for one in old], "removed": sure, "freed_bytes": freed})
    elif not old:
        out.talk("nothing to remove: no set has a newer one in its place.")
    elif sure:
        out.talk(f"removed: {size(freed)} are free again")
    else:
        out.talk("nothing was removed" + ("; --yes removes it" if ready else ""))
    for sentence in failed:
        out.warn(sentence)
    if failed:
        raise click.exceptions.Exit(1)


def _list_old(out: Output, old: Sequence[OldSet]) -> None:
    if old:
        rows = [
            (one.repo, one.quant or "-", size(one.n_bytes), one.in_use and f"stays: {one.in_use}", str(one.folder))
            for one in old
        ]
        out.table(("repository", "quant", "size", "", "folder"), rows, right=("size",))
    for one in old:
        for path in one.stays:
            out.warn(f"{path} was not written there by a download, or was changed since: it stays")


def _confirmed(out: Output, ready: Sequence[OldSet]) -> bool:
    if out.mode != "table" or sys.stdin is None or not sys.stdin.isatty():
        return False
    sets = f"{len(ready)} old set{'s' * (len(ready) != 1)}"
    return click.confirm(f"Remove {sets}, {size(sum(one.n_bytes for one in ready))}?", err=True)
