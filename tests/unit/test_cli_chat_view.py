"""What an answer looks like: exact text on both streams of a terminal, and the order in which it comes."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator

import pytest
from fake_chat import ChatPiece, FakeClover
from hypothesis import given
from hypothesis import strategies as st
from terminal import Terminal

from pyclover.cli import block_view
from pyclover.cli.chat_view import AnswerView, for_terminal
from pyclover.cli.output import Output


class Stream(io.StringIO):
    """One stream of a terminal that shows both."""

    def __init__(self, terminal: Terminal, *, is_terminal: bool = True) -> None:
        super().__init__()
        self.terminal, self.is_terminal = terminal, is_terminal

    def isatty(self) -> bool:
        return self.is_terminal

    def write(self, text: str) -> int:
        if self.is_terminal:
            self.terminal.feed(text)
        return super().write(text)


def on_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Standard output and error on one terminal; called within the test, as pytest sets its own streams before it."""
    made = Terminal(20, 10)
    monkeypatch.setattr(sys, "stdout", Stream(made))
    monkeypatch.setattr(sys, "stderr", Stream(made))
    monkeypatch.setattr(block_view, "terminal_size", lambda: (made.width, made.height))
    monkeypatch.delenv("NO_COLOR", raising=False)
    return made


def written(stream: object) -> str:
    assert isinstance(stream, Stream)
    return stream.getvalue()


def pieces(question: str) -> Iterator[ChatPiece]:
    return FakeClover().chat_stream([{"role": "user", "content": question}])


def show(view: AnswerView, question: str) -> None:
    for piece in pieces(question):
        view.show(piece)  # type: ignore[arg-type]
    view.end()


def test_thoughts_are_dim_and_on_standard_error(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)
    show(AnswerView(Output()), "think")
    assert written(sys.stdout) == "the answer\n"
    # no blank line before it, none behind it, those within it as they are
    assert written(sys.stderr) == "\x1b[2mfirst second\nthird\x1b[0m\n"
    assert terminal.text() == ["first second", "third", "the answer"]
    styles = {style for row in terminal.document() for _, _, style in row[:1]}
    assert styles == {";2", ""}


def test_without_colours_thoughts_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    on_terminal(monkeypatch)
    show(AnswerView(Output(color=False)), "think")
    assert written(sys.stderr) == "thinking: first second\nthird\n"


def test_thoughts_can_be_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)
    show(AnswerView(Output(), hide_thinking=True), "think")
    assert terminal.text() == ["thinking ...", "the answer"]
    assert written(sys.stdout) == "the answer\n"


def test_a_thought_without_an_answer_ends_its_line_and_its_style(monkeypatch: pytest.MonkeyPatch) -> None:
    on_terminal(monkeypatch)
    view = AnswerView(Output())
    view.show(ChatPiece(reasoning="so"))  # type: ignore[arg-type]
    view.end()
    assert (written(sys.stdout), written(sys.stderr)) == ("", "\x1b[2mso\x1b[0m\n")


def test_blank_thoughts_show_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    on_terminal(monkeypatch)
    view = AnswerView(Output())
    for piece in (ChatPiece(reasoning="\n"), ChatPiece(reasoning="\n\n"), ChatPiece("x")):
        view.show(piece)  # type: ignore[arg-type]
    view.end()
    assert (written(sys.stdout), written(sys.stderr)) == ("x\n", "")


def test_accepted_drafts_are_green_only_when_wished(monkeypatch: pytest.MonkeyPatch) -> None:
    on_terminal(monkeypatch)
    view = AnswerView(Output())
    show(view, "draft")
    assert written(sys.stdout) == "one two three four\n"
    view.color_drafts = True
    show(view, "draft")
    assert written(sys.stdout).splitlines()[1] == "one\x1b[32m two three\x1b[0m four"


def test_a_stopped_answer_leaves_no_style(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)
    view = AnswerView(Output(), color_drafts=True)
    view.show(ChatPiece("one", drafted=True))  # type: ignore[arg-type]
    view.end()
    assert written(sys.stdout) == "\x1b[32mone\x1b[0m\n"
    assert terminal.style == ""


def test_an_answer_that_ends_its_line_gets_no_second_end(monkeypatch: pytest.MonkeyPatch) -> None:
    on_terminal(monkeypatch)
    view = AnswerView(Output())
    view.show(ChatPiece("x\n"))  # type: ignore[arg-type]
    view.end()
    view.show(ChatPiece("y"))  # type: ignore[arg-type]
    view.end()
    assert written(sys.stdout) == "x\ny\n"


def test_numbers_are_one_dim_line_with_the_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    on_terminal(monkeypatch)
    view = AnswerView(Output())
    (reply,) = [piece.reply for piece in pieces("draft") if piece.reply]
    view.numbers(reply)  # type: ignore[arg-type]
    assert written(sys.stderr) == (
        "\x1b[2mdraft-self (lossless): prompt 12 tokens, 120.0 tok/s; generated 4 tokens, 8.0 tok/s; accepted 3 of 4 "
        "drafted tokens in 2 rounds\x1b[0m\n"
    )


def test_a_terminal_gets_no_control_characters_and_a_file_gets_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = on_terminal(monkeypatch)
    show(AnswerView(Output()), "control")
    assert written(sys.stdout) == "a\\x1b[31mb\\x07c\nd\te\u0301\u200d\n"
    monkeypatch.setattr(sys, "stdout", Stream(terminal, is_terminal=False))
    show(AnswerView(Output()), "control")
    assert written(sys.stdout) == "a\x1b[31mb\x07c\r\nd\te\u0301\u200d\n"


@given(st.text())
def test_what_is_shown_cannot_steer_and_loses_nothing_else(text: str) -> None:
    shown = for_terminal(text)
    assert not any((char < " " and char not in "\n\t") or "\x7f" <= char <= "\x9f" for char in shown)
    assert [c for c in shown if ord(c) > 0xFF] == [c for c in text if ord(c) > 0xFF]


@pytest.mark.parametrize("before", ["", "think"])
def test_blocks_are_shown_below_and_leave_no_trace(monkeypatch: pytest.MonkeyPatch, before: str) -> None:
    terminal = on_terminal(monkeypatch)
    view = AnswerView(Output(), tokens_shown=chr)
    if before:
        for piece in pieces(before):
            view.show(piece)  # type: ignore[arg-type]
    seen = []
    for piece in pieces("block"):
        view.show(piece)  # type: ignore[arg-type]
        seen.append((terminal.text() or [""])[-1])
    assert seen[:2] == ["░b░", "ab░"]
    view.end()
    answered = ["first second", "third", "the answerabc"] if before else ["abc"]
    assert terminal.text() == answered
    assert (terminal.column, terminal.style) == (0, "")
