"""A scripted model for `clover-run chat`, and a program that runs the command with it: `python fake_chat.py chat …`.

What it answers is in the question: see `FakeClover.chat_stream`. It has the shape of `Clover`, no more, and needs no
native code.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import threading
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pyclover.engine.results import Stats
from pyclover.errors import ContextFullError

N_CTX = 100


@dataclass(frozen=True)
class ChatReply:
    content: str
    reasoning: str = ""
    tool_calls: tuple[Any, ...] = ()
    finish_reason: str = "stop"
    stats: Stats = field(default_factory=Stats)
    n_reasoning: int = 0
    budget_cut: bool = False
    notes: tuple[str, ...] = ()

    @property
    def message(self) -> dict[str, Any]:
        thought = {"reasoning_content": self.reasoning} if self.reasoning else {}
        return {"role": "assistant", "content": self.content, **thought}


@dataclass(frozen=True)
class ChatPiece:
    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[Any, ...] = ()
    drafted: bool = False
    tokens: tuple[int, ...] = ()
    block: tuple[int | None, ...] | None = None
    reply: ChatReply | None = None


class FakeClover:
    """Answers by the first word of the question.

    say TEXT: TEXT, word by word. slow TEXT: character by character, in a second and more. endless: "word 1 word 2 …"
    until cancelled. silent: nothing until cancelled. think: a thought before the answer. cut: a thought that was cut at
    its budget. draft: four drafted tokens, three of them accepted.
    block: a block that is resolved. full: a full context before the answer. length: one midway. note: with a note.
    control: control characters. recall: the messages as JSON. settings: the keywords as JSON.
    """

    opened: ClassVar[list[tuple[str, dict[str, Any]]]] = []
    asked: ClassVar[list[list[dict[str, Any]]]] = []
    warnings: tuple[str, ...] = ()
    n_ctx = N_CTX

    def __init__(self, model: str = "tiny", *, progress: object = None, **options: Any) -> None:
        self.opened.append((model, options))
        self._cancelled = threading.Event()

    def __enter__(self) -> FakeClover:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def cancel(self) -> None:
        self._cancelled.set()

    def detokenize(self, tokens: list[int]) -> str:
        return "".join(map(chr, tokens))

    def chat_stream(self, messages: list[dict[str, Any]], **keywords: Any) -> Iterator[ChatPiece]:
        self._cancelled.clear()
        self.asked.append([dict(message) for message in messages])
        word, _, rest = messages[-1]["content"].partition(" ")
        pieces = getattr(self, f"_{word}", self._say)
        content = reasoning = ""
        finish: dict[str, Any] = {}
        for piece in pieces(rest, messages, keywords):
            if isinstance(piece, dict):
                finish = piece
                continue
            content, reasoning = content + piece.content, reasoning + piece.reasoning
            yield piece
        stats = Stats(n_prompt=12, n_prompt_read=12, prompt_s=0.1, n_generated=4, n_decoded=4, decode_s=0.5)
        stats = dataclasses.replace(stats, **finish.pop("stats", {}))
        reply = ChatReply(content, reasoning, stats=stats, **finish)
        yield ChatPiece(reply=reply)

    def _say(self, rest: str, *_: Any) -> Iterator[Any]:
        for at, word in enumerate(rest.split(" ")):
            yield ChatPiece((" " if at else "") + word)

    def _slow(self, rest: str, *_: Any) -> Iterator[Any]:
        for char in rest:
            yield ChatPiece(char)
            self._cancelled.wait(max(0.02, 1.2 / len(rest)))

    def _endless(self, *_: Any) -> Iterator[Any]:
        n = 0
        while not self._cancelled.wait(0.01):
            n += 1
            yield ChatPiece(f"word {n} ")
        yield {"finish_reason": "cancelled"}

    def _silent(self, *_: Any) -> Iterator[Any]:
        yield ChatPiece()
        self._cancelled.wait()
        yield {"finish_reason": "cancelled"}

    def _think(self, *_: Any) -> Iterator[Any]:
        yield from (ChatPiece(reasoning="\nfirst "), ChatPiece(reasoning="second\n"), ChatPiece(reasoning="third\n\n"))
        yield ChatPiece("the answer")
        yield {"n_reasoning": 7, "stats": {"n_generated": 9}}

    def _cut(self, *_: Any) -> Iterator[Any]:
        yield ChatPiece(reasoning="so")
        yield ChatPiece("short")
        yield {"n_reasoning": 2, "budget_cut": True}

    def _draft(self, *_: Any) -> Iterator[Any]:
        yield ChatPiece("one")
        yield ChatPiece(" two three", drafted=True)
        yield ChatPiece(" four")
        counts = {"drafted": 4, "accepted": 3, "rounds": 2, "drafted_by_position": (2, 2)}
        yield {"stats": {"mode": "draft-self (lossless)", **counts, "accepted_by_position": (2, 1)}}

    def _block(self, *_: Any) -> Iterator[Any]:
        for rows in ((None, ord("b"), None), (ord("a"), ord("b"), None)):
            yield ChatPiece(block=rows)
        yield ChatPiece("abc")
        yield {"stats": {"mode": "block diffusion", "previews": 2, "commits": 1, "fixed": 3}}

    def _full(self, *_: Any) -> Iterator[Any]:
        raise ContextFullError("the context is full", n_ctx=N_CTX, n_needed=123)
        yield

    def _length(self, *_: Any) -> Iterator[Any]:
        yield ChatPiece("cut he")
        yield {"finish_reason": "length"}

    def _note(self, *_: Any) -> Iterator[Any]:
        yield ChatPiece("noted")
        yield {"notes": ("the template is odd",)}

    def _control(self, *_: Any) -> Iterator[Any]:
        yield ChatPiece("a\x1b[31mb\x07c\r\nd\te\u0301\u200d")

    def _recall(self, _rest: str, messages: list[dict[str, Any]], *_: Any) -> Iterator[Any]:
        yield ChatPiece(json.dumps(messages, ensure_ascii=False))

    def _settings(self, _rest: str, _messages: Any, keywords: dict[str, Any]) -> Iterator[Any]:
        yield ChatPiece(json.dumps({name: repr(value) for name, value in keywords.items()}, sort_keys=True))


def installed() -> types.ModuleType:
    """What stands in the place of pyclover.clover."""
    module = types.ModuleType("pyclover.clover")
    module.Clover = FakeClover  # type: ignore[attr-defined]
    return module


if __name__ == "__main__":
    sys.modules["pyclover.clover"] = installed()
    from pyclover.cli.main import main

    main()
