"""From the scores of single tokens to the numbers that llama-perplexity gives, by the same formulas.

Errors are standard errors of a mean over tokens, taken as independent; those of ratios and differences use the
covariance of both perplexities, for both come from the same tokens.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pyclover.tuning.quality.rows import Scores

KLD_PERCENTS = (0.1, 1.0, 5.0, 10.0, 90.0, 95.0, 99.0, 99.9)
P_DIFF_PERCENTS = (0.1, 1.0, 5.0, 10.0, 25.0, 75.0, 90.0, 95.0, 99.0, 99.9)

_Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """A number and its standard error (NaN where a single token was scored)."""

    value: float
    error: float


@dataclass(frozen=True)
class Divergence:
    """How far a model is from a reference. Logarithms are natural, KL divergences in nats a token.

    Attributes:
        ppl_base: perplexity of the reference, as far as its kept logits tell.
        correlation: of ln(PPL) of model and reference, -1 to 1.
        ln_ppl_ratio, ppl_ratio: of the model's perplexity to the reference's. ppl_difference: of the two.
        kld: mean KL divergence from the reference to the model.
        kld_percentiles, p_diff_percentiles: percent -> value.
        p_diff: mean change of the probability of the token that came, 0 to 1; p_diff_rms: its root mean square.
        same_top: share of tokens at which both find the same token likeliest, 0 to 1.
    """

    ppl_base: Estimate
    correlation: float
    ln_ppl_ratio: Estimate
    ppl_ratio: Estimate
    ppl_difference: Estimate
    kld: Estimate
    kld_min: float
    kld_median: float
    kld_max: float
    kld_percentiles: Mapping[float, float]
    p_diff: Estimate
    p_diff_min: float
    p_diff_median: float
    p_diff_max: float
    p_diff_percentiles: Mapping[float, float]
    p_diff_rms: Estimate
    same_top: Estimate


def perplexity(scores: Scores) -> Estimate:
    """Exponential of the mean of -ln p over all tokens."""
    return _exp(_mean(scores["nll"].astype(np.float64)))


def divergence(scores: Scores) -> Divergence:
    """All that the scores tell about model and reference."""
    nll, base = scores["nll"].astype(np.float64), scores["nll_base"].astype(np.float64)
    model, reference = _mean(nll), _mean(base)
    covariance = _covariance(nll, base)
    both = model.error * reference.error
    ratio = Estimate(model.value - reference.value, _error_of_difference(model.error, reference.error, covariance))
    ppl, ppl_base = _exp(model), _exp(reference)
    difference = Estimate(
        ppl.value - ppl_base.value,
        _error_of_difference(ppl.error, ppl_base.error, ppl.value * ppl_base.value * covariance),
    )
    kld, p_diff = scores["kld"].astype(np.float64), scores["p_diff"].astype(np.float64)
    squared = _mean(p_diff**2)
    rms = math.sqrt(squared.value) if squared.value >= 0 else math.nan
    return Divergence(
        ppl_base=ppl_base,
        correlation=covariance / both if both else math.nan,
        ln_ppl_ratio=ratio,
        ppl_ratio=_exp(ratio),
        ppl_difference=difference,
        kld=_mean(kld),
        kld_min=float(kld.min()),
        kld_median=float(np.median(kld)),
        kld_max=float(kld.max()),
        kld_percentiles=_percentiles(kld, KLD_PERCENTS),
        p_diff=_mean(p_diff),
        p_diff_min=float(p_diff.min()),
        p_diff_median=float(np.median(p_diff)),
        p_diff_max=float(p_diff.max()),
        p_diff_percentiles=_percentiles(p_diff, P_DIFF_PERCENTS),
        p_diff_rms=Estimate(rms, 0.5 * squared.error / rms if rms else 0.0),
        same_top=_share(scores["same_top"].astype(np.float64)),
    )


def _mean(values: _Numbers) -> Estimate:
    """Mean, and sqrt((mean of squares - square of mean) / (n - 1))."""
    n = values.size
    return Estimate(float(values.mean()), math.sqrt(float(values.var()) / (n - 1)) if n > 1 else math.nan)


def _covariance(a: _Numbers, b: _Numbers) -> float:
    """Of the two means."""
    n = a.size
    return float(((a - a.mean()) * (b - b.mean())).mean()) / (n - 1) if n > 1 else math.nan


def _exp(log: Estimate) -> Estimate:
    """The error follows the derivative of exp."""
    value = float(np.exp(log.value))
    return Estimate(value, value * log.error)


def _error_of_difference(a: float, b: float, covariance: float) -> float:
    variance = a * a + b * b - 2 * covariance
    return math.sqrt(max(variance, 0.0)) if not math.isnan(variance) else math.nan


def _share(hits: _Numbers) -> Estimate:
    n, share = hits.size, float(hits.mean())
    return Estimate(share, math.sqrt(share * (1 - share) / (n - 1)) if n > 1 else math.nan)


def _percentiles(values: _Numbers, percents: tuple[float, ...]) -> dict[float, float]:
    """Between two values the percentile lies on the line between them."""
    return dict(zip(percents, map(float, np.percentile(values, percents)), strict=True))
