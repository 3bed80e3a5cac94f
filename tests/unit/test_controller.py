"""The controller of drafting in simulated worlds: its cost against plain steps, and against the best fixed draft."""

from __future__ import annotations

import random
import statistics
from dataclasses import dataclass

import pytest

from pyclover.engine.controller import WAYS, Controller
from pyclover.errors import UsageError

NOISE = 0.05  # of each time; one in 200 steps takes five times as long
N_TOKENS = 8000  # with 2,000, the noise of plain steps alone is 0.6 %


@dataclass(frozen=True)
class World:
    """Costs in plain steps, and the acceptance of each place of a draft."""

    preview: float
    preview_row: float
    verify_row: float
    verify_power: float
    rollback: float
    acceptance: tuple[float, ...]

    def preview_s(self, n: int) -> float:
        return self.preview + self.preview_row * (n + 1)

    def verify_s(self, n: int) -> float:
        return 1 + self.verify_row * n**self.verify_power

    def time_per_token(self, n: int) -> float:
        """Expected; 1 for plain steps."""
        if n == 0:
            return 1
        tokens = whole = 1.0
        for a in self.acceptance[:n]:
            whole *= a
            tokens += whole
        return (self.preview_s(n) + self.verify_s(n) + (1 - whole) * self.rollback) / tokens


def some_world(rng: random.Random) -> World:
    first, fall = rng.uniform(0.15, 0.99), rng.uniform(0.9, 1)
    return World(
        rng.uniform(0.7, 2.2), rng.uniform(0, 0.05), rng.uniform(0, 0.5), rng.uniform(0.5, 1), rng.uniform(0, 1),
        tuple(first * fall**i for i in range(31)),
    )  # fmt: skip


def time_of(controller: Controller, worlds: list[World], rng: random.Random) -> float:
    """Of N_TOKENS tokens, an equal part in each world, one after the other."""

    def noisy(seconds: float) -> float:
        return seconds * max(0.5, rng.gauss(1, NOISE)) * (5 if rng.random() < 0.005 else 1)

    total = 0.0
    done = 0
    to_undo = False
    while done < N_TOKENS:
        world = worlds[min(done * len(worlds) // N_TOKENS, len(worlds) - 1)]
        n = controller.choose(N_TOKENS - done)
        if to_undo:
            total += (seconds := noisy(world.rollback))
            controller.saw_rollback(seconds)
        if n == 0:
            total += (seconds := noisy(1))
            controller.saw_plain(seconds)
            done += 1
            to_undo = False
            continue
        accepted = 0
        while accepted < n and rng.random() < world.acceptance[accepted]:
            accepted += 1
        preview, verify = noisy(world.preview_s(n)), noisy(world.verify_s(n))
        controller.saw_round(n, accepted, preview, verify)
        total += preview + verify
        done += accepted + 1
        to_undo = accepted < n
    return total


def ratios(start_plain: bool, n_worlds: int, drifting: bool) -> tuple[list[float], list[float]]:
    """Speed against plain steps, and against the best fixed draft, in each world; sorted."""
    rng = random.Random(20)
    against_plain, against_best = [], []
    slower = 1 + 4 * 0.005  # a plain step's mean time, with its outliers
    for i in range(n_worlds):
        a, b = some_world(rng), some_world(rng)
        worlds = [a, b, a, b] if drifting else [a]
        n_max = (3, 7, 15, 31)[i % 4]
        seconds = time_of(Controller(n_max, start_plain=start_plain), worlds, rng)
        best = min(statistics.mean(world.time_per_token(n) for world in worlds) for n in range(n_max + 1))
        against_plain.append(N_TOKENS * slower / seconds)
        against_best.append(N_TOKENS * slower * best / seconds)
    return sorted(against_plain), sorted(against_best)


@pytest.mark.parametrize("drifting", [False, True])
@pytest.mark.parametrize("start_plain", [True, False])
def test_never_much_below_plain_and_near_the_best(start_plain: bool, drifting: bool) -> None:
    n_worlds = 125  # times four: 500 in all
    against_plain, against_best = ratios(start_plain, n_worlds, drifting)
    assert against_plain[0] >= 0.97
    assert statistics.median(against_best) >= 0.95
    assert against_best[n_worlds // 10] >= 0.85


def time_with_ahead(controller: Controller, world: World, share: float, used: float, rng: random.Random) -> float:
    """Of N_TOKENS tokens, where a check that makes the next draft costs so much of a preview more."""
    total, done, have = 0.0, 0, False
    while done < N_TOKENS:
        n = controller.choose(N_TOKENS - done, may_ahead=True)
        ahead = controller.ahead
        if n == 0:
            total += (seconds := max(0.5, rng.gauss(1, NOISE)))
            controller.saw_plain(seconds)
            done, have = done + 1, False
            continue
        accepted = 0
        while accepted < n and rng.random() < world.acceptance[accepted]:
            accepted += 1
        preview = 0.0 if have else world.preview_s(n) * max(0.5, rng.gauss(1, NOISE))
        verify = (world.verify_s(n) + ahead * share * world.preview_s(n)) * max(0.5, rng.gauss(1, NOISE))
        have = ahead and accepted == n and rng.random() < used
        controller.saw_round(n, accepted, preview, verify, ahead=ahead, used=have)
        total += preview + verify
        done += accepted + 1
    return total


def best_with_ahead(world: World, n_max: int, share: float, used: float) -> float:
    """Time of a token with the best fixed choice; 1 for plain steps."""
    best = 1.0
    for n in range(1, n_max + 1):
        tokens = whole = 1.0
        for a in world.acceptance[:n]:
            whole *= a
            tokens += whole
        two = world.preview_s(n) + world.verify_s(n)
        one = world.verify_s(n) + share * world.preview_s(n) + (1 - whole * used) * world.preview_s(n)
        best = min(best, two / tokens, one / tokens)
    return best


def test_one_pass_or_two_is_chosen_near_the_best_and_never_much_below_plain() -> None:
    rng = random.Random(21)
    against_plain, against_best = [], []
    n_worlds, n_used = 200, 0
    for i in range(n_worlds):
        world = some_world(rng)
        world = World(world.preview, world.preview_row, world.verify_row, world.verify_power, 0.0, world.acceptance)
        share, used = rng.uniform(0.05, 1.1), rng.uniform(0.3, 1)
        n_max = (3, 7, 15, 31)[i % 4]
        controller = Controller(n_max, start_plain=bool(i & 4))
        seconds = time_with_ahead(controller, world, share, used, rng)
        against_plain.append(N_TOKENS / seconds)
        against_best.append(N_TOKENS * best_with_ahead(world, n_max, share, used) / seconds)
        n_used += controller.state.n_ahead > 20
    against_plain.sort()
    against_best.sort()
    assert against_plain[0] >= 0.97
    assert statistics.median(against_best) >= 0.95
    assert against_best[n_worlds // 10] >= 0.85
    assert n_used > 8  # in few of these worlds it pays


@pytest.mark.parametrize(("share", "pays"), [(0.2, True), (1.5, False)])
def test_drafts_are_made_ahead_while_that_is_cheaper(share: float, pays: bool) -> None:
    world = World(1.0, 0.0, 0.05, 1.0, 0.0, (0.98,) * 31)
    controller = Controller(7, start_plain=True)
    time_with_ahead(controller, world, share, 0.95, random.Random(1))
    state = controller.state
    assert (state.n_ahead > state.n_rounds // 2) is pays
    assert pays or state.n_ahead < state.n_rounds // 10


def test_a_draft_that_always_hits_is_used_and_one_that_never_hits_is_not() -> None:
    hits = Controller(15, start_plain=True)
    misses = Controller(15, start_plain=True)
    for controller, accepted in ((hits, True), (misses, False)):
        for _ in range(300):
            n = controller.choose()
            if n == 0:
                controller.saw_plain(1.0)
            else:
                controller.saw_round(n, n if accepted else 0, 1.1, 1.0 + 0.05 * n)
    assert hits.state.best == 15
    assert misses.state.best == 0
    assert hits.state.n_rounds > 10 * hits.state.n_plain
    assert misses.state.n_plain > 10 * misses.state.n_rounds
    assert hits.state.acceptance[0] > 0.9
    assert misses.state.acceptance[0] < 0.5


def test_no_more_is_drafted_than_is_left() -> None:
    controller = Controller(15, start_plain=False)
    assert controller.choose(1) == 0
    assert controller.choose(4) <= 3


def test_a_change_is_noticed() -> None:
    controller = Controller(7, start_plain=True)

    def run(accepts: bool, n_steps: int) -> int:
        drafted = 0
        for _ in range(n_steps):
            n = controller.choose()
            drafted += n > 0
            if n == 0:
                controller.saw_plain(1.0)
            else:
                controller.saw_round(n, n if accepts else 0, 1.1, 1.3)
        return drafted

    assert run(False, 300) < 30
    run(True, 400)
    assert run(True, 100) > 80
    run(False, 100)
    assert run(False, 100) < 20


@pytest.mark.parametrize("n_max", [0, 32])
def test_lengths_out_of_range_are_refused(n_max: int) -> None:
    with pytest.raises(UsageError, match="1 to 31"):
        Controller(n_max, start_plain=True)


@dataclass(frozen=True)
class Way:
    """Of making a draft: its preview's cost against the usual one, and how much of what is rejected it gets right."""

    cost: float
    gain: float

    def acceptance(self, usual: float) -> float:
        return min(max(usual + self.gain * (1 - usual if self.gain > 0 else usual), 0.0), 1.0)

    def time_per_token(self, world: World, n: int) -> float:
        acceptance = tuple(self.acceptance(a) for a in world.acceptance)
        return World(
            world.preview * self.cost, world.preview_row * self.cost, world.verify_row, world.verify_power,
            world.rollback, acceptance,
        ).time_per_token(n)  # fmt: skip


def time_in_ways(controller: Controller, world: World, ways: dict[str, Way], rng: random.Random) -> float:
    """Of N_TOKENS tokens, where drafts can be made in all these ways."""
    total, done, to_undo = 0.0, 0, False
    while done < N_TOKENS:
        n = controller.choose(N_TOKENS - done, full_rows=32, ways=[way for way in ways if way != "as asked"])
        if to_undo:
            total += (seconds := world.rollback * max(0.5, rng.gauss(1, NOISE)))
            controller.saw_rollback(seconds)
            to_undo = False
        if n == 0:
            total += (seconds := max(0.5, rng.gauss(1, NOISE)))
            controller.saw_plain(seconds)
            done += 1
            continue
        way = ways[controller.way]
        accepted = 0
        while accepted < n and rng.random() < way.acceptance(world.acceptance[accepted]):
            accepted += 1
        preview = way.cost * world.preview_s(n) * max(0.5, rng.gauss(1, NOISE))
        verify = world.verify_s(n) * max(0.5, rng.gauss(1, NOISE))
        controller.saw_round(n, accepted, preview, verify)
        total += preview + verify
        done += accepted + 1
        to_undo = accepted < n
    return total


def some_ways(rng: random.Random) -> dict[str, Way]:
    return {
        "as asked": Way(1.0, 0.0),
        "full block": Way(rng.uniform(1.0, 1.6), rng.uniform(-0.1, 0.4)),
        "two steps": Way(rng.uniform(1.7, 2.1), rng.uniform(0.0, 0.6)),
        "few experts": Way(rng.uniform(0.5, 1.1), rng.uniform(-0.4, 0.0)),
    }


def test_the_way_to_draft_is_chosen_and_never_much_below_plain() -> None:
    rng = random.Random(22)
    against_plain, against_best, gains = [], [], []
    n_worlds, tried = 200, dict.fromkeys(WAYS, 0)
    for i in range(n_worlds):
        world, ways = some_world(rng), some_ways(rng)
        n_max = (3, 7, 15, 31)[i % 4]
        seed = rng.random()
        controller = Controller(n_max, start_plain=bool(i & 4))
        seconds = time_in_ways(controller, world, ways, random.Random(seed))
        usual = min(1.0, *(world.time_per_token(n) for n in range(1, n_max + 1)))
        fixed = [way.time_per_token(world, n) for way in ways.values() for n in range(2, n_max + 1)]
        against_plain.append(N_TOKENS / seconds)
        against_best.append(N_TOKENS * min(usual, *fixed) / seconds)
        for way, n in controller.state.rounds_of_way.items():
            tried[way] += n > 3
        if usual < 1:
            without = Controller(n_max, start_plain=bool(i & 4))
            gains.append(time_in_ways(without, world, {"as asked": ways["as asked"]}, random.Random(seed)) / seconds)
    against_plain.sort()
    against_best.sort()
    assert against_plain[0] >= 0.97
    assert statistics.median(against_best) >= 0.95
    assert against_best[n_worlds // 10] >= 0.85
    assert statistics.mean(gains) > 1.0  # where drafting pays, the search does too
    assert min(tried.values()) >= 3, tried


def test_a_cheaper_draft_that_is_as_good_is_found_and_kept() -> None:
    ways = {name: Way(1.0, 0.0) for name in WAYS} | {"few experts": Way(0.5, 0.0), "two steps": Way(2.0, 0.0)}
    world = World(1.0, 0.0, 0.05, 1.0, 0.0, (0.9,) * 31)
    controller = Controller(7, start_plain=True)
    time_in_ways(controller, world, ways, random.Random(3))
    state = controller.state
    assert state.way == "few experts"
    assert state.rounds_of_way["few experts"] > 0.7 * state.n_rounds
    assert state.rounds_of_way["two steps"] < 0.1 * state.n_rounds
    assert sum(state.rounds_of_way.values()) == state.n_rounds


def test_ways_that_are_not_open_are_not_taken() -> None:
    controller = Controller(7, start_plain=False)
    for _ in range(200):
        n = controller.choose(ways=["full block"], full_rows=4)
        assert controller.way == "as asked" or n < 3
        if n == 0:
            controller.saw_plain(1.0)
        else:
            controller.saw_round(n, n if controller.way == "full block" else 0, 0.2, 1.0)
    assert {name for name, n in controller.state.rounds_of_way.items() if n} <= {"as asked", "full block"}
