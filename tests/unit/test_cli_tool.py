"""`clover-run tool`: names, the untouched command line, the list."""

from __future__ import annotations

import json
import os
import re
import sys
import types
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pyclover.cli import tool
from pyclover.cli.main import cli
from pyclover.errors import UsageError

PROGRAMS = {
    "llama": Path("/pkg/bin/llama"),
    "llama-imatrix": Path("/pkg/bin/llama-imatrix"),
    "llama-speculative-simple": Path("/pkg/bin/llama-speculative-simple"),
}


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Command lines that would have been run."""
    build_info = types.ModuleType("pyclover.engine.build_info")
    build_info.programs = lambda: PROGRAMS  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pyclover.engine.build_info", build_info)
    lines: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda path, argv: lines.append([path, *argv]))
    return lines


def run(*args: str) -> Result:
    return CliRunner().invoke(cli, ["tool", *args], prog_name="clover-run")


@pytest.mark.parametrize(
    ("name", "begins"),
    [
        ("quantize", ["/pkg/bin/llama", "quantize"]),
        ("llama-quantize", ["/pkg/bin/llama", "quantize"]),
        ("serve", ["/pkg/bin/llama", "serve"]),
        ("llama-server", ["/pkg/bin/llama", "serve"]),
        ("fit-params", ["/pkg/bin/llama", "fit-params"]),
        ("llama", ["/pkg/bin/llama"]),
        ("llama-imatrix", ["/pkg/bin/llama-imatrix"]),
        ("imatrix", ["/pkg/bin/llama-imatrix"]),
        ("speculative-simple", ["/pkg/bin/llama-speculative-simple"]),
    ],
)
def test_names(name: str, begins: list[str]) -> None:
    assert tool.resolve(name, PROGRAMS) == begins


def test_every_part_of_the_unified_program_has_a_name() -> None:
    parts = ("serve", "cli", "completion", "bench", "batched-bench", "quantize", "perplexity", "fit-params")
    assert tool.available({"llama": Path("/l")}) == {**{part: ["/l", part] for part in parts}, "llama": ["/l"]}


def test_without_programs_nothing_is_offered() -> None:
    assert tool.available({}) == {}
    with pytest.raises(UsageError, match="there are: none in this build"):
        tool.resolve("quantize", {})


@pytest.mark.skipif(os.name == "nt", reason="exec")
@pytest.mark.parametrize(
    "args",
    [
        ["--help"],
        ["-h", "--json", "--debug", "--version"],
        ["--", "a", "--", "-x=1"],
        ["-ngl", "99", "in put.gguf", "", "é"],
    ],
)
def test_arguments_go_through_untouched(started: list[list[str]], args: list[str]) -> None:
    result = run("quantize", *args)
    assert (result.stdout, result.stderr, result.exit_code) == ("", "", 0)
    assert started == [["/pkg/bin/llama", "/pkg/bin/llama", "quantize", *args]]


def test_an_unknown_name_lists_those_there(started: list[list[str]]) -> None:
    result = run("quantise", "x")
    assert result.stderr == (
        "Error: no program 'quantise' in the package; there are: serve, cli, completion, bench, batched-bench, "
        "quantize, perplexity, fit-params, llama, llama-imatrix, llama-speculative-simple.\n"
    )
    assert (result.stdout, result.exit_code, started) == ("", 2, [])


def test_the_list(started: list[list[str]]) -> None:
    result = run()
    assert [re.split(r"\s{2,}", line) for line in result.stdout.splitlines()] == [
        ["name", "what it does", "runs"],
        ["serve", "HTTP server", "/pkg/bin/llama serve"],
        ["cli", "chat in the terminal", "/pkg/bin/llama cli"],
        ["completion", "text from a prompt", "/pkg/bin/llama completion"],
        ["bench", "speed of prompt and generation", "/pkg/bin/llama bench"],
        ["batched-bench", "speed of several sequences at once", "/pkg/bin/llama batched-bench"],
        ["quantize", "smaller types for the weights", "/pkg/bin/llama quantize"],
        ["perplexity", "perplexity and divergence", "/pkg/bin/llama perplexity"],
        ["fit-params", "layers and context that fit the memory", "/pkg/bin/llama fit-params"],
        ["llama", "all of the above in one program", "/pkg/bin/llama"],
        ["llama-imatrix", "importance matrix for quantizing", "/pkg/bin/llama-imatrix"],
        ["llama-speculative-simple", "speculative decoding, one sequence", "/pkg/bin/llama-speculative-simple"],
    ]
    assert (result.stderr, result.exit_code, started) == ("", 0, [])


def test_the_list_as_json(started: list[list[str]]) -> None:
    result = run("--json")
    assert json.loads(result.stdout)["quantize"] == ["/pkg/bin/llama", "quantize"]
    assert (result.stderr, result.exit_code) == ("", 0)
