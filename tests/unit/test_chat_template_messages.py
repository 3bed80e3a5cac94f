"""Conversations and descriptions of tools: what is taken, into which form, and what a wrong one says."""

from __future__ import annotations

from collections import UserDict
from types import MappingProxyType
from typing import Any

import pytest

from pyclover.chat.messages import checked_messages
from pyclover.chat.tools import ToolChoice, checked_choice, checked_tools
from pyclover.errors import UsageError

USER = {"role": "user", "content": "hi"}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}


def assistant(**more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": None, **more}


def test_an_openai_conversation_keeps_what_templates_read() -> None:
    given = [
        {"role": "developer", "content": "Be brief."},
        {"content": [{"type": "text", "text": "a"}, {"text": "b", "type": "text"}], "role": "user", "name": "Ann"},
        assistant(tool_calls=[CALL], reasoning_content="why", refusal=None, annotations=[], audio=None),
        {"role": "tool", "tool_call_id": "c1", "content": ""},
        {"role": "assistant", "content": "done", "tool_calls": None, "reasoning_content": None},
    ]
    got = checked_messages(given)
    assert got == [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": "Ann"},
        {"role": "assistant", "content": "", "reasoning_content": "why", "tool_calls": [CALL]},
        {"role": "tool", "content": "", "tool_call_id": "c1"},
        {"role": "assistant", "content": "done"},
    ]
    # llama.cpp's order of keys: templates that write a whole message as JSON show it
    assert list(got[2]) == ["role", "content", "reasoning_content", "tool_calls"]
    assert list(got[2]["tool_calls"][0]) == ["type", "function", "id"]
    given[0]["content"] = "changed"
    assert got[0]["content"] == "Be brief."


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{ "a" : 1 }', '{ "a" : 1 }'),
        ({"a": [1, 2.5, None], "ä": "日"}, '{"a":[1,2.5,null],"ä":"日"}'),
        (MappingProxyType({"a": (1, 2)}), '{"a":[1,2]}'),
        (None, "{}"),
        ("", "{}"),
        ("not JSON", "not JSON"),  # a model wrote it, and some templates can show it
    ],
)
def test_arguments_of_calls_become_json_text(arguments: Any, text: str) -> None:
    call = {"function": {"name": "f", "arguments": arguments}}
    assert checked_messages([assistant(tool_calls=[call])])[0]["tool_calls"] == [
        {"type": "function", "function": {"name": "f", "arguments": text}}
    ]


def test_other_mappings_and_sequences_are_taken() -> None:
    assert checked_messages((UserDict(USER),)) == [USER]


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ("hi", "messages must be a list"),
        (USER, "messages must be a list"),
        (None, "messages must be a list"),
        ([], "messages is empty"),
        ([USER, "hi"], r"messages\[1\] must be a mapping"),
        ([{"content": "x"}], r'messages\[0\] has no "role": use one of system, developer, user, assistant, tool'),
        ([{"role": "bot", "content": "x"}], r"messages\[0\] has the role 'bot'"),
        ([{"role": ["user"], "content": "x"}], r"messages\[0\] has the role \['user'\]"),
        ([USER, {"role": "user"}], r"messages\[1\]\.content is missing"),
        ([assistant()], r"messages\[0\]\.content is missing"),
        ([assistant(tool_calls=[])], r"messages\[0\]\.content is missing"),
        ([{"role": "user", "content": 5}], r"messages\[0\]\.content must be a text or a list of text parts, not 5"),
        ([{"role": "user", "content": b"x"}], r"messages\[0\]\.content must be a text"),
        ([{"role": "user", "content": ["x"]}], r"messages\[0\]\.content\[0\] must be"),
        ([{"role": "user", "content": [{"type": "text"}]}], r'messages\[0\]\.content\[0\] has no "text"'),
        ([{"role": "user", "content": [{"type": "text", "text": 1}]}], r"messages\[0\]\.content\[0\]\.text must be"),
        ([{"role": "user", "content": [{"type": "smell"}]}], r"messages\[0\]\.content\[0\]\.type is 'smell'"),
        ([{"role": "user", "content": "x", "tool_calls": [CALL]}], r"messages\[0\]\.tool_calls is not for the role"),
        ([{"role": "user", "content": "x", "images": ["p.png"]}], r"messages\[0\]\.'images' is not read"),
        ([assistant(function_call={"name": "f"}, content="x")], r"'function_call' is not read"),
        ([assistant(tool_calls={"a": 1})], r"messages\[0\]\.tool_calls must be a list"),
        ([assistant(tool_calls=["f"])], r"messages\[0\]\.tool_calls\[0\] must be"),
        ([assistant(tool_calls=[{"type": "custom"}])], r"tool_calls\[0\]\.type is 'custom'"),
        ([assistant(tool_calls=[{"function": {"name": ""}}])], r"tool_calls\[0\]\.function\.name must be"),
        ([assistant(tool_calls=[{"function": {"name": "f", "arguments": 3}}])], r"function\.arguments must be"),
        ([assistant(tool_calls=[{"function": {"name": "f", "arguments": {"a": {1}}}}])], "has no form in JSON"),
        ([assistant(tool_calls=[{"function": {"name": "f", "arguments": {"a": float("nan")}}}])], "no form in JSON"),
        ([USER, {"role": "user", "content": "ab\ud800"}], r"messages\[1\]\.content has half a character .* position 2"),
    ],
)
def test_a_wrong_conversation_names_message_and_key(messages: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        checked_messages(messages)
    assert caught.value.option == "messages"


@pytest.mark.parametrize(
    ("part", "what"),
    [
        ({"type": "image_url", "image_url": {"url": "data:,"}}, "an image"),
        ({"type": "input_audio", "input_audio": {"data": ""}}, "audio"),
        ({"type": "file", "file": {}}, "a file"),
        ({"type": "video_url"}, "a video"),
    ],
)
def test_images_audio_and_files_are_refused_with_the_message_that_has_them(part: Any, what: str) -> None:
    messages = [USER, {"role": "user", "content": [{"type": "text", "text": "look"}, part]}]
    with pytest.raises(UsageError, match=rf"messages\[1\]\.content\[1\] is {what}: this model reads text only"):
        checked_messages(messages)


def test_deep_arguments_are_an_error_of_one_sentence() -> None:
    deep: Any = {}
    for _ in range(100_000):
        deep = {"a": deep}
    with pytest.raises(UsageError, match="no form in JSON"):
        checked_messages([assistant(tool_calls=[{"function": {"name": "f", "arguments": deep}}])])


def test_tools_keep_the_keys_that_llama_cpp_gives_to_templates() -> None:
    given = [
        {"type": "function", "function": {"name": "f", "strict": True, "parameters": {"type": "object"}}, "x": 1},
        {"function": {"description": "d", "name": "g"}},
    ]
    assert checked_tools(given) == [
        {"type": "function", "function": {"name": "f", "description": "", "parameters": {"type": "object"}}},
        {"type": "function", "function": {"name": "g", "description": "d", "parameters": {}}},
    ]
    assert checked_tools(None) == checked_tools([]) == []


@pytest.mark.parametrize(
    ("tools", "said"),
    [
        ({}, "tools must be a list"),
        ("f", "tools must be a list"),
        ([1], r"tools\[0\] must be"),
        ([{"type": "web_search"}], r"tools\[0\]\.type is 'web_search'"),
        ([{"type": "function"}], r"tools\[0\]\.function must be"),
        ([{"function": {"description": "x"}}], r"tools\[0\]\.function\.name must be"),
        ([{"function": {"name": "f", "description": 1}}], r"tools\[0\]\.function\.description must be"),
        ([{"function": {"name": "f", "parameters": "x"}}], r"tools\[0\]\.function\.parameters must be"),
        (
            [{"function": {"name": "f"}}, {"function": {"name": "f"}}],
            r"tools\[1\]\.function\.name is 'f', which another",
        ),
    ],
)
def test_a_wrong_tool_is_named(tools: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        checked_tools(tools)


def test_the_choice_of_a_tool() -> None:
    tools = checked_tools([{"function": {"name": "f"}}])
    assert checked_choice("auto", []) == ToolChoice("auto", "")
    assert checked_choice("none", tools) == ToolChoice("none", "")
    assert checked_choice({"type": "function", "function": {"name": "f"}}, tools) == ToolChoice("required", "f")
    for wrong, said in [
        ("any", "is 'any'"),
        (None, "is None"),
        ({"type": "function"}, "must be"),
        ({"type": "function", "function": {"name": "g"}}, "asks for 'g', which is not among the tools"),
    ]:
        with pytest.raises(UsageError, match=said):
            checked_choice(wrong, tools)
    with pytest.raises(UsageError, match="there are no tools"):
        checked_choice("required", [])
