"""The bytes of a GGUF header: what the reader takes apart, put together again."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

from pyclover.files.header import MAGIC, TensorInfo, padded_to
from pyclover.files.values import FORMATS, Array, MetaValue, Scalar, ValueType

# struct's letters for the types of fixed size
_LETTERS = {
    ValueType.UINT8: "B", ValueType.INT8: "b", ValueType.UINT16: "H", ValueType.INT16: "h", ValueType.UINT32: "I",
    ValueType.INT32: "i", ValueType.FLOAT32: "f", ValueType.BOOL: "?", ValueType.UINT64: "Q", ValueType.INT64: "q",
    ValueType.FLOAT64: "d",
}  # fmt: skip


def encode_text(text: str | bytes) -> bytes:
    """A length of 8 bytes, then the text in UTF-8 (bytes as they are)."""
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def encode_scalar(kind: ValueType, value: Scalar) -> bytes:
    """One value of a fixed-size type, or a string.

    Raises:
        struct.error, OverflowError: it does not fit the type.
    """
    if kind is ValueType.STRING:
        assert isinstance(value, (str, bytes))
        return encode_text(value)
    return struct.pack("<" + _LETTERS[kind], value)


def make_array(kind: ValueType, values: Sequence[Scalar]) -> Array:
    """An array as the reader gives it.

    Raises:
        struct.error, OverflowError: a value does not fit the type.
    """
    return Array(kind, len(values), b"".join(encode_scalar(kind, value) for value in values))


def encode_entry(key: str, kind: ValueType, value: MetaValue) -> bytes:
    """A metadata entry: key, type, value."""
    head = encode_text(key) + struct.pack("<I", kind)
    if isinstance(value, Array):
        return head + struct.pack("<IQ", value.kind, value.length) + value.raw
    return head + encode_scalar(kind, value)


def encode_tensor(tensor: TensorInfo) -> bytes:
    """The description of a tensor: name, dimensions, type, offset."""
    dims = struct.pack(f"<I{len(tensor.shape)}Q", len(tensor.shape), *tensor.shape)
    return encode_text(tensor.name) + dims + struct.pack("<IQ", tensor.type.id, tensor.offset)


def encode_header(version: int, entries: Sequence[bytes], tensors: Iterable[TensorInfo], alignment: int) -> bytes:
    """Everything before the data section, the padding included (without tensors there is none)."""
    infos = [encode_tensor(tensor) for tensor in tensors]
    start = MAGIC + struct.pack("<IQQ", version, len(infos), len(entries))
    raw = b"".join((start, *entries, *infos))
    return raw + bytes(padded_to(len(raw), alignment) - len(raw) if infos else 0)


assert _LETTERS.keys() == FORMATS.keys()
