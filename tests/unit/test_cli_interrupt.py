"""Ctrl-C while the program is still importing: it ends with 130 and says nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pyclover.cli.interrupt import at_once

ROOT = Path(__file__).resolve().parents[2]

# An import that is interrupted, as by a person who is quick.
CHILD = """
import os, signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
sys.argv = ["clover-run", "generate", "-p", "x"]
from pyclover.cli.start import main
main()
"""


@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.parametrize("module", ["pyclover.cli.main", "click", "pyclover.clover", "numpy"])
def test_while_modules_are_imported(module: str) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    code = CHILD.format(module=module)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, env=env, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


def test_what_was_there_stays() -> None:
    def mine(*_: object) -> None:
        """Somebody else's handler."""

    before = signal.getsignal(signal.SIGINT)
    try:
        for handler in (signal.default_int_handler, signal.SIG_IGN, mine):
            signal.signal(signal.SIGINT, handler)
            with at_once():
                assert (signal.getsignal(signal.SIGINT) is handler) == (handler is not signal.default_int_handler)
            assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)
