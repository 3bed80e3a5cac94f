"""How two processes exchange JSON over pipes: eight bytes of length, then the text."""

from __future__ import annotations

import json
import struct
from typing import Any, BinaryIO

HEADER = struct.Struct(">Q")
MAX_ANSWER = 96 << 20  # bytes; a prompt of MAX_TEXT characters in most scripts fits


def packed(value: Any) -> bytes:
    """A frame, ready to be written."""
    body = json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    return HEADER.pack(len(body)) + body


def unpacked(body: bytes | bytearray) -> Any:
    return json.loads(body)


def read_frame(stream: BinaryIO) -> Any:
    """The next value; None at the end of the stream."""
    head = stream.read(HEADER.size)
    if len(head) < HEADER.size:
        return None
    (size,) = HEADER.unpack(head)
    body = stream.read(size)
    return None if len(body) < size else unpacked(body)
