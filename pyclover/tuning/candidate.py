"""One way to run a model: how it generates, and with how many threads and tokens at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from pyclover.engine.speculation import BlockDiffusion, DraftSelf, SpeculationLike

CandidateMode = Literal["plain", "auto", "draft-self", "diffusion"]


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A setting in the race. None: as it is by default.

    Attributes:
        mode: "plain", "auto" (the controller decides), "draft-self" or "diffusion".
        n_max, steps, block, p_min, accept_ratio, accept_delta, adaptive, ahead: of draft-self, see `DraftSelf`.
        threshold: of block diffusion.
        expert_coreset: experts that a block pass may use, see `BlockParams`; None: as the file says.
        n_threads, n_batch, n_ubatch: of the context, see `Clover`.
    """

    mode: CandidateMode = "plain"
    n_max: int = 0
    steps: int = 1
    block: int | None = None
    p_min: float = 0.0
    adaptive: bool = False
    ahead: bool | None = None
    accept_ratio: float | None = None
    accept_delta: float | None = None
    threshold: float | None = None
    expert_coreset: int | None = None
    n_threads: int | None = None
    n_batch: int | None = None
    n_ubatch: int | None = None

    @property
    def speculation(self) -> SpeculationLike:
        """What `Clover.generate` takes for it."""
        if self.mode == "draft-self":
            names = ("n_max", "steps", "block", "p_min", "adaptive", "ahead", "accept_ratio", "accept_delta")
            return DraftSelf(**{name: getattr(self, name) for name in names})
        if self.mode == "diffusion":
            return BlockDiffusion() if self.threshold is None else BlockDiffusion(threshold=self.threshold)
        return "auto" if self.mode == "auto" else None

    @property
    def load(self) -> dict[str, int]:
        """What it asks of the context, with the names of `Clover`'s arguments."""
        values = {name: getattr(self, name) for name in ("n_threads", "n_batch", "n_ubatch")}
        return {name: value for name, value in values.items() if value is not None}

    @property
    def relaxed(self) -> bool:
        """Whether drafts are accepted that plain decoding would not choose."""
        return self.mode == "draft-self" and (self.accept_ratio is not None or self.accept_delta is not None)

    @property
    def lossless(self) -> bool:
        """Whether the text is that of plain decoding."""
        return self.mode != "diffusion" and not self.relaxed

    @property
    def label(self) -> str:
        """Its name in tables: what differs from the defaults, with llama.cpp's flags for the context."""
        words: list[str] = [self.mode]
        if self.mode == "draft-self":
            words.append(f"n={self.n_max}")
            words += [f"steps={self.steps}"] * (self.steps > 1)
            words += [f"rows={self.block}"] * (self.block is not None)
            words += [f"p-min={self.p_min:g}"] * (self.p_min > 0)
            words += [f"ratio={self.accept_ratio:g}"] if self.accept_ratio is not None else []
            words += [f"delta={self.accept_delta:g}"] if self.accept_delta is not None else []
            words += ["adaptive"] * self.adaptive
            words += [] if self.ahead is None else ["ahead" if self.ahead else "not-ahead"]
        if self.mode == "diffusion" and self.threshold is not None:
            words.append(f"threshold={self.threshold:g}")
        if self.expert_coreset is not None:
            words.append(f"coreset={self.expert_coreset}")
        flags = {"n_threads": "-t", "n_batch": "-b", "n_ubatch": "-ub"}
        return " ".join([*words, *(f"{flags[name]} {value}" for name, value in self.load.items())])

    def to_dict(self) -> dict[str, Any]:
        """What differs from the defaults, and the mode; ready for JSON."""
        plain = Candidate()
        return {"mode": self.mode} | {k: v for k, v in asdict(self).items() if v != getattr(plain, k)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Candidate:
        """The other way; what this version does not know is left out."""
        known = {field.name for field in fields(cls)}
        return cls(**{name: value for name, value in values.items() if name in known})
