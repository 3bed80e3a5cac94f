"""Drafting is lossless, leaves the memory where the text ends, and refuses what it cannot do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model.gguf_parts import build, parse
from support import EXACT, ORACLE, fixed_draft

import pyclover
from pyclover import BlockDiffusion, DraftSelf
from pyclover.engine.blocks import graphs_built

TINY = ORACLE / "expected_preview" / "tiny_a_preview.gguf"
TINIES = ["tiny_a_preview", "tiny_b_preview"]
NO_PREVIEW = ORACLE / "expected" / "tiny_a.gguf"
# fmt: off
WORDS = [
    "the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "and", "then", "some", "numbers", "12", "7",
    "+", "=", "(", ")", "blocks", "of", "text",
]
# fmt: on


def prompts(n: int, seed: int = 7) -> list[str]:
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, size=rng.integers(1, 12))) for _ in range(n)]


@pytest.fixture(scope="module")
def tiny() -> Iterator[pyclover.Clover]:
    with pyclover.Clover(TINY, n_ctx=512, n_rs_seq=0, **EXACT) as m:
        yield m


@pytest.fixture(scope="module")
def rows() -> Iterator[pyclover.Clover]:
    with pyclover.Clover(TINY, n_ctx=512, n_rs_seq=15, **EXACT) as m:
        yield m


@pytest.fixture(scope="module")
def snapshots() -> Iterator[pyclover.Clover]:
    with pyclover.Clover(TINY, n_ctx=512, n_rs_seq=15, rs_snapshots=True, **EXACT) as m:
        yield m


@pytest.fixture(params=["tiny", "rows", "snapshots"])
def either(request: pytest.FixtureRequest) -> pyclover.Clover:
    """The model with each way of taking tokens back: a copy of the state, rows, snapshots."""
    return request.getfixturevalue(str(request.param))


@pytest.mark.parametrize("name", TINIES)
@pytest.mark.parametrize("n_ubatch", [33, 64, 512])
def test_rows_leave_the_state_that_snapshots_leave(name: str, n_ubatch: int) -> None:
    """To the bit, whatever of a check is taken back, and however the prompt is cut into passes."""
    options: dict[str, Any] = {"n_ctx": 256, "n_rs_seq": 31, "n_ubatch": n_ubatch, **EXACT}
    path = ORACLE / "expected_preview" / f"{name}.gguf"
    with pyclover.Clover(path, **options) as one, pyclover.Clover(path, rs_snapshots=True, **options) as other:
        ids = one.tokenize(" ".join(prompts(12)))
        assert len(ids) > 70
        for n_prompt in (1, 2, 31, 32, 33, 34, 70):
            for n_max in (1, 2, 7, 30):
                states = []
                for m in (one, other):
                    m._context.clear()
                    asked = {"max_tokens": 20, "temperature": 0, "speculation": fixed_draft(n_max=n_max)}
                    m.generate(ids[:n_prompt], **asked)
                    states.append(m._context.get_state())
                assert states[0] == states[1], (n_prompt, n_max)
        assert sum(u.bytes for u in one.memory()) < sum(u.bytes for u in other.memory())


def test_tokens_of_a_pass_can_be_taken_back_step_by_step(rows: pyclover.Clover, tiny: pyclover.Clover) -> None:
    """A prompt that shares its beginning with the last one is cut back by rows; nothing is read anew."""
    ids = tiny.tokenize(" ".join(prompts(6)))[:40]
    rows._context.clear()
    rows.logits(ids)
    for n_kept in (39, 36, 30, 26):
        cut = [*ids[:n_kept], 5]
        stats = rows.generate(cut, max_tokens=1, temperature=0).stats
        assert stats.n_prompt_reused == n_kept
        tiny._context.clear()
        expected = tiny.logits(cut)[-1]
        np.testing.assert_allclose(rows._context.last_logits(), expected, atol=1e-4)
        rows._context.clear()
        rows.logits(ids)


def gap(m: pyclover.Clover, ids: list[int], one: int, other: int) -> float:
    """How much likelier one token is than another after `ids`."""
    logits = m.logits(ids)[-1].astype(np.float64)
    p = np.exp(logits - logits.max())
    p /= p.sum()
    return float(abs(p[one] - p[other]))


@pytest.mark.parametrize("name", TINIES)
@pytest.mark.parametrize("n_max", [1, 2, 3, 7, 15, 31])
def test_greedy_text_is_that_of_plain_decoding(name: str, n_max: int) -> None:
    """A pass over several tokens rounds otherwise than one over one: only near-ties may fall the other way."""
    path = ORACLE / "expected_preview" / f"{name}.gguf"
    with pyclover.Clover(path, n_ctx=256, n_rs_seq=n_max if n_max < 16 else 0, **EXACT) as m:
        for prompt in prompts(25):
            ids = m.tokenize(prompt)
            plain = m.generate(ids, max_tokens=32, temperature=0)
            drafted = m.generate(ids, max_tokens=32, temperature=0, speculation=fixed_draft(n_max=n_max))
            if drafted.tokens == plain.tokens:
                assert (drafted.text, drafted.finish_reason) == (plain.text, plain.finish_reason)
                continue
            at = next(i for i, (a, b) in enumerate(zip(plain.tokens, drafted.tokens, strict=False)) if a != b)
            held = ids + list(plain.tokens[:at])
            assert gap(m, held, plain.tokens[at], drafted.tokens[at]) < 1e-4, (prompt, at)


def test_a_seed_gives_the_text_of_plain_sampling(either: pyclover.Clover) -> None:
    for seed in range(20):
        options: dict[str, Any] = {"max_tokens": 24, "temperature": 0.8, "seed": seed}
        plain = either.generate("The quick brown fox", **options)
        first = either.generate("The quick brown fox", **options, speculation=fixed_draft(n_max=5))
        again = either.generate("The quick brown fox", **options, speculation=fixed_draft(n_max=5))
        assert first.tokens == again.tokens == plain.tokens


def test_the_distribution_is_that_of_plain_sampling(snapshots: pyclover.Clover) -> None:
    """Chi-square over the first three tokens of 2 x 2,500 samples; seeds of the two halves do not meet."""
    counts: list[Counter[tuple[int, ...]]] = []
    for half, speculation in enumerate((None, fixed_draft(n_max=2))):
        seen: Counter[tuple[int, ...]] = Counter()
        for seed in range(2500):
            got = snapshots.generate(
                "The quick",
                max_tokens=3,
                temperature=0.8,
                top_k=0,
                top_p=1.0,
                min_p=0.0,
                seed=half * 10_000 + seed,
                speculation=speculation,
            )
            seen[got.tokens] += 1
        counts.append(seen)
    kinds = [key for key in counts[0] | counts[1] if counts[0][key] + counts[1][key] >= 10]
    rest = [sum(count for key, count in seen.items() if key not in kinds) for seen in counts]
    table = [[seen[key] for key in kinds] + [other] for seen, other in zip(counts, rest, strict=True)]
    pairs = [(a, b) for a, b in zip(*table, strict=True) if a + b > 0]
    assert len(pairs) > 20, "the continuation must be random for the test to mean something"
    statistic = sum((a - b) ** 2 / (a + b) for a, b in pairs)
    # Wilson-Hilferty: the cube root of chi-square over its degrees is all but normal; 2.326 is the 99 % quantile
    degrees = len(pairs) - 1
    z = ((statistic / degrees) ** (1 / 3) - (1 - 2 / (9 * degrees))) / (2 / (9 * degrees)) ** 0.5
    assert z < 2.326, (statistic, degrees)


def check_memory(m: pyclover.Clover, fresh: pyclover.Clover, held: list[int]) -> None:
    """The memory holds these tokens, and its next logits are those of a context that never drafted."""
    assert m._context.tokens() == held
    np.testing.assert_allclose(m._context.last_logits(), fresh.logits(held)[-1], rtol=0, atol=1e-4)


@pytest.fixture(scope="module")
def fresh() -> Iterator[pyclover.Clover]:
    with pyclover.Clover(TINY, n_ctx=512, **EXACT) as m:
        yield m


@pytest.mark.parametrize("n_max", [1, 3, 15, 31])
def test_the_state_after_every_round(n_max: int, either: pyclover.Clover, fresh: pyclover.Clover) -> None:
    ids = either.tokenize("The quick brown fox")
    tokens: list[int] = []
    for piece in either.stream(ids, max_tokens=40, temperature=0, speculation=fixed_draft(n_max=n_max)):
        tokens += piece.tokens
        if piece.tokens:
            check_memory(either, fresh, ids + tokens[:-1])


def accepted_run(m: pyclover.Clover, ids: list[int], settings: DraftSelf) -> tuple[list[int], int, int]:
    """All tokens of a run, and where a round begins that gave at least 3 of them, and how many."""
    tokens: list[int] = []
    found = None
    for piece in m.stream(ids, max_tokens=48, temperature=0, speculation=settings):
        if len(piece.tokens) >= 3 and found is None and tokens:
            found = len(tokens), len(piece.tokens)
        tokens += piece.tokens
    assert found is not None
    return tokens, *found


def test_a_stop_inside_an_accepted_run(either: pyclover.Clover, fresh: pyclover.Clover) -> None:
    settings = fixed_draft(n_max=7)
    n_tried = 0
    for prompt in prompts(40, seed=3):
        ids = either.tokenize(prompt)
        try:
            tokens, start, _n = accepted_run(either, ids, settings)
        except AssertionError:
            continue
        stop = either.detokenize([tokens[start + 1]])
        if not stop.strip() or "\ufffd" in stop or stop in either.detokenize(tokens[: start + 1]):
            continue
        n_tried += 1
        plain = fresh.generate(ids, max_tokens=48, temperature=0, stop=[stop])
        got = either.generate(ids, max_tokens=48, temperature=0, stop=[stop], speculation=settings)
        assert (got.text, got.tokens, got.finish_reason, got.stop) == (plain.text, plain.tokens, "stop", stop)
        check_memory(either, fresh, ids + list(got.tokens[:-1]))
        # a second turn continues from there
        turn = ids + list(got.tokens) + either.tokenize(" and then")
        again = either.generate(turn, max_tokens=12, temperature=0, speculation=settings)
        assert again.stats.n_prompt_reused == len(ids) + len(got.tokens) - 1
        assert again.tokens == fresh.generate(turn, max_tokens=12, temperature=0).tokens
    assert n_tried >= 3


def test_an_end_token_inside_a_run_ends_it(either: pyclover.Clover, fresh: pyclover.Clover) -> None:
    """The end token is made likely with a bias that both ways share."""
    bias = {either.info.eos: 6.0}
    n_ended = 0
    for prompt in prompts(30, seed=5):
        ids = either.tokenize(prompt)
        plain = fresh.generate(ids, max_tokens=40, temperature=0, logit_bias=bias)
        got = either.generate(ids, max_tokens=40, temperature=0, logit_bias=bias, speculation=fixed_draft(n_max=7))
        assert (got.tokens, got.finish_reason) == (plain.tokens, plain.finish_reason)
        n_ended += got.finish_reason == "stop"
        held = either._context.tokens()
        assert held == (ids + list(got.tokens))[: len(held)]
        assert len(held) == len(ids) + len(got.tokens) - (got.finish_reason != "stop")
    assert n_ended >= 3


def test_cancel_between_rounds(either: pyclover.Clover, fresh: pyclover.Clover) -> None:
    ids = either.tokenize("The quick brown fox")
    reason = None
    for n, piece in enumerate(either.stream(ids, max_tokens=200, temperature=0, speculation=fixed_draft(n_max=7))):
        if n == 2:
            either.cancel()
        reason = piece.finish_reason
    assert reason == "cancelled"
    got = either.generate(ids, max_tokens=20, temperature=0, speculation=fixed_draft(n_max=7))
    assert got.tokens == fresh.generate(ids, max_tokens=20, temperature=0).tokens


@pytest.mark.parametrize("n_rs_seq", [0, 8])
def test_to_the_end_of_the_context(n_rs_seq: int) -> None:
    for n_ctx in (20, 24, 33):
        with pyclover.Clover(TINY, n_ctx=n_ctx, n_rs_seq=n_rs_seq, **EXACT) as m:
            plain = m.generate("The quick brown fox", temperature=0)
            drafted = m.generate("The quick brown fox", temperature=0, speculation=fixed_draft(n_max=7))
            assert drafted.tokens == plain.tokens
            assert drafted.finish_reason == plain.finish_reason == "length"
            blocks = m.generate("The quick brown fox", speculation=BlockDiffusion())
            assert len(m.tokenize("The quick brown fox")) + len(blocks.tokens) <= n_ctx


def test_a_preview_keeps_every_byte_of_the_memory(either: pyclover.Clover) -> None:
    """Also while a rollback is pending, and sampling goes on with the same random numbers."""
    ids = either.tokenize("The quick brown fox")
    either.generate(ids, max_tokens=9, temperature=0, speculation=fixed_draft(n_max=7))
    context = either._context
    from pyclover.engine import blocks

    before = context.get_state()
    for n_rows in (1, 2, 8, 32):
        blocks.preview(context, [either.info.mask] * n_rows, len(ids))
        assert context.get_state() == before


@pytest.mark.parametrize(
    "options",
    [
        {"flash_attn": True},
        {"cache_type_k": "f16", "cache_type_v": "f16"},
        {"cache_type_k": "bf16", "cache_type_v": "bf16"},
        {"cache_type_k": "q8_0", "cache_type_v": "q8_0", "flash_attn": True},
        {"n_threads": 2},
        {"n_batch": 8, "n_ubatch": 8},
    ],
    ids=str,
)
def test_other_settings_stay_close(options: dict[str, Any], tiny: pyclover.Clover) -> None:
    ids = tiny.tokenize("The quick brown fox jumps over the lazy dog")
    rows = [ids[-1], *[tiny.info.mask] * 7]
    want = tiny.preview(ids[:-1], rows)
    with pyclover.Clover(TINY, n_ctx=512, **{**EXACT, **options}) as m:
        got = m.preview(ids[:-1], rows)
        # a q8_0 cache moves the plain logits of this model by as much
        limit = 5 * max(1e-3, float(np.abs(m.logits(ids) - tiny.logits(ids)).max()))
        np.testing.assert_allclose(got, want, rtol=0, atol=limit)
        if options != {"n_batch": 8, "n_ubatch": 8}:
            result = m.generate(ids, max_tokens=12, temperature=0, speculation=fixed_draft(n_max=7))
            assert result.stats.n_generated > 0


def test_settings_of_the_block_pass(tiny: pyclover.Clover) -> None:
    """Each one is read from the file, can be set, and changes the logits in its own way."""
    ids = tiny.tokenize("The quick brown fox")
    rows = [ids[-1], *[tiny.info.mask] * 5]
    as_stored = tiny.block_params
    assert as_stored == pyclover.BlockParams(block_length=16)
    base = tiny.preview(ids[:-1], rows)
    try:
        for changed in (
            {"expert_coreset": 3},
            {"expert_coreset_share": 0.3, "expert_coreset_min": 2},
            {"scale_activation": "exp"},
            {"scale_activation": "softplus"},
            {"history_query": "unit"},
        ):
            tiny.block_params = pyclover.BlockParams(block_length=16, **changed)  # type: ignore[arg-type]
            assert np.abs(tiny.preview(ids[:-1], rows) - base).max() > 1e-3, changed
        tiny.block_params = pyclover.BlockParams(block_length=16, shift_logits=True)
        shifted = tiny.preview(ids[:-1], rows)
        np.testing.assert_allclose(shifted[1:], base[:-1], rtol=0, atol=1e-4)
        np.testing.assert_allclose(shifted[0], tiny.logits(ids[:-1])[-1], rtol=0, atol=1e-4)
        with pytest.raises(pyclover.UsageError, match="expert_coreset"):
            tiny.block_params = pyclover.BlockParams(expert_coreset=10_000)
        with pytest.raises(pyclover.UsageError, match="block_length"):
            tiny.block_params = pyclover.BlockParams(block_length=33)
    finally:
        tiny.block_params = as_stored
    np.testing.assert_array_equal(tiny.preview(ids[:-1], rows), base)


@pytest.mark.parametrize("rule", [{"expert_coreset": 3}, {"expert_coreset_share": 0.4, "expert_coreset_min": 2}])
@pytest.mark.parametrize("name", TINIES)
def test_coresets_as_the_reference_chooses_them(name: str, rule: dict[str, Any], reference: Any) -> None:
    path = ORACLE / "expected_preview" / f"{name}.gguf"
    kv, tensors = reference.load(str(path))
    with pyclover.Clover(path, n_ctx=256, **EXACT) as m:
        m.block_params = pyclover.BlockParams(**rule)
        share = rule.get("expert_coreset_share")
        coreset = rule["expert_coreset"] if share is None else (share, rule["expert_coreset_min"])
        for prompt in prompts(6, seed=11):
            ids = m.tokenize(prompt + " x")
            cache = reference.Cache(kv, tensors)
            reference.decode(cache, ids[:-1])
            rows = [ids[-1], *[m.info.mask] * 6]
            want = reference.preview(cache, rows, coreset=coreset)
            np.testing.assert_allclose(m.preview(ids[:-1], rows), want, rtol=0, atol=1e-3)


def test_what_cannot_draft_says_why(tmp_path: Path) -> None:
    with pyclover.Clover(NO_PREVIEW, n_ctx=64, n_threads=1) as m:
        for settings in (fixed_draft(), BlockDiffusion()):
            with pytest.raises(pyclover.SpeculationUnavailableError, match="no preview tensors"):
                m.generate("a", max_tokens=4, speculation=settings)
        with pytest.raises(pyclover.SpeculationUnavailableError, match="no preview tensors"):
            m.preview("a", [1])
        assert m.generate("a", max_tokens=4).stats.n_generated == 4

    data = TINY.read_bytes()
    parts = parse(data)
    parts.entries = [e for e in parts.entries if e.key != b"tokenizer.ggml.mask_token_id"]
    (tmp_path / "m.gguf").write_bytes(build(parts) + data[parts.data_offset :])
    with (
        pyclover.Clover(tmp_path / "m.gguf", n_ctx=64, n_threads=1) as m,
        pytest.raises(pyclover.SpeculationUnavailableError, match="mask_token_id"),
    ):
        m.generate("a", speculation=fixed_draft())


@pytest.mark.parametrize(
    ("make", "option"),
    [
        (lambda: fixed_draft(n_max=0), "n_max"),
        (lambda: fixed_draft(n_max=32), "n_max"),
        (lambda: fixed_draft(n_max=-1), "n_max"),
        (lambda: fixed_draft(n_max=True), "n_max"),
        (lambda: fixed_draft(n_max=2.0), "n_max"),  # type: ignore[arg-type]
        (lambda: fixed_draft(n_max=10**5000), "n_max"),
        (lambda: fixed_draft(p_min=10**5000), "p_min"),
        (lambda: fixed_draft(accept_ratio=1.5), "accept_ratio"),
        (lambda: fixed_draft(accept_delta=-1), "accept_delta"),
        (lambda: fixed_draft(accept_delta=float("nan")), "accept_delta"),
        (lambda: fixed_draft(block=1), "block"),
        (lambda: fixed_draft(block=33), "block"),
        (lambda: fixed_draft(steps=0), "steps"),
        (lambda: fixed_draft(p_min=2), "p_min"),
        (lambda: BlockDiffusion(threshold=1.1), "threshold"),
        (lambda: BlockDiffusion(block=0), "block"),
        (lambda: BlockDiffusion(max_steps=0), "max_steps"),
    ],
)
def test_settings_out_of_range(make: Any, option: str) -> None:
    with pytest.raises(pyclover.UsageError, match=option) as caught:
        make()
    assert caught.value.option == option


def test_requests_that_do_not_fit_a_mode(tiny: pyclover.Clover) -> None:
    with pytest.raises(pyclover.UsageError, match="temperature=0"):
        tiny.generate("a", speculation=fixed_draft(accept_ratio=0.9))
    with pytest.raises(pyclover.UsageError, match="repeat_penalty"):
        tiny.generate("a", temperature=0, repeat_penalty=1.2, speculation=fixed_draft(accept_ratio=0.9))
    with pytest.raises(pyclover.UsageError, match="top_k"):
        tiny.generate("a", top_k=3, speculation=BlockDiffusion())
    with pytest.raises(pyclover.UsageError, match="speculation"):
        tiny.generate("a", speculation="draft-self")  # type: ignore[arg-type]
    assert tiny.generate("a", max_tokens=3).stats.n_generated == 3


def test_steps_and_p_min(tiny: pyclover.Clover) -> None:
    """Any draft gives the same text; more steps make more previews, a certain draft is short."""
    ids = tiny.tokenize("The quick brown fox")
    plain = tiny.generate(ids, max_tokens=24, temperature=0)
    for settings in (
        fixed_draft(n_max=6, steps=3),
        fixed_draft(n_max=6, p_min=0.9),
        fixed_draft(n_max=4, block=16, steps=2),
    ):
        got = tiny.generate(ids, max_tokens=24, temperature=0, speculation=settings)
        assert got.tokens == plain.tokens
        if settings.p_min == 0:
            assert got.stats.previews > got.stats.rounds
        else:
            assert got.stats.drafted < 6 * got.stats.rounds


@pytest.mark.parametrize("ahead", [False, True])
def test_passes_that_take_turns_keep_their_graphs(ahead: bool) -> None:
    """A round has two or three kinds of passes; their first rounds build graphs, and a change of what is taken back."""
    with pyclover.Clover("tiny", n_ctx=512) as m:
        messages = [{"role": "user", "content": "Count from 11 to 20."}]
        draft = fixed_draft(n_max=3, ahead=ahead)
        m.chat(messages, thinking=False, temperature=0, speculation=draft)
        before = graphs_built(m._context)
        stats = m.chat(messages, thinking=False, temperature=0, speculation=draft).stats
        assert stats.rounds >= 8
        # a prompt, the last round, which drafts less, and a build for each round that took something back
        n_partial = stats.rounds - stats.accepted_by_position[2]
        assert graphs_built(m._context) - before <= 6 + 2 * n_partial
        assert 6 + 2 * n_partial < 2 * stats.rounds
        plain = m.chat(messages, thinking=False, temperature=0)
        before = graphs_built(m._context)
        assert m.chat(messages, thinking=False, temperature=0).content == plain.content
        assert graphs_built(m._context) - before <= 2


def test_few_steps_finish_a_block(tiny: pyclover.Clover) -> None:
    got = tiny.generate("The quick", max_tokens=32, speculation=BlockDiffusion(threshold=1.0, max_steps=2))
    assert got.stats.previews == 2 * got.stats.commits
    one_by_one = tiny.generate("The quick", max_tokens=32, speculation=BlockDiffusion(threshold=1.0))
    assert one_by_one.stats.previews == one_by_one.stats.fixed


def test_the_stream_of_blocks(tiny: pyclover.Clover) -> None:
    seen: list[tuple[int | None, ...]] = []
    text = ""
    for piece in tiny.stream("The quick", max_tokens=20, speculation=BlockDiffusion()):
        if piece.block is not None:
            assert (piece.text, piece.tokens) == ("", ())
            seen.append(piece.block)
        text += piece.text
    assert all(len(block) == 16 for block in seen)
    assert None in seen[0]
    assert None not in seen[-1]
    assert text == tiny.generate("The quick", max_tokens=20, speculation=BlockDiffusion()).text


@pytest.mark.parametrize("name", TINIES)
@pytest.mark.parametrize("options", [{}, {"n_rs_seq": 0}, {"flash_attn": True}, {"n_rs_seq": 3}], ids=str)
def test_a_block_ahead_is_the_block_behind_what_the_pass_adds(name: str, options: dict[str, Any]) -> None:
    """Against a preview after the same tokens, and the tokens against a pass without a block."""
    from pyclover.engine import blocks

    path = ORACLE / "expected_preview" / f"{name}.gguf"
    options = {**EXACT, "n_ctx": 256, **options}
    atol = 5e-3 if options.get("flash_attn") else 1e-4
    with pyclover.Clover(path, **options) as one, pyclover.Clover(path, **options) as other:
        ids = one.tokenize(" ".join(prompts(6)))
        for n_prompt, n_tokens, n_rows in ((1, 1, 1), (5, 1, 8), (20, 8, 8), (20, 5, 31), (33, 2, 16)):
            text, tokens = ids[:n_prompt], ids[n_prompt : n_prompt + n_tokens]
            for m in (one, other):
                m._context.prompt(text)
            ahead = blocks.look_ahead(one._context, tokens, n_rows)
            after = one._context.last_logits()
            other._context.prompt(text + tokens)
            np.testing.assert_allclose(after, other._context.last_logits(), atol=atol)
            apart = blocks.preview(other._context, [other.info.mask] * n_rows, n_prompt + n_tokens)
            np.testing.assert_allclose(ahead, apart, atol=atol)
            # nothing of the block is left
            assert one._context.tokens() == text + tokens
            again = [m.generate(text + tokens, max_tokens=12, temperature=0).tokens for m in (one, other)]
            assert again[0] == again[1]


@pytest.mark.parametrize(
    "coreset", [{"expert_coreset": 3}, {"expert_coreset_share": 0.6, "expert_coreset_min": 2}], ids=str
)
def test_a_coreset_restricts_the_block_ahead_alone(coreset: dict[str, Any]) -> None:
    from dataclasses import replace

    from pyclover.engine import blocks

    with pyclover.Clover(TINY, n_ctx=256, **EXACT) as one, pyclover.Clover(TINY, n_ctx=256, **EXACT) as other:
        ids = one.tokenize(" ".join(prompts(6)))[:30]
        for m in (one, other):
            m._context.prompt(ids[:24])
        plain = other.logits(ids)[-1]
        blocks.set_block_params(one._context, replace(blocks.get_block_params(one._context), **coreset))
        blocks.set_block_params(other._context, replace(blocks.get_block_params(other._context), **coreset))
        ahead = blocks.look_ahead(one._context, ids[24:], 8)
        np.testing.assert_allclose(one._context.last_logits(), plain, atol=1e-4)
        np.testing.assert_allclose(ahead, blocks.preview(other._context, [other.info.mask] * 8, 30), atol=1e-4)


@pytest.mark.parametrize("n_max", [1, 3, 7, 15])
def test_drafts_made_ahead_give_the_text_of_plain_decoding(n_max: int) -> None:
    with pyclover.Clover("tiny", n_ctx=512, n_rs_seq=15) as m:
        used = 0
        for n in range(8):
            prompt = f"<|im_start|>user\nWhat is {11 + 7 * n} + {3 + n}?<|im_end|>\n<|im_start|>assistant\n"
            plain = m.generate(prompt, max_tokens=60, temperature=0)
            one = m.generate(prompt, max_tokens=60, temperature=0, speculation=fixed_draft(n_max=n_max, ahead=True))
            two = m.generate(prompt, max_tokens=60, temperature=0, speculation=fixed_draft(n_max=n_max))
            assert one.tokens == plain.tokens == two.tokens
            s = one.stats
            assert s.previews + s.ahead_used >= s.rounds  # every draft comes from one or the other
            assert s.previews == s.rounds - s.ahead_used or s.previews + s.ahead_used == s.rounds + 1
            used += s.ahead_used
        assert used > 4


def test_what_excludes_a_draft_ahead(snapshots: pyclover.Clover) -> None:
    with pytest.raises(pyclover.UsageError, match="one pass alone"):
        DraftSelf(n_max=7, steps=2, ahead=True)
    prompt = "The quick brown fox"
    found = snapshots.generate(prompt, max_tokens=20, temperature=0, speculation=fixed_draft(n_max=7, ahead=True))
    assert found.tokens == snapshots.generate(prompt, max_tokens=20, temperature=0).tokens
    assert found.stats.ahead == 0  # with snapshots there is no such pass: drafts come from previews
