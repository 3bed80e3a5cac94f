"""Which tensors a clover_moe file must and may hold, with their shapes: the tables of the oracle's FACTS.

Shapes are in ggml's order, row length first. Letters: E embedding, V vocabulary, H heads, K KV heads, D head size,
S state size, G key heads, R value heads, C convolution kernel, X experts, F expert FFN, FS shared expert FFN.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pyclover.files.facts import LayerKind
from pyclover.files.header import TensorInfo
from pyclover.files.hparams import Sizes
from pyclover.files.meta import Meta
from pyclover.files.types import F32


@dataclass(frozen=True)
class Slot:
    """One tensor that the loader asks for.

    Attributes:
        f32: it enters element-wise operations, which llama.cpp has only for F32 (any other type aborts there).
    """

    name: str
    shape: tuple[int, ...]
    required: bool = True
    f32: bool = False


# weights that may carry a scale for the whole tensor, or one per expert (NVFP4 files do)
_SCALED = (
    "attn_q", "attn_k", "attn_v", "attn_qkv", "attn_output", "attn_gate", "ssm_out", "ssm_alpha", "ssm_beta",
    "ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp", "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps",
)  # fmt: skip
_SHOWN = 8  # wrong shapes listed one by one; a wrong size in the metadata makes hundreds


def slots(s: Sizes, n_vocab: int, names: frozenset[str]) -> Iterator[Slot]:
    """Every slot, in the loader's order; `names` (of the file's tensors) decides between fused and separate forms."""
    yield Slot("token_embd.weight", (s.n_embd, n_vocab))
    yield Slot("output_norm.weight", (s.n_embd,), f32=True)
    yield Slot("output.weight", (s.n_embd, n_vocab), required=False)
    for i, kind in enumerate(s.layer_kinds):
        yield from _layer(s, i, kind, names)


def _layer(s: Sizes, i: int, kind: LayerKind, names: frozenset[str]) -> Iterator[Slot]:
    p, e = f"blk.{i}.", s.n_embd
    yield Slot(p + "attn_norm.weight", (e,), f32=True)
    yield Slot(p + "post_attention_norm.weight", (e,), f32=True)
    yield from _attention(s, p, names) if kind == "full" else _delta_net(s, p)
    x, f = s.n_expert, s.n_ff_exp[i]
    yield Slot(p + "ffn_gate_inp.weight", (e, x))
    yield Slot(p + "ffn_down_exps.weight", (f, e, x))
    if p + "ffn_gate_up_exps.weight" in names:
        yield Slot(p + "ffn_gate_up_exps.weight", (e, 2 * f, x))
    else:
        yield Slot(p + "ffn_gate_exps.weight", (e, f, x))
        yield Slot(p + "ffn_up_exps.weight", (e, f, x))
    if s.n_expert_shared:
        yield Slot(p + "ffn_gate_inp_shexp.weight", (e,))
        yield Slot(p + "ffn_gate_shexp.weight", (e, s.n_ff_shexp))
        yield Slot(p + "ffn_up_shexp.weight", (e, s.n_ff_shexp))
        yield Slot(p + "ffn_down_shexp.weight", (s.n_ff_shexp, e))
    for weight in _SCALED:
        if p + weight + ".weight" in names:
            shape = (x,) if weight.endswith("_exps") else (1,)
            yield Slot(p + weight + ".scale", shape, required=False, f32=True)
            yield Slot(p + weight + ".input_scale", shape, required=False, f32=True)


def _attention(s: Sizes, p: str, names: frozenset[str]) -> Iterator[Slot]:
    # attn_q holds query and gate of each head, hence the 2
    outputs = {"q": 2 * s.n_head * s.head_dim, "k": s.n_head_kv * s.head_dim, "v": s.n_head_kv * s.head_dim}
    fused = p + "attn_qkv.weight" in names
    if fused:
        yield Slot(p + "attn_qkv.weight", (s.n_embd, sum(outputs.values())))
        yield Slot(p + "attn_qkv.bias", (sum(outputs.values()),), required=False, f32=True)
    for part, n in outputs.items():
        if not fused:
            yield Slot(f"{p}attn_{part}.weight", (s.n_embd, n))
        if p + "attn_qkv.bias" not in names or not fused:
            yield Slot(f"{p}attn_{part}.bias", (n,), required=False, f32=True)
    yield Slot(p + "attn_output.weight", (s.n_head * s.head_dim, s.n_embd))
    yield Slot(p + "attn_q_norm.weight", (s.head_dim,), f32=True)
    yield Slot(p + "attn_k_norm.weight", (s.head_dim,), f32=True)


def _delta_net(s: Sizes, p: str) -> Iterator[Slot]:
    e, rank = s.n_embd, s.ssm_time_step_rank
    yield Slot(p + "attn_qkv.weight", (e, s.conv_channels))
    yield Slot(p + "attn_gate.weight", (e, s.inner_size))
    yield Slot(p + "ssm_conv1d.weight", (s.ssm_conv_kernel, s.conv_channels), f32=True)
    yield Slot(p + "ssm_dt.bias", (rank,), f32=True)
    yield Slot(p + "ssm_a", (rank,), f32=True)
    yield Slot(p + "ssm_beta.weight", (e, rank))
    yield Slot(p + "ssm_alpha.weight", (e, rank))
    yield Slot(p + "ssm_norm.weight", (s.ssm_state_size,), f32=True)
    yield Slot(p + "ssm_out.weight", (s.inner_size, e))


def check_tensors(meta: Meta, s: Sizes, n_vocab: int, tensors: Mapping[str, TensorInfo]) -> frozenset[str]:
    """Hold the file's tensors against the slots, adding to meta.problems.

    Returns:
        the names of the tensors that the loader uses; all others are unknown to it.
    """
    known: set[str] = set()
    missing: list[str] = []
    n_wrong = 0
    for slot in slots(s, n_vocab, frozenset(tensors)):
        tensor = tensors.get(slot.name)
        if tensor is None:
            if slot.required:
                missing.append(slot.name)
            continue
        known.add(slot.name)
        if padded(tensor.shape) != padded(slot.shape):
            n_wrong += 1
            if n_wrong <= _SHOWN:
                meta.problem(
                    slot.name,
                    f"tensor '{slot.name}' has the shape {list(tensor.shape)} and must have {list(slot.shape)}, by the "
                    + (
                        "number of tokens"
                        if slot.shape[-1] == n_vocab and not slot.name.startswith("blk.")
                        else "metadata"
                    ),
                )
        elif slot.f32 and tensor.type is not F32:
            meta.problem(
                slot.name,
                f"tensor '{slot.name}' is of type {tensor.type.name} and must be F32; convert the model again",
            )
        elif not tensor.type.is_weight:
            meta.problem(slot.name, f"tensor '{slot.name}' is of type {tensor.type.name}, which cannot hold weights")
    if missing:
        more = f" (nor are {len(missing) - 1} others)" if len(missing) > 1 else ""
        meta.problem(missing[0], f"tensor '{missing[0]}' is not in the file{more}; download or convert the model again")
    return frozenset(known)


def padded(shape: tuple[int, ...]) -> tuple[int, ...]:
    """`shape` as ggml sees it: four dimensions, the absent ones 1."""
    return shape + (1,) * (4 - len(shape))
