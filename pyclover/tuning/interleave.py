"""The order in which settings take turns, so that what the machine does meanwhile hits all of them alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def turning(items: Sequence[T], turn: int) -> list[T]:
    """The items in the order of a turn: begun one further each time, and every other time backwards.

    So each comes at every place equally often, and neither always after nor always before another.
    """
    if not items:
        return []
    at = (turn // 2) % len(items)
    order = [*items[at:], *items[:at]]
    return order[::-1] if turn % 2 else order
