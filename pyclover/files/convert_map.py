"""Which tensors a Clover checkpoint must hold, in which shapes, and what becomes of each in the GGUF file.

Names of a checkpoint are those of Qwen3.5-MoE's text model in transformers, and the four endings of Clover's own
tensors; names of the file are llama.cpp's. Shapes are row-major here, as in the checkpoint.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

from pyclover.errors import UnsupportedModelError
from pyclover.files.convert_checkpoint import Checkpoint, shown
from pyclover.files.convert_config import Shape
from pyclover.files.convert_safetensors import Stored
from pyclover.files.types import GGML_TYPES, GgmlType

PREVIEW = {
    "conv_right_weight": "ssm_conv1d_right.weight",
    "bd_softmax_logit_scale": "ssm_bd_logit_scale",
    "bd_softmax_history_bias": "ssm_bd_history_bias",
    "bd_softmax_history_c": "ssm_bd_history_c",
}
DTYPES = ("F32", "F16", "BF16", "F64")
_TYPES = {kind.name: kind for kind in GGML_TYPES.values()}
# Buffers that are no weights, and blocks that the architecture has not: the converter drops them.
_IGNORED = (".attention.masked_bias", ".attention.bias", ".rotary_emb.inv_freq")
_LEFT_OUT = ("mtp.", "model.mtp.", "visual.", "model.visual.")
_FUSED = re.compile(r"\.mlp\.experts\.(?:gate_up|down)_proj\.weight$")

Dims = tuple[int, ...]


@dataclass(frozen=True)
class OutTensor:
    """A tensor of the new file; `shape` in ggml's order, row length first."""

    name: str
    shape: tuple[int, ...]
    type: GgmlType

    @property
    def n_bytes(self) -> int:
        return prod(self.shape) // self.type.block_size * self.type.type_size


@dataclass(frozen=True)
class Slot:
    """A tensor of the checkpoint, the shapes that it may have, and what it becomes."""

    name: str
    shapes: tuple[Dims, ...]
    out: tuple[tuple[str, Dims], ...]
    required: bool = True


def tensors_of(checkpoint: Checkpoint, s: Shape, outtype: str, *, plain: bool) -> tuple[list[OutTensor], list[str]]:
    """The tensors of the new file, and the names in the checkpoint that are left out.

    Args:
        outtype: "f32", "f16", "bf16" or "q8_0".
        plain: leave out the tensors of the block pass.

    Raises:
        UnsupportedModelError: tensors are missing, have a wrong shape or type, or belong to no Clover; all kinds of
            faults are named, `key` is the first tensor at fault.
    """
    found, left_out = _canonical(checkpoint)
    preview = any(name.rpartition(".")[2] in PREVIEW for name in found)
    slots = {slot.name: slot for slot in _slots(s, found, preview)}
    missing = [name for name, slot in slots.items() if slot.required and name not in found]
    foreign = [original for name, (original, _) in found.items() if name not in slots]
    shapes, types = [], []
    for name, slot in slots.items():
        original, stored = found.get(name, ("", None))
        if stored is not None and stored.shape not in slot.shapes:
            must = " or ".join(str(list(shape)) for shape in dict.fromkeys(slot.shapes))
            shapes.append(f"{original} has the shape {list(stored.shape)} and must have {must}")
        elif stored is not None and stored.dtype not in DTYPES:
            types.append(f"{original} is of type {stored.dtype}")
    faults = [
        f"{what}: {shown(names)}"
        for names, what in (
            (missing, "tensors are missing"), (foreign, "tensors that no Clover has"), (shapes, "wrong shapes"),
            (types, f"tensors of types other than {', '.join(DTYPES)}"),
        ) if names
    ]  # fmt: skip
    if faults:
        first = [*missing, *foreign, *(text.split(" ")[0] for text in (*shapes, *types))][0]
        raise UnsupportedModelError(
            f"{checkpoint.title}: {'; '.join(faults)}; nothing was written, get the whole checkpoint or correct "
            "config.json", path=checkpoint.title, key=first,
        )  # fmt: skip
    out: dict[str, OutTensor] = {}
    for name, slot in slots.items():
        if plain and name.rpartition(".")[2] in PREVIEW:
            left_out.append(found[name][0])
        elif name in found:
            for new, shape in slot.out:
                out[new] = OutTensor(new, shape[::-1], type_of(new, shape, outtype))
    return list(out.values()), left_out


def has_preview(checkpoint: Checkpoint) -> bool:
    """Whether any tensor is one of the block pass."""
    return any(name.rpartition(".")[2] in PREVIEW for name in checkpoint.tensors)


def type_of(name: str, shape: Dims, outtype: str) -> GgmlType:
    """The type that the converter gives a tensor: matrices the one asked for, F32 what must be exact.

    Where a row is no whole number of Q8_0's blocks, it falls back to F16.
    """
    kind = name.split(".")[2] if name.startswith("blk.") else name.split(".")[0]
    exact = ("ffn_gate_inp", "ffn_gate_inp_shexp", "ssm_conv1d", "ssm_conv1d_right")
    if len(shape) < 2 or kind in exact or kind.endswith("_norm") or not name.endswith(".weight"):
        return _TYPES["F32"]
    wanted = _TYPES[outtype.upper()]
    return wanted if shape[-1] % wanted.block_size == 0 else _TYPES["F16"]


def _canonical(checkpoint: Checkpoint) -> tuple[dict[str, tuple[str, Stored]], list[str]]:
    """The tensors by the names that the table below has, each with its own name; and those that are left out."""
    found: dict[str, tuple[str, Stored]] = {}
    left_out = []
    for original, stored in checkpoint.tensors.items():
        name = original.replace("language_model.", "")
        if name.endswith(_IGNORED) or name.startswith(_LEFT_OUT):
            left_out.append(original)
            continue
        layer = next((part for part in name.split(".") if part.isdecimal()), None)
        last = name.rpartition(".")[2]
        if last in PREVIEW and layer is not None:  # only this last part of the names is published
            name = f"model.layers.{int(layer)}.linear_attn.{last}"
        if _FUSED.search(name):
            name = name.removesuffix(".weight")
        if name in found:
            raise UnsupportedModelError(
                f"{checkpoint.title}: the tensors {found[name][0]} and {original} are the same one; remove one of them",
                path=checkpoint.title, key=original,
            )  # fmt: skip
        found[name] = (original, stored)
    return found, left_out


def _slots(s: Shape, found: Mapping[str, object], preview: bool) -> Iterator[Slot]:
    e, v = s.n_embd, s.n_vocab
    yield _same("model.embed_tokens.weight", "token_embd.weight", (v, e))
    yield _same("model.norm.weight", "output_norm.weight", (e,))
    yield _same("lm_head.weight", "output.weight", (v, e), required=not s.tied)
    for i, linear in enumerate(s.linear):
        p, b = f"model.layers.{i}.", f"blk.{i}."
        yield _same(p + "input_layernorm.weight", b + "attn_norm.weight", (e,))
        yield _same(p + "post_attention_layernorm.weight", b + "post_attention_norm.weight", (e,))
        yield from _linear(s, p, b, preview) if linear else _attention(s, p, b)
        yield from _experts(s, p, b, found)


def _attention(s: Shape, p: str, b: str) -> Iterator[Slot]:
    p += "self_attn."
    # q_proj holds query and gate of each head, hence the 2
    for part, n in (("q", 2 * s.n_head * s.head_dim), ("k", s.n_head_kv * s.head_dim), ("v", s.n_head_kv * s.head_dim)):
        yield _same(f"{p}{part}_proj.weight", f"{b}attn_{part}.weight", (n, s.n_embd))
        yield _same(f"{p}{part}_proj.bias", f"{b}attn_{part}.bias", (n,), required=False)
    yield _same(p + "o_proj.weight", b + "attn_output.weight", (s.n_embd, s.n_head * s.head_dim))
    yield _same(p + "q_norm.weight", b + "attn_q_norm.weight", (s.head_dim,))
    yield _same(p + "k_norm.weight", b + "attn_k_norm.weight", (s.head_dim,))


def _linear(s: Shape, p: str, b: str, preview: bool) -> Iterator[Slot]:
    p, e, r, c = p + "linear_attn.", s.n_embd, s.n_value, s.channels
    inner, taps = s.n_value * s.head_linear, s.kernel
    yield _same(p + "in_proj_qkv.weight", b + "attn_qkv.weight", (c, e))
    yield _same(p + "in_proj_z.weight", b + "attn_gate.weight", (inner, e))
    yield _same(p + "in_proj_a.weight", b + "ssm_alpha.weight", (r, e))
    yield _same(p + "in_proj_b.weight", b + "ssm_beta.weight", (r, e))
    yield _same(p + "conv1d.weight", b + "ssm_conv1d.weight", (c, taps), (c, 1, taps))
    yield _same(p + "dt_bias", b + "ssm_dt.bias", (r,))
    yield _same(p + "A_log", b + "ssm_a", (r,))
    yield _same(p + "norm.weight", b + "ssm_norm.weight", (s.head_linear,))
    yield _same(p + "out_proj.weight", b + "ssm_out.weight", (e, inner))
    if not preview:
        return
    for last, new in PREVIEW.items():
        if last == "conv_right_weight":
            yield _same(p + last, b + new, (c, taps - 1), (c, 1, taps - 1), (taps - 1, c))
        else:
            yield _same(p + last, b + new, (r,), (1, r), (r, 1), (), (1,), (1, 1))


def _experts(s: Shape, p: str, b: str, found: Mapping[str, object]) -> Iterator[Slot]:
    p, e, x, f, g = p + "mlp.", s.n_embd, s.n_expert, s.n_ff_exp, s.n_ff_shexp
    yield _same(p + "gate.weight", b + "ffn_gate_inp.weight", (x, e))
    gate, up = (b + "ffn_gate_exps.weight", (x, f, e)), (b + "ffn_up_exps.weight", (x, f, e))
    down = (b + "ffn_down_exps.weight", (x, e, f))
    if any(f"{p}experts.{i}.{part}_proj.weight" in found for i in range(x) for part in ("gate", "up", "down")):
        for i in range(x):
            yield Slot(f"{p}experts.{i}.gate_proj.weight", ((f, e),), (gate,))
            yield Slot(f"{p}experts.{i}.up_proj.weight", ((f, e),), (up,))
            yield Slot(f"{p}experts.{i}.down_proj.weight", ((e, f),), (down,))
    else:
        yield Slot(p + "experts.gate_up_proj", ((x, 2 * f, e),), (gate, up))
        yield Slot(p + "experts.down_proj", ((x, e, f),), (down,))
    if g:
        yield Slot(p + "shared_expert_gate.weight", ((1, e), (e,)), ((b + "ffn_gate_inp_shexp.weight", (e,)),))
        yield _same(p + "shared_expert.gate_proj.weight", b + "ffn_gate_shexp.weight", (g, e))
        yield _same(p + "shared_expert.up_proj.weight", b + "ffn_up_shexp.weight", (g, e))
        yield _same(p + "shared_expert.down_proj.weight", b + "ffn_down_shexp.weight", (e, g))


def _same(name: str, new: str, shape: Dims, *others: Dims, required: bool = True) -> Slot:
    """A tensor that keeps its first shape; the others are forms of the same numbers."""
    return Slot(name, (shape, *others), ((new, shape),), required)
