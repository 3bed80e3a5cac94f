"""What the tests of the answer parser share: how answers are fed to it, and how its deltas are put together again."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import pytest
from support import ROOT

from pyclover._native import buffer, check, ffi, lib, taken
from pyclover.chat import parser as parser_module
from pyclover.chat.answer import Answer, ChatDelta, ToolCall
from pyclover.chat.native_parser import NativeParser
from pyclover.chat.parser import AnswerParser

TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
_SPLIT = re.compile("(" + "|".join(map(re.escape, TAGS)) + ")")
ANSWERS = ROOT / "tests" / "data" / "answers.jsonl"
Piece = tuple[bytes, bool]  # bytes, special


@lru_cache(maxsize=1)
def recorded() -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Head and answers of tests/data/answers.jsonl, see tests/record_answers.py."""
    head, *answers = map(json.loads, ANSWERS.read_text(encoding="utf-8").splitlines())
    return head, answers


@lru_cache(maxsize=64)
def _prepared(request: str) -> str:
    with buffer() as out:
        check(lib.pc_chat_prepare(ffi.new("char[]", request.encode()), out))
        return taken(out).decode()


def prepare(*, thinking: bool = True, tools: Sequence[Any] = (), template: str = "") -> dict[str, Any]:
    """What llama.cpp prepares for a short question with the recorded template, that of the Qwen3.5 family."""
    request = {
        "template": template or recorded()[0]["template"],
        "messages": [{"role": "user", "content": "?"}],
        "tools": list(tools),
        "enable_thinking": thinking,
    }
    result: dict[str, Any] = json.loads(_prepared(json.dumps(request)))
    return result


def share_native_parsers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes a native parser once for all answers to one prompt: tests of every split make thousands."""
    made: dict[str, NativeParser] = {}

    def shared(prepared: Mapping[str, Any]) -> NativeParser:
        key = json.dumps(prepared, sort_keys=True)
        if key not in made:
            made[key] = NativeParser(prepared)
        return made[key]

    monkeypatch.setattr(parser_module, "NativeParser", shared)


def pieces(text: str) -> list[Piece]:
    """A text in which every tag is a special token."""
    return [(part.encode(), part in TAGS) for part in _SPLIT.split(text) if part]


def cut(given: Iterable[Piece], at: Callable[[int], Iterable[int]]) -> list[Piece]:
    """Ordinary pieces cut at the places that `at` names for their length."""
    result: list[Piece] = []
    for data, special in given:
        edges = [0, len(data)] if special else [0, *sorted(at(len(data))), len(data)]
        result += [(data[a:b], special) for a, b in itertools.pairwise(edges)]
    return result


def joined(deltas: Iterable[ChatDelta]) -> tuple[str, str, tuple[ToolCall, ...]]:
    """Content, reasoning and calls, as a client puts them together."""
    content = reasoning = ""
    calls: list[ToolCall] = []
    for delta in deltas:
        content += delta.content
        reasoning += delta.reasoning
        for part in delta.tool_calls:
            if part.index == len(calls):
                assert part.id
                assert part.name
                calls.append(ToolCall(id=part.id, name=part.name, arguments=part.arguments))
            else:
                assert part.id is None
                assert part.name is None
                call = calls[part.index]
                calls[part.index] = ToolCall(id=call.id, name=call.name, arguments=call.arguments + part.arguments)
    return content, reasoning, tuple(calls)


def numbered() -> Callable[[], str]:
    """Ids that are the same each time: call_0, call_1, …"""
    numbers = itertools.count()
    return lambda: f"call_{next(numbers)}"


def read(prepared: Mapping[str, Any], given: Iterable[Piece], *, pause: float = 0.0, **options: Any) -> Answer:
    """The answer in some pieces; the sum of its deltas is checked on the way.

    Args:
        pause: seconds that pass between two looks at the clock; 0: every piece is parsed.
    """
    ticks = itertools.count()
    # time that stands still is no pause; a parse never ends before it began otherwise
    clock = (lambda: 0.0) if pause == 0 else (lambda: next(ticks) * pause)
    parser = AnswerParser(prepared, TAGS, new_id=numbered(), clock=clock, **options)
    deltas = [parser.push(data, special) for data, special in given]
    deltas.append(parser.finish())
    answer = parser.answer
    assert joined(deltas) == (answer.content, answer.reasoning, answer.tool_calls)
    assert not parser.finish()
    return answer
