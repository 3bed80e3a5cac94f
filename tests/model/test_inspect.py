"""`inspect` with the native part: architectures that llama.cpp has, names and folders of the user."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
from click.testing import CliRunner
from support import ORACLE

import pyclover
from pyclover.cli.main import cli
from pyclover.engine.inspect import knows_architecture


def test_architectures() -> None:
    for name in ("llama", "qwen3moe", "clover_moe", "mamba"):
        assert knows_architecture(name) is True
    for name in ("nosuch", "", "clip", "Llama", "(unknown)"):
        assert knows_architecture(name) is False


def test_an_unknown_architecture_cannot_run(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "nosuch")
    writer.add_uint32("nosuch.block_count", 1)
    writer.add_tensor("a.weight", np.zeros((4, 4), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    report = pyclover.inspect(path)
    assert report.problems[0].key == "general.architecture"
    assert "'nosuch'" in report.problems[0].message
    assert not report.capabilities.plain
    assert report.capabilities.plain.reason == report.problems[0].message
    done = CliRunner().invoke(cli, ["inspect", str(path)])
    assert done.exit_code == 1
    assert "architecture 'nosuch' is none that this build of llama.cpp runs" in done.stderr


def test_names_and_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "m.gguf").symlink_to(ORACLE / "expected" / "tiny_a.gguf")
    assert pyclover.inspect("~/m.gguf").paths == (tmp_path / "m.gguf",)
    assert pyclover.inspect("tiny").capabilities.plain


def test_a_damaged_file_is_one_json_object(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF\3")
    done = CliRunner().invoke(cli, ["inspect", str(path), "--json"])
    assert done.exit_code == 1
    found = json.loads(done.stdout)
    assert found["paths"] == [str(path)]
    assert "cut short" in found["problems"][0]["message"]
