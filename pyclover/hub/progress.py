"""How far a download is: bytes, rate, time left."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from pyclover.errors import CancelledError, UsageError, shortened

Phase = Literal["wait", "download", "verify"]


@dataclass(frozen=True)
class DownloadProgress:
    """State of a download.

    Attributes:
        phase: "wait" for another process that downloads the same files, "download", or "verify" a checksum.
        file: name of the file at hand.
        done_bytes, total_bytes: of all files of the phase together; what was there before counts as done.
        bytes_per_s: over the last seconds, None while it is not known.
        left_s: until the phase is over at this rate, None while it is not known.
    """

    phase: Phase
    file: str
    done_bytes: int
    total_bytes: int
    bytes_per_s: float | None = None
    left_s: float | None = None


ProgressFunction = Callable[[DownloadProgress], object]


class Meter:
    """Counts the bytes of one phase and tells a function, a few times in a second and at the end.

    Args:
        tell: gets the state; returning False stops the download.
        done_bytes: what was there before; it does not count for the rate.
    """

    WINDOW_S = 5.0
    EVERY_S = 0.1

    def __init__(
        self,
        tell: ProgressFunction | None,
        phase: Phase,
        total_bytes: int,
        *,
        done_bytes: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if tell is not None and not callable(tell):
            raise UsageError(f"progress is {shortened(tell)}: it must be a function or None", option="progress")
        self._tell = tell
        self._phase: Phase = phase
        self._total = total_bytes
        self._clock = clock
        self._file = ""
        self._told_at = -1e9
        self.done_bytes = done_bytes
        self._samples: deque[tuple[float, int]] = deque([(clock(), done_bytes)])

    def begin(self, file: str) -> None:
        """The next file; tells at once."""
        self._file = file
        self._report(self._clock())

    def add(self, n_bytes: int) -> None:
        """So many bytes more."""
        self.done_bytes += n_bytes
        now = self._clock()
        if now - self._told_at >= self.EVERY_S or self.done_bytes >= self._total:
            self._report(now)

    def take_back(self, n_bytes: int) -> None:
        """So many bytes must come again; the rate is measured anew."""
        self.done_bytes -= n_bytes
        self._samples.clear()
        self._report(self._clock())

    def _report(self, now: float) -> None:
        if self._tell is None:
            return
        self._told_at = now
        self._samples.append((now, self.done_bytes))
        while len(self._samples) > 2 and self._samples[1][0] <= now - self.WINDOW_S:
            self._samples.popleft()
        then, before = self._samples[0]
        rate = (self.done_bytes - before) / (now - then) if now > then and self.done_bytes > before else None
        left = None if rate is None else max(self._total - self.done_bytes, 0) / rate
        state = DownloadProgress(self._phase, self._file, self.done_bytes, self._total, rate, left)
        if self._tell(state) is False:
            raise CancelledError("the download was stopped; what has come is kept, and the next run continues there")
