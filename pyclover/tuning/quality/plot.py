"""The picture of an evaluation: size against divergence."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import math
import os
from typing import TYPE_CHECKING

from pyclover import arguments
from pyclover.errors import FileError, PathLike, UsageError

if TYPE_CHECKING:
    from pyclover.tuning.quality.result import Evaluation

ENDINGS = (".png", ".svg", ".pdf")


def check(path: PathLike) -> None:
    """Raises UsageError when no picture of that name can be drawn: asked before the long work."""
    where = arguments.path("plot", path).expanduser()
    ending = where.suffix.lower()
    if where.is_dir():
        raise UsageError(f"{where} is a folder: give the name of a file", option="plot")
    if not where.parent.is_dir():
        raise UsageError(f"{where.parent} is no folder: make it, or give another place", option="plot")
    if ending not in ENDINGS:
        raise UsageError(f"'{os.fspath(path)}' must end in one of {', '.join(ENDINGS)}", option="plot")
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError("a plot needs matplotlib: install it, or pyclover[plot]", option="plot")


def draw(result: Evaluation, path: PathLike) -> None:
    """Size in GiB to the right, mean KL divergence upwards, on a scale of powers of ten, with its standard error."""
    check(path)
    points = [
        (file.file_bytes / 2**30, file.divergence.kld, file.name)
        for file in result.files
        if file.divergence is not None and file.divergence.kld.value > 0
    ]
    if not points:
        raise UsageError("there is no KL divergence above zero to draw: give a reference", option="plot")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    for size, kld, name in points:
        error = kld.error if math.isfinite(kld.error) and kld.error < kld.value else 0.0
        axes.errorbar(size, kld.value, yerr=error, fmt="o", capsize=3)
        axes.annotate(name, (size, kld.value), xytext=(6, 4), textcoords="offset points", fontsize=8)
    axes.set_yscale("log")
    axes.set_xlabel("size in GiB")
    axes.set_ylabel("mean KL divergence in nats a token")
    reference = result.reference.name if result.reference is not None else "reference"
    axes.set_title(f"Divergence from {reference}, {result.n_tokens} tokens, n_ctx {result.n_ctx}", fontsize=10)
    axes.margins(x=0.2)
    axes.grid(visible=True, which="both", alpha=0.3)
    where = arguments.path("plot", path).expanduser()
    data = io.BytesIO()
    figure.savefig(data, format=where.suffix.lower()[1:], dpi=150)
    draft = where.with_name(f".{where.name}.{os.getpid()}.part")
    try:
        draft.write_bytes(data.getvalue())
        os.replace(draft, where)
    except OSError as error:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise FileError(f"{where}: cannot be written: {error.strerror or error}", path=where) from error
