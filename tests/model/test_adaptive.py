"""Drafting that decides by itself: the text stays, and a model that drafts badly is left to plain steps."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support import ORACLE

import pyclover
from pyclover import Clover, DraftSelf, UsageError
from pyclover.engine.speculation import AutoDraft, resolved

PROMPTS = ("What is 12 + 7?", "Spell the word planet backwards.", "Tell me a story.", "Count from 5 to 14.")


@pytest.fixture(scope="module")
def tiny() -> Iterator[Clover]:
    with Clover("tiny", n_threads=1) as clover:
        yield clover


@pytest.mark.parametrize("speculation", ["auto", DraftSelf(n_max=7), DraftSelf(n_max=15, adaptive=True)])
def test_the_text_is_that_of_plain_decoding(tiny: Clover, speculation: object) -> None:
    for prompt in PROMPTS:
        text = tiny.apply_chat_template([{"role": "user", "content": prompt}])
        plain = tiny.generate(text, max_tokens=80, temperature=0)
        got = tiny.generate(text, max_tokens=80, temperature=0, speculation=speculation)  # type: ignore[arg-type]
        assert got.tokens == plain.tokens
        stats = got.stats
        assert stats.emitted + stats.n_plain == stats.n_decoded or stats.rounds == 0
        assert stats.mode in ("plain", "draft-self (lossless)")
        assert (stats.mode == "plain") <= (stats.rounds == 0)


def test_sampled_text_is_that_of_plain_sampling(tiny: Clover) -> None:
    for seed in range(5):
        plain = tiny.generate("Tell me", max_tokens=60, temperature=0.8, seed=seed)
        assert (
            tiny.generate("Tell me", max_tokens=60, temperature=0.8, seed=seed, speculation="auto").tokens
            == plain.tokens
        )


def test_a_draft_that_is_never_right_ends_in_plain_steps() -> None:
    # random weights: a block pass says something else than the causal pass
    with Clover(ORACLE / "expected_preview" / "tiny_a_preview.gguf", n_threads=1, n_ctx=1024) as clover:
        stats = clover.generate([5, 6, 7], max_tokens=400, temperature=0, ignore_eos=True, speculation="auto").stats
        assert stats.acceptance < 0.3
        assert stats.n_plain > 0.8 * stats.n_decoded


def test_what_was_learned_stays(tiny: Clover) -> None:
    settings = DraftSelf(n_max=7)
    first = tiny._context.controller(settings)
    assert tiny._context.controller(DraftSelf(n_max=7)) is first
    assert tiny._context.controller(DraftSelf(n_max=15)) is not first
    before = first.state.n_plain + first.state.n_rounds
    tiny.generate("Tell me", max_tokens=20, temperature=0, speculation=settings)
    assert first.state.n_plain + first.state.n_rounds > before


def test_auto_is_plain_where_nothing_can_draft() -> None:
    assert resolved("auto", can_draft=False, n_rows=512) is None
    assert resolved("auto", can_draft=True, n_rows=1) is None
    assert resolved("auto", can_draft=True, n_rows=512) == AutoDraft()
    assert resolved("auto", can_draft=True, n_rows=8) == AutoDraft(n_max=7)
    with Clover(ORACLE / "expected" / "tiny_a.gguf", n_threads=1, n_ctx=256) as clover:
        done = clover.generate([5, 6, 7], max_tokens=8, temperature=0, speculation="auto")
        assert done.stats.mode == "plain"
        with pytest.raises(UsageError, match="auto"):
            clover.generate([5], speculation="always")  # type: ignore[arg-type]


def test_relaxed_acceptance_does_not_adapt_unless_asked() -> None:
    assert DraftSelf().adapts
    assert not DraftSelf(accept_ratio=0.9).adapts
    assert DraftSelf(accept_ratio=0.9, adaptive=True).adapts
    assert not DraftSelf(adaptive=False).adapts
    with pytest.raises(UsageError) as caught:
        DraftSelf(adaptive="often")  # type: ignore[arg-type]
    assert caught.value.option == "adaptive"
    assert pyclover.DraftSelf is DraftSelf
