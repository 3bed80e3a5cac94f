"""Native pointers with a life: used under a mark, freed once, never while a call runs."""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any

from pyclover.errors import ClosedError

# How long the end of the program waits for a daemon thread inside native code to see that it must stop.
EXIT_WAIT_S = 5.0
POLL_S = 0.0005

_live: weakref.WeakValueDictionary[int, Handle] = weakref.WeakValueDictionary()
_count = 0


def _free_here(pid: int, free: Callable[[Any], object], pointer: Any) -> None:
    # a forked child has none of the threads that freeing would wait for
    if os.getpid() == pid:
        free(pointer)


class Handle:
    """A native object. `with handle as pointer:` keeps it alive for the block; close() waits for such blocks.

    Freed by close(), when `owner` is collected, or at exit (later objects first: contexts before models).

    The users are a set of thread ids, not a count behind a lock: Ctrl-C may strike between any two lines, also here. A
    count that was raised and not lowered would make close() wait for ever; a thread's mark that was left behind is
    taken over by the thread's next use, and does not keep the thread itself from closing. Adding to a set and taking
    out of it are single steps of the interpreter.

    Args:
        owner: the Python object that stands for the native one.
        pointer: the native object. free: frees it.
        what: for the message of ClosedError, e.g. "the model".
        stop: makes a running call on it end soon; None when calls are short.
    """

    __slots__ = ("__weakref__", "_finalizer", "_pid", "_pointer", "_stop", "_users", "_what")

    def __init__(
        self,
        owner: object,
        pointer: Any,
        free: Callable[[Any], object],
        what: str,
        stop: Callable[[Any], object] | None = None,
    ) -> None:
        global _count
        self._pointer = pointer
        self._what = what
        self._stop = stop
        self._users: set[int] = set()
        self._pid = os.getpid()
        self._finalizer = weakref.finalize(owner, _free_here, self._pid, free, pointer)
        self._finalizer.atexit = False  # see _close_all()
        _count += 1
        _live[_count] = self

    @property
    def closed(self) -> bool:
        return self._pointer is None

    def enter(self, mark: int) -> Any:
        # marked first, looked at afterwards: close() does it the other way round, so one of them sees the other
        self._users.add(mark)
        pointer = self._pointer
        if pointer is None or os.getpid() != self._pid:
            self._users.discard(mark)
            if pointer is None:
                raise ClosedError(f"{self._what} is closed: load the model again")
            raise ClosedError(f"{self._what} was loaded before a fork: load the model again in this process")
        return pointer

    def __enter__(self) -> Any:
        return self.enter(threading.get_ident())

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._users.discard(threading.get_ident())

    def call_aside(self, function: Callable[[Any], int]) -> int:
        """Calls a short function that may run beside a call of the same thread, as from a signal handler."""
        mark = -1 - threading.get_ident()
        try:
            return function(self.enter(mark))
        finally:
            self._users.discard(mark)

    def close(self, timeout_s: float | None = None) -> bool:
        """Refuses new users, asks those there are to stop, waits for them, and frees. Closing twice does nothing.

        Args:
            timeout_s: longest wait; when it is over, the native object is left alone instead of being freed under a
                running call. None: as long as it takes.

        Returns:
            False when the wait was over before the last user had left.
        """
        pointer, self._pointer = self._pointer, None
        if os.getpid() != self._pid:
            return True
        self._users.discard(threading.get_ident())
        self._users.discard(-1 - threading.get_ident())
        if self._stop is not None and pointer is not None and self._users:
            self._stop(pointer)
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while self._users:
            if until is not None and time.monotonic() > until:
                self._finalizer.detach()
                return False
            time.sleep(POLL_S)
        self._finalizer()
        return True


@atexit.register
def _close_all() -> None:
    """At exit: daemon threads may still be inside native code, so nothing is freed before they have left it."""
    for _, handle in sorted(_live.items(), reverse=True):
        if not handle.close(EXIT_WAIT_S):
            return  # what it was made on must stay too; the system takes all of it back
