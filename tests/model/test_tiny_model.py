"""The model in the package: what it is, that it equals the reference, that it answers, drafts and writes blocks."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import numpy as np
import pytest
from support import EXACT, fixed_draft

import pyclover
from pyclover import BlockDiffusion
from pyclover.files.embedded import embedded_path

# Everyday wordings; the expected answers are arithmetic and spelling, not the model's own output.
QUESTIONS = [
    ("What is 12 + 7?", "19"),
    ("Spell the word planet backwards.", "t-e-n-a-l-p"),
    ("Sort 30, 4, 17.", "4, 17, 30"),
    ("What is 6 times 7?", "42"),
    ("Count from 1 to 5.", "1, 2, 3, 4, 5"),
    ("How many minutes are 3 hours?", "180 minutes"),
    ("Which is larger, 43 or 58?", "58"),
]


@pytest.fixture(scope="module")
def tiny() -> Iterator[pyclover.Clover]:
    with pyclover.Clover("tiny", n_rs_seq=7, **EXACT) as m:
        yield m


def ask(m: pyclover.Clover, question: str, **how: object) -> pyclover.Completion:
    prompt = m.apply_chat_template([{"role": "user", "content": question}], thinking=bool(how.pop("thinking", True)))
    if not isinstance(how.get("speculation"), BlockDiffusion):
        how.setdefault("temperature", 0)
    return m.generate(prompt, max_tokens=112, **how)  # type: ignore[arg-type]


def answer(text: str) -> str:
    return text.rpartition("</think>")[2].strip()


def test_it_ships_small_and_complete(tiny: pyclover.Clover) -> None:
    assert embedded_path("tiny").stat().st_size <= 8_000_000
    assert tiny.warnings == ()
    assert tiny.chat_template is not None
    able = pyclover.inspect(embedded_path("tiny")).capabilities
    assert able.plain and able.draft_self and able.block_diffusion  # noqa: PT018
    assert tiny.info.mask >= 0
    assert tiny.block_params.block_length == 8


@pytest.mark.parametrize("thinking", [True, False])
def test_it_answers_everyday_questions(tiny: pyclover.Clover, thinking: bool) -> None:
    right = [want in answer(ask(tiny, question, thinking=thinking).text) for question, want in QUESTIONS]
    assert sum(right) >= len(QUESTIONS) - 1, right


def test_it_equals_the_reference(tiny: pyclover.Clover, reference: ModuleType) -> None:
    kv, tensors = reference.load(str(embedded_path("tiny")))
    for question, _ in QUESTIONS[:3]:
        prompt = tiny.tokenize(tiny.apply_chat_template([{"role": "user", "content": question}]))
        ids = prompt + list(ask(tiny, question).tokens)
        np.testing.assert_allclose(tiny.logits(ids), reference.forward(kv, tensors, ids), rtol=0, atol=1e-3)
        cache = reference.Cache(kv, tensors)
        reference.decode(cache, prompt)
        for n_rows in (8, 32):
            rows = [ids[len(prompt)], *[tiny.info.mask] * (n_rows - 1)]
            np.testing.assert_allclose(tiny.preview(prompt, rows), reference.preview(cache, rows), rtol=0, atol=1e-3)


def test_drafting_keeps_the_text_and_is_mostly_right(tiny: pyclover.Clover) -> None:
    drafted = accepted = 0
    for question, _ in QUESTIONS:
        plain = ask(tiny, question)
        got = ask(tiny, question, speculation=fixed_draft(n_max=7))
        assert got.tokens == plain.tokens
        drafted, accepted = drafted + got.stats.drafted, accepted + got.stats.accepted
    assert accepted / drafted > 0.6


def test_block_diffusion_answers(tiny: pyclover.Clover) -> None:
    right = []
    for question, want in QUESTIONS:
        got = ask(tiny, question, speculation=BlockDiffusion(threshold=0.9))
        right.append(want in answer(got.text))
        assert got.finish_reason == "stop"
        assert got.stats.tokens_per_pass > 1
    assert sum(right) >= len(QUESTIONS) - 2, right
