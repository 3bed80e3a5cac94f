"""Checks descriptions of functions, and the choice among them, and brings them into one form."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pyclover.chat.messages import as_json, wrong
from pyclover.errors import shortened

_wrong = partial(wrong, option="tools")


@dataclass(frozen=True)
class ToolChoice:
    """Attributes:
    mode: "auto", "none" or "required".
    name: the one function that must be called, "" for any.
    """

    mode: str = "auto"
    name: str = ""


def checked_tools(tools: Sequence[Mapping[str, Any]] | None) -> list[dict[str, Any]]:
    """Descriptions of functions as in OpenAI's API, with the keys that templates read, in a fixed order.

    Raises:
        UsageError: a description is wrong; the sentence names it by its index.
    """
    if tools is None:
        return []
    if isinstance(tools, (str, bytes, Mapping)) or not isinstance(tools, Sequence):
        raise _wrong("tools", f"must be a list, not {shortened(tools)}")
    checked = [_checked(f"tools[{i}]", tool) for i, tool in enumerate(tools)]
    names = [tool["function"]["name"] for tool in checked]
    for i, name in enumerate(names):
        if name in names[:i]:
            raise _wrong(f"tools[{i}].function.name", f"is {shortened(name)}, which another tool has already")
    return checked


def _checked(where: str, tool: Any) -> dict[str, Any]:
    if not isinstance(tool, Mapping):
        raise _wrong(where, f'must be {{"type": "function", "function": …}}, not {shortened(tool)}')
    if tool.get("type", "function") != "function":
        raise _wrong(f"{where}.type", f'is {shortened(tool.get("type"))}: only "function" is known')
    function = tool.get("function")
    if not isinstance(function, Mapping):
        raise _wrong(f"{where}.function", 'must be {"name": …, "description": …, "parameters": …}')
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise _wrong(f"{where}.function.name", f"must be a name, not {shortened(name)}")
    description = function.get("description") or ""
    if not isinstance(description, str):
        raise _wrong(f"{where}.function.description", f"must be a text, not {shortened(description)}")
    parameters = function.get("parameters") or {}
    if not isinstance(parameters, Mapping):
        raise _wrong(f"{where}.function.parameters", f"must be a JSON schema, not {shortened(parameters)}")
    described = {"name": name, "description": description, "parameters": parameters}
    # through JSON and back: a copy of plain dicts and lists, of which every part has been seen
    plain: dict[str, Any] = json.loads(as_json(where, {"type": "function", "function": described}, option="tools"))
    return plain


def checked_choice(tool_choice: Any, tools: Sequence[Mapping[str, Any]]) -> ToolChoice:
    """What the model may call.

    Args:
        tool_choice: "auto", "none", "required", or {"type": "function", "function": {"name": …}} for that one.
        tools: as checked_tools() gave them.

    Raises:
        UsageError: none of these, or a call is required and there is no such tool.
    """
    name = ""
    if isinstance(tool_choice, Mapping):
        function = tool_choice.get("function")
        given = function.get("name") if isinstance(function, Mapping) else None
        if tool_choice.get("type") != "function" or not isinstance(given, str):
            raise _wrong("tool_choice", 'must be {"type": "function", "function": {"name": …}}', option="tool_choice")
        name, tool_choice = given, "required"
    if tool_choice not in ("auto", "none", "required"):
        raise _wrong(
            "tool_choice", f'is {shortened(tool_choice)}: use "auto", "none" or "required"', option="tool_choice"
        )
    names = [tool["function"]["name"] for tool in tools]
    if name and name not in names:
        raise _wrong("tool_choice", f"asks for {shortened(name)}, which is not among the tools", option="tool_choice")
    if tool_choice == "required" and not names:
        raise _wrong("tool_choice", 'is "required", but there are no tools', option="tool_choice")
    return ToolChoice(tool_choice, name)
