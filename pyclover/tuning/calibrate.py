"""How a file's block passes are meant to compute: a search by what plain decoding would accept of their drafts.

Some parameters of the preview are our own definitions or stand wrongly in files: which position a row is about, how the
clean state is read, what is done to the logit scale, how many experts a block may use, how many rows it has. None of
them can change the text, and a wrong one costs acceptance. The search goes along one parameter after the other, and
moves only where the gain is out of the noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import product
from typing import Any, Literal, Protocol

from pyclover.engine.blocks import BlockParams
from pyclover.tuning.statistics import mean, median_interval, sign_flip_p

ALPHA = 0.05
FEWEST_PROMPTS = 10  # of fewer, no p-value is small enough once it is divided among the alternatives
PASSES = 3


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What is searched: attributes of `BlockParams`, and the rows of the preview of a draft."""

    shift_logits: bool = False
    history_query: Literal["scaled", "unit"] = "scaled"
    scale_activation: Literal["none", "exp", "softplus"] = "none"
    expert_coreset: int = 0
    rows: int = 8

    def params(self, base: BlockParams) -> BlockParams:
        """Block parameters with these in place of their own."""
        changes = {name: value for name, value in asdict(self).items() if name != "rows"}
        if self.expert_coreset:  # the two rules exclude each other
            changes["expert_coreset_share"] = 0.0
        return replace(base, **changes)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


# In the order of the search: with the wrong row nothing is accepted, so that comes first.
NAMES = ("shift_logits", "history_query", "scale_activation", "expert_coreset", "rows")
# Both weigh the state against the block's own rows, so two wrong ones can make up for each other: changed together too,
# once neither alone is of use.
TOGETHER = ("history_query", "scale_activation")


def setting_of(params: BlockParams, rows: int) -> Setting:
    """What a file says."""
    return Setting(rows=rows, **{name: getattr(params, name) for name in NAMES if name != "rows"})


class Scorer(Protocol):
    """Mean accepted tokens a round, one number a prompt, for each of some settings; all measured at the same places."""

    def __call__(self, settings: Sequence[Setting]) -> list[tuple[float, ...]]: ...


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A value that was compared with the best one so far.

    Attributes:
        parameter, value, instead_of: what was tried in place of what, in pass `pass_` (from 1); "a and b" of two that
            were changed together.
        accepted: mean accepted tokens a round. gain: over the other value, by prompt; low, high: 95 % interval of its
            median or None.
        p: one-sided p-value of a gain (sign flips of the prompts' differences). needed: below which it counts.
        same: the two accept the same in every prompt: this file cannot tell them apart.
        taken: it became the new best.
    """

    parameter: str
    value: Any
    instead_of: Any
    pass_: int
    accepted: float
    gain: float
    low: float | None
    high: float | None
    p: float
    needed: float
    same: bool
    taken: bool = False


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """What a calibration found.

    Attributes:
        model: the file. start: what was begun with; chosen: what is best.
        accepted_before, accepted: mean accepted tokens a round of the two.
        p: one-sided p-value that chosen is better than start; 1 when nothing changed.
        gain, low, high: of chosen over start, by prompt, and the 95 % interval of the median.
        trials: in order. n_prompts, n_places: where drafts were begun; n_max: tokens of a draft.
        verdicts: one sentence a parameter.
    """

    model: str = ""
    start: Setting
    chosen: Setting
    accepted_before: float
    accepted: float
    p: float
    gain: float
    low: float | None
    high: float | None
    trials: tuple[Trial, ...]
    verdicts: Mapping[str, str]
    n_prompts: int
    n_places: int = 0
    n_max: int = 0
    profile: str = ""

    @property
    def changes(self) -> dict[str, Any]:
        """The parameters that were chosen anew."""
        a, b = asdict(self.start), asdict(self.chosen)
        return {name: b[name] for name in NAMES if a[name] != b[name]}

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {**asdict(self), "changes": self.changes}


def search(
    start: Setting,
    values: Mapping[str, Sequence[Any]],
    score: Scorer,
    *,
    alpha: float = ALPHA,
    progress: Callable[[int, str], None] | None = None,
) -> Calibration:
    """Coordinate search: along each parameter in turn, until a pass changes nothing, three passes at most.

    A pass that changes nothing by one parameter tries those of TOGETHER at once.

    A value is taken when it accepts more on the prompts together and the p-value of its gain is below alpha divided by
    the number of alternatives there can be in all passes (Bonferroni), so that the chance to leave the start for noise
    is at most alpha.

    Args:
        values: alternatives of each parameter of NAMES; its present value counts as one of them.
        score: measures settings; called once a parameter, with all its values.
    """
    ways = {n: len({*v, getattr(start, n)}) - 1 for n, v in values.items()}
    together = math.prod(ways.get(n, 0) for n in TOGETHER)
    needed = alpha / max(1, PASSES * (sum(ways.values()) + together))
    best = start
    scores: dict[Setting, tuple[float, ...]] = {}
    trials: list[Trial] = []

    def measured(settings: Iterable[Setting]) -> None:
        new = [s for s in dict.fromkeys(settings) if s not in scores]
        if new:
            scores.update(zip(new, score(new), strict=True))

    def step(names: Sequence[str], pass_: int) -> Setting:
        """The best with other values of all these parameters, or as it was."""
        others = [[v for v in dict.fromkeys(values.get(name, ())) if v != getattr(best, name)] for name in names]
        changes = [dict(zip(names, chosen, strict=True)) for chosen in product(*others)]
        if not changes:
            return best
        if progress is not None:
            progress(pass_, _joined(names))
        settings = [replace(best, **change) for change in changes]
        measured([best, *settings])
        found = [_trial(change, best, pass_, scores, needed) for change in changes]
        better = [i for i, t in enumerate(found) if t.gain > 0 and t.p < needed]
        winner = max(better, key=lambda i: found[i].gain, default=None)
        trials.extend(replace(t, taken=i == winner) for i, t in enumerate(found))
        return best if winner is None else settings[winner]

    for pass_ in range(1, PASSES + 1):
        before = best
        for name in NAMES:
            best = step((name,), pass_)
        if best == before:
            best = step(TOGETHER, pass_)
        if best == before:
            break
    measured([start, best])
    a, b = scores[start], scores[best]
    differences = [y - x for x, y in zip(a, b, strict=True)]
    interval = median_interval(differences)
    return Calibration(
        start=start, chosen=best, accepted_before=mean(a), accepted=mean(b), gain=mean(differences),
        p=sign_flip_p(differences) if best != start else 1.0, low=interval[0] if interval else None,
        high=interval[1] if interval else None, trials=tuple(trials), n_prompts=len(a),
        verdicts={name: _verdict(name, start, best, trials, len(a)) for name in NAMES if values.get(name)},
    )  # fmt: skip


def _trial(
    change: Mapping[str, Any], best: Setting, pass_: int, scores: Mapping[Setting, tuple[float, ...]], needed: float
) -> Trial:
    own = scores[replace(best, **change)]
    differences = [y - x for x, y in zip(scores[best], own, strict=True)]
    interval = median_interval(differences)
    return Trial(
        parameter=_joined(change), value=_joined(change.values()),
        instead_of=_joined(getattr(best, name) for name in change), pass_=pass_, accepted=mean(own),
        gain=mean(differences), low=interval[0] if interval else None, high=interval[1] if interval else None,
        p=sign_flip_p(differences), needed=needed, same=not any(differences),
    )  # fmt: skip


def _verdict(name: str, start: Setting, best: Setting, trials: Sequence[Trial], n_prompts: int) -> str:
    """What can be said of a parameter, from the last comparison with each other value."""
    last = {t.value: t for t in trials if t.parameter == name and t.value != getattr(best, name)}
    mine = [t for t in trials if t.parameter == name and t.taken and t.value == getattr(best, name)]
    both = [t for t in trials if t.parameter == _joined(TOGETHER) and t.taken] if name in TOGETHER else []
    mine = both[-1:] or mine
    same = [t.value for t in last.values() if t.same and t.instead_of == getattr(best, name)]
    near = [
        t.value for t in last.values()
        if not t.same and t.instead_of == getattr(best, name) and 1 - t.p >= t.needed
    ]  # fmt: skip
    value = getattr(best, name)
    if mine:
        text = f"{value}" if getattr(start, name) == value else f"{value} in place of {getattr(start, name)}"
        text += f" (with {mine[-1].parameter})" if both else ""
        text += f": {mine[-1].gain:+.2f} accepted tokens a round"
        text += f", p = {mine[-1].p:.2g}"
    elif getattr(start, name) == value and not near and not same:
        text = f"{value} stays: everything else accepts less"
    else:
        text = f"{value} stays: nothing is better by more than the noise"
        if n_prompts < FEWEST_PROMPTS:
            text += f" (at least {FEWEST_PROMPTS} prompts are needed to tell; there were {n_prompts})"
    if same:
        text += f"; no difference at all to {_listed(same)}"
    if near:
        text += f"; not told from {_listed(near)}"
    return text


def _joined(values: Iterable[Any]) -> Any:
    """One value as it is, several as words."""
    listed = list(values)
    return listed[0] if len(listed) == 1 else " and ".join(map(str, listed))


def _listed(values: Iterable[Any]) -> str:
    return ", ".join(str(value) for value in values)


def field_names() -> tuple[str, ...]:
    """Names of the attributes of `Setting`."""
    return tuple(field.name for field in fields(Setting))
