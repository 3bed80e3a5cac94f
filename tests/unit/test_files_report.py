"""`inspect` on the oracle's models."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import gguf
import pytest

from pyclover.errors import InvalidFileError
from pyclover.files import inspect, validate
from pyclover.files.weight_groups import group_of

ORACLE = Path(__file__).parents[1] / "oracle"
PLAIN = sorted((ORACLE / "expected").glob("*.gguf"))
PREVIEW = sorted((ORACLE / "expected_preview").glob("*.gguf"))


@pytest.mark.parametrize("path", PREVIEW, ids=lambda p: p.stem)
def test_preview_models_can_draft(path: Path) -> None:
    report = inspect(path)
    assert report.capabilities.plain.available
    assert report.capabilities.draft_self.available
    assert report.capabilities.block_diffusion.available
    assert report.groups["clover"].types.keys() == {"F32"}


@pytest.mark.parametrize("path", PLAIN, ids=lambda p: p.stem)
def test_plain_models_say_why_they_cannot(path: Path) -> None:
    report = inspect(path)
    assert report.capabilities.plain.available
    assert not report.capabilities.draft_self.available
    assert report.capabilities.draft_self.reason == "no preview tensors: this file was converted without them"
    assert "clover" not in report.groups


@pytest.mark.parametrize("path", PLAIN + PREVIEW, ids=lambda p: p.stem)
def test_sums_agree_with_the_gguf_package(path: Path) -> None:
    report, tensors = inspect(path), gguf.GGUFReader(path).tensors
    assert report.n_tensors == len(tensors)
    assert report.n_params == sum(int(t.n_elements) for t in tensors) == sum(g.n_params for g in report.groups.values())
    assert report.n_bytes == sum(int(t.n_bytes) for t in tensors) == sum(g.n_bytes for g in report.groups.values())
    for kind in {t.tensor_type.name for t in tensors}:
        in_file = [int(t.n_bytes) for t in tensors if t.tensor_type.name == kind]
        uses = [g.types[kind] for g in report.groups.values() if kind in g.types]
        assert (sum(u.n_tensors for u in uses), sum(u.n_bytes for u in uses)) == (len(in_file), sum(in_file))
    experts = sum(int(t.n_elements) for t in tensors if "_exps." in t.name)
    assert report.groups["routed_experts"].n_params == experts
    assert report.file_bytes == path.stat().st_size


def test_what_it_says_of_a_model() -> None:
    report = inspect(ORACLE / "expected" / "tiny_a.gguf")  # make_tiny_clover.py, preset a
    assert (report.architecture, report.name, report.file_type) == ("clover_moe", "tiny clover", "F32")
    assert report.layers == {"linear": 3, "full": 1}
    assert (report.n_ctx_train, report.n_embd, report.has_chat_template) == (4096, 64, True)
    assert report.special_tokens["eos"].text == "<|im_end|>"
    assert report.special_tokens["mask"].text == "<|mask|>"
    assert report.bits_per_weight == 32.0
    assert report.problems == ()


def test_the_dictionary_is_json() -> None:
    report = inspect(PREVIEW[0])
    again = json.loads(json.dumps(report.to_dict()))
    assert again["paths"] == [str(PREVIEW[0])]
    assert again["capabilities"]["draft_self"] == {"available": True, "reason": ""}
    assert again["groups"]["norm"]["types"]["F32"]["n_bytes"] == report.groups["norm"].n_bytes


def test_a_model_that_cannot_run_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    content = (ORACLE / "expected" / "tiny_a.gguf").read_bytes()
    path.write_bytes(content.replace(b"clover_moe.ssm.state_size", b"clover_moe.ssm.state_siz_"))
    report = inspect(path)
    assert [p.key for p in report.problems] == ["clover_moe.ssm.state_size"]
    assert not report.capabilities.plain.available
    assert "clover_moe.ssm.state_size" in report.capabilities.plain.reason
    assert report.n_params == inspect(ORACLE / "expected" / "tiny_a.gguf").n_params
    path.write_bytes(content[:5000])
    with pytest.raises(InvalidFileError):
        inspect(path)


def test_fingerprint_changes_with_header_and_size_only(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    shutil.copy(PLAIN[0], path)
    first = validate(PLAIN[0]).fingerprint()
    assert validate(path).fingerprint() == first
    content = bytearray(path.read_bytes())
    path.write_bytes(content + b"\0")
    assert validate(path).fingerprint() != first
    content[content.index(b"tiny clover")] = ord("T")
    path.write_bytes(content)
    assert validate(path).fingerprint() != first


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("token_embd.weight", "embedding"),
        ("output.weight", "output"),
        ("output_norm.weight", "norm"),
        ("blk.0.attn_norm.weight", "norm"),
        ("blk.0.ssm_norm.weight", "norm"),
        ("blk.0.attn_qkv.weight", "gdn"),
        ("blk.0.attn_gate.weight", "gdn"),
        ("blk.0.ssm_a", "gdn"),
        ("blk.1.attn_qkv.weight", "attention"),
        ("blk.1.attn_output.weight", "attention"),
        ("blk.1.ffn_gate_inp.weight", "router"),
        ("blk.1.ffn_gate_inp_shexp.weight", "shared_expert"),
        ("blk.1.ffn_down_shexp.weight", "shared_expert"),
        ("blk.1.ffn_gate_up_exps.weight", "routed_experts"),
        ("blk.0.ssm_conv1d_right.weight", "clover"),
        ("rope_freqs.weight", "other"),
    ],
)
def test_groups(name: str, group: str) -> None:
    assert group_of(name, linear_layers=frozenset({0}), clover=frozenset({"blk.0.ssm_conv1d_right.weight"})) == group
