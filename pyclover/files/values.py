"""Values of GGUF metadata: the stored types, and arrays that decode only what is asked for.

Text: a string that is valid UTF-8 is a `str`; any other is kept as the `bytes` in the file. llama.cpp takes token
texts as raw bytes, so a vocabulary with broken UTF-8 is legal and must survive unchanged.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import TypeAlias, overload

import numpy as np
import numpy.typing as npt


class ValueType(IntEnum):
    """Stored type of a metadata value; `label` is the word used in messages."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12

    @property
    def label(self) -> str:
        return self.name.lower()


# numpy formats of the fixed-size types, little-endian as in the file. A bool is one byte, 0 or 1.
FORMATS: dict[ValueType, str] = {
    ValueType.UINT8: "<u1",
    ValueType.INT8: "<i1",
    ValueType.UINT16: "<u2",
    ValueType.INT16: "<i2",
    ValueType.UINT32: "<u4",
    ValueType.INT32: "<i4",
    ValueType.FLOAT32: "<f4",
    ValueType.BOOL: "<u1",
    ValueType.UINT64: "<u8",
    ValueType.INT64: "<i8",
    ValueType.FLOAT64: "<f8",
}
SIZES: dict[ValueType, int] = {kind: int(text[2]) for kind, text in FORMATS.items()}

Scalar: TypeAlias = int | float | bool | str | bytes
_LENGTH = struct.Struct("<Q")


def as_text(raw: bytes) -> str | bytes:
    """`raw` as `str` when it is valid UTF-8, else unchanged."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw


@dataclass(frozen=True, eq=False)
class Array(Sequence[Scalar]):
    """A metadata array, kept as the bytes of the file and decoded on demand.

    `raw` was checked when the header was read: every length in it fits.

    Attributes:
        kind: type of the elements.
        length: number of elements.
        raw: the elements as stored; strings with their 8-byte lengths.
    """

    kind: ValueType
    length: int
    raw: bytes

    def __len__(self) -> int:
        return self.length

    def __repr__(self) -> str:
        return f"Array({self.kind.label}[{self.length}])"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Array):
            return NotImplemented
        return (self.kind, self.length, self.raw) == (other.kind, other.length, other.raw)

    def __hash__(self) -> int:
        return hash((self.kind, self.length, self.raw))

    @overload
    def __getitem__(self, index: int) -> Scalar: ...
    @overload
    def __getitem__(self, index: slice) -> list[Scalar]: ...
    def __getitem__(self, index: int | slice) -> Scalar | list[Scalar]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self.length))]
        if not -self.length <= index < self.length:
            raise IndexError(index)
        index %= self.length
        if self.kind is ValueType.STRING:
            start = self._starts[index]
            return as_text(self._string_at(start))
        item = self.numpy()[index].item()
        return bool(item) if self.kind is ValueType.BOOL else item

    def __iter__(self) -> Iterator[Scalar]:
        if self.kind is ValueType.STRING:
            return iter([as_text(raw) for raw in self.raw_strings()])
        items = self.numpy().tolist()
        return iter([bool(x) for x in items] if self.kind is ValueType.BOOL else items)

    def numpy(self) -> npt.NDArray[np.generic]:
        """The elements [length] as a read-only numpy view; bools as uint8. Not for strings (TypeError)."""
        if self.kind is ValueType.STRING:
            raise TypeError("an array of strings has no numpy form")
        return np.frombuffer(self.raw, FORMATS[self.kind], self.length)

    def raw_strings(self) -> list[bytes]:
        """All strings as the bytes of the file [length]; TypeError when the elements are not strings."""
        if self.kind is not ValueType.STRING:
            raise TypeError(f"an array of {self.kind.label} holds no strings")
        raw, unpack, pos = self.raw, _LENGTH.unpack_from, 0
        out: list[bytes] = []
        for _ in range(self.length):
            start = pos + 8
            pos = start + unpack(raw, pos)[0]
            out.append(raw[start:pos])
        return out

    @cached_property
    def _starts(self) -> list[int]:
        unpack, pos, starts = _LENGTH.unpack_from, 0, []
        for _ in range(self.length):
            starts.append(pos)
            pos += 8 + unpack(self.raw, pos)[0]
        return starts

    def _string_at(self, start: int) -> bytes:
        return self.raw[start + 8 : start + 8 + _LENGTH.unpack_from(self.raw, start)[0]]


MetaValue: TypeAlias = Scalar | Array
