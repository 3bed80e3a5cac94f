"""Plots of a table: a PNG by matplotlib, or lines for a terminal by plotext; both are of the extra `plot`."""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyclover.errors import UsageError
from pyclover.tuning.table import Row

TITLE = "Times as fast as plain decoding (median of the pairs, 95 % interval)"


def _missing(what: str) -> UsageError:
    return UsageError(f"--plot needs {what}: pip install 'pyclover[plot]'", option="plot")


def _with_ratio(rows: Sequence[Row]) -> list[tuple[str, float, float, float]]:
    """Label, median, low, high of rows that have a ratio; the interval is the median where there is none."""
    found = []
    for row in rows:
        r = row.ratio
        if r is not None:
            low, high = (r.low, r.high) if r.low is not None and r.high is not None else (r.median, r.median)
            found.append((row.label, r.median, low, high))
    return found


def check(where: str) -> None:
    """Raises UsageError where a plot cannot be made: before hours of measuring, not after."""
    package = "plotext" if where == "-" else "matplotlib"
    if importlib.util.find_spec(package) is None:
        raise _missing(package)
    folder = Path(where).absolute().parent
    if where != "-" and not (folder.is_dir() and os.access(folder, os.W_OK)):
        raise UsageError(f"{where}: {folder} is no folder that can be written to", option="plot")


def png(rows: Sequence[Row], path: Path, title: str) -> None:
    """Writes a plot of the ratios.

    Raises:
        UsageError: matplotlib is not there. OSError: the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise _missing("matplotlib") from None
    points = _with_ratio(rows)
    figure = Figure(figsize=(8, 1.2 + 0.35 * max(1, len(points))), layout="constrained")
    axes: Any = figure.subplots()
    for y, (_, median, low, high) in enumerate(reversed(points)):
        axes.errorbar([median], [y], xerr=[[median - low], [high - median]], fmt="o", color="tab:blue", capsize=3)
    axes.set_yticks(range(len(points)), [label for label, *_ in reversed(points)])
    axes.axvline(1.0, color="black", linewidth=1)
    axes.set_xlabel(TITLE)
    axes.set_title(title)
    draft = path.with_name(f".{os.getpid()}-{path.name}.tmp")
    try:
        figure.savefig(draft, format="png", dpi=150)
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def terminal(rows: Sequence[Row], width: int) -> str:
    """The ratios as columns of characters; a line at 1 would be plain decoding.

    Raises:
        UsageError: plotext is not there, or of a version before 6.
    """
    try:
        plotext: Any = importlib.import_module("plotext")
        figure = plotext.figure
        figure.clear()
    except (ImportError, AttributeError):
        raise _missing("plotext 6") from None
    points = _with_ratio(rows)
    if not points:
        return ""
    figure.plot_size(width, 16)
    figure.title(TITLE)
    # lying bars come out wrong in plotext 6.1
    labels = [label.replace("draft-self ", "").replace(" ", ",") for label, *_ in points]
    figure.draw(figure.bar(labels, [round(median, 3) for _, median, *_ in points]))
    text = str(plotext.uncolorize(str(figure.build())))
    figure.clear()
    return "".join(line.rstrip() + "\n" for line in text.splitlines())
