"""A conversation that remembers its messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyclover import arguments
from pyclover.chat.functions import function_tool
from pyclover.chat.reply import ChatPiece, ChatReply
from pyclover.conversation import result_of
from pyclover.errors import UsageError

if TYPE_CHECKING:
    from pyclover.clover import Clover

MAX_ROUNDS = 8


class Session:
    """A conversation with a model. The model's memory keeps what was said, as long as nothing else is read meanwhile.

    An answer that was cancelled is kept as far as it came. When a turn fails before its answer begins, the session is
    as it was before.

    Attributes:
        messages: the conversation without the system message, as in OpenAI's API; may be edited between turns.
        system: the system message, "" for none.
        options: for Clover.chat_stream(); may be changed between turns.
    """

    def __init__(
        self, clover: Clover, *, system: str = "", functions: Sequence[Callable[..., Any]] = (), **options: Any
    ) -> None:
        if functions and "tools" in options:
            raise UsageError("tools and functions exclude each other: give one", option="functions")
        self._clover = clover
        self._tools = {tool.name: tool for tool in map(function_tool, functions)}
        self.system = arguments.text("system", system)
        self.messages: list[dict[str, Any]] = []
        self.options = dict(options)

    def stream(self, text: str) -> Iterator[ChatPiece]:
        """Says something, and gives out the answer as it comes.

        With functions, each answer that calls some ends with a piece that has a reply; the results are added, and the
        next answer follows.

        Raises:
            See Clover.chat_stream().
        """
        return self._answer([{"role": "user", "content": arguments.text("text", text)}])

    def send(self, text: str) -> ChatReply:
        """Says something -> the answer, the last one where functions were called."""
        return self._last(self.stream(text))

    def retry(self) -> Iterator[ChatPiece]:
        """Drops the last answer, and what led to it since the user spoke, and makes it again.

        Raises:
            UsageError: there is no answer yet.
        """
        at = max((i for i, message in enumerate(self.messages) if message.get("role") == "user"), default=-1)
        if at < 0 or at + 1 == len(self.messages):
            raise UsageError("there is no answer yet that could be made again", option="messages")
        dropped = self.messages[at + 1 :]
        del self.messages[at + 1 :]
        return self._answer([], dropped)

    def clear(self) -> None:
        """Forgets all messages; system message and options stay."""
        self.messages.clear()

    def _last(self, pieces: Iterator[ChatPiece]) -> ChatReply:
        reply: ChatReply | None = None
        for piece in pieces:
            reply = piece.reply or reply
        assert reply is not None
        return reply

    def _answer(self, new: list[dict[str, Any]], dropped: Sequence[dict[str, Any]] = ()) -> Iterator[ChatPiece]:
        before = list(self.messages)
        self.messages += new
        answered = False
        try:
            for n_rounds in range(MAX_ROUNDS + 1):
                reply = None
                for piece in self._stream(last=n_rounds == MAX_ROUNDS):
                    if piece.reply is not None:
                        reply = piece.reply
                        self.messages.append(reply.message)
                        answered = True
                    yield piece
                if reply is None or reply.finish_reason != "tool_calls" or not self._tools:
                    return
                self.messages += [result_of(self._tools, call) for call in reply.tool_calls]
        finally:
            if not answered:
                self.messages[:] = [*before, *dropped]

    def _stream(self, *, last: bool) -> Iterator[ChatPiece]:
        options = dict(self.options)
        if self._tools:
            options["tools"] = [tool.tool for tool in self._tools.values()]
            if last:
                options["tool_choice"] = "none"
        system = [{"role": "system", "content": self.system}] if self.system else []
        return self._clover.chat_stream([*system, *self.messages], **options)
