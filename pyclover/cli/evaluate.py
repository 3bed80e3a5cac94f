"""`clover-run evaluate`: how good model files are, by perplexity, divergence from a reference and accepted drafts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pyclover.cli import interrupt, options, terminate
from pyclover.cli.output import Output, size
from pyclover.cli.values import count_or_all, on_off_auto

if TYPE_CHECKING:
    from pyclover.tuning.quality.result import Evaluation, FileQuality, Progress
    from pyclover.tuning.quality.statistics import Estimate

MUCH_BYTES = 1 << 30  # of logits on the disk, which is worth a warning

SETTINGS = options.Options("Model")
_count = click.IntRange(min=1)
SETTINGS.add("-b", "--batch-size", name="n_batch", metavar="N", type=_count,
             help="Tokens handed over at once. [default: 2048]")  # fmt: skip
SETTINGS.add("-ub", "--ubatch-size", name="n_ubatch", metavar="N", type=_count,
             help="Tokens computed at once. [default: 512]")  # fmt: skip
SETTINGS.add("-ngl", "--gpu-layers", "--n-gpu-layers", name="n_gpu_layers", metavar="N|all|auto", type=count_or_all,
             help="Layers kept on the GPU; auto: as many as fit. [default: auto]")  # fmt: skip
SETTINGS.add("-ncmoe", "--n-cpu-moe", name="n_cpu_moe", metavar="N|all|auto", type=count_or_all,
             help="Layers, from the first, whose routed experts stay in main memory. [default: auto]")  # fmt: skip
SETTINGS.add("-t", "--threads", name="n_threads", metavar="N", type=int,
             help="Threads; 0 or less = as found best for this machine. [default: 0]")  # fmt: skip
SETTINGS.add("-tb", "--threads-batch", name="n_threads_batch", metavar="N", type=int,
             help="Threads that read the text. [default: as --threads]")  # fmt: skip
SETTINGS.add("-fa", "--flash-attn", name="flash_attn", metavar="on|off|auto", is_flag=False, flag_value="on",
             type=on_off_auto, help="Flash attention; without a value: on. [default: auto]")  # fmt: skip
for _flag, _long, _what in (("-ctk", "--cache-type-k", "keys"), ("-ctv", "--cache-type-v", "values")):
    SETTINGS.add(_flag, _long, name=_long[2:].replace("-", "_"), metavar="TYPE",
                 type=click.Choice(options.CACHE_TYPES, case_sensitive=False),
                 help=f"Type of the {_what} in the KV cache; it is part of what is judged. [default: f16]")  # fmt: skip
SETTINGS.add("--fit/--no-fit", name="fit", help="Choose layers on the GPU so that the model fits. [default: --fit]")
SETTINGS.add("--mmap/--no-mmap", name="mmap", help="Map the file into memory, or read it. [default: --mmap]")


@click.command(cls=options.SectionCommand, short_help="Judge model files: perplexity, divergence, accepted drafts.")
@click.argument("files", nargs=-1, required=True, metavar="FILE")
@click.option("-r", "--reference", metavar="MODEL", default=None,
              help="Model that the files are compared with, such as BF16 or Q8_0. Without it and --logits: perplexity "
              "alone.")  # fmt: skip
@click.option("-f", "--file", "text", metavar="FNAME", type=click.Path(), default=None,
              help="File with the text to judge by.")  # fmt: skip
@click.option("--logits", "--kl-divergence-base", "logits", metavar="FNAME", type=click.Path(), default=None,
              help="File for the reference's logits; without -r it must be there, from an earlier run or from "
              "llama-perplexity. [default: in the cache folder]")  # fmt: skip
@click.option("-c", "--ctx-size", "n_ctx", metavar="N", type=click.IntRange(min=4), default=None,
              help="Tokens of a chunk, of which the second half is scored. [default: 512]")  # fmt: skip
@click.option("--chunks", "n_chunks", metavar="N", type=click.IntRange(min=-1), default=-1,
              help="Chunks at most; -1 = all that the text has. [default: -1]")  # fmt: skip
@click.option("--acceptance/--no-acceptance", default=True,
              help="Let files that can draft answer a few questions, to see how many drafted tokens they accept. "
              "[default: --acceptance]")  # fmt: skip
@click.option("-n", "--predict", "--n-predict", "n_predict", metavar="N", type=_count, default=None,
              help="Tokens of such an answer at most. [default: 128]")  # fmt: skip
@click.option("--resume/--no-resume", default=True,
              help="Use what earlier runs with the same files, text and settings left, or compute all anew. [default: "
              "--resume]")  # fmt: skip
@click.option("--plot", metavar="FNAME", type=click.Path(), default=None,
              help="Draw size against divergence into this file (.png, .svg, .pdf); needs matplotlib.")  # fmt: skip
@click.option("--stats", is_flag=True, help="Show all statistics of each file.")
@click.option("--markdown", is_flag=True, help="Write the table in Markdown.")
@options.json_option
@options.debug_option
@SETTINGS
def evaluate(
    files: tuple[str, ...], text: str | None, acceptance: bool, plot: str | None, stats: bool, markdown: bool,
    as_json: bool, n_predict: int | None, **arguments: Any,
) -> None:  # fmt: skip
    """Judge model files by a text, as llama-perplexity does: perplexity, divergence from a reference, accepted drafts.

    The numbers are those of llama-perplexity --kl-divergence. The reference's logits are computed once and kept. Ctrl-C
    loses at most one chunk: the same command goes on where it was.
    """
    if as_json and (markdown or stats):
        raise click.UsageError("--json has all numbers: leave out --markdown and --stats.")
    from pyclover.tuning.quality import plot as picture
    from pyclover.tuning.quality.evaluate import evaluate as run

    if plot is not None:
        picture.check(plot)
    settings = SETTINGS.given(arguments)
    for name in ("n_threads", "n_threads_batch"):
        if settings.get(name, 1) <= 0:
            del settings[name]
    given = {name: arguments[name] for name in ("reference", "logits", "n_ctx", "n_chunks", "resume")}
    if n_predict is not None:
        given["n_predict"] = n_predict
    out = Output("json" if as_json else "table")
    try:
        with terminate.as_ctrl_c(), out.progress("evaluating") as bar:
            result = run(
                files,
                text=None if text is None else Path(text),
                draft_prompts=None if acceptance else (),
                progress=Talk(out, bar),
                **given,
                **settings,
            )
    except KeyboardInterrupt:
        if given["resume"]:
            out.warn("stopped: what is computed is kept, and the same command continues there")
        raise click.exceptions.Exit(interrupt.CANCELLED) from None
    if as_json:
        out.json(result.to_dict())
    elif markdown:
        out.write(result.markdown())
    else:
        columns, rows = result.table()
        out.table(columns, rows, right=columns[2:])
    if stats:
        show_statistics(out, result)
    remarks(out, result)
    if plot is not None:
        result.plot(plot)
        out.talk(f"{plot}: size against divergence.")


class Talk:
    """Moves the bar, and says once what the reference's logits will take."""

    def __init__(self, out: Output, bar: Callable[[float], None] | None) -> None:
        self._out, self._bar = out, bar
        self._said: set[str] = set()

    def __call__(self, progress: Progress) -> None:
        if self._bar is not None:
            self._bar(progress.part)
        if progress.stage in self._said:
            return
        self._said.add(progress.stage)
        if progress.stage == "logits":
            say = self._out.warn if progress.n_bytes >= MUCH_BYTES else self._out.talk
            say(f"the reference's logits take {size(progress.n_bytes)} on the disk, and stay there: {progress.path}")
        elif progress.stage == "waiting":
            self._out.talk(f"{progress.name}: another process computes the same; waiting for it.")


def remarks(out: Output, result: Evaluation) -> None:
    """What was counted, and what is odd."""
    out.talk(
        f"{result.n_tokens} tokens scored, in {result.n_chunks} chunks of {result.n_ctx}; ± is one standard error."
    )
    if result.logits is not None:
        out.talk(f"The reference's logits: {result.logits}")
    for file in (*(() if result.reference is None else (result.reference,)), *result.files):
        if file.n_kept:
            out.talk(f"{file.name}: {file.n_kept} of {result.n_chunks} chunks were scored by an earlier run.")
        for warning in file.warnings:
            out.warn(warning)


def show_statistics(out: Output, result: Evaluation) -> None:
    """All statistics of each file that has any."""
    for file in result.files:
        out.write("\n")
        out.heading(file.name)
        out.pairs(dict(statistics(file)))


def statistics(file: FileQuality) -> list[tuple[str, str]]:
    """Names and values, as llama-perplexity's last lines have them."""

    def pm(value: Estimate, digits: int = 6, factor: float = 1.0) -> str:
        return f"{factor * value.value:.{digits}f} ± {factor * value.error:.{digits}f}"

    rows = [] if file.ppl is None else [("PPL", pm(file.ppl))]
    d = file.divergence
    if d is not None:
        rows += [
            ("PPL of the reference", pm(d.ppl_base)),
            ("correlation of ln PPL", f"{100 * d.correlation:.2f} %"),
            ("ln(PPL / reference's)", pm(d.ln_ppl_ratio)),
            ("PPL / reference's", pm(d.ppl_ratio)),
            ("PPL - reference's", pm(d.ppl_difference)),
            ("mean KLD", pm(d.kld)),
            ("largest KLD", f"{d.kld_max:.6f}"),
            *((f"{p:g} % KLD", f"{v:.6f}") for p, v in reversed(list(d.kld_percentiles.items())) if p > 50),
            ("median KLD", f"{d.kld_median:.6f}"),
            *((f"{p:g} % KLD", f"{v:.6f}") for p, v in reversed(list(d.kld_percentiles.items())) if p < 50),
            ("smallest KLD", f"{d.kld_min:.6f}"),
            ("mean change of p", pm(d.p_diff, 3, 100) + " %"),
            ("largest change of p", f"{100 * d.p_diff_max:.3f} %"),
            *(
                (f"{p:g} % change of p", f"{100 * v:.3f} %")
                for p, v in reversed(list(d.p_diff_percentiles.items()))
                if p > 50
            ),
            ("median change of p", f"{100 * d.p_diff_median:.3f} %"),
            *(
                (f"{p:g} % change of p", f"{100 * v:.3f} %")
                for p, v in reversed(list(d.p_diff_percentiles.items()))
                if p < 50
            ),
            ("smallest change of p", f"{100 * d.p_diff_min:.3f} %"),
            ("RMS change of p", pm(d.p_diff_rms, 3, 100) + " %"),
            ("same top token", pm(d.same_top, 3, 100) + " %"),
        ]
    a = file.acceptance
    if a is not None:
        rows.append(("drafts", f"{a.rounds} of {a.n_max} tokens, {a.accepted} of {a.drafted} accepted"))
    else:
        rows.append(("drafts", file.no_drafts))
    return rows
