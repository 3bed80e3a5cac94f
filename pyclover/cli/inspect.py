"""`clover-run inspect`: what a model file is and what it can do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from pyclover.cli import options
from pyclover.cli.output import Output, size
from pyclover.errors import FileError, UnsupportedModelError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyclover.files.repair_plan import Change
    from pyclover.files.report import Report
    from pyclover.files.weight_groups import TypeUse


@click.command(short_help="Say what a model file is and what it can do.")
@click.argument("file", metavar="FILE", type=click.Path())
@click.option("--tensors", "all_tensors", is_flag=True, help="List all tensors, too.")
@options.json_option
@options.debug_option
def inspect(file: str, all_tensors: bool, as_json: bool) -> None:
    """Say what a model file is and what it can do.

    FILE is a GGUF file, any shard of a split one, or tiny, the one in the package. It may also be the address of a file
    (https://…) or owner/repo:quant on the hub: then only the header is fetched. Weights are not read. Exit code 1 if
    the model cannot run.
    """
    from pyclover.remote import inspect as read_report

    out = Output("json" if as_json else "table")
    try:
        report = read_report(file)
    except FileError as error:
        if as_json:
            out.json({"paths": [error.path], "problems": [{"key": error.key, "message": str(error)}]})
        raise
    if as_json:
        out.json(report.to_dict(tensors=all_tensors))
    else:
        show(out, report)
        if all_tensors:
            list_tensors(out, report)
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
            [(t.name, _shape(t.shape), t.type.name, size(t.n_bytes)) for t in report.unknown_tensors],
            right=("size",),
        )
    for title, lines in (
        ("Warnings", report.warnings),
        ("Doubtful", [doubt.message for doubt in report.doubts]),
        ("Problems", [problem.message for problem in report.problems]),
    ):
        if lines:
            _title(out, title)
            out.table((), [(line,) for line in lines])
    if report.cures:
        _title(out, "What clover-run repair would change")
        show_changes(out, report.cures)


def show_changes(out: Output, changes: Sequence[Change]) -> None:
    """Changes of a repair as a table."""
    rows = [(c.kind, c.key, "" if c.kind == "add" else _shown(c.old), "->", _shown(c.new), c.type) for c in changes]
    out.table((), rows)


def list_tensors(out: Output, report: Report) -> None:
    """Every tensor, in the order of the files."""
    split = len(report.paths) > 1
    _title(out, "Tensors")
    out.table(
        ("name", "shape", "type", "size", "kind", *(("shard",) if split else ())),
        [
            (t.name, _shape(t.shape), t.type, size(t.n_bytes), _words(t.group), *((t.file + 1,) if split else ()))
            for t in report.tensors
        ],
        right=("size",),
    )


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


def _shape(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))


def _shown(value: object) -> str:
    """A value on one line: a chat template or a vocabulary only by its size."""
    text = value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
    return text if len(text) <= 60 else f"{text[:40]}… ({len(text)} characters)"


def _words(name: str) -> str:
    return {"gdn": "Gated DeltaNet", "ffn": "feed forward", "clover": "preview pass"}.get(name, name.replace("_", " "))


def _shares(types: Mapping[str, TypeUse]) -> str:
    """Types of a kind of weights, with the number of tensors that have them."""
    return ", ".join(f"{name} ({use.n_tensors})" for name, use in types.items())
