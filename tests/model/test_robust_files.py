"""Damaged files: an error of ours within 2 s and in bounded memory, never a signal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from model.corrupt_files import Mutator, Splices
from model.corrupt_run import Result, open_all, quiet_core
from model.gguf_parts import build, llama_file, parse
from support import ORACLE

pytestmark = pytest.mark.timeout(1200)

TINY_B = ORACLE / "expected" / "tiny_b.gguf"
N_CUTS = 1000
N_MUTATIONS = 5000
N_OTHER = 1000


@pytest.fixture(autouse=True)
def _no_core_files() -> None:
    quiet_core()


def show(result: Result, what: str, capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print(f"\n  {what}: {result}")
    assert result.faults == [], "\n".join(result.faults)


def cut_offsets(data: bytes) -> list[int]:
    """Offsets of every structure in the file and those beside them, filled up evenly to N_CUTS."""
    parts = parse(data)
    marks = sorted({m for m in parts.marks if m < len(data)})
    # strings of the vocabulary are many and alike: of more marks than fit, take every so many
    step = -(-len(marks) // (N_CUTS * 3 // 4))
    chosen = set(marks[::step])
    n_more = N_CUTS - len(chosen)
    for i in range(4 * n_more):
        if len(chosen) == N_CUTS:
            break
        chosen.add((i * len(data)) // (4 * n_more) if i % 2 else marks[i % len(marks)] + 1)
    return sorted(chosen)


def test_cut_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = TINY_B.read_bytes()
    offsets = cut_offsets(data)
    assert len(offsets) == N_CUTS
    cases = ((f"cut{n}", [(n, len(data), b"")]) for n in offsets)
    result = open_all(TINY_B, cases, tmp_path)
    show(result, "cut", capsys)
    assert set(result.outcomes) == {"InvalidFileError"}


def flips(data: bytes, n: int, mask_of: str) -> Iterator[tuple[str, Splices]]:
    for i in range(n):
        mask = 0xFF if mask_of == "byte" else 1 << i * 5 % 8
        yield f"{mask_of}{i}", [(i, i + 1, bytes([data[i] ^ mask]))]


@pytest.mark.parametrize("mask_of", ["byte", "bit"])
def test_every_header_byte_flipped(mask_of: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = TINY_B.read_bytes()
    result = open_all(TINY_B, flips(data, parse(data).data_offset, mask_of), tmp_path)
    show(result, f"{mask_of} flipped", capsys)
    assert result.outcomes["works"] > 1000  # names, templates, special tokens: not every byte matters


def test_mutations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mutator = Mutator(TINY_B.read_bytes())
    cases = ((f"mutation{i}", mutator.case(f"mutation{i}")) for i in range(N_MUTATIONS))
    result = open_all(TINY_B, cases, tmp_path)
    show(result, "mutated", capsys)
    assert result.outcomes["works"] > 100
    assert result.outcomes["InvalidFileError"] > 100
    assert result.outcomes["UnsupportedModelError"] > 100


def test_mutations_of_another_architecture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The gate knows less about models that are not Clover; what it lets through must not crash either."""
    parts, data = llama_file(TINY_B.read_bytes())
    base = tmp_path / "base.gguf"
    base.write_bytes(build(parts) + data)
    mutator = Mutator(base.read_bytes(), b"llama")
    result = open_all(base, ((f"llama{i}", mutator.case(f"llama{i}")) for i in range(N_OTHER)), tmp_path)
    show(result, "llama mutated", capsys)
    assert result.outcomes["works"] > 50
