"""What a chat gives back, whole and as it comes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pyclover.chat.answer import Answer, ToolCall, ToolCallDelta
from pyclover.errors import AnswerFormatError, ToolArgumentsError, UsageError, shortened

if TYPE_CHECKING:
    from pyclover.engine.results import Stats

ChatFinishReason = Literal["stop", "length", "tool_calls", "cancelled"]


@dataclass(frozen=True, kw_only=True)
class ChatReply:
    """An answer.

    Attributes:
        content: what the model says. reasoning: what it thought before. tool_calls: functions that it asks for.
        finish_reason: "stop" (the model ended, or a stop string came), "tool_calls", "length" (max_tokens or a full
            context; perhaps inside the thought, then content is ""), "cancelled".
        stop: the stop string that ended the answer, None when it was something else.
        stats: counts and times.
        n_reasoning: tokens of the thought; they count as generated ones.
        budget_cut: the thought was ended because it had used up think_budget.
        tokens: all that were generated, the end token left out.
        notes: what is odd about template or answer, one sentence each.
    """

    content: str
    reasoning: str
    tool_calls: tuple[ToolCall, ...]
    finish_reason: ChatFinishReason
    stop: str | None
    stats: Stats
    n_reasoning: int
    budget_cut: bool
    tokens: tuple[int, ...]
    notes: tuple[str, ...]
    convert: Callable[[str], Any] | None = None

    @property
    def message(self) -> dict[str, Any]:
        """The answer as a message, to go on with the conversation. Calls that were cut are left out."""
        message: dict[str, Any] = {"role": "assistant", "content": self.content}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        calls = [call.to_dict() for call in self.tool_calls if is_whole(call)]
        if calls:
            message["tool_calls"] = calls
        return message

    @property
    def parsed(self) -> Any:
        """The content as the object that response_format describes.

        Raises:
            UsageError: there was no response_format.
            AnswerFormatError: the answer was cut before it was complete.
        """
        if self.convert is None:
            raise UsageError("the chat had no response_format: give one, or read content", option="response_format")
        try:
            return self.convert(self.content)
        except (ValueError, RecursionError) as error:
            raise AnswerFormatError(
                f"the answer is not what response_format asks for (finish_reason {self.finish_reason!r}): "
                f"{shortened(str(error), 300)}",
                content=self.content,
            ) from None

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "message": self.message,
            "finish_reason": self.finish_reason,
            "stop": self.stop,
            "n_reasoning": self.n_reasoning,
            "budget_cut": self.budget_cut,
            "notes": list(self.notes),
            "stats": self.stats.to_dict(),
        }


@dataclass(frozen=True, kw_only=True)
class ChatPiece:
    """A part of an answer.

    Attributes:
        content, reasoning, tool_calls: what is new.
        tokens: chosen since the last piece; their text may come with a later one.
        drafted: the tokens were drafted and accepted.
        block: of block diffusion: rows of the block in the making, None where they are not decided.
        reply: the whole answer, with the last piece only.
    """

    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()
    tokens: tuple[int, ...] = ()
    drafted: bool = False
    block: tuple[int | None, ...] | None = None
    reply: ChatReply | None = None


def is_whole(call: ToolCall) -> bool:
    """Whether the arguments of a call are complete."""
    try:
        _ = call.parsed
    except ToolArgumentsError:
        return False
    return True


def reply_of(
    answer: Answer,
    *,
    finish_reason: Literal["stop", "length", "cancelled"],
    stop: str | None,
    stats: Stats,
    tokens: tuple[int, ...],
    notes: tuple[str, ...],
    convert: Callable[[str], Any] | None,
) -> ChatReply:
    """A reply from a parsed answer and what the engine says about it."""
    reason: ChatFinishReason = finish_reason
    if finish_reason == "stop" and answer.tool_calls and all(map(is_whole, answer.tool_calls)):
        reason = "tool_calls"
    return ChatReply(
        content=answer.content, reasoning=answer.reasoning, tool_calls=answer.tool_calls, finish_reason=reason,
        stop=stop, stats=stats, n_reasoning=answer.n_reasoning, budget_cut=answer.budget_cut, tokens=tokens,
        notes=(*notes, *answer.notes), convert=convert,
    )  # fmt: skip
