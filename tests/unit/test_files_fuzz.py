"""No bytes get past the gate into anything but an error of ours, quickly; a vocabulary of real size parses fast."""

from __future__ import annotations

import json
import struct
import time
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyclover.errors import FileError, InvalidFileError
from pyclover.files import Array, check_model, inspect, read_header, validate

ORACLE = Path(__file__).parents[1] / "oracle" / "expected"
TINY_B = (ORACLE / "tiny_b.gguf").read_bytes()
HEADER_B = read_header(ORACLE / "tiny_b.gguf")
QUIET = settings(
    max_examples=200, deadline=5000, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def try_all(path: Path) -> None:
    """Either everything works or it fails with one of our sentences."""
    message = ""
    try:
        validate(path)
    except FileError as e:
        message = str(e)
    assert not message or (str(path) in message and "\n" not in message)
    with suppress(FileError):
        json.dumps(inspect(path).to_dict())


@QUIET
@given(st.lists(st.tuples(st.integers(0, HEADER_B.data_offset - 1), st.integers(0, 255)), min_size=1, max_size=8))
def test_changed_bytes(tmp_path: Path, changes: list[tuple[int, int]]) -> None:
    content = bytearray(TINY_B)
    for at, value in changes:
        content[at] = value
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    try_all(path)


@QUIET
@given(
    st.integers(0, HEADER_B.data_offset - 9),
    st.sampled_from([0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 32, 2**64 - 1]),
)
def test_changed_numbers(tmp_path: Path, at: int, value: int) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(TINY_B[:at] + struct.pack("<Q", value) + TINY_B[at + 8 :])
    try_all(path)


@QUIET
@given(st.binary(max_size=400), st.sampled_from([b"", b"GGUF", b"GGUF\3\0\0\0", TINY_B[:60]]))
def test_noise(tmp_path: Path, noise: bytes, start: bytes) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(start + noise)
    try_all(path)


@QUIET
@given(st.integers(0, HEADER_B.data_offset), st.integers(0, HEADER_B.data_offset), st.binary(max_size=40))
def test_cut_out_and_pasted_in(tmp_path: Path, a: int, b: int, patch: bytes) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(TINY_B[: min(a, b)] + patch + TINY_B[max(a, b) :])
    try_all(path)


def test_cut_anywhere_is_an_invalid_file(tmp_path: Path) -> None:
    """The end of the last tensor, not that of its padding, is what must be there (llama-model-loader.cpp)."""
    path = tmp_path / "m.gguf"
    end = HEADER_B.data_end
    for n in (*range(64), *range(64, HEADER_B.data_offset, 97), *range(HEADER_B.data_offset, end, 20011), end - 1):
        path.write_bytes(TINY_B[:n])
        with pytest.raises(InvalidFileError):
            validate(path)
    path.write_bytes(TINY_B[:end])
    validate(path)


def test_hostile_counts_cost_neither_time_nor_memory(tmp_path: Path) -> None:
    """A sparse file of 16 GiB makes every declared count plausible; it must be refused within seconds all the same."""
    path = tmp_path / "m.gguf"
    for head in (
        struct.pack("<IQQ", 3, 0, 1 << 20),
        struct.pack("<IQQ", 3, 1 << 20, 0),
        struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"k", 9, 8, 1 << 30),
        struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"k", 9, 0, 1 << 33),
        struct.pack("<IQQQ1sIQ", 3, 0, 1, 1, b"k", 8, 1 << 33),
        struct.pack("<IQQQ", 3, 0, 1, 1 << 33),
    ):
        with path.open("wb") as file:
            file.write(b"GGUF" + head)
            file.truncate(16 << 30)
        start = time.monotonic()
        with pytest.raises(InvalidFileError):
            read_header(path)
        assert time.monotonic() - start < 5


def test_a_real_vocabulary_is_read_fast(tmp_path: Path) -> None:
    def text(raw: bytes) -> bytes:
        return struct.pack("<Q", len(raw)) + raw

    n = 250_000
    words = b"".join(text(b"token%d" % i) for i in range(n))
    entry = text(b"tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, n) + words
    merges = text(b"tokenizer.ggml.merges") + struct.pack("<IIQ", 9, 8, n) + words
    model = text(b"tokenizer.ggml.model") + struct.pack("<I", 8) + text(b"gpt2")
    arch = text(b"general.architecture") + struct.pack("<I", 8) + text(b"clover_moe")
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 4) + arch + model + entry + merges)
    start = time.monotonic()
    header = read_header(path)
    check_model(header)
    assert time.monotonic() - start < 30  # about 0.3 s; the bound is for a busy machine
    tokens = header.metadata["tokenizer.ggml.tokens"]
    assert isinstance(tokens, Array)
    assert (len(tokens), tokens[n - 1]) == (n, f"token{n - 1}")
