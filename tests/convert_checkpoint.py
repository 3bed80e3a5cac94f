"""A checkpoint in Hugging Face's form, made from a Clover GGUF by inverting the conversion with gguf-py and numpy."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np

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
    }
    if "output.weight" in o.tensors:
        out["lm_head.weight"] = o.tensors["output.weight"]
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
        "tie_word_embeddings": "output.weight" not in o.tensors,
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
        **{
            name: o.key(f"diffusion.{name}")
            for name in ("expert_coreset_share", "expert_coreset_min")
            if f"{ARCH}.diffusion.{name}" in o.meta
        },
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


def write_shards(folder: Path, config: dict[str, Any], tensors: dict[str, Array], n: int = 3) -> list[Path]:
    """The checkpoint in n weight files with an index; the first ones get more tensors."""
    names = sorted(tensors)
    size = -(-len(names) // n)
    weight_map, paths = {}, []
    for i in range(n):
        part = names[i * size : (i + 1) * size]
        path = folder / f"model-{i + 1:05d}-of-{n:05d}.safetensors"
        write_safetensors(path, {name: tensors[name] for name in part})
        weight_map |= dict.fromkeys(part, path.name)
        paths.append(path)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    return paths


def make_checkpoint(folder: Path, gguf_file: Path, *, fused: bool = True, shards: int = 3) -> Oracle:
    """A whole checkpoint with tokenizer in a new folder, from a GGUF of F32 or F16 weights."""
    o = Oracle(gguf_file)
    folder.mkdir()
    write_tokenizer(folder, o, QWEN35_SPLIT, mask_in_tokenizer=True)
    tensors = {name: a.astype(np.float32) for name, a in checkpoint_tensors(o, fused_experts=fused).items()}
    write_shards(folder, config_of(o), tensors, shards)
    return o
