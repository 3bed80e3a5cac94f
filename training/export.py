"""Writes the trained model as a Hugging Face style checkpoint and, with the project's own converter, as a GGUF file.

`python -m training.export --out build/tiny` reads the run's checkpoint and writes OUT/hf and OUT/tiny.gguf.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from training.checkpoint import load_model
from training.config import ModelConfig, write_json
from training.layers import Attention, Clover, Experts
from training.template import CHAT_TEMPLATE
from training.tokenizer import END_OF_TEXT, END_OF_TURN, load_tokenizer, token_id, tokenizer_config

ROOT = Path(__file__).resolve().parents[1]
NAME = "tiny"
DESCRIPTION = (
    "A very small Clover (clover_moe) trained from scratch on synthetic English, for trying out and testing pyclover: "
    "plain decoding, drafting with the model's own blocks, block diffusion, thinking, tool calls. Not an assistant."
)
LICENSE_CARD = "---\nlicense: mit\n---\n# tiny\n\n" + DESCRIPTION + "\n"
METADATA = {
    "general.name": NAME,
    "general.description": DESCRIPTION,
    "general.author": "The pyclover authors",
    "general.size_label": "2.6M",
    "general.tags": ["text-generation", "block-diffusion", "test"],
    "general.languages": ["en"],
}


def grouped(a: Tensor, axis: int, c: ModelConfig, head: int) -> Tensor:
    """Value heads from our order (head h uses key head h mod G) to a checkpoint's (those of one key head together)."""
    order = [h for g in range(c.groups) for h in range(c.rank) if h % c.groups == g]
    index = torch.tensor([h * head + i for h in order for i in range(head)])
    return a.index_select(axis, index)


def hf_tensors(model: Clover) -> dict[str, Tensor]:
    """Names and forms of the published checkpoint: norms less one, value heads grouped, experts fused."""
    c, qk = model.c, 2 * model.c.groups * model.c.state

    def channels(a: Tensor) -> Tensor:
        return torch.cat([a[:qk], grouped(a[qk:], 0, c, c.state)])

    out: dict[str, Tensor] = {"model.embed_tokens.weight": model.embed, "model.norm.weight": model.norm - 1}
    for i, layer in enumerate(model.typed_layers()):
        m, to = layer.mixer, f"model.layers.{i}."
        out[to + "input_layernorm.weight"] = layer.norm - 1
        out[to + "post_attention_layernorm.weight"] = layer.post_norm - 1
        if isinstance(m, Attention):
            named: dict[str, Tensor] = {
                "q_proj.weight": m.q,
                "k_proj.weight": m.k,
                "v_proj.weight": m.v,
                "o_proj.weight": m.out,
            }
            named |= {"q_norm.weight": m.q_norm - 1, "k_norm.weight": m.k_norm - 1}
            out |= {f"{to}self_attn.{name}": a for name, a in named.items()}
        else:
            named = {
                "in_proj_qkv.weight": channels(m.qkv), "in_proj_z.weight": grouped(m.gate, 0, c, c.state),
                "in_proj_a.weight": grouped(m.alpha, 0, c, 1), "in_proj_b.weight": grouped(m.beta, 0, c, 1),
                "conv1d.weight": channels(m.conv.t())[:, None], "conv_right_weight": channels(m.conv_right.t()),
                "dt_bias": grouped(m.dt_bias, 0, c, 1), "A_log": grouped(m.a_log, 0, c, 1), "norm.weight": m.norm,
                "out_proj.weight": grouped(m.out, 1, c, c.state),
                "bd_softmax_logit_scale": grouped(m.bd_scale, 0, c, 1),
                "bd_softmax_history_bias": grouped(m.bd_bias, 0, c, 1),
                "bd_softmax_history_c": grouped(m.bd_c, 0, c, 1),
            }  # fmt: skip
            out |= {f"{to}linear_attn.{name}": a for name, a in named.items()}
        out |= {f"{to}mlp.{name}": a for name, a in _expert_tensors(layer.mlp).items()}
    return {name: a.detach().contiguous().clone() for name, a in out.items()}


def _expert_tensors(mlp: Experts) -> dict[str, Tensor]:
    gate, up = mlp.shared_gate_up.chunk(2)
    return {
        "gate.weight": mlp.router,
        "experts.gate_up_proj": mlp.gate_up,
        "experts.down_proj": mlp.down,
        "shared_expert.gate_proj.weight": gate,
        "shared_expert.up_proj.weight": up,
        "shared_expert.down_proj.weight": mlp.shared_down,
        "shared_expert_gate.weight": mlp.shared_gate[None],
    }


def hf_config(c: ModelConfig, end: int, pad: int) -> dict[str, Any]:
    return {
        "architectures": ["CloverMoeModelLM"],
        "model_type": "clover_moe",
        "dtype": "float32",
        "tie_word_embeddings": True,
        "num_hidden_layers": c.n_layer,
        "max_position_embeddings": c.n_ctx,
        "hidden_size": c.n_embd,
        "vocab_size": c.n_vocab,
        "num_attention_heads": c.n_head,
        "num_key_value_heads": c.n_head_kv,
        "head_dim": c.head_dim,
        "rms_norm_eps": c.eps,
        "hidden_act": "silu",
        "num_experts": c.n_expert,
        "num_experts_per_tok": c.n_used,
        "moe_intermediate_size": c.n_ff,
        "shared_expert_intermediate_size": c.n_ff_shared,
        "linear_conv_kernel_dim": c.conv,
        "linear_key_head_dim": c.state,
        "linear_value_head_dim": c.state,
        "linear_num_key_heads": c.groups,
        "linear_num_value_heads": c.rank,
        "layer_types": ["linear_attention" if c.is_linear(i) else "full_attention" for i in range(c.n_layer)],
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": c.rope_base,
            "partial_rotary_factor": c.n_rot / c.head_dim,
        },
        "eos_token_id": end,
        "pad_token_id": pad,
        "mask_token_id": c.mask_token,
        "block_length": c.block_length,
        "shift_logits": False,
        "expert_coreset": c.coreset,
        "expert_coreset_share": c.coreset_share,
        "expert_coreset_min": c.coreset_min,
    }


def write_checkpoint(model: Clover, tokenizer_path: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = load_tokenizer(tokenizer_path)
    end, pad = token_id(tokenizer, END_OF_TURN), token_id(tokenizer, END_OF_TEXT)
    save_file(hf_tensors(model), folder / "model.safetensors", metadata={"format": "pt"})
    write_json(folder / "config.json", hf_config(model.c, end, pad))
    write_json(folder / "tokenizer_config.json", tokenizer_config(CHAT_TEMPLATE))
    shutil.copyfile(tokenizer_path, folder / "tokenizer.json")
    write_json(folder / "metadata.json", METADATA)
    # the converter takes the license from the card only
    (folder / "README.md").write_text(LICENSE_CARD, encoding="utf-8")


def convert(folder: Path, gguf: Path, llama_cpp: Path, outtype: str) -> None:
    """Runs the patched tree's converter."""
    script = llama_cpp / "convert_hf_to_gguf.py"
    if not (script.is_file() and (llama_cpp / "conversion" / "clover.py").is_file()):
        raise SystemExit(
            f"{llama_cpp} is not a patched llama.cpp tree: build first (python build.py), or give --llama-cpp"
        )
    command = [sys.executable, str(script), str(folder), "--outfile", str(gguf), "--outtype", outtype]
    command += ["--metadata", str(folder / "metadata.json")]
    env = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    if done.returncode:
        raise SystemExit(f"the converter failed:\n{done.stderr[-3000:]}")


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the run")
    parser.add_argument("--gguf", type=Path, help="[OUT/tiny.gguf]")
    parser.add_argument("--outtype", default="f16", choices=["f32", "f16", "q8_0"])
    parser.add_argument(
        "--llama-cpp", type=Path, default=Path(os.environ.get("PYCLOVER_LLAMA_SRC") or ROOT / "build/llama.cpp")
    )
    parser.add_argument("--block-length", type=int, help="of block diffusion, 1 to 32 [as in the run's configuration]")
    a = parser.parse_args(argv)
    model = load_model(a.out)
    if a.block_length:
        model.c = ModelConfig(**{**vars(model.c), "block_length": a.block_length})
    write_checkpoint(model, a.out / "tokenizer.json", a.out / "hf")
    gguf = a.gguf or a.out / "tiny.gguf"
    convert(a.out / "hf", gguf, a.llama_cpp, a.outtype)
    print(f"{gguf}: {gguf.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
