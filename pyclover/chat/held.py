"""Holds Ctrl-C back for the moment in which a process is started or ended, so that none is lost on the way."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


@contextlib.contextmanager
def ctrl_c_held_back() -> Iterator[None]:
    """While the block runs, Ctrl-C waits for its end. Python calls its handlers in the main thread alone."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    came: list[tuple[int, FrameType | None]] = []
    try:
        signal.signal(signal.SIGINT, lambda signum, frame: came.append((signum, frame)))
    except ValueError:  # a thread of another interpreter
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if came:
            before(*came[0])
