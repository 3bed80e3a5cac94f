"""Runs a program that ends with its parent: `guard.py PARENT_PID PROGRAM ARGS…`.

A step between fork and exec in the parent would not be safe beside its threads; here, nothing else runs.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(argv: list[str]) -> int:
    """Asks Linux for the signal and becomes the program."""
    parent, program = int(argv[1]), argv[2:]
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # it was gone before that
        return 1
    os.execv(program[0], program)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
