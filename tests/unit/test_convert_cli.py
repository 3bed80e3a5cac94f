"""The command line of `convert` with a scripted conversion: arguments, output, progress."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pyclover import checkpoint
from pyclover.checkpoint import Conversion
from pyclover.cli import convert as command
from pyclover.cli import main
from pyclover.cli.output import Output
from pyclover.files.convert_progress import ConvertProgress, Rate
from pyclover.files.facts import Capabilities, Capability

YES, NO = Capability(True), Capability(False, "no mask token")


class Scripted:
    """Stands in for pyclover.checkpoint.convert."""

    def __init__(self) -> None:
        self.calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        self.states: list[ConvertProgress] = []
        self.raises: BaseException | None = None

    def __call__(self, *args: Any, progress: Any, **options: Any) -> Conversion:
        self.calls.append((args, options))
        for state in self.states:
            if progress is not None:
                progress(state)
        if self.raises is not None:
            raise self.raises
        dry = options["dry_run"]
        return Conversion(
            source="src", path=Path("x.gguf"), outtype="bf16", plain=False, n_bytes=3 << 20, n_tensors=3,
            types={"BF16": 2, "F32": 1}, left_out=(), mask_token_id=None, block_length=32, written=not dry,
            resumed_bytes=0 if dry else 1 << 20, capabilities=None if dry else Capabilities(YES, NO, NO),
            warnings=("something odd",),
        )  # fmt: skip


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Scripted:
    stand_in = Scripted()
    monkeypatch.setattr(checkpoint, "convert", stand_in)
    return stand_in


def run(*args: str) -> Any:
    return CliRunner().invoke(main.cli, ["convert", *args])


def test_nothing_that_was_not_given_is_passed_on(scripted: Scripted) -> None:
    assert run("src").exit_code == 0
    (args, options), = scripted.calls  # fmt: skip
    assert args == ("src", None)
    assert "outtype" not in options
    assert {key for key, value in options.items() if value not in (None, False)} == {"resume", "keep_shards"}


def test_options(scripted: Scripted) -> None:
    run("a/b", "-o", "out", "--outtype", "Q8_0", "--plain", "--mask-token", "7", "--block-length", "8", "--force",
        "--no-resume", "--no-keep-shards", "--python", "py", "--revision", "r", "--cache-dir", "c", "--offline",
        "--chat-template", "t.jinja", "--dry-run")  # fmt: skip
    run("a/b", "--mask-token", "<|mask|>")
    args, options = scripted.calls[0]
    assert args == ("a/b", "out")
    assert options == {
        "outtype": "q8_0", "plain": True, "mask_token": 7, "block_length": 8, "overwrite": True, "resume": False,
        "keep_shards": False, "python": "py", "revision": "r", "cache_dir": "c", "offline": True,
        "chat_template": "t.jinja", "dry_run": True,
    }  # fmt: skip
    assert scripted.calls[1][1]["mask_token"] == "<|mask|>"


def test_the_path_is_the_data(scripted: Scripted) -> None:
    done = run("src")
    assert done.stdout == "x.gguf\n"
    assert done.stderr == (
        "warning: something odd\nsrc: 2 BF16, 1 F32; 3.0 MiB, 1.0 MiB of it by an earlier run; it can: plain.\n"
    )
    quiet = run("src", "-q")
    assert (quiet.stdout, quiet.stderr) == ("x.gguf\n", "")


def test_a_dry_run_shows_the_plan(scripted: Scripted) -> None:
    done = run("src", "--dry-run")
    assert "about 3.0 MiB" in done.stdout
    assert "none known" in done.stdout
    assert "Nothing was written" in done.stderr


def test_json(scripted: Scripted) -> None:
    done = run("src", "--json")
    report = json.loads(done.stdout)
    assert (report["path"], report["types"], report["written"]) == ("x.gguf", {"BF16": 2, "F32": 1}, True)
    assert report["capabilities"]["draft_self"] == {"available": False, "reason": "no mask token"}
    assert run("src", "--json", "-q").exit_code == 2


@pytest.mark.parametrize(("extra", "kept"), [((), True), (("--no-resume",), False)])
def test_ctrl_c(extra: tuple[str, ...], kept: bool, scripted: Scripted) -> None:
    scripted.raises = KeyboardInterrupt()
    done = run("src", *extra)
    assert (done.exit_code, done.stdout) == (130, "")
    assert ("the same command continues there" in done.stderr) == kept


STATES = [
    ConvertProgress("start", "src", 0, 0),
    ConvertProgress("download", "model-1.safetensors", 1 << 20, 4 << 20, bytes_per_s=float(1 << 20), left_s=3.0),
    ConvertProgress("verify", "model-1.safetensors", 4 << 20, 4 << 20),
    ConvertProgress("convert", "a", 1 << 20, 3 << 20, 1, 3, float(2 << 20), 1.0),
    ConvertProgress("convert", "b", 2 << 20, 3 << 20, 2, 3, float(2 << 20), 0.5),
]


def test_progress_in_a_log(scripted: Scripted) -> None:
    scripted.states = STATES
    assert run("src").stderr.splitlines()[:4] == [
        "starting the converter",
        "downloading model-1.safetensors: 1.0 MiB of 4.0 MiB, 1.0 MiB/s, 0:03 left",
        "checking model-1.safetensors: 4.0 MiB of 4.0 MiB",
        "converting tensor 2 of 3: 1.0 MiB of 3.0 MiB, 2.0 MiB/s, 0:01 left",
    ]


def test_a_long_conversion_says_so_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    lines = command.LogLines(Output(), clock=lambda: now[0])
    for _ in range(100):
        lines(STATES[3])
        now[0] += 3
    assert len(capsys.readouterr().err.splitlines()) == 5


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "60")
    now = [0.0]
    line = command.TerminalLine(clock=lambda: now[0])
    for state in (*STATES, STATES[4]):
        line(state)
        now[0] += 0.06
    shown = [part.split("\x1b[K")[0].partition("\x1b[?7l")[2] for part in screen.getvalue().split("\r")[1:]]
    assert all(len(text) < 60 for text in shown)
    assert shown[0] == "starting the converter"
    assert shown[-1].startswith("66 %")
    assert len(shown) == 5  # of what comes too fast the last one is not drawn


def test_the_rate_is_that_of_the_last_seconds() -> None:
    now = [0.0]
    rate = Rate(clock=lambda: now[0])
    rate.begin(1000)
    assert rate.add(1000) is None
    for i in range(1, 41):
        now[0] = float(i)
        found = rate.add(1000 + 100 * min(i, 20) + 10 * max(i - 20, 0))
    assert found == pytest.approx(10)
