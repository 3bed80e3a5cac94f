"""`clover-run quantize`: store a model's weights in smaller types, by recipes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from pyclover.cli import interrupt, options, terminate
from pyclover.cli.output import Output, size
from pyclover.cli.work_line import work_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyclover.tuning.quantize import Quantization, QuantizeProgress


@click.command(short_help="Store a model's weights in smaller types.")
@click.argument("model", metavar="MODEL", required=False, type=click.Path())
@click.argument("target", metavar="OUT", required=False, type=click.Path())  # "out" would pass for a flag in errors
@click.option(
    "-r",
    "--recipe",
    "recipe",
    metavar="RECIPE",
    multiple=True,
    help="A recipe of the package (see --list), or a YAML file. May be repeated, for as many files. [default: Q4_K_M]",
)
@click.option("--list", "listing", is_flag=True, help="List the recipes of the package.")
@click.option(
    "--imatrix", metavar="FILE", type=click.Path(), default=None,
    help="Importance matrix, as `clover-run imatrix` makes it.",
)  # fmt: skip
@click.option(
    "-t", "--threads", "n_threads", metavar="N", type=click.IntRange(max=512), default=0,
    help="Threads; 0 or less = all processors. [default: 0]",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Only say what would be written: types and sizes.")
@click.option("--force", "overwrite", is_flag=True, help="Take the place of other files.")
@click.option("--resume", is_flag=True, help="Leave files that are there with the right types and size as they are.")
@click.option(
    "--allow-requantize", is_flag=True, help="Also from weights that are quantized already, at a second loss."
)
@options.json_option
@options.debug_option
def quantize(
    model: str | None, target: str | None, recipe: Sequence[str], listing: bool, as_json: bool, **arguments: Any
) -> None:
    """Store a model's weights in smaller types.

    MODEL is a GGUF file in BF16, F16 or F32, or any shard of a split one; OUT a new file, or a folder for
    MODEL-RECIPE.gguf. Without OUT that file is made beside MODEL. Several recipes give several files. Sizes are known
    before; each file appears as a whole or not at all. Clover's own tensors always stay F32.
    """
    output = Output("json" if as_json else "table")
    if listing:
        if model is not None:
            raise click.UsageError("--list shows the recipes of the package: leave out MODEL.")
        return show_recipes(output)
    if model is None:
        raise click.UsageError("what to quantize? Give a MODEL, or --list for the recipes.")
    with interrupt.at_once():
        from pyclover.tuning.quantize import DEFAULT_RECIPE
        from pyclover.tuning.quantize import quantize as run

    with terminate.as_ctrl_c(), work_line(output) as line:

        def progress(at: QuantizeProgress) -> None:
            if line is not None:
                line(f"quantizing {at.file.name}", at.done, at.left_s)

        result = run(model, list(recipe) or [DEFAULT_RECIPE], target, progress=progress, **arguments)
    if as_json:
        output.json(result.to_dict())
    else:
        show(output, result)
    return None


def show(out: Output, result: Quantization) -> None:
    """A table of the files; in a dry run also which types they have."""
    rows = []
    for file in result.files:
        ratio = f"{file.predicted_bytes / result.n_bytes:.1%}"
        state = "dry run" if result.dry_run else "written" if file.written else "was there"
        real = "-" if result.dry_run else size(file.n_bytes)
        rows.append((file.recipe, size(file.predicted_bytes), real, ratio, f"{file.bits_per_weight:.2f}", state,
                     str(file.path)))  # fmt: skip
    right = ("predicted", "size", "of the model", "bits")
    out.table(("recipe", "predicted", "size", "of the model", "bits", "", "file"), rows, right=right)
    for file in result.files:
        if result.dry_run:
            out.write("\n")
            out.heading(file.recipe)
            out.table(
                ("group", "size", "bits", "types"),
                [
                    (group, size(use.n_bytes), f"{use.bits_per_weight:.2f}",
                     ", ".join(f"{kind} {n.n_tensors}" for kind, n in use.types.items()))
                    for group, use in file.groups.items()
                ],
                right=("size", "bits"),
            )  # fmt: skip
        for (wanted, kind), names in file.fallbacks.items():
            out.warn(
                f"{file.recipe}: {len(names)} tensors are {kind} instead of {wanted}, whose blocks do not divide their "
                f"rows: {', '.join(names[:3])}" + (", …" if len(names) > 3 else "")
            )


def show_recipes(out: Output) -> None:
    """The recipes of the package."""
    from pyclover.tuning.recipes import builtin_names, read_recipe

    recipes = [read_recipe(name) for name in builtin_names()]
    if out.mode == "json":
        out.json([{"name": r.name, "description": r.description} for r in recipes])
    else:
        out.table(("recipe", "what it does"), [(r.name, r.description) for r in recipes])
