"""`clover-run tune`: finds how a model generates fastest here, and keeps it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from pyclover.cli import interrupt, options, tune_options, tune_view
from pyclover.cli.generate import EMBEDDED_MODEL, fetched, model_keywords
from pyclover.cli.output import Output
from pyclover.cli.tune_options import MEASURED, PROMPTS, SWEEP

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# what a calibration takes of the options for a race
OF_CALIBRATION = ("n_max", "max_tokens")


@click.command(cls=options.SectionCommand, short_help="Find how a model generates fastest here, and keep it.")
@options.model_option
@click.option(
    "--sweep", "sweep", metavar="FILE", type=click.Path(exists=True, dir_okay=False),
    help="YAML file with what is swept: its keys are the flags below without dashes. Flags given here win.",
)  # fmt: skip
@click.option(
    "-r", "--repetitions", "repetitions", type=click.IntRange(1, 10_000), metavar="N",
    help="Rounds through all prompts at most. [default: 5]",
)  # fmt: skip
@click.option(
    "--interval", "interval", type=click.FloatRange(0, 1), metavar="X",
    help="Stop when half of the 95 % interval of a ratio is at most this share of it. [default: 0.05]",
)  # fmt: skip
@click.option(
    "--calibrate", "calibrate", is_flag=True,
    help="Find how the file's block passes are to be computed, by what plain decoding accepts, in place of a race.",
)  # fmt: skip
@click.option("--resume", "resume", is_flag=True, help="Go on with an interrupted run of the same settings.")
@click.option(
    "--journal", "journal", metavar="FILE", type=click.Path(dir_okay=False),
    help="File that keeps what was measured. [default: one in the user's cache]",
)  # fmt: skip
@click.option("--name", "name", metavar="NAME", help="Name of the profile. [default: made from the file's]")
@click.option("--save/--no-save", "save", default=True, help="Keep what was found as a profile. [default: --save]")
@click.option(
    "--plot", "plot", is_flag=False, flag_value="-", metavar="FILE",
    help="Draw the ratios into a PNG file; without a value: in the terminal. Needs pyclover[plot].",
)  # fmt: skip
@options.json_option
@click.option("--csv", "as_csv", is_flag=True, help="Write the table as CSV to standard output.")
@click.option("--yaml", "as_yaml", is_flag=True, help="Write everything as YAML to standard output.")
@options.debug_option
@PROMPTS
@MEASURED
@SWEEP
@click.option(
    "--diffusion-threshold", "threshold", type=tune_options.numbers, metavar="P,…", cls=options.SectionOption,
    section=SWEEP.section, help="Thresholds of block diffusion, which changes the text; never recommended. "
    "[default: none]",
)  # fmt: skip
@options.MODEL
def tune(
    *,
    model: str | None,
    calibrate: bool,
    resume: bool,
    journal: str | None,
    name: str | None,
    save: bool,
    plot: str | None,
    as_json: bool,
    as_csv: bool,
    as_yaml: bool,
    **values: Any,
) -> None:
    """Find how a model generates fastest here, and keep it.

    Settings answer the same prompts in turns, plain decoding always among them; clear losers leave, and the race ends
    when enough is known. The winner is kept as a profile, which generate, chat and serve use (--profile). Ctrl-C loses
    one turn at most: --resume goes on.
    """
    form = tune_view.one_form(as_json, as_csv, as_yaml)
    out = Output("json" if form == "json" else "table" if form == "table" else "quiet")
    given = tune_options.swept(values)
    for word in ("repetitions", "interval", "threshold"):
        if values[word] is not None:
            given[word] = values[word]
    if calibrate:
        check_calibration(given, values["sweep"], plot, form)
    with interrupt.at_once():
        import pyclover.tuning.calibration
        import pyclover.tuning.tune  # noqa: F401
        from pyclover.tuning import plot as drawing

    if plot is not None:
        drawing.check(plot)
    prompts = tune_options.prompts_given(values)
    keywords = model_keywords(values)
    chosen = EMBEDDED_MODEL if model is None else model
    file = fetched(out, chosen, fit=keywords.get("fit", True))
    common: dict[str, Any] = {
        "prompts": prompts, "kinds": values["kinds"] or (), "journal": journal, "resume": resume, "save": save,
        "name": name, "options": keywords,
    }  # fmt: skip
    try:
        if calibrate:
            run_calibration(out, file, form, common, given)
        else:
            run_race(out, file, form, common, {**given, "sweep": values["sweep"]}, plot)
    except KeyboardInterrupt:
        out.talk("interrupted: the same command with --resume goes on")
        raise click.exceptions.Exit(interrupt.CANCELLED) from None


tune_options.without_listed(tune)


def check_calibration(given: Mapping[str, Any], sweep: str | None, plot: str | None, form: str) -> None:
    """Raises click.UsageError for what a calibration has no use for."""
    for word in [*(word for word in given if word not in OF_CALIBRATION), *["sweep"] * (sweep is not None)]:
        flag = options.flag_of([tune], word) or options.flag_of([tune], f"{word}_list")
        raise click.UsageError(f"{flag} has no effect with --calibrate: leave it out.")
    if plot is not None or form == "csv":
        raise click.UsageError("--calibrate has no ratios to plot or to write as CSV: take --json or --yaml.")
    lengths: Sequence[int] = given.get("n_max", ())
    if len(lengths) > 1:
        raise click.UsageError("--spec-draft-n-max: with --calibrate one length of drafts.")


def run_race(
    out: Output, file: str, form: str, common: Mapping[str, Any], given: Mapping[str, Any], plot: str | None
) -> None:
    from pyclover.tuning import report
    from pyclover.tuning.tune import tune as race

    # prompts of a sweep file give way to those of the command line, where there are any
    words = {name: value for name, value in common.items() if name not in ("prompts", "kinds") or value}
    with tune_view.progress(out, "tuning") as progress:
        found = race(file, progress=progress, **words, **given)
    if form == "json":
        out.json(found.to_dict())
    elif form == "csv":
        out.write(report.to_csv(found.rows))
    elif form == "yaml":
        out.write(report.to_yaml(found.to_dict()))
    else:
        asked = tune_view.prompts_line(found.prompts)
        tune_view.show_rows(out, f"{found.model}: prompts {asked}; {found.n_rounds} rounds", found.rows)
        tune_view.show_recommendation(out, found.recommendation)
    tune_view.plot(out, plot, found.rows, found.model)
    for warning in found.warnings:
        out.warn(warning)
    if not found.settled:
        out.talk(
            f"the intervals are wider than {found.interval:.0%}: more rounds (-r with --resume) or more prompts make "
            "them narrower"
        )
    if found.profile:
        out.talk(f"kept as profile {found.profile}: generate, chat and serve use it (--profile none: they do not)")


def run_calibration(out: Output, file: str, form: str, common: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    from pyclover.tuning import report
    from pyclover.tuning.calibration import calibrate

    words = dict(given)
    if "n_max" in words:
        words["n_max"] = words["n_max"][0]
    with out.progress("calibrating") as bar:
        found = calibrate(file, progress=None if bar is None else lambda _what, share: bar(share), **common, **words)
    if form == "json":
        out.json(found.to_dict())
    elif form == "yaml":
        out.write(report.to_yaml(found.to_dict()))
    else:
        tune_view.show_calibration(out, found)
    if found.profile:
        out.talk(f"kept as profile {found.profile}")
