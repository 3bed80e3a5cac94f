"""What `convert` refuses before a byte is written, and what it plans: from headers and small files alone."""

from __future__ import annotations

import ast
import json
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from convert_checkpoint import (
    QWEN35_SPLIT,
    Array,
    Oracle,
    checkpoint_tensors,
    config_of,
    make_checkpoint,
    write_shards,
    write_tokenizer,
)
from fake_hub import FakeHub, fake_hub
from support import ORACLE, ROOT

import pyclover
from pyclover.errors import (
    ConvertError,
    FileError,
    IncompleteSetError,
    InvalidFileError,
    ModelNotFoundError,
    UnsupportedModelError,
    UsageError,
)
from pyclover.files.convert_checkpoint import LocalSource
from pyclover.files.convert_output import Output, no_room
from pyclover.files.convert_plan import ConvertPlan, make_plan
from pyclover.files.convert_run import check_python
from pyclover.files.convert_tokenizer import PRE_TOKENIZERS
from pyclover.hub.checkpoint import HubSource

FILE = ORACLE / "expected_preview" / "tiny_a_preview.gguf"
INDEX = "model.safetensors.index.json"
PREVIEW = ("ssm_conv1d_right", "ssm_bd_logit_scale", "ssm_bd_history_bias", "ssm_bd_history_c")


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Oracle]:
    folder = tmp_path_factory.mktemp("sound") / "Clover"
    return folder, make_checkpoint(folder, FILE)


@pytest.fixture
def broken(sound: tuple[Path, Oracle], tmp_path: Path) -> Path:
    """A copy that a test may break."""
    folder = tmp_path / "Clover"
    shutil.copytree(sound[0], folder)
    return folder


def plan_of(folder: Path, **how: Any) -> ConvertPlan:
    return make_plan(LocalSource(folder), **how)


def rewrite(folder: Path, change: Callable[[dict[str, Any], dict[str, Array]], object]) -> None:
    """The checkpoint with other tensors or another configuration."""
    o = Oracle(FILE)
    tensors, config = checkpoint_tensors(o, fused_experts=True), config_of(o)
    change(config, tensors)
    write_shards(folder, config, tensors)


# --- what is planned ---


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("name", ["tiny_a_preview", "tiny_b_preview"])
def test_the_plan_is_the_oracles_file(name: str, fused: bool, tmp_path: Path) -> None:
    want = make_checkpoint(tmp_path / "c", ORACLE / "expected_preview" / f"{name}.gguf", fused=fused)
    plan = plan_of(tmp_path / "c", outtype="f32")
    assert {t.name: (t.shape[::-1], t.type.name) for t in plan.tensors} == {
        key: (a.shape, "F32") for key, a in want.tensors.items()
    }
    assert sum(t.n_bytes for t in plan.tensors) == sum(4 * a.size for a in want.tensors.values())
    assert (plan.mask_token_id, plan.block_length) == (
        want.meta["tokenizer.ggml.mask_token_id"], want.key("diffusion.block_length"),
    )  # fmt: skip
    assert (plan.left_out, plan.warnings) == ((), ())


@pytest.mark.parametrize(("outtype", "bits"), [("bf16", 16), ("f16", 16), ("q8_0", 8.5)])
def test_types(outtype: str, bits: float, sound: tuple[Path, Oracle]) -> None:
    """FACTS: norms, routers, convolutions, per-head vectors and Clover's own tensors stay F32."""
    exact = ("norm.weight", "ffn_gate_inp.weight", "ffn_gate_inp_shexp.weight", "ssm_conv1d.weight", "ssm_a",
             "ssm_dt.bias", "ssm_conv1d_right.weight", *PREVIEW)  # fmt: skip
    for t in plan_of(sound[0], outtype=outtype).tensors:
        want, size = (outtype.upper(), bits) if outtype != "q8_0" or t.shape[0] % 32 == 0 else ("F16", 16)
        want, size = ("F32", 32) if t.name.endswith(exact) else (want, size)
        assert (t.type.name, t.n_bytes * 8) == (want, np.prod(t.shape) * size), t.name


def test_a_row_that_is_no_whole_number_of_blocks_falls_back_to_f16(broken: Path) -> None:
    def narrow(config: dict[str, Any], tensors: dict[str, Array]) -> None:
        config["moe_intermediate_size"] = 48
        for name, a in tensors.items():
            if name.endswith("experts.gate_up_proj"):
                tensors[name] = np.zeros((a.shape[0], 96, a.shape[2]), np.float32)
            elif name.endswith("experts.down_proj"):
                tensors[name] = np.zeros((a.shape[0], a.shape[1], 48), np.float32)

    rewrite(broken, narrow)
    types = {t.name: t.type.name for t in plan_of(broken, outtype="q8_0").tensors}
    assert types["blk.0.ffn_down_exps.weight"] == "F16"
    assert types["blk.0.ffn_gate_exps.weight"] == "Q8_0"


def test_plain_leaves_out_exactly_the_tensors_of_the_block_pass(sound: tuple[Path, Oracle]) -> None:
    folder, want = sound
    plan = plan_of(folder, plain=True)
    kept = {name for name in want.tensors if not any(part in name for part in PREVIEW)}
    assert {t.name for t in plan.tensors} == kept
    assert len(plan.left_out) == len(want.tensors) - len(kept) > 0
    assert plan.warnings == ()


def test_the_table_of_tokenizers_is_the_converters() -> None:
    text = (ROOT / "csrc" / "llama" / "conversion" / "clover.py").read_text(encoding="utf-8")
    wanted = [
        node for node in ast.parse(text).body
        if isinstance(node, ast.Assign) and node.targets[0].id in ("_SPLIT_QWEN", "PRE_TOKENIZERS")  # type: ignore[attr-defined]
    ]  # fmt: skip
    names: dict[str, Any] = {}
    exec(compile(ast.Module(wanted, []), "clover.py", "exec"), names)
    assert names["PRE_TOKENIZERS"] == PRE_TOKENIZERS
    assert PRE_TOKENIZERS[QWEN35_SPLIT] == "qwen35"


def test_the_mask_token_is_found_where_it_stands(sound: tuple[Path, Oracle], broken: Path) -> None:
    folder, want = sound
    mask = want.meta["tokenizer.ggml.mask_token_id"]
    assert want.meta["tokenizer.ggml.tokens"][mask] == "<|mask|>"
    assert plan_of(folder, mask_token=3).mask_token_id == 3
    assert plan_of(folder, mask_token="<|mask|>").mask_token_id == mask
    config = json.loads((broken / "tokenizer_config.json").read_text(encoding="utf-8"))
    del config["mask_token"]
    (broken / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    plan = plan_of(broken)
    assert plan.mask_token_id == mask  # by its text
    assert json.loads(plan.small_files["config.json"])["mask_token_id"] == mask
    tokenizer = (broken / "tokenizer.json").read_text(encoding="utf-8")
    (broken / "tokenizer.json").write_text(tokenizer.replace("<|mask|>", "<|other|>"), encoding="utf-8")
    plan = plan_of(broken)
    assert plan.mask_token_id is None
    assert "--mask-token" in plan.warnings[0]
    for wrong in ("<|mask|>", 10**6, -1):
        with pytest.raises(UsageError, match=r"no token is|the vocabulary has"):
            plan_of(broken, mask_token=wrong)


def test_options_reach_the_converters_files(sound: tuple[Path, Oracle]) -> None:
    plan = plan_of(sound[0], block_length=7, chat_template="{{ messages }}\n")
    assert json.loads(plan.small_files["config.json"])["block_length"] == plan.block_length == 7
    assert json.loads(plan.small_files["tokenizer_config.json"])["chat_template"] == "{{ messages }}\n"
    for wrong in ({"block_length": 33}, {"block_length": 0}, {"outtype": "q4_0"}, {"chat_template": "{{ x"}):
        with pytest.raises(UsageError):
            plan_of(sound[0], **wrong)


def test_code_of_a_checkpoint_is_not_offered_to_anybody(broken: Path) -> None:
    for name in ("config.json", "tokenizer_config.json"):
        config = json.loads((broken / name).read_text(encoding="utf-8"))
        (broken / name).write_text(json.dumps({**config, "auto_map": {"AutoConfig": "x.Y"}}), encoding="utf-8")
    plan = plan_of(broken)
    assert not any(b"auto_map" in plan.small_files[name] for name in ("config.json", "tokenizer_config.json"))


def test_blocks_that_the_architecture_has_not_are_left_out_with_a_warning(broken: Path) -> None:
    rewrite(broken, lambda _, tensors: tensors.update({"mtp.fc.weight": np.ones((2, 2), np.float32)}))
    plan = plan_of(broken)
    assert plan.left_out == ("mtp.fc.weight",)
    assert "mtp.fc.weight" in plan.warnings[0]


def test_a_checkpoint_without_block_pass_is_converted_with_a_warning(broken: Path) -> None:
    def drop(config: dict[str, Any], tensors: dict[str, Array]) -> None:
        for name in [name for name in tensors if "bd_softmax" in name or "conv_right" in name]:
            del tensors[name]

    rewrite(broken, drop)
    plan = plan_of(broken)
    assert not any(part in t.name for t in plan.tensors for part in PREVIEW)
    assert "one token at a time" in plan.warnings[0]


def test_the_key_tells_everything_that_changes_the_bytes(sound: tuple[Path, Oracle], broken: Path) -> None:
    folder = sound[0]
    keys = [
        plan_of(folder, **how).key
        for how in ({}, {"outtype": "f32"}, {"plain": True}, {"block_length": 5}, {"converter": "other"})
    ]
    assert len(set(keys)) == len(keys)
    assert plan_of(folder).key == keys[0]
    before = plan_of(broken).key
    path = broken / "model-00002-of-00003.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(1, 1))
    assert plan_of(broken).key != before


# --- what is refused ---


def lose(name: str) -> Callable[[dict[str, Any], dict[str, Array]], object]:
    return lambda config, tensors: tensors.pop(name)


def reshape(name: str, shape: tuple[int, ...]) -> Callable[[dict[str, Any], dict[str, Array]], object]:
    return lambda config, tensors: tensors.update({name: np.zeros(shape, np.float32)})


def setting(key: str, value: Any) -> Callable[[dict[str, Any], dict[str, Array]], object]:
    return lambda config, tensors: config.pop(key) if value is None else config.update({key: value})


L = "model.layers.1.linear_attn."


@pytest.mark.parametrize(
    ("change", "key", "words"),
    [
        (lose("lm_head.weight"), "lm_head.weight", "missing: lm_head.weight"),
        (lose("model.norm.weight"), "model.norm.weight", "missing"),
        (lose(L + "A_log"), L + "A_log", "missing"),
        (lose(L + "conv_right_weight"), L + "conv_right_weight", "missing"),
        (lose(L + "bd_softmax_history_c"), L + "bd_softmax_history_c", "missing"),
        (lose("model.layers.0.mlp.experts.down_proj"), "model.layers.0.mlp.experts.down_proj", "missing"),
        (lose("model.layers.0.mlp.shared_expert_gate.weight"), "model.layers.0.mlp.shared_expert_gate.weight", ""),
        (reshape("model.layers.0.extra.weight", (2,)), "model.layers.0.extra.weight", "no Clover has"),
        (reshape("model.layers.99.input_layernorm.weight", (64,)), "model.layers.99.input_layernorm.weight", ""),
        (reshape(L + "in_proj_ba.weight", (2, 2)), L + "in_proj_ba.weight", "no Clover has"),
        (reshape("model.embed_tokens.weight", (3, 64)), "model.embed_tokens.weight", "has the shape [3, 64]"),
        (reshape(L + "conv_right_weight", (128, 2)), L + "conv_right_weight", "must have [128, 3] or [128, 1, 3] or"),
        (reshape(L + "bd_softmax_logit_scale", (3,)), L + "bd_softmax_logit_scale", "wrong shapes"),
        (reshape("model.layers.0.mlp.gate.weight", (64, 1)), "model.layers.0.mlp.gate.weight", "wrong shapes"),
        (setting("hidden_size", None), "hidden_size", "there is no 'hidden_size'"),
        (setting("num_hidden_layers", "four"), "num_hidden_layers", "'four'"),
        (setting("rms_norm_eps", None), "rms_norm_eps", "there is no 'rms_norm_eps'"),
        (setting("rope_parameters", None), "rope_theta", "there is no 'rope_theta'"),
        (setting("linear_num_value_heads", 3), "linear_num_value_heads", "no multiple"),
        (setting("layer_types", ["full_attention"] * 4), "layer_types", "one kind"),
        (setting("layer_types", ["linear_attention"] * 3), "layer_types", "4 entries"),
        (setting("block_length", 33), "block_length", "from 1 to 32"),
        (setting("mask_token_id", 10**6), "mask_token_id", "must be an integer"),
        (setting("num_experts", 2**31 - 1), "num_experts", "from 1 to 1024"),
        (setting("num_hidden_layers", 10**6), "num_hidden_layers", "from 1 to 512"),
        (setting("rms_norm_eps", float("inf")), "rms_norm_eps", "is inf"),
        (setting("rms_norm_eps", 10**400), "rms_norm_eps", "is 1000"),
        (setting("rope_parameters", {"rope_theta": 1e7, "partial_rotary_factor": 3}), "partial_rotary_factor", "is 3"),
        (setting("rope_parameters", {"rope_theta": 1e7, "partial_rotary_factor": "x"}), "partial_rotary_factor", "'x'"),
        (setting("shift_logits", "no"), "shift_logits", "true or false"),
        (setting("expert_coreset", "x"), "expert_coreset", "'x'"),
        (setting("expert_coreset", -3), "expert_coreset", "from 0 to 8"),
        (setting("expert_coreset", 1), "expert_coreset", "0 or from 2 to 8"),
        (setting("expert_coreset_share", 7), "expert_coreset_share", "from 0 to 1"),
        (setting("architectures", ["LlamaForCausalLM"]), "architectures", "LlamaForCausalLM"),
        (setting("quantization_config", {"quant_method": "fp8"}), "quantization_config", "quantized already"),
    ],
)  # fmt: skip
def test_a_checkpoint_that_is_no_clover_is_refused(
    change: Callable[[dict[str, Any], dict[str, Array]], object], key: str, words: str, broken: Path
) -> None:
    rewrite(broken, change)
    before = sorted(broken.rglob("*"))
    with pytest.raises(UnsupportedModelError) as caught:
        plan_of(broken)
    assert caught.value.key == key
    assert key in str(caught.value)
    assert words in str(caught.value)
    assert sorted(broken.rglob("*")) == before


def test_all_faults_are_named_at_once(broken: Path) -> None:
    def several(config: dict[str, Any], tensors: dict[str, Array]) -> None:
        tensors["model.layers.0.self_attention.odd"] = tensors.pop("model.norm.weight")
        tensors["lm_head.weight"] = tensors["lm_head.weight"].T

    rewrite(broken, several)
    with pytest.raises(UnsupportedModelError) as caught:
        plan_of(broken)
    for name in ("model.norm.weight", "model.layers.0.self_attention.odd", "lm_head.weight has the shape"):
        assert name in str(caught.value)


def test_weights_of_another_type_are_refused(broken: Path) -> None:
    path = broken / "model-00001-of-00003.safetensors"
    raw = path.read_bytes()
    n = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + n])
    header["lm_head.weight"]["dtype"] = "I32"
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    path.write_bytes(len(head).to_bytes(8, "little") + head + raw[8 + n :])
    with pytest.raises(UnsupportedModelError, match=r"lm_head\.weight is of type I32"):
        plan_of(broken)


def cut_shard(folder: Path) -> None:
    path = folder / "model-00002-of-00003.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def cut_header(folder: Path) -> None:
    path = folder / "model-00002-of-00003.safetensors"
    path.write_bytes(path.read_bytes()[:50])


def long_shard(folder: Path) -> None:
    with (folder / "model-00002-of-00003.safetensors").open("ab") as file:
        file.write(b"more")


def web_page(folder: Path) -> None:
    (folder / "model-00002-of-00003.safetensors").write_text("<!doctype html><html>not found</html>")


def no_json(folder: Path) -> None:
    (folder / INDEX).write_text("{")


def change_index(folder: Path, change: Callable[[dict[str, str]], object]) -> None:
    index = json.loads((folder / INDEX).read_text())
    change(index["weight_map"])
    (folder / INDEX).write_text(json.dumps(index))


def absent_in_shards(folder: Path) -> None:
    change_index(folder, lambda weight_map: weight_map.update({"ghost.weight": "model-00001-of-00003.safetensors"}))


def absent_in_index(folder: Path) -> None:
    change_index(folder, lambda weight_map: weight_map.pop("model.norm.weight"))


def moved(folder: Path) -> None:
    change_index(folder, lambda m: m.update({"model.norm.weight": "model-00001-of-00003.safetensors"}))


def outside(folder: Path) -> None:
    change_index(folder, lambda weight_map: weight_map.update({"model.norm.weight": "../x.safetensors"}))


@pytest.mark.parametrize(
    ("damage", "where", "words"),
    [
        (cut_shard, "model-00002-of-00003.safetensors", "cut short"),
        (cut_header, "model-00002-of-00003.safetensors", "cut short"),
        (long_shard, "model-00002-of-00003.safetensors", "4 bytes follow"),
        (web_page, "model-00002-of-00003.safetensors", "not a safetensors file"),
        (no_json, INDEX, "this is no JSON"),
        (absent_in_shards, INDEX, "ghost.weight"),
        (absent_in_index, INDEX, "model.norm.weight"),
        (moved, INDEX, "model.norm.weight"),
        (outside, INDEX, "weight_map"),
    ],
)
def test_damaged_files_are_refused(damage: Callable[[Path], None], where: str, words: str, broken: Path) -> None:
    damage(broken)
    with pytest.raises(InvalidFileError) as caught:
        plan_of(broken)
    assert words in str(caught.value)
    assert caught.value.path == str(broken / where)


def test_missing_weight_files_are_named(broken: Path) -> None:
    (broken / "model-00003-of-00003.safetensors").unlink()
    for _ in range(2):
        with pytest.raises(IncompleteSetError) as caught:
            plan_of(broken)
        assert caught.value.missing == ("model-00003-of-00003.safetensors",)
        (broken / INDEX).unlink(missing_ok=True)  # the names tell it, too


@pytest.mark.parametrize("split", [r"\p{N}{1,3}|\p{L}+", "", QWEN35_SPLIT + "|x"])
def test_an_unknown_tokenizer_is_refused(split: str, broken: Path) -> None:
    write_tokenizer(broken, Oracle(FILE), split, mask_in_tokenizer=True)
    with pytest.raises(UnsupportedModelError, match=r"tokenizer\.json: its pre_tokenizer is not known"):
        plan_of(broken)


def test_a_tokenizer_of_another_model_is_refused(broken: Path) -> None:
    path = broken / "tokenizer.json"
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    tokenizer["added_tokens"][-1]["id"] = 5000
    path.write_text(json.dumps(tokenizer), encoding="utf-8")
    with pytest.raises(UnsupportedModelError, match="number 5000"):
        plan_of(broken)
    path.write_text("[]")
    with pytest.raises(InvalidFileError, match=r"tokenizer\.json"):
        plan_of(broken)
    path.unlink()
    with pytest.raises(ModelNotFoundError, match=r"no tokenizer\.json"):
        plan_of(broken)


@pytest.mark.parametrize(
    "change",
    [
        {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [1, 2]}},
        {"model": {"type": "BPE", "vocab": ["a"]}},
        {"model": [1]},
        {"added_tokens": "abc"},
        {"added_tokens": [{"id": "x", "content": "a"}]},
        {"pre_tokenizer": {"type": "Sequence", "pretokenizers": "ab"}},
    ],
)
def test_a_damaged_tokenizer_is_refused(change: dict[str, Any], broken: Path) -> None:
    path = broken / "tokenizer.json"
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **change}), encoding="utf-8")
    with pytest.raises(InvalidFileError, match="this is no tokenizer"):
        plan_of(broken)


@pytest.mark.skipif(os.name != "posix", reason="links as POSIX has them")
def test_links_that_lead_nowhere_count_as_nothing(broken: Path) -> None:
    (broken / "odd.json").symlink_to("odd.json")
    assert plan_of(broken).warnings == ()
    shard = broken / "model-00002-of-00003.safetensors"
    shard.unlink()
    shard.symlink_to(shard.name)
    with pytest.raises(IncompleteSetError, match=r"1 weight file is missing: model-00002-of-00003\.safetensors"):
        plan_of(broken)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"block_length": "x"}, "block_length is 'x'"),
        ({"block_length": 33}, "block_length is 33"),
        ({"mask_token": [1]}, "mask_token is of type list"),
        ({"mask_token": True}, "mask_token is of type bool"),
        ({"outtype": ["bf16"]}, "outtype is "),
        ({"overwrite": "yes"}, "overwrite is 'yes'"),
        ({"progress": 1}, "progress must be a function or None"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], words: str, sound: tuple[Path, Oracle], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=words):
        pyclover.convert(sound[0], tmp_path / "x.gguf", dry_run=True, **arguments)


def test_places_where_no_file_may_be_made(broken: Path, tmp_path: Path) -> None:
    """Found before anything is written, and in a dry run too."""
    shard = broken / "model-00001-of-00003.safetensors"
    before = shard.read_bytes()
    link = tmp_path / "link.gguf"
    link.symlink_to("nothing")
    for out, overwrite, words in (
        (shard, True, "this file is a part of the checkpoint"),
        (tmp_path / "none" / "x.gguf", False, "there is no such folder"),
        (f"{tmp_path / 'none'}/", False, "none: there is no such folder"),
        (link, False, "there is a file of that name"),
    ):
        with pytest.raises(ConvertError, match=words):
            pyclover.convert(broken, out, overwrite=overwrite, dry_run=True)
    assert shard.read_bytes() == before


def test_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="no such folder"):
        plan_of(tmp_path / "none")
    with pytest.raises(InvalidFileError, match="this is a file"):
        plan_of(FILE)
    with pytest.raises(ModelNotFoundError, match=r"no config\.json"):
        plan_of(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").write_text("")
    with pytest.raises(ModelNotFoundError, match=r"pytorch_model\.bin"):
        plan_of(tmp_path)


# --- the Python that the converter needs ---


def fake_python(folder: Path, line: str) -> str:
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@pytest.mark.skipif(os.name != "posix", reason="a shell script")
def test_a_python_without_the_packages_is_named_with_what_it_lacks(tmp_path: Path) -> None:
    python = fake_python(tmp_path, """echo '["torch", "transformers"]'""")
    with pytest.raises(ConvertError, match=r"needs torch, transformers, which .* pip install 'pyclover\[convert\]'"):
        check_python(python)
    with pytest.raises(UsageError, match="does not run as a Python"):
        check_python(fake_python(tmp_path, "exit 1"))
    with pytest.raises(UsageError, match="does not run as a Python"):
        check_python(str(tmp_path / "none"))


# --- the new file ---


def test_the_part_is_taken_over_only_by_a_run_that_would_write_the_same(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    with Output(path, "key", resume=True) as out:
        os.write(out.fd, b"0123456789")
        out.synced(6)
    assert not path.exists()
    assert out.part.exists()
    with Output(path, "key", resume=True) as out:
        assert (out.kept_bytes, out.part.read_bytes()) == (6, b"012345")
    with Output(path, "other", resume=True) as out:
        assert (out.kept_bytes, out.part.read_bytes()) == (0, b"")
    assert list(tmp_path.iterdir()) == []  # nothing of it was on the disk


def test_a_run_without_resume_leaves_nothing(tmp_path: Path) -> None:
    with Output(tmp_path / "x.gguf", "key", resume=True) as out:
        os.write(out.fd, b"0123")
        out.synced(4)
    with Output(tmp_path / "x.gguf", "key", resume=False) as out:
        assert out.kept_bytes == 0
        out.discard()
        out.synced(4)
    assert list(tmp_path.iterdir()) == []


def test_two_writers_exclude_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fcntl")
    monkeypatch.setattr("pyclover.files.convert_output.LOCK_WAIT_S", 0.0)
    with (
        Output(tmp_path / "x.gguf", "key", resume=True),
        pytest.raises(ConvertError, match="another process"),
    ):
        Output(tmp_path / "x.gguf", "key", resume=True)


def test_a_file_that_appears_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    with Output(path, "key", resume=True) as out:
        os.write(out.fd, b"new")
        path.write_bytes(b"old")
        with pytest.raises(ConvertError, match="there is a file of that name"):
            out.commit(overwrite=False)
        assert path.read_bytes() == b"old"
        out.commit(overwrite=True)
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_disk_without_room_is_refused(tmp_path: Path) -> None:
    with Output(tmp_path / "x.gguf", "key", resume=True) as out, pytest.raises(ConvertError) as caught:
        out.check_room(1 << 60)
    assert caught.value.needed_bytes == 1 << 60 > caught.value.free_bytes > 0


def test_room_is_told_in_a_unit_that_shows_the_difference(tmp_path: Path) -> None:
    for needed, free, words in (
        (5 << 20, 3 << 20, "5.00 MiB are needed and 3.00 MiB are free"),
        (65 << 30, 1 << 20, "65.00 GiB are needed and 1.00 MiB are free"),
    ):
        assert words in str(no_room(tmp_path, needed, free))


def test_what_is_no_file_is_not_replaced(tmp_path: Path) -> None:
    link = tmp_path / "null.gguf"
    link.symlink_to("/dev/null")
    for path in (link, tmp_path):
        with pytest.raises(ConvertError, match="give the name of a file"):
            Output(path, "key", resume=True)
    assert [p.name for p in tmp_path.iterdir()] == ["null.gguf"]


# --- a checkpoint on the hub ---


@pytest.fixture
def hub(sound: tuple[Path, Oracle], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    files = {path.name: path.read_bytes() for path in sound[0].iterdir()}
    small = tuple(name for name in files if not name.endswith(".safetensors"))
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYCLOVER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("pyclover.hub.hf_cache.find", lambda offer: ())
    monkeypatch.setattr("pyclover.hub.hf_cache.listing", lambda repo, revision: None)
    with fake_hub() as running:
        running.add("owner/Clover", files, small=small)
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        yield running


def test_a_plan_of_a_repository_reads_headers_only(hub: FakeHub, sound: tuple[Path, Oracle], tmp_path: Path) -> None:
    source = HubSource("owner/Clover")
    plan = make_plan(source, outtype="f32")
    local = plan_of(sound[0], outtype="f32")
    assert plan.tensors == local.tensors
    assert plan.small_files == local.small_files
    assert list((tmp_path / "cache").rglob("*.safetensors")) == []
    assert source.missing_bytes()[0] == sum(p.stat().st_size for p in sound[0].glob("*.safetensors"))


@pytest.mark.parametrize("keep", [True, False])
def test_weight_files_come_one_by_one_and_are_checked(
    keep: bool, hub: FakeHub, sound: tuple[Path, Oracle], tmp_path: Path
) -> None:
    source = HubSource("owner/Clover", keep=keep)
    names = [name for name in source.names if name.endswith(".safetensors")]
    for name in names:
        assert source.fetch(name).read_bytes() == (sound[0] / name).read_bytes()
        assert source.fetch(name) == source.folder / name
        source.release(name)
        here = {path.name for path in (tmp_path / "cache").rglob("*.safetensors")}
        assert here == (set(names[: names.index(name) + 1]) if keep else set())
    if keep:
        hub.requests.clear()
        again = HubSource("owner/Clover")
        assert [again.fetch(name).name for name in names] == names
        assert hub.content_requests() == []


def test_a_weight_file_that_is_wrong_is_refused(hub: FakeHub) -> None:
    from fake_hub import Fault

    source = HubSource("owner/Clover")
    hub.always = Fault(flip=5000)
    with pytest.raises(FileError, match="SHA-256"):
        source.fetch("model-00002-of-00003.safetensors")
