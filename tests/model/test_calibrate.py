"""Calibration finds the parameters that models were made with, starting from wrong ones."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
from calibration_models import random_model, rewritten
from support import ORACLE

import pyclover
from pyclover.errors import SpeculationUnavailableError
from pyclover.tuning.calibrate import Setting
from pyclover.tuning.calibration import calibrate, kept
from pyclover.tuning.prompts import own

WORDS = (
    "planet", "garden", "window", "silver", "bridge", "orange", "market", "summer", "castle", "winter", "purple",
    "river", "music", "paper", "forest", "yellow", "island", "rocket",
)  # fmt: skip
QUESTIONS = own(
    [f"Spell the word {word} backwards." for word in WORDS]
    + [f"Repeat the words {a}, {b}." for a, b in zip(WORDS[:9], WORDS[9:], strict=True)]
    + ["Tell me a story.", "Count from 5 to 14.", "What is 7 times 8?", "What is a model?", "What is 31 + 44?"],
    chat=True,
)
PANGRAMS = own([
    f"The quick brown {word} jumps over the lazy dog while the other animals watch from the river bank {i}"
    for i, word in enumerate(WORDS[:12])
])  # fmt: skip


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_tiny_clover", ORACLE / "make_tiny_clover.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.timeout(1800)
def test_ten_models_from_wrong_parameters(tmp_path: Path, generator: ModuleType) -> None:
    """What can be told of them: of the trained one alignment, state and scale, of random ones the alignment."""
    right = []
    for activation in ("none", "exp"):
        for query in ("scaled", "unit"):
            path = rewritten(tmp_path / f"{activation}-{query}.gguf", scale_activation=activation, history_query=query)
            start = Setting(
                shift_logits=True, history_query="unit" if query == "scaled" else "scaled",
                scale_activation="exp" if activation == "none" else "none",
            )  # fmt: skip
            chosen = calibrate(path, prompts=QUESTIONS, start=start, max_tokens=32, save=False,
                               options={"n_threads": 1}, journal=tmp_path / "j").chosen  # fmt: skip
            # of large scales softplus is no other function than none
            activations = ("none", "softplus") if activation == "none" else ("exp",)
            right.append(
                (chosen.shift_logits, chosen.history_query, chosen.scale_activation in activations)
                == (False, query, True)
            )
    for seed in range(4, 10):
        path = random_model(tmp_path / f"{seed}.gguf", generator, seed)
        found = calibrate(path, prompts=PANGRAMS, n_max=1, start=Setting(rows=2), max_tokens=10, save=False,
                          options={"n_threads": 1}, journal=tmp_path / "j")  # fmt: skip
        right.append(found.chosen.shift_logits)
    assert sum(right) >= 9, right


def test_a_right_file_is_left_alone_and_the_journal_is_enough(tmp_path: Path) -> None:
    how = {"prompts": QUESTIONS[18:30], "max_tokens": 8, "n_max": 3, "save": False, "options": {"n_threads": 1},
           "journal": tmp_path / "j"}  # fmt: skip
    found = calibrate("tiny", **how)  # type: ignore[arg-type]
    assert "shift_logits" not in found.changes
    assert "scale_activation" not in found.changes
    lines = (tmp_path / "j").read_bytes()
    again = calibrate("tiny", **how, resume=True)  # type: ignore[arg-type]
    assert again == found
    assert (tmp_path / "j").read_bytes() == lines


def test_what_a_profile_keeps_is_the_difference_to_the_file() -> None:
    found = pyclover.Calibration(
        start=Setting(shift_logits=True), chosen=Setting(history_query="unit", rows=16), accepted_before=1, accepted=2,
        p=0.001, gain=1, low=None, high=None, trials=(), verdicts={}, n_prompts=20,
    )  # fmt: skip
    assert kept(found, Setting())["block_params"] == {"history_query": "unit"}


def test_a_model_without_block_pass(tmp_path: Path) -> None:
    with pytest.raises(SpeculationUnavailableError, match="calibration is not possible"):
        calibrate(ORACLE / "expected" / "tiny_a.gguf", prompts=QUESTIONS, save=False, journal=tmp_path / "j")
