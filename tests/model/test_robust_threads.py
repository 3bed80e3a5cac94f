"""Several threads, several models: the right text, and no crash."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable
from typing import Any

import pytest
from support import EXACT, ORACLE

import pyclover

TINY_A = ORACLE / "expected" / "tiny_a.gguf"
pytestmark = pytest.mark.timeout(300)


def together(*work: Callable[[], object]) -> list[BaseException]:
    """Runs all at once and waits; returns what they raised."""
    raised: list[BaseException] = []

    def guarded(f: Callable[[], object]) -> None:
        try:
            f()
        except BaseException as e:
            raised.append(e)

    threads = [threading.Thread(target=guarded, args=(f,), daemon=True) for f in work]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert not any(t.is_alive() for t in threads), "a thread is stuck"
    return raised


@pytest.fixture
def runs(expected: Callable[[str], dict[str, Any]]) -> list[dict[str, Any]]:
    result: list[dict[str, Any]] = expected("tiny_a")["runs"]
    return result


def reader(m: Any, run: dict[str, Any], n: int) -> Callable[[], None]:
    def work() -> None:
        for i in range(n):
            if i % 2:
                tokens = [t for p in m.stream(run["prompt"], max_tokens=64, temperature=0) for t in p.tokens]
            else:
                tokens = list(m.generate(run["prompt"], max_tokens=64, temperature=0).tokens)
            assert tokens == run["greedy"]

    return work


def test_two_threads_on_one_object(tiny_a: Any, runs: list[dict[str, Any]]) -> None:
    assert together(reader(tiny_a, runs[0], 6), reader(tiny_a, runs[1], 6)) == []


def test_two_objects_on_one_file(runs: list[dict[str, Any]]) -> None:
    def work(run: dict[str, Any]) -> Callable[[], None]:
        def whole_life() -> None:
            for _ in range(3):
                with pyclover.Clover(TINY_A, n_ctx=256, **EXACT) as m:
                    reader(m, run, 2)()

        return whole_life

    assert together(work(runs[0]), work(runs[1])) == []


def test_everything_at_once_on_one_object(tiny_a: Any, runs: list[dict[str, Any]]) -> None:
    """Reading calls answer right beside a generation."""
    ids = tiny_a.tokenize(runs[0]["prompt"])
    assert ids == runs[0]["prompt_ids"]
    want = tiny_a.logits(ids)

    def look() -> None:
        for _ in range(40):
            assert tiny_a.tokenize(runs[0]["prompt"]) == ids
            assert tiny_a.detokenize(ids) == runs[0]["prompt"]
            assert tiny_a.memory()

    def compute() -> None:
        for _ in range(6):
            assert (tiny_a.logits(ids) == want).all()
            tiny_a.clear()
            assert len(tiny_a.score(ids).logprobs) == len(ids) - 1

    assert together(reader(tiny_a, runs[0], 4), look, compute, reader(tiny_a, runs[1], 4)) == []


def test_cancel_storm(tiny_a: Any, runs: list[dict[str, Any]]) -> None:
    """Cancelled or not, a text is a beginning of the right one, and the next is whole."""
    run = runs[0]
    over = threading.Event()

    def storm() -> None:
        rng = random.Random(3)
        while not over.wait(rng.random() * 0.002):
            tiny_a.cancel()

    seen = set()

    def generate() -> None:
        try:
            for _ in range(60):
                got = tiny_a.generate(run["prompt"], max_tokens=64, temperature=0)
                seen.add(got.finish_reason)
                assert list(got.tokens) == run["greedy"][: len(got.tokens)]
                with contextlib.suppress(pyclover.CancelledError):
                    tiny_a.logits(run["prompt_ids"])
        finally:
            over.set()

    assert together(generate, storm, storm) == []
    assert "cancelled" in seen
    assert list(tiny_a.generate(run["prompt"], max_tokens=64, temperature=0).tokens) == run["greedy"]


@pytest.mark.parametrize("seed", range(6))
def test_close_while_others_work(seed: int, runs: list[dict[str, Any]]) -> None:
    m = pyclover.Clover(TINY_A, n_ctx=2048, **{**EXACT, "n_threads": 1 + seed % 2})
    begun = threading.Barrier(4)

    def until_closed(call: Callable[[], object]) -> Callable[[], None]:
        def work() -> None:
            begun.wait(30)
            with contextlib.suppress(pyclover.ClosedError):
                while True:
                    call()

        return work

    generate = until_closed(lambda: m.generate(runs[0]["prompt"], max_tokens=200, temperature=0, ignore_eos=True))
    stream = until_closed(lambda: list(m.stream(runs[1]["prompt"], temperature=0, max_tokens=50)))
    look = until_closed(lambda: (m.tokenize("a fox"), m.memory()))

    def close() -> None:
        begun.wait(30)
        threading.Event().wait(random.Random(seed).random() * 0.1)
        m.close()
        assert m.closed

    assert together(generate, stream, look, close) == []


def test_two_closers(runs: list[dict[str, Any]]) -> None:
    for _ in range(20):
        m = pyclover.Clover(TINY_A, n_ctx=64, **EXACT)
        assert together(m.close, m.close, m.close) == []


def test_a_stream_moves_to_another_thread(tiny_a: Any, runs: list[dict[str, Any]]) -> None:
    """Begun here, read on there: the context is free afterwards."""
    stream = tiny_a.stream(runs[0]["prompt"], max_tokens=64, temperature=0)
    tokens = list(next(stream).tokens)

    def rest() -> None:
        tokens.extend(t for p in stream for t in p.tokens)

    assert together(rest) == []
    assert tokens == runs[0]["greedy"]
    assert list(tiny_a.generate(runs[1]["prompt"], max_tokens=64, temperature=0).tokens) == runs[1]["greedy"]
