"""`clover-run inspect`: what a model file is and what it can do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from pyclover.cli import options
from pyclover.cli.output import Output, size
from pyclover.errors import FileError, UnsupportedModelError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyclover.files.report import Report, TypeUse


@click.command(short_help="Say what a model file is and what it can do.")
@click.argument("file", metavar="FILE", type=click.Path())
@options.json_option
@options.debug_option
def inspect(file: str, as_json: bool) -> None:
    """Say what a model file is and what it can do.

    FILE is a GGUF file, any shard of a split one, or tiny, the one in the package. Weights are not read. Exit code 1 if
    the model cannot run.
    """
    from pyclover.engine.inspect import inspect as read_report

    out = Output("json" if as_json else "table")
    try:
        report = read_report(file)
    except FileError as error:
        if as_json:
            out.json({"paths": [error.path], "problems": [{"key": error.key, "message": str(error)}]})
        raise
    if as_json:
        out.json(report.to_dict())
    else:
        show(out, report)
    if report.problems:
        raise UnsupportedModelError(f"{file} cannot run: {report.problems[0].message}", path=file)


def show(out: Output, report: Report) -> None:
    """The report as tables, the most asked for first."""
    out.pairs(summary(report))
    modes = report.capabilities
    rows = [("plain", modes.plain), ("draft-self", modes.draft_self), ("block diffusion", modes.block_diffusion)]
    _title(out, "What the file allows")
    out.table((), [(name, "yes" if mode.available else "no", mode.reason) for name, mode in rows])
    _title(out, "Weights")
    out.table(
        ("kind", "parameters", "size", "bits per weight", "types"),
        [
            (_words(kind), f"{use.n_params:,}", size(use.n_bytes), f"{use.bits_per_weight:.2f}", _shares(use.types))
            for kind, use in report.groups.items()
        ],
        right=("parameters", "size", "bits per weight"),
    )
    renamed = {name: here for name, here in report.preview_tensors.items() if name != here}
    if renamed:
        _title(out, "Preview tensors under other names")
        out.pairs(renamed)
    if report.unknown_tensors:
        _title(out, "Unknown tensors (skipped)")
        out.table(
            ("name", "shape", "type", "size"),
            [(t.name, " x ".join(map(str, t.shape)), t.type.name, size(t.n_bytes)) for t in report.unknown_tensors],
            right=("size",),
        )
    for title, lines in (("Warnings", report.warnings), ("Problems", [p.message for p in report.problems])):
        if lines:
            _title(out, title)
            out.table((), [(line,) for line in lines])


def summary(report: Report) -> dict[str, object]:
    """Name and value of what fits on one line; what the file does not say is left out."""
    layers = ", ".join(f"{count} {kind}" for kind, count in report.layers.items())
    format_parts = [f"GGUF {report.gguf_version}", report.file_type, f"{report.bits_per_weight:.2f} bits per weight"]
    rows = {
        "file": str(report.paths[0]),
        "shards": str(len(report.paths)) if len(report.paths) > 1 else "",
        "size": size(report.file_bytes),
        "format": ", ".join(part for part in format_parts if part),
        "architecture": report.architecture,
        "name": " ".join(part for part in (report.name, report.size_label) if part),
        "parameters": f"{report.n_params:,} ({report.n_params_active:,} active for a token)",
        "tensors": str(report.n_tensors),
        "context": f"{report.n_ctx_train:,} tokens" if report.n_ctx_train else "",
        "layers": (f"{report.n_layer} ({layers})" if layers else str(report.n_layer)) if report.n_layer else "",
        "width": str(report.n_embd) if report.n_embd else "",
        "vocabulary": f"{report.n_vocab:,} tokens" if report.n_vocab else "",
        "special tokens": ", ".join(f"{role} {t.id} {t.text}" for role, t in report.special_tokens.items()),
        "chat template": "yes" if report.has_chat_template else "no",
    }
    return {name: value for name, value in rows.items() if value}


def _title(out: Output, text: str) -> None:
    out.write("\n")
    out.heading(text)


def _words(name: str) -> str:
    return {"gdn": "Gated DeltaNet", "clover": "preview pass"}.get(name, name.replace("_", " "))


def _shares(types: Mapping[str, TypeUse]) -> str:
    """Types of a kind of weights, with the number of tensors that have them."""
    return ", ".join(f"{name} ({use.n_tensors})" for name, use in types.items())
