"""SIGTERM, and a terminal that closes, end long work as Ctrl-C does: what is half done is put in order first."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType


@contextlib.contextmanager
def as_ctrl_c() -> Iterator[None]:
    """While the block runs, these signals raise KeyboardInterrupt, unless somebody has decided on them already."""
    if threading.current_thread() is not threading.main_thread():  # only there handlers can be set
        yield
        return
    kinds = [signal.SIGTERM, *([signal.SIGHUP] if os.name == "posix" else [])]
    ours = [kind for kind in kinds if signal.getsignal(kind) is signal.SIG_DFL]
    for kind in ours:
        signal.signal(kind, _interrupt)
    try:
        yield
    finally:
        for kind in ours:
            signal.signal(kind, signal.SIG_DFL)


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
