"""`clover-run imatrix`: an importance matrix from a calibration text, for `quantize`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from pyclover.cli import interrupt, options, terminate
from pyclover.cli.output import Output, size
from pyclover.cli.work_line import work_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyclover.tuning.imatrix import Imatrix, ImatrixProgress


@click.command(short_help="Make an importance matrix for quantizing.")
@options.model_option
@click.option("-o", "--output", "out", metavar="FILE", type=click.Path(), required=True, help="The new file, ….gguf.")
@click.option(
    "-f", "--file", "texts", metavar="TEXT", type=click.Path(), multiple=True,
    help="UTF-8 text to count on. May be repeated. [default: built-in text of many kinds]",
)  # fmt: skip
@click.option(
    "--chunks", "n_chunks", metavar="N", type=click.IntRange(min=1), default=None,
    help="Pieces of text in all. [default: 96 of the built-in text, else all that the files give]",
)  # fmt: skip
@click.option(
    "-c", "--ctx-size", "n_tokens", metavar="N", type=click.IntRange(64, 1 << 20), default=None,
    help="Tokens of a piece. [default: 512]",
)  # fmt: skip
@click.option(
    "--chat-share", metavar="X", type=click.FloatRange(0, 1), default=None,
    help="Part of the pieces that is conversations in the model's chat template. [default: a third]",
)  # fmt: skip
@click.option(
    "--preview-share", metavar="X", type=click.FloatRange(0, 0.9), default=None,
    help="Part of the counted rows that comes from block passes. [default: 0.5, 0 for a model that cannot draft]",
)  # fmt: skip
@click.option("-t", "--threads", "n_threads", metavar="N", type=click.IntRange(1, 512), default=None, help="Threads.")
@click.option(
    "-ngl", "--gpu-layers", "--n-gpu-layers", "n_gpu_layers", metavar="N", type=click.IntRange(-1), default=None,
    help="Layers kept on the GPU, where the build has one; -1 = all. [default: as many as fit]",
)  # fmt: skip
@click.option(
    "-ncmoe", "--n-cpu-moe", "n_cpu_moe", metavar="N", type=click.IntRange(-1), default=None,
    help="Layers, from the first, whose routed experts stay in main memory. [default: as few as fit]",
)  # fmt: skip
@click.option("--resume/--no-resume", default=True, help="Go on where the same work was interrupted. [default: yes]")
@click.option("--force", "overwrite", is_flag=True, help="Take the place of another file.")
@options.json_option
@options.debug_option
def imatrix(model: str | None, out: str, texts: Sequence[str], as_json: bool, **arguments: Any) -> None:
    """Make an importance matrix: what each weight of a model is multiplied with, for `clover-run quantize --imatrix`.

    Plain passes and block passes are both counted, so that types are chosen for drafting too. A third of the pieces are
    conversations in the model's own chat template, with thinking and calls of tools. Give a file in BF16 or Q8_0.
    """
    with interrupt.at_once():
        from pyclover.tuning.imatrix import describe
        from pyclover.tuning.imatrix import imatrix as run

    output = Output("json" if as_json else "table")
    given = {name: value for name, value in arguments.items() if value is not None}
    try:
        with terminate.as_ctrl_c(), work_line(output) as line:

            def progress(at: ImatrixProgress) -> None:
                if line is not None:
                    line(f"counting, piece {at.n_done} of {at.n_chunks}", at.n_done / at.n_chunks, at.left_s)

            result = run(model or "tiny", out, list(texts), progress=progress, **given)
    except KeyboardInterrupt:
        if arguments["resume"]:
            output.warn("stopped: what is counted is kept, and the same command continues there")
        raise click.exceptions.Exit(interrupt.CANCELLED) from None
    for sentence in describe(result):
        output.warn(sentence)
    if as_json:
        output.json(result.to_dict())
    else:
        show(output, result)


def show(out: Output, result: Imatrix) -> None:
    """What was counted."""
    out.pairs(
        {
            "file": result.path,
            "size": size(result.n_bytes),
            "pieces of text": f"{result.n_chunks}, {result.n_chat} of them conversations",
            "rows of plain passes": result.n_causal,
            "rows of block passes": result.n_preview,
            "weights": result.n_weights,
            "weights with unused experts": len(result.never_used),
        }
    )
