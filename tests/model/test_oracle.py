"""Plain decoding equals what upstream's own build computed (tests/oracle/expected)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from support import EXACT

import pyclover

UPSTREAM = ["tiny_a", "tiny_b"]
PREVIEW = ["tiny_a_preview", "tiny_b_preview"]


@pytest.fixture(scope="module", params=UPSTREAM)
def case(request: pytest.FixtureRequest, oracle: Path, expected: Callable[[str], dict[str, Any]]) -> Any:
    with pyclover.Clover(oracle / "expected" / f"{request.param}.gguf", n_ctx=1024, **EXACT) as m:
        yield m, expected(request.param)


def test_tokenizations(case: Any) -> None:
    m, want = case
    assert len(want["tokenize"]) == 20
    for entry in want["tokenize"]:
        assert m.tokenize(entry["text"]) == entry["ids"], entry["text"]
        assert m.tokenize(entry["text"], parse_special=False) == entry["ids_special_off"], entry["text"]


def test_facts(case: Any) -> None:
    m, want = case
    load = want["load"]
    assert m.info.n_vocab == load["n_vocab"]
    assert (m.info.n_ctx_train, m.info.n_embd, m.info.n_layer) == (load["n_ctx_train"], load["n_embd"], load["n_layer"])
    assert (m.info.eos, m.info.add_bos) == (load["token_eos"], load["add_bos_token"])
    assert m.warnings == ()


def test_greedy_tokens(case: Any) -> None:
    m, want = case
    assert len(want["runs"]) == 5
    for run in want["runs"]:
        assert m.tokenize(run["prompt"]) == run["prompt_ids"]
        got = m.generate(run["prompt"], max_tokens=64, temperature=0)
        assert list(got.tokens) == run["greedy"], run["prompt"]
        assert got.finish_reason == "length"


def test_logits(case: Any) -> None:
    m, want = case
    for run in want["runs"]:
        ids = run["prompt_ids"] + run["greedy"]
        logits = m.logits(ids)
        n = len(run["prompt_ids"])
        np.testing.assert_allclose(logits[n - 1], run["prompt_last_logits"], rtol=0, atol=1e-3)
        np.testing.assert_allclose(logits[-1], run["final_logits"], rtol=0, atol=1e-3)
        top = n - len(run["prompt_top5"])
        for i, row in enumerate(run["prompt_top5"]):
            for token, value in row:
                assert abs(logits[top + i, token] - value) < 1e-3


def test_logits_after_single_steps(case: Any) -> None:
    """The generation loop leaves the same logits as one batch."""
    m, want = case
    for run in want["runs"]:
        m.generate(run["prompt"], max_tokens=65, temperature=0)
        np.testing.assert_allclose(m._context.last_logits(), run["final_logits"], rtol=0, atol=1e-3)


@pytest.mark.parametrize("name", PREVIEW)
def test_files_with_preview_tensors_decode_plainly(
    name: str, oracle: Path, expected: Callable[[str], dict[str, Any]], reference: ModuleType
) -> None:
    path = oracle / "expected_preview" / f"{name}.gguf"
    kv, tensors = reference.load(str(path))
    prompts = [run["prompt_ids"] for run in expected(name)["draft_self"]][:3]
    with pyclover.Clover(path, n_ctx=1024, **EXACT) as m:
        # the first of the two lacks the count, as official files do
        assert [("expert_shared_count" in w) for w in m.warnings] == [True] * (name == "tiny_a_preview")
        for ids in prompts:
            got = list(m.generate(ids, max_tokens=48, temperature=0).tokens)
            want = reference.forward(kv, tensors, ids + got)
            # an end token would stop us earlier; up to there every choice must be the reference's
            assert want[len(ids) - 1 : -1].argmax(-1).tolist() == got
            np.testing.assert_allclose(m.logits(ids + got), want, rtol=0, atol=1e-3)


@pytest.mark.parametrize("n_ubatch", [1, 3, 512])
def test_batches_of_any_size_agree(n_ubatch: int, oracle: Path, expected: Callable[[str], dict[str, Any]]) -> None:
    run = expected("tiny_a")["runs"][2]
    options = {**EXACT, "n_ubatch": n_ubatch, "n_batch": max(n_ubatch, 5)}
    with pyclover.Clover(oracle / "expected" / "tiny_a.gguf", n_ctx=256, **options) as m:
        logits = m.logits(run["prompt_ids"] + run["greedy"])
        np.testing.assert_allclose(logits[-1], run["final_logits"], rtol=0, atol=1e-3)
        assert list(m.generate(run["prompt_ids"], max_tokens=64, temperature=0).tokens) == run["greedy"]


def test_other_cache_settings_stay_close(oracle: Path, expected: Callable[[str], dict[str, Any]]) -> None:
    """FACTS: an f16 cache moves logits by up to 7.8e-4, flash attention by 1.8e-3; tokens stay the same."""
    for run in expected("tiny_a")["runs"]:
        for options in ({"cache_type_k": "f16", "cache_type_v": "f16"}, {"flash_attn": True}):
            with pyclover.Clover(oracle / "expected" / "tiny_a.gguf", n_ctx=256, **{**EXACT, **options}) as m:
                logits = m.logits(run["prompt_ids"])
                np.testing.assert_allclose(logits[-1], run["prompt_last_logits"], rtol=0, atol=5e-3)
                assert list(m.generate(run["prompt_ids"], max_tokens=24, temperature=0).tokens) == run["greedy"][:24]
