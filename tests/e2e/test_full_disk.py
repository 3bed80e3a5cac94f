"""A disk that is full while a state or a chat is saved: one sentence, and the earlier file stays."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import small_file_system

import pyclover
from pyclover.cli import chat_file
from pyclover.cli.chat_history import open_history


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


def test_saving_a_chat(small_disk: Path) -> None:
    path = small_disk / "chat.json"
    short = [{"role": "user", "content": "Hi"}]
    chat_file.save(str(path), short, model="m", settings={})
    before = path.read_bytes()
    with pytest.raises(pyclover.FileError, match="No space left") as caught:
        chat_file.save(str(path), [{"role": "user", "content": "x" * 300_000}], model="m", settings={})
    assert str(path) in str(caught.value)
    assert path.read_bytes() == before
    assert os.listdir(small_disk) == ["chat.json"]
    assert chat_file.load(str(path)).messages == short


def test_the_history_of_a_chat(small_disk: Path) -> None:
    told: list[str] = []
    history = open_history(small_disk / "chat_history", told.append)
    history.append_string("first")
    (small_disk / "filler").write_bytes(b"\0" * os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize)
    history.append_string("x" * 200_000)  # the chat goes on
    history.append_string("third")
    assert list(history.get_strings())[-1] == "third"
    [sentence] = told
    assert "No space left" in sentence
    assert "--no-history" in sentence


def test_a_folder_that_cannot_be_written(tmp_path: Path, tiny_a: Any) -> None:
    with pytest.raises(pyclover.StateError, match="absent"):
        tiny_a.save_state(tmp_path / "absent" / "state")
