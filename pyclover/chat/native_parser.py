"""llama.cpp's parser of answers: the whole text so far in, the message out."""

from __future__ import annotations

import json
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyclover._native import buffer, check, ffi, lib, taken
from pyclover.errors import NativeError


@dataclass(frozen=True)
class Call:
    """A tool call as far as it is known; `id` is "" when the format has none or it is still to come."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Message:
    content: str = ""
    reasoning: str = ""
    calls: tuple[Call, ...] = ()


class DoesNotMatchError(Exception):
    """The text is no beginning of an answer in the format."""


class NativeParser:
    """A parser made for one prompt.

    Args:
        prepared: what pc_chat_prepare() gave.

    Raises:
        UsageError, NativeError: it is not that.
    """

    def __init__(self, prepared: Mapping[str, Any]) -> None:
        rules = _whole_text(str(prepared.get("parser") or ""))
        self.gives_ids = '"tool-id"' in rules
        wanted = {
            "format": prepared.get("format", 0),
            "generation_prompt": prepared.get("generation_prompt", ""),
            "parse_tool_calls": prepared.get("parse_tool_calls", True),
            "parser": rules,
        }
        out = ffi.new("pc_chat_parser **")
        check(lib.pc_chat_parser_create(ffi.new("char[]", json.dumps(wanted).encode()), out))
        self._pointer = out[0]
        self._finalizer = weakref.finalize(self, lib.pc_chat_parser_free, out[0])

    def parse(self, text: str) -> Message:
        """The message in a text that may go on.

        Raises:
            DoesNotMatchError: whatever follows, it is not in the format.
        """
        data = text.encode()
        with buffer() as out:
            try:
                # "partial" would only hide that the text does not match
                check(lib.pc_chat_parser_parse(self._pointer, data, len(data), False, out))
            except NativeError as error:
                raise DoesNotMatchError(str(error)) from None
            raw = json.loads(taken(out))
        calls = tuple(Call(call["id"], call["name"], call["arguments"]) for call in raw["tool_calls"])
        return Message(raw["content"], raw["reasoning_content"], calls)


def _whole_text(rules: str) -> str:
    """The rules, made to match the end of the text too: some formats of llama.cpp drop what follows unseen."""
    if not rules:
        return rules
    arena = json.loads(rules)
    nodes = arena["parsers"]
    if any(node.get("type") == "end" for node in nodes):
        return rules
    n = len(nodes)
    sequence = {"type": "sequence", "children": [arena["root"], n, n + 1]}
    arena["parsers"] = [*nodes, {"type": "space"}, {"type": "end"}, sequence]
    return json.dumps({**arena, "root": n + 2}, ensure_ascii=False)
