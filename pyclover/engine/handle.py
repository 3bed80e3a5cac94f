"""Native pointers with a life: used under a count, freed once, never while a call runs."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any

from pyclover.errors import ClosedError


def _free_here(pid: int, free: Callable[[Any], object], pointer: Any) -> None:
    # a forked child has none of the threads that freeing would wait for
    if os.getpid() == pid:
        free(pointer)


class Handle:
    """A native object. `with handle as pointer:` keeps it alive for the block; close() waits for such blocks.

    Freed by close(), when `owner` is collected, or at exit (later objects first: contexts before models).

    Args:
        owner: the Python object that stands for the native one.
        pointer: the native object. free: frees it.
        what: for the message of ClosedError, e.g. "the model".
    """

    __slots__ = ("_condition", "_finalizer", "_n_users", "_pid", "_pointer", "_what")

    def __init__(self, owner: object, pointer: Any, free: Callable[[Any], object], what: str) -> None:
        self._pointer = pointer
        self._what = what
        self._n_users = 0
        self._pid = os.getpid()
        self._condition = threading.Condition()
        self._finalizer = weakref.finalize(owner, _free_here, self._pid, free, pointer)

    @property
    def closed(self) -> bool:
        return self._pointer is None

    def __enter__(self) -> Any:
        with self._condition:
            if self._pointer is None:
                raise ClosedError(f"{self._what} is closed: load the model again")
            if os.getpid() != self._pid:
                raise ClosedError(f"{self._what} was loaded before a fork: load the model again in this process")
            self._n_users += 1
            return self._pointer

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._condition:
            self._n_users -= 1
            if self._n_users == 0:
                self._condition.notify_all()

    def close(self, stop: Callable[[Any], object] | None = None) -> None:
        """Refuses new users, asks those there are to stop, waits for them, and frees. Closing twice does nothing."""
        with self._condition:
            pointer, self._pointer = self._pointer, None
            if os.getpid() != self._pid:
                return
            if stop is not None and pointer is not None and self._n_users > 0:
                stop(pointer)
            while self._n_users > 0:
                self._condition.wait()
        self._finalizer()
