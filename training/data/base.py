"""What a generator returns, and the split into training and held-out arguments."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

Message = dict[str, Any]
HELD_OUT_SHARE = 10  # one in so many argument combinations


@dataclass(frozen=True)
class Sample:
    """One conversation up to and with its last answer.

    key: the argument combination that decides on which side of the split it is. A generator whose question touches
    several combinations names all of them in `also`; none of those may be held out in training.
    work: how the answer is found: the thought; without thinking it opens the answer when `show_work` is set.
    """

    key: str
    messages: list[Message]
    answer: str
    work: str
    show_work: bool = False
    calls: list[Message] = field(default_factory=list)
    tools: list[Message] = field(default_factory=list)
    also: tuple[str, ...] = ()

    def chat(self, thinking: bool) -> list[Message]:
        """All messages, the answer last."""
        last: Message = {"role": "assistant", "content": self.answer}
        if thinking:
            last["reasoning_content"] = self.work
        elif self.show_work:
            last["content"] = f"{self.work}. {self.answer}"
        if self.calls:
            last["tool_calls"] = self.calls
        return [*self.messages, last]


Generator = Callable[[Random], Sample]


def held_out(key: str) -> bool:
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "little") % HELD_OUT_SHARE == 0


def user(content: str) -> list[Message]:
    return [{"role": "user", "content": content}]


def ask(rng: Random, phrasings: Sequence[str], **values: object) -> str:
    """One of the phrasings, filled in."""
    return rng.choice(phrasings).format(**values)


def polite(rng: Random, text: str) -> str:
    """Sometimes a few words around a request, or other small differences that mean nothing."""
    roll = rng.random()
    if roll < 0.06:
        return "Please " + text[0].lower() + text[1:]
    if roll < 0.10:
        return rng.choice(("Hi! ", "Hello. ", "OK, ", "Hey, ")) + text
    if roll < 0.14 and text[-1] in ".?":
        return text[:-1]
    if roll < 0.17:
        return text[0].lower() + text[1:]
    return text
