"""`clover-run download`: models from a hub, what there is to download, what is here and what of it may go."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from pyclover.cli import download_list, interrupt, options
from pyclover.cli.output import Output, size
from pyclover.cli.progress_line import ProgressLine, duration, label

if TYPE_CHECKING:
    from pyclover.hub.download import Download
    from pyclover.hub.progress import DownloadProgress

LOG_EVERY_S = 60.0


@click.command(short_help="Download a model, or list what there is.")
@click.argument("model", metavar="NAME", required=False)
@click.option("--quant", metavar="QUANT", default=None, help="As behind the colon of NAME: Q4_K_M, auto, …")
@click.option(
    "--revision", metavar="REVISION", default=None, help="Branch, tag or commit of the repository. [default: main]"
)
@click.option(
    "--cache-dir",
    "cache_dir",
    metavar="DIR",
    default=None,
    type=click.Path(file_okay=False),
    help="Where models are kept. [default: PYCLOVER_CACHE, else the user's cache folder]",
)
@click.option(
    "--list",
    "listing",
    is_flag=True,
    help="List what NAME offers; without NAME: the catalogue. Offline: what is on this machine.",
)
@click.option(
    "--prune",
    is_flag=True,
    help="List old sets of NAME, or of all repositories, that newer ones have taken the place of; then ask, and remove "
    "them.",
)
@click.option("-y", "--yes", is_flag=True, help="With --prune: remove them without asking.")
@click.option("--offline", is_flag=True, help="Ask no hub: only what is here. Also: HF_HUB_OFFLINE=1.")
@click.option(
    "--retries",
    "n_retries",
    type=click.IntRange(0, 1000),
    default=5,
    metavar="N",
    help="Failures in a row, without a new byte, until it gives up. [default: 5]",
)
@click.option(
    "--retry-wait",
    "wait_s",
    type=click.FloatRange(0, 3600),
    default=1.0,
    metavar="SECONDS",
    help="Wait before the first new try; it doubles each time. [default: 1]",
)
@click.option("-q", "--quiet", is_flag=True, help="The paths alone: no progress, no warnings.")
@options.json_option
@options.debug_option
@click.pass_context
def download(
    ctx: click.Context,
    *,
    model: str | None,
    quant: str | None,
    revision: str | None,
    cache_dir: str | None,
    listing: bool,
    prune: bool,
    yes: bool,
    offline: bool,
    n_retries: int,
    wait_s: float,
    quiet: bool,
    as_json: bool,
) -> None:
    """Download a model, or list what there is.

    NAME is owner/repo, owner/repo:quant, or auto: the best of the catalogue that fits into memory, rather one that is
    here. Standard output gets the paths of the files, one a line. What is here already is not downloaded again; what
    was stopped is continued; every file is checked before it gets its name.
    """
    if quiet and as_json:
        raise click.UsageError("--quiet and --json exclude each other.")
    if listing and prune:
        raise click.UsageError("--list and --prune exclude each other.")
    if yes and not prune:
        raise click.UsageError("--yes belongs to --prune.")
    if model is None and not (listing or prune):
        raise click.UsageError("what to download? Give a NAME, or --list for the catalogue.")
    out = Output("json" if as_json else "quiet" if quiet else "table")
    if prune:
        refuse_others(ctx, ("model", "cache_dir", "prune", "yes"), "--prune")
        return download_list.prune(out, model, cache_dir=cache_dir, yes=yes)
    if model is None:
        if offline or download_list.is_offline():
            refuse_others(ctx, ("listing", "cache_dir", "offline"), "--list --offline without NAME")
            return download_list.show_here(out, cache_dir)
        refuse_others(ctx, ("listing",), "--list without NAME, which shows the catalogue")
        return download_list.show_catalogue(out)
    with interrupt.at_once():
        from pyclover import source
        from pyclover.hub.patience import Retry

    retry = Retry(n_retries=n_retries, wait_s=wait_s)
    where: dict[str, Any] = {"revision": revision, "cache_dir": cache_dir, "offline": offline or None, "retry": retry}
    if listing:
        return download_list.show_offers(out, model, quant, where)
    try:
        with progress_of(out) as progress:
            done = source.download(model, quant=quant, progress=progress, **where)
    except KeyboardInterrupt:
        out.warn("stopped: what has come is kept, and the same command continues there")
        raise click.exceptions.Exit(interrupt.CANCELLED) from None
    show_result(out, done)
    return None


def refuse_others(ctx: click.Context, honoured: tuple[str, ...], mode: str) -> None:
    """Raises click.UsageError for an option that was given and means nothing here."""
    for param in ctx.command.params:
        name = param.name or ""
        given = ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
        if given and name not in (*honoured, "quiet", "as_json", "debug"):
            raise click.UsageError(f"{param.opts[-1]} has no meaning with {mode}: leave it out.")


def show_result(out: Output, done: Download) -> None:
    """The paths for standard output, the rest for the person."""
    for warning in done.warnings:
        out.warn(warning)
    if out.mode == "json":
        out.json(done.to_dict())
        return
    state = "already here" if done.from_cache else "downloaded and checked"
    out.talk(f"{done.repo}:{done.quant} at {done.revision[:12]}, {size(done.n_bytes)}: {state}")
    if done.why:
        out.talk(f"chosen because {done.why}")
    out.write("".join(f"{path}\n" for path in done.paths))


@contextlib.contextmanager
def progress_of(out: Output) -> Iterator[Callable[[DownloadProgress], None] | None]:
    """A line that is drawn over on a terminal; a line now and then in a log; None when nobody wants to see it."""
    if out.mode != "table":
        yield None
        return
    if sys.stderr is None or not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield LogLines(out)
        return
    view = ProgressLine()
    view.draw("asking the hub")
    try:
        yield view
    finally:
        view.clear()


class LogLines:
    """Progress where there is no terminal: a line for each phase of a file, and one a minute."""

    def __init__(self, out: Output, clock: Callable[[], float] = time.monotonic) -> None:
        self._out = out
        self._clock = clock
        self._label = ""
        self._said_at = 0.0

    def __call__(self, state: DownloadProgress) -> None:
        now = self._clock()
        if label(state) == self._label and now - self._said_at < LOG_EVERY_S:
            return
        self._label, self._said_at = label(state), now
        text = f"{self._label}: {size(state.done_bytes)} of {size(state.total_bytes)}"
        if state.bytes_per_s is not None and state.left_s is not None:
            text += f", {size(int(state.bytes_per_s))}/s, {duration(state.left_s)} left"
        self._out.talk(text)
