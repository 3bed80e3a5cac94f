"""Where commands write, and how the program starts: streams, colours, JSON, tables, light imports, broken pipes."""

from __future__ import annotations

import io
import json
import math
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner

from pyclover import errors
from pyclover.cli import main, options
from pyclover.cli.output import Output, printable, size, speed

ROOT = Path(__file__).parents[2]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Both streams on one screen; called in the test itself, as pytest sets the streams between fixture and test."""
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    return screen


def test_data_is_written_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    out = Output()
    out.write("\x1b[31mred\x1b[0m\ttab")
    out.end_line()
    out.end_line()
    assert capsys.readouterr() == ("\x1b[31mred\x1b[0m\ttab\n", "")


def test_talk_belongs_to_the_table_mode(capsys: pytest.CaptureFixture[str]) -> None:
    for mode in ("table", "json", "quiet"):
        out = Output(mode)
        out.talk(f"talk {mode}")
        out.warn(f"warn {mode}")
    assert capsys.readouterr() == ("", "talk table\nwarning: warn table\nwarning: warn json\n")


def test_json_has_no_nan_and_is_ascii(capsys: pytest.CaptureFixture[str]) -> None:
    @dataclass
    class Fact:
        name: str
        features: frozenset[str]

    Output("json").json(
        {"a": math.nan, "b": [math.inf, 1.5], "c": Fact("é", frozenset("zyx")), "d": Path("x"), 1: (2,)}
    )
    printed = capsys.readouterr().out
    assert printed == (
        '{"a": null, "b": [null, 1.5], "c": {"name": "\\u00e9", "features": ["x", "y", "z"]}, "d": "x", "1": [2]}\n'
    )


def test_tables_are_plain_text_when_piped(capsys: pytest.CaptureFixture[str]) -> None:
    Output().table(("name", "bytes", "note"), [("a [red]b", 1, "x" * 200), ("ü\x1b[2J", 1024, "")])
    lines = capsys.readouterr().out.split("\n")
    assert lines == [
        "name      bytes  note",
        "a [red]b      1  " + "x" * 200,
        "ü\\x1b[2J   1024",
        "",
    ]


def test_pairs(capsys: pytest.CaptureFixture[str]) -> None:
    Output().pairs({"architecture": "clover_moe", "layers": 40})
    assert capsys.readouterr().out == "architecture  clover_moe\nlayers        40\n"


def test_a_terminal_gets_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = terminal(monkeypatch)
    Output().warn("w")
    Output().heading("h")
    assert screen.getvalue() == "\x1b[33mwarning:\x1b[0m w\n\x1b[1mh\x1b[0m\n"


@pytest.mark.parametrize(("no_color", "flag"), [("1", None), ("", False)])
def test_no_colours_when_asked(monkeypatch: pytest.MonkeyPatch, no_color: str, flag: bool | None) -> None:
    screen = terminal(monkeypatch)
    monkeypatch.setenv("NO_COLOR", no_color)
    out = Output(color=flag)
    out.warn("w")
    out.heading("h")
    out.table(("a",), [("b",)])
    assert screen.getvalue() == "warning: w\nh\na\nb\n"


def test_progress_is_for_terminals_only(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = terminal(monkeypatch)
    with Output().progress("loading") as show:
        assert show is not None
        show(0.5)
    assert "loading" in screen.getvalue()
    with Output("quiet").progress("loading") as show:
        assert show is None
    pipe = io.StringIO()
    monkeypatch.setattr(sys, "stderr", pipe)
    with Output().progress("loading") as show:
        assert show is None
    assert pipe.getvalue() == ""


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (23_003_000_000, "21.4 GiB"),
        (1 << 41, "2.0 TiB"),
        (None, "unknown"),
    ],
)
def test_size(n_bytes: int | None, text: str) -> None:
    assert size(n_bytes) == text


@pytest.mark.parametrize(
    ("value", "text"), [(152.34, "152.3 tok/s"), (0.0, "- tok/s"), (math.nan, "- tok/s"), (None, "- tok/s")]
)
def test_speed(value: float | None, text: str) -> None:
    assert speed(value) == text


def test_printable_keeps_letters_and_escapes_controls() -> None:
    assert printable("é 漢\n\x07\u202e") == "é 漢\\n\\x07\\u202e"


def run_python(code: str, *args: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, env=env, check=False)


BARE = """
import sys
for name in ("numpy", "gguf", "cffi", "rich", "psutil", "pyclover._native", "pyclover.engine", "pyclover.clover"):
    sys.modules[name] = None  # importing it now raises
from pyclover.cli.main import main
main()
"""


@pytest.mark.parametrize("args", [["--help"], ["-h"], ["--version"], ["generate", "--help"], ["tool", "--help"]])
def test_help_and_version_need_no_native_part_and_nothing_heavy(args: list[str]) -> None:
    done = run_python(BARE, *args)
    assert (done.returncode, done.stderr) == (0, "")
    assert "clover-run" in done.stdout


def test_a_missing_native_part_is_one_sentence() -> None:
    done = run_python(BARE, "generate", "-p", "x")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("Error: the native part of pyclover does not load (")
    assert done.stderr.endswith("): install the package again; `clover-run doctor` checks the installation.\n")
    assert done.stderr.count("\n") == 1


CLOSED_PIPE = """
import os, sys, click
from pyclover.cli.main import cli, main
reader, writer = os.pipe()
os.dup2(writer, 1)
os.close(writer)
os.close(reader)
@cli.command()
def shout():
    sys.stdout.write("x" * 100000)
main(["shout"])
"""


def test_a_closed_pipe_is_silent() -> None:
    done = run_python(CLOSED_PIPE)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_one_sentence() -> None:
    code = "from pyclover.cli.main import main; main(['--version'])"
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", code],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            check=False,
        )
    assert (done.returncode, done.stderr) == (1, "Error: standard output: No space left on device.\n")


@pytest.mark.skipif(os.name != "posix", reason="a shell that closes a stream")
def test_a_closed_standard_output_is_a_failure() -> None:
    code = "from pyclover.cli.main import main; main(['generate', '-p', 'x'])"
    done = subprocess.run(
        ["sh", "-c", '"$0" -c "$1" >&-', sys.executable, code],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert (done.returncode, done.stderr) == (
        1, "Error: standard output is closed: open it, or send it to a file.\n"
    )  # fmt: skip


def test_without_a_command_the_help_is_usage() -> None:
    result = CliRunner().invoke(main.cli, [], prog_name="clover-run")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("Usage: clover-run [OPTIONS] COMMAND [ARGS]...")


def test_commands_are_those_of_this_version() -> None:
    assert list(main.cli.commands) == [
        "generate", "chat", "serve", "worker", "inspect", "repair", "convert", "download", "fit",
        "bench", "tune", "profile", "imatrix", "quantize", "evaluate", "doctor", "tool",
    ]  # fmt: skip


def test_an_unknown_command_or_option_is_usage() -> None:
    assert CliRunner().invoke(main.cli, ["generat"]).exit_code == 2
    assert CliRunner().invoke(main.cli, ["generate", "--no-such-option"]).exit_code == 2


def test_every_keyword_of_the_api_finds_its_flag() -> None:
    assert options.flag_of(main.COMMANDS, "n_ctx") == "--ctx-size"
    assert options.flag_of(main.COMMANDS, "cache_type_k") == "--cache-type-k"
    assert options.flag_of(main.COMMANDS, "max_tokens") == "--n-predict"
    assert options.flag_of(main.COMMANDS, "no_such_keyword") == ""


def test_an_error_names_flags_of_the_command_that_ran_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`name` is an option of other commands; download has none of that name."""
    assert options.flag_of(main.COMMANDS, "name") == "--name"
    error = errors.UsageError("no such thing.", option="name")
    monkeypatch.setattr(main.cli.commands["download"], "callback", lambda **_: (_ for _ in ()).throw(error))
    with pytest.raises(SystemExit):
        main.cli.main(["download", "owner/repo"])
    assert capsys.readouterr().err == "Error: no such thing.\n"
    assert main.flags_for(error, main.cli.commands["tune"]) == "flag: --name"


def test_json_output_is_parsed_by_json(capsys: pytest.CaptureFixture[str]) -> None:
    Output("json").json({"line\u2028end": "\ud800"})
    assert json.loads(capsys.readouterr().out) == {"line\u2028end": "\ud800"}
