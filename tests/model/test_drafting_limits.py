"""Drafting and block diffusion at their limits: what cannot be honoured is said at once, and counts are right."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from support import EXACT, ORACLE, fixed_draft

import pyclover
from pyclover import BlockDiffusion, BlockParams

TINY = ORACLE / "expected_preview" / "tiny_a_preview.gguf"
CHAT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"


@pytest.fixture
def tiny() -> Iterator[pyclover.Clover]:
    with pyclover.Clover(TINY, n_ctx=64, **EXACT) as m:
        yield m


def refused(option: str, call: Any) -> str:
    with pytest.raises(pyclover.UsageError) as caught:
        call()
    assert caught.value.option == option, caught.value
    return str(caught.value)


def test_a_prompt_that_is_too_long_for_block_diffusion(tiny: pyclover.Clover) -> None:
    """Also where its whole blocks fit: 70 tokens are two blocks of 32 and a rest."""
    for n in (65, 70, 100):
        with pytest.raises(pyclover.ContextFullError) as caught:
            tiny.generate([5] * n, temperature=0, speculation=BlockDiffusion(block=32))
        assert (caught.value.n_needed, caught.value.n_ctx) == (n, 64)
    full = tiny.generate([5] * 64, temperature=0, speculation=BlockDiffusion(block=32))
    assert (full.tokens, full.finish_reason) == ((), "length")


def test_a_preview_that_is_too_long_says_how_much_it_needs(tiny: pyclover.Clover) -> None:
    with pytest.raises(pyclover.ContextFullError) as caught:
        tiny.preview([5] * 40, [tiny.info.mask] * 32)
    assert caught.value.n_needed == 72


@pytest.mark.parametrize(
    ("options", "settings", "option"),
    [
        ({"n_ubatch": 7}, fixed_draft(n_max=7), "n_ubatch"),
        ({"n_ubatch": 8}, fixed_draft(n_max=3, block=32), "n_ubatch"),
        ({"n_batch": 4}, fixed_draft(n_max=15), "n_ubatch"),  # llama.cpp makes the ubatch as small
        ({"n_batch": 1}, fixed_draft(n_max=1), "n_ubatch"),
        ({"n_ubatch": 4}, BlockDiffusion(block=5), "n_ubatch"),
        ({"n_batch": 2}, BlockDiffusion(), "n_ubatch"),
    ],
)
def test_batches_too_small_for_the_rows(options: dict[str, int], settings: Any, option: str) -> None:
    with pyclover.Clover(TINY, n_ctx=64, **{**EXACT, **options}) as m:
        text = refused(option, lambda: m.generate([5, 6], temperature=0, max_tokens=4, speculation=settings))
        assert "-ub" in text


def test_batches_just_large_enough() -> None:
    with pyclover.Clover(TINY, n_ctx=64, **{**EXACT, "n_ubatch": 8}) as m:
        plain = m.generate([5, 6], temperature=0, max_tokens=20)
        drafted = m.generate([5, 6], temperature=0, max_tokens=20, speculation=fixed_draft(n_max=7))
        assert drafted.tokens == plain.tokens
        assert drafted.stats.drafted_by_position[0] > 0
        assert m.generate([5, 6], temperature=0, max_tokens=8, speculation=BlockDiffusion(block=8)).tokens


@pytest.mark.parametrize("n_ctx", [8, 12, 33])
def test_contexts_smaller_than_a_draft(n_ctx: int) -> None:
    """A draft is as long as there is room for; the text is the same to the last token."""
    with pyclover.Clover(TINY, n_ctx=n_ctx, **EXACT) as m:
        settings = fixed_draft(n_max=min(7, n_ctx - 1))
        plain = m.generate([5, 6], temperature=0, ignore_eos=True)
        assert m.generate([5, 6], temperature=0, ignore_eos=True, speculation=settings).tokens == plain.tokens
        assert len(plain.tokens) == n_ctx - 1


def test_more_states_than_a_batch_allows_names_the_option() -> None:
    with pytest.raises(pyclover.UsageError, match="n_ubatch"):
        pyclover.Clover(TINY, n_rs_seq=31, n_ctx=32, fit=False)


@pytest.mark.parametrize(
    ("make", "option"),
    [
        (lambda: fixed_draft(n_max=7, block=3), "block"),
        (lambda: fixed_draft(n_max=31, block=31), "block"),
        (lambda: fixed_draft(n_max=3, steps=4), "steps"),
    ],
)
def test_rows_and_steps_that_do_not_go_with_n_max(make: Any, option: str) -> None:
    refused(option, make)


@pytest.mark.parametrize("name", ["ignore_eos", "logit_bias", "repeat_penalty", "dry_multiplier", "grammar"])
def test_relaxed_acceptance_goes_with_nothing_else(name: str, tiny: pyclover.Clover) -> None:
    value: Any = {
        "ignore_eos": True, "logit_bias": {5: 1.0}, "repeat_penalty": 1.1, "dry_multiplier": 0.8,
        "grammar": 'root ::= "x"',
    }[name]  # fmt: skip
    settings = fixed_draft(accept_ratio=0.9)
    call = lambda: tiny.generate([5], temperature=0, speculation=settings, **{name: value})  # noqa: E731
    assert name in refused("accept_ratio", call)
    assert tiny.generate([5], temperature=1e-31, max_tokens=4, speculation=settings).tokens  # as good as 0


def test_block_diffusion_takes_what_is_no_sampling(tiny: pyclover.Clover) -> None:
    settings = BlockDiffusion(block=8)
    first = tiny.generate([5, 6], temperature=0, max_tokens=8, speculation=settings)
    again = tiny.generate([5, 6], temperature=0, max_tokens=8, speculation=settings, ignore_eos=True, seed=None)
    assert first.tokens == again.tokens[: len(first.tokens)]
    assert len(again.tokens) == 8
    refused("seed", lambda: tiny.generate([5], temperature=0, speculation=settings, seed=3))


def test_drafted_tokens_that_were_not_checked_do_not_count() -> None:
    """Without plain argmax nothing behind an end token is checked: the last draft counts up to and with the end."""
    with pyclover.Clover("tiny", n_ctx=512) as m:
        n_seen = 0
        for question in ("What is 12 + 7?", "Hello!", "What is 6 times 7?", "Which is larger, 43 or 58?"):
            pieces = list(
                m.stream(CHAT.format(question), temperature=0, logit_bias={5: 0.0}, speculation=fixed_draft(n_max=31))
            )
            stats = pieces[-1].stats
            assert stats is not None
            rounds = [len(p.tokens) for p in pieces[1:]]
            assert len(rounds) == stats.rounds
            if stats.accepted != stats.emitted - stats.rounds + 1:
                continue  # the end came out of the check itself, not out of the draft
            n_seen += 1
            assert stats.drafted == 31 * (len(rounds) - 1) + rounds[-1] + 1
            assert stats.drafted == sum(stats.drafted_by_position)
        assert n_seen > 0


def test_a_cancel_before_the_commit_counts_what_was_given_out() -> None:
    with pyclover.Clover("tiny", n_ctx=512) as m:
        tokens, stats = [], None
        for piece in m.stream(CHAT.format("Hello!"), temperature=0, speculation=BlockDiffusion(threshold=0.3)):
            tokens += piece.tokens
            stats = piece.stats
            if piece.block and None not in piece.block:
                m.cancel()
        assert stats is not None
        assert stats.n_generated == len(tokens)


def test_save_state_is_not_stopped_by_an_old_cancel(tmp_path: Path, tiny: pyclover.Clover) -> None:
    stream = tiny.stream([5, 6], temperature=0, max_tokens=30, speculation=fixed_draft(n_max=7))
    for _ in range(4):
        next(stream)
    tiny.cancel()
    stream.close()  # type: ignore[attr-defined]
    tiny.save_state(tmp_path / "state")
    assert tiny.load_state(tmp_path / "state") > 2


def test_block_params_of_the_wrong_kind(tiny: pyclover.Clover) -> None:
    def set_to(params: Any) -> None:
        tiny.block_params = params

    before = tiny.block_params
    for params in (None, {"block_length": 8}, 5):
        refused("block_params", lambda params=params: set_to(params))
    for name, values in {
        "expert_coreset_share": ["x", None, 2.0, True], "shift_logits": ["no", None, 2],
        "scale_activation": ["none\0zz", "relu", None, 3], "history_query": ["", b"unit"],
        "block_length": [0, 33, "8"], "expert_coreset": [-1, 1, 10_000, 2.0],
    }.items():  # fmt: skip
        for value in values:
            refused(name, lambda name=name, value=value: set_to(BlockParams(**{name: value})))
    assert tiny.block_params == before


def changed(path: Path, out: Path, metadata: dict[str, Any], tensors: dict[str, np.ndarray] | None = None) -> Path:
    """A copy of a GGUF file with other metadata values and tensors (None: left out)."""
    reader = gguf.GGUFReader(path)
    writer = gguf.GGUFWriter(out, "clover_moe")
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture" or field.name in metadata:
            continue
        kind = field.types[0]
        sub = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), kind, sub_type=sub)
    for key, value in metadata.items():
        kind = gguf.GGUFValueType.STRING if isinstance(value, str) else gguf.GGUFValueType.UINT32
        writer.add_key_value(key, value, kind)
    for tensor in reader.tensors:
        data = (tensors or {}).get(tensor.name, tensor.data)
        if data is not None:
            writer.add_tensor(tensor.name, data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


@pytest.mark.parametrize(
    ("key", "value", "word"),
    [
        ("block_length", 33, "block_length"),
        ("expert_coreset", 1, "expert_coreset"),
        ("expert_coreset", 99, "expert_coreset"),
        ("logit_scale_activation", "relu", "logit_scale_activation"),
        ("history_query", "raw", "history_query"),
    ],
)
def test_wrong_settings_of_the_block_pass_leave_plain_decoding(key: str, value: Any, word: str, tmp_path: Path) -> None:
    """inspect and generate say the same."""
    path = changed(TINY, tmp_path / "m.gguf", {f"clover_moe.diffusion.{key}": value})
    modes = pyclover.inspect(path).capabilities
    assert modes.plain
    assert not modes.draft_self
    assert word in modes.draft_self.reason
    with pyclover.Clover(TINY, n_ctx=64, **EXACT) as right, pyclover.Clover(path, n_ctx=64, **EXACT) as m:
        assert (
            m.generate([5, 6], temperature=0, max_tokens=8).tokens
            == right.generate([5, 6], temperature=0, max_tokens=8).tokens
        )
        for settings in (fixed_draft(), BlockDiffusion()):
            with pytest.raises(pyclover.SpeculationUnavailableError, match=word):
                m.generate([5], temperature=0, speculation=settings)


def test_a_block_of_one_row_can_draft(tmp_path: Path) -> None:
    path = changed(TINY, tmp_path / "m.gguf", {"clover_moe.diffusion.block_length": 1})
    assert pyclover.inspect(path).capabilities.draft_self
    with pyclover.Clover(path, n_ctx=64, **EXACT) as m:
        stats = m.generate([5, 6], temperature=0, max_tokens=20, speculation=fixed_draft(n_max=3)).stats
        assert stats.drafted > 0


def test_one_missing_tensor_is_named(tmp_path: Path) -> None:
    lost = "blk.1.ssm_bd_history_c"
    path = changed(TINY, tmp_path / "m.gguf", {}, {lost: None})  # type: ignore[dict-item]
    assert lost in pyclover.inspect(path).capabilities.draft_self.reason
    with pyclover.Clover(path, n_ctx=64, **EXACT) as m, pytest.raises(pyclover.SpeculationUnavailableError, match=lost):
        m.generate([5], temperature=0, speculation=fixed_draft())


def test_a_damaged_preview_is_said(tmp_path: Path) -> None:
    name = "blk.0.ssm_bd_logit_scale"
    shape = next(t.shape for t in gguf.GGUFReader(TINY).tensors if t.name == name)
    broken = np.full(tuple(int(n) for n in reversed(shape)), np.nan, np.float32)
    path = changed(TINY, tmp_path / "m.gguf", {}, {name: broken})
    with pyclover.Clover(path, n_ctx=64, **EXACT) as m:
        for settings in (fixed_draft(), BlockDiffusion()):
            with pytest.raises(pyclover.NativeError, match="NaN"):
                m.generate([5, 6], temperature=0, max_tokens=8, speculation=settings)
        with pytest.raises(pyclover.NativeError, match="NaN"):
            m.preview([5, 6], [m.info.mask] * 4)
        with pyclover.Clover(TINY, n_ctx=64, **EXACT) as right:  # plain decoding does not read it
            plain = right.generate([5, 6], temperature=0, max_tokens=8)
        assert m.generate([5, 6], temperature=0, max_tokens=8).tokens == plain.tokens


def test_close_frees_a_thread_that_waits() -> None:
    m = pyclover.Clover(TINY, n_ctx=64, **EXACT)
    stream = m.stream([5, 6], temperature=0, max_tokens=30)
    next(stream)
    caught: list[BaseException] = []

    def wait() -> None:
        try:
            m.generate([5])
        except pyclover.CloverError as error:
            caught.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    m.close()
    thread.join(10)
    assert not thread.is_alive()
    assert [type(error) for error in caught] == [pyclover.ClosedError]
    with pytest.raises(pyclover.ClosedError):
        next(stream)
