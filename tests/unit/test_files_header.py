"""The header gate, with files made byte by byte after the format's description."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from pyclover.errors import InvalidFileError, ModelNotFoundError, UnsupportedModelError, UsageError
from pyclover.files import Array, ValueType, read_header

U8, I8, U16, I16, U32, I32, F32, BOOL, STR, ARR, U64, I64, F64 = range(13)


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def kv(key: str | bytes, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def tensor(name: str | bytes, shape: list[int], kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


def gguf(
    kvs: list[bytes] | None = None,
    tensors: list[bytes] | None = None,
    data: bytes = b"",
    *,
    version: int = 3,
    counts: tuple[int, int] | None = None,
    alignment: int = 32,
) -> bytes:
    kvs, tensors = kvs or [], tensors or []
    n = counts or (len(tensors), len(kvs))
    head = b"GGUF" + struct.pack("<IQQ", version, *n) + b"".join(kvs) + b"".join(tensors)
    return head + (b"\0" * (-len(head) % alignment) + data if tensors else b"")


ARCH = kv("general.architecture", STR, text("clover_moe"))
ONE = [tensor("t", [8])]


@pytest.fixture
def file(tmp_path: Path) -> Callable[[bytes], Path]:
    def write(content: bytes) -> Path:
        path = tmp_path / "m.gguf"
        path.write_bytes(content)
        return path

    return write


def test_reads_every_type(file: Callable[[bytes], Path]) -> None:
    kvs = [
        ARCH,
        kv("u8", U8, b"\xfe"),
        kv("i8", I8, b"\xfe"),
        kv("u16", U16, b"\xfe\xff"),
        kv("i16", I16, b"\xfe\xff"),
        kv("u32", U32, b"\xfe\xff\xff\xff"),
        kv("i32", I32, b"\xfe\xff\xff\xff"),
        kv("f32", F32, b"\0\0\xc0\x3f"),
        kv("bool", BOOL, b"\1"),
        kv("u64", U64, b"\xff" * 8),
        kv("i64", I64, b"\xff" * 8),
        kv("f64", F64, b"\0" * 6 + b"\xf8\x3f"),
        kv("numbers", ARR, struct.pack("<IQ3i", I32, 3, 1, -2, 3)),
        kv("flags", ARR, struct.pack("<IQ2B", BOOL, 2, 1, 0)),
        kv("words", ARR, struct.pack("<IQ", STR, 3) + text("a") + text("") + text(b"\xff\xfe")),
        kv("empty", ARR, struct.pack("<IQ", STR, 0)),
        kv("latin", STR, text(b"caf\xe9")),
    ]
    tensors = [tensor("x", [3, 2]), tensor("y", [64], 8, 32), tensor("z", [], 0, 128)]
    content = gguf(kvs, tensors, b"\0" * 132)
    h = read_header(file(content))
    m = h.metadata
    assert h.architecture == "clover_moe"
    assert [m[k] for k in ("u8", "i8", "u16", "i16", "u32", "i32")] == [254, -2, 65534, -2, 4294967294, -2]
    assert [m[k] for k in ("f32", "bool", "u64", "i64", "f64")] == [1.5, True, 2**64 - 1, -1, 1.5]
    assert m["bool"] is True
    numbers, flags, words = m["numbers"], m["flags"], m["words"]
    assert isinstance(numbers, Array)
    assert isinstance(flags, Array)
    assert isinstance(words, Array)
    assert (list(numbers), numbers[-1], numbers[:2], len(numbers)) == ([1, -2, 3], 3, [1, -2], 3)
    assert list(flags) == [True, False]
    assert flags[0] is True
    assert list(words) == ["a", "", b"\xff\xfe"] == [words[0], words[1], words[2]]
    assert words.raw_strings() == [b"a", b"", b"\xff\xfe"]
    assert m["latin"] == b"caf\xe9"
    assert (h.kinds["u16"], h.kinds["words"]) == (ValueType.UINT16, ValueType.ARRAY)
    with pytest.raises(IndexError):
        words[3]
    assert [(t.name, t.shape, t.type.name, t.offset, t.n_bytes) for t in h.tensors] == [
        ("x", (3, 2), "F32", 0, 24),
        ("y", (64,), "Q8_0", 32, 68),
        ("z", (), "F32", 128, 4),
    ]
    assert (h.data_end, h.file_bytes, h.joined, h.split) == (len(content), len(content), False, None)
    assert h.data_end - h.data_offset == 132


def test_version_2_and_alignment(file: Callable[[bytes], Path]) -> None:
    kvs = [kv("general.alignment", U32, struct.pack("<I", 64))]
    h = read_header(file(gguf(kvs, [tensor("a", [1]), tensor("b", [1], 0, 64)], b"\0" * 68, version=2, alignment=64)))
    assert (h.version, h.alignment, h.data_offset % 64) == (2, 64, 0)


def test_first_shard_may_hold_no_tensors(file: Callable[[bytes], Path]) -> None:
    assert read_header(file(gguf([ARCH]))).tensors == ()


def test_split_keys(file: Callable[[bytes], Path]) -> None:
    keys = [kv("split.no", U16, b"\1\0"), kv("split.count", U16, b"\3\0"), kv("split.tensors.count", I32, b"\7\0\0\0")]
    split = read_header(file(gguf(keys))).split
    assert split is not None
    assert (split.no, split.count, split.n_tensors) == (1, 3, 7)
    assert read_header(file(gguf([kv("split.count", U16, b"\1\0")]))).split is None


def test_joined_files_are_noticed(file: Callable[[bytes], Path]) -> None:
    one = gguf([ARCH], ONE, b"\0" * 32)
    assert read_header(file(one + one)).joined
    assert read_header(file(one[:-1] + one)).joined is False  # not at the end of the padding, nor of the data
    assert read_header(file(gguf([ARCH], [tensor("t", [7])], b"\0" * 28) + one)).joined  # no padding at the end
    assert not read_header(file(one + b"GGUFs are files")).joined


BAD = {
    "empty": (b"", "", "empty"),
    "three bytes": (b"GGU", "", "only 3 bytes"),
    "html": (b"<!DOCTYPE html><html>", "", "this looks like a web page"),
    "html after blanks": (b"\n\n  <HTML lang=en>", "", "this looks like a web page"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", "", "git-lfs pointer"),
    "zip": (b"PK\x03\x04" + b"\0" * 60, "", "zip archive"),
    "pickle": (b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.", "", "PyTorch"),
    "safetensors": (struct.pack("<Q", 60) + b'{"__metadata__":{"format":"pt"}}', "", "safetensors"),
    "json": (b'{"error":"Repository not found"}', "", "JSON"),
    "old ggml": (b"tjgg\3\0\0\0", "", "before GGUF"),
    "plain text": (b"Entry not found", "", "text file"),
    "zeros": (b"\0" * 4096, "", "unfinished download"),
    "reversed magic": (b"FUGG\0\0\0\3" + b"\0" * 16, "", "reversed"),
    "binary": (b"\x7fELF\x02\x01\x01\0\xff", "", "instead of 'GGUF'"),
    "magic only": (b"GGUF", "", "ends 4 bytes early"),
    "version 0": (gguf(version=0), "", "version is 0"),
    "version absurd": (gguf(version=0x12345678), "", "version is 305419896"),
    "no counts": (gguf()[:16], "", "ends 8 bytes early"),
    "tensor count absurd": (gguf(counts=(2**63, 0)), "", "more than fit"),
    "tensor count wraps": (gguf(counts=(2**64 - 1, 0)), "", "more than fit"),
    "key count absurd": (gguf(counts=(0, 2**40)), "", "more than fit"),
    "key count too big": (gguf(counts=(0, 1 << 17)) + b"\0" * (14 << 17), "", "limit"),
    "empty key": (gguf([kv("", U64, b"\1" * 8)]), "", "not a name"),
    "key not UTF-8": (gguf([kv(b"a\xff", U8, b"\1")]), "", "not a name"),
    "key with zero byte": (gguf([kv("general.architecture\0x", U8, b"\1")]), "", "not a name"),
    "key length wraps": (gguf(counts=(0, 1)) + struct.pack("<Q", 2**64 - 8) + b"x" * 64, "", "early"),
    "duplicate key": (gguf([kv("k", U8, b"\1"), kv("k", U8, b"\1")]), "k", "twice"),
    "unknown value type": (gguf([kv("k", 13, b"\0" * 8)]), "k", "unknown type 13"),
    "negative value type": (gguf([kv("k", 2**32 - 1, b"\0" * 8)]), "k", "unknown type"),
    "bool 2": (gguf([kv("k", BOOL, b"\2")]), "k", "neither 0 nor 1"),
    "bool 2 in array": (gguf([kv("k", ARR, struct.pack("<IQ3B", BOOL, 3, 1, 2, 0))]), "k", "neither 0 nor 1"),
    "value cut": (gguf([kv("k", U64, b"\0" * 7)]), "k", "ends 1 bytes early"),
    "string too long": (gguf([kv("k", STR, struct.pack("<Q", 1 << 40) + b"abc")]), "k", "early"),
    "string with zero byte": (gguf([kv("k", STR, text("a\0b"))]), "k", "zero byte"),
    "nested array": (gguf([kv("k", ARR, struct.pack("<IQ", ARR, 1) + b"\0" * 32)]), "k", "array of arrays"),
    "array of unknown": (gguf([kv("k", ARR, struct.pack("<IQ", 99, 1) + b"\0" * 32)]), "k", "unknown type 99"),
    "array length absurd": (gguf([kv("k", ARR, struct.pack("<IQ", U8, 1 << 62))]), "k", "more than fit"),
    "array length wraps": (gguf([kv("k", ARR, struct.pack("<IQ", U64, (1 << 61) + 1) + b"\0" * 64)]), "k", "more than"),
    "string array absurd": (gguf([kv("k", ARR, struct.pack("<IQ", STR, 1 << 61))]), "k", "more than fit"),
    "string array cut": (
        gguf([kv("k", ARR, struct.pack("<IQQ", STR, 2, 0) + b"\0" * 8 + b"\1")])[:-9],
        "k",
        "more than",
    ),
    "string in array too long": (
        gguf([kv("k", ARR, struct.pack("<IQQQ", STR, 2, 0, 1 << 63))]),
        "k",
        "early",
    ),
    "alignment 0": (gguf([kv("general.alignment", U32, b"\0" * 4)]), "general.alignment", "power of two"),
    "alignment 48": (gguf([kv("general.alignment", U32, b"\x30\0\0\0")]), "general.alignment", "power of two"),
    "alignment u64": (gguf([kv("general.alignment", U64, b"\x20" + b"\0" * 7)]), "general.alignment", "uint64"),
    "alignment string": (gguf([kv("general.alignment", STR, text("32"))]), "general.alignment", "string"),
    "tensor without name": (gguf([], [tensor("", [8])], b"\0" * 32), "", "not a name"),
    "tensor name of 64": (gguf([], [tensor("n" * 64, [8])], b"\0" * 32), "n" * 64, "longer than 63"),
    "duplicate tensor": (gguf([], [tensor("t", [8]), tensor("t", [8], 0, 32)], b"\0" * 64), "t", "twice"),
    "5 dimensions": (gguf([], [tensor("t", [1] * 5)], b"\0" * 32), "t", "5 dimensions"),
    "dimensions absurd": (gguf([], [text("t") + b"\xff" * 4 + b"\0" * 64]), "t", "dimensions"),
    "dimension 0": (gguf([], [tensor("t", [8, 0])], b"\0" * 32), "t", "impossible shape"),
    "dimension negative": (gguf([], [tensor("t", [2**64 - 8])], b"\0" * 32), "t", "impossible shape"),
    "elements overflow": (gguf([], [tensor("t", [2**32, 2**32])], b"\0" * 32), "t", "impossible shape"),
    "elements wrap to 0": (gguf([], [tensor("t", [2**16, 2**16, 2**16, 2**16])], b"\0" * 32), "t", "impossible shape"),
    "exabytes": (gguf([], [tensor("t", [2**60])], b"\0" * 32), "t", "whole file has"),
    "unknown tensor type": (gguf([], [tensor("t", [8], 43)], b"\0" * 32), "t", "unknown type 43"),
    "negative tensor type": (gguf([], [tensor("t", [8], 2**32 - 1)], b"\0" * 32), "t", "unknown type"),
    "half a block": (gguf([], [tensor("t", [48], 8)], b"\0" * 64), "t", "multiple of Q8_0's block of 32"),
    "offset off": (gguf([], [tensor("t", [8], 0, 32)], b"\0" * 96), "t", "must begin at 0"),
    "offset absurd": (gguf([], [tensor("t", [8], 0, 2**64 - 32)], b"\0" * 96), "t", "whole file has"),
    "overlap": (gguf([], [tensor("a", [8]), tensor("b", [8], 0, 0)], b"\0" * 96), "b", "must begin at 32"),
    "gap": (gguf([], [tensor("a", [8]), tensor("b", [8], 0, 64)], b"\0" * 128), "b", "must begin at 32"),
    "not aligned": (gguf([], [tensor("a", [7]), tensor("b", [8], 0, 28)], b"\0" * 128), "b", "must begin at 32"),
    "data cut": (gguf([], [tensor("a", [8]), tensor("b", [8], 0, 32)], b"\0" * 63), "b", "ends 1 bytes early"),
    "no data": (gguf([], [tensor("t", [8])])[:-1], "t", "early"),
    "split.count u32": (gguf([kv("split.count", U32, b"\2\0\0\0")]), "split.count", "uint32 instead of uint16"),
    "split.no u8": (gguf([kv("split.count", U16, b"\2\0"), kv("split.no", U8, b"\0")]), "split.no", "uint8"),
}


@pytest.mark.parametrize("name", BAD)
def test_refuses(name: str, file: Callable[[bytes], Path]) -> None:
    content, key, words = BAD[name]
    path = file(content)
    with pytest.raises(InvalidFileError) as caught:
        read_header(path)
    message = str(caught.value)
    assert words in message
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    assert (caught.value.path, caught.value.key) == (str(path), key)


UNSUPPORTED = {
    "version 1": (gguf(version=1), "", "too old"),
    "version 4": (gguf(version=4), "", "newer than this program"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "", "big-endian"),
    "removed type": (gguf([], [tensor("t", [32], 31)], b"\0" * 32), "t", "Q4_0_4_4"),
    # ggml asserts that mapped weights lie at multiples of 32
    "alignment 8": (
        gguf([kv("general.alignment", U32, b"\x08\0\0\0")], [tensor("t", [2]), tensor("u", [2], 0, 8)], b"\0" * 16),
        "general.alignment",
        "cannot map",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_sound_but_unreadable(name: str, file: Callable[[bytes], Path]) -> None:
    content, key, words = UNSUPPORTED[name]
    with pytest.raises(UnsupportedModelError, match=words) as caught:
        read_header(file(content))
    assert caught.value.key == key


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="no such file"):
        read_header(tmp_path / "absent.gguf")
    with pytest.raises(UsageError, match="zero byte"):
        read_header("a\0b")
    with pytest.raises(InvalidFileError, match="folder"):
        read_header(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InvalidFileError, match="not a regular file"):
        read_header(tmp_path / "pipe")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable_file(file: Callable[[bytes], Path]) -> None:
    path = file(gguf())
    path.chmod(0)
    with pytest.raises(InvalidFileError, match="cannot be read"):
        read_header(path)
