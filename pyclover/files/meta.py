"""Typed access to metadata that records what is wrong instead of raising, so that one pass finds every problem.

llama.cpp asks for exact types (a uint32 key that is stored as uint64 is an error there), so this does too.
"""

from __future__ import annotations

import math

from pyclover.files.facts import Problem
from pyclover.files.header import Header
from pyclover.files.values import Array, ValueType

_CONVERT = "convert the model again, or get another file of it"
# element types that llama.cpp takes where it wants one number per layer
_LAYER_KINDS = (ValueType.UINT32, ValueType.INT32, ValueType.BOOL)


class Meta:
    """One header's metadata under check.

    Attributes:
        problems, warnings: what was found so far, in the order of the questions.
    """

    def __init__(self, header: Header) -> None:
        self.header = header
        self.problems: list[Problem] = []
        self.warnings: list[str] = []

    def problem(self, key: str, message: str) -> None:
        self.problems.append(Problem(key, message))

    def has(self, key: str) -> bool:
        return key in self.header.metadata

    def typed(self, key: str, kind: ValueType, *, required: bool = False) -> object | None:
        """The value when it is there and of type `kind`; else None, and a problem where it matters."""
        if key not in self.header.metadata:
            if required:
                self.problem(key, f"the metadata key '{key}' ({kind.label}) is missing; {_CONVERT}")
            return None
        found = self.header.kinds[key]
        if found is not kind:
            self.problem(key, f"the metadata key '{key}' is of type {found.label} instead of {kind.label}; {_CONVERT}")
            return None
        return self.header.metadata[key]

    def u32(
        self,
        key: str,
        default: int = 0,
        *,
        required: bool = False,
        low: int = 0,
        high: int = (1 << 31) - 1,
        why: str = "",
    ) -> int:
        """A uint32 in low..high, else `default` and a problem. `why` ends the sentence about a bad value."""
        value = self.typed(key, ValueType.UINT32, required=required)
        if value is None:
            return default
        assert isinstance(value, int)
        if not low <= value <= high:
            span = str(low) if low == high else f"at least {low}" if value < low else f"at most {high}"
            self.problem(key, f"the metadata key '{key}' is {value} and must be {span}{why}")
            return default
        return value

    def f32(self, key: str, default: float, *, required: bool = False, positive: bool = True) -> float:
        """A finite float32 above 0 (from 0 when not `positive`), else `default` and a problem."""
        value = self.typed(key, ValueType.FLOAT32, required=required)
        if value is None:
            return default
        assert isinstance(value, float)
        if not math.isfinite(value) or value < 0 or (positive and value == 0):
            self.problem(key, f"the metadata key '{key}' is {value}, which is not a usable number; {_CONVERT}")
            return default
        return value

    def flag(self, key: str, default: bool) -> bool:
        """A bool, else `default` (and a problem for another type)."""
        value = self.typed(key, ValueType.BOOL)
        return default if value is None else bool(value)

    def text(self, key: str, default: str = "", *, required: bool = False) -> str:
        """A string, else `default` (and a problem for another type, or bytes that are not UTF-8)."""
        value = self.typed(key, ValueType.STRING, required=required)
        if isinstance(value, bytes):
            self.problem(key, f"the text of the metadata key '{key}' is not valid UTF-8; {_CONVERT}")
        return value if isinstance(value, str) else default

    def per_layer(self, key: str, n_layer: int, *, required: bool = False) -> tuple[int, ...] | None:
        """One number per layer, from an array of `n_layer` or a single uint32; None when absent or wrong."""
        value = self.header.metadata.get(key)
        if not isinstance(value, Array):
            number = self.typed(key, ValueType.UINT32, required=required)
            return (number,) * n_layer if isinstance(number, int) else None
        if value.kind not in _LAYER_KINDS:
            self.problem(
                key,
                f"the metadata key '{key}' is an array of {value.kind.label}, not of uint32, int32 or bool; {_CONVERT}",
            )
            return None
        if len(value) != n_layer:
            self.problem(key, f"the metadata key '{key}' holds {len(value)} values for {n_layer} layers; {_CONVERT}")
            return None
        numbers = tuple(int(x) for x in value.numpy().tolist())
        if min(numbers, default=0) < 0:
            self.problem(key, f"the metadata key '{key}' holds the negative value {min(numbers)}; {_CONVERT}")
            return None
        return numbers

    def array(
        self, key: str, kinds: tuple[ValueType, ...], n_at_least: int = 0, *, required: bool = False
    ) -> Array | None:
        """An array of one of `kinds` with at least `n_at_least` elements, else None and a problem."""
        value = self.typed(key, ValueType.ARRAY, required=required)
        if not isinstance(value, Array):
            return None
        if value.kind not in kinds:
            wanted = " or ".join(k.label for k in kinds)
            self.problem(
                key, f"the metadata key '{key}' is an array of {value.kind.label} instead of {wanted}; {_CONVERT}"
            )
            return None
        if len(value) < n_at_least:
            self.problem(
                key,
                f"the metadata key '{key}' holds {len(value)} values for {n_at_least} tokens; {_CONVERT}",
            )
            return None
        return value
