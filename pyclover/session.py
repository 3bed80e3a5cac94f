"""A conversation that remembers its messages."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyclover import arguments
from pyclover.chat.messages import checked_messages
from pyclover.chat.reply import ChatPiece, ChatReply
from pyclover.conversation import result_of, tools_of
from pyclover.errors import BusyError, UsageError

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
        self._tools = tools_of(functions)
        self._answering = threading.Lock()
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
        checked_messages(self.messages or [{"role": "user", "content": ""}])
        at = max((i for i, message in enumerate(self.messages) if message["role"] == "user"), default=-1)
        if at < 0 or at + 1 == len(self.messages):
            raise UsageError("there is no answer yet that could be made again", option="messages")
        return self._answer([], n_keep=at + 1)

    def clear(self) -> None:
        """Forgets all messages; system message and options stay."""
        self.messages.clear()

    def _last(self, pieces: Iterator[ChatPiece]) -> ChatReply:
        reply: ChatReply | None = None
        for piece in pieces:
            reply = piece.reply or reply
        assert reply is not None
        return reply

    def _answer(self, new: list[dict[str, Any]], n_keep: int | None = None) -> Iterator[ChatPiece]:
        """Answers after the first `n_keep` messages (None: all) and the new ones."""
        if not self._answering.acquire(blocking=False):
            raise BusyError(
                "this session is answering: read that stream to its end, or give each thread its own session"
            )
        before = list(self.messages)
        answered = False
        try:
            self.messages[:] = [*before[:n_keep], *new]
            choice = self.options.get("tool_choice")
            for n_rounds in range(MAX_ROUNDS + 1):
                reply = None
                for piece in self._stream("none" if n_rounds == MAX_ROUNDS else choice):
                    if piece.reply is not None:
                        reply = piece.reply
                        self.messages.append(reply.message)
                        answered = True
                    yield piece
                if reply is None or reply.finish_reason != "tool_calls" or not self._tools:
                    return
                self.messages += [result_of(self._tools, call) for call in reply.tool_calls]
                choice = "auto"  # a call that was asked for has been made
        finally:
            if not answered:
                self.messages[:] = before
            elif self._tools and self.messages and self.messages[-1].get("tool_calls"):
                del self.messages[-1]  # its calls have no results: the turn was given up before
            self._answering.release()

    def _stream(self, tool_choice: Any) -> Iterator[ChatPiece]:
        options = dict(self.options)
        if self._tools:
            options |= {"tools": [tool.tool for tool in self._tools.values()], "tool_choice": tool_choice}
        system = [{"role": "system", "content": self.system}] if self.system else []
        return self._clover.chat_stream([*system, *self.messages], **options)
