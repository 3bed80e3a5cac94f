"""What `bench` and `tune` show: tables, a plot, and how far they are."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pyclover.cli.output import Output

if TYPE_CHECKING:
    from pyclover.tuning.calibrate import Calibration
    from pyclover.tuning.recommend import Recommendation
    from pyclover.tuning.table import Row
    from pyclover.tuning.tune import Progress, ProgressFunction


@contextlib.contextmanager
def progress(out: Output, label: str) -> Iterator[ProgressFunction | None]:
    """A bar for a race; None where nobody would see it."""
    with out.progress(label) as bar:
        if bar is None:
            yield None
            return

        def show(state: Progress) -> None:
            bar(state.turn / max(1, state.n_turns))

        yield show


def show_rows(out: Output, title: str, rows: Sequence[Row]) -> None:
    """The table of candidates, that of kinds, and what share of the text changed."""
    from pyclover.tuning import report

    out.heading(title)
    out.table(report.COLUMNS, report.table(rows), right=report.COLUMNS[1:])
    columns, cells = report.kinds_table(rows)
    if cells:
        out.write("\n")
        out.heading("By kind of prompt")
        out.table(columns, cells, right=columns[1:])
    changed = report.changed_table(rows)
    if changed:
        out.write("\n")
        out.heading("Text that is not plain decoding's")
        out.table(("setting", "tokens", "answers"), changed, right=("tokens", "answers"))


def show_recommendation(out: Output, found: Recommendation) -> None:
    out.write("\n")
    out.heading(f"Recommended: {found.label}")
    for reason in found.reasons:
        out.write(f"{reason}\n")
    if found.as_good:
        out.write(f"not told from it: {', '.join(found.as_good)}\n")


def show_calibration(out: Output, found: Calibration) -> None:
    """All trials, what was chosen, and how sure that is."""
    from pyclover.tuning.report import interval

    out.heading(f"Block parameters of {found.model}: accepted tokens a round, drafts of {found.n_max}")
    cells = [
        (
            str(t.pass_), t.parameter, str(t.value), str(t.instead_of), f"{t.accepted:.3f}", f"{t.gain:+.3f}",
            interval(t.low, t.high, 3), f"{t.p:.2g}", "taken" if t.taken else "the same" if t.same else "",
        )
        for t in found.trials
    ]  # fmt: skip
    out.table(("pass", "parameter", "value", "instead of", "accepted", "gain", "95 %", "p", ""), cells,
              right=("accepted", "gain", "95 %", "p"))  # fmt: skip
    out.write("\n")
    out.heading(f"Chosen, from {found.n_prompts} prompts and {found.n_places} places")
    out.pairs(dict(found.verdicts))
    if found.changes:
        spread = interval(found.low, found.high, 3)
        out.write(
            f"together {found.accepted_before:.3f} -> {found.accepted:.3f} accepted tokens a round: {found.gain:+.3f} "
            f"(95 % of the median {spread}), p = {found.p:.2g}; a difference counted at p < {needed(found):.2g}\n"
        )
    else:
        out.write("nothing changes: what the file says stays\n")


def needed(found: Calibration) -> float:
    return found.trials[0].needed if found.trials else 0.0


def plot(out: Output, where: str | None, rows: Sequence[Row], title: str) -> None:
    """Draws the ratios into a PNG, or for "-" as text."""
    if where is None:
        return
    from pyclover.tuning import plot as drawing

    if where == "-":
        text = drawing.terminal(rows, min(100, shutil.get_terminal_size().columns))
        if out.mode == "table":
            out.write("\n" + text)
    else:
        drawing.png(rows, Path(where), Path(title).name)


def one_form(as_json: bool, as_csv: bool, as_yaml: bool) -> str:
    """Which form the data have.

    Raises:
        click.UsageError: more than one was asked for.
    """
    import click

    chosen = [name for name, on in {"json": as_json, "csv": as_csv, "yaml": as_yaml}.items() if on]
    if len(chosen) > 1:
        raise click.UsageError(f"--{chosen[0]} and --{chosen[1]} exclude each other.")
    return chosen[0] if chosen else "table"


def prompts_line(prompts: Mapping[str, int]) -> str:
    return ", ".join(f"{n} {kind}" for kind, n in prompts.items())
