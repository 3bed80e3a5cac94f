"""What is swept: the settings of each kind, from arguments or from a YAML file whose keys are the flags' names."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import product
from typing import Any

import yaml

from pyclover import arguments
from pyclover.engine.speculation import BLOCK_MAX, check_share
from pyclover.errors import PathLike, UsageError, shortened
from pyclover.tuning.candidate import Candidate

MAX_CANDIDATES = 64
MAX_BYTES = 1 << 20
# The flag of each field; in a file the name without the dashes.
FLAGS = {
    "n_max": "spec-draft-n-max", "steps": "spec-draft-steps", "block": "spec-draft-rows", "p_min": "spec-draft-p-min",
    "adaptive": "spec-draft-adaptive", "ahead": "spec-draft-ahead", "accept_ratio": "spec-accept-ratio",
    "accept_delta": "spec-accept-delta", "threshold": "diffusion-threshold", "expert_coreset": "expert-coreset",
    "n_threads": "threads", "n_batch": "batch-size", "n_ubatch": "ubatch-size", "auto": "auto",
}  # fmt: skip
# What a file may say besides: how it is measured. Names of `tune`'s arguments.
OTHERS = {
    "prompts": "prompts", "kinds": "kinds", "max_tokens": "predict", "repetitions": "repetitions",
    "interval": "interval", "temperature": "temp", "seed": "seed",
}  # fmt: skip
_WHOLE = {
    "n_max": (1, BLOCK_MAX - 1), "steps": (1, BLOCK_MAX), "block": (2, BLOCK_MAX), "expert_coreset": (0, 2**31 - 1),
    "n_threads": (1, 512), "n_batch": (1, 2**31 - 1), "n_ubatch": (1, 2**31 - 1),
}  # fmt: skip
_SHARES = ("p_min", "accept_ratio", "accept_delta", "threshold")


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Values to try; all combinations that can be are. A single value may stand for a list.

    Plain decoding is always among them, for each setting of the context; the first of these is what all is compared
    with. Relaxed acceptance, block diffusion and the preview's coreset come in on request alone.

    Attributes:
        n_max, steps, block, p_min, adaptive, ahead, accept_ratio, accept_delta: of draft-self.
        threshold: of block diffusion.
        expert_coreset: experts that block passes may use; empty: as the file says.
        n_threads, n_batch, n_ubatch: of the context; empty: as chosen by default.
        auto: whether the controller takes part.

    Raises:
        UsageError: a value out of range, or more than 64 combinations.
    """

    n_max: tuple[int, ...] = (1, 3, 7, 15)
    steps: tuple[int, ...] = (1,)
    block: tuple[int, ...] = ()
    p_min: tuple[float, ...] = (0.0,)
    adaptive: tuple[bool, ...] = (False,)
    ahead: tuple[bool, ...] = ()
    accept_ratio: tuple[float, ...] = ()
    accept_delta: tuple[float, ...] = ()
    threshold: tuple[float, ...] = ()
    expert_coreset: tuple[int, ...] = ()
    n_threads: tuple[int, ...] = ()
    n_batch: tuple[int, ...] = ()
    n_ubatch: tuple[int, ...] = ()
    auto: bool = True

    def __post_init__(self) -> None:
        arguments.boolean("auto", self.auto)
        for field in fields(self):
            if field.name == "auto":
                continue
            values = getattr(self, field.name)
            listed = isinstance(values, Sequence) and not isinstance(values, str)
            values = tuple(dict.fromkeys(values)) if listed else (values,)
            for value in values:
                if field.name in _WHOLE:
                    arguments.integer(field.name, value, *_WHOLE[field.name])
                elif field.name in _SHARES:
                    check_share(field.name, value)
                else:
                    arguments.boolean(field.name, value)
            object.__setattr__(self, field.name, values)
        n = len(self.candidates())
        if n > MAX_CANDIDATES:
            raise UsageError(
                f"the sweep has {n} combinations, more than {MAX_CANDIDATES}: give fewer values, or sweep one thing "
                "after the other", option="n_max",
            )  # fmt: skip

    def candidates(self) -> tuple[Candidate, ...]:
        """All that is tried; the first is plain, with the first setting of the context.

        Combinations that cannot be, such as more steps than drafted tokens, are left out.
        """
        loads: list[dict[str, Any]] = [
            {k: v for k, v in zip(("n_threads", "n_batch", "n_ubatch"), values, strict=True) if v is not None}
            for values in product(self.n_threads or (None,), self.n_batch or (None,), self.n_ubatch or (None,))
        ]
        coresets = self.expert_coreset or (None,)
        # lossless first; the ratio alone, the delta alone and both are different rules
        rules: list[dict[str, Any]] = [{}]
        rules += [{"accept_ratio": r} for r in self.accept_ratio if not self.accept_delta]
        rules += [{"accept_delta": d} for d in self.accept_delta if not self.accept_ratio]
        rules += [{"accept_ratio": r, "accept_delta": d} for r, d in product(self.accept_ratio, self.accept_delta)]
        found: list[Candidate] = []
        for load in loads:
            found.append(Candidate(**load))
            if self.auto:
                found += [Candidate(mode="auto", expert_coreset=k, **load) for k in coresets]
            for n, steps, block, p, k, adaptive, ahead, rule in product(
                self.n_max, self.steps, self.block or (None,), self.p_min, coresets, self.adaptive,
                self.ahead or (None,), rules,
            ):  # fmt: skip
                rows = block or n + 1
                fits = rows <= min(load.get("n_batch", rows), load.get("n_ubatch", rows))
                if steps <= n and rows > n and fits and not (ahead and steps > 1):
                    found.append(
                        Candidate(
                            mode="draft-self", n_max=n, steps=steps, block=block, p_min=float(p), expert_coreset=k,
                            adaptive=adaptive, ahead=ahead, **rule, **load,
                        )
                    )  # fmt: skip
            found += [
                Candidate(mode="diffusion", threshold=float(t), expert_coreset=k, **load)
                for t, k in product(self.threshold, coresets)
            ]
        return tuple(dict.fromkeys(found))

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON, with the flags' names."""
        values = {FLAGS[k]: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}
        return {k: v for k, v in values.items() if v != []}


def read_sweep(path: PathLike) -> dict[str, Any]:
    """What a sweep file says, with the names of `tune`'s arguments: those of `Sweep`, and how it is measured.

    The file is YAML; its keys are the flags of `clover-run tune` without the dashes, its values one value or a list.

    Raises:
        UsageError: not YAML, not of that form, or with a key that there is not; a wrong value names file and key.
    """
    file = arguments.path("sweep", path)
    try:
        with file.open("rb") as f:
            data = f.read(MAX_BYTES + 1)
    except OSError as e:
        raise UsageError(f"{file}: {e.strerror or e}; check the path", option="sweep") from None
    if len(data) > MAX_BYTES:
        raise UsageError(f"{file}: longer than 1 MiB, which no sweep is", option="sweep")
    try:
        found = yaml.safe_load(data.decode())
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as e:
        raise UsageError(f"{file}: not YAML: {e}", option="sweep") from None
    if not isinstance(found, Mapping) or not found:
        raise UsageError(
            f"{file}: must have flags of `clover-run tune` as keys, not {shortened(found)}", option="sweep"
        )
    names = {flag: name for name, flag in {**FLAGS, **OTHERS}.items()}
    given: dict[str, Any] = {}
    for key, value in found.items():
        if key not in names:
            near = difflib.get_close_matches(str(key), names, n=1)
            hint = f"; did you mean {near[0]}?" if near else f": it may have {', '.join(names)}"
            raise UsageError(f"{file}: there is no key {shortened(key)}{hint}", option="sweep")
        given[names[key]] = value
    try:
        Sweep(**{name: value for name, value in given.items() if name in FLAGS})
    except UsageError as e:
        raise UsageError(f"{file}: {FLAGS.get(e.option, e.option)}: {e}", option="sweep") from None
    except TypeError as e:  # a list or mapping inside a list
        raise UsageError(f"{file}: values must be numbers or lists of them: {e}", option="sweep") from None
    return given
