"""Which type each tensor of a model gets by a recipe, and what stands in its way.

Facts about what the quantizing program leaves alone, about rows that a type cannot divide, and about types that need
an importance matrix are those of llama-quant.cpp in the llama.cpp that the package builds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from pyclover.files.facts import ModelFacts
from pyclover.files.header import TensorInfo
from pyclover.files.types import TYPES_BY_NAME, GgmlType
from pyclover.files.weight_groups import group_by_name
from pyclover.tuning.recipes import KEPT, Recipe

_LAYER = re.compile(r"blk\.(\d{1,9})\.(.+)")
_PARTS = {
    "attn_q": "q", "attn_k": "k", "attn_v": "v", "attn_qkv": "qkv", "attn_output": "output", "attn_gate": "gate",
    "ssm_alpha": "alpha", "ssm_beta": "beta", "ssm_out": "out",
}  # fmt: skip
_EXPERT = re.compile(r"ffn_(gate|up|down|gate_up)(?:_exps|_shexp)?")
# tensors that the program never changes, by what their names contain
_LEFT_ALONE = (
    "_norm.weight", "ffn_gate_inp.weight", "ffn_gate_tid2eid.weight", "altup", "laurel", "per_layer_model_proj",
    "ssm_conv1d", "shortconv.conv.weight", "indexer.k_proj.weight", "indexer.q_proj.weight", "time_mix_first.weight",
    "time_mix_w0.weight", "time_mix_w1.weight", "time_mix_w2.weight", "time_mix_v0.weight", "time_mix_v1.weight",
    "time_mix_v2.weight", "time_mix_a0.weight", "time_mix_a1.weight", "time_mix_a2.weight", "time_mix_g1.weight",
    "time_mix_g2.weight", "time_mix_decay_w1.weight", "time_mix_decay_w2.weight", "time_mix_lerp_fused.weight",
    "attn_rel_b.weight", "position_embd", "token_types.weight",
)  # fmt: skip
# rows that are no multiple of the type's block get a type with blocks of 32 weights, of at least as many bits
_INSTEAD = {
    "Q2_K": "Q4_0", "Q3_K": "Q4_0", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0", "TQ1_0": "Q4_0", "TQ2_0": "Q4_0",
    "Q1_0": "Q4_0", "Q2_0": "Q4_0", "NVFP4": "Q4_0",
}  # fmt: skip
_NEED_IMATRIX = frozenset(("IQ3_XXS", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ1_M", "IQ1_S"))


@dataclass(frozen=True)
class Target:
    """What becomes of one tensor.

    Attributes:
        wanted: the recipe's type; the stored one where the program leaves the tensor alone.
        type: what it will be, another than `wanted` where the rows cannot be divided into its blocks.
        n_bytes: without padding.
        kept: the tensor stays as it is stored, whatever the recipe says.
    """

    tensor: TensorInfo
    group: str
    wanted: GgmlType
    type: GgmlType
    n_bytes: int
    kept: bool


def targets_of(recipe: Recipe, tensors: Sequence[TensorInfo], facts: ModelFacts) -> tuple[Target, ...]:
    """The target of every tensor, in their order."""
    groups = group_by_name(tensors, facts)
    tied = all(t.name != "output.weight" for t in tensors)
    return tuple(_target(recipe, t, groups[t.name], facts.n_layer, tied) for t in tensors)


def _target(recipe: Recipe, t: TensorInfo, group: str, n_layer: int, tied: bool) -> Target:
    if is_left_alone(t, group):
        return Target(t, group, t.type, t.type, t.n_bytes, kept=True)
    match = _LAYER.fullmatch(t.name)
    layer = int(match[1]) if match else -1
    # an embedding that is the output too gets the output's type
    named = "output" if group == "embedding" and tied else group
    wanted = recipe.type_of(named, part_of(t.name), layer, n_layer)
    kind = fitting(wanted, t.shape[0])
    return Target(t, group, wanted, kind, bytes_of(kind, t.shape), kept=False)


def is_left_alone(t: TensorInfo, group: str) -> bool:
    """Whether the tensor stays as it is stored: one row, a norm, a router, Clover's own, and others as small."""
    n_dims = max((i + 1 for i, n in enumerate(t.shape) if n > 1), default=1)
    return n_dims < 2 or group in KEPT or not t.name.endswith("weight") or any(word in t.name for word in _LEFT_ALONE)


def part_of(name: str) -> str:
    """The part of its group that a tensor is (recipes.PARTS), "" where it has none."""
    match = _LAYER.fullmatch(name)
    word = (match[2] if match else name).split(".")[0]
    expert = _EXPERT.fullmatch(word)
    return expert[1] if expert else _PARTS.get(word, "")


def fitting(kind: GgmlType, n_per_row: int) -> GgmlType:
    """`kind`, or what takes its place for rows of that length: blocks of 32, and F16 where not even these fit."""
    if n_per_row % kind.block_size == 0:
        return kind
    instead = _INSTEAD.get(kind.name, "IQ4_NL" if kind.name.startswith("IQ") else kind.name)
    other = TYPES_BY_NAME[instead]
    return other if n_per_row % other.block_size == 0 else TYPES_BY_NAME["F16"]


def bytes_of(kind: GgmlType, shape: Sequence[int]) -> int:
    """Bytes of a tensor, without padding."""
    return prod(shape[1:]) * (shape[0] // kind.block_size) * kind.type_size


def needs_imatrix(target: Target) -> bool:
    """Whether the program refuses this tensor without an importance matrix."""
    return target.type.name in _NEED_IMATRIX and target.tensor.name not in ("token_embd.weight", "output.weight")


def fallbacks(targets: Sequence[Target]) -> Mapping[tuple[str, str], tuple[str, ...]]:
    """(wanted, what it will be) -> names of the tensors whose rows do not go with the recipe."""
    out: dict[tuple[str, str], list[str]] = {}
    for t in targets:
        if t.type is not t.wanted:
            out.setdefault((t.wanted.name, t.type.name), []).append(t.tensor.name)
    return {key: tuple(names) for key, names in out.items()}
