"""Reasoning, content and tool calls out of the tokens of an answer, as they come.

llama.cpp's parser knows the formats and reads the whole text so far each time. Around it: only special tokens count as
tags (`Guard`, `Thoughts`), it runs seldom enough not to cost much, nothing that was given out is taken back, and text
that does not fit the format becomes content instead of getting lost.

Stop strings are not looked for here: the engine ends the text at them, and gives over what comes before. They are meant
for what the user reads, so an engine should look for them only while `AnswerParser.thinking` is false.
"""

from __future__ import annotations

import codecs
import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pyclover.chat.answer import Answer, ChatDelta, ToolCall
from pyclover.chat.deltas import Deltas, new_call_id
from pyclover.chat.guard import MARK, Guard, unmarked
from pyclover.chat.native_parser import Message, NativeParser
from pyclover.chat.reading import Reading
from pyclover.chat.thoughts import Switch, Thoughts
from pyclover.errors import shortened

SHARE = 0.1  # of the time that parsing may take
LONGEST_WAIT_S = 0.05  # text that has come is parsed after this time, whatever it costs


def tag_candidates(prepared: Mapping[str, Any]) -> tuple[str, ...]:
    """Texts that may be tags of the format; the parser wants those that are single special tokens of the vocabulary.

    Args:
        prepared: what pc_chat_prepare() gave.
    """
    triggers = [str(trigger.get("value") or "") for trigger in prepared.get("grammar_triggers") or ()]
    found = [
        str(prepared.get("thinking_start") or ""),
        *map(str, prepared.get("thinking_ends") or ()),
        *map(str, prepared.get("preserved_tokens") or ()),
        *triggers,
    ]
    return tuple(dict.fromkeys(tag.strip() for tag in found if tag.strip()))


class AnswerParser:
    """Takes the tokens of one answer and gives out its parts. Not for several threads at once.

    The sum of the deltas, and the answer, do not depend on how the bytes were cut or when they came.

    Args:
        prepared: what pc_chat_prepare() gave for the prompt; "parse_tool_calls": False leaves calls in the content.
        tags: those of `tag_candidates` that are single control or user-defined tokens of the vocabulary. They count
            only when `push` is told that a token is special; spelled out in ordinary text they stay text. Other tags
            are found in the text.
        budget: tokens that a thought may have, as the sampler was told; None or less than 0 for any number.
        new_id: makes the ids of tool calls that have none.
        clock: seconds, for the pauses between parses.

    Raises:
        UsageError, NativeError: `prepared` is not what it must be.
    """

    def __init__(
        self,
        prepared: Mapping[str, Any],
        tags: Sequence[str] = (),
        *,
        budget: int | None = None,
        new_id: Callable[[], str] = new_call_id,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        native = NativeParser(prepared)
        closers = [tag for tag in tag_candidates(prepared) if tag.startswith("</")]
        self._reading = Reading(native.parse, closers)
        self._triggers = [str(trigger.get("value") or "").strip() for trigger in prepared.get("grammar_triggers") or ()]
        self._thoughts = Thoughts(prepared, tags, None if budget is None or budget < 0 else budget)
        self._guard = Guard(tags)
        self._deltas = Deltas(wait_for_ids=native.gives_ids, new_id=new_id)
        self._clock = clock
        self._due = clock()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._parts: list[str] = []  # for the native parser, not parsed yet
        self._text = ""
        self._message = Message()
        self._more_reasoning = ""  # thoughts that the native parser does not know of
        self._thought_begins = False
        self._finished = False
        self._notes: tuple[str, ...] = ()

    @property
    def thinking(self) -> bool:
        """Inside a thought, as of the last token; known at once, also while parsing waits."""
        return self._thoughts.inside

    @property
    def n_reasoning(self) -> int:
        """Tokens inside thoughts so far."""
        return self._thoughts.n_tokens

    @property
    def answer(self) -> Answer:
        """All that was given out; with notes once finished."""
        return Answer(
            content=self._deltas.content,
            reasoning=self._deltas.reasoning,
            tool_calls=self._deltas.tool_calls,
            n_reasoning=self._thoughts.n_tokens,
            budget_cut=self._thoughts.budget_cut,
            notes=self._notes,
        )

    def push(self, piece: bytes, special: bool = False, *, n_tokens: int = 1) -> ChatDelta:
        """Takes the next token.

        Args:
            piece: its UTF-8 bytes, which may end inside a character; b"" for a token that shall not be seen.
            special: a control or user-defined token, its text complete.
            n_tokens: how many tokens the piece stands for; 0 for a further part of one.

        Raises:
            ValueError: called after `finish`.
        """
        if self._finished:
            raise ValueError("push() after finish(): make a new AnswerParser for the next answer")
        if special:
            self._take_special(piece.decode("utf-8", "replace"))
        else:
            self._take_text(self._decoder.decode(piece), n_tokens)
        return self._emit()

    def finish(self) -> ChatDelta:
        """Ends the answer; gives out what was held back. Further calls give nothing."""
        if self._finished:
            return ChatDelta()
        self._flush()
        self._finished = True
        self._read()
        cut_call = self._close_text()
        delta = self._update(final=True)
        self._notes = (*self._odd(cut_call), *map(_unfinished, filter(_is_unfinished, self._deltas.tool_calls)))
        return delta

    # ---- tokens -> text for the native parser ---------------------------------------------------------------------

    def _flush(self) -> None:
        """A special token, or the end, completes what came before."""
        self._take_text(self._decoder.decode(b"", final=True), 0)
        self._decoder.reset()
        self._parts.append(self._guard.flush())

    def _take_text(self, text: str, n_tokens: int) -> None:
        self._thoughts.text(text, n_tokens)
        if self._thoughts.foreign:
            self._think(text)
        else:
            self._parts.append(self._guard.push(text))

    def _take_special(self, text: str) -> None:
        self._flush()
        switch = self._thoughts.special(text, anything_before=bool(self._text or any(self._parts)))
        if switch is Switch.OPEN:
            self._read()  # what was thought before comes first
            self._thought_begins = True
        elif switch in (Switch.PASS, Switch.CLOSE_PASS):
            if self._thoughts.foreign:
                self._think(text)
            else:
                self._parts.append(text)

    def _think(self, text: str) -> None:
        if self._thought_begins:
            text = text.lstrip()
            if not text:
                return
            self._thought_begins = False
            if self._message.reasoning or self._more_reasoning:
                text = "\n\n" + text
        self._more_reasoning += text

    # ---- text -> message -> deltas ----------------------------------------------------------------------------------

    def _emit(self) -> ChatDelta:
        if any(self._parts) and self._clock() >= self._due:
            start = self._clock()
            self._read()
            end = self._clock()
            self._due = end + min((end - start) * (1 - SHARE) / SHARE, LONGEST_WAIT_S)
        return self._update()

    def _read(self) -> None:
        if any(self._parts):
            self._text += "".join(self._parts)
            self._message = self._reading.read(self._text)
        self._parts.clear()

    def _close_text(self) -> str:
        """Gives out what might have become a tag; returns the beginning of a call that was cut before its name."""
        if self._reading.failed or self._message.calls or not self._text:
            return ""
        closed = self._reading.attempt(self._text + MARK)  # behind a marker, the beginning of a tag is text
        if closed is not None:
            self._message = closed
            return ""
        rest = self._reading.rest(self._text, self._message)
        return rest if any(rest.startswith(trigger) for trigger in self._triggers if trigger) else ""

    def _update(self, *, final: bool = False) -> ChatDelta:
        message = self._message
        content, reasoning = unmarked(message.content), unmarked(message.reasoning)
        calls = [type(call)(*map(unmarked, (call.id, call.name, call.arguments))) for call in message.calls]
        return self._deltas.update(content, reasoning + self._more_reasoning, calls, final=final)

    def _odd(self, cut_call: str) -> list[str]:
        notes = []
        if self._reading.failed:
            notes.append(
                "the answer does not keep to the format of the chat template: what does not fit stands in the content"
            )
        if self._deltas.retracted:
            notes.append("the parser took back a part of the answer that was given out already: it is kept")
        if cut_call:
            notes.append(f"the answer ends inside a tool call that has no name yet: {shortened(unmarked(cut_call))}")
        return notes


def _is_unfinished(call: ToolCall) -> bool:
    try:
        json.loads(call.arguments or "{}")
    except (ValueError, RecursionError):
        return True
    return False


def _unfinished(call: ToolCall) -> str:
    return f"the call of {call.name} is unfinished: its arguments are not complete JSON"
