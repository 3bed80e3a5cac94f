"""Makes of checked messages what a template reads, as llama.cpp's server does it.

Templates differ in what they can take: text or a list of parts, arguments as JSON text or as an object, a system
message or none. llama.cpp tries a template with a few conversations and gives what it found as `caps`; a few families
get changes of their own (chat/families.py).
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from typing import Any

from pyclover.chat import families
from pyclover.errors import UsageError

# caps of a template that llama.cpp could not try
UNKNOWN_CAPS: Mapping[str, bool] = {
    "supports_string_content": True,
    "supports_typed_content": False,
    "supports_system_role": True,
    "supports_object_arguments": True,
}
_OPENAI_CHANNELS = "<|channel|>"  # templates with it know the role "developer"


def template_names(request: Mapping[str, Any], caps: Mapping[str, bool], *, thinking: bool) -> dict[str, Any]:
    """The names that the template sees.

    Args:
        request: "template", "messages" and "tools" (checked), "bos_token", "eos_token", "variables" (further names),
            "add_generation_prompt", "json_schema" (a schema or None).
        caps: what the template can take, as pc_chat_prepare() tells it.
        thinking: becomes enable_thinking.

    Raises:
        UsageError: arguments of a tool call that are not JSON, and the template needs them as an object.
    """
    source = request["template"]
    messages = [dict(message) for message in request["messages"]]
    if families.trims_content(source):
        messages = [_trimmed(message) for message in messages]
    messages = [_with_content(message, caps) for message in messages]
    if _OPENAI_CHANNELS not in source:
        messages = [{**m, "role": "system"} if m["role"] == "developer" else m for m in messages]
    if not caps.get("supports_system_role", True):
        messages = _without_system(messages)
    if caps.get("supports_object_arguments"):
        messages = [_with_objects(i, message) for i, message in enumerate(messages)]
    messages = families.adjusted(source, messages)

    now = datetime.datetime.now()
    names: dict[str, Any] = {
        "messages": messages,
        "bos_token": request["bos_token"],
        "eos_token": request["eos_token"],
        "enable_thinking": thinking,
        "datetime": now.strftime("%b %d %Y"),
        "date_string": now.strftime("%d %b %Y"),
    }
    if request["tools"]:  # no tools: not defined, not an empty list
        names["tools"] = request["tools"]
    names.update(request["variables"])
    if request["json_schema"] is not None and families.reads_response_format(source):
        names["response_format"] = request["json_schema"]
    if request["add_generation_prompt"]:
        names["add_generation_prompt"] = True
    _aliases(names)
    return names


def _aliases(names: dict[str, Any]) -> None:
    """Families have own names for the same two settings."""
    keep = names.get("preserve_reasoning")
    aliases: dict[str, Any] = {}
    if isinstance(keep, bool):
        aliases["preserve_thinking"] = keep
        for name in ("clear_thinking", "truncate_history_thinking", "drop_thinking"):
            aliases[name] = not keep
    effort = names.get("reasoning_effort")
    if isinstance(effort, str) and effort:
        aliases["reasoning_strength"] = effort
    for name, value in aliases.items():
        names.setdefault(name, value)


def _trimmed(message: dict[str, Any]) -> dict[str, Any]:
    out = dict(message)
    content = out["content"]
    if isinstance(content, str):
        out["content"] = content.strip()
    else:
        out["content"] = [{**part, "text": part["text"].strip()} for part in content]
    if "reasoning_content" in out:
        out["reasoning_content"] = out["reasoning_content"].strip()
    return out


def _with_content(message: dict[str, Any], caps: Mapping[str, bool]) -> dict[str, Any]:
    content = message["content"] or ""  # no parts: no text
    takes_text = caps.get("supports_string_content", True)
    takes_parts = caps.get("supports_typed_content", False)
    if takes_text and not takes_parts and not isinstance(content, str):
        content = _joined(content)
    elif takes_parts and not takes_text and isinstance(content, str):
        content = [{"type": "text", "text": content}]
    return {**message, "content": content}


def _joined(parts: list[dict[str, str]]) -> str:
    text = ""
    for part in parts:
        text += ("\n" if text else "") + part["text"]
    return text


def _without_system(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A first system message moved in front of the next one, for templates that have none."""
    if messages[0]["role"] != "system":
        return messages
    system, rest = messages[0], messages[1:]
    if not rest:
        return rest
    first = rest[0]
    if isinstance(system["content"], str) and isinstance(first["content"], str):
        content: Any = system["content"] + "\n" + first["content"]
    else:
        content = [*_parts(system["content"]), {"type": "text", "text": "\n"}, *_parts(first["content"])]
    return [{**first, "content": content}, *rest[1:]]


def _parts(content: Any) -> list[dict[str, str]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)


def _with_objects(index: int, message: dict[str, Any]) -> dict[str, Any]:
    if "tool_calls" not in message:
        return message
    calls = []
    for i, call in enumerate(message["tool_calls"]):
        where = f"messages[{index}].tool_calls[{i}].function.arguments"
        function = {**call["function"], "arguments": arguments_object(where, call["function"]["arguments"])}
        calls.append({**call, "function": function})
    return {**message, "tool_calls": calls}


def arguments_object(where: str, text: str) -> Any:
    """What JSON text says.

    Raises:
        UsageError: it is not JSON.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"{where} is not JSON ({error}), which this model's chat template needs", option="messages"
        ) from None
