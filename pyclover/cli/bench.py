"""`clover-run bench`: how fast a model is here, in every way it can generate."""

from __future__ import annotations

from typing import Any

import click

from pyclover.cli import interrupt, options, tune_options, tune_view
from pyclover.cli.generate import EMBEDDED_MODEL, fetched, model_keywords
from pyclover.cli.output import Output
from pyclover.cli.tune_options import MEASURED, PROMPTS, SWEEP


@click.command(cls=options.SectionCommand, short_help="Measure how fast a model is here.")
@options.model_option
@click.option(
    "-r", "--repetitions", "repetitions", type=click.IntRange(1, 10_000), metavar="N",
    help="Times that everything is run. [default: 5]",
)  # fmt: skip
@click.option(
    "--n-prompt", "n_prompt", type=click.IntRange(0, 1 << 20), default=512, metavar="N",
    help="Tokens of llama-bench's test of reading; 0 = none. [default: 512]",
)  # fmt: skip
@click.option(
    "--n-gen", "n_gen", type=click.IntRange(0, 1 << 20), default=128, metavar="N",
    help="Tokens of llama-bench's test of writing; 0 = none. [default: 128]",
)  # fmt: skip
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
    section=SWEEP.section, help="Thresholds of block diffusion. [default: 0.95]",
)  # fmt: skip
@options.MODEL
def bench(
    *,
    model: str | None,
    repetitions: int | None,
    n_prompt: int,
    n_gen: int,
    plot: str | None,
    as_json: bool,
    as_csv: bool,
    as_yaml: bool,
    threshold: tuple[float, ...] | None,
    **values: Any,
) -> None:
    """Measure how fast a model is here.

    Plain decoding, the controller, drafts of several lengths and block diffusion answer the same prompts in turns; the
    table has medians, their 95 % intervals, and ratios to plain decoding. pp512 and tg128 are llama-bench's figures.
    """
    form = tune_view.one_form(as_json, as_csv, as_yaml)
    out = Output("json" if form == "json" else "table" if form == "table" else "quiet")
    given = tune_options.swept(values)
    given |= {k: v for k, v in {"repetitions": repetitions, "threshold": threshold}.items() if v is not None}
    with interrupt.at_once():
        from pyclover.tuning import plot as drawing
        from pyclover.tuning import report
        from pyclover.tuning.bench import bench as measured

    if plot is not None:
        drawing.check(plot)
    prompts = tune_options.prompts_given(values)
    keywords = model_keywords(values)
    chosen = EMBEDDED_MODEL if model is None else model
    file = fetched(out, chosen, fit=keywords.get("fit", True))
    with tune_view.progress(out, "measuring") as progress:
        found = measured(
            file, prompts=prompts, kinds=values["kinds"] or (), n_prompt=n_prompt, n_gen=n_gen, options=keywords,
            progress=progress, **given,
        )  # fmt: skip
    if form == "json":
        out.json(found.to_dict())
    elif form == "csv":
        out.write(report.to_csv(found.rows))
    elif form == "yaml":
        out.write(report.to_yaml(found.to_dict()))
    else:
        asked = tune_view.prompts_line(found.prompts)
        tune_view.show_rows(out, f"{found.model}: prompts {asked}; {found.n_rounds} rounds", found.rows)
        if found.figures:
            out.write("\n")
            out.heading("As llama-bench counts: passes alone, random tokens")
            columns = ("test", "setting", "tok/s", "95 %", "mean")
            out.table(columns, report.figures_table(found.figures), right=columns[2:])
    tune_view.plot(out, plot, found.rows, found.model)
    for warning in found.warnings:
        out.warn(warning)


tune_options.without_listed(bench)
