"""Checks a conversation and brings it into one form, so that no template meets a surprise.

The form is OpenAI's. What is wrong is named by the index of the message and the key.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pyclover.errors import UsageError, shortened

Message = Mapping[str, Any]

ROLES = ("system", "developer", "user", "assistant", "tool")
_MEDIA = {
    "image_url": "an image",
    "image": "an image",
    "input_image": "an image",
    "input_audio": "audio",
    "audio": "audio",
    "video_url": "a video",
    "video": "a video",
    "file": "a file",
    "input_file": "a file",
}
_KNOWN = ("role", "content", "reasoning_content", "name", "tool_call_id", "tool_calls")


def checked_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """A copy of a conversation in one form: plain dicts and lists, the keys in a fixed order.

    Args:
        messages: mappings with "role" (system, developer, user, assistant, tool) and "content": text, a list of
            {"type": "text", "text": …}, or None with an assistant's "tool_calls". "reasoning_content", "name" and
            "tool_call_id" are kept; the arguments of a tool call may be JSON text or a mapping, and become JSON text.
            Keys that OpenAI's answers have besides (refusal, annotations, …) are left out when they are empty.

    Raises:
        UsageError: no conversation, or not one of text; the sentence names the message and the key.
    """
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
        raise wrong("messages", f'must be a list of {{"role": …, "content": …}}, not {shortened(messages)}')
    if not messages:
        raise wrong("messages", "is empty: give at least one message")
    return [_checked(f"messages[{i}]", message) for i, message in enumerate(messages)]


def wrong(where: str, what: str, *, option: str = "messages") -> UsageError:
    """The error that says where in an argument what is wrong."""
    return UsageError(f"{where} {what}", option=option)


def _checked(where: str, message: Any) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise wrong(where, f'must be a mapping with "role" and "content", not {shortened(message)}')
    role = message.get("role")
    if role not in ROLES:
        had = 'has no "role"' if "role" not in message else f"has the role {shortened(role)}"
        raise wrong(where, f"{had}: use one of {', '.join(ROLES)}")
    out: dict[str, Any] = {"role": role}
    calls = message.get("tool_calls")
    if calls is not None and calls != [] and role != "assistant":
        raise wrong(f"{where}.tool_calls", f"is not for the role {role}: only the assistant calls tools")
    out["content"] = _content(where, message, may_lack=role == "assistant" and bool(calls))
    for key in ("reasoning_content", "name", "tool_call_id"):
        if message.get(key):
            out[key] = _text(f"{where}.{key}", message[key])
    if calls:
        if isinstance(calls, (str, bytes, Mapping)) or not isinstance(calls, Sequence):
            raise wrong(f"{where}.tool_calls", f"must be a list, not {shortened(calls)}")
        out["tool_calls"] = [_call(f"{where}.tool_calls[{i}]", call) for i, call in enumerate(calls)]
    for key, value in message.items():
        if key not in _KNOWN and value:
            raise wrong(
                f"{where}.{shortened(key)}", f"is not read by this model: use only {', '.join(_KNOWN)} in a message"
            )
    return out


def _content(where: str, message: Message, *, may_lack: bool) -> str | list[dict[str, str]]:
    content = message.get("content")
    if content is None:
        # an answer that was all thought has no content either
        if may_lack or (message["role"] == "assistant" and message.get("reasoning_content")):
            return ""
        raise wrong(f"{where}.content", "is missing: give a text")
    if isinstance(content, str):
        return _text(f"{where}.content", content)
    if not isinstance(content, Sequence) or isinstance(content, (bytes, bytearray)):
        raise wrong(f"{where}.content", f"must be a text or a list of text parts, not {shortened(content)}")
    return [_part(f"{where}.content[{i}]", part) for i, part in enumerate(content)]


def _part(where: str, part: Any) -> dict[str, str]:
    if not isinstance(part, Mapping):
        raise wrong(where, f'must be {{"type": "text", "text": …}}, not {shortened(part)}')
    kind = part.get("type")
    if isinstance(kind, str) and kind in _MEDIA:
        raise wrong(where, f"is {_MEDIA[kind]}: this model reads text only; leave it out or describe it in words")
    if kind != "text":
        raise wrong(f"{where}.type", f'is {shortened(kind)}: only "text" can be read')
    if "text" not in part:
        raise wrong(where, 'has no "text"')
    return {"type": "text", "text": _text(f"{where}.text", part["text"])}


def _call(where: str, call: Any) -> dict[str, Any]:
    if not isinstance(call, Mapping):
        raise wrong(where, f'must be {{"type": "function", "function": …}}, not {shortened(call)}')
    if call.get("type", "function") != "function":
        raise wrong(f"{where}.type", f'is {shortened(call.get("type"))}: only "function" is known')
    function = call.get("function")
    if not isinstance(function, Mapping):
        raise wrong(f"{where}.function", 'must be {"name": …, "arguments": …}')
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise wrong(f"{where}.function.name", f"must be the name of a function, not {shortened(name)}")
    out: dict[str, Any] = {
        "type": "function",
        "function": {
            "name": _text(f"{where}.function.name", name),
            "arguments": _arguments(f"{where}.function.arguments", function.get("arguments")),
        },
    }
    if call.get("id"):
        out["id"] = _text(f"{where}.id", call["id"])
    return out


def _arguments(where: str, arguments: Any) -> str:
    """JSON text. Text that is no JSON stays as it is: a model may have written it, and some templates take it."""
    if arguments is None or arguments == "":
        return "{}"
    if isinstance(arguments, str):
        return _text(where, arguments)
    if isinstance(arguments, Mapping):
        return as_json(where, arguments)
    raise wrong(where, f"must be JSON text or a mapping, not {shortened(arguments)}")


def _text(where: str, value: Any) -> str:
    if not isinstance(value, str):
        raise wrong(where, f"must be a text, not {shortened(value)}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise wrong(where, f"has half a character (a lone surrogate) at position {error.start}") from None
    return str(value)


def as_json(where: str, value: Any, *, option: str = "messages") -> str:
    """JSON text without spaces, not escaped to ASCII.

    Raises:
        UsageError: JSON has no form for a value in it.
    """
    try:
        text = json.dumps(_plain(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        text.encode()
    except (TypeError, ValueError, RecursionError) as error:  # UnicodeEncodeError is a ValueError
        raise UsageError(f"{where} has no form in JSON: {error}", option=option) from None
    return text


def _plain(value: Any) -> Any:
    """Mappings and sequences of any class as dict and list."""
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise TypeError("a key is no text")
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray)):
        return [_plain(item) for item in value]
    return value
