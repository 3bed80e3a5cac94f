"""The line editor, driven by keys, and the file of its history."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.completion import DummyCompleter
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.input import PipeInput, create_pipe_input
from prompt_toolkit.output import DummyOutput

from pyclover.cli import chat_editor, chat_history
from pyclover.cli.chat_editor import LineEditor, message_of, unfinished
from pyclover.cli.chat_history import history_path, open_history


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> Iterator[PipeInput]:
    monkeypatch.setattr(chat_editor, "_output", DummyOutput)
    with create_pipe_input() as made, create_app_session(input=made, output=DummyOutput()):
        yield made


def editor(history: Path | None = None) -> LineEditor:
    return LineEditor(history=history, completer=DummyCompleter(), color=False, trouble=pytest.fail)


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("hello\r", "hello"),
        ("日本 👍🏽 e\u0301\r", "日本 👍🏽 e\u0301"),
        ("one\\\rtwo\r", "one\ntwo"),
        ("one\x1b\rtwo\r", "one\ntwo"),
        ("\x1b[200~one\r\ntwo\n\nthree\n\x1b[201~\r", "one\ntwo\n\nthree"),
        ("\x1b[200~/a\n/quit\n\x1b[201~ b\r", "/a\n/quit\n b"),
        ('"""\rone\r\r  two\r"""\r', "one\n\n  two"),
        ('"""one line"""\r', "one line"),
        ("ab\x1b[Dx\r", "axb"),
        ("\r", ""),
        ("given up\x03", ""),
        ("C:\\dir\\ x\r", "C:\\dir\\ x"),
    ],
)
def test_what_is_typed_and_what_is_meant(keys: PipeInput, typed: str, message: str) -> None:
    keys.send_text(typed)
    assert editor().read() == message


def test_a_backslash_before_the_end_is_a_backslash(keys: PipeInput) -> None:
    keys.send_text("ab\\\x1b[D\x1b[D\r")
    assert editor().read() == "ab\\"


def test_ends(keys: PipeInput) -> None:
    for key, error in (("\x04", EOFError), ("\x03", KeyboardInterrupt)):
        keys.send_text(key)
        with pytest.raises(error):
            editor().read()


def test_what_was_typed_comes_back(keys: PipeInput, tmp_path: Path) -> None:
    path = tmp_path / "sub" / "history"
    for typed in ("first\r", "\x1b[200~two\nlines\x1b[201~\r"):
        keys.send_text(typed)
        editor(path).read()
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(open_history(path, pytest.fail).load_history_strings()) == ["two\nlines", "first"]
    other = editor(path)
    keys.send_text("\x12fir\r\r")  # the search, its end, and Enter
    assert other.read() == "first"


def test_history_stays_private_and_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "history"
    path.write_text("".join(f"\n# 2026-01-01\n+line {n}\n" for n in range(100)))
    path.chmod(0o644)
    monkeypatch.setattr(chat_history, "MAX_BYTES", 1000)
    kept = list(open_history(path, pytest.fail).load_history_strings())
    assert kept[0] == "line 99"
    assert 40 <= len(kept) <= 60
    assert kept == [f"line {n}" for n in range(99, 99 - len(kept), -1)]
    assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["history"]


def test_history_that_cannot_be_kept_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    (tmp_path / "file").touch()
    history = open_history(tmp_path / "file" / "history", told.append)
    assert isinstance(history, InMemoryHistory)
    assert len(told) == 1
    assert "--no-history" in told[0]
    assert isinstance(open_history(None, pytest.fail), InMemoryHistory)

    told.clear()
    path = tmp_path / "full"
    history = open_history(path, told.append)

    def fail(path: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(chat_history, "_make_private", fail)
    history.append_string("one")
    history.append_string("two")
    assert told == [
        f"the lines typed here are not kept: {path}: No space left on device (--no-history leaves them out)"
    ]


def test_half_a_character_does_not_stop_the_editor(keys: PipeInput, tmp_path: Path) -> None:
    keys.send_bytes(b"a\xffb\r")
    assert editor(tmp_path / "history").read() in ("a?b", "a\ufffdb", "ab")


def test_where_history_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert history_path().name == "chat_history"
    if os.uname().sysname == "Linux":
        assert history_path() == tmp_path / "pyclover" / "chat_history"


@pytest.mark.parametrize(
    ("text", "open_", "message"),
    [
        ('"""', True, '"""'),
        ('"""a', True, '"""a'),
        ('""""', True, '""""'),
        ('""""""', False, ""),
        (' """a""" ', False, "a"),
        ('a """', False, 'a """'),
        ("\n a \n", False, " a "),
    ],
)
def test_fences(text: str, open_: bool, message: str) -> None:
    assert (unfinished(text), message_of(text)) == (open_, message)
