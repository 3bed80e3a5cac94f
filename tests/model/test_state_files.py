"""Where a saved state goes and what is read back: links, modes, things that are no files, huge files."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest

import pyclover


def saved(m: Any, path: Path) -> Path:
    m.generate("Hello", max_tokens=2, temperature=0)
    m.save_state(path)
    return path


def test_nothing_but_a_file_is_replaced(tiny_a: Any, tmp_path: Path) -> None:
    pipe, folder, link = tmp_path / "pipe", tmp_path / "folder", tmp_path / "link"
    os.mkfifo(pipe)
    folder.mkdir()
    link.symlink_to(pipe)
    for path in (pipe, folder, link):
        with pytest.raises(pyclover.StateError, match="cannot save the state") as caught:
            tiny_a.save_state(path)
        assert caught.value.path == str(path)
        with pytest.raises(pyclover.StateError, match="no regular file"):
            tiny_a.load_state(path)
    assert stat.S_ISFIFO(pipe.lstat().st_mode)
    assert link.is_symlink()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["folder", "link", "pipe"]


def test_a_link_stays_and_leads_to_the_state(tiny_a: Any, tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    for name in ("first", "second"):  # the second leads to nothing yet
        link = tmp_path / name
        link.symlink_to(there / name)
    (there / "first").write_bytes(b"old")
    for name in ("first", "second"):
        saved(tiny_a, tmp_path / name)
        assert (tmp_path / name).is_symlink()
        assert (there / name).read_bytes().startswith(b"pyclover-state 1\n")
    assert sorted(p.name for p in there.iterdir()) == ["first", "second"]


def test_links_in_a_circle(tiny_a: Any, tmp_path: Path) -> None:
    for name, other in (("a", "b"), ("b", "a")):
        (tmp_path / name).symlink_to(tmp_path / other)
    for call in (tiny_a.save_state, tiny_a.load_state):
        with pytest.raises(pyclover.StateError, match="symbolic links"):
            call(tmp_path / "a")


def test_modes(tiny_a: Any, tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        new = saved(tiny_a, tmp_path / "new")
        kept = tmp_path / "kept"
        kept.write_bytes(b"")
        kept.chmod(0o604)
        saved(tiny_a, kept)
    finally:
        os.umask(old)
    assert stat.S_IMODE(new.stat().st_mode) == 0o640
    assert stat.S_IMODE(kept.stat().st_mode) == 0o604


def test_long_names(tiny_a: Any, tmp_path: Path) -> None:
    longest = tmp_path / ("x" * 255)
    saved(tiny_a, longest)
    assert tiny_a.load_state(longest) > 0
    for call in (tiny_a.save_state, tiny_a.load_state):
        with pytest.raises(pyclover.StateError, match="too long"):
            call(tmp_path / ("x" * 256))


@pytest.mark.parametrize("path", [None, 5, b"state", "", "a\0b", "\ud800", ["state"]])
def test_no_paths(tiny_a: Any, path: Any) -> None:
    for call in (tiny_a.save_state, tiny_a.load_state):
        with pytest.raises(pyclover.UsageError, match="path") as caught:
            call(path)
        assert caught.value.option == "path"


def test_a_huge_file_is_not_read(tiny_a: Any, tmp_path: Path) -> None:
    path = saved(tiny_a, tmp_path / "state")
    magic, head, _ = path.read_bytes().split(b"\n", 2)
    n_bytes = int(head.split(b'"n_bytes": ')[1].split(b",")[0])
    for claimed in (n_bytes, 1 << 40):  # the file is larger than it says, or says how large it is
        start = magic + b"\n" + head.replace(b'"n_bytes": %d' % n_bytes, b'"n_bytes": %d' % claimed) + b"\n"
        path.write_bytes(start)
        os.truncate(path, len(start) + (1 << 40))
        with pytest.raises(pyclover.StateError, match="damaged"):
            tiny_a.load_state(path)


def test_more_tokens_than_the_context_holds(tiny_a: Any, tmp_path: Path) -> None:
    path = saved(tiny_a, tmp_path / "state")
    n_held = tiny_a.load_state(path)
    keep = {"cache_type_k": "f32", "cache_type_v": "f32", "flash_attn": False}
    with (
        pyclover.Clover(tiny_a.path, n_ctx=n_held - 1, n_threads=1, **keep) as small,
        pytest.raises(pyclover.ContextFullError, match=f"n_ctx={n_held} or more") as caught,
    ):
        small.load_state(path)
    assert (caught.value.n_ctx, caught.value.n_needed) == (n_held - 1, n_held)
    assert "prompt" not in str(caught.value)
