"""`clover-run generate --chat`: the answer alone on standard output, for pipes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(120)


def asked(folder: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pyclover.cli.main", "generate", "--chat", "-p", "What is 12 + 7?", "--temp", "0"]
    done = subprocess.run(
        [*command, *flags], capture_output=True, text=True, encoding="utf-8", timeout=100, check=False, cwd=folder
    )
    assert done.returncode == 0, done.stderr
    return done


def test_the_answer_is_the_data_and_the_thought_is_talk(tmp_path: Path) -> None:
    done = asked(tmp_path)
    assert done.stdout == "12 + 7 = 19\n"
    assert "thinking: 2+7=09" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("plain: ")
    assert done.stderr.rstrip().endswith("; thinking 17 tokens")


@pytest.mark.parametrize("flags", [("-q",), ("-q", "--spec-type", "draft-self", "--no-spec-draft-adaptive")])
def test_quiet_leaves_the_answer_alone(tmp_path: Path, flags: tuple[str, ...]) -> None:
    done = asked(tmp_path, *flags)
    assert (done.stdout, done.stderr) == ("12 + 7 = 19\n", "")


def test_json_has_both(tmp_path: Path) -> None:
    answer = json.loads(asked(tmp_path, "--json").stdout)
    assert answer["text"] == "12 + 7 = 19"
    assert answer["reasoning"].startswith("2+7=09")
    assert len(answer["tokens"]) == answer["stats"]["n_generated"] == 28
    assert answer["finish_reason"] == "stop"


def test_a_thought_that_takes_all_tokens_leaves_no_answer_and_says_so(tmp_path: Path) -> None:
    done = asked(tmp_path, "-n", "5")
    assert done.stdout == ""
    assert "note: all 5 tokens went into thinking" in done.stderr


def test_schemas_are_about_the_answer_and_grammars_about_all(tmp_path: Path) -> None:
    assert asked(tmp_path, "-q", "-j", '{"type": "integer"}').stdout.strip().isdigit()
    assert asked(tmp_path, "-q", "--grammar", 'root ::= "yes" | "no"').stdout in ("yes\n", "no\n")
