"""Chat on the embedded model: what comes as reasoning, content, tool calls; sessions; functions."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from support import ORACLE, fixed_draft

import pyclover
from pyclover import BlockDiffusion, ChatPiece, Clover, GrammarError, UsageError

ADD = [{"role": "user", "content": "What is 12 + 7?"}]
SPELL = [{"role": "user", "content": "Spell the word planet backwards."}]
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}


@pytest.fixture(scope="module")
def tiny() -> Iterator[Clover]:
    with Clover("tiny") as clover:
        yield clover


def test_thought_and_answer_are_told_apart(tiny: Clover) -> None:
    reply = tiny.chat(ADD, temperature=0)
    assert reply.content == "12 + 7 = 19"
    assert reply.reasoning.startswith("2+7=09")
    assert reply.finish_reason == "stop"
    assert not reply.tool_calls
    assert not reply.notes
    closing = tiny.tokenize("</think>", add_special=False)
    assert reply.n_reasoning == reply.tokens.index(closing[0])
    assert reply.stats.n_generated == len(reply.tokens)


def test_without_thinking_there_is_no_thought(tiny: Clover) -> None:
    reply = tiny.chat(ADD, temperature=0, thinking=False)
    assert "12 + 7 = 19" in reply.content
    assert reply.reasoning == ""
    assert reply.n_reasoning == 0


def gathered(pieces: Iterator[ChatPiece]) -> tuple[str, str, list[int], pyclover.ChatReply]:
    content, reasoning, tokens, reply = "", "", [], None
    for piece in pieces:
        assert reply is None, "the reply comes last"
        content += piece.content
        reasoning += piece.reasoning
        tokens += piece.tokens
        reply = piece.reply
    assert reply is not None
    return content, reasoning, tokens, reply


@pytest.mark.parametrize("speculation", [None, fixed_draft(n_max=3), fixed_draft(n_max=15)])
def test_pieces_are_the_whole_and_drafting_changes_nothing(tiny: Clover, speculation: Any) -> None:
    plain = tiny.chat(SPELL, temperature=0)
    content, reasoning, tokens, reply = gathered(tiny.chat_stream(SPELL, temperature=0, speculation=speculation))
    assert (content, reasoning, tuple(tokens)) == (plain.content, plain.reasoning, plain.tokens)
    assert (reply.content, reply.reasoning, reply.tokens) == (plain.content, plain.reasoning, plain.tokens)
    assert reply.n_reasoning == plain.n_reasoning


def test_drafted_tokens_are_marked(tiny: Clover) -> None:
    pieces = list(tiny.chat_stream(SPELL, temperature=0, speculation=fixed_draft(n_max=7)))
    reply = pieces[-1].reply
    assert reply is not None
    n_drafted = sum(len(piece.tokens) for piece in pieces if piece.drafted)
    assert n_drafted + sum(len(piece.tokens) for piece in pieces if not piece.drafted) == len(reply.tokens)
    # every round gives its drafted tokens and one of its own; the end token, which is in no piece, is one of them
    assert n_drafted in (reply.stats.emitted - reply.stats.rounds, reply.stats.emitted - reply.stats.rounds + 1)
    assert any(piece.drafted for piece in pieces)


def test_block_diffusion_shows_its_blocks(tiny: Clover) -> None:
    pieces = list(tiny.chat_stream(ADD, temperature=0, speculation=BlockDiffusion(block=8, threshold=0.999)))
    blocks = [piece.block for piece in pieces if piece.block is not None]
    assert blocks
    assert all(len(block) == 8 for block in blocks)
    assert any(None in block for block in blocks)
    content, reasoning, _, reply = gathered(iter(pieces))
    assert (content, reasoning) == (reply.content, reply.reasoning)
    assert reply.stats.mode == "block diffusion"


@pytest.mark.parametrize("speculation", [None, fixed_draft(n_max=7)])
@pytest.mark.parametrize("budget", [0, 1, 5])
def test_a_budget_ends_the_thought_and_the_answer_follows(tiny: Clover, speculation: Any, budget: int) -> None:
    whole = tiny.chat(SPELL, temperature=0)
    reply = tiny.chat(SPELL, temperature=0, think_budget=budget, speculation=speculation)
    assert reply.budget_cut
    assert budget <= reply.n_reasoning <= budget + 1  # the line end that closes it
    assert reply.tokens[:budget] == whole.tokens[:budget]
    assert "think" not in reply.content + reply.reasoning
    assert reply.content
    assert reply.finish_reason == "stop"


def test_a_large_budget_changes_nothing(tiny: Clover) -> None:
    whole = tiny.chat(SPELL, temperature=0)
    reply = tiny.chat(SPELL, temperature=0, think_budget=500)
    assert reply.tokens == whole.tokens
    assert not reply.budget_cut


def test_max_tokens_inside_the_thought(tiny: Clover) -> None:
    reply = tiny.chat(SPELL, temperature=0, max_tokens=3)
    assert reply.finish_reason == "length"
    assert reply.content == ""
    assert reply.reasoning
    assert reply.n_reasoning == 3


def test_stop_strings_end_the_answer_and_not_the_thought(tiny: Clover) -> None:
    whole = tiny.chat(ADD, temperature=0)
    assert "=" in whole.reasoning
    reply = tiny.chat(ADD, temperature=0, stop="=")
    assert reply.content == "12 + 7 "
    assert reply.reasoning == whole.reasoning
    assert (reply.finish_reason, reply.stop) == ("stop", "=")


def test_a_schema_is_followed_after_the_thought(tiny: Clover) -> None:
    ask = [{"role": "user", "content": "Give me a JSON object with name Ben and age 7."}]
    for thinking in (True, False):
        reply = tiny.chat(ask, temperature=0, thinking=thinking, response_format=SCHEMA, max_tokens=80)
        found = reply.parsed
        assert set(found) == {"name", "age"}
        assert isinstance(found["age"], int)
        assert bool(reply.reasoning) is thinking


def test_a_cut_answer_has_no_object(tiny: Clover) -> None:
    reply = tiny.chat(ADD, temperature=0, thinking=False, response_format=SCHEMA, max_tokens=2)
    with pytest.raises(pyclover.AnswerFormatError, match="length"):
        _ = reply.parsed
    with pytest.raises(UsageError, match="response_format"):
        _ = tiny.chat(ADD, max_tokens=1).parsed


def get_weather(city: str) -> dict[str, Any]:
    """The weather of a city."""
    return {"temperature": 21, "sky": "sunny", "city": city}


def test_functions_are_called(tiny: Clover) -> None:
    pytest.importorskip("pydantic")
    ask = [{"role": "user", "content": "What is the weather in Paris?"}]
    done = tiny.chat_functions(ask, [get_weather], temperature=0)
    assert done.n_rounds == 1
    assert [message["role"] for message in done.messages] == ["user", "assistant", "tool", "assistant"]
    call = done.messages[1]["tool_calls"][0]
    assert call["function"]["name"] == "get_weather"
    assert json.loads(call["function"]["arguments"]) == {"city": "Paris"}
    assert done.messages[2]["tool_call_id"] == call["id"]
    assert json.loads(done.messages[2]["content"])["city"] == "Paris"
    assert done.reply.content == done.messages[-1]["content"]
    assert ask == [{"role": "user", "content": "What is the weather in Paris?"}]


def test_a_call_can_be_demanded_and_forbidden(tiny: Clover) -> None:
    tools = [
        {
            "type": "function",
            "function": {
                "name": "get_weather", "description": "The weather of a city.",
                "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
            },
        }
    ]  # fmt: skip
    reply = tiny.chat(ADD, tools=tools, tool_choice="required", temperature=0, max_tokens=200)
    assert [call.name for call in reply.tool_calls] == ["get_weather"]
    assert set(reply.tool_calls[0].parsed) == {"city"}
    assert reply.finish_reason == "tool_calls"
    ask = [{"role": "user", "content": "What is the weather in Paris?"}]
    assert not tiny.chat(ask, tools=tools, tool_choice="none", temperature=0, max_tokens=60).tool_calls


def test_a_session_remembers_and_reads_only_what_is_new(tiny: Clover) -> None:
    session = tiny.session(temperature=0)
    session.send("My name is Anna.")
    reply = session.send("What is my name?")
    assert "Anna" in reply.content
    assert [message["role"] for message in session.messages] == ["user", "assistant"] * 2
    assert reply.stats.n_prompt_reused > 0
    assert reply.stats.n_prompt_read + reply.stats.n_prompt_reused == reply.stats.n_prompt
    again = [piece.reply for piece in session.retry()][-1]
    assert again is not None
    assert again.content == reply.content
    assert len(session.messages) == 4
    session.clear()
    assert session.messages == []
    with pytest.raises(UsageError, match="no answer"):
        session.retry()


def test_a_turn_that_fails_leaves_the_session_as_it_was(tiny: Clover) -> None:
    session = tiny.session(temperature=0)
    session.send("My name is Anna.")
    before = list(session.messages)
    session.options["max_tokens"] = -1
    with pytest.raises(UsageError, match="max_tokens"):
        session.send("What is my name?")
    assert session.messages == before
    session.options["max_tokens"] = 2
    stream = session.stream("What is my name?")
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    assert session.messages == before


def test_an_answer_that_was_cancelled_is_kept_as_far_as_it_came(tiny: Clover) -> None:
    session = tiny.session(temperature=0, ignore_eos=True, thinking=False)
    stream = session.stream("What is 12 + 7?")
    first = next(stream)
    threading.Thread(target=tiny.cancel).start()
    pieces = [first, *stream]
    reply = pieces[-1].reply
    assert reply is not None
    assert reply.finish_reason == "cancelled"
    assert session.messages[-1]["content"] == "".join(piece.content for piece in pieces)


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"think_budget": -1}, "think_budget"),
        ({"think_budget": 5, "speculation": BlockDiffusion(block=8)}, "think_budget"),
        (
            {"think_budget": 5, "speculation": fixed_draft(accept_ratio=0.5), "temperature": 0},
            "think_budget",
        ),
        ({"grammar": 'root ::= "a"'}, "grammar"),
        ({"json_schema": SCHEMA}, "json_schema"),
        ({"response_format": SCHEMA, "speculation": BlockDiffusion(block=8)}, "speculation"),
        ({"response_format": "yaml"}, "response_format"),
        ({"tools": "all"}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"max_tokens": -1}, "max_tokens"),
    ],
)
def test_what_cannot_be_honoured_is_refused(tiny: Clover, options: dict[str, Any], option: str) -> None:
    with pytest.raises(UsageError) as caught:
        tiny.chat(ADD, **options)
    assert caught.value.option == option


@pytest.mark.parametrize(
    ("wrong", "where", "why"),
    [
        ({"type": "strnig"}, "#/properties/a", "unrecognized type strnig"),
        ({"type": "array", "items": 5}, "#/properties/a/items", "must be an object"),
        ({"anyOf": [{"type": "string"}, {"$ref": "#/nope"}]}, "#/properties/a/anyOf/1", "nope not found"),
        ({"enum": []}, "#/properties/a", "non-empty"),
        (None, "#/properties/a", "must be an object"),
    ],
)
def test_a_faulty_schema_is_named_and_not_the_template(tiny: Clover, wrong: Any, where: str, why: str) -> None:
    schema = {"type": "object", "properties": {"a": wrong}, "required": ["a"]}
    good = {"type": "function", "function": {"name": "good", "parameters": SCHEMA}}
    bad = {"type": "function", "function": {"name": "bad", "parameters": schema}}
    with pytest.raises(GrammarError, match=r"^tools: the parameters of 'bad': ") as of_tools:
        tiny.chat(ADD, tools=[good, bad])
    with pytest.raises(GrammarError, match=r"^response_format: ") as of_answer:
        tiny.chat(ADD, response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}})
    for error in (of_tools, of_answer):
        assert f"at {where}: " in str(error.value)
        assert why in str(error.value)
        assert "template" not in str(error.value)
    assert tiny.chat(ADD, tools=[good], max_tokens=1).finish_reason == "length"


def test_a_pattern_that_cannot_be_kept_is_refused(tiny: Clover) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "a["}}}
    with pytest.raises(GrammarError, match=r"^response_format: JSON schema at #/properties/a: the pattern 'a\['"):
        tiny.chat(ADD, response_format=schema)


def test_messages_of_another_kind_are_refused(tiny: Clover) -> None:
    image = [{"type": "image_url", "image_url": {"url": "data:,"}}]
    for messages in ("What?", [], [{"role": "user", "content": image}], [{"role": "robot", "content": "a"}]):
        with pytest.raises(UsageError) as caught:
            tiny.chat(messages)  # type: ignore[arg-type]
        assert caught.value.option == "messages"


WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
PARIS = [{"role": "user", "content": "What is the weather in Paris?"}]


def test_a_tag_that_is_spelled_out_is_no_tag(tiny: Clover) -> None:
    from pyclover import conversation
    from pyclover.chat.parser import AnswerParser, tag_candidates

    prepared = tiny._templates().prepared(ADD)
    tags = conversation.special_tags(tiny._model, tag_candidates(prepared.native))
    assert {"<think>", "</think>", "<tool_call>", "</tool_call>"} <= set(tags.values())
    parser = AnswerParser(prepared.native, tuple(tags.values()))
    text = conversation.ChatText(tiny._model, parser, tags, ())
    spelled = [i for part in ("a <", "/", "think", "> b") for i in tiny.tokenize(part, add_special=False)]
    assert not set(spelled) & set(tags)
    [closing] = tiny.tokenize("</think>", add_special=False)
    for token in (*spelled, closing, *tiny.tokenize("c", add_special=False)):
        text.push(token)
    text.finish()
    answer = parser.answer
    assert answer.reasoning == "a </think> b"
    assert answer.content == "c"
    assert answer.n_reasoning == len(spelled)


def test_a_second_end_of_the_thought_is_not_text(tiny: Clover) -> None:
    for budget in (0, 4):
        assert "think" not in tiny.chat(ADD, think_budget=budget, max_tokens=40, temperature=0).content


@pytest.mark.parametrize("stop", ["\n", "\n\n", "</tool_call>", "12"])
def test_stop_strings_are_not_looked_for_outside_the_text(tiny: Clover, stop: str) -> None:
    if stop.startswith("\n"):
        assert tiny.chat(ADD, stop=stop, temperature=0).content == "12 + 7 = 19"
    reply = tiny.chat(PARIS, tools=[WEATHER], tool_choice="required", stop=stop, temperature=0, max_tokens=80)
    assert reply.finish_reason == "tool_calls"
    assert set(reply.tool_calls[0].parsed) == {"city"}


def test_a_call_that_was_cut_is_not_kept(tiny: Clover) -> None:
    session = tiny.session(tools=[WEATHER], tool_choice="required", thinking=False, temperature=0)
    for n in range(1, 14, 3):
        session.options["max_tokens"] = n
        reply = session.send("What is the weather in Paris?")
        assert reply.finish_reason == "length"
        assert "tool_calls" not in session.messages[-1]
    session.options |= {"max_tokens": 40, "tool_choice": "none"}
    session.clear()
    session.send("What is 12 + 7?")


def test_tools_need_a_template_that_knows_them() -> None:
    with Clover(ORACLE / "expected" / "tiny_a.gguf", n_ctx=512, n_threads=1) as clover:
        with pytest.raises(UsageError, match="knows none") as caught:
            clover.chat(ADD, tools=[WEATHER], max_tokens=1)
        assert caught.value.option == "tools"
        said = {"role": "tool", "tool_call_id": "a", "content": "sunny"}
        with pytest.raises(UsageError, match="tool calls"):
            clover.chat([*PARIS, said], max_tokens=1)


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"thinking": "off"}, "thinking"),
        ({"thinking": object()}, "thinking"),
        ({"parallel_tool_calls": "no"}, "parallel_tool_calls"),
        ({"thinking": False, "think_budget": 5}, "think_budget"),
    ],
)
def test_switches_are_true_or_false(tiny: Clover, options: dict[str, Any], option: str) -> None:
    with pytest.raises(UsageError) as caught:
        tiny.chat(ADD, **options)
    assert caught.value.option == option
    with pytest.raises(UsageError):
        tiny.apply_chat_template(ADD, add_generation_prompt="no")  # type: ignore[arg-type]


def test_a_retry_that_is_not_read_loses_nothing(tiny: Clover) -> None:
    session = tiny.session(temperature=0)
    session.send("My name is Anna.")
    before = list(session.messages)
    retry = session.retry()
    retry.close()  # type: ignore[attr-defined]
    assert session.messages == before
    session.messages = (5,)  # type: ignore[assignment]
    with pytest.raises(UsageError):
        session.retry()


def test_one_answer_of_a_session_at_a_time(tiny: Clover) -> None:
    session = tiny.session(temperature=0)
    stream = session.stream("What is 12 + 7?")
    next(stream)
    with pytest.raises(pyclover.BusyError):
        session.send("And 1 + 1?")
    assert [message["role"] for message in session.messages] == ["user"]
    *_, last = stream
    assert last.reply is not None
    assert len(session.messages) == 2


def test_functions_that_fail_or_are_none(tiny: Clover) -> None:
    pytest.importorskip("pydantic")

    def get_weather(city: str) -> str:
        """The weather of a city."""
        return "bad \udcff name"

    done = tiny.chat_functions(PARIS, [get_weather], temperature=0)
    assert done.messages[2]["content"] == "bad ? name"
    for functions in (None, 5, "f", {}, [{}], [int], [get_weather, get_weather]):
        with pytest.raises(UsageError) as caught:
            tiny.chat_functions(PARIS, functions)  # type: ignore[arg-type]
        assert caught.value.option == "functions"
    with pytest.raises(UsageError):
        tiny.session(functions=[get_weather, get_weather])
    with pytest.raises(UsageError):
        tiny.chat_functions("hi", [get_weather])  # type: ignore[arg-type]


def test_a_function_that_is_interrupted_leaves_no_call_behind(tiny: Clover) -> None:
    pytest.importorskip("pydantic")

    def get_weather(city: str) -> str:
        """The weather of a city."""
        raise KeyboardInterrupt

    session = tiny.session(functions=[get_weather], temperature=0)
    with pytest.raises(KeyboardInterrupt):
        session.send("What is the weather in Paris?")
    assert [message["role"] for message in session.messages] == ["user"]
