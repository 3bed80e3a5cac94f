"""Statistics of the tuning layer against tables and closed forms."""

from __future__ import annotations

import itertools
import random

import pytest

from pyclover.tuning.interleave import turning
from pyclover.tuning.statistics import evidence, median_interval, sign_flip_p


@pytest.mark.parametrize(
    ("n", "ranks"),
    # Conover, Practical Nonparametric Statistics: 95 % intervals of a median by ranks (1-based)
    [(6, (1, 6)), (8, (1, 8)), (9, (2, 8)), (10, (2, 9)), (15, (4, 12)), (20, (6, 15)), (25, (8, 18)), (50, (18, 33))],
)
def test_ranks_of_the_interval_of_a_median(n: int, ranks: tuple[int, int]) -> None:
    values = list(range(1, n + 1))
    random.Random(n).shuffle(values)
    assert median_interval(values) == ranks


def test_too_few_values_have_no_interval() -> None:
    assert median_interval([1.0, 2.0, 3.0, 4.0, 5.0]) is None
    assert median_interval([]) is None


def test_large_samples_agree_with_the_normal_limit() -> None:
    n = 4000  # ranks n/2 -+ 1.96 sqrt(n)/2
    low, high = median_interval(list(range(n))) or (0, 0)
    assert abs(low - (n / 2 - 1.96 * n**0.5 / 2)) < 2
    assert abs(high - (n / 2 + 1.96 * n**0.5 / 2)) < 2


def test_the_interval_covers() -> None:
    draw = random.Random(5)
    hits = 0
    for _ in range(2000):
        low, high = median_interval([draw.expovariate(1.0) for _ in range(12)]) or (0.0, 0.0)
        hits += low <= 0.6931471805599453 <= high  # ln 2
    assert hits >= 0.94 * 2000


def test_evidence_is_the_ratio_of_likelihoods() -> None:
    # by hand: (int_{1/2}^1 2 p^l (1 - p)^w dp) * 2^n
    assert evidence(0, 0) == 1
    assert evidence(1, 0) == pytest.approx(2 * 2 * (1 - 1 / 4) / 2)
    assert evidence(2, 0) == pytest.approx(4 * 2 * (1 - 1 / 8) / 3)
    assert evidence(1, 1) == pytest.approx(4 * 2 * ((1 / 2 - 1 / 3) - (1 / 8 - 1 / 24)))


@pytest.mark.parametrize("n", [1, 2, 5, 9, 14])
def test_evidence_expects_one_from_a_coin(n: int) -> None:
    patterns = itertools.product((0, 1), repeat=n)
    assert sum(evidence(sum(p), n - sum(p)) for p in patterns) / 2**n == pytest.approx(1.0)


def test_evidence_is_a_martingale_of_a_coin() -> None:
    for losses, wins in itertools.product(range(12), range(12)):
        mean = (evidence(losses + 1, wins) + evidence(losses, wins + 1)) / 2
        assert mean == pytest.approx(evidence(losses, wins))


def test_sign_flips_by_enumeration() -> None:
    assert sign_flip_p([1.0] * 10) == 1 / 1024
    assert sign_flip_p([3.0, -1.0, 2.0]) == 2 / 8  # sums of 4 or more: +++ and +-+
    assert sign_flip_p([-1.0, -2.0, -3.0]) == 1.0
    assert sign_flip_p([0.0, 0.0]) == 1.0
    assert sign_flip_p([]) == 1.0


def test_sampled_sign_flips_agree_with_the_exact_ones() -> None:
    draw = random.Random(3)
    d = [draw.gauss(0.4, 1.0) for _ in range(16)]
    exact = sign_flip_p(d)
    sampled = sign_flip_p([*d, 1e-12])  # one more that changes nothing: too many to enumerate
    assert abs(exact - sampled) < 4 * (exact * (1 - exact) / 20_000) ** 0.5 + 1e-3


def test_p_values_are_uniform_without_an_effect() -> None:
    draw = random.Random(9)
    small = sum(sign_flip_p([draw.gauss(0, 1) for _ in range(10)]) <= 0.05 for _ in range(600))
    assert small <= 0.05 * 600 + 3 * (600 * 0.05 * 0.95) ** 0.5


def test_turns_put_everyone_everywhere() -> None:
    places = [turning("abcd", turn) for turn in range(8)]
    for name in "abcd":
        assert sorted(order.index(name) for order in places) == [0, 0, 1, 1, 2, 2, 3, 3]
    before = sum(order.index("a") < order.index("b") for order in places)
    assert before == 4
    assert turning([], 3) == []
