"""A cursor over the bytes of a GGUF header: every read is held against what the file still has.

Nothing is allocated by a number that the file declares.
"""

from __future__ import annotations

import struct
from typing import NoReturn, Protocol

from pyclover.errors import InvalidFileError
from pyclover.files.values import SIZES, Array, MetaValue, ValueType, as_text

# Far above any model (the largest header seen is about 12 MB, for 250,000 tokens), low enough that a hostile file
# is refused in seconds.
MAX_HEADER_BYTES = 256 << 20
MAX_STRINGS = 8 << 20

_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")


class Readable(Protocol):
    """What a header is read from: an open binary file, local or not."""

    def read(self, n: int, /) -> bytes | None: ...

    def seek(self, offset: int, /) -> int: ...


class Cursor:
    """A position in the header's bytes, which are read from the file as they are needed.

    Every method raises InvalidFileError when the file has not what was asked for; `path` is its name in messages.
    """

    def __init__(self, path: str, file: Readable, file_bytes: int) -> None:
        self.path, self.file, self.size = path, file, file_bytes
        self.buf = bytearray()
        self.pos = 0
        self.n_strings = 0

    def fail(self, text: str, key: str = "") -> NoReturn:
        raise InvalidFileError(f"{self.path}: {text}", path=self.path, key=key)

    def need(self, n: int, what: str, key: str = "") -> None:
        """Make sure that the next `n` bytes are in memory."""
        end = self.pos + n
        if end <= len(self.buf):
            return
        if end > self.size:
            self.fail(
                f"{what} needs {n} bytes, but the file ends {end - self.size} bytes early; it is cut short or "
                "damaged, download it again", key,
            )  # fmt: skip
        if end > MAX_HEADER_BYTES:
            self.fail(f"{what} makes the header longer than {MAX_HEADER_BYTES >> 20} MiB; the file is damaged", key)
        wanted = min(max(end, 2 * len(self.buf), 1 << 18), self.size, MAX_HEADER_BYTES)
        self.fill(wanted)
        if len(self.buf) < end:
            self.fail(f"the file became shorter while {what} was read; is it still being written?", key)

    def fill(self, n: int) -> None:
        """Read on until `n` bytes are in memory, or the file ends; an unbuffered file may give less than asked for."""
        while len(self.buf) < n and (more := self.file.read(n - len(self.buf))):
            self.buf += more

    def u32(self, what: str, key: str = "") -> int:
        self.need(4, what, key)
        self.pos += 4
        return int(_U32.unpack_from(self.buf, self.pos - 4)[0])

    def u64(self, what: str, key: str = "") -> int:
        self.need(8, what, key)
        self.pos += 8
        return int(_U64.unpack_from(self.buf, self.pos - 8)[0])

    def take(self, n: int, what: str, key: str = "") -> bytes:
        self.need(n, what, key)
        self.pos += n
        return bytes(self.buf[self.pos - n : self.pos])

    def string(self, what: str, key: str = "") -> bytes:
        return self.take(self.u64(f"the length of {what}", key), what, key)

    def name(self, what: str) -> str:
        """A key or tensor name. Native code compares these as zero-ended text, so they must be just that."""
        raw = self.string(what)
        text = as_text(raw)
        if isinstance(text, bytes) or not text or "\0" in text:
            self.fail(f"{what} is {raw[:80]!r}, which is not a name; the file is damaged, download it again")
        return text

    def read_value(self, key: str) -> tuple[ValueType, MetaValue]:
        kind = self.read_kind(key)
        if kind is ValueType.ARRAY:
            return kind, self.read_array(key)
        if kind is ValueType.STRING:
            raw = self.string(f"the value of '{key}'", key)
            if b"\0" in raw:  # native code would see only the part before it: two views of one file
                self.fail(f"the text of '{key}' holds a zero byte; the file is damaged, download it again", key)
            return kind, as_text(raw)
        raw = self.take(SIZES[kind], f"the value of '{key}'", key)
        if kind is ValueType.BOOL:
            self.check_bools(raw, key)
            return kind, raw == b"\1"
        return kind, Array(kind, 1, raw)[0]

    def read_kind(self, key: str) -> ValueType:
        number = self.u32(f"the type of '{key}'", key)
        try:
            return ValueType(number)
        except ValueError:
            self.fail(
                f"metadata key '{key}' has the unknown type {number}; the file is damaged, download it again", key
            )

    def read_array(self, key: str) -> Array:
        kind = self.read_kind(key)
        n = self.u64(f"the length of '{key}'", key)
        if kind is ValueType.ARRAY:
            self.fail(f"metadata key '{key}' is an array of arrays, which llama.cpp does not read", key)
        left, least = self.size - self.pos, SIZES.get(kind, 8)
        if n * least > left:
            self.fail(
                f"the array '{key}' announces {n} elements, more than fit in the {left} bytes that follow; the file "
                "is cut short or damaged, download it again", key,
            )  # fmt: skip
        if kind is not ValueType.STRING:
            raw = self.take(n * least, f"the array '{key}'", key)
            if kind is ValueType.BOOL:
                self.check_bools(raw, key)
            return Array(kind, n, raw)
        self.n_strings += n
        if self.n_strings > MAX_STRINGS:
            self.fail(f"the array '{key}' makes more than {MAX_STRINGS} strings; the file is damaged", key)
        return Array(kind, n, self.take_strings(n, key))

    def take_strings(self, n: int, key: str) -> bytes:
        """Walk `n` strings: this loop sees half a million of them in a big vocabulary, so it stays bare."""
        start = pos = self.pos
        buf, have, unpack = self.buf, len(self.buf), _U64.unpack_from
        for i in range(n):
            if pos + 8 > have:
                self.pos = pos
                self.need(8, f"element {i} of '{key}'", key)
                have = len(buf)
            length = unpack(buf, pos)[0]
            pos += 8
            if pos + length > have:
                self.pos = pos
                self.need(length, f"element {i} of '{key}'", key)
                have = len(buf)
            pos += length
        self.pos = pos
        return bytes(buf[start:pos])

    def check_bools(self, raw: bytes, key: str) -> None:
        if raw.translate(None, b"\0\1"):
            self.fail(f"'{key}' holds a truth value that is neither 0 nor 1; the file is damaged", key)
