"""From turns to figures: speeds, ratios to plain decoding, acceptance, and what a round costs and gives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyclover.tuning.candidate import Candidate
from pyclover.tuning.measure import Run
from pyclover.tuning.prompts import Prompt
from pyclover.tuning.statistics import FEWEST, mean, median, median_interval


@dataclass(frozen=True)
class Turn:
    """One prompt, answered once by everyone in the race.

    Attributes:
        round, prompt: numbers, from 0. runs: by the candidate's number.
    """

    round: int
    prompt: int
    runs: Mapping[int, Run]

    def to_dict(self) -> dict[str, Any]:
        return {
            "round": self.round, "prompt": self.prompt,
            "runs": {str(i): run.to_dict() for i, run in sorted(self.runs.items())},
        }  # fmt: skip

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Turn:
        runs = {int(i): Run.from_dict(run) for i, run in values["runs"].items()}
        return cls(int(values["round"]), int(values["prompt"]), runs)


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """How many times as fast as another one.

    Attributes:
        median: of the pairs of a prompt the median, and of these over the prompts.
        low, high: 95 % interval of the median; None where there are too few values.
        total: ratio of the times for all tokens of all prompts together.
        n: values that the interval is of. over: "prompts", or "pairs" where fewer than 6 prompts were given; then
            the interval says nothing about other prompts.
    """

    median: float
    low: float | None
    high: float | None
    total: float
    n: int
    over: str

    @property
    def spread(self) -> float | None:
        """Half the width of the interval as a share of the median."""
        if self.low is None or self.high is None or self.median <= 0:
            return None
        return (self.high - self.low) / 2 / self.median


@dataclass(frozen=True, kw_only=True)
class Row:
    """What was measured of a candidate.

    Attributes:
        n_runs: answers. dropped_after: turns after which it had left the race; None: never.
        prompt_tok_per_s, tok_per_s, first_s: medians over the runs; *_low, *_high: 95 % intervals of them or None.
        ratio: to plain decoding (the first candidate); None for that itself and where nothing could be compared.
        by_kind: that ratio (total) by kind of prompt.
        acceptance: accepted share of drafted tokens; None without drafts.
        tokens_per_round: what a round gives, tokens_needed: what it has to give to cost no more time than plain
            steps, its time divided by that of a plain step. None without rounds.
        tokens_per_pass: of block diffusion.
        changed: share of tokens that plain decoding would not have written, see `changed_share`.
        n_changed: answers that are not plain decoding's, for lossless candidates at near-ties of two tokens.
    """

    candidate: Candidate
    label: str
    n_runs: int
    prompt_tok_per_s: float
    tok_per_s: float
    tok_per_s_low: float | None
    tok_per_s_high: float | None
    first_s: float
    ratio: Ratio | None
    by_kind: Mapping[str, float]
    acceptance: float | None
    tokens_per_round: float | None
    tokens_needed: float | None
    tokens_per_pass: float | None
    changed: float | None
    n_changed: int
    dropped_after: int | None = None


def ratio_of(turns: Sequence[Turn], mine: int, other: int) -> Ratio | None:
    """How many times as fast `mine` is as `other`, from the turns that both ran in; None when there is none."""
    both = [
        (turn.prompt, turn.runs[other], turn.runs[mine])
        for turn in turns
        if mine in turn.runs and other in turn.runs
        and turn.runs[mine].s_per_token > 0 and turn.runs[other].s_per_token > 0
    ]  # fmt: skip
    if not both:
        return None
    by_prompt: dict[int, list[tuple[Run, Run]]] = {}
    for prompt, a, b in both:
        by_prompt.setdefault(prompt, []).append((a, b))
    medians = [median([a.s_per_token / b.s_per_token for a, b in pairs]) for pairs in by_prompt.values()]
    # each prompt counts with the tokens of the answer that is compared with
    weights = [median([a.n_decoded for a, _ in pairs]) for pairs in by_prompt.values()]
    theirs = sum(w * median([a.s_per_token for a, _ in p]) for w, p in zip(weights, by_prompt.values(), strict=True))
    own = sum(w * median([b.s_per_token for _, b in p]) for w, p in zip(weights, by_prompt.values(), strict=True))
    over = "prompts" if len(medians) >= FEWEST else "pairs"
    values = medians if over == "prompts" else [a.s_per_token / b.s_per_token for _, a, b in both]
    interval = median_interval(values)
    low, high = interval if interval else (None, None)
    return Ratio(median=median(values), low=low, high=high, total=theirs / own, n=len(values), over=over)


def rows_of(
    candidates: Sequence[Candidate],
    prompts: Sequence[Prompt],
    turns: Sequence[Turn],
    dropped: Mapping[int, int] | None = None,
) -> tuple[Row, ...]:
    """One row a candidate, in their order; those that never ran are left out."""
    rows = []
    for i, candidate in enumerate(candidates):
        runs = [turn.runs[i] for turn in turns if i in turn.runs]
        if runs:
            rows.append(_row(i, candidate, runs, prompts, turns, (dropped or {}).get(i)))
    return tuple(rows)


def _row(
    i: int, candidate: Candidate, runs: Sequence[Run], prompts: Sequence[Prompt], turns: Sequence[Turn],
    dropped: int | None,
) -> Row:  # fmt: skip
    speeds = [1 / run.s_per_token for run in runs if run.s_per_token > 0]
    interval = median_interval(speeds)
    rounds, drafted, emitted = (sum(getattr(run, name) for run in runs) for name in ("rounds", "drafted", "emitted"))
    passes = sum(run.previews + run.commits for run in runs) if candidate.mode == "diffusion" else 0
    kinds = dict.fromkeys(prompt.kind for prompt in prompts)
    by_kind = {}
    for kind in kinds if i else ():
        found = ratio_of([turn for turn in turns if prompts[turn.prompt].kind == kind], i, 0)
        if found is not None:
            by_kind[kind] = found.total
    changed = [run.changed for run in runs if run.changed is not None]
    return Row(
        candidate=candidate, label=candidate.label, n_runs=len(runs), dropped_after=dropped,
        prompt_tok_per_s=_median(run.n_read / run.prompt_s for run in runs if run.n_read and run.prompt_s > 0),
        tok_per_s=_median(speeds), tok_per_s_low=interval[0] if interval else None,
        tok_per_s_high=interval[1] if interval else None,
        first_s=_median(run.first_s for run in runs if run.first_s > 0),
        ratio=ratio_of(turns, i, 0) if i else None, by_kind=by_kind,
        acceptance=sum(run.accepted for run in runs) / drafted if drafted else None,
        tokens_per_round=emitted / rounds if rounds else None, tokens_needed=_needed(i, turns) if rounds else None,
        tokens_per_pass=sum(run.n_decoded for run in runs) / passes if passes else None,
        changed=mean(changed) if changed and i else None, n_changed=sum(share > 0 for share in changed),
    )  # fmt: skip


def _needed(i: int, turns: Sequence[Turn]) -> float | None:
    """What a round of `i` has to give: its time divided by that of a plain step beside it.

    Plain steps between rounds, which the controller takes, are charged as plain decoding's.
    """
    shares: list[float] = []
    for turn in turns:
        mine, plain = turn.runs.get(i), turn.runs.get(0)
        if mine is not None and plain is not None and mine.rounds > 0 and plain.s_per_token > 0:
            shares.append((mine.decode_s / plain.s_per_token - mine.n_plain) / mine.rounds)
    return median(shares) if shares else None


def _median(values: Iterable[float]) -> float:
    listed = list(values)
    return median(listed) if listed else 0.0
