"""Sets of layers as a recipe writes them: numbers, ranges, fractions of the model, and one named pattern."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

_PART = re.compile(r"(?P<first>\d{1,4})(?:-(?P<last>\d{1,4})(?:/(?P<step>\d{1,4}))?)?")
_SHARE = re.compile(r"(?P<end>first|last)/(?P<n>\d{1,4})")
FORMS = "numbers as 3, ranges as 0-4 or 5-35/3, first/N, last/N, more_bits"


@dataclass(frozen=True)
class LayerSet:
    """A set of layers, known once the model's number of layers is.

    Attributes:
        text: as it was written.
    """

    text: str

    def has(self, layer: int, n_layer: int) -> bool:
        """Whether `layer` (from 0) of a model with `n_layer` layers is in the set."""
        return any(_test(part)(layer, n_layer) for part in _parts(self.text))

    def highest(self) -> int:
        """The largest layer that is named by its number, -1 where none is."""
        named = [_PART.fullmatch(part) for part in _parts(self.text)]
        return max((int(m["last"] or m["first"]) for m in named if m), default=-1)


def read_layers(text: str) -> LayerSet | None:
    """The set that `text` describes, None where it describes none."""
    for part in _parts(text):
        number, share = _PART.fullmatch(part), _SHARE.fullmatch(part)
        if number and number["last"] and int(number["last"]) < int(number["first"]):
            return None
        if (number and number["step"] == "0") or (share and share["n"] == "0"):
            return None
        if not (number or share or part == "more_bits"):
            return None
    return LayerSet(text) if _parts(text) else None


def more_bits(layer: int, n_layer: int) -> bool:
    """The layers that llama.cpp's mixtures ("_M") store with more bits: the first and the last eighth, and of those
    between every third."""
    eighth = n_layer // 8
    return layer < eighth or layer >= 7 * n_layer // 8 or (layer - eighth) % 3 == 2


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _test(part: str) -> Callable[[int, int], bool]:
    if part == "more_bits":
        return more_bits
    share = _SHARE.fullmatch(part)
    if share:
        n = int(share["n"])
        if share["end"] == "first":
            return lambda layer, n_layer: layer < n_layer // n
        return lambda layer, n_layer: layer >= (n - 1) * n_layer // n
    match = _PART.fullmatch(part)
    assert match is not None
    numbers = range(int(match["first"]), int(match["last"] or match["first"]) + 1, int(match["step"] or 1))
    return lambda layer, n_layer: layer in numbers
