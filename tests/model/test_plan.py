"""Estimates beside what a load allocates, on small models; the real machine."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from model.gguf_parts import build, llama_file
from support import ORACLE

import pyclover
from pyclover.engine.build_info import devices
from pyclover.plan.probe import probe

MIB = 1 << 20
MODELS = ("tiny", "expected/tiny_a.gguf", "expected/tiny_b.gguf", "expected_preview/tiny_b_preview.gguf")


def model_of(name: str) -> str | Path:
    return name if name == "tiny" else ORACLE / name


def measured(m: pyclover.Clover) -> dict[str, int]:
    found = dict.fromkeys(("weights", "context", "compute"), 0)
    for use in m.memory():
        found[use.kind] += use.bytes
    return found


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("asked", [{}, {"n_ctx": 300, "n_max": 7}, {"n_ctx": 2048, "cache_type_k": "f32", "n_max": 0}])
def test_estimated_and_measured(name: str, asked: dict[str, Any]) -> None:
    plan = pyclover.fit(model_of(name), **asked)
    with pyclover.Clover(plan.model, n_threads=1, **plan.options()) as m:
        found, expected = measured(m), plan.estimate.measurable()
        assert m.n_ctx == plan.settings.n_ctx
    assert expected["context"] == pytest.approx(found["context"], abs=4096)  # tensors begin at multiples of 32 or more
    assert expected["weights"] == pytest.approx(found["weights"], rel=0.02, abs=4096)
    assert abs(sum(expected.values()) - sum(found.values())) < 64 * MIB


def test_a_file_with_more_layers_and_another_geometry(make_tiny: Callable[..., Path]) -> None:
    path = make_tiny("--preset", "c")
    plan = pyclover.fit(path, n_ctx=1024, n_max=5)
    with pyclover.Clover(path, n_threads=1, **plan.options()) as m:
        assert plan.estimate.measurable()["context"] == pytest.approx(measured(m)["context"], abs=4096)


def test_the_real_machine() -> None:
    machine = probe()
    assert machine.host_total_bytes is not None
    assert machine.host_free_bytes is not None
    assert 0 < machine.host_free_bytes <= machine.host_total_bytes
    assert [d.name for d in machine.devices] == [d.name for d in devices() if d.kind in ("gpu", "igpu")]
    assert machine.cpu_features


def test_prove() -> None:
    from pyclover.cli.main import cli

    done = CliRunner().invoke(cli, ["fit", "--prove", "-c", "512", "--json"])
    assert done.exit_code == 0, done.output
    plan = json.loads(done.stdout)
    assert {use["kind"] for use in plan["measured"]} == {"weights", "context", "compute"}
    shown = CliRunner().invoke(cli, ["fit", "--prove", "-c", "512"])
    assert "Estimated and measured" in shown.stdout
    assert "together" in shown.stdout


def test_settings_of_a_small_model_of_another_architecture(tmp_path: Path) -> None:
    parts, data = llama_file((ORACLE / "expected" / "tiny_a.gguf").read_bytes(), n_layer=2)
    path = tmp_path / "llama.gguf"
    path.write_bytes(build(parts) + data)
    plan = pyclover.fit(path, n_ctx=256)
    assert any("not a Clover model" in warning for warning in plan.warnings)
    with pyclover.Clover(path, n_threads=1, **plan.options()) as m:
        # 2 layers, keys and values, 2 KV heads of 8, 256 cells, 2 bytes
        assert measured(m)["context"] == plan.estimate.measurable()["context"] == 2 * 2 * 16 * 256 * 2
