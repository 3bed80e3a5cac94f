"""Ctrl-C in a chat at a terminal: an answer stops, impatience ends nothing, twice in an empty line ends the chat."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from fake_chat import FakeClover

from pyclover.cli import chat_terminal
from pyclover.cli.chat_answer import ctrl_c_stops
from pyclover.cli.chat_conversation import Conversation, Settings
from pyclover.cli.chat_terminal import TerminalChat
from pyclover.cli.chat_view import AnswerView
from pyclover.cli.output import Output

pytestmark = pytest.mark.timeout(60)


class Editor:
    """Gives out lines; "^C" is a Ctrl-C in an empty one."""

    def __init__(self, *lines: str) -> None:
        self.lines = list(lines)

    def read(self) -> str:
        if not self.lines:
            raise EOFError
        line = self.lines.pop(0)
        if line == "^C":
            raise KeyboardInterrupt
        return line

    def typing_kept(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


def talked(monkeypatch: pytest.MonkeyPatch, *lines: str) -> tuple[int, Editor]:
    def stopped(self: FakeClover, *_: Any) -> Iterator[Any]:
        yield {"finish_reason": "cancelled"}

    monkeypatch.setattr(FakeClover, "_stop", stopped, raising=False)
    out, editor = Output("table", color=False), Editor(*lines)
    chat = Conversation(FakeClover(), Settings())  # type: ignore[arg-type]
    return TerminalChat(out, chat, editor, AnswerView(out), model="x").run(), editor  # type: ignore[arg-type]


def test_twice_in_an_empty_line_ends_the_chat(monkeypatch: pytest.MonkeyPatch) -> None:
    code, editor = talked(monkeypatch, "^C", "^C", "say never")
    assert (code, editor.lines) == (130, ["say never"])
    assert talked(monkeypatch, "^C", "say a", "^C")[0] == 0  # not in a row


def test_impatience_after_a_stopped_answer_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_terminal, "IMPATIENCE_S", 1e9)
    code, editor = talked(monkeypatch, "stop", "^C", "^C", "^C", "say a")
    assert (code, editor.lines) == (0, [])
    monkeypatch.setattr(chat_terminal, "IMPATIENCE_S", 0.0)
    assert talked(monkeypatch, "stop", "^C", "^C", "say a")[0] == 130


def test_ctrl_c_in_the_middle_of_what_another_one_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler of the first one that starts a thread would start two, and fail at that."""
    model = FakeClover()
    real = threading.Thread.__init__
    others = set(threading.enumerate())
    left = 3

    def made(self: threading.Thread, *args: Any, **more: Any) -> None:
        nonlocal left
        left -= 1
        if left > 0:
            signal.raise_signal(signal.SIGINT)
        real(self, *args, **more)

    with ctrl_c_stops(model):  # type: ignore[arg-type]
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "__init__", made)
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
        assert model._cancelled.wait(30)
    assert set(threading.enumerate()) <= others
