"""How far long work is: a line that is drawn over on a terminal, a line now and then in a log."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import TypeAlias

from pyclover.cli.output import Output, printable
from pyclover.cli.progress_line import ProgressLine, cut, duration, terminal_width

Show: TypeAlias = Callable[[str, float, float | None], None]  # what is done, part done (0 to 1), seconds left

LOG_EVERY_S = 60.0
_BAR = 20


@contextlib.contextmanager
def work_line(out: Output) -> Iterator[Show | None]:
    """Yields what shows a state; None when nobody wants to see it."""
    if out.mode != "table" or sys.stderr is None:
        yield None
        return
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield _log(out)
        return
    view = ProgressLine()
    try:
        yield lambda label, part, left_s: view.draw(line(label, part, left_s, terminal_width() - 1))
    finally:
        view.clear()


def line(label: str, part: float, left_s: float | None, room: int) -> str:
    """The state in at most so many cells."""
    numbers = f"{int(100 * part)} %" + ("" if left_s is None else f"  {duration(left_s)} left")
    bar = "━" * int(_BAR * part) + "─" * (_BAR - int(_BAR * part))
    for tail in (f"  {bar}  {numbers}", f"  {numbers}"):
        if room - len(tail) >= 12:
            return cut(printable(label), room - len(tail)) + tail
    return numbers[: max(room, 0)]


def _log(out: Output) -> Show:
    last = time.monotonic()

    def show(label: str, part: float, left_s: float | None) -> None:
        nonlocal last
        if time.monotonic() - last >= LOG_EVERY_S:
            last = time.monotonic()
            out.talk(f"{label}: {int(100 * part)} %" + ("" if left_s is None else f", {duration(left_s)} left"))

    return show
