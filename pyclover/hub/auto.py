"""The choice that "auto" makes: what is here before what would have to be downloaded.

So the memory that happens to be free does not decide anew each time. A set that is here and fits is taken, unless one
on the hub is clearly better; and no set is downloaded only because one that is here does not fit at this moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import psutil

from pyclover import arguments
from pyclover.errors import CloverError, ModelNotFoundError, UsageError, shortened
from pyclover.hub import here, store
from pyclover.hub.client import Hub
from pyclover.hub.here import Found
from pyclover.hub.listing import Listing, Offer, models_of, shown, size

Fits = Callable[[Offer], bool]

# A set on the hub is clearly better than one that is here when it has this many times its bytes: Q8_0 against Q4_K_M
# is, Q4_K_M against Q4_0 is not.
CLEARLY = 1.3
# What a model needs beside its weights, where nobody has counted it: context, buffers, the system.
SPARE_BYTES = 2 << 30


@dataclass(frozen=True)
class Judge:
    """What fits a machine.

    Attributes:
        now: into the memory that is free at this moment.
        at_rest: into the memory that the machine has when little else runs.
        first: sets that come before larger ones (a GPU holds them as a whole); None: there are none such.
    """

    now: Fits
    at_rest: Fits
    first: Fits | None = None

    def comes_first(self, offer: Offer) -> bool:
        return self.first is not None and self.first(offer)


def judge_from(fits: object) -> Judge | None:
    """From a number of bytes that weights may take, or a function of an offer; a Judge as it is.

    Raises:
        UsageError: it is none of these.
    """
    if fits is None or isinstance(fits, Judge):
        return fits
    if callable(fits):
        known: dict[str, bool] = {}

        def ask(offer: Offer) -> bool:
            if offer.key not in known:  # once: it may take a while
                known[offer.key] = bool(fits(offer))
            return known[offer.key]

        return Judge(ask, ask)
    if isinstance(fits, int) and not isinstance(fits, bool):
        n_bytes = arguments.integer("fits", fits, 0, 2**63 - 1)
        return Judge(lambda offer: offer.n_bytes <= n_bytes, lambda offer: offer.n_bytes <= n_bytes)
    raise UsageError(
        f"fits is {shortened(fits)}: it must be a number of bytes or a function of an offer", option="fits"
    )


def by_memory() -> Judge:
    """Goes by the size of the weights alone: the answer when no planner gives a better one."""
    memory = psutil.virtual_memory()
    free, at_rest = memory.available, max(memory.available, memory.total * 9 // 10)
    return Judge(
        lambda offer: offer.n_bytes + SPARE_BYTES <= free, lambda offer: offer.n_bytes + SPARE_BYTES <= at_rest
    )


@dataclass
class Auto:
    """One choice among repositories, given in the order of preference.

    Attributes:
        only_one: of a repository that offers one set alone, that one is meant, whether it fits or not.
    """

    hub: Hub
    place: store.Store
    repos: tuple[str, ...]
    revision: str
    judge: Judge
    only_one: bool = False
    _listings: dict[str, Listing] = field(default_factory=dict)

    def choose(self) -> Found:
        """The set that is meant.

        Raises:
            ModelNotFoundError: nothing fits.
            DownloadError: the hub cannot be asked, and nothing that fits is here.
        """
        found = [f for repo in self.repos for f in here.sets(self.place, repo, self.revision) if here.is_usable(f)]
        local = [f for f in found if f.offer in models_of([f.offer for f in found])]
        mine = self._best(local, self.judge.now)
        lone = local[0] if self.only_one and len(local) == 1 else None
        resting = mine or self._best(local, self.judge.at_rest) or lone
        if self.hub.offline:
            if resting is None:
                raise here.not_here(self.place, self.repos[0], None, self.revision)
            return self._local(mine, resting, None)
        try:
            best = self._on_the_hub(patient=resting is None)
        except CloverError as error:
            if resting is None:
                raise
            used = self._local(mine, resting, None)
            if isinstance(error, ModelNotFoundError):  # nothing there fits
                return used
            return replace(used, warnings=(f"{error}; what was downloaded earlier is used", *used.warnings))
        if best.why:
            return best
        if resting is None or (mine is not None and self._clearly_better(best.offer, mine.offer)):
            than = "" if mine is None else f", and clearly better than {_name(mine.offer)}, which is here"
            return replace(best, why=f"it is the best that fits{than}")
        return self._local(mine, resting, best)

    def _best(self, found: Iterable[Found], fits: Fits) -> Found | None:
        """Rather one that comes first, then the largest, then the preferred repository's."""
        fitting = [f for f in found if fits(f.offer)]
        return max(fitting, key=lambda f: (self.judge.comes_first(f.offer), f.offer.n_bytes), default=None)

    def _on_the_hub(self, *, patient: bool) -> Found:
        """The largest that fits now of the first repository that has one; of all, sets that come first are tried
        before the others."""
        absent: CloverError | None = None
        too_large: CloverError | None = None
        for among in (self.judge.first, None) if self.judge.first is not None else (None,):
            for repo in self.repos:
                try:
                    there = self._list(repo, patient=patient)
                except ModelNotFoundError as error:
                    absent = error
                    continue
                models = models_of(there.offers())
                if self.only_one and len(models) == 1 and not models[0].missing:
                    return replace(self._found(models[0], there), why="it is the only one")
                fitting = [
                    offer
                    for offer in models
                    if not offer.missing and (among is None or among(offer)) and self.judge.now(offer)
                ]
                if fitting:
                    return self._found(max(fitting, key=lambda offer: offer.n_bytes), there)
                too_large = ModelNotFoundError(
                    f"{repo} offers nothing that fits this machine: {shown(there.offers())}; name one with :quant to "
                    "take it anyway", path=repo,
                )  # fmt: skip
        last = too_large or absent  # that a repository is gone matters only if there is no other
        assert last is not None
        raise last

    def _list(self, repo: str, *, patient: bool) -> Listing:
        if repo not in self._listings:
            hub = self.hub if patient else self.hub.less_patient()
            self._listings[repo] = hub.list(repo, self.revision)
        return self._listings[repo]

    def _found(self, offer: Offer, there: Listing) -> Found:
        return Found(offer, there.commit, self.revision, self.place.folder(offer), online=True)

    def _clearly_better(self, offer: Offer, than: Offer) -> bool:
        first = self.judge.comes_first(offer)
        if first != self.judge.comes_first(than):
            return first
        return offer.n_bytes >= CLEARLY * than.n_bytes

    def _local(self, mine: Found | None, resting: Found, best: Found | None) -> Found:
        """The set that is here, seen anew where the hub still has it, with what there is to say about it."""
        chosen = mine or resting
        there = self._listings.get(chosen.offer.repo)
        offered = [o for o in there.offers() if o.quant.lower() == chosen.offer.quant.lower()] if there else []
        if there is not None and offered and offered[0].key == chosen.offer.key:
            chosen = self._found(offered[0], there)
        other = best.offer if best is not None and best.offer.key != chosen.offer.key else None
        if mine is None and not self.judge.at_rest(chosen.offer):
            return replace(chosen, why="it is the only one here")
        if mine is None:
            smaller = "" if other is None else f", as {other.repo}:{other.quant}"
            warning = (
                f"{chosen.offer.repo}:{chosen.offer.quant} is here and fits this machine, but not into the memory that "
                f"is free now: end other programs, or name a smaller one{smaller}"
            )
            return replace(chosen, why="it is here", warnings=(warning,))
        why = "it is here and fits"
        if offered and offered[0].key != chosen.offer.key:
            why += f"; the hub has another version of it now, {offered[0].repo}:{offered[0].quant} asks for that"
        elif other is not None and other.n_bytes > chosen.offer.n_bytes:
            why += f"; {_name(other)} would fit, too, and is not much better"
        return replace(chosen, why=why)


def _name(offer: Offer) -> str:
    return f"{offer.repo}:{offer.quant} ({size(offer.n_bytes)})"
