"""What a template gets to read, by what llama.cpp found that it can take; and jinja2 as models' templates need it."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from pyclover.chat import families
from pyclover.chat.messages import checked_messages
from pyclover.chat.normalise import template_names
from pyclover.chat.template import MAX_TEXT, render_names
from pyclover.errors import TemplateError, UsageError

TEXT_ONLY = {"supports_string_content": True, "supports_typed_content": False}
PARTS_ONLY = {"supports_string_content": False, "supports_typed_content": True}
PARTS = [{"type": "text", "text": "one"}, {"type": "text", "text": ""}, {"type": "text", "text": "two"}]


def names(
    messages: Any, caps: dict[str, bool], *, source: str = "", thinking: bool = True, **more: Any
) -> dict[str, Any]:
    request = {
        "template": source,
        "messages": checked_messages(messages),
        "tools": [],
        "bos_token": "<s>",
        "eos_token": "</s>",
        "variables": {},
        "json_schema": None,
        "add_generation_prompt": True,
        **more,
    }
    return template_names(request, caps, thinking=thinking)


def test_content_in_the_form_that_the_template_takes() -> None:
    messages = [{"role": "user", "content": PARTS}, {"role": "user", "content": "text"}]

    def contents(caps: dict[str, bool]) -> list[Any]:
        return [m["content"] for m in names(messages, caps)["messages"]]

    assert contents(TEXT_ONLY) == ["one\n\ntwo", "text"]
    assert contents(PARTS_ONLY) == [PARTS, [{"type": "text", "text": "text"}]]
    assert contents({**TEXT_ONLY, "supports_typed_content": True}) == [PARTS, "text"]
    assert names([{"role": "user", "content": []}], TEXT_ONLY)["messages"][0]["content"] == ""


def test_a_template_without_a_system_role() -> None:
    caps = {**TEXT_ONLY, "supports_system_role": False}
    messages = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "hi"}]
    assert names(messages, caps)["messages"] == [{"role": "user", "content": "Be brief.\nhi"}]
    assert names(messages[:1], caps)["messages"] == []
    assert names(messages[1:], caps)["messages"] == messages[1:]
    both = {**PARTS_ONLY, "supports_system_role": False}
    assert names(messages, both)["messages"][0]["content"] == [
        {"type": "text", "text": "Be brief."},
        {"type": "text", "text": "\n"},
        {"type": "text", "text": "hi"},
    ]


def test_developer_is_system_but_for_templates_that_know_it() -> None:
    messages = [{"role": "developer", "content": "x"}]
    assert names(messages, TEXT_ONLY)["messages"][0]["role"] == "system"
    assert names(messages, TEXT_ONLY, source="<|channel|>")["messages"][0]["role"] == "developer"


def test_arguments_as_text_or_as_an_object() -> None:
    def called(arguments: str, objects: bool) -> Any:
        call = {"function": {"name": "f", "arguments": arguments}}
        messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": None, "tool_calls": [call]}]
        got = names(messages, {**TEXT_ONLY, "supports_object_arguments": objects})["messages"][1]
        return got["tool_calls"][0]["function"]["arguments"]

    assert called('{"b": 1, "a": [2]}', True) == {"b": 1, "a": [2]}
    assert called('{"b": 1, "a": [2]}', False) == '{"b": 1, "a": [2]}'
    assert called("cut off {", False) == "cut off {"
    with pytest.raises(UsageError, match=r"messages\[1\]\.tool_calls\[0\]\.function\.arguments is not JSON"):
        called("cut off {", True)


def test_the_other_names() -> None:
    today = datetime.datetime.now()
    got = names([{"role": "user", "content": "x"}], TEXT_ONLY, thinking=False)
    assert got["enable_thinking"] is False
    assert "tools" not in got
    assert (got["bos_token"], got["eos_token"], got["add_generation_prompt"]) == ("<s>", "</s>", True)
    assert got["date_string"] in {(today + datetime.timedelta(days=d)).strftime("%d %b %Y") for d in (-1, 0, 1)}

    more = {"preserve_reasoning": True, "reasoning_effort": "low", "drop_thinking": True, "date_string": "never"}
    tools = [{"type": "function", "function": {"name": "f", "description": "", "parameters": {}}}]
    got = names([{"role": "user", "content": "x"}], TEXT_ONLY, variables=more, tools=tools, add_generation_prompt=False)
    assert got["tools"] == tools
    assert "add_generation_prompt" not in got
    assert (got["preserve_thinking"], got["clear_thinking"], got["truncate_history_thinking"]) == (True, False, False)
    assert got["drop_thinking"] is True  # what was given wins
    assert got["reasoning_strength"] == "low"
    assert got["date_string"] == "never"


def test_deepseek_v4_gets_results_in_the_order_of_the_calls() -> None:
    source = "{% set dsml_token = 'DSML' %} tool_calls"
    calls = [{"id": i, "function": {"name": "f", "arguments": "{}"}} for i in ("a", "b")]
    messages = checked_messages(
        [
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": None, "tool_calls": calls},
            {"role": "tool", "tool_call_id": "b", "content": "2"},
            {"role": "tool", "tool_call_id": "a", "content": "1"},
            {"role": "user", "content": "y"},
        ]
    )
    assert [m["content"] for m in families.adjusted(source, messages)] == ["x", "", "1", "2", "y"]
    assert families.adjusted(source + " function_calls", messages) == messages


def test_thoughts_where_families_look_for_them() -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": "{}"}}
    message = {"role": "assistant", "content": "c", "reasoning_content": "r", "tool_calls": [call]}
    assert families.adjusted("<|channel|>", [message])[0] == {
        "role": "assistant",
        "reasoning_content": "r",
        "thinking": "r",
        "tool_calls": [call],
    }
    assert families.adjusted("List of tools: [", [message])[0] == {**message, "thinking": "r"}
    ministral = "[SYSTEM_PROMPT] [TOOL_CALLS] [ARGS]"
    assert families.adjusted(ministral, [message])[0] == {
        "role": "assistant",
        "content": [{"type": "thinking", "thinking": "r"}, {"type": "text", "text": "c"}],
        "tool_calls": [call],
    }
    assert families.adjusted(ministral + "[CALL_ID]", [message]) == [message]


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ {'a': 'é<&>', 'b': [1, none]} | tojson }}", '{"a": "é<&>", "b": [1, null]}'),
        ("{{ {'a': 1} | tojson(indent=2) }}", '{\n  "a": 1\n}'),
        (
            "{{ {'b': 1, 'a': 'é'} | tojson(ensure_ascii=True, separators=(',', ':'), sort_keys=True) }}",
            '{"a":"\\u00e9","b":1}',
        ),
        ("{{ nothing | tojson }}", "null"),
        ("{{ 'a' + nothing + 'b' + none + ('c' + nothing.part if nothing else '') }}{{ 1 + 2 }}", "ab3"),
        ("{{ nothing + 'a' }}{{ none + 'b' }}", "ab"),
        ("{% generation %}x{% endgeneration %}y", "xy"),
        (
            "{% for i in range(9) %}{% if i == 2 %}{% continue %}{% elif i > 3 %}{% break %}{% endif %}{{ i }}"
            "{% endfor %}",
            "013",
        ),
    ],
)
def test_what_models_templates_use(source: str, text: str) -> None:
    assert render_names(source, {}) == text


def test_a_text_without_end_is_cut_off_early() -> None:
    with pytest.raises(TemplateError, match=f"writes more than {MAX_TEXT} characters"):
        render_names("{% for i in range(99999) %}{{ x }}{% endfor %}", {"x": "a" * 1000})


def test_a_macro_that_calls_itself() -> None:
    with pytest.raises(TemplateError, match="nests or calls itself too deeply"):
        render_names("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", {})
