"""Which tokens of an answer are thinking: special tokens switch, where the tags are some."""

from __future__ import annotations

import bisect
import enum
from collections.abc import Mapping, Sequence
from typing import Any


class Switch(enum.Enum):
    """What to do with a special token."""

    PASS = enum.auto()  # goes to the parser
    DROP = enum.auto()  # a tag without effect, e.g. a second end after a forced one
    OPEN = enum.auto()  # a thought begins that the parser does not know of
    CLOSE = enum.auto()  # such a thought ends
    CLOSE_PASS = enum.auto()  # such a thought ends with a tag that the parser needs


class Thoughts:
    """Follows an answer token by token and counts the tokens of its thoughts.

    Args:
        prepared: what pc_chat_prepare() gave; its generation prompt tells whether a thought is open from the start.
        tags: texts that are single special tokens; other tags are looked for in the text.
        budget: tokens that a thought may have, None for any number.
    """

    def __init__(self, prepared: Mapping[str, Any], tags: Sequence[str], budget: int | None = None) -> None:
        start = str(prepared.get("thinking_start") or "").strip()
        ends = list(dict.fromkeys(str(end).strip() for end in prepared.get("thinking_ends") or ()))
        ends = [end for end in ends if end]
        prompt = str(prepared.get("generation_prompt") or "")
        self._start = start
        self._ends = ends
        self._close = ends[0] if ends else ""  # the one that is nothing but the end of a thought
        self._budget = budget
        self._special = set(tags)
        # inside a call, tags of thoughts are what the model writes about
        self._call_starts = {
            str(trigger.get("value") or "").strip() for trigger in prepared.get("grammar_triggers") or ()
        }
        self._in_call = False
        self._text_tags = [tag for tag in (start, *ends) if tag and tag not in self._special]
        self._longest = max((len(tag) for tag in self._text_tags), default=0)
        self._window = ""  # text in which the beginning of a tag may be
        self._base = 0  # where it begins in the whole text
        self._token_starts: list[int] = []  # of the tokens of this thought
        self._n_before = 0
        self._parser_knows = True  # the parser reads one thought, at the start
        self._foreign = False
        self.inside = bool(start) and prompt.rfind(start) > max((prompt.rfind(end) for end in ends), default=-1)
        if self.inside or (start and start in prompt):
            self._parser_knows = False
        self.budget_cut = False

    @property
    def foreign(self) -> bool:
        """Inside a thought that the parser does not know of."""
        return self._foreign

    @property
    def n_tokens(self) -> int:
        """Tokens in thoughts so far."""
        return self._n_before + len(self._token_starts)

    def text(self, text: str, n_tokens: int) -> None:
        """Ordinary text, perhaps "", of so many tokens."""
        self._count(n_tokens)
        self._look(text)

    def special(self, text: str, *, anything_before: bool) -> Switch:
        """A special token; `anything_before`: the parser has some text already."""
        of_thought = text in (self._start, self._close)
        if text not in self._special or (self._in_call and of_thought):
            self._count(1)
            self._look(text)
            return Switch.PASS
        self._look(text)
        if not of_thought and not (self.inside and text not in self._ends):
            self._in_call = text in self._call_starts
        if text == self._start:
            return self._opened(anything_before)
        if self.inside and text in self._ends:
            return self._closed(text)
        if self.inside:
            self._count(1)
        return Switch.DROP if text == self._close else Switch.PASS

    def _opened(self, anything_before: bool) -> Switch:
        if self.inside:
            return Switch.DROP
        self.inside = True
        knows, self._parser_knows = self._parser_knows and not anything_before, False
        self._foreign = not knows
        return Switch.PASS if knows else Switch.OPEN

    def _closed(self, text: str) -> Switch:
        foreign, self._foreign = self._foreign, False
        self._end_thought(len(self._token_starts))
        if not foreign:
            return Switch.PASS
        return Switch.CLOSE if text == self._close else Switch.CLOSE_PASS

    def _end_thought(self, n: int) -> None:
        self.inside = False
        self._n_before += n
        self._token_starts = []
        if self._budget is not None and n >= self._budget:
            self.budget_cut = True

    def _count(self, n_tokens: int) -> None:
        if self.inside or self._text_tags:
            # outside too when a tag of text may begin here; _look() drops those that are in no thought
            self._token_starts += [self._base + len(self._window)] * n_tokens

    def _look(self, text: str) -> None:
        """Finds tags that are no special tokens."""
        if not self._text_tags:
            self._base += len(text)
            return
        self._window += text
        while True:
            wanted = [tag for tag in (self._ends if self.inside else [self._start]) if tag in self._text_tags]
            found = [(at, -len(tag), tag) for tag in wanted if (at := self._window.find(tag)) >= 0]
            if not found:
                break
            at, _, tag = min(found)
            if self.inside:
                n = bisect.bisect_left(self._token_starts, self._base + at)
                later = [start for start in self._token_starts[n:] if start >= self._base + at + len(tag)]
                self._end_thought(n)
            else:
                self.inside = True
                later = [start for start in self._token_starts if start >= self._base + at + len(tag)]
            self._token_starts = later
            self._skip(at + len(tag))
        if not self.inside:
            self._token_starts = []
        self._skip(max(0, len(self._window) - self._longest + 1))

    def _skip(self, n: int) -> None:
        self._window = self._window[n:]
        self._base += n
