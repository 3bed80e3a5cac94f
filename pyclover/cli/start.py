"""Where the program begins: nothing is imported here that takes time, so that Ctrl-C finds the program ready for it."""

from __future__ import annotations

from typing import NoReturn

from pyclover.cli.interrupt import at_once


def main() -> NoReturn:
    """Runs `clover-run` and ends the process."""
    with at_once():
        from pyclover.cli import main as program
    program.main()
