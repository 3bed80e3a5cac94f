"""What a checked header of a GGUF file says; `header_read` makes it from a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

from pyclover.files.types import GgmlType
from pyclover.files.values import MetaValue, ValueType

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_NAME_BYTES = 63  # ggml keeps 64 with the closing zero


@dataclass(frozen=True)
class TensorInfo:
    """One tensor as the header describes it.

    Attributes:
        shape: in ggml's order, row length first; () for a single number without dimensions.
        offset: from the start of the file's data section, in bytes.
        n_bytes: without padding.
    """

    name: str
    shape: tuple[int, ...]
    type: GgmlType
    offset: int
    n_bytes: int

    @property
    def n_elements(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True)
class SplitInfo:
    """Place of a file in a split set, from its metadata (split.no counts from 0; None where the key is absent)."""

    no: int | None
    count: int
    n_tensors: int | None


@dataclass(frozen=True)
class Header:
    """A checked GGUF header.

    Attributes:
        path: of the file; for one that is not local see `name`.
        name: the file in messages; its address, where it is not local.
        metadata: keys and values in file order; arrays decode on demand.
        kinds: stored type of each value (llama.cpp asks for the exact type).
        data_offset: where the data section begins, in bytes from the start of the file.
        data_end: where the last tensor's data ends, likewise; padding behind it may be missing.
        split: None when the file is not part of a split set.
        joined: another GGUF begins right behind the data, as `cat` of several files leaves it.
        spans: key -> where its entry begins, where its value begins, where it ends, in bytes from the start.
        header_end: where the description of the last tensor ends; padding up to data_offset follows.
    """

    path: Path
    version: int
    alignment: int
    metadata: Mapping[str, MetaValue]
    kinds: Mapping[str, ValueType]
    tensors: tuple[TensorInfo, ...]
    data_offset: int
    data_end: int
    file_bytes: int
    split: SplitInfo | None
    joined: bool
    name: str
    spans: Mapping[str, tuple[int, int, int]]
    header_end: int

    @property
    def architecture(self) -> str:
        """general.architecture, "" when absent or not text."""
        value = self.metadata.get("general.architecture")
        return value if isinstance(value, str) else ""


def padded_to(n: int, alignment: int) -> int:
    """`n` rounded up to a multiple of `alignment`."""
    return (n + alignment - 1) // alignment * alignment
