"""What a chat answer is made of, whole and in parts."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from pyclover.errors import ToolArgumentsError, shortened


@dataclass(frozen=True, kw_only=True)
class ToolCall:
    """A function that the model asks for.

    Attributes:
        id: names the call, for the message with its result.
        name: of the function.
        arguments: JSON text as the model wrote it; incomplete when the answer was cut inside the call.
    """

    id: str
    name: str
    arguments: str

    @property
    def parsed(self) -> dict[str, Any]:
        """The arguments as an object; {} for a call without any.

        Raises:
            ToolArgumentsError: they are not a JSON object.
        """
        try:
            value = json.loads(self.arguments.strip() or "{}")
        except RecursionError:
            raise ToolArgumentsError(
                f"the arguments of the call of {self.name} are nested too deeply", call=self
            ) from None
        except ValueError as error:
            raise ToolArgumentsError(
                f"the arguments of the call of {self.name} are not JSON ({error}): {shortened(self.arguments)}",
                call=self,
            ) from None
        if not isinstance(value, dict):
            raise ToolArgumentsError(
                f"the arguments of the call of {self.name} are no JSON object: {shortened(self.arguments)}", call=self
            )
        return value

    def to_dict(self) -> dict[str, Any]:
        """In the form that messages have in OpenAI's API."""
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}


@dataclass(frozen=True, kw_only=True)
class ToolCallDelta:
    """A part of a tool call.

    Attributes:
        index: which call of the answer, from 0.
        id, name: in the first part of a call; None in the others.
        arguments: goes on with the JSON text of the parts before; may be "".
    """

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


@dataclass(frozen=True, kw_only=True)
class ChatDelta:
    """What came to an answer since the last delta; false when it is nothing. What was given is never taken back."""

    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.content or self.reasoning or self.tool_calls)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A whole answer; each text is the sum of its deltas.

    Attributes:
        content: what the model says.
        reasoning: what it thought before, "" when it did not.
        tool_calls: in the order of the answer.
        n_reasoning: tokens inside thoughts, without their tags.
        budget_cut: a thought was ended because it had used up its budget.
        notes: what is odd about the answer, one sentence each.
    """

    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    n_reasoning: int = 0
    budget_cut: bool = False
    notes: tuple[str, ...] = ()
