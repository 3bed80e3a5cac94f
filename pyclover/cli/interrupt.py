"""Ctrl-C while modules are imported: some of them would turn the exception into another one, or lose it."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from types import FrameType

CANCELLED = 130
Handler = Callable[[int, FrameType | None], None]


def _leave(signum: int, frame: FrameType | None) -> None:
    os._exit(CANCELLED)


def at_once() -> contextlib.AbstractContextManager[None]:
    """While the block runs, Ctrl-C ends the process at once, without a word. Nothing may be lost by that."""
    return handled_by(_leave)


@contextlib.contextmanager
def handled_by(handler: Handler, *, instead_of: Handler | None = None) -> Iterator[None]:
    """While the block runs, Ctrl-C calls the handler, unless somebody has changed what it does already.

    Args:
        instead_of: a handler of ours that may be in force, and is again afterwards.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler and (instead_of is None or before is not instead_of):
        yield  # somebody else decides what Ctrl-C does
        return
    signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
