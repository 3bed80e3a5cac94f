"""Ctrl-C while modules are imported: some of them would turn the exception into another one, or lose it."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from types import FrameType

CANCELLED = 130


def _leave(signum: int, frame: FrameType | None) -> None:
    os._exit(CANCELLED)


@contextlib.contextmanager
def at_once() -> Iterator[None]:
    """While the block runs, Ctrl-C ends the process at once, without a word. Nothing may be lost by that."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield  # somebody else decides what Ctrl-C does
        return
    signal.signal(signal.SIGINT, _leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
