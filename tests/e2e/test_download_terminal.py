"""`clover-run download` as one sees it in a terminal; the hub is on 127.0.0.1 and slow."""

from __future__ import annotations

import os
import random
import re
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

if os.name != "posix":
    pytest.skip("terminals as POSIX has them", allow_module_level=True)

from fake_hub import FakeHub, fake_hub
from pty_program import PtyProgram, in_terminal

pytestmark = pytest.mark.timeout(300)

REPO = "owner/Clover-35B-A3B-Preview-GGUF"
NAME = "Clover-35B-A3B-Preview-Q4_K_M-00001-of-00001.gguf"  # as long as names get
DATA = random.Random(7).randbytes(40 << 16)
WIDE = re.compile(r"downloading Clove…\d+\.gguf  [\d.]+ \w+ of 2\.5 MiB  \d+ %  [\d.]+ KiB/s  0:\d\d left")
NARROW = re.compile(r"\d+ %  [\d.]+ KiB/s  0:\d\d left")


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with fake_hub() as running:
        running.add(REPO, {NAME: DATA})
        running.pace_s = 0.1  # 4 seconds for all
        yield running


@pytest.fixture
def env(tmp_path: Path, hub: FakeHub) -> dict[str, str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "PYCLOVER_"))}
    return env | {
        "PYCLOVER_CACHE": str(tmp_path / "cache"), "PYCLOVER_CONFIG": str(tmp_path), "HF_HOME": str(tmp_path / "hf"),
        "HF_ENDPOINT": hub.url, "PYTHONUTF8": "1", "TERM": "xterm", "NO_COLOR": "1",
    }  # fmt: skip


def argv() -> list[str]:
    found = shutil.which("clover-run", path=str(Path(sys.executable).parent))
    return [*([found] if found else [sys.executable, "-m", "pyclover.cli.main"]), "download", REPO]


def wait_for(program: PtyProgram, shown: re.Pattern[str]) -> None:
    """Until the last line of the terminal is this, from edge to edge."""
    assert program.terminal is not None
    end = time.monotonic() + 120
    while not (program.terminal.text() and shown.fullmatch(program.terminal.text()[-1])):
        assert time.monotonic() < end, program.terminal.text()
        assert program.process.poll() is None, program.terminal.text()
        program._read(1.0)


def test_a_line_that_can_be_read_at_every_width(env: dict[str, str], hub: FakeHub, tmp_path: Path) -> None:
    with in_terminal(argv(), env=env, cwd=tmp_path, width=80) as program:
        terminal = program.watch(80, 24)
        wait_for(program, WIDE)
        assert len(terminal.text()) <= 2  # the line, and the one that watch() begins with
        program.resize(40, 24)
        wait_for(program, NARROW)
        program.resize(80, 24)
        wait_for(program, WIDE)
        assert program.finish() == 0
    (path,) = (tmp_path / "cache").rglob("*.gguf")
    assert path.read_bytes() == DATA
    result = "".join(terminal.text())
    assert result.endswith(f"downloaded and checked{path}")
    assert f"{REPO}:Q4_K_M at " in result
    assert "left" not in terminal.text()[-1]


def test_ctrl_c(env: dict[str, str], hub: FakeHub, tmp_path: Path) -> None:
    with in_terminal(argv(), env=env, cwd=tmp_path, width=40) as program:
        terminal = program.watch(40, 24)
        wait_for(program, NARROW)
        program.type("\x03")
        assert program.finish() == 130
        assert "".join(terminal.text()) == (
            "warning: stopped: what has come is kept, and the same command continues there"
        )
        assert program.echoes()
    assert not list((tmp_path / "cache").rglob("*.gguf"))
    (part,) = (tmp_path / "cache").rglob("*.part")
    n_kept = part.stat().st_size
    assert 0 < n_kept < len(DATA)
    hub.pace_s = 0.0
    hub.requests.clear()
    with in_terminal(argv(), env=env, cwd=tmp_path) as program:
        assert program.finish() == 0
    assert [r.range for r in hub.content_requests()] == [f"bytes={n_kept}-{len(DATA) - 1}"]


def test_a_terminal_that_cannot_draw_gets_lines(env: dict[str, str], hub: FakeHub, tmp_path: Path) -> None:
    hub.pace_s = 0.0
    with in_terminal(argv(), env={**env, "TERM": "dumb"}, cwd=tmp_path) as program:
        assert program.finish() == 0
    assert f"downloading {NAME}: 0 B of 2.5 MiB\n" in program.seen
    assert "\x1b" not in program.seen
    assert "\r" not in program.seen
