"""What goes wrong with a server."""

from __future__ import annotations

from collections.abc import Sequence

from pyclover.errors import CloverError


class ServerError(CloverError):
    """A server or worker did not start, or could not be kept alive; the message ends with its own words.

    Attributes:
        log: its last lines.
        worker: the unreachable RPC worker, "" when it is none.
    """

    def __init__(self, message: str, *, log: Sequence[str] = (), worker: str = "") -> None:
        super().__init__(message)
        self.log = tuple(log)
        self.worker = worker
