"""The race, the table and the recommendation in made-up worlds whose truth is known."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from pyclover.errors import UsageError
from pyclover.tuning.candidate import Candidate
from pyclover.tuning.journal import Journal
from pyclover.tuning.measure import Run, changed_share
from pyclover.tuning.prompts import Prompt, built_in
from pyclover.tuning.race import Race
from pyclover.tuning.table import Turn, ratio_of, rows_of
from pyclover.tuning.tune import Tuning, run_race

PROMPTS = built_in()
PLAIN_S = 0.01


def draft(n: int) -> Candidate:
    return Candidate(mode="draft-self", n_max=n)


class World:
    """Candidates with a true speed each, prompts that suit some more than others, and the machine's noise."""

    def __init__(self, speeds: dict[Candidate, float], *, prompts: float = 0.1, noise: float = 0.1, seed: int = 0):
        self.speeds, self.noise, self.seed = speeds, noise, seed
        self.prompts = prompts
        self.n_runs = 0
        self.stop_at: int | None = None

    def __call__(self, candidate: Candidate, prompt: Prompt) -> Run:
        if self.n_runs == self.stop_at:
            self.stop_at = None
            raise KeyboardInterrupt
        self.n_runs += 1
        of_prompt = random.Random(f"{self.seed}:{candidate.label}:{prompt.text}").gauss(0, self.prompts)
        of_run = random.Random(f"{self.seed}:{candidate.label}:{prompt.text}:{self.now()}").gauss(0, self.noise)
        speed = self.speeds[candidate] * math.exp((of_prompt if candidate.mode != "plain" else 0.0) + of_run)
        n = candidate.n_max
        rounds = 60 // max(1, n)
        return Run(
            n_prompt=40, n_read=40, prompt_s=0.4, first_s=0.41, n_decoded=60, decode_s=60 * PLAIN_S / speed,
            passes_s=0.5,
            rounds=rounds if n else 0, drafted=rounds * n, accepted=60 - rounds if n else 0, emitted=60 if n else 0,
            n_plain=0 if n else 60, tokens=tuple(range(60)),
        )  # fmt: skip

    now: Callable[[], int] = staticmethod(lambda: 0)  # type: ignore[assignment]


class Counting:
    """A world whose noise depends on the turn, not on how often somebody asked: an interruption changes nothing."""

    def __init__(self, world: World, journal: Journal) -> None:
        world.now = lambda: len(journal.turns)  # type: ignore[method-assign]
        self.world = world

    def __call__(self, candidate: Candidate, prompt: Prompt) -> Run:
        return self.world(candidate, prompt)


def tuned(world: World, *, journal: Journal | None = None, **how: object) -> Tuning:
    book = journal or Journal(None, {})
    return run_race(list(world.speeds), PROMPTS, Counting(world, book), book, **how)  # type: ignore[arg-type]


PLAIN = Candidate()


def test_the_fastest_is_recommended_and_the_others_leave() -> None:
    speeds = {PLAIN: 1.0, draft(1): 0.8, draft(3): 1.1, draft(7): 1.6, draft(15): 0.7}
    found = tuned(World(speeds, prompts=0.05, noise=0.05))
    assert found.recommendation.candidate == draft(7)
    assert found.settled
    ratio = found.recommendation.ratio
    assert ratio is not None
    assert ratio.low is not None
    assert ratio.high is not None
    assert ratio.low <= 1.6 <= ratio.high
    assert (ratio.high - ratio.low) / 2 / ratio.median <= 0.05
    left = {row.label for row in found.rows if row.dropped_after is not None}
    assert {"draft-self n=15", "draft-self n=1"} <= left
    assert "plain" not in left


def test_plain_where_nothing_is_faster() -> None:
    found = tuned(World({PLAIN: 1.0, draft(1): 0.9, draft(3): 0.7, draft(7): 0.5}))
    assert found.recommendation.candidate == PLAIN
    assert found.recommendation.ratio is None
    assert "does not pay" in " ".join(found.recommendation.reasons)


def test_break_even_of_made_up_rounds() -> None:
    # 1.5 times as fast with 8 rounds of 7 drafted tokens for 60: a round gives 7.5 and has to give 5
    found = tuned(World({PLAIN: 1.0, draft(7): 1.5}, prompts=0, noise=0), repetitions=2)
    row = found.rows[1]
    assert row.tokens_per_round == pytest.approx(60 / 8)
    assert row.tokens_needed == pytest.approx(60 / 8 / 1.5)
    assert row.acceptance == pytest.approx(52 / 56)


def test_never_shown_faster_than_it_is() -> None:
    """Of worlds in which drafts are as fast as plain on average, few recommend one: that is what 95 % means."""
    wrong = 0
    for seed in range(60):
        world = World({PLAIN: 1.0, draft(3): 1.0, draft(7): 0.97}, prompts=0.15, noise=0.1, seed=seed)
        wrong += tuned(world, repetitions=2).recommendation.candidate != PLAIN
    assert wrong <= 6  # two candidates, 2.5 % each


def test_the_choice_is_near_the_best_in_random_worlds() -> None:
    losses = []
    for seed in range(40):
        draw = random.Random(seed)
        speeds = {PLAIN: 1.0} | {draft(n): math.exp(draw.gauss(0, 0.4)) for n in (1, 3, 7, 15)}
        world = World(speeds, prompts=0.15, noise=0.15, seed=seed)
        chosen = tuned(world, repetitions=3).recommendation.candidate
        losses.append(speeds[chosen] / max(speeds.values()))
    losses.sort()
    assert losses[len(losses) // 2] > 0.98
    assert losses[len(losses) // 10] > 0.9
    assert losses[0] > 0.8


def test_the_error_of_dropping_is_controlled() -> None:
    """All equal: whoever leaves leaves wrongly; in any race with a chance of alpha at most."""
    dropped = 0
    for seed in range(150):
        race, draw = Race(5, alpha=0.2), random.Random(seed)
        for _ in range(120):
            race.see({i: draw.expovariate(1.0) + 1 for i in race.alive})
        dropped += bool(race.left_at)
    assert dropped <= 0.2 * 150


def test_a_clear_loser_leaves_soon_and_plain_never() -> None:
    race = Race(4)
    draw = random.Random(1)
    for _ in range(40):
        times = {0: 2.0, 1: 1.0, 2: 1.01, 3: 3.0}
        race.see({i: times[i] * draw.uniform(0.98, 1.02) for i in race.alive})
    assert race.left_at[3] <= 16
    assert 0 in race.alive
    assert 1 in race.alive


def test_slower_on_most_prompts_but_faster_on_the_whole_stays() -> None:
    race = Race(2)
    for i in range(200):
        race.see({0: 1.0, 1: 0.2 if i % 4 == 0 else 1.05})
    assert race.alive == [0, 1]


def test_runs_without_a_token_are_not_compared() -> None:
    race = Race(2)
    for _ in range(50):
        race.see({0: 1.0, 1: 0.0})
    assert race.alive == [0, 1]
    turns = [Turn(0, 0, {0: Run(n_decoded=5, decode_s=1.0), 1: Run()})]
    assert ratio_of(turns, 1, 0) is None
    assert rows_of([PLAIN, draft(3)], PROMPTS, turns)[1].ratio is None


def test_interrupted_twice_and_resumed_it_is_the_same(tmp_path: Path) -> None:
    speeds = {PLAIN: 1.0, draft(1): 0.8, draft(3): 1.1, draft(7): 1.3}
    whole = tuned(World(speeds))
    header = {"what": "a test", "numbers": (1, 2)}
    path = tmp_path / "j" / "run.jsonl"
    n_kept = 0
    for stop_at in (17, 30, None):
        world = World(speeds)
        world.stop_at = stop_at
        with Journal(path, header, resume=n_kept > 0) as journal:
            assert len(journal.turns) == n_kept
            if stop_at is not None:
                with pytest.raises(KeyboardInterrupt):
                    tuned(world, journal=journal)
                n_kept = len(journal.turns)
            else:
                assert tuned(world, journal=journal) == whole
    with Journal(path, header, resume=True) as journal:  # nothing left to run
        world = World(speeds)
        assert tuned(world, journal=journal) == whole
        assert world.n_runs == 0


def test_a_torn_line_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with Journal(path, {"a": 1}) as journal:
        journal.append({"turn": 0})
        journal.append({"turn": 1})
    data = path.read_bytes()
    for cut in (1, 5, 9):
        path.write_bytes(data[:-cut])
        with Journal(path, {"a": 1}, resume=True) as journal:
            assert journal.turns == [{"turn": 0}]
            journal.append({"turn": 1})
        assert path.read_bytes() == data
    path.write_bytes(data + b"\x00\x00\xff{")
    with Journal(path, {"a": 1}, resume=True) as journal:
        assert journal.turns == [{"turn": 0}, {"turn": 1}]


def test_a_journal_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with pytest.raises(UsageError, match="nothing to resume"):
        Journal(path, {"a": 1}, resume=True)
    with Journal(path, {"a": 1, "b": 2}) as journal:
        journal.append({"turn": 0})
        with pytest.raises(UsageError, match="in use by another run"):
            Journal(path, {"a": 1, "b": 2}, resume=True)
    with pytest.raises(UsageError, match="with another b"):
        Journal(path, {"a": 1, "b": 3}, resume=True)
    path.write_bytes(b"not json\n")
    with pytest.raises(UsageError, match="no turn in it"):
        Journal(path, {"a": 1}, resume=True)
    with Journal(path, {"a": 1}) as journal:  # without resume it begins anew
        assert journal.turns == []


def test_fewer_than_six_prompts_give_an_interval_over_pairs() -> None:
    turns = [
        Turn(r, p, {0: Run(n_decoded=10, decode_s=1.0), 1: Run(n_decoded=10, decode_s=0.5 + r / 100)})
        for r in range(4) for p in range(2)
    ]  # fmt: skip
    ratio = ratio_of(turns, 1, 0)
    assert ratio is not None
    assert (ratio.over, ratio.n) == ("pairs", 8)
    assert ratio.low == pytest.approx(1 / 0.53)
    assert ratio.high == pytest.approx(1 / 0.5)


def test_the_total_weighs_prompts_by_their_tokens() -> None:
    turns = [
        Turn(0, 0, {0: Run(n_decoded=100, decode_s=10.0), 1: Run(n_decoded=100, decode_s=5.0)}),
        Turn(0, 1, {0: Run(n_decoded=10, decode_s=1.0), 1: Run(n_decoded=10, decode_s=4.0)}),
    ]
    ratio = ratio_of(turns, 1, 0)
    assert ratio is not None
    assert ratio.total == pytest.approx(11 / 9)


def test_share_of_changed_tokens() -> None:
    assert changed_share([1, 2, 3, 4], [1, 2, 3, 4]) == 0
    assert changed_share([1, 9, 3, 4], [1, 2, 3, 4]) == 0.25
    assert changed_share([1, 2, 3], [1, 2, 3, 4]) == 0.25
    assert changed_share([5, 6], [1, 2]) == 1
    assert changed_share([], []) == 0


def test_what_changes_the_text_is_never_recommended() -> None:
    relaxed = Candidate(mode="draft-self", n_max=7, accept_ratio=0.5)
    found = tuned(World({PLAIN: 1.0, relaxed: 3.0, Candidate(mode="diffusion", threshold=0.9): 4.0}), repetitions=2)
    assert found.recommendation.candidate == PLAIN
