"""What to use, and why: the fastest of what keeps the text, if it is measured to be faster than plain decoding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyclover.tuning.candidate import Candidate
from pyclover.tuning.table import Ratio, Row, Turn, ratio_of


@dataclass(frozen=True, kw_only=True)
class Recommendation:
    """Attributes:
    candidate: what to use; plain where nothing is shown to be faster.
    label: its name. ratio: to plain decoding, None when that is it.
    as_good: labels of those that this measurement cannot tell from it.
    loses_on: kinds of prompts on which it is slower than plain, with the ratio.
    reasons: sentences that explain it, break-even included.
    """

    candidate: Candidate
    label: str
    ratio: Ratio | None
    as_good: tuple[str, ...]
    loses_on: dict[str, float]
    reasons: tuple[str, ...]


def recommend(candidates: Sequence[Candidate], rows: Sequence[Row], turns: Sequence[Turn]) -> Recommendation:
    """The fastest in total of those that keep the text, are still in the race, and whose interval lies above 1."""
    faster = [
        row for row in rows
        if row.ratio is not None and row.candidate.lossless and row.dropped_after is None
        and row.ratio.low is not None and row.ratio.low > 1 and row.ratio.total > 1
    ]  # fmt: skip
    number = {candidate: i for i, candidate in enumerate(candidates)}
    best = max(faster, key=lambda row: row.ratio.total if row.ratio else 0.0, default=rows[0])
    as_good = []
    for row in rows:
        if row is best or row.dropped_after is not None or not row.candidate.lossless:
            continue
        ratio = ratio_of(turns, number[row.candidate], number[best.candidate])
        if ratio is not None and (ratio.high is None or ratio.high >= 1):
            as_good.append(row.label)
    loses_on = {kind: share for kind, share in best.by_kind.items() if share < 1}
    return Recommendation(
        candidate=best.candidate, label=best.label, ratio=best.ratio, as_good=tuple(as_good), loses_on=loses_on,
        reasons=tuple(_reasons(best, rows, loses_on)),
    )  # fmt: skip


def _reasons(best: Row, rows: Sequence[Row], loses_on: dict[str, float]) -> list[str]:
    reasons = []
    if best.ratio is None:
        drafting = [row for row in rows if row.ratio is not None and row.candidate.lossless]
        if drafting:
            nearest = max(drafting, key=lambda row: row.ratio.total if row.ratio else 0.0)
            reasons.append(f"nothing is shown to be faster than plain decoding; nearest is {nearest.label}")
            reasons += break_even(nearest)
            if nearest.ratio is not None and nearest.ratio.low is None:
                reasons.append(
                    f"{nearest.ratio.n} {nearest.ratio.over} give no interval of 95 %: at least 6 are needed; repeat "
                    "more often, or give more prompts"
                )
        else:
            reasons.append("plain decoding is all that was tried")
        return reasons
    reasons.append(f"{best.label} is {told(best.ratio)} as fast as plain decoding")
    reasons += break_even(best)
    if best.ratio.over == "pairs":
        reasons.append("fewer than 6 prompts: the interval is of this machine's noise and says nothing of others")
    if loses_on:
        kinds = ", ".join(f"{kind} ({share:.2f})" for kind, share in loses_on.items())
        reasons.append(f"it is slower than plain decoding on {kinds}: auto stops drafting where it does not pay")
    return reasons


def told(ratio: Ratio) -> str:
    """A ratio in words, with its interval."""
    spread = f" (median {ratio.median:.2f}, 95 % {ratio.low:.2f} to {ratio.high:.2f})" if ratio.low is not None else ""
    return f"{ratio.total:.2f} times{spread}"


def break_even(row: Row) -> list[str]:
    """The tokens that a round has to give against those that it gives; nothing without rounds."""
    if row.tokens_needed is None or row.tokens_per_round is None:
        return []
    verdict = "it pays" if row.tokens_per_round > row.tokens_needed else "it does not pay"
    accepted = f" at {row.acceptance:.0%} acceptance" if row.acceptance is not None else ""
    return [
        f"a round of {row.label} takes the time of {row.tokens_needed:.2f} plain steps, so it has to give as many "
        f"tokens; it gives {row.tokens_per_round:.2f}{accepted}: {verdict}"
    ]
