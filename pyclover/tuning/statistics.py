"""The statistics of this layer: medians with intervals, a test that may be looked at any time, a paired test.

Nothing here assumes a shape of the noise: times on a computer have long tails, and a few of them are far off.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from statistics import median

import numpy as np
import numpy.typing as npt

__all__ = ["FEWEST", "evidence", "mean", "median", "median_interval", "sign_flip_p"]

FEWEST = 6  # values of which the extremes bound the median with 95 %: 1 - 2 / 2**6 is 0.969
EXACT_FLIPS = 16  # values for which all ways to flip signs are tried; more are sampled
SAMPLED_FLIPS = 20_000


def mean(values: Sequence[float]) -> float:
    """The mean; 0 of nothing."""
    return math.fsum(values) / len(values) if values else 0.0


def median_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float] | None:
    """An interval that covers the median of where the values come from; None of fewer than 6 at 95 %.

    Order statistics: of n values, the number below the true median is binomial with 1/2, so the k-th smallest and the
    k-th largest enclose it with 1 - 2 P(B <= k - 1). The largest k that keeps the confidence is taken.
    """
    ordered, n = sorted(values), len(values)
    below, tail = 0.0, 0.0
    k = 0
    for i in range(n // 2 + 1):
        tail += math.comb(n, i) / 2**n if n < 1000 else math.exp(_log_choose(n, i) - n * math.log(2))
        if 2 * tail > 1 - confidence:
            break
        k, below = i + 1, tail
    return None if k == 0 or below == 0 else (ordered[k - 1], ordered[n - k])


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


@lru_cache(maxsize=1 << 16)
def evidence(losses: int, wins: int) -> float:
    """How much a record speaks for losing more often than winning: an e-value.

    The ratio of likelihoods, losing with a chance spread evenly over 1/2 to 1 against losing with 1/2:
    sum_{k <= losses} C(n + 1, k) / ((n + 1) C(n, losses)) with n = losses + wins. For one who loses at most half of
    the time its expectation is at most 1 at every stop (a supermartingale), so by Ville's inequality it ever reaches
    x with a chance of 1 / x at most: it may be looked at after every run, and the search may stop when it pleases.
    """
    n = losses + wins
    return float(Fraction(sum(math.comb(n + 1, k) for k in range(losses + 1)), (n + 1) * math.comb(n, losses)))


def sign_flip_p(differences: Sequence[float], seed: int = 1) -> float:
    """One-sided p-value of paired differences for "larger than 0": the share of sign patterns with as large a sum.

    Exact up to 16 differences that are not 0; of more, 20,000 patterns are drawn, with the seed, and the record itself
    counts as one of them.
    """
    d = np.array([x for x in differences if x != 0], dtype=np.float64)
    if len(d) == 0:
        return 1.0
    seen = d.sum() - 1e-9 * np.abs(d).sum()  # sums that equal the record up to rounding count as large
    if len(d) <= EXACT_FLIPS:
        sums = np.zeros(1)
        for x in d:
            sums = np.concatenate([sums + x, sums - x])
        return float((sums >= seen).mean())
    return float(1 + (_signs(len(d), seed) @ d >= seen).sum()) / (SAMPLED_FLIPS + 1)


@lru_cache(maxsize=4)
def _signs(n: int, seed: int) -> npt.NDArray[np.float64]:
    return np.random.default_rng(seed).choice(np.array([-1.0, 1.0]), (SAMPLED_FLIPS, n))
