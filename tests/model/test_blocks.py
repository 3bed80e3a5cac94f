"""Previews, draft-self and block diffusion equal the reference (tests/oracle/expected_preview)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import EXACT, fixed_draft

import pyclover

NAMES = ["tiny_a_preview", "tiny_b_preview"]
N_RS_SEQ = [0, 15]  # rejected tokens taken back by another pass, by snapshots


@pytest.fixture(scope="module", params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def want(name: str, expected: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    return expected(name)


@pytest.fixture(scope="module", params=N_RS_SEQ)
def model(request: pytest.FixtureRequest, name: str, oracle: Path) -> Iterator[pyclover.Clover]:
    path = oracle / "expected_preview" / f"{name}.gguf"
    with pyclover.Clover(path, n_ctx=256, n_rs_seq=request.param, **EXACT) as m:
        yield m


def until_end(m: pyclover.Clover, tokens: list[int]) -> list[int]:
    """The reference's tokens as we give them: without the end token."""
    return tokens[: tokens.index(m.info.eos)] if m.info.eos in tokens else tokens


def test_previews(model: pyclover.Clover, want: dict[str, Any]) -> None:
    assert len(want["previews"]) == 12
    for case in want["previews"]:
        got = model.preview(case["prefix_ids"], case["rows"])
        np.testing.assert_allclose(got, case["logits"], rtol=0, atol=1e-3)
        assert model._context.tokens() == case["prefix_ids"]


def test_draft_self(model: pyclover.Clover, want: dict[str, Any]) -> None:
    assert len(want["draft_self"]) == 15
    for case in want["draft_self"]:
        settings = fixed_draft(
            n_max=case["n_max"], accept_ratio=case["ratio"], accept_delta=case["delta"], block=case["block"]
        )
        got = model.generate(case["prompt_ids"], max_tokens=case["n_predict"], temperature=0, speculation=settings)
        assert list(got.tokens) == until_end(model, case["tokens"])
        s = got.stats
        assert (s.rounds, s.drafted, s.accepted) == (len(case["rounds"]), case["drafted"], case["accepted"])
        n = len(s.drafted_by_position)
        assert list(s.drafted_by_position) == case["drafted_at"][:n]
        assert list(s.accepted_by_position) == case["accepted_at"][:n]
        assert not any(case["drafted_at"][n:])
        assert s.mode == ("draft-self (lossless)" if case["ratio"] == 1 else "draft-self (relaxed: changes the text)")


def test_block_diffusion(model: pyclover.Clover, want: dict[str, Any]) -> None:
    assert len(want["block_diffusion"]) == 6
    for case in want["block_diffusion"]:
        settings = pyclover.BlockDiffusion(threshold=case["threshold"])
        got = model.generate(case["prompt_ids"], max_tokens=case["n_predict"], speculation=settings)
        assert list(got.tokens) == until_end(model, case["tokens"])
        s = got.stats
        assert (s.previews, s.commits, s.fixed) == (case["previews"], case["commits"], sum(case["fixed"]))
        assert round(s.tokens_per_pass, 4) == case["tokens_per_pass"]
        assert s.mode == "block diffusion"
