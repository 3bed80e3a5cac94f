"""The parser of answers with the tokens of a real vocabulary: only the special token of a tag is a tag."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from answer_parts import prepare

import pyclover
from pyclover.chat.answer import Answer
from pyclover.chat.parser import AnswerParser, tag_candidates


@pytest.fixture(scope="module")
def tiny() -> Iterator[pyclover.Clover]:
    with pyclover.Clover("tiny", n_ctx=64, n_threads=1) as m:
        yield m


def _read(m: pyclover.Clover, tokens: list[int]) -> Answer:
    assert m.chat_template is not None
    prepared = prepare(template=m.chat_template)
    ids = {tag: m.tokenize(tag, add_special=False) for tag in tag_candidates(prepared)}
    special = {found[0]: tag for tag, found in ids.items() if len(found) == 1}
    assert set(special.values()) == {"<think>", "</think>", "<tool_call>", "</tool_call>"}
    parser = AnswerParser(prepared, tuple(special.values()))
    for token in tokens:
        if token in special:
            parser.push(special[token].encode(), True)
        else:
            parser.push(m.detokenize([token]).encode())
    parser.finish()
    return parser.answer


def test_ordinary_tokens_that_spell_a_tag_change_nothing(tiny: pyclover.Clover) -> None:
    spelled = [
        token for part in ("a ", "</", "thi", "nk", ">", " b") for token in tiny.tokenize(part, add_special=False)
    ]
    (end,) = tiny.tokenize("</think>", add_special=False)
    assert end not in spelled
    answer = _read(tiny, [*spelled, end, *spelled])
    assert answer.reasoning == "a </think> b"
    assert answer.content == "a </think> b"
    assert answer.n_reasoning == len(spelled)


def test_the_special_token_ends_the_thought(tiny: pyclover.Clover) -> None:
    tokens = tiny.tokenize("a </think> b", add_special=False)
    answer = _read(tiny, tokens)
    assert (answer.reasoning, answer.content) == ("a ", "b")
