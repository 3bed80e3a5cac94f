"""`fit()`: settings with which a model runs on this machine, and why these."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyclover import arguments
from pyclover.errors import DoesNotFitError, PathLike, UsageError, shortened
from pyclover.files.find import find_model
from pyclover.files.gate import ValidatedModel, validate
from pyclover.plan.estimate import Estimator
from pyclover.plan.geometry import Geometry, geometry_of
from pyclover.plan.machine import GIB, Machine
from pyclover.plan.reasons import choices
from pyclover.plan.result import Choice, Plan
from pyclover.plan.room import Pool
from pyclover.plan.search import Found, Search, Wishes
from pyclover.plan.settings import MAX_N_MAX, cache_type

NO_GPU = "n_gpu_layers (-ngl) has no effect: this build of llama.cpp finds no GPU (clover-run doctor)"
Models = PathLike | ValidatedModel | Sequence[PathLike]


def fit(
    model: Models,
    *,
    n_ctx: int | None = None,
    n_max: int | None = None,
    cache_type_k: str | None = None,
    cache_type_v: str | None = None,
    n_gpu_layers: int | None = None,
    n_cpu_moe: int | None = None,
    n_batch: int | None = None,
    n_ubatch: int | None = None,
    flash_attn: bool = True,
    rs_snapshots: bool = False,
    mmap: bool = True,
    reserve_bytes: int | None = None,
    probe: Machine | None = None,
) -> Plan:
    """Settings with which a model fits this machine. Nothing is loaded.

    What is given is kept; what is None is chosen.

    Args:
        model: path of a GGUF file, "tiny", or several files of one model, of which the best that
            fits is taken.
        n_ctx: tokens that prompt and answer share; 0: as many as the model was trained for.
        n_max: drafted tokens that can be taken back at no cost, 0 to 31 (`n_rs_seq` of `Clover`).
        cache_type_k, cache_type_v: types of the KV cache.
        n_gpu_layers: layers on GPUs, -1 for all.
        n_cpu_moe: layers, from the first, whose routed experts stay in main memory, -1 for all.
        n_batch, n_ubatch: prompt tokens handed over, and computed, at once.
        flash_attn: False: the context will be made without it, which takes more memory.
        rs_snapshots: True: drafted tokens will be taken back by snapshots of the recurrent state, which take more room.
        mmap: False: the file will be read instead of mapped.
        reserve_bytes: what stays free of every memory; None: 5 % of the machine's, 10 % of a card's, at least 512 MiB
            but at most an eighth.
        probe: the machine; None: this one.

    Raises:
        FileError: and its kinds, when the file cannot be used.
        UsageError: an argument that cannot be honoured.
        DoesNotFitError: no settings that honour the arguments fit; `nearest` holds a plan that does.
    """
    wishes = Wishes(
        n_ctx=n_ctx, n_max=n_max, cache_type_k=cache_type_k, cache_type_v=cache_type_v, n_gpu_layers=n_gpu_layers,
        n_cpu_moe=n_cpu_moe, n_batch=n_batch, n_ubatch=n_ubatch, flash_attn=flash_attn, mmap=mmap,
        rs_snapshots=rs_snapshots,
    )  # fmt: skip
    _check(wishes)
    if reserve_bytes is not None:
        arguments.integer("reserve_bytes", reserve_bytes, 0, 2**63 - 1)
    if probe is not None and not isinstance(probe, Machine):
        raise UsageError(
            f"probe is {shortened(probe)}: it must be a pyclover.plan.machine.Machine, or None for this machine",
            option="probe",
        )
    if probe is None:
        from pyclover.plan.probe import probe as look

        probe = look()
    if isinstance(model, (bytes, bytearray, memoryview)):  # sequences, but not of files
        arguments.path("model", model)
    if isinstance(model, Sequence) and not isinstance(model, str):
        files = [_opened(one) for one in model]
        if not files:
            raise UsageError("model is an empty sequence: give at least one file", option="model")
        return best_of([(os.fspath(f.first_path), geometry_of(f)) for f in files], wishes, probe, reserve_bytes)
    file = _opened(model)
    return plan(os.fspath(file.first_path), geometry_of(file), wishes, probe, reserve_bytes)


def _opened(model: PathLike | ValidatedModel) -> ValidatedModel:
    return model if isinstance(model, ValidatedModel) else validate(find_model(model))


def _check(w: Wishes) -> None:
    for name in ("flash_attn", "rs_snapshots", "mmap"):
        arguments.boolean(name, getattr(w, name))
    ranges = {"n_ctx": 0, "n_max": 0, "n_gpu_layers": -1, "n_cpu_moe": -1, "n_batch": 1, "n_ubatch": 1}
    for name, low in ranges.items():
        value = getattr(w, name)
        if value is not None:
            arguments.integer(name, value, low, MAX_N_MAX if name == "n_max" else 2**31 - 1)
    for name in ("cache_type_k", "cache_type_v"):
        if getattr(w, name) is not None:
            cache_type(name, getattr(w, name))
    for name in ("n_ubatch", "n_batch", "n_ctx"):
        value = getattr(w, name)
        if w.n_max and value and value < w.n_max + 2:
            raise UsageError(f"{name} is {value}: with n_max={w.n_max} it must be at least {w.n_max + 2}", option=name)
    if not w.flash_attn and w.cache_type_v not in (None, "f32", "f16", "bf16"):
        raise UsageError(
            f"cache_type_v is {w.cache_type_v}, which needs flash attention: leave flash_attn out, or take f16",
            option="cache_type_v",
        )


def best_of(
    candidates: Iterable[tuple[str, Geometry]],
    wishes: Wishes,
    machine: Machine,
    reserve_bytes: int | None = None,
) -> Plan:
    """The plan of the largest candidate, for size stands for quality: the largest that fits onto the GPUs as
    a whole where one does, else the largest that fits.

    Raises:
        DoesNotFitError: the smallest candidate's, when none fits.
    """
    ordered = sorted(candidates, key=lambda c: -c[1].weights_bytes)
    best: Plan | None = None
    for name, geometry in ordered:
        search = Search(Estimator(geometry, machine), reserve_bytes=reserve_bytes)
        found = search.run(wishes)
        if found.fits:
            made = _plan(name, search, wishes, found)
            if made.all_on_gpu or not machine.used_devices:
                best = made
                break
            best = best or made
        elif best is None and name == ordered[-1][0]:
            raise _does_not_fit(name, search, wishes, found)
    assert best is not None
    why = "the only file" if len(ordered) == 1 else f"the best of {len(ordered)} files: the largest that fits"
    if best.all_on_gpu:
        why += " onto the GPU with all layers"
    return replace(best, choices=(Choice("file", Path(best.model).name, why), *best.choices))


def plan(name: str, geometry: Geometry, wishes: Wishes, machine: Machine, reserve_bytes: int | None = None) -> Plan:
    """The plan for a geometry, which need not belong to a file. Arguments and errors as of `fit`."""
    search = Search(Estimator(geometry, machine), reserve_bytes=reserve_bytes)
    found = search.run(wishes)
    if not found.fits:
        raise _does_not_fit(name, search, wishes, found)
    return _plan(name, search, wishes, found)


def _plan(name: str, search: Search, wishes: Wishes, found: Found) -> Plan:
    geometry, machine = search.geometry, search.machine
    warnings = list(machine.warnings)
    if wishes.n_gpu_layers and not machine.used_devices:
        warnings.append(NO_GPU)
    if geometry.rough:
        warnings.append("not a Clover model: its compute buffers are guessed from the usual shape of a transformer")
    if found.settings.n_ctx > geometry.n_ctx_train > 0:
        warnings.append(
            f"n_ctx is {found.settings.n_ctx}, but the model was trained for {geometry.n_ctx_train} tokens: text "
            "beyond may be poor"
        )
    pinned = sum(row.bytes for row in found.estimate.rows if row.pinned)
    if machine.host_total_bytes and pinned > machine.host_total_bytes // 2:
        warnings.append(
            f"{_gib(pinned)} of the machine's memory would be pinned for the GPU, more than half of it, which drivers "
            "may refuse: leave mmap on"
        )
    return Plan(
        model=name, settings=found.settings, choices=choices(search, wishes, found.settings), estimate=found.estimate,
        pools=found.pools, machine=machine, n_layer=geometry.n_layer, warnings=tuple(warnings),
    )  # fmt: skip


def _does_not_fit(name: str, search: Search, wishes: Wishes, lacking: Found) -> DoesNotFitError:
    worst = max(lacking.pools, key=lambda pool: pool.short_bytes)
    nearest = _nearest(search, wishes, lacking)
    where = "of memory" if worst.name == "memory" else f"on {worst.name}"
    limit = f" ({search.machine.host_limit})" if worst.name == "memory" and search.machine.host_limit else ""
    text = (
        f"{Path(name).name} does not fit: it needs {_gib(worst.needed_bytes)} {where}, and "
        f"{_gib(worst.free_bytes or 0)} are free{limit}, of which {_gib(worst.reserve_bytes)} stay in reserve; "
    )
    text += f"what would fit: {_short(nearest)}" if nearest else _advice(search, lacking, worst)
    return DoesNotFitError(
        text, needed_bytes=worst.needed_bytes, free_bytes=worst.free_bytes or 0, device=worst.name,
        nearest=_plan(name, search, wishes, nearest) if nearest else None,
    )  # fmt: skip


def _nearest(search: Search, wishes: Wishes, lacking: Found) -> Found | None:
    """What was asked for is given up one by one, in the order of the search, until something fits."""
    steps: tuple[dict[str, Any], ...] = (
        {"n_max": None},
        {"n_ubatch": None},
        {"cache_type_k": None, "cache_type_v": None},
        {"n_gpu_layers": None, "n_cpu_moe": None},
    )
    for given_up in steps:
        if any(getattr(wishes, name) is not None for name in given_up):
            wishes = replace(wishes, **given_up)
            found = search.run(wishes)
            if found.fits:
                return found
    return search.largest_n_ctx(wishes, lacking.settings.n_ctx) if wishes.n_ctx is not None else None


def _short(found: Found) -> str:
    s = found.settings
    parts = [f"n_ctx={s.n_ctx}", f"cache {s.cache_type_k}/{s.cache_type_v}", f"n_max={s.n_max}"]
    if s.n_gpu_layers:
        parts.append(f"n_gpu_layers={s.n_gpu_layers}")
    return ", ".join([*parts, *([f"n_cpu_moe={s.n_cpu_moe}"] if s.n_cpu_moe else [])])


def _advice(search: Search, lacking: Found, worst: Pool) -> str:
    spare = [pool.free_bytes - pool.needed_bytes for pool in lacking.pools if pool.free_bytes is not None]
    if search.reserve_bytes is not None and min(spare, default=0) >= 0:
        return f"it fits with a reserve (reserve_bytes, --reserve) of at most {_gib(min(spare, default=0))}"
    rest = search.geometry.weights_bytes - worst.short_bytes
    if rest <= 0:
        return "no settings make it fit: free some memory, or take a much smaller file"
    return f"no settings make it fit: take a file of at most about {_gib(rest)}, or free some memory"


def _gib(n_bytes: int) -> str:
    return f"{n_bytes / GIB:.2f} GiB"
