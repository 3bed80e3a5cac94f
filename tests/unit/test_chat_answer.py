"""The parser of answers, on answers made by hand in the format of the Qwen3.5 family."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from answer_parts import TAGS, cut, joined, numbered, pieces, prepare, read, share_native_parsers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyclover.chat import reading
from pyclover.chat.answer import Answer, ToolCall
from pyclover.chat.parser import AnswerParser, tag_candidates


def _tool(name: str, required: list[str], **properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": required}
    return {"type": "function", "function": {"name": name, "description": "?", "parameters": parameters}}


TOOLS = [
    _tool("get", [], q={"type": "string"}),
    _tool("get_weather", ["city"], city={"type": "string"}, days={"type": "integer"}, opts={"type": "object"}),
    _tool("write", ["text"], text={"type": "string"}),
]


def call(name: str, **arguments: str) -> str:
    """A call as the model writes it."""
    inside = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
    return f"<tool_call>\n<function={name}>\n{inside}</function>\n</tool_call>"


def found(answer: Answer) -> dict[str, Any]:
    """The parts that are not empty, calls with their arguments as objects."""
    parts: dict[str, Any] = {
        "reasoning": answer.reasoning,
        "content": answer.content,
        "calls": [(call.name, call.parsed) for call in answer.tool_calls],
    }
    return {name: part for name, part in parts.items() if part}


NESTED = {"a": [1, {"b": None, "c": "}</x>\n\"'"}], "ü": -1.5e3, "deep": {"deep": {"deep": []}}}
# text in which every tag is a special token -> what is in it
COMPLETE: dict[str, tuple[str, dict[str, Any]]] = {
    "nothing": ("", {}),
    "plain": ("Hm.\n</think>\n\nHello.", {"reasoning": "Hm.\n", "content": "Hello."}),
    "an empty thought": ("\n</think>\n\nHello.", {"content": "Hello."}),
    "a thought that never ends": ("Hm, 2 < 3 and", {"reasoning": "Hm, 2 < 3 and"}),
    "beginnings of tags at the end": ("Hm <\n</think>\n\nA <to", {"reasoning": "Hm <\n", "content": "A <to"}),
    "a call": (
        "So.\n</think>\n\n" + call("get_weather", city="Köln", days="3"),
        {"reasoning": "So.\n", "calls": [("get_weather", {"city": "Köln", "days": 3})]},
    ),
    "a call without arguments": ("\n</think>\n\n" + call("get"), {"calls": [("get", {})]}),
    "a call that ends the thought": (
        "So.\n" + call("get", q="x"),
        {"reasoning": "So.\n", "calls": [("get", {"q": "x"})]},
    ),
    "text before calls, nested JSON, unicode": (
        "\n</think>\n\nI look. 👍\n\n"
        + call("get_weather", city="東京 😀", opts=json.dumps(NESTED))
        + "\n"
        + call("get", q='"quoted"\n\n{"a": [}')
        + "\n",
        {
            "content": "I look. 👍\n\n",
            "calls": [("get_weather", {"city": "東京 😀", "opts": NESTED}), ("get", {"q": '"quoted"\n\n{"a": [}'})],
        },
    ),
    "tags of thoughts in an argument": (
        "\n</think>\n\n" + call("write", text="<think>\nno\n</think>"),
        {"calls": [("write", {"text": "<think>\nno\n</think>"})]},
    ),
}


@pytest.mark.parametrize("name", COMPLETE)
def test_an_answer_has_its_parts_whatever_the_cut(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    share_native_parsers(monkeypatch)
    text, want = COMPLETE[name]
    prepared = prepare(tools=TOOLS)
    whole = read(prepared, pieces(text))
    assert found(whole) == want
    assert whole.notes == ()
    longest = max((len(data) for data, _ in pieces(text)), default=0)
    for at in range(1, longest):
        split = read(prepared, cut(pieces(text), lambda n, at=at: [at] if at < n else []))  # type: ignore[misc]
        assert found(split) == want
    assert found(read(prepared, cut(pieces(text), lambda n: range(1, n)))) == want


@pytest.mark.parametrize("n", range(len(call("get_weather", city="Köln"))))
def test_an_answer_that_is_cut_inside_a_call(n: int) -> None:
    text = call("get_weather", city="Köln")[:n]
    answer = read(prepare(thinking=False, tools=TOOLS), cut(pieces("I look.\n" + text), lambda n: range(1, n)))
    named = text.startswith("<tool_call>\n<function=get_weather>\n")
    complete = "</function>\n" in text
    began = text.startswith("<tool_call>")
    # what is no special token yet is text
    assert answer.content == ("I look.\n" if began else "I look.\n" + text)
    assert [call.name for call in answer.tool_calls] == (["get_weather"] if named else [])
    if complete:
        assert answer.tool_calls[0].parsed == {"city": "Köln"}
        assert answer.notes == ()
    elif named:
        assert '{"city":"Köln"}'.startswith(answer.tool_calls[0].arguments)
        with pytest.raises(ValueError, match="the arguments of the call of get_weather are not JSON"):
            _ = answer.tool_calls[0].parsed
        assert answer.notes == ("the call of get_weather is unfinished: its arguments are not complete JSON",)
    elif began:
        (note,) = answer.notes
        assert note.startswith("the answer ends inside a tool call that has no name yet: '<tool_call>")


# text in which every tag is a special token -> (content, calls): what leaves the format is content
OUTSIDE: dict[str, tuple[str, str, list[tuple[str, str]]]] = {
    "text behind a call": (call("get", q="x") + "\nDone.", "Done.", [("get", '{"q":"x"}')]),
    "a tool that there is not": ("So: " + call("got", q="x"), "So: " + call("got", q="x"), []),
    "a tool that there is not, behind one that there is": (
        call("get", q="x") + "\n" + call("got", q="y"),
        call("got", q="y"),
        [("get", '{"q":"x"}')],
    ),
    "an argument that there is not": (
        call("get_weather", city="Bonn", town="x"),
        "<parameter=town>\nx\n</parameter>\n</function>\n</tool_call>",
        [("get_weather", '{"city":"Bonn"')],
    ),
    "an argument of the wrong type": (
        call("get_weather", city="Bonn", days="x"),
        "x\n</parameter>\n</function>\n</tool_call>",
        [("get_weather", '{"city":"Bonn","days":')],
    ),
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_what_leaves_the_format_is_content_whatever_the_cut(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    share_native_parsers(monkeypatch)
    text, content, calls = OUTSIDE[name]
    prepared = prepare(thinking=False, tools=TOOLS)
    longest = max(len(data) for data, _ in pieces(text))
    for at in range(longest):
        answer = read(prepared, cut(pieces(text), lambda n, at=at: [at] if 0 < at < n else []))  # type: ignore[misc]
        assert (answer.content, [(call.name, call.arguments) for call in answer.tool_calls]) == (content, calls)
        assert "does not keep to the format" in answer.notes[0]
    answer = read(prepared, cut(pieces(text), lambda n: range(1, n)))
    assert (answer.content, [(call.name, call.arguments) for call in answer.tool_calls]) == (content, calls)


def test_tags_spelled_by_ordinary_tokens_are_text() -> None:
    """Of thirty tags in the thought none ends it; the special token does."""
    text = "</think> or <tool_call>, <think>, </tool_call>\n" * 30
    answer = read(prepare(tools=TOOLS), [(text.encode(), False), (b"</think>", True), (text.encode(), False)])
    assert answer.reasoning == text
    assert answer.content == text
    assert answer.tool_calls == ()
    assert answer.n_reasoning == 1


def test_without_special_tags_the_text_counts() -> None:
    parser = AnswerParser(prepare(tools=TOOLS))
    deltas = [parser.push(b"Hm.\n</think>\n\nSo: " + call("get", q="x").encode(), n_tokens=0), parser.finish()]
    content, reasoning, (only,) = joined(deltas)
    assert (content, reasoning, only.name, only.parsed) == ("So: ", "Hm.\n", "get", {"q": "x"})
    assert only.id.startswith("call_")
    assert len(only.id) == len("call_") + 24


@pytest.mark.parametrize("thinking", [True, False])
def test_a_closing_tag_outside_of_a_thought_is_not_shown(thinking: bool) -> None:
    """As models write one when a budget has forced one before."""
    text = ("Hm" + "</think>" if thinking else "") + "</think>\n\nYes.</think> No."
    answer = read(prepare(thinking=thinking), pieces(text))
    assert (answer.content, answer.reasoning) == ("Yes. No.", "Hm" if thinking else "")


@pytest.mark.parametrize("thinking", [True, False])
def test_later_thoughts_are_reasoning_too(thinking: bool) -> None:
    text = ("One.\n</think>\n\n" if thinking else "") + "Yes.<think>\nTwo <\n</think> No.<think>\n\n</think>"
    given = cut(pieces(text), lambda n: range(1, n))
    answer = read(prepare(thinking=thinking), given)
    assert (answer.content, answer.reasoning) == ("Yes. No.", "One.\n\n\nTwo <\n" if thinking else "Two <\n")
    n_inside = len("One.\n" if thinking else "") + len("\nTwo <\n") + len("\n\n")
    assert answer.n_reasoning == n_inside


def test_an_opening_tag_inside_a_thought_is_not_shown() -> None:
    answer = read(prepare(), pieces("<think>\nHm.</think>Yes."))
    assert (answer.content, answer.reasoning) == ("Yes.", "Hm.")


@pytest.mark.parametrize(
    ("text", "budget", "n", "cut_off"),
    [
        ("a b c</think>d", 5, 5, True),  # five tokens of one character each
        ("a b c</think>d", 6, 5, False),
        ("a b c</think>d", None, 5, False),
        ("a b c</think>d", -1, 5, False),
        ("</think>d", 0, 0, True),
        ("a b c", 5, 5, False),  # the answer ended, not the thought
        ("a</think>b<think>cd</think>", 2, 3, True),
        ("ab" + call("get", q="x"), 2, 2, True),
    ],
)
def test_tokens_in_thoughts_and_the_budget(text: str, budget: int | None, n: int, cut_off: bool) -> None:
    answer = read(prepare(tools=TOOLS), cut(pieces(text), lambda n: range(1, n)), budget=budget)
    assert (answer.n_reasoning, answer.budget_cut) == (n, cut_off)


def test_tokens_in_thoughts_are_counted_where_tags_are_text() -> None:
    parser = AnswerParser(prepare(), budget=4)
    for character in "Hm \n</think>\n\nYes":
        parser.push(character.encode())
    parser.finish()
    answer = parser.answer
    assert (answer.content, answer.reasoning) == ("Yes", "Hm \n")
    assert (answer.n_reasoning, answer.budget_cut) == (4, True)


def test_thinking_is_known_at_once() -> None:
    parser = AnswerParser(prepare(), TAGS, clock=lambda: -1.0)
    seen = [parser.thinking]
    for data, special in pieces("a</think>b<think>c</think>d"):
        parser.push(data, special)
        seen.append(parser.thinking)
    assert seen == [True, True, False, False, True, True, False, False]


def test_characters_are_never_split_and_bad_bytes_are_replaced() -> None:
    parser = AnswerParser(prepare(thinking=False), TAGS, clock=lambda: 0.0)
    shown = [parser.push(bytes([byte])).content for byte in "é€😀".encode()]
    assert shown == ["", "é", "", "", "€", "", "", "", "😀"]
    assert parser.push(b"\xf0\x9f").content == ""
    parser.push(b"</think>", True)
    parser.push(b"\xff")
    parser.finish()
    assert parser.answer.content == "é€😀\ufffd\ufffd"


def test_push_after_finish_is_refused() -> None:
    parser = AnswerParser(prepare(), TAGS)
    parser.finish()
    with pytest.raises(ValueError, match="after finish"):
        parser.push(b"a")


def test_text_that_the_rules_do_not_fit_at_all_is_content() -> None:
    prepared = {**prepare(thinking=False), "generation_prompt": "<|im_start|>user\n"}
    answer = read(prepared, cut(pieces("Hello you"), lambda n: range(1, n)))
    assert answer.content == "Hello you"
    assert len(answer.notes) == 1


def test_the_tags_of_a_format_are_named() -> None:
    assert set(tag_candidates(prepare(tools=TOOLS))) == set(TAGS)
    assert tag_candidates({}) == ()


@pytest.mark.parametrize(("cost", "most"), [(0.001, 0.15), (0.2, 1.0)])
def test_parsing_takes_a_small_part_of_the_time_and_waits_no_longer_than_it_may(
    cost: float, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a clock of our own: a parse takes `cost` seconds, a token comes every 2 ms."""
    now, spent = 0.0, 0.0
    parser = AnswerParser(prepare(thinking=False), TAGS, clock=lambda: now)
    inner = parser._reading._parse

    def slow(text: str) -> Any:
        nonlocal now, spent
        now += cost
        spent += cost
        return inner(text)

    monkeypatch.setattr(parser._reading, "_parse", slow)
    waiting_since: float | None = None
    for _ in range(1000):
        if waiting_since is None:
            waiting_since = now
        delta = parser.push(b"a")
        if delta:
            assert now - waiting_since <= 0.05 + cost + 0.003
            waiting_since = None
        now += 0.002
    assert spent / now <= most
    parser.finish()
    assert parser.answer.content == "a" * 1000


# ---- properties -----------------------------------------------------------------------------------------------------

ORDINARY = st.one_of(
    st.text(alphabet="ab<>/ é😀\n\ue0f3", max_size=12),
    st.sampled_from(
        [*TAGS, "</thi", "<tool", "ink>", "call>", "<function=get>\n", "\n<parameter=q>\n", "</function>\n"]
    ),
    st.text(max_size=8),
)
SPECIAL = st.sampled_from(TAGS)
CALLS = st.builds(
    lambda name, key, value: call(name, **{key: value}),
    st.sampled_from(["get", "get_weather", "write", "nothing"]),
    st.sampled_from(["q", "city", "text", "opts", "days"]),
    st.one_of(st.sampled_from(["1", "x", json.dumps(NESTED), "</tool_call>", ""]), st.text(max_size=10)),
)
MESSAGES = st.lists(
    st.one_of(
        ORDINARY.map(lambda text: [(text.encode("utf-8", "replace"), False)]),
        SPECIAL.map(lambda tag: [(tag.encode(), True)]),
        CALLS.map(lambda text: pieces(text.encode("utf-8", "replace").decode())),
    ),
    max_size=8,
).map(lambda groups: [piece for group in groups for piece in group])


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(MESSAGES, st.booleans(), st.booleans(), st.lists(st.integers(0, 200), max_size=6), st.sampled_from([0.0, 0.02]))
def test_chunks_give_what_the_whole_gives(
    message: list[tuple[bytes, bool]], thinking: bool, tools: bool, cuts: list[int], pause: float
) -> None:
    prepared = prepare(thinking=thinking, tools=TOOLS if tools else ())
    answers = [
        read(prepared, message, pause=1e-9),  # parsed at special moments and at the end only
        read(prepared, cut(message, lambda n: range(1, n)), pause=pause),
        read(prepared, cut(message, lambda n: {at % n for at in cuts if n and at % n})),
    ]
    for answer in answers:
        assert found_raw(answer) == found_raw(answers[0])


def found_raw(answer: Answer) -> tuple[str, str, tuple[ToolCall, ...], tuple[str, ...]]:
    return answer.content, answer.reasoning, answer.tool_calls, answer.notes


@settings(deadline=None, max_examples=100)
@given(st.lists(ORDINARY, max_size=8), st.lists(ORDINARY, max_size=8), st.booleans())
def test_ordinary_tokens_never_switch_and_nothing_is_lost(before: list[str], after: list[str], tools: bool) -> None:
    encoded = [[(text.encode("utf-8", "replace"), False) for text in part] for part in (before, after)]
    thought, content = ["".join(data.decode() for data, _ in part) for part in encoded]
    answer = read(prepare(tools=TOOLS if tools else ()), [*encoded[0], (b"</think>", True), *encoded[1]])
    # white space at the start belongs to the format; a thought of nothing else is none
    spaces = " \t\n\v\f\r"
    assert answer.reasoning == (thought.lstrip(spaces) if thought.strip(spaces) else "")
    assert answer.content == content.lstrip(spaces)
    assert answer.notes == ()


def _toy(text: str) -> reading.Message:
    """Accepts x…, then y…; a message only says how many of each."""
    n_x = sum(1 for _ in itertools.takewhile(lambda c: c == "x", text))
    if set(text[n_x:]) - {"y"}:
        raise reading.DoesNotMatchError("no")
    return reading.Message("x" * n_x, "", ())


@settings(deadline=None)
@given(st.text(alphabet="xyz", max_size=30), st.integers(0, 30))
def test_where_a_text_leaves_the_format_is_found_from_anywhere(text: str, first: int) -> None:
    whole = reading.Reading(_toy)
    step = reading.Reading(_toy)
    message = whole.read(text)
    step.read(text[:first])
    assert step.read(text) == message
    assert step.failed == whole.failed
    n_x = len(text) - len(text.lstrip("x"))
    bad = set(text[n_x:]) - {"y"}
    assert whole.failed == bool(bad)
    assert message.content == (text if bad else "x" * n_x)


def test_ids_are_given_in_order() -> None:
    text = call("get", q="x") + "\n" + call("get", q="y")
    parser = AnswerParser(prepare(thinking=False, tools=TOOLS), TAGS, new_id=numbered())
    for data, special in pieces(text):
        parser.push(data, special)
    parser.finish()
    assert [call.id for call in parser.answer.tool_calls] == ["call_0", "call_1"]
