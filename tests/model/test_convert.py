"""A checkpoint in Hugging Face's form, made by inverting the conversion, must convert back to the oracle's GGUF."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
ORACLE = ROOT / "tests" / "oracle" / "expected_preview"
ARCH = "clover_moe"
# The split rule of Qwen3.5's published tokenizer.json.
QWEN35_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2_SPLIT = QWEN35_SPLIT.replace(r"[\p{L}\p{M}]+", r"\p{L}+").replace(r"\p{M}", "")

Array = np.ndarray[Any, np.dtype[Any]]

# GGUF name in a block -> name below model.layers.N in a checkpoint, for tensors that are stored alike.
PLAIN = {
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "ssm_norm.weight": "linear_attn.norm.weight",
    "ffn_gate_inp.weight": "mlp.gate.weight",
    "ffn_gate_shexp.weight": "mlp.shared_expert.gate_proj.weight",
    "ffn_up_shexp.weight": "mlp.shared_expert.up_proj.weight",
    "ffn_down_shexp.weight": "mlp.shared_expert.down_proj.weight",
}
# Checkpoints hold these norms less one.
NORMS = {
    "attn_norm.weight": "input_layernorm.weight",
    "post_attention_norm.weight": "post_attention_layernorm.weight",
    "attn_q_norm.weight": "self_attn.q_norm.weight",
    "attn_k_norm.weight": "self_attn.k_norm.weight",
}
PER_HEAD = {
    "ssm_bd_logit_scale": "linear_attn.bd_softmax_logit_scale",
    "ssm_bd_history_bias": "linear_attn.bd_softmax_history_bias",
    "ssm_bd_history_c": "linear_attn.bd_softmax_history_c",
}
# Forms in which the right kernel and the vectors per head may come, one for each layer in turn.
KERNEL_FORMS: list[Callable[[Array], Array]] = [lambda a: a, lambda a: a[:, None, :], lambda a: a.T]
VECTOR_FORMS: list[Callable[[Array], Array]] = [lambda a: a, lambda a: a[None, :], lambda a: a[:, None]]


# Runs the script once for each line of arguments: importing torch takes longer than a conversion of this size.
DRIVER = """
import contextlib, io, json, logging, runpy, sys, traceback
script, replies = sys.argv[1], sys.stdout
sys.path.insert(0, script.rpartition("/")[0])
for line in sys.stdin:
    sys.argv = [script, *json.loads(line)]
    logging.root.handlers.clear()
    text, code = io.StringIO(), 0
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        try:
            runpy.run_path(script, run_name="__main__")
        except SystemExit as e:
            code = e.code or 0
        except BaseException:
            code = 1
            traceback.print_exc()
    print(json.dumps([code, text.getvalue()]), file=replies, flush=True)
"""


class Converter:
    """The patched tree's convert_hf_to_gguf.py in a child process."""

    def __init__(self, script: Path) -> None:
        self.child = subprocess.Popen(
            [sys.executable, "-c", DRIVER, script.as_posix()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        )

    def run(self, folder: Path, outtype: str = "f32") -> tuple[Path, int, str]:
        """Path of the result, exit code, and what the script said."""
        assert self.child.stdin is not None
        assert self.child.stdout is not None
        out = folder / "out.gguf"
        print(json.dumps([str(folder), "--outfile", str(out), "--outtype", outtype]), file=self.child.stdin, flush=True)
        reply = self.child.stdout.readline()
        assert reply, "the converter's process ended"
        code, text = json.loads(reply)
        return out, code, text


@pytest.fixture(scope="session")
def converter() -> Iterator[Converter]:
    for module in ("torch", "transformers"):
        pytest.importorskip(module, reason=f"llama.cpp's converter needs {module}")
    tree = Path(os.environ.get("PYCLOVER_LLAMA_SRC") or ROOT / "build" / "llama.cpp")
    script = tree / "convert_hf_to_gguf.py"
    for needed in (script, tree / "conversion" / "clover.py"):
        if not needed.is_file():
            pytest.skip(f"{needed} is missing: build first, or set PYCLOVER_LLAMA_SRC to a patched and configured tree")
    running = Converter(script)
    yield running
    running.child.communicate()


class Oracle:
    """One of the oracle's files: metadata and tensors (row-major arrays)."""

    def __init__(self, path: Path) -> None:
        reader = gguf.GGUFReader(path)
        self.meta: dict[str, Any] = {k: f.contents() for k, f in reader.fields.items() if not k.startswith("GGUF.")}
        self.types = {t.name: t.tensor_type for t in reader.tensors}
        self.tensors: dict[str, Array] = {t.name: np.array(t.data).reshape(t.shape[::-1]) for t in reader.tensors}

    def key(self, name: str) -> Any:
        return self.meta[f"{ARCH}.{name}"]


def grouped(a: Array, axis: int, groups: int, head: int) -> Array:
    """Value heads from GGUF's order (h has key head h mod groups) to a checkpoint's (those of a key head together)."""
    heads = a.shape[axis] // head
    order = [h for g in range(groups) for h in range(heads) if h % groups == g]
    return np.take(a, [h * head + i for h in order for i in range(head)], axis=axis)


def checkpoint_tensors(o: Oracle, fused_experts: bool) -> dict[str, Array]:
    groups, head = o.key("ssm.group_count"), o.key("ssm.state_size")
    qk = 2 * groups * head

    def conv_rows(a: Array) -> Array:
        return np.concatenate([a[:qk], grouped(a[qk:], 0, groups, head)])

    out = {
        "model.embed_tokens.weight": o.tensors["token_embd.weight"],
        "model.norm.weight": o.tensors["output_norm.weight"] - 1,
        "lm_head.weight": o.tensors["output.weight"],
    }
    n_linear = 0
    for i in range(o.key("block_count")):
        to = f"model.layers.{i}."
        t = {k.removeprefix(f"blk.{i}."): v for k, v in o.tensors.items() if k.startswith(f"blk.{i}.")}
        out |= {to + hf: t.pop(name) for name, hf in PLAIN.items() if name in t}
        out |= {to + hf: t.pop(name) - 1 for name, hf in NORMS.items() if name in t}
        out[to + "mlp.shared_expert_gate.weight"] = t.pop("ffn_gate_inp_shexp.weight")[None, :]
        gate, up, down = (t.pop(f"ffn_{kind}_exps.weight") for kind in ("gate", "up", "down"))
        if fused_experts:
            out[to + "mlp.experts.gate_up_proj"] = np.concatenate([gate, up], axis=1)
            out[to + "mlp.experts.down_proj"] = down
        else:
            for x in range(o.key("expert_count")):
                for kind, a in (("gate", gate), ("up", up), ("down", down)):
                    out[to + f"mlp.experts.{x}.{kind}_proj.weight"] = a[x]
        if "ssm_a" in t:
            lin = to + "linear_attn."
            out[lin + "in_proj_qkv.weight"] = conv_rows(t.pop("attn_qkv.weight"))
            out[lin + "in_proj_z.weight"] = grouped(t.pop("attn_gate.weight"), 0, groups, head)
            out[lin + "in_proj_a.weight"] = grouped(t.pop("ssm_alpha.weight"), 0, groups, 1)
            out[lin + "in_proj_b.weight"] = grouped(t.pop("ssm_beta.weight"), 0, groups, 1)
            out[lin + "conv1d.weight"] = conv_rows(t.pop("ssm_conv1d.weight"))[:, None, :]
            out[lin + "dt_bias"] = grouped(t.pop("ssm_dt.bias"), 0, groups, 1)
            out[lin + "A_log"] = np.log(-grouped(t.pop("ssm_a"), 0, groups, 1))
            out[lin + "out_proj.weight"] = grouped(t.pop("ssm_out.weight"), 1, groups, head)
            form = n_linear % 3
            out[lin + "conv_right_weight"] = KERNEL_FORMS[form](conv_rows(t.pop("ssm_conv1d_right.weight")))
            for name, hf in PER_HEAD.items():
                out[to + hf] = VECTOR_FORMS[form](grouped(t.pop(name), 0, groups, 1))
            n_linear += 1
        assert not t, f"tensors without a counterpart: {sorted(t)}"
    return out


def write_safetensors(path: Path, tensors: dict[str, Array]) -> None:
    header, blobs, at = {}, [], 0
    for name, a in tensors.items():
        blob = np.ascontiguousarray(a, dtype="<f4").tobytes()
        header[name] = {"dtype": "F32", "shape": list(a.shape), "data_offsets": [at, at + len(blob)]}
        blobs.append(blob)
        at += len(blob)
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    path.write_bytes(struct.pack("<Q", len(head)) + head + b"".join(blobs))


def config_of(o: Oracle) -> dict[str, Any]:
    n, interval = o.key("block_count"), o.key("full_attention_interval")
    return {
        "architectures": ["CloverMoeModelLM"],
        "model_type": ARCH,
        "num_hidden_layers": n,
        "max_position_embeddings": o.key("context_length"),
        "hidden_size": o.key("embedding_length"),
        "vocab_size": len(o.meta["tokenizer.ggml.tokens"]),
        "num_attention_heads": o.key("attention.head_count"),
        "num_key_value_heads": o.key("attention.head_count_kv"),
        "head_dim": o.key("attention.key_length"),
        "rms_norm_eps": 1e-6,
        "num_experts": o.key("expert_count"),
        "num_experts_per_tok": o.key("expert_used_count"),
        "moe_intermediate_size": o.key("expert_feed_forward_length"),
        "shared_expert_intermediate_size": o.key("expert_shared_feed_forward_length"),
        "linear_conv_kernel_dim": o.key("ssm.conv_kernel"),
        "linear_key_head_dim": o.key("ssm.state_size"),
        "linear_value_head_dim": o.key("ssm.state_size"),
        "linear_num_key_heads": o.key("ssm.group_count"),
        "linear_num_value_heads": o.key("ssm.time_step_rank"),
        "layer_types": ["linear_attention" if (i + 1) % interval else "full_attention" for i in range(n)],
        # left-overs of the base model's configuration that must have no effect
        "is_causal": False,
        "rope_parameters": {
            "rope_type": "default",
            "mrope_section": [4, 2, 2],
            "rope_theta": o.key("rope.freq_base"),
            "partial_rotary_factor": o.key("rope.dimension_count") / o.key("attention.key_length"),
        },
        "block_length": o.key("diffusion.block_length"),
        "shift_logits": o.key("diffusion.shift_logits"),
        "expert_coreset": o.key("diffusion.expert_coreset"),
    }


def write_tokenizer(folder: Path, o: Oracle, split: str, mask_in_tokenizer: bool) -> None:
    tokens, types = o.meta["tokenizer.ggml.tokens"], o.meta["tokenizer.ggml.token_type"]
    added = [
        {
            "id": i,
            "content": tokens[i],
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": kind == gguf.TokenType.CONTROL,
        }
        for i, kind in enumerate(types)
        if kind != gguf.TokenType.NORMAL
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    first_added = added[0]["id"]
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": split}, "behavior": "Isolated", "invert": False},
                byte_level,
            ],
        },
        "post_processor": byte_level,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: i for i, token in enumerate(tokens[:first_added])},
            "merges": [m.split(" ") for m in o.meta["tokenizer.ggml.merges"]],
        },
    }
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": tokens[o.meta["tokenizer.ggml.eos_token_id"]],
        "pad_token": tokens[o.meta["tokenizer.ggml.padding_token_id"]],
        "add_bos_token": False,
        "chat_template": o.meta["tokenizer.chat_template"],
    }
    if mask_in_tokenizer:
        config["mask_token"] = tokens[o.meta["tokenizer.ggml.mask_token_id"]]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")


def write_checkpoint(folder: Path, config: dict[str, Any], tensors: dict[str, Array]) -> None:
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    write_safetensors(folder / "model.safetensors", tensors)


def assert_metadata(got: Oracle, want: Oracle) -> None:
    # the oracle's file a lacks expert_shared_count, as the official files do
    expected = {k: v for k, v in want.meta.items() if k.startswith((ARCH + ".", "tokenizer."))}
    expected |= {"general.architecture": ARCH, f"{ARCH}.expert_shared_count": 1}
    assert {k: got.meta.get(k) for k in expected} == expected
    assert not [k for k in got.meta if k.startswith(ARCH + ".") and k not in expected]


def test_fused_experts_and_grouped_heads(converter: Converter, tmp_path: Path) -> None:
    want = Oracle(ORACLE / "tiny_a_preview.gguf")
    assert want.key("ssm.time_step_rank") > want.key("ssm.group_count")  # else the order of heads is not tested
    write_tokenizer(tmp_path, want, QWEN35_SPLIT, mask_in_tokenizer=True)
    write_checkpoint(tmp_path, config_of(want), checkpoint_tensors(want, fused_experts=True))

    out, code, said = converter.run(tmp_path)

    assert code == 0, said[-3000:]
    got = Oracle(out)
    assert_metadata(got, want)
    assert got.tensors.keys() == want.tensors.keys()
    for name, a in want.tensors.items():
        assert got.types[name] == gguf.GGMLQuantizationType.F32, name
        assert got.tensors[name].shape == a.shape, name
        # adding one and exp(log()) round; everything else is moved, not computed
        rounds = name.endswith((*NORMS, "output_norm.weight", "ssm_a"))
        np.testing.assert_allclose(
            got.tensors[name], a, rtol=1e-6 if rounds else 0, atol=1e-6 if rounds else 0, err_msg=name
        )


def test_single_experts_f16_and_leftovers(converter: Converter, tmp_path: Path) -> None:
    """Experts one by one, mask token from config.json, one number for all heads, a dropped block, 16-bit output."""
    want = Oracle(ORACLE / "tiny_b_preview.gguf")
    write_tokenizer(tmp_path, want, QWEN35_SPLIT, mask_in_tokenizer=False)
    tensors = checkpoint_tensors(want, fused_experts=False)
    tensors["model.layers.0.linear_attn.bd_softmax_logit_scale"] = np.float32(3.5).reshape(())
    want.tensors["blk.0.ssm_bd_logit_scale"] = np.full(want.key("ssm.time_step_rank"), 3.5, np.float32)
    tensors["mtp.fc.weight"] = np.ones((2, 2), np.float32)
    config = config_of(want) | {"mask_token_id": want.meta["tokenizer.ggml.mask_token_id"]}
    write_checkpoint(tmp_path, config, tensors)

    out, code, said = converter.run(tmp_path, "f16")

    assert code == 0, said[-3000:]
    assert "mtp.fc.weight is left out" in said
    got = Oracle(out)
    assert_metadata(got, want)
    assert got.tensors.keys() == want.tensors.keys()
    for name, a in want.tensors.items():
        half = a.ndim > 1 and "ssm_conv1d" not in name and not name.endswith("ffn_gate_inp.weight")
        assert got.types[name] == getattr(gguf.GGMLQuantizationType, "F16" if half else "F32"), name
        if half:
            np.testing.assert_array_equal(got.tensors[name], a.astype(np.float16), err_msg=name)
        elif "ssm_conv1d" in name or "ssm_bd" in name:
            np.testing.assert_array_equal(got.tensors[name], a, err_msg=name)


def test_irregular_layers_without_block_pass(converter: Converter, tmp_path: Path) -> None:
    """No shared expert, no tensors of the block pass, no mask token, layer kinds that no interval describes."""
    want = Oracle(ORACLE / "tiny_b_preview.gguf")
    write_tokenizer(tmp_path, want, QWEN2_SPLIT, mask_in_tokenizer=False)
    # layers of b are linear, full, linear, full; without the second one no interval fits
    tensors = {
        name.replace("layers.2.", "layers.1.").replace("layers.3.", "layers.2."): a
        for name, a in checkpoint_tensors(want, fused_experts=True).items()
        if "layers.1." not in name and "shared_expert" not in name and "bd_" not in name and "right" not in name
    }
    tensors |= {k.replace("layers.2.", "layers.3."): a for k, a in tensors.items() if "layers.2." in k}
    config = config_of(want)
    config["layer_types"] = ["linear_attention", "linear_attention", "full_attention", "full_attention"]
    for key in ("shared_expert_intermediate_size", "block_length", "shift_logits", "expert_coreset"):
        del config[key]
    config["architectures"] = ["CloverMoeForCausalLM"]
    write_checkpoint(tmp_path, config, tensors)

    out, code, said = converter.run(tmp_path)

    assert code == 0, said[-3000:]
    assert "no tensors of the block pass" in said
    assert "no mask token" in said
    meta = Oracle(out).meta
    assert meta[f"{ARCH}.attention.recurrent_layers"] == [True, True, False, False]
    assert meta[f"{ARCH}.expert_shared_count"] == 0
    assert meta[f"{ARCH}.diffusion.block_length"] == 32
    assert meta["tokenizer.ggml.pre"] == "qwen2"
    absent = (
        "full_attention_interval",
        "expert_shared_feed_forward_length",
        "diffusion.shift_logits",
        "diffusion.expert_coreset",
    )
    assert not [k for k in absent if f"{ARCH}.{k}" in meta]
    assert "tokenizer.ggml.mask_token_id" not in meta


def bad_split(folder: Path, o: Oracle, config: dict[str, Any], tensors: dict[str, Array]) -> str:
    write_tokenizer(folder, o, r"\p{N}{1,3}|\p{L}+", mask_in_tokenizer=True)
    return "its pre_tokenizer is not known"


def lost_tensor(folder: Path, o: Oracle, config: dict[str, Any], tensors: dict[str, Array]) -> str:
    del tensors["model.layers.1.linear_attn.bd_softmax_history_c"]
    return "lacks some tensors of the block pass: blk.1.ssm_bd_history_c"


def odd_kernel(folder: Path, o: Oracle, config: dict[str, Any], tensors: dict[str, Array]) -> str:
    name = "model.layers.0.linear_attn.conv_right_weight"
    tensors[name] = tensors[name][:, :2]
    return f"{name}: shape [128, 2] is neither [128, 3]"


def wrong_layer(folder: Path, o: Oracle, config: dict[str, Any], tensors: dict[str, Array]) -> str:
    config["layer_types"] = ["full_attention", *["linear_attention"] * 3]
    return "layer 0 is a full attention layer by layer_types"


def long_block(folder: Path, o: Oracle, config: dict[str, Any], tensors: dict[str, Array]) -> str:
    config["block_length"] = 33
    return "the block length is 33, it must be 1 to 32"


@pytest.mark.parametrize("break_it", [bad_split, lost_tensor, odd_kernel, wrong_layer, long_block])
def test_a_bad_checkpoint_is_refused(
    converter: Converter,
    tmp_path: Path,
    break_it: Callable[[Path, Oracle, dict[str, Any], dict[str, Array]], str],
) -> None:
    o = Oracle(ORACLE / "tiny_a_preview.gguf")
    config, tensors = config_of(o), checkpoint_tensors(o, fused_experts=True)
    write_tokenizer(tmp_path, o, QWEN35_SPLIT, mask_in_tokenizer=True)
    sentence = break_it(tmp_path, o, config, tensors)
    write_checkpoint(tmp_path, config, tensors)

    out, code, said = converter.run(tmp_path)

    assert code != 0
    assert sentence in said.strip().splitlines()[-1]
    assert not out.exists()
