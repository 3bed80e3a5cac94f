"""Tags that ordinary tokens spell out must not look like tags to a parser that sees text only.

Such a tag gets a marker after its first character before the parser sees it; the marker is taken out of what the
parser gives back. A marker that the text itself has is doubled, so that the way back is unique.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

MARK = "\ue0f3"  # of the private use area: hardly ever in a text, and right also when it is
_MARKS = re.compile(f"{MARK}{MARK}?")


def unmarked(text: str) -> str:
    """The text as it was before a guard. Text may go on: a last marker that stands alone is left out."""
    return _MARKS.sub(lambda found: MARK if len(found[0]) == 2 else "", text) if MARK in text else text


class Guard:
    """Breaks up tags in a text that comes in pieces; holds back no more than what may become one.

    Args:
        tags: texts that count only as special tokens. Of one character, a tag cannot be broken up and is left alone.
    """

    def __init__(self, tags: Sequence[str]) -> None:
        self._tags = sorted({tag for tag in tags if len(tag) > 1 and MARK not in tag}, key=lambda tag: (-len(tag), tag))
        starts = "|".join(re.escape(tag) for tag in self._tags)
        # a match is one character, so that tags which overlap are all found
        self._pattern = re.compile(f"(?=(?:{starts})).|{MARK}" if starts else MARK, re.DOTALL)
        self._longest = max((len(tag) for tag in self._tags), default=0)
        self._held = ""

    def push(self, text: str) -> str:
        """Takes ordinary text; returns what may go to the parser."""
        text = self._held + text
        cut = len(text) - self._unfinished(text)
        self._held = text[cut:]
        return self._broken(text, cut)

    def flush(self) -> str:
        """Ends the text, or a part of it that a special token follows: what was held back is no tag."""
        held, self._held = self._held, ""
        return self._broken(held, len(held))

    def _broken(self, text: str, end: int) -> str:
        parts: list[str] = []
        at = 0
        for found in self._pattern.finditer(text):  # looks beyond `end`, where the rest of a tag may be
            if found.end() > end:
                break
            parts += (text[at : found.end()], MARK)
            at = found.end()
        parts.append(text[at:end])
        return "".join(parts)

    def _unfinished(self, text: str) -> int:
        """How many characters at the end may become a tag."""
        for n in range(min(self._longest - 1, len(text)), 0, -1):
            end = text[-n:]
            if any(tag.startswith(end) and len(tag) > n for tag in self._tags):
                return n
        return 0
