"""Entry point of `clover-run`: the command group, and the only place that turns errors into advice and exit codes.

Exit codes: 0 done, 1 failure with one sentence, 2 wrong usage, 130 cancelled. When the reader of standard output
goes away (`| head`), the program ends without a word, code 1.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from pyclover import __version__
from pyclover.cli import options
from pyclover.cli.bench import bench
from pyclover.cli.chat import chat
from pyclover.cli.convert import convert
from pyclover.cli.doctor import doctor
from pyclover.cli.download import download
from pyclover.cli.evaluate import evaluate
from pyclover.cli.fit import fit
from pyclover.cli.generate import generate
from pyclover.cli.imatrix import imatrix
from pyclover.cli.inspect import inspect
from pyclover.cli.interrupt import CANCELLED
from pyclover.cli.output import printable
from pyclover.cli.profile import profile
from pyclover.cli.quantize import quantize
from pyclover.cli.repair import repair
from pyclover.cli.serve import serve
from pyclover.cli.tool import tool
from pyclover.cli.tune import tune
from pyclover.cli.worker import worker
from pyclover.errors import CloverError, ContextFullError, DoesNotFitError, OutOfMemoryError, UsageError

COMMANDS: tuple[click.Command, ...] = (
    generate, chat, serve, worker, inspect, repair, convert, download, fit, bench, tune, profile, imatrix, quantize,
    evaluate, doctor, tool,
)  # fmt: skip


class Application(click.Group):
    """The group; its `main` ends the process with the exit code that belongs to what happened."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        state = extra.setdefault("obj", options.State())
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):  # text that the terminal's encoding lacks must not be fatal
                stream.reconfigure(errors="replace")
        try:
            code = super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
            if sys.stdout is not None:
                sys.stdout.flush()
        except (click.Abort, KeyboardInterrupt):
            self._leave(CANCELLED)
        except Exception as error:
            if state.debug:
                traceback.print_exc()
            self._leave(report(error, state.command))
        self._leave(code if isinstance(code, int) else 0)

    @staticmethod
    def _leave(code: int) -> NoReturn:
        sys.exit(code)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        ctx.ensure_object(options.State).command = command
        return name, command, rest

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [command.name or "" for command in COMMANDS]  # in the order of use, not of the alphabet


def report(error: Exception, command: click.Command | None = None) -> int:
    """Says what went wrong, in one sentence on standard error; returns the exit code."""
    if isinstance(error, click.ClickException):
        error.show()
        return error.exit_code
    if isinstance(error, OSError) and error.errno == errno.EPIPE:
        # Python flushes standard output once more at exit; that must go nowhere, not fail again.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    click.echo(f"Error: {sentence(error, command)}", err=True)
    return 2 if isinstance(error, UsageError) else 1


def sentence(error: Exception, command: click.Command | None = None) -> str:
    """What to tell the user about `error`, on one line."""
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, CloverError):
        advice = flags_for(error, command)
        return printable(f"{text} ({advice})" if advice and advice not in text else text)
    if isinstance(error, ImportError):
        return printable(
            f"the native part of pyclover does not load ({text}): install the package again; "
            "`clover-run doctor` checks the installation."
        )
    if isinstance(error, OSError) and error.strerror:
        # a file that is opened has a name in its error; what remains is what is open from the start
        where = error.filename or ("standard output" if error.errno == errno.ENOSPC else "")
        return printable(f"{where}: {error.strerror}." if where else f"{error.strerror}.")
    if isinstance(error, MemoryError):
        return "not enough memory for Python itself."
    return printable(
        f"a fault inside pyclover ({type(error).__name__}: {text}): please report it with the output of --debug."
    )


def flags_for(error: CloverError, command: click.Command | None = None) -> str:
    """The flags that help, "" when there are none. command: the one that ran; None: any of them."""
    if isinstance(error, UsageError):
        flag = options.flag_of([command] if command else COMMANDS, error.option)
        return f"flag: {flag}" if flag else ""
    if isinstance(error, ContextFullError):
        return f"flag: -c {error.n_needed} or more"
    if isinstance(error, OutOfMemoryError) and not isinstance(error, DoesNotFitError):  # whose message has better
        return "flags: a smaller -c, -ub or --spec-draft-n-max, -ctk q8_0 -ctv q8_0, on a GPU a smaller -ngl"
    return ""


def _print_version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if not value or ctx.resilient_parsing:
        return
    click.echo(f"clover-run {__version__}")
    ctx.exit()


@click.group(cls=Application, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_print_version, help="Show the version."
)
@options.debug_option
def cli() -> None:
    """Run Clover models on this machine.

    Data goes to standard output, talk and progress to standard error. Exit codes: 0 done, 1 failure, 2 wrong usage,
    130 cancelled.
    """


for _command in COMMANDS:
    cli.add_command(_command)


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Runs `clover-run` and ends the process."""
    cli.main(args=args, prog_name="clover-run")
    raise AssertionError("unreachable")


if __name__ == "__main__":
    main()
