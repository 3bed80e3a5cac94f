"""Means, errors and percentiles of scores, against hand values and numpy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from pyclover.tuning.quality.rows import SCORE
from pyclover.tuning.quality.statistics import divergence, perplexity


def scores(n: int, **fields: Any) -> Any:
    out = np.zeros(n, dtype=SCORE)
    for name, values in fields.items():
        out[name] = values
    return out


def test_perplexity_by_hand() -> None:
    """Probabilities 1/2 and 1/8: the geometric mean is 1/4. Half the range of ln p is ln 2, over sqrt(2 - 1)."""
    got = perplexity(scores(2, nll=[math.log(2), math.log(8)]))
    assert got.value == pytest.approx(4, rel=1e-6)
    assert got.error == pytest.approx(4 * math.log(2), rel=1e-6)


def test_a_single_token_has_no_error() -> None:
    got = perplexity(scores(1, nll=math.log(3)))
    assert got.value == pytest.approx(3, rel=1e-6)
    assert math.isnan(got.error)


def test_against_numpy() -> None:
    random = np.random.default_rng(7)
    n = 500
    base = random.gamma(2, 1.5, n).astype(np.float32)
    nll = (base + random.normal(0.1, 0.3, n)).astype(np.float32)
    kld, p_diff = random.gamma(1, 0.05, n), random.normal(0, 0.1, n).astype(np.float32)
    same = random.integers(0, 2, n)
    got = divergence(scores(n, nll=nll, nll_base=base, kld=kld, p_diff=p_diff, same_top=same))
    a, b, p = (x.astype(np.float64) for x in (nll, base, p_diff))

    def error(x: Any) -> float:
        return float(np.std(x, ddof=1) / math.sqrt(n))

    assert got.ppl_base.value == pytest.approx(math.exp(b.mean()))
    assert got.ppl_base.error == pytest.approx(math.exp(b.mean()) * error(b))
    assert got.correlation == pytest.approx(np.corrcoef(a, b)[0, 1])
    # both come from the same tokens: the error of the difference of means is that of the mean of differences
    assert got.ln_ppl_ratio.value == pytest.approx((a - b).mean())
    assert got.ln_ppl_ratio.error == pytest.approx(error(a - b))
    assert got.ppl_ratio.value == pytest.approx(math.exp((a - b).mean()))
    assert got.ppl_difference.value == pytest.approx(math.exp(a.mean()) - math.exp(b.mean()))
    assert got.ppl_difference.error == pytest.approx(error(math.exp(a.mean()) * a - math.exp(b.mean()) * b))
    assert got.kld.value == pytest.approx(kld.mean())
    assert got.kld.error == pytest.approx(error(kld))
    assert (got.kld_min, got.kld_max, got.kld_median) == (kld.min(), kld.max(), np.median(kld))
    for percent, value in got.kld_percentiles.items():
        assert value == pytest.approx(np.quantile(kld, percent / 100))
    assert got.p_diff.value == pytest.approx(p.mean())
    assert got.p_diff_rms.value == pytest.approx(math.sqrt((p**2).mean()))
    assert got.p_diff_rms.error == pytest.approx(error(p**2) / (2 * math.sqrt((p**2).mean())))
    assert got.same_top.value == same.mean()
    assert got.same_top.error == pytest.approx(error(same))


def test_a_percentile_between_two_values() -> None:
    got = divergence(scores(5, kld=[0, 1, 2, 3, 4]))
    assert got.kld_percentiles[10.0] == pytest.approx(0.4)
    assert got.kld_percentiles[99.0] == pytest.approx(3.96)


def test_the_reference_against_itself() -> None:
    nll = np.array([1, 2, 3], np.float32)
    got = divergence(scores(3, nll=nll, nll_base=nll, same_top=1))
    assert (got.ppl_ratio.value, got.kld.value, got.same_top.value, got.same_top.error) == (1, 0, 1, 0)
    assert got.correlation == pytest.approx(1)
    assert got.ln_ppl_ratio.error == pytest.approx(0, abs=1e-9)
    assert (got.p_diff_rms.value, got.p_diff_rms.error) == (0, 0)
