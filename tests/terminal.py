"""A terminal for tests: cells, cursor, pending wrap, scrollback, resizing; what it does not know is an error.

Terminals differ, and the switches of `Terminal` say in what.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_PARTS = re.compile(r"\x1b\[(?P<args>[?0-9;]*)(?P<final>[A-Za-z])|\x1b(?P<escape>[78D])|(?P<char>[\s\S])")
_UNFINISHED = re.compile(r"(?:\x1b(?:\[[?0-9;]*)?)?\Z")
_RIGHT_HALF = "right half"

# Cells that characters take; of two numbers, a terminal has one or the other.
WIDTHS = {"日": 2, "本": 2, "語": 2, "😀": 2, "é": 1, "क": 1, "\u0301": 0, "\u0323": 0}
DISPUTED = {
    "░": (1, 2),
    "━": (1, 2),
    "─": (1, 2),
    "…": (1, 2),
    "◌": (1, 2),
    "\u093f": (0, 1),
    "\u200b": (0, 1),
    "\u200d": (0, 1),
    "\ufe0f": (0, 1),
    "🇩": (1, 2),
    "🏽": (0, 2),
}


@dataclass
class Cell:
    text: str
    style: str = ""


@dataclass
class Row:
    """Cells, None where nothing was written or all was erased."""

    cells: list[Cell | None]
    wrapped: bool = False  # goes on in the next row
    spare: bool = False  # as its last cell was too little for a wide character

    def is_blank(self) -> bool:
        return all(cell is None for cell in self.cells)


@dataclass
class Terminal:
    """A screen of `width` x `height` cells.

    Attributes:
        wraps_anew: after a change of the width, lines are wrapped again; else they are cut or extended.
        saves_wrap: saving the cursor saves that a wrap is pending, too.
        marks_last: a combining mark joins the character printed last, wherever the cursor is now.
        disputed: which of two widths a disputed character has, 0 or 1.
        joins: what follows a zero-width joiner takes no cell.
    """

    width: int
    height: int
    wraps_anew: bool = True
    saves_wrap: bool = False
    marks_last: bool = False
    disputed: int = 0
    joins: bool = False
    row: int = 0
    column: int = 0
    pending: bool = False
    autowrap: bool = True
    style: str = ""
    scrollback: list[Row] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rows = [self._blank() for _ in range(self.height)]
        self._saved = (0, 0, False, "")
        self._last: Cell | None = None
        self._joined = False
        self._unfinished = ""

    def feed(self, data: str) -> None:
        data = self._unfinished + data
        unfinished = _UNFINISHED.search(data)
        whole = unfinished.start() if unfinished else len(data)
        data, self._unfinished = data[:whole], data[whole:]
        for part in _PARTS.finditer(data):
            if part["char"]:
                self._char(part["char"])
                continue
            self._joined = False
            if part["escape"]:
                self._escape(part["escape"])
            else:
                self._sequence(part["args"], part["final"])

    def document(self) -> list[list[tuple[int, str, str]]]:
        """All lines from the first to the last that is not blank: where, what and in which style."""
        lines = [
            [(at, cell.text, cell.style) for at, cell in enumerate(row.cells) if cell is not None]
            for row in self.scrollback + self.rows
        ]
        while lines and not lines[-1]:
            lines.pop()
        return lines

    def text(self) -> list[str]:
        """The document without styles and without blanks at the end of its lines."""
        lines = []
        for line in self.document():
            cells = {at: "" if text == _RIGHT_HALF else text for at, text, _ in line}
            lines.append("".join(cells.get(at, " ") for at in range(self.width)).rstrip())
        return lines

    def state(self) -> tuple[object, ...]:
        """All that decides what is seen now and where the next text goes; the cursor's line counts from the first."""
        return self.document(), len(self.scrollback) + self.row, self.column, self.pending, self.style, self.autowrap

    def resize(self, width: int, height: int) -> None:
        if width != self.width:
            if self.wraps_anew:
                self._wrap_anew(width)
            else:
                for row in self.rows + self.scrollback:
                    row.cells = (row.cells + [None] * width)[:width]
                    if width < self.width and (last := row.cells[-1]) is not None and self._is_wide(last):
                        row.cells[-1] = None  # its right half is gone
                self.column, self.pending = min(self.column, width - 1), False
            self.width = width
        lines, cursor = self.scrollback + self.rows, len(self.scrollback) + self.row
        while len(lines) > height and len(lines) - 1 > cursor and lines[-1].is_blank():
            lines.pop()
        lines += [self._blank() for _ in range(height - len(lines))]
        top = min(len(lines) - height, cursor)
        self.scrollback, self.rows = lines[:top], lines[top : top + height]
        self.height, self.row = height, cursor - top

    def _wrap_anew(self, width: int) -> None:
        lines, cursor = self.scrollback + self.rows, len(self.scrollback) + self.row
        anew: list[Row] = []
        self.scrollback = []
        line: list[Cell | None] = []
        place: int | None = None
        for at, row in enumerate(lines):
            cells = row.cells[:-1] if row.spare else row.cells
            if at == cursor:
                place = len(line) + self.column + self.pending
            line = line + cells
            if row.wrapped:
                continue
            while line and line[-1] is None and (place is None or len(line) > place):
                line.pop()
            rows, found = self._laid_out(line, place, width)
            if found is not None:
                cursor_row, self.column, self.pending = found
                self.row = len(anew) + cursor_row
            anew += rows
            line, place = [], None
        self.rows = anew

    def _laid_out(
        self, line: list[Cell | None], place: int | None, width: int
    ) -> tuple[list[Row], tuple[int, int, bool] | None]:
        rows: list[Row] = [Row([])]
        found = None
        at = 0
        while at < len(line):
            n = 2 if at + 1 < len(line) and (right := line[at + 1]) is not None and right.text == _RIGHT_HALF else 1
            if len(rows[-1].cells) + n > width:
                rows[-1].wrapped, rows[-1].spare = True, len(rows[-1].cells) < width
                rows.append(Row([]))
            if place is not None and at <= place < at + n:
                found = (len(rows) - 1, len(rows[-1].cells) + place - at, False)
            rows[-1].cells += line[at : at + n]
            at += n
        if place == len(line):
            column = len(rows[-1].cells)
            found = (len(rows) - 1, min(column, width - 1), column == width and line[-1] is not None)
        for row in rows:
            row.cells += [None] * (width - len(row.cells))
        return rows, found

    def _blank(self) -> Row:
        return Row([None] * self.width)

    def _is_wide(self, cell: Cell) -> bool:
        return cell.text != _RIGHT_HALF and self._width_of(cell.text[0]) == 2

    def _width_of(self, char: str) -> int:
        if char in DISPUTED:
            return DISPUTED[char][self.disputed]
        return 1 if char.isascii() else WIDTHS[char]

    def _char(self, char: str) -> None:
        self._joined &= char.isprintable() or char in DISPUTED
        if char == "\n":  # the driver of the terminal returns the carriage
            self.column, self.pending = 0, False
            self._index()
        elif char == "\r":
            self.column, self.pending = 0, False
        elif char == "\b":
            self.column, self.pending = max(self.column - 1, 0), False
        elif char == "\t":
            self.pending &= self.saves_wrap  # terminals differ here, too
            self.column = min(self.column // 8 * 8 + 8, self.width - 1)
        elif char != "\a":
            assert char.isprintable() or char in DISPUTED, f"no terminal here knows {char!r}"
            self._print(char)

    def _print(self, char: str) -> None:
        n = 0 if self._joined and self.joins else self._width_of(char)
        self._joined = char == "\u200d"
        if n > self.width:
            return
        if n == 0:
            self._combine(char)
            return
        if self.autowrap and (self.pending or self.column + n > self.width):
            row = self.rows[self.row]
            row.wrapped, row.spare = True, not self.pending
            self.column, self.pending = 0, False
            self._index()
        self.column = min(self.column, self.width - n)
        for at in range(self.column, self.column + n):
            self._empty(at)
        cells = self.rows[self.row].cells
        self._last = cells[self.column] = Cell(char, self.style)
        if n == 2:
            cells[self.column + 1] = Cell(_RIGHT_HALF, self.style)
        self.column += n
        if self.column == self.width:
            self.column, self.pending = self.width - 1, self.autowrap

    def _combine(self, mark: str) -> None:
        if self.marks_last:
            cell = self._last
        else:
            cells, at = self.rows[self.row].cells, self.column if self.pending else self.column - 1
            cell = cells[at] if at >= 0 else None
            if cell is not None and cell.text == _RIGHT_HALF:
                cell = cells[at - 1]
        if cell is not None:
            cell.text += mark

    def _empty(self, at: int) -> None:
        """Empties a cell, and the other half of a wide character there."""
        cells = self.rows[self.row].cells
        cell = cells[at]
        if cell is not None and cell.text == _RIGHT_HALF:
            cells[at - 1] = None
        right = cells[at + 1] if at + 1 < self.width else None
        if right is not None and right.text == _RIGHT_HALF:
            cells[at + 1] = None
        cells[at] = None

    def _index(self) -> None:
        if self.row < self.height - 1:
            self.row += 1
        else:
            self.scrollback.append(self.rows.pop(0))
            self.rows.append(self._blank())

    def _escape(self, final: str) -> None:
        if final == "D":
            self.pending = False
            self._index()
        elif final == "7":
            self._saved = (self.row, self.column, self.pending and self.saves_wrap, self.style)
        else:
            self.row, self.column, self.pending, self.style = self._saved
            self.row = min(self.row, self.height - 1)

    def _sequence(self, args: str, final: str) -> None:
        if final == "m":
            self.style = "" if args in ("", "0") else f"{self.style};{args}"
        elif final in "hl" and args == "?7":
            self.autowrap = final == "h"
        elif final in "KJ":
            self._erase(final, int(args or 0))
        else:
            self.pending = False
            n = max(int(args or 1), 1)
            if final == "A":
                self.row = max(self.row - n, 0)
            elif final == "B":
                self.row = min(self.row + n, self.height - 1)
            elif final == "G":
                self.column = min(n, self.width) - 1
            else:
                raise AssertionError(f"no terminal here knows CSI {args}{final}")

    def _erase(self, final: str, mode: int) -> None:
        assert mode == 0, f"no terminal here knows CSI {mode}{final}"
        assert (self.row, self.column, final) != (0, 0, "J"), "some terminals keep the screen in the scrollback then"
        for at in range(self.column, self.width):
            self._empty(at)
            self.rows[self.row].cells[at] = self._erased()
        if final == "J":
            for row in self.rows[self.row + 1 :]:
                row.cells = [self._erased() for _ in range(self.width)]
                row.wrapped = row.spare = False

    def _erased(self) -> Cell | None:
        return Cell(" ", self.style) if self.style else None  # a background in effect colours it
