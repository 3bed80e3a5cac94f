"""The parts of an answer: what is new in it, and arguments of calls."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyclover.chat.answer import ChatDelta, ToolCall, ToolCallDelta
from pyclover.chat.deltas import Deltas, new_call_id
from pyclover.chat.native_parser import Call
from pyclover.errors import CloverError, ToolArgumentsError


def test_arguments() -> None:
    assert ToolCall(id="1", name="f", arguments='{"a": [1, null]}').parsed == {"a": [1, None]}
    assert ToolCall(id="1", name="f", arguments="").parsed == {}


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ('{"a": "b', "are not JSON"),
        ("[1]", "are no JSON object"),
        ("3", "are no JSON object"),
        ('{"a":' + "[" * 100_000, "are nested too deeply"),
    ],
)
def test_arguments_that_are_no_object(arguments: str, why: str) -> None:
    call = ToolCall(id="1", name="f", arguments=arguments)
    with pytest.raises(ToolArgumentsError, match=f"^the arguments of the call of f {why}") as raised:
        _ = call.parsed
    assert raised.value.call is call
    assert isinstance(raised.value, CloverError)
    assert isinstance(raised.value, ValueError)
    assert len(str(raised.value)) < 250


def test_a_call_as_openai_writes_it() -> None:
    # as in the message of a chat completion of the OpenAI API
    assert ToolCall(id="call_1", name="f", arguments="{}").to_dict() == {
        "id": "call_1",
        "type": "function",
        "function": {"name": "f", "arguments": "{}"},
    }


def test_ids_are_as_openais() -> None:
    ids = {new_call_id() for _ in range(50)}
    assert len(ids) == 50
    assert all(id.startswith("call_") and len(id) == 29 and id[5:].isalnum() and id.isascii() for id in ids)


def test_an_empty_delta_is_false() -> None:
    assert not ChatDelta()
    assert ChatDelta(content="a")
    assert ChatDelta(reasoning="a")
    assert ChatDelta(tool_calls=(ToolCallDelta(index=0, arguments="a"),))


def test_a_call_comes_in_parts() -> None:
    deltas = Deltas(new_id=lambda: "new")
    assert deltas.update("a", "b", [Call("", "", "")]) == ChatDelta(content="a", reasoning="b")
    first = deltas.update("a", "b", [Call("", "f", '{"x')])
    assert first == ChatDelta(tool_calls=(ToolCallDelta(index=0, id="new", name="f", arguments='{"x'),))
    second = deltas.update("a", "b", [Call("", "f", '{"x": 1}'), Call("own", "g", "")])
    assert second.tool_calls == (
        ToolCallDelta(index=0, arguments='": 1}'),
        ToolCallDelta(index=1, id="own", name="g", arguments=""),
    )
    assert not deltas.update("a", "b", [Call("", "f", '{"x": 1}'), Call("own", "g", "")])
    assert not deltas.retracted


def test_a_call_waits_for_its_id_where_there_may_be_one() -> None:
    deltas = Deltas(wait_for_ids=True, new_id=lambda: "new")
    assert not deltas.update("", "", [Call("", "f", "{}")])
    assert deltas.update("", "", [Call("own", "f", "{}")]).tool_calls[0].id == "own"
    assert not deltas.update("", "", [Call("own", "f", "{}"), Call("", "g", "")])
    later = deltas.update("", "", [Call("own", "f", "{}"), Call("", "g", "{"), Call("", "h", "")])
    assert later.tool_calls == (ToolCallDelta(index=1, id="new", name="g", arguments="{"),)
    last = deltas.update("", "", [Call("own", "f", "{}"), Call("", "g", "{}"), Call("", "h", "{}")], final=True)
    assert [(part.index, part.id, part.arguments) for part in last.tool_calls] == [(1, None, "}"), (2, "new", "{}")]


@settings(deadline=None)
@given(st.lists(st.tuples(st.text("ab", max_size=4), st.text("ab", max_size=4)), max_size=6))
def test_nothing_is_taken_back(states: list[tuple[str, str]]) -> None:
    deltas = Deltas(new_id=lambda: "new")
    content, arguments = "", ""
    for state in states:
        delta = deltas.update(state[0], "", [Call("", "f", state[1])])
        content += delta.content
        arguments += "".join(part.arguments for part in delta.tool_calls)
        assert (deltas.content, deltas.tool_calls[0].arguments) == (content, arguments)
    grows = all(
        later[i].startswith(earlier[i]) or earlier[i].startswith(later[i])
        for i in (0, 1)
        for earlier in states
        for later in states
    )
    assert deltas.retracted <= (not grows)
