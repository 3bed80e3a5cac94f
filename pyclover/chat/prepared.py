"""From a conversation to the prompt, and to what the parser of the answer needs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from pyclover.chat import chatml
from pyclover.chat.apart import TemplateProcess
from pyclover.chat.messages import Message, as_json, checked_messages
from pyclover.chat.tools import checked_choice, checked_tools
from pyclover.errors import TemplateError, UsageError, shortened

_RESERVED = ("messages", "tools", "add_generation_prompt")


@dataclass(frozen=True)
class Prepared:
    """A prompt, and how its answer is to be read.

    Attributes:
        prompt: the text for the model. Special tokens are written out in it: tokenize it with them, and without adding
            any that strip_bos and strip_eos left to the tokenizer.
        native: what llama.cpp's parser of the answer needs, as pc_chat_parser_create() takes it ("format", "parser",
            "generation_prompt", "parse_tool_calls"), and beside it "grammar", "grammar_lazy", "grammar_triggers",
            "preserved_tokens", "stops", "thinking_start", "thinking_ends", "supports_thinking", "caps".
        opening: the end of the prompt with which the answer begins, "" without add_generation_prompt.
        thinking: the model was asked to think.
        thinking_open: the prompt ends inside a thought.
        stops: texts that end the answer besides the model's own end.
        notes: sentences for the user.
    """

    prompt: str
    native: Mapping[str, Any]
    opening: str
    thinking: bool
    thinking_open: bool
    stops: tuple[str, ...]
    notes: tuple[str, ...]


def prepare(
    process: TemplateProcess,
    template: str | None,
    messages: Sequence[Message],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    tool_choice: Any = "auto",
    parallel_tool_calls: bool | None = None,
    thinking: bool | None = None,
    variables: Mapping[str, Any] | None = None,
    json_schema: Mapping[str, Any] | None = None,
    add_generation_prompt: bool = True,
    bos_token: str = "",
    eos_token: str = "",
    strip_bos: bool = False,
    strip_eos: bool = False,
) -> Prepared:
    """Renders a conversation.

    Args:
        process: runs the template.
        template: as the file has it; None or "" for the built-in one, which a note tells.
        messages: as in OpenAI's API, see checked_messages().
        tools: descriptions of functions as in OpenAI's API.
        tool_choice: "auto", "none", "required", or {"type": "function", "function": {"name": …}}.
        parallel_tool_calls: several calls in one answer; None: where the template knows them.
        thinking: None: on, where the template knows it.
        variables: further names for the template.
        json_schema: that the answer must follow.
        add_generation_prompt: end with the opening of the answer.
        bos_token, eos_token: the model's, as text.
        strip_bos, strip_eos: the tokenizer adds them itself, so they are taken off the ends of the prompt.

    Raises:
        UsageError: an argument is wrong, or cannot be honoured with this template.
        TemplateError: the template is damaged, refuses the messages, or breaks a limit.
    """
    checked = checked_tools(tools)
    choice = checked_choice(tool_choice, checked)
    names, thinking = _checked_variables(variables, thinking)
    schema = None if json_schema is None else json.loads(as_json("json_schema", json_schema, option="json_schema"))
    source = template or chatml.TEMPLATE
    answer = process.ask(
        {
            "template": source,
            "bos_token": bos_token,
            "eos_token": eos_token,
            "strip_bos": strip_bos,
            "strip_eos": strip_eos,
            "messages": checked_messages(messages),
            "tools": checked,
            "callable_tools": [t for t in checked if choice.name in ("", t["function"]["name"])],
            "tool_choice": choice.mode,
            "parallel_tool_calls": parallel_tool_calls,
            "thinking": thinking,
            "variables": names,
            "json_schema": schema,
            "add_generation_prompt": add_generation_prompt,
        }
    )
    notes = [] if template else [chatml.NOTE]
    native = _native_of(answer, notes, needed=bool(checked) or schema is not None)
    native["parse_tool_calls"] = bool(checked) and choice.mode != "none"
    opened = _ends_in_thought(answer["opening"], native)
    _check_thinking(thinking, source, native, opened, notes)
    return Prepared(
        prompt=answer["prompt"],
        native=MappingProxyType(native),
        opening=answer["opening"],
        thinking=answer["thinking"],
        thinking_open=opened,
        stops=tuple(native["stops"]),
        notes=tuple(notes),
    )


def _checked_variables(
    variables: Mapping[str, Any] | None, thinking: bool | None
) -> tuple[dict[str, Any], bool | None]:
    given: dict[str, Any] = {}
    if variables is not None:
        if not isinstance(variables, Mapping):
            raise UsageError(f"variables must be a mapping of names, not {shortened(variables)}", option="variables")
        given = json.loads(as_json("variables", variables, option="variables"))
    for name in _RESERVED:
        if name in given:
            raise UsageError(f"variables cannot set {name!r}: it has an argument of its own", option="variables")
    inside = given.get("enable_thinking")
    if inside is not None:
        if not isinstance(inside, bool):
            raise UsageError(
                f"variables sets enable_thinking to {shortened(inside)}: it must be true or false", option="variables"
            )
        if thinking is not None and thinking != inside:
            raise UsageError(
                f"thinking is {thinking}, but variables sets enable_thinking to {inside}: give one", option="thinking"
            )
        thinking = inside
    return given, thinking


def _native_of(answer: Mapping[str, Any], notes: list[str], *, needed: bool) -> dict[str, Any]:
    native: dict[str, Any] | None = answer["native"]
    if native is None:
        if needed:
            raise TemplateError(f"tools and schemas cannot be used: {answer['native_error']}")
        notes.append(f"the answer is taken as it comes, thoughts are not told apart: {answer['native_error']}")
        return {
            "format": 0,
            "parser": "",
            "generation_prompt": "",
            "grammar": "",
            "grammar_lazy": False,
            "grammar_triggers": [],
            "preserved_tokens": [],
            "stops": [],
            "thinking_start": "",
            "thinking_ends": [],
            "supports_thinking": False,
            "caps": {},
        }
    if answer["opening"] != native["generation_prompt"]:
        notes.append(
            f"jinja2 opens the answer with {shortened(answer['opening'])}, llama.cpp's own engine with "
            f"{shortened(native['generation_prompt'])}: the answer may be parsed wrongly"
        )
    return native


def _ends_in_thought(opening: str, native: Mapping[str, Any]) -> bool:
    start = native["thinking_start"]
    if not start or start not in opening:
        return False
    behind = opening.rpartition(start)[2]
    return not any(end in behind for end in native["thinking_ends"])


def _check_thinking(
    thinking: bool | None, source: str, native: Mapping[str, Any], opened: bool, notes: list[str]
) -> None:
    if thinking is False and opened:
        raise UsageError(
            "thinking cannot be off: this model's chat template opens a thought in any case", option="thinking"
        )
    if thinking is None or "enable_thinking" in source or opened:
        return
    if thinking and not native["supports_thinking"]:
        raise UsageError("thinking cannot be on: this model's chat template knows none", option="thinking")
    if native["supports_thinking"]:
        notes.append("this model's chat template has no switch for thinking: the model decides by itself")
