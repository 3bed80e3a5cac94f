"""Weights by kind: how much of a model is attention, experts, Clover's own, and in which types it is stored."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pyclover.files.facts import CloverFacts, ModelFacts
from pyclover.files.header import TensorInfo

GROUPS = (
    "embedding",
    "output",
    "attention",
    "gdn",
    "ffn",
    "routed_experts",
    "shared_expert",
    "router",
    "clover",
    "norm",
    "other",
)
_LAYER = re.compile(r"blk\.(\d+)\.(.+)")


@dataclass(frozen=True)
class TypeUse:
    """How much of a group is stored in one tensor type."""

    n_tensors: int
    n_params: int
    n_bytes: int


@dataclass(frozen=True)
class GroupUse:
    """One kind of weights; `types` maps a tensor type's name to its share."""

    n_params: int
    n_bytes: int
    bits_per_weight: float
    types: Mapping[str, TypeUse]


def group_of(name: str, *, linear_layers: frozenset[int], clover: frozenset[str] = frozenset()) -> str:
    """Kind of weights (one of GROUPS) that a tensor belongs to.

    Args:
        linear_layers: numbers of the Gated DeltaNet layers.
        clover: names, in this file, of the tensors that only the preview pass uses.
    """
    if name in clover:
        return "clover"
    match = _LAYER.fullmatch(name)
    if match is None:
        if name.startswith("token_embd."):
            return "embedding"
        if name.startswith("output."):
            return "output"
        return "norm" if "norm" in name else "other"
    layer, part = int(match[1][:9]), match[2]
    if "norm" in part:
        return "norm"
    for word, group in (("_shexp.", "shared_expert"), ("_exps.", "routed_experts"), ("ffn_gate_inp.", "router")):
        if word in part:
            return group
    if layer in linear_layers and part.startswith(("attn_qkv.", "attn_gate.", "ssm_")):
        return "gdn"
    if part.startswith(("ffn_gate.", "ffn_up.", "ffn_down.")):
        return "ffn"
    return "attention" if part.startswith("attn_") else "other"


def group_by_name(tensors: Iterable[TensorInfo], facts: ModelFacts) -> dict[str, str]:
    """Tensor name -> kind of weights."""
    if isinstance(facts, CloverFacts) and facts.layer_kinds:
        linear = frozenset(i for i, kind in enumerate(facts.layer_kinds) if kind == "linear")
    else:  # a layer with a state-space convolution
        linear = frozenset(
            int(m[1][:9]) for t in tensors if (m := _LAYER.fullmatch(t.name)) and m[2].startswith("ssm_conv1d.")
        )
    clover = frozenset(facts.preview_tensors.values()) if isinstance(facts, CloverFacts) else frozenset[str]()
    unknown = {t.name for t in facts.unknown_tensors}
    return {
        t.name: "other" if t.name in unknown else group_of(t.name, linear_layers=linear, clover=clover) for t in tensors
    }


def use_by_group(tensors: Iterable[TensorInfo], groups: Mapping[str, str]) -> dict[str, GroupUse]:
    """What each kind of weights takes; `groups` is what group_by_name() gave. A kind without weights is left out."""
    sorted_in: dict[str, dict[str, list[TensorInfo]]] = defaultdict(lambda: defaultdict(list))
    for t in tensors:
        sorted_in[groups[t.name]][t.type.name].append(t)
    return {g: _group(sorted_in[g]) for g in GROUPS if g in sorted_in}


def _group(by_type: Mapping[str, list[TensorInfo]]) -> GroupUse:
    types = {
        name: TypeUse(len(ts), sum(t.n_elements for t in ts), sum(t.n_bytes for t in ts))
        for name, ts in sorted(by_type.items(), key=lambda item: -sum(t.n_bytes for t in item[1]))
    }
    n_params, n_bytes = sum(u.n_params for u in types.values()), sum(u.n_bytes for u in types.values())
    return GroupUse(n_params, n_bytes, bits_per_weight(n_bytes, n_params), types)


def bits_per_weight(n_bytes: int, n_params: int) -> float:
    """0 for no weights."""
    return 8 * n_bytes / n_params if n_params else 0.0
