"""`clover-run generate --chat`: one question; the answer is the data, the thought before it is talk."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyclover.cli.chat_view import AnswerView, statistics
from pyclover.cli.generate import ctrl_c_cancels

if TYPE_CHECKING:
    from pyclover.chat.reply import ChatReply
    from pyclover.cli.output import Output
    from pyclover.clover import Clover

CANCELLED = "cancelled"


def question(text: str) -> list[dict[str, Any]]:
    """A conversation of one question."""
    return [{"role": "user", "content": text}]


def chat_request(request: Mapping[str, Any], *, thinking: bool | None) -> dict[str, Any]:
    """Keywords of `Clover.chat_stream` from those of `Clover.stream`."""
    asked = {**request, "thinking": thinking}
    if "json_schema" in asked:  # the answer follows it, the thought does not
        asked["response_format"] = asked.pop("json_schema")
    return asked


def write_answer(out: Output, clover: Clover, text: str, request: Mapping[str, Any], *, show_blocks: bool) -> str:
    """Streams the answer to standard output and, but for --quiet, the thought to standard error; why it ended."""
    view = AnswerView(out, tokens_shown=(lambda token: clover.detokenize([token])) if show_blocks else None)
    reply: ChatReply | None = None
    try:
        pieces = clover.chat_stream(question(text), **request)
        with ctrl_c_cancels(clover):
            for piece in pieces:
                if out.mode != "quiet":
                    view.show(piece)
                else:
                    out.write(piece.content)
                reply = piece.reply
    except KeyboardInterrupt:
        return CANCELLED
    finally:
        view.end()
        out.end_line()
    if reply is None:
        return CANCELLED
    for note in (*reply.notes, _cut_note(reply)):
        if note:
            out.talk(f"note: {note}")
    out.talk(statistics(reply))
    return str(reply.finish_reason)


def _cut_note(reply: ChatReply) -> str:
    if reply.finish_reason != "length" or reply.content or not reply.reasoning:
        return ""
    return (
        f"all {reply.stats.n_generated} tokens went into thinking, and the answer has none left: a larger -n (or -c) "
        "has room for more, --reasoning off leaves thinking out."
    )


def write_answer_json(out: Output, clover: Clover, model: str, text: str, request: Mapping[str, Any]) -> str:
    """Writes the whole answer as one object, also that of a cancelled run; returns why it ended."""
    pieces = []
    with contextlib.suppress(KeyboardInterrupt):
        coming = clover.chat_stream(question(text), **request)
        with ctrl_c_cancels(clover):
            for piece in coming:
                pieces.append(piece)  # one by one: an interrupt loses none
    reply = pieces[-1].reply if pieces else None
    finish_reason = CANCELLED if reply is None else str(reply.finish_reason)
    out.json(
        {
            "model": model,
            "text": "".join(piece.content for piece in pieces),
            "reasoning": "".join(piece.reasoning for piece in pieces),
            "tokens": [token for piece in pieces for token in piece.tokens],
            "finish_reason": finish_reason,
            "stop": None if reply is None else reply.stop,
            "stats": None if reply is None else reply.stats.to_dict(),
            "notes": [] if reply is None else list(reply.notes),
            "warnings": clover.warnings,
        }
    )
    return finish_reason
