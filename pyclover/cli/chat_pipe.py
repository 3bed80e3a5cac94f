"""A chat in a pipe: lines in, answers out."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from pyclover.cli import chat_answer
from pyclover.cli.chat_view import statistics
from pyclover.cli.generate import ctrl_c_cancels
from pyclover.cli.interrupt import CANCELLED
from pyclover.cli.output import printable
from pyclover.cli.prompts import MAX_BYTES, read_prompt

if TYPE_CHECKING:
    from pyclover.cli.chat_conversation import Conversation, Reply
    from pyclover.cli.output import Output


def messages(*, single: bool) -> Iterator[str]:
    """The messages on standard input: its lines without the blank ones, or all of it as one.

    Raises:
        click.UsageError: no text, or a line longer than MAX_BYTES.
    """
    if single:
        text = read_prompt(None, "-", escape=False)
        if not text.strip():
            raise click.UsageError("standard input is empty: pipe a message into it.")
        yield text
        return
    stdin = sys.stdin
    number = 0
    while stdin is not None and (data := stdin.buffer.readline(MAX_BYTES + 1)):
        number += 1
        if len(data) > MAX_BYTES:
            raise click.UsageError(f"standard input, line {number}: longer than {MAX_BYTES >> 20} MiB.")
        try:
            line = data.decode()
        except UnicodeDecodeError as error:
            raise click.UsageError(
                f"standard input, line {number}: not UTF-8 text ({error.reason} at byte {error.start})."
            ) from None
        if line.strip():
            yield line.rstrip("\r\n")


def run(out: Output, conversation: Conversation, texts: Iterator[str], *, verbose: bool) -> int:
    """Answers every message; returns the exit code.

    Raises:
        CloverError: an answer failed; the messages behind it are not read.
    """
    told: set[str] = set()
    reply: Reply | None = None
    for text in texts:
        reply = _answer(out, conversation, text)
        if reply is None:
            return CANCELLED
        if out.mode == "json":
            out.json(as_json(reply))
        cut = chat_answer.cut_note(conversation, reply, at_terminal=False)
        for note in (*reply.notes, cut):
            if note and note not in told:
                told.add(note)
                out.talk(f"note: {note}")
        if verbose:
            click.echo(printable(statistics(reply)), err=True)
    return CANCELLED if reply is not None and reply.finish_reason == "cancelled" else 0


def as_json(reply: Reply) -> dict[str, Any]:
    """An answer as `--json` writes it."""
    return {
        "content": reply.content,
        "reasoning": reply.reasoning,
        "finish_reason": reply.finish_reason,
        "n_reasoning": reply.n_reasoning,
        "budget_cut": reply.budget_cut,
        "stats": reply.stats.to_dict(),
        "notes": reply.notes,
    }


def _answer(out: Output, conversation: Conversation, text: str) -> Reply | None:
    """One answer; None when a second Ctrl-C did not wait for it to stop."""
    reply = None
    try:
        with ctrl_c_cancels(conversation.model):
            for piece in conversation.ask(text):
                if out.mode != "json":
                    out.write(piece.content)
                reply = piece.reply
    except KeyboardInterrupt:
        return None
    finally:
        if out.mode != "json":
            out.end_line()
    return reply
