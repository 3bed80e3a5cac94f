"""`clover-run worker`: computes layers of a model for `clover-run serve --rpc` on another machine."""

from __future__ import annotations

import click

from pyclover.cli import interrupt, options
from pyclover.cli.output import Output
from pyclover.cli.serve import terminated


@click.command(short_help="Compute layers for a server on another machine.")
@click.option("--host", default="127.0.0.1", metavar="HOST", show_default=True, help="IPv4 address to listen on.")
@click.option("--port", default=50052, metavar="N", type=click.IntRange(0, 65535), show_default=True,
              help="Port; 0 = a free one.")  # fmt: skip
@click.option("-t", "--threads", "n_threads", default=None, metavar="N", type=click.IntRange(min=1),
              help="Threads that compute, where there is no GPU. [default: all processors that may be used]",
              )  # fmt: skip
@click.option("-d", "--device", "devices", default=None, metavar="NAME,…",
              help="Devices to compute on. [default: the GPUs, or the processor]")  # fmt: skip
@click.option("-c", "--cache", is_flag=True, help="Keep the weights that a server sends on this machine's disk.")
@click.option("-v", "--verbose", is_flag=True, help="Show the worker's own lines too, on standard error.")
@options.json_option
@options.debug_option
def worker(
    host: str, port: int, n_threads: int | None, devices: str | None, cache: bool, verbose: bool, as_json: bool
) -> None:
    """Compute layers for a server on another machine.

    Runs until Ctrl-C. Give its address, which goes to standard output, to `clover-run serve --rpc`. It works for one
    server at a time. Its protocol has no keys and no encryption: use it in a private network alone.
    """
    out = Output("json" if as_json else "table")
    with interrupt.at_once():
        from pyclover.errors import ServerError
        from pyclover.serve.worker import work

    with terminated() as ending:
        log = (lambda line: click.echo(line, err=True)) if verbose else None
        with work(host=host, port=port, n_threads=n_threads, devices=devices, cache=cache, log=log) as running:
            ending.server = running
            for warning in running.warnings:
                out.warn(warning)
            if as_json:
                out.json({"endpoint": running.endpoint, "pid": running.pid, "warnings": list(running.warnings)})
            else:
                out.write(f"{running.endpoint}\n")
            while not ending.asked.is_set():
                if running.wait(0.2) and not ending.asked.is_set():  # a second Ctrl-C ends it here
                    raise ServerError(f"the worker ended ({running.why()})")
