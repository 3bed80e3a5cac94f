"""How an answer of `clover-run chat` looks: the text on standard output, thoughts and numbers on standard error."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TextIO

import click

from pyclover.cli.generate import speed_line
from pyclover.cli.output import printable

if TYPE_CHECKING:
    from pyclover.cli.block_view import BlockView, TextPlace
    from pyclover.cli.chat_conversation import Piece, Reply
    from pyclover.cli.output import Output

DIM, DRAFTED, RESET = "\x1b[2m", "\x1b[32m", "\x1b[0m"
FOLDED = "thinking ..."
_UNCOLOURED = "thinking: "  # in front of a thought that is not dimmed


def for_terminal(text: str) -> str:
    """`text` with all control characters but line ends and tabs escaped: an answer must not steer the terminal.

    Marks, joiners and the like stay, as scripts and emoji need them.
    """
    if text.isprintable():
        return text
    return "".join(
        char.encode("unicode_escape").decode() if unicodedata.category(char) == "Cc" and char not in "\n\t" else char
        for char in text.replace("\r\n", "\n")
    )


def statistics(reply: Reply) -> str:
    """The numbers of an answer on one line, which begins with its mode."""
    line = speed_line(reply.stats)
    if reply.n_reasoning or reply.budget_cut:
        line += f"; thinking {reply.n_reasoning} tokens" + (" (cut at the budget)" if reply.budget_cut else "")
    return line


class AnswerView:
    """Shows one answer after the other on a terminal; the terminal wraps the lines, so a resize garbles nothing.

    Args:
        out: where commands write.
        hide_thinking: one word in place of each thought.
        color_drafts: show tokens in green that were drafted and accepted; may be changed.
        tokens_shown: text of a token, to show blocks while they are resolved; None: do not.
    """

    def __init__(
        self,
        out: Output,
        *,
        hide_thinking: bool = False,
        color_drafts: bool = False,
        tokens_shown: Callable[[int], str] | None = None,
    ) -> None:
        self.color_drafts = color_drafts
        self._out = out
        self._hide_thinking = hide_thinking
        self._style = ""
        self._styled: TextIO = sys.stderr
        self._in_line: dict[TextIO, bool] = {sys.stdout: False, sys.stderr: False}
        self._thinking = False
        self._held = ""
        self._tokens_shown = tokens_shown
        self._place: TextPlace | None = None
        self._blocks: BlockView | None = None
        if tokens_shown is not None and sys.stdout.isatty() and sys.stderr.isatty():
            from pyclover.cli.block_view import BlockView, TextPlace

            self._place = TextPlace()
            self._blocks = BlockView(self._place)

    def show(self, piece: Piece) -> None:
        """A part of the answer."""
        if piece.block is not None:
            self._show_block(piece.block)
            return
        if piece.reasoning:
            self._think(piece.reasoning)
        if piece.content:
            self._end_thought()
            drafted = piece.drafted and self.color_drafts and self._out.colors(sys.stdout)
            self._put(sys.stdout, piece.content, DRAFTED if drafted else "")

    def end(self) -> None:
        """Ends the last line and all styles, whatever has come."""
        if self._blocks is not None:
            self._blocks.clear()
        self._end_thought()
        self._set_style(sys.stdout, "")
        if self._in_line[sys.stdout]:
            self._put(sys.stdout, "\n")

    def numbers(self, reply: Reply) -> None:
        """The line of statistics."""
        click.echo(self.dim(printable(statistics(reply))), err=True, color=self._out.colors(sys.stderr))

    def dim(self, text: str) -> str:
        """`text` dimmed, where standard error has colours."""
        return click.style(text, dim=True) if self._out.colors(sys.stderr) else text

    def _think(self, text: str) -> None:
        color = self._out.colors(sys.stderr)
        style = DIM if color else ""
        text = self._held + text
        if not self._thinking:
            text = text.lstrip()
            if not text:
                return
            self._thinking, self._held = True, ""
            if self._in_line[sys.stdout]:  # an answer that goes back to thinking
                self._put(sys.stdout, "\n")
            if self._hide_thinking:
                self._put(sys.stderr, FOLDED, style)
            elif not color:
                self._put(sys.stderr, _UNCOLOURED)
        if self._hide_thinking:
            return
        # line ends at the end of a thought are only known as such when it goes on
        kept = text.rstrip("\n")
        self._held = text[len(kept) :]
        self._put(sys.stderr, kept, style)

    def _end_thought(self) -> None:
        self._held = ""
        if self._thinking:
            self._thinking = False
            self._set_style(sys.stderr, "")
            self._put(sys.stderr, "\n")

    def _show_block(self, rows: Sequence[int | None]) -> None:
        if self._blocks is not None and self._tokens_shown is not None:
            self._blocks.show([None if token is None else self._tokens_shown(token) for token in rows])

    def _set_style(self, stream: TextIO, style: str) -> None:
        if (style, stream) == (self._style, self._styled) or not (style or self._style):
            return
        if self._style:
            self._write(self._styled, RESET)
        self._style, self._styled = style, stream
        if style:
            self._write(stream, style)

    def _put(self, stream: TextIO, text: str, style: str = "") -> None:
        if not text:
            return
        if self._blocks is not None:
            self._blocks.make_way(text)
        self._set_style(stream, style)
        self._write(stream, for_terminal(text) if stream.isatty() else text)
        self._in_line[stream] = not text.endswith("\n")

    def _write(self, stream: TextIO, text: str) -> None:
        stream.write(text)
        stream.flush()
        if self._place is not None:
            self._place.advance(text)
