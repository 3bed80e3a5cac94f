"""What was given out of an answer, and what is new; nothing is taken back."""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyclover.chat.answer import ChatDelta, ToolCall, ToolCallDelta
from pyclover.chat.native_parser import Call

_ID_CHARACTERS = string.ascii_letters + string.digits


def new_call_id() -> str:
    """A name for a tool call, as OpenAI's look."""
    return "call_" + "".join(secrets.choice(_ID_CHARACTERS) for _ in range(24))


@dataclass
class _Given:
    id: str
    name: str
    arguments: str


class Deltas:
    """Compares what an answer is now with what was given out.

    Args:
        wait_for_ids: the format has ids of its own, perhaps behind the arguments: a call is given out once its id is
            known, or is known not to come.
        new_id: makes the missing ones.
    """

    def __init__(self, *, wait_for_ids: bool = False, new_id: Callable[[], str] = new_call_id) -> None:
        self._wait_for_ids = wait_for_ids
        self._new_id = new_id
        self._calls: list[_Given] = []
        self.content = ""
        self.reasoning = ""
        self.retracted = False  # what was given out is no longer there

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        return tuple(ToolCall(id=call.id, name=call.name, arguments=call.arguments) for call in self._calls)

    def update(self, content: str, reasoning: str, calls: Sequence[Call], *, final: bool = False) -> ChatDelta:
        """The answer as it is now -> what is new in it."""
        new_content = self._new(self.content, content)
        new_reasoning = self._new(self.reasoning, reasoning)
        self.content += new_content
        self.reasoning += new_reasoning
        parts: list[ToolCallDelta] = []
        self.retracted = self.retracted or len(calls) < len(self._calls)
        for index, call in enumerate(calls):
            part = self._call(index, call, final or index + 1 < len(calls))
            if part is not None:
                parts.append(part)
        return ChatDelta(content=new_content, reasoning=new_reasoning, tool_calls=tuple(parts))

    def _new(self, given: str, now: str) -> str:
        if now.startswith(given):
            return now[len(given) :]
        self.retracted = self.retracted or not given.startswith(now)
        return ""

    def _call(self, index: int, call: Call, final: bool) -> ToolCallDelta | None:
        if index < len(self._calls):
            given = self._calls[index]
            if call.name != given.name:
                self.retracted = True
                return None
            new = self._new(given.arguments, call.arguments)
            given.arguments += new
            return ToolCallDelta(index=index, arguments=new) if new else None
        if index > len(self._calls) or not call.name or (self._wait_for_ids and not call.id and not final):
            return None
        given = _Given(call.id or self._new_id(), call.name, call.arguments)
        self._calls.append(given)
        return ToolCallDelta(index=index, id=given.id, name=given.name, arguments=given.arguments)
