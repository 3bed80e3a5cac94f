"""`clover-run fit` on a made-up machine."""

from __future__ import annotations

import json
from typing import Any

import click
import pytest
from click.testing import CliRunner
from plan_machines import MACHINES
from support import ORACLE

from pyclover.cli.fit import fit, n_bytes
from pyclover.cli.main import cli
from pyclover.plan import probe as probe_module

TINY = str(ORACLE / "expected_preview" / "tiny_a_preview.gguf")


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_module, "probe", lambda: MACHINES["no GPU, 32 GB"])


def run(*args: str) -> Any:
    return CliRunner().invoke(cli, ["fit", *args])


def test_tables() -> None:
    done = run("-m", TINY, "-c", "1024")
    assert done.exit_code == 0, done.output
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["n_ctx", "1024", "asked", "for"] in lines
    assert ["n_gpu_layers", "-", "no", "GPU", "that", "this", "build", "can", "use"] in lines
    assert any(line[:1] == ["together"] for line in lines)
    assert ["memory", "needed", "free", "in", "reserve"] in lines


def test_json() -> None:
    done = run("-m", TINY, "--json", "--draft", "0")
    plan = json.loads(done.stdout)
    assert plan["settings"]["n_max"] == 0
    assert plan["measured"] is None
    assert sum(row["bytes"] for row in plan["estimate"]["rows"]) == plan["estimate"]["total_bytes"]


def test_nothing_fits() -> None:
    done = run("-m", TINY, "--reserve", "40T")
    assert done.exit_code == 1
    assert done.stdout == ""
    assert done.stderr.startswith("Error: tiny_a_preview.gguf does not fit: it needs ")
    assert "it fits with a reserve (reserve_bytes, --reserve) of at most " in done.stderr
    assert "flags:" not in done.stderr  # the sentence has its own advice


@pytest.mark.parametrize(
    ("text", "size"),
    [("1024", 1024), ("512M", 512 << 20), ("2G", 2 << 30), ("1.5GiB", 3 << 29), ("64kb", 65_536), ("0", 0)],
)
def test_sizes(text: str, size: int) -> None:
    context = click.Context(fit)
    assert n_bytes(context, fit.params[0], text) == size


@pytest.mark.parametrize("text", ["", "G", "-1G", "5X", "nan", "inf", "1e30"])
def test_no_sizes(text: str) -> None:
    with pytest.raises(click.BadParameter):
        n_bytes(click.Context(fit), fit.params[0], text)


def test_auto_leaves_the_layers_to_the_plan() -> None:
    assert json.loads(run("-m", TINY, "--json", "-ngl", "auto").stdout)["settings"]["n_gpu_layers"] == 0
