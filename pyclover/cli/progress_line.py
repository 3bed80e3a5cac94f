"""How far a download is, on the last line of a terminal: what matters most stays readable however narrow it is."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from pyclover.cli.output import printable, size

if TYPE_CHECKING:
    from pyclover.hub.progress import DownloadProgress

EVERY_S = 0.1
_MIN_LABEL = 12  # cells: less says nothing
_MIN_BAR, _MAX_BAR = 8, 30
_PLAIN = str.maketrans("━─…", "#-~")
_MAX_LINE = 120  # a longer one is no better to read, and breaks when the window is made narrower


class ProgressLine:
    """Draws a state over the last one. It wraps nowhere, hides no cursor and needs no colour."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._label = ""
        self._drawn_at = -1e9

    def __call__(self, state: DownloadProgress) -> None:
        now = self._clock()
        text = label(state)
        if text == self._label and now - self._drawn_at < EVERY_S and state.done_bytes < state.total_bytes:
            return
        self._label, self._drawn_at = text, now
        self.draw(line(state, terminal_width() - 1))

    def draw(self, text: str) -> None:
        """Shows a text that fits the line."""
        # no wrap, in case that the terminal takes the characters to be wider than we do
        _write(f"\r\x1b[?7l{text}\x1b[K\x1b[?7h")

    def clear(self) -> None:
        """Takes the line away."""
        _write("\r\x1b[K")


def line(state: DownloadProgress, room: int) -> str:
    """The state in at most so many cells: the numbers first, then as much of the name as there is room for, a bar."""
    from rich.cells import cell_len

    room = max(0, min(room, _MAX_LINE))
    name = printable(label(state))
    if state.phase == "wait":
        return cut(name, room)
    amounts = ("", f"{percent(state)} %", f"{size(state.done_bytes)} of {size(state.total_bytes)}  {percent(state)} %")
    rate = "" if state.bytes_per_s is None else f"{size(int(state.bytes_per_s))}/s"
    left = "" if state.left_s is None else f"{duration(state.left_s)} left"
    # what is written out in full first, what is left out first last
    forms = ((amounts[2], rate, left), (amounts[1], rate, left), (amounts[1], left), (amounts[1],), (amounts[0],))
    numbers = ["  ".join(part for part in form if part) for form in forms]
    text = numbers[0]
    if len(text) + 2 + min(cell_len(name), _MIN_LABEL) > room:
        text = next(short for short in numbers[1:] if len(short) <= room)
    rest = room - len(text) - 2
    if rest < _MIN_LABEL:
        return text
    verb, file = name.partition(" ")[0], printable(state.file)
    shown = f"{verb} {cut(file, rest - len(verb) - 1)}" if rest > len(verb) + _MIN_LABEL else cut(file, rest)
    bar_room = min(rest - cell_len(shown) - 2, _MAX_BAR)
    return f"{shown}  {_bar(state, bar_room)}  {text}" if bar_room >= _MIN_BAR else f"{shown}  {text}"


def percent(state: DownloadProgress) -> int:
    """Whole percents that are done; 100 only when all is."""
    return 100 if state.done_bytes >= state.total_bytes else 100 * state.done_bytes // state.total_bytes


def cut(text: str, room: int) -> str:
    """`text` in at most so many cells, its middle left out: names differ at their ends."""
    from rich.cells import cell_len, set_cell_size

    if cell_len(text) <= room:
        return text
    if room < 3:
        return ""
    tail = text
    while cell_len(tail) > room - room // 3 - 1:
        tail = tail[1:]
    return f"{set_cell_size(text, room // 3)}…{tail}"


def label(state: DownloadProgress) -> str:
    """What is being done, with the file's name."""
    if state.phase == "wait":
        return f"waiting for another download of {state.file}"
    return f"{'checking' if state.phase == 'verify' else 'downloading'} {state.file}"


def duration(seconds: float) -> str:
    """Seconds as 0:07, 12:30 or 1:02:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def terminal_width() -> int:
    """Columns of the terminal at standard error; 80 when it does not say."""
    try:
        columns = os.get_terminal_size(sys.stderr.fileno()).columns
    except (AttributeError, OSError, ValueError):
        columns = 0
    return columns or shutil.get_terminal_size((80, 24)).columns


def _bar(state: DownloadProgress, room: int) -> str:
    done = room * percent(state) // 100
    return "━" * done + "─" * (room - done)


def _write(text: str) -> None:
    encoding = sys.stderr.encoding or "ascii"
    try:
        text.encode(encoding)
    except UnicodeError:  # escapes in its place would be longer than the line
        text = text.translate(_PLAIN).encode(encoding, "replace").decode(encoding)
    sys.stderr.write(text)
    sys.stderr.flush()
