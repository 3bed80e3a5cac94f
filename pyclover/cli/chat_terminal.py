"""A chat at a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from pyclover.cli import chat_answer
from pyclover.cli.chat_commands import Commands, parsed
from pyclover.cli.interrupt import CANCELLED
from pyclover.cli.output import printable
from pyclover.errors import CloverError

if TYPE_CHECKING:
    from pyclover.cli.chat_conversation import Conversation, Piece
    from pyclover.cli.chat_editor import LineEditor
    from pyclover.cli.chat_view import AnswerView
    from pyclover.cli.output import Output


IMPATIENCE_S = 1.0  # a Ctrl-C so soon after a stopped answer was meant for that


class TerminalChat:
    """Reads messages and commands and answers, until the user ends it."""

    def __init__(
        self, out: Output, conversation: Conversation, editor: LineEditor, view: AnswerView, *, model: str
    ) -> None:
        self._out = out
        self._chat = conversation
        self._editor = editor
        self._view = view
        self._commands = Commands(out, conversation, view, model=model)
        self._told: set[str] = set()
        self._stopped_s = float("-inf")  # when an answer was stopped last

    def run(self) -> int:
        """Talks; returns the exit code."""
        asked_to_end = False
        while True:
            try:
                line = self._editor.read()
            except EOFError:
                return 0
            except KeyboardInterrupt:
                if time.monotonic() - self._stopped_s < IMPATIENCE_S:
                    continue
                if asked_to_end:
                    return CANCELLED
                asked_to_end = True
                self._out.talk("(Ctrl-C once more, or Ctrl-D, ends the chat)")
                continue
            asked_to_end = False
            try:
                if not self._took(line):
                    return 0
            except KeyboardInterrupt:  # between the editor and the answer
                self._stopped_s = time.monotonic()
                self._note("stopped.")
            except CloverError as error:
                self._fail(chat_answer.advice(error))

    def _took(self, line: str) -> bool:
        """Does what a line asks for; False to end."""
        if not line.strip():
            return True
        command = parsed(line)
        if command is None:
            self._answer(self._chat.ask(line[1:] if line.startswith("//") else line))
            return True
        after = self._commands.run(*command)
        if after == "retry":
            self._answer(self._chat.retry())
        return after != "quit"

    def _answer(self, pieces: Iterator[Piece]) -> None:
        with chat_answer.ctrl_c_stops(self._chat.model), self._editor.typing_kept():
            try:
                reply = chat_answer.last_of(pieces, self._view.show)
            finally:
                self._view.end()
            if reply is None:
                return
            if reply.finish_reason == "cancelled":
                self._stopped_s = time.monotonic()
                self._note("stopped.")
            for note in reply.notes:
                if note not in self._told:  # once
                    self._told.add(note)
                    self._note(f"note: {note}")
            cut = chat_answer.cut_note(self._chat, reply, at_terminal=True)
            if cut:
                self._note(f"note: {cut}")
            self._view.numbers(reply)

    def _note(self, line: str) -> None:
        click.echo(self._view.dim(printable(line)), err=True, color=self._out.colors(sys.stderr))

    def _fail(self, sentence: str) -> None:
        label = "Error:"
        if self._out.colors(sys.stderr):
            label = click.style(label, fg="red")
        click.echo(f"{label} {printable(sentence)}", err=True)
