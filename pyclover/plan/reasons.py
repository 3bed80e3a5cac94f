"""Why each setting of a plan has its value, in a few words."""

from __future__ import annotations

from dataclasses import replace

from pyclover.plan.result import Choice
from pyclover.plan.search import DEFAULT_N_CTX, DEFAULT_N_MAX, N_UBATCH, SMALL_CACHE, Search, Wishes
from pyclover.plan.settings import Settings

ASKED = "asked for"


def choices(search: Search, w: Wishes, s: Settings) -> tuple[Choice, ...]:
    """One line a setting, in the order of the command line."""
    return (
        Choice("n_ctx", s.n_ctx, _n_ctx(search, w, s)),
        Choice("cache_type_k", s.cache_type_k, _cache(w.cache_type_k, s.cache_type_k)),
        Choice("cache_type_v", s.cache_type_v, _cache(w.cache_type_v, s.cache_type_v)),
        Choice("n_gpu_layers", s.n_gpu_layers if search.machine.used_devices else None, _layers(search, w, s)),
        Choice("n_cpu_moe", s.n_cpu_moe if s.n_gpu_layers else None, _experts(search, w, s)),
        Choice("n_batch", s.n_batch, _batch(w, s)),
        Choice("n_ubatch", s.n_ubatch, _ubatch(w, s)),
        Choice("n_max", s.n_max, _n_max(search, w, s)),
    )


def _n_ctx(search: Search, w: Wishes, s: Settings) -> str:
    n_train = search.geometry.n_ctx_train
    if w.n_ctx == 0:
        return "all that the model was trained for, as asked"
    if w.n_ctx is not None:
        return ASKED
    if s.n_ctx == n_train:
        return "all that the model was trained for"
    if s.n_ctx == DEFAULT_N_CTX and not s.n_gpu_layers:
        return "the default on a processor"
    if s.n_ctx < min(n_train, DEFAULT_N_CTX):
        return f"the default of {min(n_train, DEFAULT_N_CTX)} does not fit"
    if s.n_ctx == DEFAULT_N_CTX:
        return "the default where not all is on the GPU" if _partly(search, s) else "the longest with all on the GPU"
    return "the longest with all on the GPU"


def _partly(search: Search, s: Settings) -> bool:
    return s.n_gpu_layers <= search.geometry.n_layer or s.n_cpu_moe > 0


def _cache(asked: str | None, value: str) -> str:
    if asked is not None:
        return ASKED
    return "f16 does not fit with this context" if value == SMALL_CACHE else "full precision fits"


def _layers(search: Search, w: Wishes, s: Settings) -> str:
    if not search.machine.used_devices:
        return "no GPU that this build can use"
    if w.n_gpu_layers is not None:
        return ASKED
    n_all = search.geometry.n_layer + 1
    if s.n_gpu_layers == n_all:
        return "all layers and the output"
    if search.unknown_device:
        return "the GPU's memory is not available"
    if not s.n_gpu_layers:
        return "not one layer fits onto the GPU"
    return f"the most of {n_all} that fit onto the GPU"


def _experts(search: Search, w: Wishes, s: Settings) -> str:
    if not search.geometry.has_experts:
        return "the model has no routed experts"
    if not s.n_gpu_layers:
        return "no layers on a GPU"
    if w.n_cpu_moe is not None:
        return ASKED
    if s.n_cpu_moe:
        return "the fewest layers whose experts have to stay with the processor"
    return "all experts fit beside their layers"


def _batch(w: Wishes, s: Settings) -> str:
    if w.n_batch is not None and s.n_batch == w.n_batch:
        return ASKED
    return "no more than the context" if s.n_batch == s.n_ctx else "the default"


def _ubatch(w: Wishes, s: Settings) -> str:
    if w.n_ubatch is not None and s.n_ubatch == w.n_ubatch:
        return ASKED
    if s.n_ubatch == s.n_batch:
        return "no more than n_batch"
    return "the default" if s.n_ubatch == N_UBATCH[0] else f"buffers for {N_UBATCH[0]} do not fit"


def _n_max(search: Search, w: Wishes, s: Settings) -> str:
    if w.n_max is not None:
        return ASKED
    if not search.geometry.can_draft:
        return "the file has no block pass to draft with"
    if s.n_max == DEFAULT_N_MAX:
        return "drafts of that length: what is rejected costs no further pass"
    more = search.try_settings(replace(s, n_max=s.n_max + 1))
    return f"{s.n_max + 1} do not fit" if not more.fits else "no more rows in a batch"
