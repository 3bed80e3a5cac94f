"""Read and check the header of a GGUF file: the gate that every file passes before native code sees a byte of it.

Nothing is allocated by a number that the file declares: each length is held against the bytes that are left, and
the header as a whole against the limits below. The checks are those of ggml's own reader (gguf.cpp of the pinned
llama.cpp) plus the ones whose absence has crashed programs before (see CVE-2025-53630, -2026-33298, -2026-7482).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import NoReturn

from pyclover import arguments
from pyclover.errors import InvalidFileError, ModelNotFoundError, PathLike, UnsupportedModelError
from pyclover.files.cursor import Cursor, Readable
from pyclover.files.header import (
    DEFAULT_ALIGNMENT,
    MAGIC,
    MAX_NAME_BYTES,
    VERSIONS,
    Header,
    SplitInfo,
    TensorInfo,
    padded_to,
)
from pyclover.files.sniff import describe
from pyclover.files.types import GGML_TYPES, REMOVED_TYPES
from pyclover.files.values import MetaValue, ValueType

MAX_DIMS = 4

# Far above any model, low enough that a hostile file is refused in seconds (see also cursor.py).
MAX_KEYS = 65_536
MAX_TENSORS = 262_144

_INT64_MAX = (1 << 63) - 1


def read_header(path: PathLike) -> Header:
    """Read and check the header of one GGUF file (of one shard, when the model is split).

    Raises:
        ModelNotFoundError: there is no such file.
        InvalidFileError: not a GGUF file, damaged, or cut short.
        UnsupportedModelError: a sound file of a kind that cannot be read here (version 1, big-endian).
    """
    where = arguments.path("path", path)
    try:
        status = os.stat(where)
    except (FileNotFoundError, NotADirectoryError) as e:
        raise ModelNotFoundError(f"{where}: there is no such file; check the path", path=where) from e
    except OSError as e:
        raise InvalidFileError(f"{where}: cannot be read: {e.strerror}", path=where) from e
    if stat.S_ISDIR(status.st_mode):
        raise InvalidFileError(f"{where}: this is a folder; give the path of a .gguf file", path=where)
    if not stat.S_ISREG(status.st_mode):
        raise InvalidFileError(f"{where}: this is not a regular file; give the path of a .gguf file", path=where)
    try:
        with where.open("rb") as file:
            return _Parser(str(where), file, os.fstat(file.fileno()).st_size).parse()
    except OSError as e:
        raise InvalidFileError(f"{where}: cannot be read: {e.strerror or e}", path=where) from e


def read_open_header(file: Readable, file_bytes: int, name: str) -> Header:
    """Like read_header, for a file that is open already, also one that is not local.

    Little more than the header is read: blocks of at least 256 KiB, and the 8 bytes behind the data, if there are any.

    Args:
        file: binary, seekable.
        file_bytes: size of the whole file.
        name: the file in messages.

    Raises:
        InvalidFileError, UnsupportedModelError: as read_header.
    """
    try:
        file.seek(0)
        return _Parser(name, file, file_bytes).parse()
    except OSError as e:
        raise InvalidFileError(f"{name}: cannot be read: {e.strerror or e}", path=name) from e


class _Parser(Cursor):
    """Reads one file's header from start to end."""

    def parse(self) -> Header:
        version = self.read_start()
        n_tensors, n_keys = self.read_counts()
        metadata: dict[str, MetaValue] = {}
        kinds: dict[str, ValueType] = {}
        spans: dict[str, tuple[int, int, int]] = {}
        for i in range(n_keys):
            start = self.pos
            key = self.name(f"the name of metadata entry {i + 1} of {n_keys}")
            if key in metadata:
                self.fail(f"metadata key '{key}' appears twice; the file is damaged, download it again", key)
            value = self.pos
            kinds[key], metadata[key] = self.read_value(key)
            spans[key] = (start, value, self.pos)
        alignment = self.check_alignment(metadata, kinds)
        tensors, data_size = self.read_tensors(n_tensors, alignment)
        header_end = self.pos
        # ggml skips the padding only where data follows
        data_offset = padded_to(header_end, alignment) if n_tensors else header_end
        data_end = data_offset + data_size
        self.check_placement(tensors, data_offset, alignment)
        if data_end > self.size:
            self.fail_short(tensors, data_offset, data_end)
        split = self.read_split(metadata, kinds)
        joined = any(self.is_gguf_at(p) for p in {data_end, padded_to(data_end, alignment)})
        return Header(
            Path(self.path), version, alignment, metadata, kinds, tensors, data_offset, data_end, self.size, split,
            joined, self.path, spans, header_end,
        )  # fmt: skip

    def read_start(self) -> int:
        if self.size == 0:
            self.fail("the file is empty; download it again")
        self.fill(min(512, self.size))
        start = bytes(self.buf)
        if start[:4] != MAGIC:
            if MAGIC.startswith(start):
                self.fail(f"the file has only {self.size} bytes; download it again")
            self.fail(f"not a GGUF file: {describe(start)}")
        self.pos = 4
        version = self.u32("the version")
        if version and not version & 0xFFFF:
            raise UnsupportedModelError(
                f"{self.path}: this is a big-endian GGUF file; get the little-endian one, or convert it with "
                "gguf-convert-endian (package gguf)", path=self.path,
            )  # fmt: skip
        if version not in VERSIONS:
            if version == 1 or version in range(4, 100):
                age = "too old: get a newer conversion" if version == 1 else "newer than this program: update pyclover"
                raise UnsupportedModelError(f"{self.path}: GGUF version {version} is {age}", path=self.path)
            self.fail(f"the GGUF version is {version}, not 2 or 3; the file is damaged, download it again")
        return version

    def read_counts(self) -> tuple[int, int]:
        n_tensors, n_keys = self.u64("the number of tensors"), self.u64("the number of metadata entries")
        left = self.size - self.pos
        # the shortest entry: a name of one byte with its length, a type and one byte of value (or one offset)
        for n, least, limit, what in ((n_tensors, 25, MAX_TENSORS, "tensors"), (n_keys, 14, MAX_KEYS, "keys")):
            if n * least > left:
                self.fail(
                    f"the header announces {n} {what}, more than fit in the {left} bytes that follow; it is cut short "
                    "or damaged, download it again"
                )
            if n > limit:
                self.fail(f"the header announces {n} {what}, and {limit} is the limit here; the file is damaged")
        return n_tensors, n_keys

    def check_alignment(self, metadata: Mapping[str, MetaValue], kinds: Mapping[str, ValueType]) -> int:
        key = "general.alignment"
        value = metadata.get(key, DEFAULT_ALIGNMENT)
        if key in kinds and kinds[key] is not ValueType.UINT32:
            self.fail(f"'{key}' is of type {kinds[key].label} instead of uint32; convert the model again", key)
        assert isinstance(value, int)
        if value == 0 or value & (value - 1):
            self.fail(f"'{key}' is {value}, which is not a power of two; convert the model again", key)
        return value

    def check_placement(self, tensors: tuple[TensorInfo, ...], data_offset: int, alignment: int) -> None:
        """ggml aborts the process when mapped weights do not begin at a multiple of 32 bytes (ggml-backend.cpp)."""
        if alignment < DEFAULT_ALIGNMENT and any((data_offset + t.offset) % DEFAULT_ALIGNMENT for t in tensors):
            raise UnsupportedModelError(
                f"{self.path}: 'general.alignment' is {alignment}, so tensors lie where llama.cpp cannot map them; "
                f"convert the model with an alignment of {DEFAULT_ALIGNMENT}", path=self.path, key="general.alignment",
            )  # fmt: skip

    def read_tensors(self, n_tensors: int, alignment: int) -> tuple[tuple[TensorInfo, ...], int]:
        """All tensor infos, and the bytes from the start of the data to the end of the last tensor."""
        out: list[TensorInfo] = []
        seen: set[str] = set()
        end = 0
        for i in range(n_tensors):
            name = self.name(f"the name of tensor {i + 1} of {n_tensors}")
            if len(name.encode()) > MAX_NAME_BYTES:
                self.fail(f"the tensor name '{name[:80]}' is longer than {MAX_NAME_BYTES} bytes", name[:80])
            if name in seen:
                self.fail(f"tensor '{name}' appears twice; the file is damaged, download it again", name)
            seen.add(name)
            tensor = self.read_tensor(name)
            expected = padded_to(end, alignment)
            if tensor.offset != expected:
                self.fail(
                    f"the data of tensor '{name}' is said to begin at {tensor.offset}, but the one before ends so that "
                    f"it must begin at {expected}; the file is damaged, download it again", name,
                )  # fmt: skip
            end = expected + tensor.n_bytes
            out.append(tensor)
        return tuple(out), end

    def read_tensor(self, name: str) -> TensorInfo:
        what = f"the description of tensor '{name}'"
        n_dims = self.u32(what, name)
        if n_dims > MAX_DIMS:
            self.fail(f"tensor '{name}' has {n_dims} dimensions, and {MAX_DIMS} is the most; the file is damaged", name)
        shape = tuple(self.u64(what, name) for _ in range(n_dims))
        if any(not 0 < d <= _INT64_MAX for d in shape) or prod(shape) > _INT64_MAX:
            self.fail(f"tensor '{name}' has the impossible shape {list(shape)}; the file is damaged", name)
        number = self.u32(what, name)
        kind = GGML_TYPES.get(number)
        if kind is None:
            if number in REMOVED_TYPES:
                raise UnsupportedModelError(
                    f"{self.path}: tensor '{name}' has the type {REMOVED_TYPES[number]}, which llama.cpp no longer "
                    "reads; get a file of another quantization", path=self.path, key=name,
                )  # fmt: skip
            self.fail(
                f"tensor '{name}' has the unknown type {number}; the file is damaged or made for a newer llama.cpp",
                name,
            )
        row = shape[0] if shape else 1
        if row % kind.block_size:
            self.fail(
                f"tensor '{name}' has rows of {row} numbers, not a multiple of {kind.name}'s block of "
                f"{kind.block_size}; the file is damaged", name,
            )  # fmt: skip
        n_bytes = prod(shape) // kind.block_size * kind.type_size
        offset = self.u64(what, name)
        if n_bytes > self.size or offset > self.size:
            self.fail(
                f"tensor '{name}' needs {n_bytes} bytes at {offset}, but the whole file has {self.size}; it is cut "
                "short or damaged, download it again", name,
            )  # fmt: skip
        return TensorInfo(name, shape, kind, offset, n_bytes)

    def fail_short(self, tensors: tuple[TensorInfo, ...], data_offset: int, data_end: int) -> NoReturn:
        first = next(t for t in tensors if data_offset + t.offset + t.n_bytes > self.size)
        self.fail(
            f"the file ends {data_end - self.size} bytes early (it has {self.size} of {data_end}), first in tensor "
            f"'{first.name}'; the download is incomplete, fetch it again", first.name,
        )  # fmt: skip

    def read_split(self, metadata: Mapping[str, MetaValue], kinds: Mapping[str, ValueType]) -> SplitInfo | None:
        """The split keys; llama.cpp aborts the process when split.no of a later part has another type."""
        expected = {
            "split.no": ValueType.UINT16,
            "split.count": ValueType.UINT16,
            "split.tensors.count": ValueType.INT32,
        }
        found: dict[str, int | None] = dict.fromkeys(expected)
        for key, kind in expected.items():
            if key in metadata:
                value = metadata[key]
                if kinds[key] is not kind or not isinstance(value, int):
                    self.fail(
                        f"'{key}' is of type {kinds[key].label} instead of {kind.label}; split the model again", key
                    )
                found[key] = value
        count = found["split.count"] or 0
        return SplitInfo(found["split.no"], count, found["split.tensors.count"]) if count > 1 else None

    def is_gguf_at(self, offset: int) -> bool:
        if offset + 8 > self.size:
            return False
        self.file.seek(offset)
        start = self.file.read(8) or b""
        return start[:4] == MAGIC and len(start) == 8 and start[4] in (1, *VERSIONS) and not any(start[5:])
