"""Generation: stops, characters, limits, cancelling, the prompt cache, sampling."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import EXACT, ORACLE

import pyclover

GREEDY: dict[str, Any] = {"temperature": 0}


@pytest.fixture
def run(expected: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    """The first oracle run of tiny_a: prompt_ids, 64 greedy tokens, and the text that a server gave for them."""
    result: dict[str, Any] = expected("tiny_a")["runs"][0]
    return result


def text_of(m: Any, tokens: list[int]) -> str:
    return b"".join(m._model.token_bytes(t) for t in tokens).decode("utf-8", "replace")


# ---- text -----------------------------------------------------------------------------------------------------------


def test_text_is_the_servers(tiny_a: Any, run: dict[str, Any]) -> None:
    got = tiny_a.generate(run["prompt"], max_tokens=64, **GREEDY)
    assert got.text == run["server"]["text"]
    assert list(got.tokens) == run["server"]["ids"]


def test_stream_gives_the_same_pieces_together(tiny_a: Any, run: dict[str, Any]) -> None:
    pieces = list(tiny_a.stream(run["prompt"], max_tokens=64, **GREEDY))
    assert "".join(p.text for p in pieces) == run["server"]["text"]
    assert [t for p in pieces for t in p.tokens] == run["greedy"]
    assert [p.stats is not None for p in pieces] == [False] * (len(pieces) - 1) + [True]
    assert pieces[-1].finish_reason == "length"


def test_stop_string_over_token_borders(tiny_a: Any, run: dict[str, Any]) -> None:
    text = run["server"]["text"]
    pieces = [tiny_a._model.token_bytes(t).decode("utf-8", "replace") for t in run["greedy"]]
    ends = np.cumsum([len(p) for p in pieces])
    # from the middle of one token to the middle of a later one, first occurrence
    for start in range(3, 40, 5):
        stop = text[start : start + 7]
        at = text.index(stop)
        got = tiny_a.generate(run["prompt"], max_tokens=64, stop=stop, **GREEDY)
        assert (got.text, got.stop, got.finish_reason) == (text[:at], stop, "stop")
        n = int(np.searchsorted(ends, at + len(stop))) + 1
        assert list(got.tokens) == run["greedy"][:n]
        assert got.stats.n_generated == n


def test_unfinished_stop_string_is_given_out(tiny_a: Any, run: dict[str, Any]) -> None:
    text = run["server"]["text"]
    got = tiny_a.generate(run["prompt"], max_tokens=64, stop=[text[-3:] + "\0never"], **GREEDY)
    assert (got.text, got.finish_reason) == (text, "length")


def test_end_token_ends_the_text(tiny_a: Any, run: dict[str, Any]) -> None:
    """An end token is not text and not counted. tiny_a's end token is 354."""
    eos = tiny_a.info.eos
    assert eos == 354
    got = tiny_a.generate(run["prompt"], max_tokens=8, logit_bias={eos: 1000.0}, **GREEDY)
    assert (got.text, got.tokens, got.finish_reason, got.stats.n_generated) == ("", (), "stop", 0)
    ignored = tiny_a.generate(run["prompt"], max_tokens=8, logit_bias={eos: 1000.0}, ignore_eos=True, **GREEDY)
    assert len(ignored.tokens) == 8
    assert eos not in ignored.tokens


def test_characters_are_never_split(tiny_a: Any) -> None:
    """The byte tokens of a character arrive one by one; the text appears when it is whole."""
    want = "é你🙂"
    ids = tiny_a.tokenize(want)
    assert len(ids) == len(want.encode())
    grammar = 'root ::= "' + want + '"'
    pieces = [p.text for p in tiny_a.stream("x", max_tokens=40, grammar=grammar, **GREEDY)]
    assert "".join(pieces) == want
    assert all("\ufffd" not in p for p in pieces)


# ---- limits ---------------------------------------------------------------------------------------------------------


def test_max_tokens_zero_reads_the_prompt(tiny_a: Any, run: dict[str, Any]) -> None:
    got = tiny_a.generate(run["prompt"], max_tokens=0, **GREEDY)
    assert (got.text, got.tokens, got.finish_reason, got.stats.n_prompt) == ("", (), "length", len(run["prompt_ids"]))


def test_full_context_ends_with_length(run: dict[str, Any]) -> None:
    n_prompt = len(run["prompt_ids"])
    with pyclover.Clover(ORACLE / "expected" / "tiny_a.gguf", n_ctx=n_prompt + 20, **EXACT) as m:
        got = m.generate(run["prompt"], **GREEDY)
        # the 21st token is chosen from the last row and needs no room itself
        assert list(got.tokens) == run["greedy"][:21]
        assert got.finish_reason == "length"
        assert list(m.generate(run["prompt"], max_tokens=5, **GREEDY).tokens) == run["greedy"][:5]


def test_prompt_longer_than_the_context(run: dict[str, Any]) -> None:
    with pyclover.Clover(ORACLE / "expected" / "tiny_a.gguf", n_ctx=8, **EXACT) as m:
        with pytest.raises(pyclover.ContextFullError, match="12 tokens do not fit into a context of 8") as caught:
            m.generate(run["prompt"])
        assert (caught.value.n_ctx, caught.value.n_needed) == (8, 12)
        assert len(m.generate(run["prompt_ids"][:8], max_tokens=1, **GREEDY).tokens) == 1


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"stop": ""}, "stop"),
        ({"stop": [1]}, "stop"),
        ({"top_p": 1.5}, "top_p"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_k": 2.5}, "top_k"),
        ({"seed": 2**33}, "seed"),
        ({"repeat_penalty": 0}, "repeat_penalty"),
        ({"logit_bias": {0: float("nan")}}, "logit_bias"),
        ({"logit_bias": {99999: 1.0}}, "logit_bias"),
        ({"tempature": 0}, "tempature"),
        ({"speculation": "always"}, "speculation"),
        ({"grammar": 'root ::= "a"', "json_schema": "{}"}, "json_schema"),
    ],
)
def test_wrong_options_are_named(tiny_a: Any, options: dict[str, Any], named: str) -> None:
    with pytest.raises(pyclover.UsageError, match=named):
        tiny_a.generate("x", **options)


def test_bytes_are_not_token_ids(tiny_a: Any) -> None:
    with pytest.raises(pyclover.UsageError, match="bytes"):
        tiny_a.generate(b"abc")


@pytest.mark.parametrize("prompt", ["", []])
def test_empty_prompt(tiny_a: Any, prompt: Any) -> None:
    with pytest.raises(pyclover.UsageError, match="prompt is empty"):
        tiny_a.generate(prompt)


def test_token_ids_as_numpy_integers(tiny_a: Any, run: dict[str, Any]) -> None:
    ids = np.array(run["prompt_ids"], dtype=np.int64)
    assert list(tiny_a.generate(ids, max_tokens=8, **GREEDY).tokens) == run["greedy"][:8]
    assert tiny_a.logits(ids).shape == (len(ids), 358)
    for wrong in ([1.5], ["a"], [2**40]):
        with pytest.raises(pyclover.UsageError, match="integers"):
            tiny_a.generate(wrong)


def test_context_longer_than_the_training(tiny_a: Any) -> None:
    assert tiny_a.warnings == ()
    with pyclover.Clover(ORACLE / "expected" / "tiny_a.gguf", n_ctx=5000, **EXACT) as m:
        assert len(m.warnings) == 1
        assert "trained for 4096" in m.warnings[0]


@pytest.mark.parametrize("tokens", [[-1], [358], [2**31 - 1]])
def test_token_ids_outside_the_vocabulary(tiny_a: Any, tokens: list[int]) -> None:
    with pytest.raises(pyclover.UsageError, match="not in the vocabulary of 358"):
        tiny_a.generate(tokens)
    with pytest.raises(pyclover.UsageError, match="not in the vocabulary of 358"):
        tiny_a.detokenize(tokens)


def test_lone_surrogate(tiny_a: Any) -> None:
    with pytest.raises(pyclover.UsageError, match="surrogate at position 1"):
        tiny_a.generate("a\ud800b")


@pytest.mark.parametrize(
    "option", [{"n_ctx": -1}, {"n_threads": 0}, {"n_batch": 0}, {"cache_type_k": "q3"}, {"flash_attn": "maybe"}]
)
def test_wrong_load_options(option: dict[str, Any]) -> None:
    (name,) = option
    with pytest.raises(pyclover.UsageError, match=name):
        pyclover.Clover(ORACLE / "expected" / "tiny_a.gguf", **option)


# ---- the prompt cache -----------------------------------------------------------------------------------------------


def fresh(tokens: list[int], n: int) -> tuple[list[int], Any]:
    with pyclover.Clover(ORACLE / "expected" / "tiny_a.gguf", n_ctx=1024, **EXACT) as m:
        got = m.generate(tokens, max_tokens=n, **GREEDY)
        return list(got.tokens), m._context.last_logits()


def test_continuing_reads_only_what_is_new(tiny_a: Any, run: dict[str, Any]) -> None:
    first = tiny_a.generate(run["prompt_ids"], max_tokens=16, **GREEDY)
    longer = run["prompt_ids"] + list(first.tokens) + [72, 105]
    second = tiny_a.generate(longer, max_tokens=16, **GREEDY)
    # the last chosen token was never computed
    assert second.stats.n_prompt_reused == len(run["prompt_ids"]) + 15
    assert second.stats.reread_from is None
    want, logits = fresh(longer, 16)
    assert list(second.tokens) == want
    np.testing.assert_allclose(tiny_a._context.last_logits(), logits, rtol=0, atol=1e-3)


def test_same_prompt_again_costs_nothing(tiny_a: Any, run: dict[str, Any]) -> None:
    """The recurrent state cannot be cut back; the checkpoint at the prompt's end brings it back."""
    tiny_a.generate(run["prompt_ids"], max_tokens=32, **GREEDY)
    again = tiny_a.generate(run["prompt_ids"], max_tokens=64, **GREEDY)
    assert again.stats.n_prompt_reused == len(run["prompt_ids"])
    assert again.stats.reread_from is None
    assert list(again.tokens) == run["greedy"]
    np.testing.assert_allclose(tiny_a._context.last_logits(), fresh(run["prompt_ids"], 64)[1], rtol=0, atol=1e-3)


def test_two_turns_back(tiny_a: Any, run: dict[str, Any]) -> None:
    """An earlier prompt is still there after a longer one."""
    tiny_a.generate(run["prompt_ids"], max_tokens=8, **GREEDY)
    tiny_a.generate(run["prompt_ids"] + run["greedy"][:8] + [65], max_tokens=8, **GREEDY)
    back = tiny_a.generate(run["prompt_ids"] + [66, 67], max_tokens=8, **GREEDY)
    assert back.stats.n_prompt_reused == len(run["prompt_ids"])
    assert list(back.tokens) == fresh(run["prompt_ids"] + [66, 67], 8)[0]


def test_what_cannot_be_cut_back_is_read_again(tiny_a: Any, run: dict[str, Any]) -> None:
    ids = run["prompt_ids"]
    tiny_a.generate(ids, max_tokens=8, **GREEDY)
    changed = [*ids[:5], 99, *ids[6:]]
    got = tiny_a.generate(changed, max_tokens=16, **GREEDY)
    assert got.stats.n_prompt_reused == 0
    assert got.stats.reread_from == 5
    assert list(got.tokens) == fresh(changed, 16)[0]


@pytest.mark.parametrize("n", [1, 5, 11, 12])
def test_a_prefix_of_what_was_read(tiny_a: Any, run: dict[str, Any], n: int) -> None:
    tiny_a.generate(run["prompt_ids"], max_tokens=8, **GREEDY)
    got = tiny_a.generate(run["prompt_ids"][:n], max_tokens=16, **GREEDY)
    assert list(got.tokens) == fresh(run["prompt_ids"][:n], 16)[0]


def test_random_walk_of_prompts_equals_fresh_contexts(tiny_a: Any) -> None:
    rng = np.random.default_rng(5)
    ids = rng.integers(0, 340, 30).tolist()
    for _ in range(25):
        cut = int(rng.integers(0, len(ids) + 1))
        ids = ids[:cut] + rng.integers(0, 340, int(rng.integers(1, 12))).tolist()
        got = tiny_a.generate(ids, max_tokens=int(rng.integers(1, 6)), ignore_eos=True, **GREEDY)
        want, logits = fresh(ids, len(got.tokens))
        np.testing.assert_allclose(tiny_a._context.last_logits(), logits, rtol=0, atol=1e-3)
        assert len(got.tokens) == len(want)
        ids += list(got.tokens)


# ---- cancelling and sharing -----------------------------------------------------------------------------------------


def test_cancel_from_another_thread_while_generating(tiny_a: Any) -> None:
    timer = threading.Timer(0.2, tiny_a.cancel)
    timer.start()
    got = tiny_a.generate("x", ignore_eos=True)
    timer.join()
    assert got.finish_reason in ("cancelled", "length")
    assert len(got.tokens) > 0
    assert tiny_a.generate("x", max_tokens=3, ignore_eos=True, **GREEDY).stats.n_generated == 3


def test_cancel_while_the_prompt_is_read() -> None:
    with pyclover.Clover(ORACLE / "expected" / "tiny_a.gguf", n_ctx=120_000, **EXACT) as m:
        prompt = np.random.default_rng(1).integers(0, 340, 119_000).tolist()
        started = time.monotonic()
        threading.Timer(0.3, m.cancel).start()
        got = m.generate(prompt, max_tokens=1)
        assert got.finish_reason == "cancelled"
        assert time.monotonic() - started < 1.3
        # the memory was given up, not left half written
        assert m._context.tokens() == []
        run = json.loads((ORACLE / "expected" / "tiny_a.json").read_text())["runs"][0]
        assert list(m.generate(run["prompt_ids"], max_tokens=8, **GREEDY).tokens) == run["greedy"][:8]


def test_closing_a_stream_early_leaves_the_context_usable(tiny_a: Any, run: dict[str, Any]) -> None:
    for piece in tiny_a.stream(run["prompt"], **GREEDY):
        assert piece.tokens
        break
    assert list(tiny_a.generate(run["prompt"], max_tokens=64, **GREEDY).tokens) == run["greedy"]


def test_an_open_stream_keeps_its_thread_out(tiny_a: Any, run: dict[str, Any]) -> None:
    stream = tiny_a.stream(run["prompt"], **GREEDY)
    next(stream)
    with pytest.raises(pyclover.BusyError, match="close"):
        tiny_a.generate("x", max_tokens=1)
    stream.close()
    assert tiny_a.generate("x", max_tokens=1, **GREEDY).finish_reason == "length"


def test_threads_take_turns(tiny_a: Any, expected: Callable[[str], dict[str, Any]]) -> None:
    runs = expected("tiny_a")["runs"]
    wrong: list[str] = []

    def work(run: dict[str, Any]) -> None:
        for _ in range(6):
            if list(tiny_a.generate(run["prompt"], max_tokens=64, **GREEDY).tokens) != run["greedy"]:
                wrong.append(run["prompt"])

    threads = [threading.Thread(target=work, args=(r,)) for r in runs]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []


def test_close_while_another_thread_generates() -> None:
    m = pyclover.Clover(ORACLE / "expected" / "tiny_a.gguf", n_ctx=4096, **EXACT)
    ended: list[object] = []

    def work() -> None:
        try:
            while True:
                ended.append(m.generate("x", ignore_eos=True).finish_reason)
        except pyclover.ClosedError as e:
            ended.append(e)

    thread = threading.Thread(target=work)
    thread.start()
    time.sleep(0.2)
    m.close()
    thread.join(10)
    assert not thread.is_alive()
    assert isinstance(ended[-1], pyclover.ClosedError)


def test_use_after_close(tiny_a: Any) -> None:
    tiny_a.close()
    tiny_a.close()
    for call in (
        lambda: tiny_a.generate("x"),
        lambda: tiny_a.tokenize("x"),
        lambda: tiny_a.logits([1]),
        tiny_a.memory,
        tiny_a.cancel,
    ):
        with pytest.raises(pyclover.ClosedError):
            call()


def test_use_after_fork(tiny_a: Any, run: dict[str, Any]) -> None:
    """Threads do not survive a fork: the child is told so instead of waiting for them for ever."""
    tiny_a.generate(run["prompt"], max_tokens=2, **GREEDY)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            tiny_a.generate("x", max_tokens=1)
        except pyclover.ClosedError as e:
            tiny_a.close()
            code = 0 if "fork" in str(e) else 2
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    assert list(tiny_a.generate(run["prompt"], max_tokens=64, **GREEDY).tokens) == run["greedy"]


# ---- sampling -------------------------------------------------------------------------------------------------------


def test_seeds(tiny_a: Any) -> None:
    a, b = (tiny_a.generate("The", max_tokens=32, temperature=1.5, seed=7, ignore_eos=True).tokens for _ in range(2))
    c = tiny_a.generate("The", max_tokens=32, temperature=1.5, seed=8, ignore_eos=True).tokens
    assert a == b
    assert a != c


def test_sampling_follows_the_distribution(tiny_a: Any, run: dict[str, Any]) -> None:
    """First tokens of 600 seeds against softmax of the oracle's logits: chi-square over the probable tokens."""
    logits = np.array(run["prompt_last_logits"])
    p = np.exp(logits - logits.max())
    p /= p.sum()
    off = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    n = 600
    counts = np.zeros(len(p))
    for seed in range(n):
        got = tiny_a.generate(run["prompt_ids"], max_tokens=1, seed=seed, ignore_eos=False, **off)
        counts[got.tokens[0] if got.tokens else tiny_a.info.eos] += 1
    likely = p * n >= 5
    chi2 = (((counts - p * n) ** 2) / (p * n))[likely].sum()
    degrees = int(likely.sum())
    assert degrees > 10
    assert chi2 < degrees + 5 * np.sqrt(2 * degrees)


@pytest.mark.parametrize(("option", "value", "kept"), [("top_k", 3, 3), ("top_k", 1, 1)])
def test_top_k(tiny_a: Any, run: dict[str, Any], option: str, value: int, kept: int) -> None:
    best = set(np.argsort(-np.array(run["prompt_last_logits"]))[:kept].tolist())
    seen = {
        tiny_a.generate(
            run["prompt_ids"], max_tokens=1, seed=s, temperature=5.0, top_p=1.0, min_p=0.0, **{option: value}
        ).tokens[0]
        for s in range(60)
    }
    assert seen == best


def test_top_p_and_min_p(tiny_a: Any, run: dict[str, Any]) -> None:
    logits = np.array(run["prompt_last_logits"])
    p = np.exp(logits - logits.max())
    p /= p.sum()
    order = np.argsort(-p)
    nucleus = set(order[: int(np.searchsorted(np.cumsum(p[order]), 0.6)) + 1].tolist())
    above = set(np.flatnonzero(p >= 0.2 * p.max()).tolist())
    base = {"temperature": 1.0, "top_k": 0, "max_tokens": 1}
    for seed in range(80):
        assert tiny_a.generate(run["prompt_ids"], seed=seed, top_p=0.6, min_p=0.0, **base).tokens[0] in nucleus
        assert tiny_a.generate(run["prompt_ids"], seed=seed, top_p=1.0, min_p=0.2, **base).tokens[0] in above


def test_logit_bias_bans(tiny_a: Any, run: dict[str, Any]) -> None:
    first = run["greedy"][0]
    got = tiny_a.generate(run["prompt_ids"], max_tokens=1, logit_bias={first: float("-inf")}, **GREEDY)
    logits = np.array(run["prompt_last_logits"])
    logits[first] = -np.inf
    assert got.tokens == (int(logits.argmax()),)


def test_penalties_see_the_prompt(tiny_a: Any, run: dict[str, Any]) -> None:
    """A large presence penalty over the whole context (-1) keeps every token of prompt and answer from coming again."""
    got = tiny_a.generate(run["prompt_ids"], max_tokens=40, presence_penalty=100, repeat_last_n=-1, **GREEDY)
    assert len(set(got.tokens)) == len(got.tokens)
    assert not set(got.tokens) & set(run["prompt_ids"])


def test_grammar(tiny_a: Any) -> None:
    got = tiny_a.generate("Say", max_tokens=30, grammar='root ::= ("yes" | "no") "!"', **GREEDY)
    assert got.text in ("yes!", "no!")
    assert got.finish_reason == "stop"


def test_json_schema(tiny_a: Any) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}, "b": {"enum": ["x", "y"]}},
        "required": ["a", "b"],
        "additionalProperties": False,
    }
    for given in (schema, json.dumps(schema)):
        got = json.loads(tiny_a.generate("{", max_tokens=80, json_schema=given, seed=3).text)
        assert set(got) == {"a", "b"}
        assert got["a"] in range(10)
        assert got["b"] in ("x", "y")


@pytest.mark.parametrize(
    "options",
    [
        {"grammar": "root ::= ("},
        {"grammar": ""},
        {"grammar": 'other ::= "a"'},
        {"grammar": "root ::= " + "(" * 5000 + '"a"' + ")" * 5000},
        {"json_schema": "{"},
        {"json_schema": {"type": "nonsense"}},
        {"json_schema": "[" * 5000 + "]" * 5000},
        {"json_schema": {"$ref": "#/definitions/none"}},
    ],
)
def test_unusable_grammars(tiny_a: Any, options: dict[str, Any]) -> None:
    with pytest.raises(pyclover.GrammarError):
        tiny_a.generate("x", max_tokens=4, **options)
    assert tiny_a.generate("x", max_tokens=1, **GREEDY).finish_reason == "length"


# ---- numbers --------------------------------------------------------------------------------------------------------


def test_score(tiny_a: Any, run: dict[str, Any]) -> None:
    ids = run["prompt_ids"]
    logits = tiny_a.logits(ids).astype(np.float64)
    want = [row[t] - np.log(np.exp(row - row.max()).sum()) - row.max() for row, t in zip(logits, ids[1:], strict=False)]
    got = tiny_a.score(run["prompt"])
    assert list(got.tokens) == ids
    np.testing.assert_allclose(got.logprobs, want, rtol=0, atol=1e-4)
    assert got.loglikelihood == pytest.approx(sum(want), abs=1e-3)
    assert got.perplexity == pytest.approx(np.exp(-np.mean(want)), rel=1e-4)
    with pytest.raises(pyclover.UsageError, match="fewer than 2"):
        tiny_a.score([1])


def test_memory_is_told_by_kind(tiny_a: Any) -> None:
    uses = tiny_a.memory()
    by_kind = {kind: sum(u.bytes for u in uses if u.kind == kind) for kind in ("weights", "context", "compute")}
    n_tensor_bytes = tiny_a.info.size_bytes
    assert n_tensor_bytes <= by_kind["weights"] <= n_tensor_bytes + 65536
    # all f32. One full layer: K and V, 1024 cells of 2 heads x 32; three GDN layers: conv 3 x 128, state 4 x 16 x 16
    kv = 2 * 1024 * 64 * 4
    recurrent = 3 * (3 * 128 + 4 * 16 * 16) * 4
    assert by_kind["context"] == pytest.approx(kv + recurrent, rel=0.02)
    assert by_kind["compute"] > 0


def test_stats(tiny_a: Any, run: dict[str, Any]) -> None:
    s = tiny_a.generate(run["prompt"], max_tokens=64, **GREEDY).stats
    assert (s.mode, s.n_prompt, s.n_prompt_reused, s.n_generated, s.n_decoded) == ("plain", 12, 0, 64, 63)
    assert s.prompt_s > 0
    assert s.decode_s > 0
    assert s.decode_tok_per_s == pytest.approx(63 / (s.decode_s + s.sample_s))
    assert json.loads(json.dumps(s.to_dict()))["n_generated"] == 64


# ---- state ----------------------------------------------------------------------------------------------------------


def test_state_round_trip(tiny_a: Any, run: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "state"
    tiny_a.generate(run["prompt_ids"], max_tokens=10, **GREEDY)
    held = tiny_a._context.tokens()
    tiny_a.save_state(path)
    with pyclover.Clover(ORACLE / "expected" / "tiny_a.gguf", n_ctx=512, **EXACT) as other:
        assert other.load_state(path) == len(held) == len(run["prompt_ids"]) + 9
        got = other.generate(held, max_tokens=55, **GREEDY)
        assert got.stats.n_prompt_reused == len(held)
        assert list(got.tokens) == run["greedy"][9:]
        np.testing.assert_allclose(other._context.last_logits(), fresh(run["prompt_ids"], 64)[1], rtol=0, atol=1e-3)


def test_damaged_states(tiny_a: Any, tmp_path: Path, run: dict[str, Any]) -> None:
    path = tmp_path / "state"
    tiny_a.generate(run["prompt_ids"], max_tokens=4, **GREEDY)
    tiny_a.save_state(path)
    data = path.read_bytes()
    rng = np.random.default_rng(2)
    for _ in range(60):
        at = int(rng.integers(0, len(data)))
        for damaged in (data[:at], data[:at] + bytes([data[at] ^ 0x41]) + data[at + 1 :]):
            path.write_bytes(damaged)
            with pytest.raises(pyclover.StateError, match="state"):
                tiny_a.load_state(path)
    path.write_bytes(data)
    assert tiny_a.load_state(path) == len(run["prompt_ids"]) + 3


def test_states_of_others(tiny_a: Any, tmp_path: Path, run: dict[str, Any]) -> None:
    path = tmp_path / "state"
    tiny_a.generate(run["prompt_ids"], max_tokens=4, **GREEDY)
    tiny_a.save_state(path)
    with (
        pyclover.Clover(ORACLE / "expected" / "tiny_b.gguf", n_ctx=512, **EXACT) as other,
        pytest.raises(pyclover.StateError, match="another model"),
    ):
        other.load_state(path)
    with (
        pyclover.Clover(ORACLE / "expected" / "tiny_a.gguf", n_ctx=512, **{**EXACT, "cache_type_k": "f16"}) as other,
        pytest.raises(pyclover.StateError, match="cache_type_k"),
    ):
        other.load_state(path)
    with (
        pyclover.Clover(ORACLE / "expected" / "tiny_a.gguf", n_ctx=8, **EXACT) as other,
        pytest.raises(pyclover.ContextFullError),
    ):
        other.load_state(path)
    with pytest.raises(pyclover.StateError, match="cannot save"):
        tiny_a.save_state(tmp_path / "nowhere" / "state")
    with pytest.raises(pyclover.StateError, match="cannot read"):
        tiny_a.load_state(tmp_path / "none")


def test_empty_state(tiny_a: Any, tmp_path: Path) -> None:
    tiny_a.save_state(tmp_path / "empty")
    assert tiny_a.load_state(tmp_path / "empty") == 0
