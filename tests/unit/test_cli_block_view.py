"""The live view of block diffusion leaves the terminal as it would be without: on a terminal made of cells."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from terminal import Terminal

from pyclover.cli import block_view
from pyclover.cli.block_view import terminal_size
from pyclover.cli.generate import write_text
from pyclover.cli.output import Output

VIEW_CHARS = set("░◌0123456789")


class Screen(io.StringIO):
    """Standard output on a terminal."""

    def __init__(self, terminal: Terminal) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.terminal.feed(text)
        return len(text)


@contextlib.contextmanager
def output_on(terminal: Terminal) -> Iterator[Output]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", Screen(terminal))
        patch.setattr(block_view, "terminal_size", lambda: (terminal.width, terminal.height))
        yield Output()


def view_row(terminal: Terminal) -> str:
    """What stands in the row below the cursor."""
    cells = terminal.rows[terminal.row + 1].cells
    return "".join(" " if cell is None else cell.text for cell in cells if cell is None or cell.text != "right half")


# ---- the faults that were seen


@pytest.mark.parametrize("wraps_kept", [False, True])
def test_a_line_filled_exactly_keeps_its_last_character(wraps_kept: bool) -> None:
    terminal = Terminal(16, 5, saves_wrap=wraps_kept)
    with output_on(terminal) as out:
        view = out.block_view()
        assert view is not None
        out.write("Hello! How can I")
        view.show([None, None, "7"])
        assert (terminal.text(), view_row(terminal).rstrip()) == (["Hello! How can I", "░░7"], "░░7")
        view.show([" 6", "5", "7"])
        view.clear()
        out.write(" help you?")
        out.end_line()
    assert terminal.text() == ["Hello! How can I", " help you?"]
    assert (terminal.row, terminal.column) == (2, 0)


def test_wide_characters_are_counted_in_cells_at_the_bottom_of_the_screen() -> None:
    terminal = Terminal(20, 3)
    with output_on(terminal) as out:
        view = out.block_view()
        assert view is not None
        out.write("a\nb\nc")
        for _ in range(3):
            view.show(["日本語"] * 20)
            # 19 columns may be used: nine characters of two cells
            assert terminal.text() == ["a", "b", "c", "日本語日本語日本語"]
            assert (len(terminal.scrollback), terminal.row, terminal.column) == (1, 1, 1)
        view.clear()
        out.write("d")
    assert terminal.text() == ["a", "b", "cd"]


def test_a_wide_character_at_the_end_of_a_full_line() -> None:
    terminal = Terminal(6, 4)
    with output_on(terminal) as out:
        view = out.block_view()
        assert view is not None
        out.write("日本語")
        view.show(["1"])
        view.clear()
        out.write("\u0301x\n")
    assert terminal.text() == ["日本語\u0301", "x"]


@pytest.mark.parametrize("marks_last", [False, True])
def test_a_mark_joins_the_text_and_not_the_view(marks_last: bool) -> None:
    terminal = Terminal(20, 4, marks_last=marks_last)
    with output_on(terminal) as out:
        view = out.block_view()
        assert view is not None
        out.write("cafe")
        view.show(["\u0301", "1"])
        assert terminal.text() == ["cafe", "◌\u03011"]
        view.clear()
        out.write("\u0301s")
    assert terminal.text() == ["cafe\u0301s"]


def test_colours_come_back() -> None:
    terminal = Terminal(4, 4)
    with output_on(terminal) as out:
        view = out.block_view()
        assert view is not None
        out.write("\x1b[33mabcd\x1b[0m\x1b[44m")
        view.show([None])
        view.clear()
        out.write("e")
    assert terminal.document() == [
        [(0, "a", ";33"), (1, "b", ";33"), (2, "c", ";33"), (3, "d", ";33")],
        [(0, "e", ";44")],
    ]


def test_controls_in_a_block_are_shown_not_obeyed() -> None:
    terminal = Terminal(40, 4)
    with output_on(terminal) as out:
        view = out.block_view()
        assert view is not None
        out.write("a")
        view.show(["1\n", "\x1b[2J", "\t"])
        assert terminal.text() == ["a", "1\\n\\x1b[2J\\t"]


@pytest.mark.parametrize("before", ["a\x1b[", "a\x1b[H", "a\x1b7", "ab\rc", "a\bc", "क\u093f", "\x9b2Ja", "\U0001f1e9"])
def test_no_view_where_the_end_of_the_text_is_not_known(before: str) -> None:
    written = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(written, "isatty", lambda: True)
        patch.setattr(sys, "stdout", written)
        patch.setattr(block_view, "terminal_size", lambda: (40, 10))
        out = Output()
        view = out.block_view()
        assert view is not None
        out.write(before)
        view.show([None])
        view.clear()
    assert written.getvalue() == before


@pytest.mark.parametrize("before", ["a\r\n", "ab\rc\n", "क\u093f\n", "क\u093fa", "a\tb", "\x1b[1mb\x1b[m", "a\a"])
def test_the_view_is_back_where_the_end_of_the_text_is_known(before: str) -> None:
    terminal = Terminal(40, 4)
    with output_on(terminal) as out:
        view = out.block_view()
        assert view is not None
        out.write(before)
        view.show(["1"])
        assert view_row(terminal).rstrip() == "1"


@pytest.mark.parametrize("keeps_wrap", [False, True])
def test_no_view_after_a_tab_behind_a_full_line(keeps_wrap: bool) -> None:
    terminal = Terminal(8, 4, saves_wrap=keeps_wrap)
    with output_on(terminal) as out:
        view = out.block_view()
        assert view is not None
        out.write("abcdefgh\t")
        view.show(["1"])
        assert (terminal.text(), terminal.pending) == (["abcdefgh"], keeps_wrap)


def test_no_view_after_blanks_that_a_resize_may_have_lost() -> None:
    terminal = Terminal(20, 4)
    with output_on(terminal) as out:
        view = out.block_view()
        assert view is not None
        out.write("a\t")
        terminal.resize(6, 4)
        out.write("bc")
        view.show(["1"])
        assert not VIEW_CHARS.intersection("".join(terminal.text()))
        out.write("\nc")
        view.show(["1"])
        assert view_row(terminal).rstrip() == "1"


@pytest.mark.parametrize(("width", "height"), [(1, 10), (10, 1), (0, 0)])
def test_no_view_without_room(width: int, height: int) -> None:
    terminal = Terminal(max(width, 1), max(height, 1))
    with output_on(terminal) as out, pytest.MonkeyPatch.context() as patch:
        patch.setattr(block_view, "terminal_size", lambda: (width, height))
        view = out.block_view()
        assert view is not None
        out.write("a")
        view.show([None])
        assert terminal.text() == ["a"]


def test_enter_pressed_while_a_block_is_shown() -> None:
    terminal = Terminal(20, 3)
    with output_on(terminal) as out:
        view = out.block_view()
        assert view is not None
        for text in ("", "a"):
            out.write(text)
            view.show(["1"] * 5)
            terminal.feed("\n")  # what the driver of the terminal makes of it
            view.show(["2"] * 5)
            assert [line for line in terminal.text() if line.strip("a")] == ["22222"]
            terminal.feed("\n")
            view.clear()
        out.write("b")
    assert terminal.text() == ["", "", "a", "", "b"]


def test_the_text_begins_where_another_program_ended() -> None:
    """Nobody says in which column: right where no line is filled exactly, and after the first line in any case."""
    screens = []
    for view in (False, True):
        terminal = Terminal(8, 3)
        terminal.feed("$$$")
        with output_on(terminal) as out:
            shown = out.block_view()
            assert shown is not None
            for text in ("ab", "cdef", "gh\n", "12345678", "9\n"):
                out.write(text)
                if view:
                    shown.show([None])
                    shown.clear()
        screens.append(terminal.state())
    assert screens[1] == screens[0]


def test_the_view_is_only_for_terminals_and_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert Output().block_view() is None
    with output_on(Terminal(20, 5)):
        assert Output("quiet").block_view() is None
        assert Output("json").block_view() is None


@pytest.mark.skipif(os.name != "posix", reason="a pseudo-terminal")
def test_the_terminal_is_asked_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl
    import struct
    import termios

    ours, theirs = os.openpty()
    monkeypatch.setenv("COLUMNS", "33")
    monkeypatch.setenv("LINES", "7")
    with open(theirs, "w") as stream, open(ours, "rb"):
        monkeypatch.setattr(sys, "stdout", stream)
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 81, 0, 0))
        assert terminal_size() == (81, 24)
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 0, 0, 0, 0))
        assert terminal_size() == (33, 7)
        monkeypatch.delenv("COLUMNS")
        monkeypatch.delenv("LINES")
        assert 0 in terminal_size()


# ---- the command


@dataclass
class Piece:
    text: str
    block: tuple[int | None, ...] | None = None
    stats: None = None


class Model:
    def __init__(self, pieces: Sequence[Piece]) -> None:
        self.pieces = pieces

    def stream(self, prompt: str) -> Iterator[Piece]:
        yield from self.pieces

    def detokenize(self, tokens: Sequence[int]) -> str:
        return str(tokens[0])

    def cancel(self) -> None: ...


@pytest.mark.parametrize("width", [1, 2, 3, 5, 8, 16, 80])
def test_the_command_leaves_the_same_with_and_without_the_view(width: int) -> None:
    texts = ["Hello! How", " can", " I", "", " help you?\n", "日本", "語", "\ttab\r\n", "12345678", "end"]
    pieces: list[Piece] = []
    for text in texts:
        pieces += [Piece("", (None, None, None)), Piece("", (None, 7, None)), Piece(text)]
    screens = []
    for show_blocks in (False, True):
        terminal = Terminal(width, 4)
        with output_on(terminal) as out:
            out.write(out.styled("The prompt, ", fg="yellow"))
            model: Any = Model(pieces)
            write_text(out, model, "The prompt, ", {}, show_blocks=show_blocks)
        screens.append(terminal.state())
    assert screens[0] == screens[1]


# ---- any text on any terminal

BASES = st.sampled_from([*"abc x.", "日", "本", "é", "😀", "क"])
CONTROLS = ["\n", "\r\n", "\t", "\a", "\r", "\b", "\x1b[33m", "\x1b[1;44m", "\x1b[0m", "\x1b[m"]
SURE = st.one_of(
    BASES,
    st.sampled_from([*CONTROLS, "abcdefgh", "日本"]),
    st.builds("".join, st.tuples(BASES, st.text("\u0301\u0323", max_size=2))),
)
DISPUTED = st.one_of(
    st.builds("".join, st.tuples(BASES, st.text("\u0301\u093f\u200d\ufe0f", max_size=2))),
    st.sampled_from(["😀\u200d😀", "😀🏽", "a\u200bb", "🇩", "🇩🇩"]),
)
VIEW_ROWS = st.lists(
    st.one_of(st.none(), st.sampled_from(["1", "23", "\n", "4\u03015", "\u0301", "日", "6 7", "\u200d"])), max_size=40
)
SHOW = VIEW_ROWS.map(lambda rows: ("show", rows))
CLEAR = st.just(("clear", None))
RESIZE = st.tuples(st.integers(2, 40), st.integers(2, 10)).map(lambda size: ("resize", size))


@st.composite
def programs(draw: st.DrawFn, clusters: st.SearchStrategy[str], resizes: bool) -> list[tuple[str, Any]]:
    """Texts written, blocks shown and taken away, between any two characters."""
    text = "".join(draw(st.lists(clusters, max_size=40)))
    step = st.one_of(SHOW, SHOW, CLEAR, RESIZE) if resizes else st.one_of(SHOW, SHOW, SHOW, CLEAR)
    steps = sorted(draw(st.lists(st.tuples(st.integers(0, len(text)), step), max_size=25)), key=lambda item: item[0])
    program: list[tuple[str, Any]] = []
    done = 0
    for at, what in steps:
        program += [("write", text[done:at]), what]
        done = at
    return [*program, ("write", text[done:])]


@st.composite
def terminals(draw: st.DrawFn, **fixed: Any) -> dict[str, Any]:
    flags = {name: st.booleans() for name in ("wraps_anew", "saves_wrap", "marks_last", "joins")}
    sizes = {"width": st.integers(1, 100) | st.integers(2, 12), "height": st.integers(2, 10)}
    return {**draw(st.fixed_dictionaries({**flags, **sizes, "disputed": st.integers(0, 1)})), **fixed}


def run(program: Sequence[tuple[str, Any]], model: dict[str, Any], place: tuple[int, int], *, view: bool) -> Terminal:
    terminal = Terminal(**model)
    row, column = min(place[0], terminal.height - 1), min(place[1], terminal.width - 1)
    terminal.feed("$\n" * row)
    with output_on(terminal) as out:
        out.write("$" * column)  # the prompt
        shown = out.block_view()
        assert shown is not None
        for action, value in program:
            if action == "write":
                out.write(value)
            elif action == "resize":
                terminal.resize(*value)
            elif view and action == "show":
                shown.show(value)
            elif view:
                shown.clear()
        if view:
            shown.clear()
    return terminal


PLACES = st.tuples(st.integers(0, 9), st.just(0) | st.integers(0, 99))
SLOW = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@settings(SLOW, max_examples=400)
@given(programs(SURE | DISPUTED, resizes=False), terminals(), PLACES)
def test_the_terminal_is_left_as_without_a_view(
    program: list[tuple[str, Any]], model: dict[str, Any], place: tuple[int, int]
) -> None:
    without, with_view = (run(program, model, place, view=view) for view in (False, True))
    note(f"{without.text()} {with_view.text()}")
    assert with_view.state() == without.state()


# A carriage return or a backspace leaves text behind the cursor; a narrower window puts it below, where a view clears.
@settings(SLOW, max_examples=300)
@given(
    programs(SURE.filter(lambda text: not set("\r\b") & set(text)), resizes=True), terminals(wraps_anew=True), PLACES
)
def test_a_terminal_that_wraps_anew_is_resized(
    program: list[tuple[str, Any]], model: dict[str, Any], place: tuple[int, int]
) -> None:
    without, with_view = (run(program, model, place, view=view) for view in (False, True))
    note(f"{without.text()} {with_view.text()}")
    assert with_view.state() == without.state()


@settings(SLOW, max_examples=200)
@given(programs(SURE | DISPUTED, resizes=True), terminals(), PLACES)
def test_nothing_of_the_view_remains_whatever_is_resized(
    program: list[tuple[str, Any]], model: dict[str, Any], place: tuple[int, int]
) -> None:
    terminal = run(program, model, place, view=True)
    assert not VIEW_CHARS.intersection("".join(terminal.text()))
    assert terminal.autowrap


# ---- the terminal of these tests, by what is documented of the VT100 family


def test_the_terminal_wraps_late_and_forgets_it() -> None:
    terminal = Terminal(3, 2)
    terminal.feed("abc")
    assert (terminal.row, terminal.column, terminal.pending) == (0, 2, True)
    terminal.feed("d")
    assert (terminal.text(), terminal.row, terminal.column) == (["abc", "d"], 1, 1)
    for moved in ("\x1bD\x1b[A", "\x1b7\x1b8", "\x1b[3G", "\x1b[A"):
        terminal = Terminal(3, 2)
        terminal.feed("abc" + moved + "d")
        assert terminal.text() == ["abd"]


def test_the_terminal_scrolls_erases_and_knows_halves() -> None:
    terminal = Terminal(4, 2)
    terminal.feed("日本x\nyz\x1bD\x1b[A")
    assert terminal.text() == ["日本", "x", "yz"]
    assert (len(terminal.scrollback), terminal.row, terminal.column) == (2, 0, 2)
    terminal.feed("\b\x1b[K\x1b[?7l語語語\x1b[?7h")
    assert terminal.text()[-1] == "y 語"
    terminal = Terminal(4, 2)
    terminal.feed("ab日\x1b[4Gc")
    assert terminal.text() == ["ab c"]
    terminal.feed("\r\n12\x1b[A\x1b[J")
    assert terminal.text() == ["ab"]


def test_the_terminal_wraps_anew() -> None:
    terminal = Terminal(5, 4)
    terminal.feed("abcd日efg\nh")
    assert terminal.text() == ["abcd", "日efg", "h"]
    terminal.resize(9, 4)
    assert (terminal.text(), terminal.row, terminal.column) == (["abcd日efg", "h"], 1, 1)
    terminal.resize(4, 2)
    assert (terminal.text(), len(terminal.scrollback)) == (["abcd", "日ef", "g", "h"], 2)
    cut = Terminal(5, 2, wraps_anew=False)
    cut.feed("abc日")
    cut.resize(4, 2)
    assert (cut.text(), cut.column) == (["abc"], 3)
