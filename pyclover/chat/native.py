"""llama.cpp's own view of a template: the rules by which its parser reads the answer."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from pyclover._native import buffer, check, lib, taken
from pyclover.errors import GrammarError, NativeError, TemplateError, UsageError, shortened

MAX_NATIVE = 96 << 20  # bytes


def prepare_natively(request: Mapping[str, Any], *, thinking: bool) -> dict[str, Any]:
    """What pc_chat_prepare() makes of a request of chat/worker.py. It has no limits on time and memory.

    Raises:
        TemplateError: llama.cpp cannot use the template, or not with these messages.
    """
    asked: dict[str, Any] = {
        "template": request["template"],
        "bos_token": request["bos_token"],
        "eos_token": request["eos_token"],
        "messages": request["messages"],
        "tools": request["callable_tools"],
        "tool_choice": request["tool_choice"],
        "enable_thinking": thinking,
        "chat_template_kwargs": request["variables"],
        "add_generation_prompt": request["add_generation_prompt"],
    }
    if request["parallel_tool_calls"] is not None:
        asked["parallel_tool_calls"] = request["parallel_tool_calls"]
    if request["json_schema"] is not None:
        asked["json_schema"] = json.dumps(request["json_schema"])
    try:
        with buffer() as out:
            check(lib.pc_chat_prepare(json.dumps(asked).encode(), out))
            if out.size > MAX_NATIVE:
                raise TemplateError(f"the chat template writes more than {MAX_NATIVE} bytes")
            prepared: dict[str, Any] = json.loads(taken(out))
    except (UsageError, NativeError) as error:
        raise TemplateError(f"llama.cpp cannot use the chat template: {last_words(str(error))}") from None
    return prepared


def check_schemas(tools: Iterable[Mapping[str, Any]]) -> None:
    """Looks for the schema that llama.cpp cannot use. It has no limits on time and memory either.

    Raises:
        GrammarError: of which tool the parameters are at fault, and where in them.
    """
    for tool in tools:
        function = tool["function"]
        try:
            with buffer() as out:
                check(lib.pc_schema_to_grammar(json.dumps(function["parameters"]).encode(), out))
        except GrammarError as error:
            raise GrammarError(f"tools: the parameters of {shortened(function['name'])}: {error}") from None


def last_words(message: str) -> str:
    """The reason at the end of llama.cpp's report, which shows the place in the template first."""
    return message.rpartition("Error: ")[2].strip()[:500]
