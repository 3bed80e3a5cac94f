"""`clover-run inspect`: the oracle's files, and a made-up report with everything that can be odd about a file."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pyclover.cli.main import cli
from pyclover.engine import inspect as inspect_module
from pyclover.files.facts import Capabilities, Capability, Problem
from pyclover.files.header import TensorInfo
from pyclover.files.report import Report, SpecialToken
from pyclover.files.types import TYPES_BY_NAME
from pyclover.files.weight_groups import GroupUse, TypeUse

ORACLE = Path(__file__).parents[1] / "oracle"

REPORT = Report(
    paths=(Path("m-00001-of-00002.gguf"), Path("m-00002-of-00002.gguf")),
    file_bytes=21 << 30,
    gguf_version=3,
    architecture="clover_moe",
    name="Clover",
    size_label="35B-A3B",
    file_type="Q4_K_M",
    n_params=34_660_610_688,
    n_params_active=3_000_000_000,
    n_bytes=20 << 30,
    bits_per_weight=4.96,
    groups={
        "routed_experts": GroupUse(
            32_000, 18_000, 4.5, {"Q4_K": TypeUse(80, 30_000, 16_875), "Q6_K": TypeUse(40, 2_000, 1_125)}
        ),
        "gdn": GroupUse(1_000, 4_000, 32.0, {"F32": TypeUse(30, 1_000, 4_000)}),
    },
    n_tensors=733,
    n_ctx_train=131_072,
    n_layer=40,
    layers={"linear": 30, "full": 10},
    n_embd=2048,
    n_vocab=248_320,
    special_tokens={"eos": SpecialToken(248_046, "<|im_end|>")},
    has_chat_template=True,
    capabilities=Capabilities(Capability(True), Capability(False, "no mask token"), Capability(False, "no mask token")),
    preview_tensors={"blk.0.ssm_bd_history_c": "blk.0.bd_c"},
    preview_missing=(),
    unknown_tensors=(TensorInfo("extra\x1b[2J.weight", (64, 2), TYPES_BY_NAME["F16"], 0, 256),),
    warnings=("clover_moe.expert_shared_count is missing: 1 is assumed",),
    problems=(),
)

TEXT = """\
file            m-00001-of-00002.gguf
shards          2
size            21.0 GiB
format          GGUF 3, Q4_K_M, 4.96 bits per weight
architecture    clover_moe
name            Clover 35B-A3B
parameters      34,660,610,688 (3,000,000,000 active for a token)
tensors         733
context         131,072 tokens
layers          40 (30 linear, 10 full)
width           2048
vocabulary      248,320 tokens
special tokens  eos 248046 <|im_end|>
chat template   yes

What the file allows
plain            yes
draft-self       no   no mask token
block diffusion  no   no mask token

Weights
kind            parameters      size  bits per weight  types
routed experts      32,000  17.6 KiB             4.50  Q4_K (80), Q6_K (40)
Gated DeltaNet       1,000   3.9 KiB            32.00  F32 (30)

Preview tensors under other names
blk.0.ssm_bd_history_c  blk.0.bd_c

Unknown tensors (skipped)
name                 shape   type   size
extra\\x1b[2J.weight  64 x 2  F16   256 B

Warnings
clover_moe.expert_shared_count is missing: 1 is assumed
"""


def run(*args: str) -> Result:
    return CliRunner().invoke(cli, ["inspect", *args], prog_name="clover-run")


def test_the_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspect_module, "inspect", lambda path: REPORT)
    result = run("m-00002-of-00002.gguf")
    assert result.stdout == TEXT
    assert (result.stderr, result.exit_code) == ("", 0)


def test_a_model_that_cannot_run_is_shown_and_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    no = Capability(False, "key not found")
    broken = dataclasses.replace(
        REPORT,
        capabilities=Capabilities(no, no, no),
        problems=(Problem("a.b", "metadata key a.b is missing"), Problem("c", "tensor c is missing")),
    )
    monkeypatch.setattr(inspect_module, "inspect", lambda path: broken)
    result = run("m.gguf")
    assert result.stdout.endswith("\nProblems\nmetadata key a.b is missing\ntensor c is missing\n")
    assert (result.stderr, result.exit_code) == ("Error: m.gguf cannot run: metadata key a.b is missing\n", 1)
    result = run("--json", "m.gguf")
    assert [problem["key"] for problem in json.loads(result.stdout)["problems"]] == ["a.b", "c"]
    assert result.exit_code == 1


def test_what_a_file_does_not_say_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    bare = dataclasses.replace(
        REPORT,
        paths=(Path("m.gguf"),),
        name="",
        size_label="",
        file_type="",
        n_ctx_train=0,
        n_layer=0,
        layers={},
        n_embd=0,
        n_vocab=0,
        special_tokens={},
    )
    monkeypatch.setattr(inspect_module, "inspect", lambda path: bare)
    names = [line.split("  ")[0] for line in run("m.gguf").stdout.split("\n\n")[0].splitlines()]
    assert names == ["file", "size", "format", "architecture", "parameters", "tensors", "chat template"]


@pytest.mark.parametrize(
    ("path", "modes"),
    [  # made by the oracle's generator: model a has no preview tensors, the preview models have
        ("expected/tiny_a.gguf", [True, False, False]),
        ("expected_preview/tiny_a_preview.gguf", [True, True, True]),
    ],
)
def test_the_oracle_files(path: str, modes: list[bool]) -> None:
    result = run("--json", str(ORACLE / path))
    assert (result.stderr, result.exit_code) == ("", 0)
    report = json.loads(result.stdout)
    assert report["architecture"] == "clover_moe"
    assert report["paths"] == [str(ORACLE / path)]
    assert report["file_bytes"] == (ORACLE / path).stat().st_size
    assert [mode["available"] for mode in report["capabilities"].values()] == modes


def test_a_file_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "notes.gguf"
    path.write_bytes(b"plain text")
    result = run(str(path))
    assert result.stdout == ""
    assert result.stderr.startswith("Error: ")
    assert str(path) in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.exit_code == 1
    assert run(str(tmp_path / "absent.gguf")).exit_code == 1


def test_no_file_is_usage() -> None:
    assert run().exit_code == 2
