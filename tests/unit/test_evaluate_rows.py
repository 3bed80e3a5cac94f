"""Rows of logits: the 16-bit form, and scores, against hand values and the formulas in double precision."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyclover.tuning.quality import rows as module
from pyclover.tuning.quality.rows import HEAD, SCORE, pack, row_words, score


def rows(*values: list[float]) -> Any:
    return np.array(values, dtype=np.float32)


def log_softmax(logits: Any) -> Any:
    x = logits.astype(np.float64)
    x = x - x.max(axis=1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=1, keepdims=True))


def test_two_tokens_by_hand() -> None:
    """Probabilities 1/4 and 3/4."""
    kept = pack(rows([0.0, math.log(3)]))
    assert kept.shape == (1, 6)
    assert kept[0, HEAD:].tolist() == [0, 65535]
    scale, low = kept[0, :HEAD].view("<f4")
    assert scale == pytest.approx(math.log(3) / 65535, rel=1e-6)
    assert low == pytest.approx(math.log(1 / 4), rel=1e-6)


def test_what_is_far_below_the_top_is_kept_as_16_below() -> None:
    kept = pack(rows([20.0, 3.0, -50.0, 12.0]))[0]
    scale, low = kept[:HEAD].view("<f4")
    assert scale == pytest.approx(16 / 65535, rel=1e-6)
    assert low == pytest.approx(-16 - math.log1p(math.exp(-17) + math.exp(-70) + math.exp(-8)), rel=1e-6)
    assert kept[HEAD:].tolist() == [65535, 0, 0, 32768]  # 8 of 16: 32767.5, to even


def test_equal_logits_have_no_scale() -> None:
    kept = pack(rows([1.5] * 5))[0]
    scale, low = kept[:HEAD].view("<f4")
    assert (scale, kept[HEAD:].tolist()) == (0, [0] * 6)  # one word to make it even
    assert low == pytest.approx(-math.log(5), rel=1e-6)


@pytest.mark.parametrize(("n_vocab", "n_words"), [(1, 6), (2, 6), (3, 8), (49152, 49156), (248320, 248324)])
def test_words_of_a_row(n_vocab: int, n_words: int) -> None:
    assert row_words(n_vocab) == n_words


def test_divergence_of_two_tokens_by_hand() -> None:
    """From (1/4, 3/4) to (1/2, 1/2): 1/4 ln 1/2 + 3/4 ln 3/2."""
    base = pack(rows([0.0, math.log(3)]))
    (got,) = score(rows([2.0, 2.0]), np.array([0], np.int32), base)
    assert got["kld"] == pytest.approx(0.25 * math.log(0.5) + 0.75 * math.log(1.5), rel=1e-5)
    assert got["nll"] == pytest.approx(math.log(2), rel=1e-6)
    assert got["nll_base"] == pytest.approx(math.log(4), rel=1e-6)
    assert got["p_diff"] == pytest.approx(0.25, rel=1e-5)
    assert got["same_top"] == 0  # of equals, the first is the top


def test_no_reference() -> None:
    (got,) = score(rows([0.0, math.log(3), 0.0]), np.array([1], np.int32), None)
    assert got["nll"] == pytest.approx(math.log(5 / 3), rel=1e-6)
    assert [got[name] for name in ("nll_base", "kld", "p_diff", "same_top")] == [0, 0, 0, 0]


@given(st.integers(0, 2**32 - 1), st.integers(2, 300), st.integers(1, 9), st.floats(0.1, 8))
def test_against_double_precision(seed: int, n_vocab: int, n_rows: int, width: float) -> None:
    random = np.random.default_rng(seed)
    model, base = (random.normal(0, width, (n_rows, n_vocab)).astype(np.float32) for _ in range(2))
    targets = random.integers(0, n_vocab, n_rows).astype(np.int32)
    kept = pack(base)
    got = score(model, targets, kept)
    assert got.dtype == SCORE
    log_q, exact = log_softmax(model), log_softmax(base)
    scale, low = kept[:, :HEAD].copy().view("<f4").T[:, :, None]
    log_p = low.astype(np.float64) + scale.astype(np.float64) * kept[:, HEAD : HEAD + n_vocab]
    # what is kept is off by half a step, and by nothing else, where it is within 16 of the top
    inside = exact > exact.max(axis=1, keepdims=True) - 16
    assert np.all(np.abs(log_p - exact)[inside] <= np.broadcast_to(0.5 * scale + 1e-4, exact.shape)[inside])
    at = np.arange(n_rows), targets
    np.testing.assert_allclose(got["nll"], -log_q[at], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(got["nll_base"], -log_p[at], rtol=1e-4, atol=1e-5)
    terms = np.where(log_p > -16, np.exp(log_p) * (log_p - log_q), 0)
    # a term at the border of -16 may be counted or not
    border = (np.abs(log_p + 16) < 1e-4) * np.exp(-16) * np.abs(log_p - log_q)
    assert np.all(np.abs(got["kld"] - terms.sum(axis=1)) <= 1e-4 + border.sum(axis=1))
    np.testing.assert_allclose(got["p_diff"], np.exp(log_q[at]) - np.exp(log_p[at]), rtol=1e-3, atol=1e-5)
    assert got["same_top"].tolist() == (model.argmax(axis=1) == kept[:, HEAD:].argmax(axis=1)).astype(int).tolist()


def test_damaged_logits_do_not_pass_as_numbers() -> None:
    (got,) = score(rows([0.0, math.nan, 1.0]), np.array([0], np.int32), pack(rows([0.0, 1.0, 2.0])))
    for bad in (math.nan, math.inf):
        assert not np.isfinite(pack(rows([0.0, bad, 1.0]))[0, :HEAD].view("<f4")).all()
    assert pack(rows([0.0, -math.inf, 1.0]))[0, HEAD : HEAD + 3].tolist() == [61439, 0, 65535]  # 15/16 of the scale
    assert math.isnan(got["nll"])
    assert math.isnan(got["kld"])


def test_threads_do_not_mix_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(1)
    model, base = (random.normal(0, 3, (23, 40)).astype(np.float32) for _ in range(2))
    targets = random.integers(0, 40, 23).astype(np.int32)
    want = score(model, targets, pack(base))
    monkeypatch.setattr(module, "PARALLEL", 0)
    monkeypatch.setattr(module, "usable_processors", lambda: 4)
    np.testing.assert_array_equal(score(model, targets, pack(base)), want)
