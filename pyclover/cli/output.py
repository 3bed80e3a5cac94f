"""The one object that commands write with: data to standard output, everything else to standard error."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TextIO

import click

if TYPE_CHECKING:
    from pyclover.cli.block_view import BlockView, TextPlace

Mode = Literal["table", "json", "quiet"]


def printable(text: str) -> str:
    """`text` with control characters escaped: names in a model file must not steer the terminal."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def size(n_bytes: int | None) -> str:
    """A number of bytes for people, in binary units; "unknown" for None."""
    if n_bytes is None:
        return "unknown"
    value = float(n_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def speed(tok_per_s: float | None) -> str:
    """Tokens per second for people; "- tok/s" when nothing was measured."""
    if tok_per_s is None or not math.isfinite(tok_per_s) or tok_per_s <= 0:
        return "- tok/s"
    return f"{tok_per_s:.1f} tok/s"


class Output:
    """Where a command writes.

    Args:
        mode: "table" for people; "json" for one JSON value and no talk; "quiet" for the data alone.
        color: True or False; None asks the terminal and the NO_COLOR variable.
    """

    def __init__(self, mode: Mode = "table", *, color: bool | None = None) -> None:
        if sys.stdout is None:
            raise click.ClickException("standard output is closed: open it, or send it to a file.")
        self.mode = mode
        self._color = color
        self._at_line_start = True
        self._place: TextPlace | None = None
        self._view: BlockView | None = None
        if mode == "table" and _is_terminal(sys.stdout):
            from pyclover.cli.block_view import TextPlace

            self._place = TextPlace()

    def write(self, text: str) -> None:
        """Data as it comes, exactly as it is; shown at once."""
        if not text:
            return
        if self._view is not None:
            self._view.make_way(text)
        sys.stdout.write(text)
        sys.stdout.flush()
        self._at_line_start = text.endswith("\n")
        if self._place is not None:
            self._place.advance(text)

    def end_line(self) -> None:
        """Ends the last line of the data, if it is not ended yet."""
        if not self._at_line_start:
            self.write("\n")

    def talk(self, line: str) -> None:
        """A remark for the person at the terminal."""
        if self.mode == "table":
            click.echo(printable(line), err=True)

    def warn(self, line: str) -> None:
        """A warning; also beside JSON, for whoever reads along."""
        if self.mode != "quiet":
            label = "warning:"
            if self.colors(sys.stderr):
                label = click.style(label, fg="yellow")
            click.echo(f"{label} {printable(line)}", err=True, color=self.colors(sys.stderr))

    def json(self, value: Any) -> None:
        """One JSON value on a line of its own, in ASCII: no terminal or file can spoil it.

        Numbers that JSON has not (NaN, infinity) become null.
        """
        self.write(json.dumps(_plain(value), allow_nan=False) + "\n")

    def heading(self, text: str) -> None:
        """A title above a table."""
        self.write(self.styled(printable(text), bold=True) + "\n")

    def pairs(self, rows: Mapping[str, object]) -> None:
        """Names and values, one a line."""
        self.table((), [(name, value) for name, value in rows.items()])

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[object]], *, right: Sequence[str] = ()) -> None:
        """Rows below column names (none for a table without a head); numbers stand right, and the columns named."""
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, show_header=bool(columns), pad_edge=False, header_style="bold")
        for at in range(len(rows[0]) if rows else len(columns)):
            numbers = bool(rows) and all(isinstance(row[at], (int, float)) for row in rows)
            justify: Literal["left", "right"] = "right" if numbers or (columns and columns[at] in right) else "left"
            title = Text(columns[at]) if columns else ""
            table.add_column(title, justify=justify, no_wrap=True, overflow="fold")
        for row in rows:
            table.add_row(*(Text(printable(str(cell))) for cell in row))
        color = self.colors(sys.stdout)
        # As wide as the data: a line that a terminal wraps can still be searched and cut, one cut by us cannot.
        console = Console(force_terminal=color, no_color=not color, width=100_000, highlight=False)
        with console.capture() as capture:
            console.print(table)
        self.write("".join(line.rstrip() + "\n" for line in capture.get().splitlines()))

    def styled(self, text: str, **style: Any) -> str:
        """`text` with click's styles, where standard output has colours."""
        return click.style(text, **style) if self.colors(sys.stdout) else text

    def colors(self, stream: TextIO | None) -> bool:
        """Whether to use colours on a stream."""
        if self._color is not None:
            return self._color
        return _is_terminal(stream) and not os.environ.get("NO_COLOR")

    def block_view(self) -> BlockView | None:
        """Shows a block in the making on standard output; None when that is no terminal."""
        if self._view is None and self._place is not None:
            from pyclover.cli.block_view import BlockView

            self._view = BlockView(self._place)
        return self._view

    @contextlib.contextmanager
    def progress(self, label: str) -> Iterator[Callable[[float], None] | None]:
        """A bar on standard error while the block runs: yields what takes the part done, 0 to 1.

        Yields None when nobody would see the bar: standard error is no terminal, or the mode is not "table".
        """
        if self.mode != "table" or not _is_terminal(sys.stderr):
            yield None
            return
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

        console = Console(stderr=True, no_color=not self.colors(sys.stderr))
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn())
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task(printable(label), total=1.0)
            yield lambda part: bar.update(task, completed=part)


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()


def _plain(value: Any) -> Any:
    """`value` in the types that JSON has; sets sorted, so that the same facts give the same JSON."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (set, frozenset)):
        return [_plain(item) for item in sorted(value)]
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return value
