#!/usr/bin/env python3
"""Write GGUF files with the sizes of Clover-35B-A3B, for measuring memory: weights mean nothing.

    python benchmarks/real_geometry.py OUT.gguf [--layers 40] [--recipe q4_k_m] [--holes] [--no-preview]

The data are valid blocks with random bits and small scales, a few of them repeated, so that a file is written as fast
as the disk goes. With --holes no data is written at all: the file has its full length, occupies nothing, and reads as
zeros.
"""

from __future__ import annotations

import argparse
import random
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import gguf
import numpy as np

ARCH = "clover_moe"
E, N_LAYER, INTERVAL, N_VOCAB, N_CTX = 2048, 40, 4, 248_320, 131_072
N_HEAD, N_HEAD_KV, HEAD_DIM, N_ROT = 16, 2, 256, 64
KEY_HEADS, VALUE_HEADS, STATE, CONV = 16, 32, 128, 4
N_EXPERT, N_EXPERT_USED, FF_EXP, FF_SHEXP = 256, 8, 512, 512
CHANNELS, INNER = (2 * KEY_HEADS + VALUE_HEADS) * STATE, VALUE_HEADS * STATE

# type of ggml -> (weights in a block, bytes of a block, offsets of the half-precision scales in it)
BLOCKS: dict[str, tuple[int, int, tuple[int, ...]]] = {
    "F32": (1, 4, ()),
    "F16": (1, 2, ()),
    "Q8_0": (32, 34, (0,)),
    "Q4_0": (32, 18, (0,)),
    "Q4_K": (256, 144, (0, 2)),
    "Q5_K": (256, 176, (0, 2)),
    "Q6_K": (256, 210, (208,)),
}


@dataclass(frozen=True)
class Tensor:
    """Name, shape in ggml's order, and type of one tensor."""

    name: str
    shape: tuple[int, ...]
    type: str

    @property
    def n_bytes(self) -> int:
        n_weights, n_bytes, _ = BLOCKS[self.type]
        return int(np.prod(self.shape)) // n_weights * n_bytes


def _more_bits(layer: int, n_layer: int) -> bool:
    """llama-quantize's choice of layers that a "_M" mix stores with more bits."""
    return layer < n_layer // 8 or layer >= 7 * n_layer // 8 or (layer - n_layer // 8) % 3 == 2


def _uniform(kind: str) -> Callable[[str, int, int], str]:
    return lambda name, layer, n_layer: kind


def _q4_k_m(name: str, layer: int, n_layer: int) -> str:
    if name == "output.weight" or (name.startswith(("ffn_down", "attn_v.")) and _more_bits(layer, n_layer)):
        return "Q6_K"
    return "Q5_K" if name.startswith("attn_qkv.") else "Q4_K"


def _q8_0_f16(name: str, layer: int, n_layer: int) -> str:
    return "F16" if name in ("token_embd.weight", "output.weight") else "Q8_0"


def _mixed(name: str, layer: int, n_layer: int) -> str:
    """What the community's "-hq" files do: small types for the routed experts alone."""
    if "_exps." not in name:
        return "Q8_0"
    return "Q6_K" if name.startswith("ffn_down") else "Q4_K"


RECIPES: dict[str, Callable[[str, int, int], str]] = {
    "q8_0": _uniform("Q8_0"),
    "q4_k": _uniform("Q4_K"),
    "q4_0": _uniform("Q4_0"),
    "q8_0_f16": _q8_0_f16,  # as large as the official Q8_0
    "q4_k_m": _q4_k_m,
    "mixed": _mixed,
}


def tensors(n_layer: int, recipe: str, *, preview: bool = True) -> Iterator[Tensor]:
    """The tensors of a file with so many of the model's layers."""
    choose = RECIPES[recipe]

    def matrix(layer: int, name: str, *shape: int) -> Tensor:
        prefix = "" if layer < 0 else f"blk.{layer}."
        return Tensor(prefix + name, shape, choose(name, layer, n_layer))

    yield matrix(-1, "token_embd.weight", E, N_VOCAB)
    yield Tensor("output_norm.weight", (E,), "F32")
    yield matrix(-1, "output.weight", E, N_VOCAB)
    for i in range(n_layer):
        p = f"blk.{i}."
        yield Tensor(p + "attn_norm.weight", (E,), "F32")
        yield Tensor(p + "post_attention_norm.weight", (E,), "F32")
        if (i + 1) % INTERVAL:
            yield matrix(i, "attn_qkv.weight", E, CHANNELS)
            yield matrix(i, "attn_gate.weight", E, INNER)
            yield Tensor(p + "ssm_conv1d.weight", (CONV, CHANNELS), "F32")
            yield Tensor(p + "ssm_dt.bias", (VALUE_HEADS,), "F32")
            yield Tensor(p + "ssm_a", (VALUE_HEADS,), "F32")
            yield matrix(i, "ssm_beta.weight", E, VALUE_HEADS)
            yield matrix(i, "ssm_alpha.weight", E, VALUE_HEADS)
            yield Tensor(p + "ssm_norm.weight", (STATE,), "F32")
            yield matrix(i, "ssm_out.weight", INNER, E)
            if preview:
                yield Tensor(p + "ssm_conv1d_right.weight", (CONV - 1, CHANNELS), "F32")
                for name in ("logit_scale", "history_bias", "history_c"):
                    yield Tensor(p + "ssm_bd_" + name, (VALUE_HEADS,), "F32")
        else:
            yield matrix(i, "attn_q.weight", E, 2 * N_HEAD * HEAD_DIM)
            yield matrix(i, "attn_k.weight", E, N_HEAD_KV * HEAD_DIM)
            yield matrix(i, "attn_v.weight", E, N_HEAD_KV * HEAD_DIM)
            yield matrix(i, "attn_output.weight", N_HEAD * HEAD_DIM, E)
            yield Tensor(p + "attn_q_norm.weight", (HEAD_DIM,), "F32")
            yield Tensor(p + "attn_k_norm.weight", (HEAD_DIM,), "F32")
        yield Tensor(p + "ffn_gate_inp.weight", (E, N_EXPERT), "F32")
        yield matrix(i, "ffn_gate_exps.weight", E, FF_EXP, N_EXPERT)
        yield matrix(i, "ffn_up_exps.weight", E, FF_EXP, N_EXPERT)
        yield matrix(i, "ffn_down_exps.weight", FF_EXP, E, N_EXPERT)
        yield Tensor(p + "ffn_gate_inp_shexp.weight", (E,), "F32")
        yield matrix(i, "ffn_gate_shexp.weight", E, FF_SHEXP)
        yield matrix(i, "ffn_up_shexp.weight", E, FF_SHEXP)
        yield matrix(i, "ffn_down_shexp.weight", FF_SHEXP, E)


def _keys(w: gguf.GGUFWriter, n_layer: int) -> None:
    w.add_string("general.name", "Clover's geometry")
    for key, value in {
        "block_count": n_layer, "context_length": N_CTX, "embedding_length": E, "attention.head_count": N_HEAD,
        "attention.head_count_kv": N_HEAD_KV, "attention.key_length": HEAD_DIM, "attention.value_length": HEAD_DIM,
        "rope.dimension_count": N_ROT, "expert_count": N_EXPERT, "expert_used_count": N_EXPERT_USED,
        "expert_feed_forward_length": FF_EXP, "expert_shared_count": 1, "expert_shared_feed_forward_length": FF_SHEXP,
        "ssm.conv_kernel": CONV, "ssm.state_size": STATE, "ssm.group_count": KEY_HEADS,
        "ssm.time_step_rank": VALUE_HEADS, "ssm.inner_size": INNER, "full_attention_interval": INTERVAL,
        "diffusion.block_length": 32,
    }.items():  # fmt: skip
        w.add_uint32(f"{ARCH}.{key}", value)
    w.add_float32(f"{ARCH}.attention.layer_norm_rms_epsilon", 1e-6)
    w.add_float32(f"{ARCH}.rope.freq_base", 1e7)
    # single bytes as GPT-2 spells them come first, so that any text has tokens; the rest is only there to be counted
    letters = [chr(b) if 33 <= b < 127 or 161 <= b < 173 or b > 173 else None for b in range(256)]
    spare = iter(range(256, 512))
    tokens = [letter or chr(next(spare)) for letter in letters] + [f"x{i}" for i in range(256, N_VOCAB - 3)]
    tokens += ["<|endoftext|>", "<|im_end|>", "<|mask|>"]
    w.add_string("tokenizer.ggml.model", "gpt2")
    w.add_string("tokenizer.ggml.pre", "qwen35")
    w.add_token_list(tokens)
    w.add_token_types([gguf.TokenType.NORMAL] * (N_VOCAB - 3) + [gguf.TokenType.CONTROL] * 3)
    w.add_token_merges(["x 2"])
    w.add_uint32("tokenizer.ggml.eos_token_id", N_VOCAB - 2)
    w.add_uint32("tokenizer.ggml.mask_token_id", N_VOCAB - 1)


def _blocks(kind: str, n_bytes_least: int = 1 << 20) -> bytes:
    """Some valid blocks of a type, repeated to about a mebibyte."""
    _, size, scales = BLOCKS[kind]
    rng = random.Random(kind)
    if kind == "F32":
        data = b"".join(struct.pack("<f", rng.uniform(-0.02, 0.02)) for _ in range(1024))
    elif kind == "F16":
        data = b"".join(struct.pack("<e", rng.uniform(-0.02, 0.02)) for _ in range(1024))
    else:
        blocks = []
        for _ in range(64):
            block = bytearray(rng.randbytes(size))
            for at in scales:
                block[at : at + 2] = struct.pack("<e", rng.uniform(1e-4, 1e-3))
            blocks.append(bytes(block))
        data = b"".join(blocks)
    return data * max(1, n_bytes_least // len(data))


def _fill(out: BinaryIO, chunk: bytes, n_bytes: int) -> None:
    for _ in range(n_bytes // len(chunk)):
        out.write(chunk)
    out.write(chunk[: n_bytes % len(chunk)])


def write(
    path: Path, n_layer: int = N_LAYER, recipe: str = "q4_k_m", *, holes: bool = False, preview: bool = True
) -> int:
    """Writes a file and returns the bytes of its tensors."""
    if n_layer < INTERVAL:
        raise SystemExit(f"--layers {n_layer}: Clover needs both kinds of layers, so at least {INTERVAL}")
    w = gguf.GGUFWriter(path, ARCH)
    _keys(w, n_layer)
    there = list(tensors(n_layer, recipe, preview=preview))
    for t in there:
        raw = getattr(gguf.GGMLQuantizationType, t.type)
        w.add_tensor_info(t.name, list(t.shape[::-1]), np.dtype(np.float32), t.n_bytes, raw_dtype=raw)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_ti_data_to_file()
    w.close()
    with path.open("r+b") as out:
        end = -(-out.seek(0, 2) // 32) * 32
        chunks = {} if holes else {kind: _blocks(kind) for kind in {t.type for t in there}}
        for t in there:
            if not holes:
                out.seek(end)
                _fill(out, chunks[t.type], t.n_bytes)
            end = -(-(end + t.n_bytes) // 32) * 32
        out.truncate(end)
    return sum(t.n_bytes for t in there)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--layers", type=int, default=N_LAYER)
    parser.add_argument("--recipe", choices=sorted(RECIPES), default="q4_k_m")
    parser.add_argument("--holes", action="store_true", help="no data: the file reads as zeros and occupies nothing")
    parser.add_argument("--no-preview", action="store_true", help="without the tensors of the block pass")
    args = parser.parse_args()
    n_bytes = write(args.out, args.layers, args.recipe, holes=args.holes, preview=not args.no_preview)
    print(f"{args.out}: {args.layers} layers, {n_bytes / 2**30:.2f} GiB of weights")


if __name__ == "__main__":
    main()
