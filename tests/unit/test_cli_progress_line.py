"""The line that shows a download on a terminal: what it says at which width, and what is left of it."""

from __future__ import annotations

import io
import sys
from typing import Any

import pytest
from rich.cells import cell_len
from terminal import Terminal

from pyclover.cli import progress_line
from pyclover.cli.progress_line import ProgressLine, cut, duration, line
from pyclover.hub.progress import DownloadProgress

NAME = "Clover-35B-A3B-Preview-Q4_K_M-00001-of-00002.gguf"
GIB = 1 << 30


def state(**changes: Any) -> DownloadProgress:
    values: dict[str, Any] = {
        "phase": "download", "file": NAME, "done_bytes": 8 * GIB, "total_bytes": 22 * GIB,
        "bytes_per_s": 12.5 * 2**20, "left_s": 1147.0, **changes,
    }  # fmt: skip
    return DownloadProgress(**values)


@pytest.mark.parametrize(
    ("room", "shown"),
    [
        (79, "downloading Clove…00002.gguf  8.0 GiB of 22.0 GiB  36 %  12.5 MiB/s  19:07 left"),
        (60, "downloading Clover…-00002.gguf  36 %  12.5 MiB/s  19:07 left"),
        (39, "36 %  12.5 MiB/s  19:07 left"),
        (28, "36 %  12.5 MiB/s  19:07 left"),
        (27, "36 %  19:07 left"),
        (15, "36 %"),
        (3, ""),
        (0, ""),
        (-1, ""),
    ],
)
def test_what_matters_most_stays(room: int, shown: str) -> None:
    assert line(state(), room) == shown


def test_a_wide_terminal_gets_a_bar() -> None:
    shown = line(state(file="C-Q4_K_M.gguf"), 100)
    assert shown.startswith("downloading C-Q4_K_M.gguf  ━━━")
    bar = shown.split("  ")[1]
    assert (bar.count("━") * 22 // len(bar), set(bar)) == (7, {"━", "─"})  # 8 of 22, cut to whole cells
    assert len(line(state(file="C-Q4_K_M.gguf"), 1000)) <= 120


@pytest.mark.parametrize("file", [NAME, "m.gguf", "日本語" * 12 + ".gguf", "a\x1b[2Jb.gguf"])
@pytest.mark.parametrize("known", [{}, {"bytes_per_s": None, "left_s": None}, {"bytes_per_s": 1e15, "left_s": 1e9}])
def test_it_never_fills_the_line(file: str, known: dict[str, Any]) -> None:
    for phase in ("wait", "download", "verify"):
        for room in range(130):
            shown = line(state(phase=phase, file=file, **known), room)
            assert cell_len(shown) <= room
            assert shown.isprintable()


def test_parts_that_are_not_known_are_left_out() -> None:
    text = line(state(file="m.gguf", bytes_per_s=None, left_s=None), 60)
    assert text.endswith("8.0 GiB of 22.0 GiB  36 %")
    assert line(state(phase="wait", file="Q4_K_M-0123"), 60) == "waiting for another download of Q4_K_M-0123"


@pytest.mark.parametrize(("done", "total", "percent"), [(0, 0, 100), (999, 1000, 99), (1000, 1000, 100), (0, 5, 0)])
def test_100_percent_is_all(done: int, total: int, percent: int) -> None:
    assert progress_line.percent(state(done_bytes=done, total_bytes=total)) == percent


@pytest.mark.parametrize(
    ("text", "room", "shown"),
    [("abc", 3, "abc"), ("abcdef", 5, "a…def"), ("abcdefghi", 7, "ab…fghi"), ("abcdef", 2, ""),
     ("日本語日本語", 7, "日…本語"), ("日本語日本語", 6, "日…語")],
)  # fmt: skip
def test_cut_leaves_out_the_middle(text: str, room: int, shown: str) -> None:
    assert cut(text, room) == shown


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (59.6, "1:00"), (1147, "19:07"), (36000, "10:00:00")])
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


class Screen(io.StringIO):
    """Standard error that is a terminal of some size."""

    def __init__(self, width: int, encoding: str = "utf-8") -> None:
        super().__init__()
        self.terminal = Terminal(width, 5)
        self.coded = encoding

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self.coded

    def write(self, text: str) -> int:
        text.encode(self.coded)
        self.terminal.feed(text)
        return len(text)


@pytest.mark.parametrize("disputed", [0, 1])  # some terminals take "━" and "…" for two cells
@pytest.mark.parametrize("width", [110, 80, 40, 12, 1])
def test_one_line_that_goes_away(width: int, disputed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen(width)
    screen.terminal.disputed = disputed
    screen.terminal.feed("$ clover-run\n")
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(progress_line, "terminal_width", lambda: screen.terminal.width)
    before = screen.terminal.state()
    now = iter(range(1000))
    view = ProgressLine(clock=lambda: float(next(now)))
    for done in range(23):
        view(state(done_bytes=done * GIB))
        assert len(screen.terminal.scrollback) + screen.terminal.row == before[1]
    if not disputed and width > 6:
        assert screen.terminal.text()[-1] == line(state(done_bytes=22 * GIB), width - 1)
    view.clear()
    assert screen.terminal.state() == before


@pytest.mark.parametrize("wraps_anew", [True, False])
def test_a_narrower_window_leaves_earlier_lines_alone(wraps_anew: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen(80)
    screen.terminal.wraps_anew = wraps_anew
    screen.terminal.feed("one\ntwo\n")
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(progress_line, "terminal_width", lambda: screen.terminal.width)
    now = iter(range(1000))
    view = ProgressLine(clock=lambda: float(next(now)))
    view(state())
    screen.terminal.resize(40, 5)
    view(state(done_bytes=9 * GIB))
    assert screen.terminal.text()[:2] == ["one", "two"]
    assert screen.terminal.text()[-1] == "40 %  12.5 MiB/s  19:07 left"
    view.clear()
    assert screen.terminal.text()[:2] == ["one", "two"]


def test_a_terminal_without_the_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen(80, "latin-1")
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(progress_line, "terminal_width", lambda: 100)
    screen.terminal.resize(100, 5)
    ProgressLine()(state(file="日-Q8_0.gguf"))
    (shown,) = screen.terminal.text()
    assert shown.startswith("downloading ?-Q8_0.gguf  ###")
    assert "-" in shown.split("  ")[1]


def test_not_more_often_than_one_can_read(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen(80)
    drawn: list[str] = []
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(progress_line, "_write", drawn.append)
    now = iter([0.0, 0.05, 0.09, 0.11, 0.12, 0.13])
    view = ProgressLine(clock=lambda: next(now))
    for done in (1, 2, 3, 4):
        view(state(done_bytes=done * GIB))
    assert len(drawn) == 2
    view(state(phase="verify", done_bytes=0))  # another phase, and the end, are shown at once
    view(state(phase="verify", done_bytes=22 * GIB))
    assert len(drawn) == 4
