"""A block in the making, shown below the text on a terminal and taken away without a trace."""

from __future__ import annotations

import functools
import os
import re
import shutil
import sys
import unicodedata
from collections.abc import Iterable, Sequence

from pyclover.cli.output import printable

_PARTS = re.compile(
    r"(?P<style>\x1b\[[0-9;:]*m)|(?P<unfinished>\x1b(?:\[[0-9;:]*)?\Z)"
    r"|(?P<control>[\x00-\x1f\x7f-\x9f])|(?P<run>[^\x00-\x1f\x7f-\x9f]+)"
)
_RESET = re.compile(r"\x1b\[(?:0*[;m])")
_TAB = 8
_JOINER = "\u200d"


class TextPlace:
    """Where on the terminal the text ends, and what it takes to come back there.

    A terminal whose line is full leaves the cursor on the last column and wraps with the next character. It forgets
    that when the cursor moves, and then the next character goes over the last one: only who knows the column can
    help it. The text begins in the first column, where Enter leaves the cursor. Terminals differ in the width of some
    characters, so the column is a set of those that may be.

    Attributes:
        columns: where the cursor may be, from 0; the width of the terminal stands for a full line.
        style: the escape sequences of the colours and styles in effect.
    """

    def __init__(self) -> None:
        self.columns = {0}
        self.style = ""
        self._width = terminal_size()[0]
        # the widths that each character of this line may have, to lay it out again when the terminal is resized
        self._line: list[tuple[int, ...]] = []
        self._last, self._last_cells, self._last_style = "", 0, ""
        self._joined = self._doubtful = False
        self._gaps = self._lost = False  # until the line ends
        self._refilled = False
        self._unfinished = ""
        self._steered = False  # for good

    @property
    def line_full(self) -> bool:
        """Whether the next character wraps; after a change of the width, on a terminal that wraps its lines anew."""
        return bool(self._last) and (self._refilled or self.columns == {self._width})

    @property
    def known(self) -> bool:
        """Whether one can go away from here and come back, and the next text will look as if nothing had happened."""
        if self._steered or self._lost or self._unfinished or self._doubtful or self._width < 2:
            return False
        return self._width not in self.columns or (self.columns == {self._width} and bool(self._last))

    def fit(self) -> None:
        """Takes note of the width that the terminal has now."""
        before, width = self._width, terminal_size()[0]
        self._width = width
        if width == before or sum(map(max, self._line)) < min(width, before):
            return
        # blanks that nobody wrote may be lost
        self._lost |= self._gaps or min(width, before) < 2
        # most terminals wrap their lines anew, the others keep the cursor where it is
        kept = {min(column, before - 1, width - 1) for column in self.columns}
        anew = functools.reduce(self._moved, self._line, {0})
        self.columns, self._refilled = kept | anew, anew == {width}

    def advance(self, text: str) -> None:
        """Takes note of text that was written here."""
        self.fit()
        self._refilled = False
        text, self._unfinished = self._unfinished + text, ""
        last_line = text.rfind("\n") + 1
        for part in _PARTS.finditer(text):
            found = part.group()
            if part.lastgroup == "style":
                self.style = ("" if _RESET.match(found) else self.style) + found
            elif part.lastgroup == "unfinished":
                self._unfinished = found
            elif part.lastgroup == "control":
                self._control(found)
            elif part.start() >= last_line:
                for char in found:
                    self._print(char)

    def again(self) -> str:
        """What brings the cursor from anywhere in this row back behind a full line: its last character, once more."""
        return f"\x1b[{self._width - self._last_cells + 1}G{self._last_again()}"

    def mark_again(self, text: str) -> str:
        """What makes a mark at the start of `text` join the last character: that character, once more.

        Some terminals put a mark on what was printed last, wherever that was.
        """
        if 0 not in _widths(text[0]) or not self._last or self.line_full or not self.known:
            return ""
        return "\b" * self._last_cells + self._last_again()

    def _last_again(self) -> str:
        return f"\x1b[0m{self._last_style}{self._last}\x1b[0m{self.style}"

    def _control(self, char: str) -> None:
        self._joined = self._doubtful = False
        if char in "\0\a\x7f":
            return
        self._last = ""
        if char == "\n":
            self.columns, self._line = {0}, []
            self._gaps = self._lost = False
        elif char == "\t":
            self._gaps = True
            stops = {column: min((column // _TAB + 1) * _TAB, self._width - 1) for column in self.columns}
            self._line += [(1,)] * max((stop - column for column, stop in stops.items()), default=0)
            # some terminals forget at a tab that the line is full
            self.columns = {self._width, *stops.values()} if self._width in self.columns else set(stops.values())
        elif char in "\r\b\v\f":
            self._lost = True  # may stand before text of its own now
        else:
            self._steered = True  # the cursor may go anywhere

    def _print(self, char: str) -> None:
        widths = _widths(char)
        if self._joined:
            widths = tuple({0, *widths})  # a terminal may show both as one
        self._joined = char == _JOINER
        self._line.append(widths)
        self.columns = self._moved(self.columns, widths)
        if widths == (0,):
            self._last += char if self._last else ""
            return
        self._doubtful = len(widths) > 1
        self._last, self._last_cells, self._last_style = "" if self._doubtful else char, widths[0], self.style

    def _moved(self, columns: Iterable[int], widths: tuple[int, ...]) -> set[int]:
        return {column + n if column + n <= self._width else n for column in columns for n in widths}


class BlockView:
    """A block of block diffusion on the line below the text, drawn over until it is finished.

    It shows nothing while a line of the text cannot be trusted to survive it. At the bottom of the screen it scrolls
    by a line, which the next line of the text takes. Only a terminal made so narrow that the block alone, wrapped anew,
    fills the screen keeps it: it has gone to the scrollback then.

    Args:
        place: where the text ends; the caller keeps it.
    """

    MASK = "░"

    def __init__(self, place: TextPlace) -> None:
        self._place = place
        self._shown = False
        self._drawn = False

    def show(self, rows: Sequence[str | None]) -> None:
        """Tokens of the block, None where they are not decided: as many as the line has room for."""
        width, height = terminal_size()
        self._place.fit()
        if height < 2 or not self._place.known:
            self.clear()
            return
        line = _cut("".join(self.MASK if row is None else printable(row) for row in rows), width - 1)
        # no wrap, in case that the terminal takes the characters to be wider than we do
        drawn = f"\x1b[0m\x1b[J\x1b[?7l\x1b[2m{line}\x1b[0m\x1b[?7h"
        _write((self._rest_erased() if self._shown else "") + self._below(drawn))
        self._shown = self._drawn = True

    def clear(self) -> None:
        """Takes the block off the terminal."""
        if self._shown:
            self._place.fit()
            _write(self._rest_erased() + self._below("\x1b[0m\x1b[J"))
            self._shown = False

    def make_way(self, text: str) -> None:
        """Clears the terminal for `text`, which is written next."""
        self.clear()
        if self._drawn and text:
            _write(self._place.mark_again(text))
            self._drawn = False

    def _below(self, drawn: str) -> str:
        # index, not "cursor down": it makes room at the bottom of the screen, and never stays on the line of the text
        if self._place.line_full:
            return f"\x1bD\r{drawn}\x1b[A{self._place.again()}"
        return f"\x1bD\x1b[A\x1b7\x1b[B\r{drawn}\x1b8"

    def _rest_erased(self) -> str:
        # blank, unless somebody pressed Enter: then the cursor stands before the block
        return f"\x1b[0m\x1b[K{self._place.style}" if self._place.known and not self._place.line_full else ""


def terminal_size() -> tuple[int, int]:
    """Columns and lines of the terminal at standard output, as it is now; zeros when it does not say."""
    try:
        columns, lines = os.get_terminal_size(sys.stdout.fileno())
    except (AttributeError, OSError, ValueError):
        columns, lines = 0, 0
    # asked first, as an exported COLUMNS may be that of another window
    return (columns, lines) if columns and lines else shutil.get_terminal_size((0, 0))


@functools.lru_cache(4096)
def _widths(char: str) -> tuple[int, ...]:
    """How many cells a character may take: more than one number where terminals differ."""
    if char.isascii():
        return (1,)
    from rich.cells import cell_len

    cells, code, category = cell_len(char), ord(char), unicodedata.category(char)
    if category in ("Mc", "Cf", "Zl", "Zp") or char == "\ufe0f" or 0x1160 <= code <= 0x11FF or 0xD7B0 <= code <= 0xD7FF:
        return tuple({0, 1, cells})
    if 0x1F1E6 <= code <= 0x1F1FF or 0x1F3FB <= code <= 0x1F3FF:  # halves of flags, tones of skin
        return (0, 1, 2)
    if category in ("Cn", "Co"):  # a newer Unicode may know it
        return (1, 2)
    return tuple({0, cells}) if category in ("Mn", "Me") else (cells,)


def _cut(line: str, room: int) -> str:
    """As much of `line` as has room, in cells."""
    from rich.cells import cell_len, set_cell_size

    if line and 0 in _widths(line[0]):
        line = "◌" + line  # a mark needs something to stand on, or it joins the text
    return set_cell_size(line, room) if cell_len(line) > room else line


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
