"""How far a conversion is: tensors, bytes, rate, time left."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Phase = Literal["start", "wait", "download", "verify", "convert"]


@dataclass(frozen=True)
class ConvertProgress:
    """State of a conversion.

    Attributes:
        phase: "start" while the converter is loaded, "convert", or what is done for a weight file on the hub: "wait"
            for another process, "download", "verify".
        item: tensor or file at hand.
        done_bytes, total_bytes: of the phase; for "convert" of the new file's tensors, with what an earlier run left.
        done_tensors, total_tensors: of the new file.
        bytes_per_s: over the last seconds, None while it is not known.
        left_s: until the phase is over at this rate, None while it is not known.
    """

    phase: Phase
    item: str
    done_bytes: int
    total_bytes: int
    done_tensors: int = 0
    total_tensors: int = 0
    bytes_per_s: float | None = None
    left_s: float | None = None


ProgressFunction = Callable[[ConvertProgress], object]


class Rate:
    """Bytes per second over the last seconds."""

    WINDOW_S = 10.0

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._samples: deque[tuple[float, int]] = deque()

    def begin(self, done_bytes: int) -> None:
        """Counts from here: what was there before was not done now."""
        self._samples = deque([(self._clock(), done_bytes)])

    def add(self, done_bytes: int) -> float | None:
        """The rate with this sample, None while it is not known."""
        now = self._clock()
        self._samples.append((now, done_bytes))
        while len(self._samples) > 2 and self._samples[1][0] <= now - self.WINDOW_S:
            self._samples.popleft()
        then, before = self._samples[0]
        return (done_bytes - before) / (now - then) if now > then and done_bytes > before else None
