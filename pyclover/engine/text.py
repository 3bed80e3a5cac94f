"""From token bytes to text that may be shown: UTF-8 is never split, stop strings never leak.

The stop strings are found with an Aho-Corasick automaton, so the cost per character does not depend on how many stops
there are or how the text was cut into tokens. The text held back is always the beginning of some stop string; it is
kept as (stop string, length) instead of being copied at each push.
"""

from __future__ import annotations

import codecs
import re
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol


class TokenText(Protocol):
    """What the generation loop gives its tokens to, one by one, in order."""

    @property
    def stopped(self) -> str | None:
        """The stop string that ended the text, None while there is none."""

    def push(self, token: int) -> str:
        """Takes the next token; returns the text that may be shown now."""

    def finish(self) -> str:
        """Ends the text; returns what was held back."""


class TextAssembler:
    """Turns the bytes of tokens into text, piece by piece, and ends it at a stop string.

    The text over all calls is the same for every way of cutting the bytes: invalid UTF-8 becomes U+FFFD as
    ``bytes.decode("utf-8", "replace")`` of the whole would give. The stop string that starts first wins, of several
    that start there the longest; it is not part of the text, and nothing after it is. While a longer or earlier stop
    string could still complete, the decision waits for the next push.

    Args:
        stop: strings that end the text.

    Raises:
        ValueError: a stop string is empty.
    """

    def __init__(self, stop: Sequence[str] = ()) -> None:
        stops = (stop,) if isinstance(stop, str) else tuple(dict.fromkeys(stop))
        if "" in stops:
            raise ValueError("a stop string is empty: it would end every text at once; leave it out")
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._matcher = _Matcher(stops) if stops else None
        self._pieces: list[str] = []
        self._stopped: str | None = None
        self._finished = False

    @property
    def stopped(self) -> str | None:
        """The stop string that ended the text, None while there is none."""
        return self._stopped

    @property
    def text(self) -> str:
        """All text given out so far; without what is held back."""
        if len(self._pieces) > 1:
            self._pieces = ["".join(self._pieces)]
        return self._pieces[0] if self._pieces else ""

    def push(self, piece: bytes) -> str:
        """Takes the bytes of the next token; returns the text that may be shown now ("" once stopped).

        Raises:
            ValueError: called after `finish`.
        """
        if self._finished:
            raise ValueError("push() after finish(): make a new TextAssembler for the next text")
        if self._stopped is not None:
            return ""
        return self._emit(self._scan(self._decoder.decode(piece)))

    def finish(self) -> str:
        """Ends the text; returns what was held back, as far as no stop string ends it before."""
        if self._finished:
            return ""
        self._finished = True
        if self._stopped is not None:
            return ""
        text = self._scan(self._decoder.decode(b"", final=True))
        if self._matcher is not None and self._stopped is None:
            text += self._matcher.rest()
            self._stopped = self._matcher.stopped
        return self._emit(text)

    def _scan(self, text: str) -> str:
        if self._matcher is None:
            return text
        released = self._matcher.feed(text)
        self._stopped = self._matcher.stopped
        return released

    def _emit(self, text: str) -> str:
        if text:
            self._pieces.append(text)
        return text


class AssembledTokens:
    """The text of tokens as it is.

    Args:
        token_bytes: bytes of a token.
        stop: strings that end the text.
    """

    def __init__(self, token_bytes: Callable[[int], bytes], stop: Sequence[str] = ()) -> None:
        self._token_bytes = token_bytes
        self._assembler = TextAssembler(stop)

    @property
    def stopped(self) -> str | None:
        return self._assembler.stopped

    def push(self, token: int) -> str:
        return self._assembler.push(self._token_bytes(token))

    def finish(self) -> str:
        return self._assembler.finish()


@dataclass(slots=True)
class _Match:
    """A stop string found; `start` counts characters from the first one that is held back, and may be large."""

    start: int
    stop: str


class _Matcher:
    """Aho-Corasick automaton over the stop strings, fed in chunks; leftmost match, then longest.

    Node 0 is the root. Of each node: `_next` children by character, `_fail` the node of its longest proper suffix,
    `_depth` its length, `_word` a stop string that begins with it, `_found` the longest stop string that ends in it,
    `_live` the length of its longest suffix that can still grow into a stop string.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self.stopped: str | None = None
        self._next: list[dict[str, int]] = [{}]
        self._fail = [0]
        self._depth = [0]
        self._word = [""]
        self._found: list[str | None] = [None]
        self._live = [0]
        for stop in stops:
            self._add(stop)
        self._link()
        firsts = "".join(re.escape(char) for char in self._next[0])
        self._first_char = re.compile(f"[{firsts}]")
        self._node = 0
        self._match: _Match | None = None

    def _add(self, stop: str) -> None:
        node = 0
        for depth, char in enumerate(stop, start=1):
            child = self._next[node].get(char)
            if child is None:
                child = len(self._next)
                self._next[node][char] = child
                self._next.append({})
                self._fail.append(0)
                self._depth.append(depth)
                self._word.append(stop)
                self._found.append(None)
                self._live.append(0)
            node = child
        self._found[node] = stop

    def _link(self) -> None:
        queue = deque(self._next[0].values())
        while queue:
            node = queue.popleft()
            fail = self._fail[node]
            if self._found[node] is None:
                self._found[node] = self._found[fail]
            self._live[node] = self._depth[node] if self._next[node] else self._live[fail]
            for char, child in self._next[node].items():
                self._fail[child] = self._step(fail, char)
                queue.append(child)

    def _step(self, node: int, char: str) -> int:
        while node and char not in self._next[node]:
            node = self._fail[node]
        return self._next[node].get(char, 0)

    def feed(self, chunk: str) -> str:
        """Takes more text; returns what no stop string can claim any more. Nothing may follow once `stopped`."""
        held = self._depth[self._node]
        word = self._word[self._node]
        at = 0
        while at < len(chunk):
            if self._node == 0:  # most text begins no stop string: jump to where one may begin
                hit = self._first_char.search(chunk, at)
                if hit is None:
                    break
                at = hit.start()
            self._node = self._step(self._node, chunk[at])
            at += 1
            if self._decided(held + at):
                return _head(word, held, chunk, self._end())
        released = held + len(chunk) - self._depth[self._node]
        if self._match is not None:
            self._match.start -= released
        return _head(word, held, chunk, released)

    def _decided(self, n_read: int) -> bool:
        """Notes a match that ends after `n_read` characters; True when none can beat the best one any more."""
        found = self._found[self._node]
        if found is not None:
            start = n_read - len(found)
            best = self._match
            if best is None or start < best.start or (start == best.start and len(found) > len(best.stop)):
                self._match = _Match(start, found)
        return self._match is not None and n_read - self._live[self._node] > self._match.start

    def _end(self) -> int:
        """Settles the match; returns where it starts."""
        assert self._match is not None
        self.stopped = self._match.stop
        return self._match.start

    def rest(self) -> str:
        """The text held back, when no more comes."""
        n_held = self._depth[self._node]
        return self._word[self._node][: n_held if self._match is None else self._end()]


def _head(word: str, n_held: int, chunk: str, n: int) -> str:
    """The first `n` characters of word[:n_held] + chunk, without building more than that."""
    return word[:n] if n <= n_held else word[:n_held] + chunk[: n - n_held]
