"""The message in a text, also in one that leaves the format at some point."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from pyclover.chat.native_parser import DoesNotMatchError, Message


class Reading:
    """Reads a growing text. From where it does not match the format, all of it is content.

    A text that does not match never does so again however it goes on, and a message only grows with its text; so the
    place where it broke is found by halving, whenever it was first seen.

    Args:
        parse: text -> message; raises DoesNotMatchError.
        closers: tags that may end a tool call; one of them right behind a call is no content.
    """

    def __init__(self, parse: Callable[[str], Message], closers: Sequence[str] = ()) -> None:
        self._parse = parse
        self._closers = sorted(closers, key=len, reverse=True)
        self._n_good = 0
        self._before: Message | None = None  # the last message that matched
        self._from = 0  # where the rest begins

    @property
    def failed(self) -> bool:
        """The text has left the format."""
        return self._before is not None

    def read(self, text: str) -> Message:
        """The message of the text so far; each text goes on with the one before."""
        if self._before is None:
            message = self.attempt(text)
            if message is not None:
                self._n_good = len(text)
                return message
            self._before, self._from = self._broke(text)
        return replace(self._before, content=self._before.content + text[self._from :])

    def attempt(self, text: str) -> Message | None:
        """The message of a text; None when it does not match."""
        try:
            return self._parse(text)
        except DoesNotMatchError:
            return None

    def rest(self, text: str, message: Message) -> str:
        """What of a text was not needed for its message."""
        return text[self._needed(text, message) :]

    def _broke(self, text: str) -> tuple[Message, int]:
        good, bad = self._n_good, len(text)
        message = self.attempt(text[:good])
        if message is None:  # a format that not even an empty text matches
            return Message(), 0
        while bad - good > 1:
            middle = (good + bad) // 2
            found = self.attempt(text[:middle])
            if found is None:
                bad = middle
            else:
                good, message = middle, found
        start = self._needed(text[:good], message)
        if message.calls:
            rest = text[start:bad].lstrip()
            for closer in self._closers:
                if rest.startswith(closer):
                    return message, bad - len(rest[len(closer) :].lstrip())
        return message, start

    def _needed(self, text: str, message: Message) -> int:
        """Length of the shortest beginning that has this message already."""
        low, high = 0, len(text)
        while low < high:
            middle = (low + high) // 2
            if self.attempt(text[:middle]) == message:
                high = middle
            else:
                low = middle + 1
        return low
