"""Clover's metadata and tensors against upstream's behaviour (oracle) and the tables of its FACTS."""

from __future__ import annotations

import functools
import importlib.util
import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from pyclover.errors import UnsupportedModelError
from pyclover.files import CloverFacts, ModelFacts, check_model, read_header, validate
from pyclover.files.clover import check_clover

ORACLE = Path(__file__).parents[1] / "oracle"
CASES: list[dict[str, Any]] = json.loads((ORACLE / "expected" / "load_cases.json").read_text())


def load_maker() -> Any:
    spec = importlib.util.spec_from_file_location("make_tiny_clover", ORACLE / "make_tiny_clover.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


MAKER = load_maker()
MAKER.build_vocab = functools.cache(MAKER.build_vocab)  # the same for nearly all cases, and most of their time


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """tiny("--drop-key", …) -> path of a tiny Clover made by the oracle's generator."""

    def make(*args: str, preset: str = "a") -> Path:
        path = tmp_path / "m.gguf"
        monkeypatch.setattr(sys, "argv", ["make_tiny_clover", str(path), "--preset", preset, *args])
        MAKER.main()
        return path

    return make


def clover(path: Path) -> CloverFacts:
    facts = check_model(read_header(path))
    assert isinstance(facts, CloverFacts)
    return facts


def only_warns(case: dict[str, Any]) -> bool:
    """The two kinds of file that upstream refuses and this package loads: model.md, section 2."""
    return case["case"].startswith(("no expert_shared_count", "1 extra", "4 extra"))


@pytest.mark.parametrize("case", CASES, ids=lambda c: c["case"])
def test_load_cases(case: dict[str, Any], tiny: Any) -> None:
    path = tiny(*case["args"], preset=case["preset"])
    if case["loads"] or only_warns(case):
        model = validate(path)
        assert model.facts.capabilities.plain
        assert bool(model.warnings) == (only_warns(case) or case["case"] == "no tokenizer.ggml.pre")
        return
    with pytest.raises(UnsupportedModelError) as caught:
        validate(path)
    key, message = caught.value.key, str(caught.value)
    assert key
    assert f"'{key}'" in message or f"({key})" in message
    assert "\n" not in message
    upstream = " ".join(case["messages"])
    if case["case"] == "no attention.head_count":  # upstream only trips over the shapes that follow from it
        assert key == "clover_moe.attention.head_count"
    elif "key not found in model: " in upstream or "check_tensor_dims: tensor '" in upstream:
        assert key in upstream  # the same key or tensor that upstream complains about


def test_missing_shared_count_is_a_warning(tiny: Any) -> None:
    facts = clover(tiny("--no-shared-count"))
    assert facts.n_expert_shared == 1
    assert facts.expert_shared_count_missing
    assert "clover_moe.expert_shared_count" in facts.warnings[0]
    assert "works as it is" in facts.warnings[0]
    assert clover(tiny("--no-shared-count", preset="c")).n_expert_shared == 0


def test_unknown_tensors_are_listed(tiny: Any) -> None:
    facts = clover(tiny("--extra", "2"))
    assert [(t.name, t.shape) for t in facts.unknown_tensors] == [
        ("blk.0.ssm_conv1d_right.weight", (4, 8)),
        ("blk.1.ssm_conv1d_right.weight", (4, 8)),
    ]
    assert "blk.1.ssm_conv1d_right.weight [4, 8]" in facts.warnings[0]
    assert not facts.preview_tensors


def drop(key: str) -> list[str]:
    return ["--drop-key", key]


def put(kind: str, key: str, value: str) -> list[str]:
    return [*drop(key), "--add-key", f"{kind}:{key}={value}"]


REFUSED = {
    "head_count 0": (put("uint32", "attention.head_count", "0"), "clover_moe.attention.head_count"),
    "kv heads 0": (put("uint32", "attention.head_count_kv", "0"), "clover_moe.attention.head_count_kv"),
    "kv heads 3 of 4": (put("uint32", "attention.head_count_kv", "3"), "clover_moe.attention.head_count_kv"),
    "head_count u64": (put("uint64", "attention.head_count", "4"), "clover_moe.attention.head_count"),
    "head_count i32": (put("int32", "attention.head_count", "4"), "clover_moe.attention.head_count"),
    "heads differ": (put("array", "attention.head_count", "[4,4,4,2]"), "clover_moe.attention.head_count"),
    "heads negative": (put("array", "attention.head_count", "[-4,4,4,4]"), "clover_moe.attention.head_count"),
    "n_rot odd": (put("uint32", "rope.dimension_count", "15"), "clover_moe.rope.dimension_count"),
    "n_rot too large": (put("uint32", "rope.dimension_count", "34"), "clover_moe.rope.dimension_count"),
    "n_rot 0": (put("uint32", "rope.dimension_count", "0"), "clover_moe.rope.dimension_count"),
    "too many used": (put("uint32", "expert_used_count", "9"), "clover_moe.expert_used_count"),
    "none used": (put("uint32", "expert_used_count", "0"), "clover_moe.expert_used_count"),
    "used array short": (put("array", "expert_used_count", "[2,2,2]"), "clover_moe.expert_used_count"),
    "experts 0": (put("uint32", "expert_count", "0"), "clover_moe.expert_count"),
    "experts 1025": (put("uint32", "expert_count", "1025"), "clover_moe.expert_count"),
    "groups": (["--add-key", "uint32:expert_group_count=3"], "clover_moe.expert_group_count"),
    "context 0": (put("uint32", "context_length", "0"), "clover_moe.context_length"),
    "embedding 0": (put("uint32", "embedding_length", "0"), "clover_moe.embedding_length"),
    "no layers": (put("uint32", "block_count", "0"), "clover_moe.block_count"),
    "513 layers": (put("uint32", "block_count", "513"), "clover_moe.block_count"),
    "block_count float": (put("float32", "block_count", "4"), "clover_moe.block_count"),
    "one layer more": (put("uint32", "block_count", "5"), "blk.4.attn_norm.weight"),
    "eps NaN": (
        put("float32", "attention.layer_norm_rms_epsilon", "NaN"),
        "clover_moe.attention.layer_norm_rms_epsilon",
    ),
    "eps negative": (
        put("float32", "attention.layer_norm_rms_epsilon", "-1"),
        "clover_moe.attention.layer_norm_rms_epsilon",
    ),
    "eps f64": (
        put("float64", "attention.layer_norm_rms_epsilon", "1e-6"),
        "clover_moe.attention.layer_norm_rms_epsilon",
    ),
    "theta infinite": (put("float32", "rope.freq_base", "Infinity"), "clover_moe.rope.freq_base"),
    "causal u32": (["--add-key", "uint32:attention.causal=1"], "clover_moe.attention.causal"),
    "rope scaling": (["--add-key", 'string:rope.scaling.type="cubic"'], "clover_moe.rope.scaling.type"),
    "recurrent short": (
        ["--add-key", "array:attention.recurrent_layers=[1,1,0]"],
        "clover_moe.attention.recurrent_layers",
    ),
    "recurrent strings": (
        ["--add-key", 'array:attention.recurrent_layers=["a","b","c","d"]'],
        "clover_moe.attention.recurrent_layers",
    ),
    "recurrent all": (
        ["--add-key", "array:attention.recurrent_layers=[1,1,1,1]"],
        "clover_moe.attention.recurrent_layers",
    ),
    "ffn array short": (put("array", "expert_feed_forward_length", "[24,24]"), "clover_moe.expert_feed_forward_length"),
    "ffn 0": (put("uint32", "expert_feed_forward_length", "0"), "clover_moe.expert_feed_forward_length"),
    "ffn wrong in one layer": (
        put("array", "expert_feed_forward_length", "[24,24,32,24]"),
        "blk.2.ffn_down_exps.weight",
    ),
    "conv_kernel 0": (put("uint32", "ssm.conv_kernel", "0"), "clover_moe.ssm.conv_kernel"),
    "conv_kernel 3": (put("uint32", "ssm.conv_kernel", "3"), "blk.0.ssm_conv1d.weight"),
    "group_count 0": (put("uint32", "ssm.group_count", "0"), "clover_moe.ssm.group_count"),
    "eos outside": (put("uint32", "tokenizer.ggml.eos_token_id", "100000"), "tokenizer.ggml.eos_token_id"),
    "mask outside": (put("uint32", "tokenizer.ggml.mask_token_id", "100000"), "tokenizer.ggml.mask_token_id"),
    "padding outside": (put("uint32", "tokenizer.ggml.padding_token_id", "100000"), "tokenizer.ggml.padding_token_id"),
    "eos i32": (put("int32", "tokenizer.ggml.eos_token_id", "3"), "tokenizer.ggml.eos_token_id"),
    "add_bos u32": (put("uint32", "tokenizer.ggml.add_bos_token", "0"), "tokenizer.ggml.add_bos_token"),
    "no tokenizer": (drop("tokenizer.ggml.model"), "tokenizer.ggml.model"),
    "unknown tokenizer": (put("string", "tokenizer.ggml.model", '"clover"'), "tokenizer.ggml.model"),
    "scores short": (["--add-key", "array:tokenizer.ggml.scores=[0.5]"], "tokenizer.ggml.scores"),
    "diffusion.block_length f32": (
        ["--add-key", "float32:diffusion.block_length=32"],
        "clover_moe.diffusion.block_length",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_crash_is_refused(name: str, tiny: Any) -> None:
    args, key = REFUSED[name]
    path = tiny(*args)
    with pytest.raises(UnsupportedModelError) as caught:
        validate(path)
    assert caught.value.key == key
    assert caught.value.path == str(path)
    assert key in str(caught.value)


def rewrite(source: Path, target: Path, **changes: Any) -> Path:
    """Copy a tiny model with the gguf package, with the tokenizer's arrays or some tensors changed.

    changes: tokens, token_type, merges -> list or None; tensors -> {name: array or None}; rename -> {old: new}.
    """
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, "clover_moe")
    lists = {f"tokenizer.ggml.{k}": changes[k] for k in ("tokens", "token_type", "merges") if k in changes}
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture":
            continue
        if key in lists:
            if lists[key] is not None:
                writer.add_array(key, lists[key])
        elif field.types[0] is gguf.GGUFValueType.ARRAY:
            writer.add_array(key, field.contents())
        else:
            writer.add_key_value(key, field.contents(), field.types[0])
    tensors = changes.get("tensors", {})
    for t in reader.tensors:
        value = tensors.get(t.name, t.data)
        if value is not None:
            writer.add_tensor(changes.get("rename", {}).get(t.name, t.name), np.ascontiguousarray(value))
    for name in set(tensors) - {t.name for t in reader.tensors}:
        writer.add_tensor(name, tensors[name])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


TINY_A = ORACLE / "expected" / "tiny_a.gguf"
PREVIEW_A = ORACLE / "expected_preview" / "tiny_a_preview.gguf"
TOKENS: list[str] = gguf.GGUFReader(TINY_A).fields["tokenizer.ggml.tokens"].contents()


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"tokens": [*TOKENS[:-1], TOKENS[0]]}, "tokenizer.ggml.tokens"),  # llama.cpp asserts that no two are alike
        ({"tokens": [*TOKENS[:-2], "", f"[EMPTY_{len(TOKENS) - 2}]"]}, "tokenizer.ggml.tokens"),
        ({"tokens": [*TOKENS[:-1], TOKENS[5] + "\0x"]}, "tokenizer.ggml.tokens"),
        ({"tokens": None}, "tokenizer.ggml.tokens"),
        ({"tokens": [1, 2, 3]}, "tokenizer.ggml.tokens"),
        ({"tokens": [*TOKENS, "more"], "token_type": [1] * (len(TOKENS) + 1)}, "token_embd.weight"),
        ({"token_type": [1] * 10}, "tokenizer.ggml.token_type"),
        ({"token_type": ["x"] * len(TOKENS)}, "tokenizer.ggml.token_type"),
        ({"merges": None}, "tokenizer.ggml.merges"),
        ({"merges": [1, 2]}, "tokenizer.ggml.merges"),
        ({"tensors": {"output_norm.weight": np.ones(64, np.float16)}}, "output_norm.weight"),
        ({"tensors": {"output_norm.weight": np.ones(63, np.float32)}}, "output_norm.weight"),
        ({"tensors": {"blk.0.ssm_out.weight": np.ones((64, 64), np.int32)}}, "blk.0.ssm_out.weight"),
        ({"tensors": {"token_embd.weight": None}}, "token_embd.weight"),
        ({"tensors": {"blk.3.attn_k.bias": np.ones(63, np.float32)}}, "blk.3.attn_k.bias"),
    ],
    ids=str,
)
def test_vocabulary_and_tensors(changes: dict[str, Any], key: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        validate(rewrite(TINY_A, tmp_path / "m.gguf", **changes))
    assert caught.value.key == key


def test_optional_tensors_are_known(tmp_path: Path) -> None:
    extra = {
        "blk.3.attn_q.bias": np.zeros(256, np.float32),
        "blk.3.attn_q.scale": np.ones(1, np.float32),
        "blk.0.ffn_up_exps.scale": np.ones(8, np.float32),
    }
    model = validate(rewrite(TINY_A, tmp_path / "m.gguf", tensors=extra))
    assert model.warnings == ()


def test_facts_of_the_tiny_models() -> None:
    facts = clover(TINY_A)  # make_tiny_clover.py, preset a
    assert facts.layer_kinds == ("linear", "linear", "linear", "full")
    assert (facts.n_embd, facts.n_ctx_train, facts.n_head, facts.n_head_kv, facts.head_dim, facts.n_rot) == (
        64,
        4096,
        4,
        2,
        32,
        16,
    )
    assert (facts.ssm_conv_kernel, facts.ssm_state_size, facts.ssm_group_count, facts.ssm_time_step_rank) == (
        4,
        16,
        2,
        4,
    )
    assert (facts.n_expert, facts.n_expert_used, facts.n_ff_exp, facts.n_ff_shexp) == (8, (2,) * 4, (24,) * 4, 32)
    assert math.isclose(facts.rms_eps, 1e-6, rel_tol=1e-6)
    assert not facts.tied_output
    assert clover(ORACLE / "expected" / "tiny_b.gguf").tied_output


@pytest.mark.parametrize("path", [TINY_A, PREVIEW_A, ORACLE / "expected" / "tiny_b.gguf"], ids=lambda p: p.stem)
def test_parameter_counts(path: Path) -> None:
    tensors = gguf.GGUFReader(path).tensors
    total = sum(int(t.n_elements) for t in tensors)
    routed = sum(int(t.n_elements) for t in tensors if "_exps." in t.name)
    facts = clover(path)
    used = facts.n_expert_used[0] / facts.n_expert
    assert facts.n_params == total
    assert facts.n_params_active == total - round(routed * (1 - used))


def test_preview_tensors_under_their_own_names() -> None:
    facts = clover(PREVIEW_A)
    assert len(facts.preview_tensors) == 3 * 4
    assert facts.preview_complete
    assert facts.unknown_tensors == ()
    assert len(facts.warnings) == 1  # made without expert_shared_count, as official files are
    assert facts.capabilities.draft_self
    assert facts.capabilities.block_diffusion
    # shapes [1, R] and one number
    assert clover(ORACLE / "expected_preview" / "tiny_b_preview.gguf").preview_complete


@pytest.mark.parametrize("shape", ["R", "1R", "scalar"])
def test_preview_shapes_that_broadcast(shape: str, tiny: Any) -> None:
    assert clover(tiny("--preview", "--set", f"bd_shape={shape}")).preview_complete


def test_preview_tensors_under_other_names(tmp_path: Path) -> None:
    """The endings of the checkpoint's names (model.md, section 4)."""
    rename = {
        f"blk.{i}.{ours}": f"blk.{i}.linear_attn.{theirs}"
        for i in range(3)
        for ours, theirs in {
            "ssm_conv1d_right.weight": "conv_right_weight",
            "ssm_bd_logit_scale": "bd_softmax_logit_scale",
            "ssm_bd_history_bias": "bd_softmax_history_bias",
            "ssm_bd_history_c": "bd_softmax_history_c",
        }.items()
    }
    facts = clover(rewrite(PREVIEW_A, tmp_path / "m.gguf", rename=rename))
    assert facts.preview_complete
    assert dict(facts.preview_tensors) == rename
    assert facts.unknown_tensors == ()


class Counted(str):
    """A name that counts how often it is compared."""

    n = 0

    def __eq__(self, other: object) -> bool:
        Counted.n += 1
        return str(self) == other

    __hash__ = str.__hash__


def test_many_foreign_tensors_are_not_compared_with_every_preview_tensor() -> None:
    """A file may have any number of tensors with an alias's keyword, and 512 layers."""
    header = read_header(PREVIEW_A)
    stranger = next(t for t in header.tensors if t.name == "blk.0.ssm_bd_history_c")
    many = [replace(stranger, name=Counted(f"blk.{i % 3}.my_history_c_{i}")) for i in range(3000)]
    Counted.n = 0
    facts = check_clover(header, [*many, *header.tensors])
    assert len(facts.unknown_tensors) == 3000
    assert facts.preview_complete
    assert all(name == own for name, own in facts.preview_tensors.items())  # the file's own go before all others
    assert Counted.n <= 2 * 3000  # a few comparisons for each of them


def test_canonical_name_with_the_wrong_shape_is_unknown(tmp_path: Path) -> None:
    path = rewrite(PREVIEW_A, tmp_path / "m.gguf", tensors={"blk.1.ssm_bd_history_c": np.ones(3, np.float32)})
    facts = clover(path)
    assert [t.name for t in facts.unknown_tensors] == ["blk.1.ssm_bd_history_c"]
    assert facts.preview_missing == ("blk.1.ssm_bd_history_c",)
    assert facts.capabilities.plain
    assert "blk.1.ssm_bd_history_c" in facts.capabilities.draft_self.reason


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        ([], "no preview tensors"),
        (["--preview", "--no-mask"], "tokenizer.ggml.mask_token_id"),
        (["--preview", "--block", "33"], "clover_moe.diffusion.block_length is 33"),
        (["--preview", "--coreset", "1"], "expert_coreset"),
        (["--preview", "--add-key", "bool:attention.causal=false"], "attention.causal"),
        (["--preview", "--drop-tensor", "blk.2.ssm_bd_logit_scale"], "blk.2.ssm_bd_logit_scale"),
    ],
    ids=str,
)
def test_why_it_cannot_draft(args: list[str], reason: str, tiny: Any) -> None:
    capabilities = clover(tiny(*args)).capabilities
    assert capabilities.plain
    for mode in (capabilities.draft_self, capabilities.block_diffusion):
        assert not mode
        assert reason in mode.reason


def other(path: Path, arch: str, keys: dict[str, Any], tokens: list[str] | None = None) -> ModelFacts:
    """Of a small model of any architecture; a key that is None is left out."""
    writer = gguf.GGUFWriter(path, arch)
    sizes = {f"{arch}.context_length": 8, f"{arch}.embedding_length": 8, f"{arch}.block_count": 1}
    for key, value in {k: v for k, v in {**sizes, **keys}.items() if v is not None}.items():
        writer.add_string(key, value) if isinstance(value, str) else writer.add_uint32(key, value)
    if tokens is not None:
        writer.add_string("tokenizer.ggml.model", "llama")
        writer.add_token_list(tokens)
    writer.add_tensor("token_embd.weight", np.ones((3, 8), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return check_model(read_header(path))


def test_other_architectures_are_left_to_llama_cpp(tmp_path: Path) -> None:
    facts = other(tmp_path / "a", "llama", {"llama.block_count": 2, "tokenizer.ggml.eos_token_id": 77}, ["a", "b", "c"])
    assert facts.problems == ()
    assert facts.capabilities.plain
    assert "llama" in facts.capabilities.draft_self.reason
    assert "tokenizer.ggml.eos_token_id" in facts.warnings[0]  # llama.cpp warns and goes on
    # state-space models have no heads
    assert not other(tmp_path / "b", "mamba", {"mamba.block_count": 2, "mamba.attention.head_count": 0}, ["a"]).problems
    assert not other(tmp_path / "c", "clip", {"clip.block_count": None, "clip.context_length": None}).problems


@pytest.mark.parametrize(
    ("keys", "key"),
    [
        ({"llama.block_count": 0}, "llama.block_count"),
        ({"llama.block_count": None}, "llama.block_count"),
        ({"llama.context_length": None}, "llama.context_length"),
        ({"llama.embedding_length": None}, "llama.embedding_length"),
        ({"llama.block_count": 600}, "llama.block_count"),
        ({"llama.expert_count": 4}, "llama.expert_used_count"),
        ({"llama.block_count": 2, "llama.expert_used_count": 4}, "llama.expert_used_count"),
        ({"llama.attention.head_count": 4, "llama.attention.head_count_kv": 3}, "llama.attention.head_count_kv"),
        ({"llama.rope.scaling.type": "cubic"}, "llama.rope.scaling.type"),
        ({"general.type": "adapter"}, "general.type"),
    ],
    ids=str,
)
def test_what_aborts_for_any_architecture(keys: dict[str, Any], key: str, tmp_path: Path) -> None:
    assert [p.key for p in other(tmp_path / "m", "llama", keys, ["a", "b", "c"]).problems] == [key]
    assert other(tmp_path / "d", "llama", {}, ["a", "a"]).problems[0].key == "tokenizer.ggml.tokens"
