"""A plan: the settings, why each was chosen, and the memory that they take."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from pyclover.plan.estimate import Estimate
from pyclover.plan.machine import Machine
from pyclover.plan.room import Pool
from pyclover.plan.settings import Settings


@dataclass(frozen=True)
class Choice:
    """One setting. `value` is None for one that does not apply."""

    name: str
    value: int | str | None
    why: str


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What `pyclover.fit()` found.

    Attributes:
        model: path of the (first) file.
        settings: what was estimated. choices: the same for people, with reasons.
        estimate: bytes by kind and device. pools: by memory, beside what is free.
        machine: what was found there.
        warnings: one sentence each.
    """

    model: str
    settings: Settings
    choices: tuple[Choice, ...]
    estimate: Estimate
    pools: tuple[Pool, ...]
    machine: Machine
    n_layer: int
    warnings: tuple[str, ...] = ()

    @property
    def all_on_gpu(self) -> bool:
        """Every layer and all experts are on GPUs."""
        return self.settings.n_gpu_layers > self.n_layer and not self.settings.n_cpu_moe

    def options(self) -> dict[str, Any]:
        """Keyword arguments of `pyclover.Clover`."""
        s = self.settings
        return {
            "n_ctx": s.n_ctx,
            "n_batch": s.n_batch,
            "n_ubatch": s.n_ubatch,
            "n_gpu_layers": -1 if s.n_gpu_layers > self.n_layer else s.n_gpu_layers,
            "n_cpu_moe": s.n_cpu_moe,
            "cache_type_k": s.cache_type_k,
            "cache_type_v": s.cache_type_v,
            "n_rs_seq": s.n_max,
        }

    def arguments(self) -> list[str]:
        """The same as arguments of llama.cpp's programs, such as `clover-run tool serve`."""
        s = self.settings
        out = ["-c", s.n_ctx, "-b", s.n_batch, "-ub", s.n_ubatch, "-ngl", s.n_gpu_layers]
        out += ["-ctk", s.cache_type_k, "-ctv", s.cache_type_v]
        out += ["--n-cpu-moe", s.n_cpu_moe] if s.n_cpu_moe else []
        return [str(word) for word in out]

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        out = asdict(self)
        out["machine"]["cpu_features"] = sorted(self.machine.cpu_features)
        for key in ("choices", "pools", "warnings"):
            out[key] = list(out[key])
        out["estimate"]["total_bytes"] = self.estimate.total_bytes
        return out
