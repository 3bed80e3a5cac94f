"""`clover-run tool`: the llama.cpp programs of the package, run as they are."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import click

from pyclover.cli import options
from pyclover.cli.output import Output
from pyclover.errors import UsageError

PARTS = {  # subcommands of the one program that llama.cpp builds
    "serve": "HTTP server",
    "cli": "chat in the terminal",
    "completion": "text from a prompt",
    "bench": "speed of prompt and generation",
    "batched-bench": "speed of several sequences at once",
    "quantize": "smaller types for the weights",
    "perplexity": "perplexity and divergence",
    "fit-params": "layers and context that fit the memory",
}
ALIASES = {"server": "serve"}
WHAT = {
    "llama": "all of the above in one program",
    "llama-imatrix": "importance matrix for quantizing",
    "llama-speculative-simple": "speculative decoding, one sequence",
    "rpc-server": "worker for a model over several machines",
}


def available(programs: Mapping[str, Path]) -> dict[str, list[str]]:
    """Names that can be run, with the command line that each begins."""
    names = {part: [str(programs["llama"]), part] for part in PARTS} if "llama" in programs else {}
    names.update((name, [str(path)]) for name, path in programs.items())
    return names


def resolve(name: str, programs: Mapping[str, Path]) -> list[str]:
    """The command line that a name begins; `llama-quantize` and `quantize`, `imatrix` and `llama-imatrix` are the same.

    Raises:
        UsageError: no such program.
    """
    names = available(programs)
    short = name.removesuffix(".exe").removeprefix("llama-")
    for candidate in (name, short, ALIASES.get(short, short), f"llama-{short}"):
        if candidate in names:
            return names[candidate]
    there = ", ".join(names) or "none in this build"
    raise UsageError(f"no program {name!r} in the package; there are: {there}.")


@click.command(
    short_help="Run a llama.cpp program of the package.",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    options_metavar="",
)
@options.json_option
@options.debug_option
@click.argument("name", required=False)
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def tool(name: str | None, args: tuple[str, ...], as_json: bool) -> None:
    """Run a llama.cpp program of the package.

    Everything after NAME goes to the program untouched. Without NAME: list the programs.
    """
    from pyclover.engine.build_info import programs

    there = programs()
    if name is None:
        list_programs(Output("json" if as_json else "table"), there)
        return
    command = [*resolve(name, there), *args]
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    if os.name == "nt":  # no exec there: wait, and pass on how it ended
        raise click.exceptions.Exit(subprocess.run(command, check=False).returncode)
    os.execv(command[0], command)


def list_programs(out: Output, programs: Mapping[str, Path]) -> None:
    """Shows the programs."""
    names = available(programs)
    if out.mode == "json":
        out.json(names)
        return
    if not names:
        out.talk("this build has no programs.")
        return
    what = {**PARTS, **WHAT}
    rows = [(name, what.get(name, ""), " ".join(command)) for name, command in names.items()]
    out.table(("name", "what it does", "runs"), rows)
