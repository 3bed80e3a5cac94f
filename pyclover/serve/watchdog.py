"""Judges whether a server makes progress; that it answers is not enough, for a slot may hang behind a good health."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

# One batch of a long prompt may take minutes, and is one answer late; and for the sake of one slot that hangs, the
# answers of the others are cut off.
SILENT_FACTOR = 10
IDLE_SHARE = 0.02  # of a processor: less than any computation takes

Mark = tuple[Any, ...]


@dataclass
class Watchdog:
    """Fed with what was seen of a server, it says when to start it anew.

    Args:
        stall_s: seconds that a busy server may go without a token.
    """

    stall_s: float
    _marks: dict[Any, tuple[Mark, float]] = field(default_factory=dict, init=False)  # of busy slots, and since when
    _moved_s: float | None = field(default=None, init=False)
    _answered_s: float | None = field(default=None, init=False)
    _worked_s: float | None = field(default=None, init=False)
    _before: tuple[float, float] | None = field(default=None, init=False)

    def look(self, now_s: float, slots: Sequence[dict[str, Any]] | None, cpu_s: float) -> str:
        """What is wrong, "" when nothing is.

        Args:
            now_s: a clock.
            slots: the server's /slots; None when it did not answer in time.
            cpu_s: processor time that it has used so far.
        """
        if self.stall_s <= 0:
            return ""
        if self._before is None or cpu_s - self._before[1] >= IDLE_SHARE * (now_s - self._before[0]):
            self._worked_s = now_s
        self._before = (now_s, cpu_s)
        if slots is None:
            return self._silent(now_s)
        self._answered_s = now_s
        before, self._marks = self._marks, {}
        for slot in slots:
            if slot.get("is_processing"):
                mark = _mark(slot)
                known = before.get(slot.get("id"))
                self._marks[slot.get("id")] = known if known is not None and known[0] == mark else (mark, now_s)
        if not self._marks or self._marks != before or self._moved_s is None:
            self._moved_s = now_s
        if now_s - self._moved_s >= self.stall_s:
            return f"it has made no token for {now_s - self._moved_s:.0f} s though it is busy"
        return self._one_hangs(now_s)

    def _one_hangs(self, now_s: float) -> str:
        """A slot that hangs while others get on; one that still reads may wait for their prompts, however long."""
        for number, (mark, since_s) in self._marks.items():
            if _decoded(mark) and now_s - since_s >= SILENT_FACTOR * self.stall_s:
                return f"slot {number} has made no token for {now_s - since_s:.0f} s, while others did"
        return ""

    def _silent(self, now_s: float) -> str:
        if self._answered_s is None:
            self._answered_s = now_s
        silent_s = now_s - self._answered_s
        idle_s = now_s - (self._worked_s if self._worked_s is not None else now_s)
        if silent_s >= SILENT_FACTOR * self.stall_s:
            return f"it has not answered for {silent_s:.0f} s"
        if min(silent_s, idle_s) >= self.stall_s:
            return f"it has not answered for {silent_s:.0f} s and computes nothing"
        return ""


def _mark(slot: dict[str, Any]) -> Mark:
    """What changes in a busy slot when it gets on."""
    decoded = tuple(token.get("n_decoded") for token in slot.get("next_token") or ())
    return (slot.get("id_task"), slot.get("n_prompt_tokens_processed"), slot.get("diffusion_passes"), decoded)


def _decoded(mark: Mark) -> bool:
    return any(mark[-1])
