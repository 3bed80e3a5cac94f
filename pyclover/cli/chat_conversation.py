"""A conversation of `clover-run chat`: what was said, how to answer, and the answer as it comes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from pyclover.errors import UsageError

if TYPE_CHECKING:
    from pyclover.engine.results import Stats
    from pyclover.engine.speculation import SpeculationLike


class Reply(Protocol):
    """What the chat needs of a finished answer (`ChatReply`)."""

    @property
    def content(self) -> str: ...
    @property
    def reasoning(self) -> str: ...
    @property
    def tool_calls(self) -> Any: ...
    @property
    def finish_reason(self) -> str: ...
    @property
    def stats(self) -> Stats: ...
    @property
    def n_reasoning(self) -> int: ...
    @property
    def budget_cut(self) -> bool: ...
    @property
    def notes(self) -> tuple[str, ...]: ...
    @property
    def message(self) -> dict[str, Any]: ...


class Piece(Protocol):
    """What the chat needs of a part of an answer (`ChatPiece`)."""

    @property
    def content(self) -> str: ...
    @property
    def reasoning(self) -> str: ...
    @property
    def drafted(self) -> bool: ...
    @property
    def block(self) -> tuple[int | None, ...] | None: ...
    @property
    def reply(self) -> Reply | None: ...


class ChatModel(Protocol):
    """What the chat needs of `Clover`."""

    def chat_stream(self, messages: list[dict[str, Any]], **keywords: Any) -> Iterator[Piece]: ...
    def cancel(self) -> None: ...
    def detokenize(self, tokens: list[int]) -> str: ...
    @property
    def n_ctx(self) -> int: ...


@dataclass
class Settings:
    """How to answer.

    Attributes:
        thinking: None: as the model's template has it.
        think_budget: tokens that a thought may have; None: any number.
        speculation: as `Clover.chat` takes it.
        request: the keywords that stay as they are from start to end: max_tokens, stop, sampling.
    """

    thinking: bool | None = None
    think_budget: int | None = None
    speculation: SpeculationLike = None
    request: Mapping[str, Any] = field(default_factory=dict)

    def keywords(self) -> dict[str, Any]:
        """Keywords of `Clover.chat_stream`; what is not set is left out."""
        budget = None if self.thinking is False else self.think_budget
        wished = {"thinking": self.thinking, "think_budget": budget, "speculation": self.speculation}
        return {**self.request, **{name: value for name, value in wished.items() if value is not None}}


@dataclass
class Totals:
    """What this run of the program has answered so far."""

    answers: int = 0
    generated: int = 0
    thinking: int = 0


class Conversation:
    """What was said so far.

    Attributes:
        system: the system prompt, "" for none.
        messages: all others, in OpenAI's form.
        last: the last answer of this run, None before the first one.
    """

    def __init__(self, model: ChatModel, settings: Settings, *, system: str = "") -> None:
        self.model = model
        self.settings = settings
        self.system = system
        self.messages: list[dict[str, Any]] = []
        self.last: Reply | None = None
        self.totals = Totals()
        self._unanswered: dict[str, Any] | None = None  # a question that failed, for retry()

    def all_messages(self) -> list[dict[str, Any]]:
        """The messages, the system prompt as the first one."""
        return [*self._system_message(), *self.messages]

    def ask(self, text: str) -> Iterator[Piece]:
        """Asks and gives out the answer as it comes.

        Question and answer stay when the iterator has ended, also of an answer that was stopped midway. When it fails,
        or was stopped before its first word, the conversation is as it was before.
        """
        self._unanswered = {"role": "user", "content": text}
        return self._answer(self.messages, self._unanswered)

    def retry(self) -> Iterator[Piece]:
        """Makes the last answer again, or the one that failed; the old one stays until the new one has come.

        Raises:
            UsageError: nothing was asked yet.
        """
        if self._unanswered is not None:
            return self._answer(self.messages, self._unanswered)
        before = list(self.messages)
        while before and before[-1]["role"] == "assistant":
            before.pop()
        if not before:
            raise UsageError("there is no answer yet that could be made again")
        return self._answer(before[:-1], before[-1])

    def replace(self, messages: list[dict[str, Any]], *, system: str) -> None:
        """Goes on with another conversation."""
        self.system, self.messages, self._unanswered = system, messages, None

    def _system_message(self) -> list[dict[str, Any]]:
        return [{"role": "system", "content": self.system}] if self.system else []

    def _answer(self, before: list[dict[str, Any]], question: dict[str, Any]) -> Iterator[Piece]:
        asked = [*self._system_message(), *before, question]
        reply = None
        for piece in self.model.chat_stream(asked, **self.settings.keywords()):
            reply = piece.reply
            yield piece
        if reply is None:
            return
        self.last = reply
        self.totals.answers += 1
        self.totals.generated += reply.stats.n_generated
        self.totals.thinking += reply.n_reasoning
        if reply.content or reply.reasoning or reply.tool_calls:
            self.messages = [*before, question, reply.message]
            self._unanswered = None
