"""`clover-run bench`, `tune` and `profile` in real processes: interrupted, resumed, used."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from support import ROOT

pytestmark = pytest.mark.timeout(600)
posix = pytest.mark.skipif(os.name != "posix", reason="signals as POSIX has them")
SHORT = ("--kinds", "maths", "-n", "12", "--spec-draft-n-max", "3", "--no-auto")


class Cli:
    """Runs the program in a folder of its own, with profiles and journals of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        found = shutil.which("clover-run", path=str(Path(sys.executable).parent))
        self.program = [found] if found else [sys.executable, "-m", "pyclover.cli.main"]
        self.env = {
            **os.environ, "XDG_CACHE_HOME": str(folder / "cache"), "XDG_CONFIG_HOME": str(folder / "config"),
            "NO_COLOR": "1", "PYTHONUTF8": "1",
        }  # fmt: skip

    def start(self, *args: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*self.program, *args], cwd=self.folder, env=self.env, stdin=subprocess.DEVNULL, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def __call__(self, *args: str) -> subprocess.CompletedProcess[str]:
        process = self.start(*args)
        out, err = process.communicate(timeout=500)
        return subprocess.CompletedProcess(list(args), process.returncode, out, err)


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path)


def n_turns(path: Path) -> int:
    return path.read_bytes().count(b"\n") - 1 if path.exists() else 0


def interrupted(cli: Cli, journal: Path, *args: str) -> None:
    """Starts a run and sends Ctrl-C as soon as it has written a turn more."""
    before = n_turns(journal) if "--resume" in args else 0
    if "--resume" not in args:
        journal.unlink(missing_ok=True)
    process = cli.start("tune", *args, "--journal", str(journal))
    try:
        while n_turns(journal) <= before:
            assert process.poll() is None, process.communicate()
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "--resume" in err
    assert "Traceback" not in err


@posix
def test_interrupted_twice_and_resumed(cli: Cli, tmp_path: Path) -> None:
    journal = tmp_path / "run.jsonl"
    args = (*SHORT, "-r", "3")
    interrupted(cli, journal, *args)
    first = journal.read_bytes()
    interrupted(cli, journal, *args, "--resume")
    second = journal.read_bytes()
    done = cli("tune", *args, "--resume", "--journal", str(journal), "--json")
    assert done.returncode == 0, done.stderr
    whole = journal.read_bytes()
    assert second.startswith(first)
    assert whole.startswith(second)
    # what comes out is what the journal says, also of a run that never stopped
    again = cli("tune", *args, "--resume", "--journal", str(journal), "--json")
    assert json.loads(again.stdout) == json.loads(done.stdout)
    assert journal.read_bytes() == whole
    # each turn once, in the order of a run without interruptions
    undisturbed = tmp_path / "other.jsonl"
    assert cli("tune", *args, "--journal", str(undisturbed), "--no-save", "--interval", "0").returncode == 0
    places = [[(t["round"], t["prompt"]) for t in map(json.loads, path.read_text().splitlines()[1:])]
              for path in (journal, undisturbed)]  # fmt: skip
    n = min(map(len, places))
    assert n >= 8
    assert places[0][:n] == places[1][:n]
    found = json.loads(done.stdout)
    assert found["rows"][0]["label"] == "plain"
    assert found["recommendation"]["label"] in ("plain", "draft-self n=3")
    assert [row["n_changed"] for row in found["rows"]] == [0] * len(found["rows"])


def test_nothing_to_resume(cli: Cli) -> None:
    done = cli("tune", *SHORT, "--resume")
    assert done.returncode == 2
    assert "nothing to resume" in done.stderr


def test_the_sweep_of_the_page_runs_as_written(cli: Cli, tmp_path: Path) -> None:
    text = (ROOT / "docs" / "tune.md").read_text(encoding="utf-8")
    (sweep,) = re.findall(r"^```yaml sweep\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    command = re.match(r"# clover-run (tune --sweep (\S+))\n", sweep)
    assert command is not None
    (tmp_path / command[2]).write_text(sweep, encoding="utf-8")
    done = cli(*command[1].split(), "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["prompts"] == {"sums": 2, "words": 1}
    assert [row["label"] for row in found["rows"]] == [
        "plain -t 1", "auto -t 1", "draft-self n=3 -t 1", "draft-self n=3 p-min=0.5 -t 1", "draft-self n=7 -t 1",
        "draft-self n=7 p-min=0.5 -t 1",
    ]  # fmt: skip
    # kept, and used by default
    assert json.loads(cli("profile", "list", "--json").stdout)[0]["name"] == found["profile"]
    used = cli("generate", "-p", "Hello", "-n", "4", "--temp", "0")
    assert f"profile {found['profile']}: " in used.stderr
    for other in (("--profile", "none"), ("-q",)):
        assert "profile" not in cli("generate", "-p", "Hello", "-n", "4", "--temp", "0", *other).stderr
    missing = cli("generate", "-p", "Hello", "--profile", "missing")
    assert missing.returncode == 2
    assert "there is no profile 'missing'" in missing.stderr


def test_bench(cli: Cli) -> None:
    args = ("-p", "Hello", "-n", "8", "-r", "2", "--spec-draft-n-max", "3", "--diffusion-threshold", "0.9",
            "--n-prompt", "32", "--n-gen", "8")  # fmt: skip
    done = cli("bench", *args, "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert [row["label"] for row in found["rows"]] == ["plain", "auto", "draft-self n=3", "diffusion threshold=0.9"]
    assert {f["test"] for f in found["figures"]} == {"pp32", "tg8"}
    assert all(f["tok_per_s"] > 0 for f in found["figures"])
    rows = list(csv.DictReader(io.StringIO(cli("bench", *args, "--csv", "--n-prompt", "0", "--n-gen", "0").stdout)))
    assert [row["label"] for row in rows] == [row["label"] for row in found["rows"]]
    assert float(rows[0]["tok_per_s"]) > 0


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("tune", "--json", "--csv"), "exclude each other"),
        (("tune", "--calibrate", "--interval", "0.1"), "--interval has no effect with --calibrate"),
        (("tune", "--calibrate", "-p", "a"), "at least 10"),
        (("tune", "-p", "a", "--kinds", "code"), "--kinds is about the built-in prompts"),
        (("tune", "--spec-draft-n-max", "1,x"), "no list of whole numbers"),
        (("tune", "--spec-draft-n-max", "40"), "between 1 and 31"),
        (("bench", "--kinds", "poem"), "there is no kind 'poem'"),
        (("tune", "--name", "auto"), "neither auto nor none"),
    ],
)
def test_wrong_usage(cli: Cli, args: tuple[str, ...], words: str) -> None:
    done = cli(*args)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr
