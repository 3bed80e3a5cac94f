"""The search for settings that fit: what is wished for first, then less of it in a fixed order.

What is given up, in this order: states for taking drafts back, rows of a batch, precision of the KV cache (only for a
context that was asked for), then the context (only one that was not). With a card, everything on it comes first; else
experts go to the processor before whole layers do. What was asked for is never given up.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from pyclover.plan.estimate import Estimate, Estimator
from pyclover.plan.room import Pool, pools, short
from pyclover.plan.settings import CELL_STEP, Settings

DEFAULT_N_CTX = 8192  # of Clover itself
LEAST_N_CTX = 1024  # below it, a chat has no room
DEFAULT_N_MAX = 15  # drafts of "auto"
N_BATCH = 2048
N_UBATCH = (512, 256, 128)
PLAIN_CACHE, SMALL_CACHE = "f16", "q8_0"


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """What was asked for; None leaves the choice to the search."""

    n_ctx: int | None = None
    n_max: int | None = None
    rs_snapshots: bool = False
    cache_type_k: str | None = None
    cache_type_v: str | None = None
    n_gpu_layers: int | None = None
    n_cpu_moe: int | None = None
    n_batch: int | None = None
    n_ubatch: int | None = None
    flash_attn: bool = True
    mmap: bool = True


@dataclass(frozen=True)
class Found:
    """Settings with their estimate; `fits` is False for the last ones tried when none do."""

    settings: Settings
    estimate: Estimate
    pools: tuple[Pool, ...]

    @property
    def fits(self) -> bool:
        return short(self.pools) == 0


class Search:
    """Looks for settings of one model on one machine.

    Args:
        reserve_bytes: see `pools`.
    """

    def __init__(self, estimator: Estimator, *, reserve_bytes: int | None) -> None:
        self.estimator = estimator
        self.geometry, self.machine = estimator.geometry, estimator.machine
        self.reserve_bytes = reserve_bytes
        used = self.machine.used_devices
        # on a GPU whose memory is not known nothing is put unasked
        self.unknown_device = any(d.room_bytes is None and not d.unified for d in used)
        self.no_devices = not used or self.unknown_device

    def try_settings(self, settings: Settings) -> Found:
        estimate = self.estimator.estimate(settings)
        return Found(settings, estimate, pools(estimate, self.machine, self.reserve_bytes))

    def run(self, wishes: Wishes) -> Found:
        """The first combination that fits; else, with `fits` False, the one that lacks least."""
        best: Found | None = None
        for settings in self._combinations(wishes):
            found = self.try_settings(settings)
            if found.fits:
                return found
            if best is None or short(found.pools) < short(best.pools):
                best = found
        assert best is not None
        return best

    def largest_n_ctx(self, wishes: Wishes, most: int) -> Found | None:
        """The most tokens, in whole steps of the cache and fewer than `most`, with which everything else fits."""
        low, high = 1, -(-most // CELL_STEP)
        best = self.run(replace(wishes, n_ctx=CELL_STEP))
        if not best.fits:
            return None
        while high - low > 1:
            middle = (low + high) // 2
            found = self.run(replace(wishes, n_ctx=middle * CELL_STEP))
            if found.fits:
                low, best = middle, found
            else:
                high = middle
        return best

    # ---- the order -------------------------------------------------------------------------------------------------

    def _combinations(self, w: Wishes) -> Iterator[Settings]:
        if not self.no_devices and w.n_gpu_layers is None and not w.n_cpu_moe:
            everything = self.geometry.n_layer + 1
            for settings in self._context_settings(w, self._contexts(w, gpu=True)):
                yield replace(settings, n_gpu_layers=everything)
        placements = list(self._placements(w))
        for settings in self._context_settings(w, self._contexts(w, gpu=False)):
            for n_gpu_layers, n_cpu_moe in placements if self._could_fit(settings) else placements[-1:]:
                yield replace(settings, n_gpu_layers=n_gpu_layers, n_cpu_moe=n_cpu_moe)

    def _could_fit(self, settings: Settings) -> bool:
        """Whether all memories together have the room: where they have not, no placement helps."""
        found = self.try_settings(settings)
        if any(pool.free_bytes is None for pool in found.pools):
            return True
        shared = {d.name for d in self.machine.used_devices if d.unified}
        room = sum(max(0, (p.free_bytes or 0) - p.reserve_bytes) for p in found.pools if p.name not in shared)
        return found.estimate.total_bytes <= room

    def _contexts(self, w: Wishes, *, gpu: bool) -> list[int]:
        if w.n_ctx is not None:
            return [w.n_ctx or self.geometry.n_ctx_train or DEFAULT_N_CTX]
        most = self.geometry.n_ctx_train or DEFAULT_N_CTX
        usual = min(most, DEFAULT_N_CTX)
        if gpu:  # a GPU reads long prompts fast enough for them to be of use
            return [most, *(n for n in _halves(most) if n >= usual)]
        return [usual, *(n for n in _halves(usual) if n >= LEAST_N_CTX)]

    def _context_settings(self, w: Wishes, contexts: list[int]) -> Iterator[Settings]:
        for n_ctx in contexts:
            for type_k, type_v in self._cache_types(w):
                # a context longer than usual is a gift: nothing is made slower for it
                ubatches = self._ubatches(w)[:1] if w.n_ctx is None and n_ctx > DEFAULT_N_CTX else self._ubatches(w)
                for n_ubatch in ubatches:
                    n_batch = min(w.n_batch or N_BATCH, n_ctx)
                    for n_max in self._n_maxes(w, min(n_ubatch, n_batch)):
                        yield Settings(
                            n_ctx=n_ctx, n_batch=n_batch, n_ubatch=min(n_ubatch, n_batch), n_max=n_max,
                            cache_type_k=type_k, cache_type_v=type_v, flash_attn=w.flash_attn, mmap=w.mmap,
                            rs_snapshots=w.rs_snapshots,
                        )  # fmt: skip

    def _cache_types(self, w: Wishes) -> list[tuple[str, str]]:
        wished = (w.cache_type_k or PLAIN_CACHE, w.cache_type_v or PLAIN_CACHE)
        small_k = w.cache_type_k or SMALL_CACHE
        small_v = w.cache_type_v or (SMALL_CACHE if w.flash_attn else PLAIN_CACHE)
        blocks_fit = self.geometry.head_dim % 32 == 0 and self.geometry.head_dim > 0
        return [wished, (small_k, small_v)] if w.n_ctx is not None and blocks_fit else [wished]

    def _ubatches(self, w: Wishes) -> tuple[int, ...]:
        return (w.n_ubatch,) if w.n_ubatch is not None else N_UBATCH

    def _n_maxes(self, w: Wishes, n_ubatch: int) -> list[int]:
        """The context wants two rows more in a pass than states that it keeps."""
        if not self.geometry.can_draft and w.n_max is None:
            return [0]
        if w.n_max is not None:
            return [w.n_max]
        return [n for n in range(DEFAULT_N_MAX, -1, -1) if n == 0 or n + 2 <= n_ubatch]

    def _placements(self, w: Wishes) -> Iterator[tuple[int, int]]:
        n = self.geometry.n_layer
        fixed = None if w.n_gpu_layers is None else (n + 1 if w.n_gpu_layers < 0 else min(w.n_gpu_layers, n + 1))
        aside = n if w.n_cpu_moe is not None and w.n_cpu_moe < 0 else min(w.n_cpu_moe or 0, n)
        if not self.machine.used_devices or (self.no_devices and fixed is None):
            fixed = 0
        if w.n_cpu_moe is not None or not self.geometry.has_experts or fixed == 0:
            counts = [fixed] if fixed is not None else range(n + 1, -1, -1)
            for n_gpu in counts:
                yield n_gpu, aside if n_gpu else 0
            return
        n_gpu = n + 1 if fixed is None else fixed
        for aside in range(n + 1):
            yield n_gpu, aside
        if fixed is None:
            for n_gpu in range(n, -1, -1):
                yield n_gpu, n if n_gpu else 0


def _halves(n: int) -> Iterator[int]:
    """n/2, n/4, …, as powers of two."""
    power = 1 << (max(n, 1).bit_length() - 1)
    if power == n:
        power //= 2
    while power:
        yield power
        power //= 2
