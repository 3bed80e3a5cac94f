"""The search for block parameters in made-up files whose truth is known."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pyclover.engine.blocks import BlockParams
from pyclover.tuning.calibrate import NAMES, Calibration, Setting, search, setting_of
from pyclover.tuning.places import alternatives

N_PROMPTS = 20
VALUES = alternatives(Setting(), n_expert=64, n_expert_used=4, n_max=7, n_rows=512)


class File:
    """Accepts most with the parameters it was made with; with the wrong alignment next to nothing, whatever the rest.

    Args:
        blind: parameters that change nothing here.
    """

    def __init__(self, truth: Setting, seed: int, *, blind: Sequence[str] = (), spread: float = 0.15) -> None:
        self.truth, self.seed, self.blind, self.spread = truth, seed, blind, spread
        self.n_scored = 0

    def __call__(self, settings: Sequence[Setting]) -> list[tuple[float, ...]]:
        self.n_scored += len(settings)
        return [tuple(self._one(s, prompt) for prompt in range(N_PROMPTS)) for s in settings]

    def _one(self, setting: Setting, prompt: int) -> float:
        level = random.Random(f"{self.seed}:{prompt}").uniform(2, 5)
        wrong = [n for n in NAMES if getattr(setting, n) != getattr(self.truth, n) and n not in self.blind]
        noise = random.Random(
            f"{self.seed}:{prompt}:{[(n, getattr(setting, n)) for n in NAMES if n not in self.blind]}"
        )
        if "shift_logits" in wrong:
            return max(0.0, 0.1 + noise.gauss(0, 0.05))
        return max(0.0, level * 0.85 ** len(wrong) + noise.gauss(0, self.spread))


def drawn(draw: random.Random) -> Setting:
    chosen: dict[str, Any] = {name: draw.choice(VALUES[name]) for name in NAMES}
    return Setting(**chosen)


def test_ten_files_from_wrong_parameters() -> None:
    right = 0
    for seed in range(10):
        draw = random.Random(seed)
        truth, start = drawn(draw), drawn(draw)
        found = search(start, VALUES, File(truth, seed))
        right += found.chosen == truth
        assert found.accepted >= found.accepted_before
        assert found.chosen == start or found.p < 0.01
    assert right >= 9


def test_inside_the_noise_nothing_is_chosen() -> None:
    changed = 0
    for seed in range(40):
        changed += bool(search(drawn(random.Random(seed)), VALUES, _Noise(seed)).changes)
    assert changed <= 0.05 * 40 + 3 * (40 * 0.05 * 0.95) ** 0.5


class _Noise:
    """Every setting accepts as much as every other, but for chance."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def __call__(self, settings: Sequence[Setting]) -> list[tuple[float, ...]]:
        return [
            tuple(random.Random(f"{self.seed}:{s}:{prompt}").gauss(3, 0.5) for prompt in range(N_PROMPTS))
            for s in settings
        ]


def test_what_a_file_cannot_tell_is_said() -> None:
    truth = Setting(history_query="unit", rows=16)
    start = replace(truth, shift_logits=True)
    found = search(start, VALUES, File(truth, 3, blind=("scale_activation", "expert_coreset")))
    assert found.changes == {"shift_logits": False}
    assert "False in place of True" in found.verdicts["shift_logits"]
    assert "no difference at all to exp, softplus" in found.verdicts["scale_activation"]
    assert "none stays" in found.verdicts["scale_activation"]
    assert found.verdicts["history_query"] == "unit stays: everything else accepts less"


def test_two_wrong_parameters_that_make_up_for_each_other() -> None:
    """Neither alone is of use: only both at once lead out."""
    start = Setting(history_query="unit", scale_activation="exp")

    def score(settings: Sequence[Setting]) -> list[tuple[float, ...]]:
        def level(s: Setting) -> float:
            wrong = (s.history_query != "scaled") + (s.scale_activation != "none")
            return {0: 4.0, 1: 2.0, 2: 3.0}[wrong]

        return [tuple(level(s) + random.Random(f"{s}{i}").gauss(0, 0.2) for i in range(N_PROMPTS)) for s in settings]

    found = search(start, VALUES, score)
    assert found.changes == {"history_query": "scaled", "scale_activation": "none"}
    for name, words in (("history_query", "scaled in place of unit"), ("scale_activation", "none in place of exp")):
        assert found.verdicts[name].startswith(f"{words} (with history_query and scale_activation): +1.")


def test_few_prompts_choose_nothing() -> None:
    file = File(Setting(), 1)

    def few(settings: Sequence[Setting]) -> list[tuple[float, ...]]:
        return [scores[:5] for scores in file(settings)]

    found = search(Setting(history_query="unit"), VALUES, few)
    assert found.changes == {}
    assert "at least 10 prompts are needed" in found.verdicts["history_query"]


def test_nothing_is_scored_twice() -> None:
    seen: list[Setting] = []
    file = File(Setting(), 4)

    def counted(settings: Sequence[Setting]) -> list[tuple[float, ...]]:
        seen.extend(settings)
        return file(settings)

    found: Calibration = search(Setting(shift_logits=True, scale_activation="exp"), VALUES, counted)
    assert len(seen) == len(set(seen))
    assert found.chosen == Setting()


def test_settings_and_block_parameters() -> None:
    of_file = BlockParams(block_length=16, expert_coreset_share=0.6, history_query="unit")
    setting = setting_of(of_file, 8)
    assert setting == Setting(history_query="unit", rows=8)
    assert setting.params(of_file) == of_file
    # a count of experts takes the place of the other rule
    assert replace(setting, expert_coreset=4).params(of_file).expert_coreset_share == 0
    assert VALUES["expert_coreset"] == [0, 8, 16, 32]
    assert VALUES["rows"] == [8, 16, 32]
    narrow = alternatives(Setting(), n_expert=8, n_expert_used=2, n_max=7, n_rows=16)
    assert narrow["rows"] == [8, 16]
    assert narrow["expert_coreset"] == [0, 4]
