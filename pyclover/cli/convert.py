"""`clover-run convert`: a checkpoint in Hugging Face's form to a GGUF file."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from pyclover.cli import interrupt, options, terminate
from pyclover.cli.output import Output, printable, size
from pyclover.cli.progress_line import EVERY_S, ProgressLine, cut, duration, terminal_width

if TYPE_CHECKING:
    from pyclover.checkpoint import Conversion
    from pyclover.files.convert_progress import ConvertProgress

OUTTYPES = ("bf16", "f16", "f32", "q8_0")
LOG_EVERY_S = 60.0


@click.command(short_help="Convert a Hugging Face checkpoint to GGUF.")
@click.argument("source", metavar="SRC", type=click.Path())
@click.option(
    "-o", "--outfile", "target", metavar="OUT", type=click.Path(), default=None,
    help="The new file, or a folder for it. [default: NAME-OUTTYPE.gguf here]",
)  # fmt: skip
@click.option(
    "--outtype", type=click.Choice(OUTTYPES, case_sensitive=False), default=None, metavar="TYPE",
    help="Type of the matrices: " + ", ".join(OUTTYPES) + ". [default: bf16]",
)  # fmt: skip
@click.option(
    "--plain",
    is_flag=True,
    help="Leave out the tensors and keys of the block pass, for llama.cpp without our patches.",
)
@click.option(
    "--mask-token", metavar="ID|TEXT", default=None, help="Name the mask token, by its number or as it is written."
)
@click.option(
    "--block-length", type=click.IntRange(1, 32), metavar="N", default=None, help="Rows of a diffusion block, 1 to 32."
)
@click.option(
    "--chat-template", metavar="FILE", type=click.Path(), default=None, help="Use the chat template in this file."
)
@click.option("--dry-run", is_flag=True, help="Only check, and show what would be written.")
@click.option("--force", "overwrite", is_flag=True, help="OUT may take the place of another file.")
@click.option(
    "--resume/--no-resume", default=True,
    help="Continue what a stopped run has written, and keep what is written when stopped; or neither. "
    "[default: --resume]",
)  # fmt: skip
@click.option(
    "--python", metavar="PYTHON", default=None,
    help="A Python with torch, transformers, safetensors and sentencepiece. Also: PYCLOVER_CONVERT_PYTHON. [default: "
    "the one that runs this]",
)  # fmt: skip
@click.option(
    "--keep-shards/--no-keep-shards", default=True,
    help="Keep weight files from the hub in the cache, or remove each when it is converted. [default: --keep-shards]",
)  # fmt: skip
@click.option(
    "--revision", metavar="REVISION", default=None, help="Branch, tag or commit of the repository. [default: main]"
)
@click.option(
    "--cache-dir", metavar="DIR", default=None, type=click.Path(file_okay=False),
    help="Where weight files from the hub are kept. [default: PYCLOVER_CACHE, else the user's cache folder]",
)  # fmt: skip
@click.option("--offline", is_flag=True, help="Ask no hub: only what is here. Also: HF_HUB_OFFLINE=1.")
@click.option("-q", "--quiet", is_flag=True, help="The path alone: no progress, no warnings.")
@options.json_option
@options.debug_option
def convert(
    source: str, target: str | None, outtype: str | None, mask_token: str | None, offline: bool, quiet: bool,
    as_json: bool, **arguments: Any,
) -> None:  # fmt: skip
    """Convert a Clover checkpoint in Hugging Face's form to GGUF.

    SRC is the folder of the checkpoint, or owner/repo on the hub, whose weight files are then fetched one by one.
    Configuration, index, tensors and tokenizer are checked before a byte is written. The new file appears as a whole or
    not at all; its path goes to standard output. A run that was stopped is continued by the same command.
    """
    if quiet and as_json:
        raise click.UsageError("--quiet and --json exclude each other.")
    out = Output("json" if as_json else "quiet" if quiet else "table")
    with interrupt.at_once():
        from pyclover.checkpoint import convert as run

    if outtype is not None:
        arguments["outtype"] = outtype.lower()
    try:
        with terminate.as_ctrl_c(), progress_of(out) as progress:
            done = run(
                source, target, mask_token=_token(mask_token), offline=offline or None, progress=progress, **arguments
            )
    except KeyboardInterrupt:
        if arguments["resume"] and not arguments["dry_run"]:
            out.warn("stopped: what has come and what is written is kept, and the same command continues there")
        raise click.exceptions.Exit(interrupt.CANCELLED) from None
    show(out, done)


def show(out: Output, done: Conversion) -> None:
    """The path for standard output, the rest for the person."""
    for warning in done.warnings:
        out.warn(warning)
    if out.mode == "json":
        out.json(done.to_dict())
        return
    types = ", ".join(f"{count} {name}" for name, count in done.types.items())
    if not done.written:
        mask = "none known" if done.mask_token_id is None else done.mask_token_id
        out.pairs({
            "file": done.path, "size": f"about {size(done.n_bytes)}", "tensors": types, "mask token": mask,
            "block length": done.block_length,
        })  # fmt: skip
        out.talk("Nothing was written, as this is a dry run.")
        return
    modes = done.capabilities
    assert modes is not None
    able = [name for name, mode in (("plain", modes.plain), ("draft-self", modes.draft_self),
                                    ("block diffusion", modes.block_diffusion)) if mode]  # fmt: skip
    kept = f", {size(done.resumed_bytes)} of it by an earlier run" if done.resumed_bytes else ""
    out.talk(f"{done.source}: {types}; {size(done.n_bytes)}{kept}; it can: {', '.join(able) or 'nothing'}.")
    out.write(f"{done.path}\n")


@contextlib.contextmanager
def progress_of(out: Output) -> Iterator[Callable[[ConvertProgress], None] | None]:
    """A line that is drawn over on a terminal; a line now and then in a log; None when nobody wants to see it."""
    if out.mode != "table":
        yield None
        return
    if sys.stderr is None or not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield LogLines(out)
        return
    view = TerminalLine()
    try:
        yield view
    finally:
        view.clear()


class TerminalLine(ProgressLine):
    """The state on the last line of a terminal."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(clock)
        self._phase = ""
        self._shown_at = -1e9

    def __call__(self, state: ConvertProgress) -> None:  # type: ignore[override]
        now = self._clock()
        if state.phase == self._phase and now - self._shown_at < EVERY_S:
            return
        self._phase, self._shown_at = state.phase, now
        parts = [printable(label(state))]
        if state.phase != "start":
            done = 100 * state.done_bytes // state.total_bytes if state.total_bytes else 0
            parts = [f"{done} %", *parts, f"{size(state.done_bytes)} of {size(state.total_bytes)}", rate(state)]
        self.draw(cut("  ".join(part for part in parts if part), terminal_width() - 1))


class LogLines:
    """Progress where there is no terminal: a line for each phase of a file, and one a minute."""

    def __init__(self, out: Output, clock: Callable[[], float] = time.monotonic) -> None:
        self._out = out
        self._clock = clock
        self._phase = ("", "")
        self._said_at = 0.0

    def __call__(self, state: ConvertProgress) -> None:
        phase = (state.phase, "" if state.phase in ("start", "convert") else state.item)
        now = self._clock()
        if phase == self._phase and now - self._said_at < LOG_EVERY_S:
            return
        self._phase, self._said_at = phase, now
        text = label(state)
        if state.phase != "start":
            text += f": {size(state.done_bytes)} of {size(state.total_bytes)}"
        self._out.talk(f"{text}, {rate(state)}" if rate(state) else text)


def label(state: ConvertProgress) -> str:
    """What is being done, with the file's name, or how many tensors are written."""
    if state.phase == "start":
        return "starting the converter"
    if state.phase == "convert":
        return f"converting tensor {min(state.done_tensors + 1, state.total_tensors)} of {state.total_tensors}"
    if state.phase == "wait":
        return f"waiting for another download of {state.item}"
    return f"{'checking' if state.phase == 'verify' else 'downloading'} {state.item}"


def rate(state: ConvertProgress) -> str:
    """Bytes a second and the time left, "" while they are not known."""
    if state.bytes_per_s is None or state.left_s is None:
        return ""
    return f"{size(int(state.bytes_per_s))}/s, {duration(state.left_s)} left"


def _token(text: str | None) -> int | str | None:
    """A number where it is one, else the token's text."""
    return int(text) if text and text.isascii() and text.isdigit() else text
