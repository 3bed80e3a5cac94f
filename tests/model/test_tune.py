"""`pyclover.tune` and `pyclover.bench` on the model in the package, shortly."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import ORACLE

import pyclover
from pyclover.errors import SpeculationUnavailableError, UsageError
from pyclover.tuning import loading, profiles
from pyclover.tuning.candidate import Candidate
from pyclover.tuning.measure import Stand
from pyclover.tuning.prompts import own

PROMPTS = own(["What is 12 + 7?", "Count from 3 to 9."], chat=True)
SHORT: dict[str, Any] = {"prompts": PROMPTS, "max_tokens": 16, "repetitions": 1, "options": {"n_threads": 1}}


@pytest.fixture(autouse=True)
def folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(profiles, "folder", lambda: tmp_path / "profiles")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def stand() -> Iterator[Stand]:
    found = loading.load("tiny", [Candidate(mode="draft-self", n_max=7)], PROMPTS, max_tokens=16,
                         options={"n_threads": 1})  # fmt: skip
    with found.clover:
        yield found


def test_tune_keeps_what_it_recommends() -> None:
    found = pyclover.tune("tiny", n_max=(3,), **SHORT)
    assert [row.label for row in found.rows] == ["plain", "auto", "draft-self n=3"]
    assert all(row.tok_per_s > 0 and row.n_runs == 2 and row.n_changed == 0 for row in found.rows)
    drafts = found.rows[2]
    assert drafts.tokens_per_round is not None
    assert drafts.tokens_needed is not None
    assert 1 <= drafts.tokens_per_round <= 4
    assert found.recommendation.reasons
    assert profiles.named(found.profile).candidate == found.recommendation.candidate


def test_every_way_runs_and_counts_as_generate_does(stand: Stand) -> None:
    for candidate in (
        Candidate(), Candidate(mode="auto"), Candidate(mode="draft-self", n_max=7, block=16, steps=2, p_min=0.1),
        Candidate(mode="draft-self", n_max=7, accept_ratio=0.5), Candidate(mode="diffusion", threshold=0.9),
        Candidate(mode="draft-self", n_max=3, expert_coreset=4), Candidate(mode="draft-self", n_max=3, ahead=True),
        Candidate(n_threads=2, n_batch=64, n_ubatch=32),
    ):  # fmt: skip
        run = stand(candidate, PROMPTS[0])
        tokens = PROMPTS[0].tokens(stand.clover)
        assert run.n_prompt == len(tokens)
        assert run.first_s > 0
        assert run.decode_s > 0
        if candidate.lossless:
            plain = stand.clover.generate(tokens, max_tokens=16, temperature=0)
            assert run.tokens == plain.tokens
            assert run.n_decoded == plain.stats.n_decoded
    # contexts are made once each, on one model
    assert len(stand._contexts) == 2


def test_a_coreset_is_of_its_candidate_alone(stand: Stand) -> None:
    stand(Candidate(mode="draft-self", n_max=3, expert_coreset=4), PROMPTS[0])
    assert stand.clover.block_params.expert_coreset == 4
    stand(Candidate(mode="draft-self", n_max=3), PROMPTS[0])
    assert stand.clover.block_params == stand.base


def test_relaxed_settings_tell_what_they_change() -> None:
    prompts = own(["Tell me a story.", "What is a model?", "Spell the word planet backwards."], chat=True)
    short = {**SHORT, "prompts": prompts, "max_tokens": 48}
    found = pyclover.tune("tiny", n_max=(7,), accept_ratio=0.0, auto=False, save=False, **short)
    relaxed = found.rows[2]
    assert relaxed.label == "draft-self n=7 ratio=0"
    assert relaxed.changed is not None
    assert 0 < relaxed.changed <= 1
    assert found.rows[1].changed == 0
    assert found.recommendation.candidate.lossless


def test_a_model_that_cannot_draft() -> None:
    file = ORACLE / "expected" / "tiny_a.gguf"
    found = pyclover.tune(file, **{**SHORT, "prompts": own(["Hello there"])}, save=False)
    assert [row.label for row in found.rows] == ["plain"]
    assert "only plain decoding is possible" in found.warnings[0]
    with pytest.raises(SpeculationUnavailableError):
        pyclover.tune(file, n_max=3, **{**SHORT, "prompts": own(["Hello there"])}, save=False)


def test_bench_has_the_figures_of_llama_bench() -> None:
    found = pyclover.bench("tiny", n_max=(3,), n_prompt=32, n_gen=8, **SHORT)
    assert [row.label for row in found.rows] == ["plain", "auto", "draft-self n=3", "diffusion threshold=0.95"]
    assert [f.test for f in found.figures] == ["pp32", "tg8"]
    assert all(f.tok_per_s > 0 and f.mean > 0 for f in found.figures)
    diffusion = found.rows[3]
    assert diffusion.tokens_per_pass is not None


def test_wrong_arguments() -> None:
    with pytest.raises(UsageError, match="no argument n_tokens"):
        pyclover.tune("tiny", n_tokens=3)
    with pytest.raises(UsageError, match="must be a list of texts"):
        pyclover.tune("tiny", prompts=3)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="leave prompts or kinds out"):
        pyclover.tune("tiny", prompts=["a"], kinds=["code"])
