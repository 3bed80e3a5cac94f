"""Recorded answers: however they are cut, the parser finds what another reading of the format finds in them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from answer_parts import Piece, prepare, read, recorded, share_native_parsers

HEAD, ANSWERS = recorded()
KINDS = list(dict.fromkeys(answer["kind"] for answer in ANSWERS))


def _given(answer: dict[str, Any]) -> list[Piece]:
    return [(part[0].encode(), len(part) == 1) for part in answer["parts"]]


def _prepared(answer: dict[str, Any]) -> dict[str, Any]:
    return prepare(thinking=answer["thinking"], tools=HEAD["tools"][answer["tools"]])


def test_there_are_answers_of_every_sort() -> None:
    assert len(ANSWERS) >= 200
    wants = [answer["want"] for answer in ANSWERS if answer["want"]]
    assert sum(bool(want["calls"]) for want in wants) >= 5
    assert sum(bool(want["reasoning"]) for want in wants) >= 50
    assert sum(not want["reasoning"] for want in wants) >= 50


@pytest.mark.parametrize("kind", KINDS)
def test_every_split_gives_the_same_answer(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    share_native_parsers(monkeypatch)
    for answer in (answer for answer in ANSWERS if answer["kind"] == kind):
        prepared, given, want = _prepared(answer), _given(answer), answer["want"]
        whole = read(prepared, given)
        if want is not None:
            assert (whole.reasoning, whole.content) == (want["reasoning"], want["content"])
            assert [[call.name, call.parsed] for call in whole.tool_calls] == want["calls"]
        for i, (data, special) in enumerate(given):
            for at in range(1, len(data)) if not special else ():
                split = [*given[:i], (data[:at], False), (data[at:], False), *given[i + 1 :]]
                found = read(prepared, split)
                assert (found.content, found.reasoning, found.tool_calls, found.notes) == (
                    whole.content,
                    whole.reasoning,
                    whole.tool_calls,
                    whole.notes,
                )


def test_tokens_of_thoughts_are_counted() -> None:
    for answer in ANSWERS:
        if answer["want"] is None:
            continue
        # pieces that stand for several tokens come as one token with text and others without
        given: list[Piece] = []
        for part in answer["parts"]:
            given.append((part[0].encode(), len(part) == 1))
            given += [(b"", False)] * (part[1] - 1 if len(part) > 1 else 0)
        found = read(_prepared(answer), given)
        assert found.n_reasoning == answer["want"]["n_reasoning"], json.dumps(answer)
