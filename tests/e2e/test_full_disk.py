"""A disk that is full while a state is saved: one sentence, and the earlier file stays."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import small_file_system

import pyclover


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    with small_file_system(tmp_path / "disk", "256k") as folder:
        yield folder


def test_saving_a_state(small_disk: Path, tiny_a: Any) -> None:
    path = small_disk / "state"
    tiny_a.generate([72, 101, 108], max_tokens=3, temperature=0, ignore_eos=True)
    tiny_a.save_state(path)
    before = path.read_bytes()
    tiny_a.generate([3] * 900, max_tokens=1, temperature=0)
    with pytest.raises(pyclover.StateError, match="No space left") as caught:
        tiny_a.save_state(path)
    assert str(path) in str(caught.value)
    assert path.read_bytes() == before
    assert os.listdir(small_disk) == ["state"]
    assert tiny_a.load_state(path) == 5


def test_a_folder_that_cannot_be_written(tmp_path: Path, tiny_a: Any) -> None:
    with pytest.raises(pyclover.StateError, match="absent"):
        tiny_a.save_state(tmp_path / "absent" / "state")
