"""Metadata of a clover_moe file: read, held against what llama.cpp demands, and turned into sizes.

The order of the questions follows the loader of upstream b12211, so that of several faults the same one comes first.
Beyond its checks stand those whose absence would abort the process: assertions, divisions by 0, impossible shapes.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyclover.files.facts import LayerKind
from pyclover.files.meta import Meta

MAX_LAYERS = 512  # llama-hparams.h
MAX_EXPERTS = 1024
MAX_BLOCK = 32  # rows of one preview
ROPE_SCALINGS = ("none", "linear", "yarn", "longrope")


@dataclass(frozen=True)
class Sizes:
    """Hyper-parameters; 0 or () stands for one that is missing or wrong. Names as in CloverFacts."""

    n_layer: int
    n_embd: int
    n_ctx_train: int
    n_head: int
    n_head_kv: int
    head_dim: int
    n_rot: int
    rope_freq_base: float
    rms_eps: float
    ssm_conv_kernel: int
    ssm_state_size: int
    ssm_group_count: int
    ssm_time_step_rank: int
    n_expert: int
    n_expert_used: tuple[int, ...]
    n_ff_exp: tuple[int, ...]
    n_expert_shared: int
    shared_count_missing: bool
    n_ff_shexp: int
    layer_kinds: tuple[LayerKind, ...]
    causal: bool
    block_length: int
    shift_logits: bool
    expert_coreset: int

    @property
    def conv_channels(self) -> int:
        """Channels of the causal convolution: queries, keys and values of a linear layer."""
        return (2 * self.ssm_group_count + self.ssm_time_step_rank) * self.ssm_state_size

    @property
    def inner_size(self) -> int:
        return self.ssm_time_step_rank * self.ssm_state_size


def read_sizes(meta: Meta, arch: str, tensor_names: frozenset[str]) -> Sizes:
    """Read and check every key, adding to meta.problems and meta.warnings."""
    n_ctx = meta.u32(f"{arch}.context_length", required=True, low=1)
    n_embd = meta.u32(f"{arch}.embedding_length", required=True, low=1)
    n_layer = meta.u32(f"{arch}.block_count", required=True, low=1, high=MAX_LAYERS)
    meta.u32(
        f"{arch}.nextn_predict_layers", high=0,
        why=" (Clover has no such layers, and its last layers would be taken for them); convert the model again",
    )  # fmt: skip
    check_common(meta, arch)
    n_expert, used = _experts(meta, arch, n_layer)
    kinds = _layer_kinds(meta, arch, n_layer)
    n_head, n_head_kv = _heads(meta, arch, n_layer, kinds)
    head_dim, n_rot = _head_dim(meta, arch, n_embd, n_head)
    shared, shared_missing = _shared_count(meta, arch, tensor_names)
    ff_exp = _positive_per_layer(meta, f"{arch}.expert_feed_forward_length", n_layer)
    conv, state, groups, rank = _delta_net(meta, arch)
    block, shift, coreset = _diffusion(meta, arch)
    return Sizes(
        n_layer=n_layer,
        n_embd=n_embd,
        n_ctx_train=n_ctx,
        n_head=n_head,
        n_head_kv=n_head_kv,
        head_dim=head_dim,
        n_rot=n_rot,
        rope_freq_base=meta.f32(f"{arch}.rope.freq_base", 10000.0),
        rms_eps=meta.f32(f"{arch}.attention.layer_norm_rms_epsilon", 0.0, required=True, positive=False),
        ssm_conv_kernel=conv,
        ssm_state_size=state,
        ssm_group_count=groups,
        ssm_time_step_rank=rank,
        n_expert=n_expert,
        n_expert_used=used,
        n_ff_exp=ff_exp,
        n_expert_shared=shared,
        shared_count_missing=shared_missing,
        n_ff_shexp=meta.u32(f"{arch}.expert_shared_feed_forward_length", required=True, low=1) if shared else 0,
        layer_kinds=kinds,
        causal=meta.flag(f"{arch}.attention.causal", True),
        block_length=block,
        shift_logits=shift,
        expert_coreset=coreset,
    )


def check_common(meta: Meta, arch: str) -> None:
    """Keys that llama.cpp reads for every architecture and whose values it asserts or whose types it demands."""
    scaling = meta.text(f"{arch}.rope.scaling.type", "linear")
    if scaling not in ROPE_SCALINGS:
        meta.problem(
            f"{arch}.rope.scaling.type",
            f"the metadata key '{arch}.rope.scaling.type' is '{scaling}' and must be one of {', '.join(ROPE_SCALINGS)}",
        )
    for name in ("rope.scaling.original_context_length", "pooling_type", "embedding_length_out"):
        meta.u32(f"{arch}.{name}", high=(1 << 32) - 1)
    for name in ("rope.scaling.factor", "rope.scale_linear", "rope.scaling.attn_factor"):
        meta.f32(f"{arch}.{name}", 0.0, positive=False)
    meta.flag(f"{arch}.rope.scaling.finetuned", False)
    meta.u32("general.file_type", high=(1 << 32) - 1)
    groups = meta.u32(f"{arch}.expert_group_count")
    n_expert = meta.header.metadata.get(f"{arch}.expert_count", 0)
    if groups and isinstance(n_expert, int):
        taken = meta.header.metadata.get(f"{arch}.expert_group_used_count", 0)
        fits = groups < n_expert and (
            groups == 1 or (n_expert % groups == 0 and isinstance(taken, int) and 0 < taken < groups)
        )
        if not fits:
            meta.problem(
                f"{arch}.expert_group_count",
                f"the metadata key '{arch}.expert_group_count' is {groups}, which does not fit {n_expert} experts and "
                f"{taken!r} groups used; convert the model again",
            )


def _positive_per_layer(meta: Meta, key: str, n_layer: int) -> tuple[int, ...]:
    values = meta.per_layer(key, n_layer, required=True)
    if values is None:
        return ()
    if not all(0 < v < 1 << 31 for v in values):
        bad = next(v for v in values if not 0 < v < 1 << 31)
        meta.problem(
            key, f"the metadata key '{key}' is {bad} in some layer and must be at least 1; convert the model again"
        )
        return ()
    return values


def _experts(meta: Meta, arch: str, n_layer: int) -> tuple[int, tuple[int, ...]]:
    n_expert = meta.u32(f"{arch}.expert_count", required=True, low=1, high=MAX_EXPERTS)
    key = f"{arch}.expert_used_count"
    used = _positive_per_layer(meta, key, n_layer)
    if used and n_expert and max(used) > n_expert:
        meta.problem(key, f"the metadata key '{key}' is {max(used)}, more than the {n_expert} experts there are")
        return n_expert, ()
    return n_expert, used


def _layer_kinds(meta: Meta, arch: str, n_layer: int) -> tuple[LayerKind, ...]:
    key = f"{arch}.attention.recurrent_layers"
    if meta.has(key):
        flags = meta.per_layer(key, n_layer)
        if flags is None:
            return ()
        kinds: tuple[LayerKind, ...] = tuple("linear" if x else "full" for x in flags)
    else:
        key = f"{arch}.full_attention_interval"
        interval = meta.u32(key, required=True, low=1, high=(1 << 32) - 1, why=" (Clover has no default for it)")
        if not interval:
            return ()
        kinds = tuple("linear" if (i + 1) % interval else "full" for i in range(n_layer))
    if n_layer and len(set(kinds)) < 2:
        meta.problem(
            key,
            f"the metadata key '{key}' makes all {n_layer} layers {kinds[0]} attention, and Clover needs both kinds",
        )
        return ()
    return kinds


def _heads(meta: Meta, arch: str, n_layer: int, kinds: tuple[LayerKind, ...]) -> tuple[int, int]:
    """Head counts. llama.cpp sizes the tensors by layer 0 and the cache by each full layer, so these must agree."""
    counts: list[int] = []
    for name, required in (("head_count", True), ("head_count_kv", False)):
        key = f"{arch}.attention.{name}"
        values = meta.per_layer(key, n_layer, required=required)
        if values is None:
            counts.append(0 if required or meta.has(key) else counts[0])
            continue
        used = {v for i, v in enumerate(values) if i == 0 or (kinds and kinds[i] == "full")}
        if len(used) > 1:
            meta.problem(key, f"the metadata key '{key}' differs between layers, and Clover needs one number for all")
        if min(used, default=1) == 0 or max(used, default=1) >= 1 << 20:
            meta.problem(key, f"the metadata key '{key}' is {min(used)} and must be at least 1 and below a million")
            counts.append(0)
            continue
        counts.append(values[0] if values else 0)
    n_head, n_head_kv = counts
    if n_head and n_head_kv and n_head % n_head_kv:
        key = f"{arch}.attention.head_count_kv"
        meta.problem(key, f"the metadata key '{key}' is {n_head_kv}, which does not divide the {n_head} heads")
    return n_head, n_head_kv


def _head_dim(meta: Meta, arch: str, n_embd: int, n_head: int) -> tuple[int, int]:
    default = n_embd // n_head if n_head else 0
    k_key, v_key = f"{arch}.attention.key_length", f"{arch}.attention.value_length"
    key_length = meta.u32(k_key, default, low=1, high=1 << 20)
    value_length = meta.u32(v_key, default, low=1, high=1 << 20)
    if key_length != value_length:
        key = v_key if meta.has(v_key) else k_key
        meta.problem(
            key, f"the metadata key '{key}' gives key and value heads unequal sizes ({key_length} and {value_length}), "
            "and Clover needs equal ones",
        )  # fmt: skip
    key = f"{arch}.rope.dimension_count"
    n_rot = meta.u32(key, key_length, low=1, high=1 << 20)
    if key_length and (n_rot % 2 or n_rot > key_length):
        meta.problem(
            key, f"the metadata key '{key}' is {n_rot} and must be even and at most the head size, {key_length}"
            if meta.has(key)
            else f"the head size {key_length} is odd, so the metadata key '{key}' must be given and even",
        )  # fmt: skip
    return key_length, n_rot


def _shared_count(meta: Meta, arch: str, names: frozenset[str]) -> tuple[int, bool]:
    key = f"{arch}.expert_shared_count"
    present = sorted(n for n in names if "_shexp." in n)
    missing = not meta.has(key)
    if missing:
        count = int("blk.0.ffn_up_shexp.weight" in names)
        meta.warnings.append(
            f"the metadata key '{key}' is missing, as in files made before Clover was merged into llama.cpp; {count} "
            "is used, going by the tensors, and the file works as it is; 'clover-run repair' writes the key into it"
        )
    else:
        count = meta.u32(key, high=(1 << 32) - 1)
        if not count and meta.problems and meta.problems[-1].key == key:
            return 0, missing
    if not count and present:
        meta.problem(
            key, f"the metadata key '{key}' is {'missing' if missing else 0}, but the file holds shared-expert tensors "
            f"('{present[0]}' and others), which a run without them would silently leave out; convert the model again",
        )  # fmt: skip
    return min(count, 1), missing


def _delta_net(meta: Meta, arch: str) -> tuple[int, int, int, int]:
    keys = {
        name: f"{arch}.ssm.{name}"
        for name in ("conv_kernel", "inner_size", "state_size", "time_step_rank", "group_count")
    }
    conv, inner, state, rank, groups = (meta.u32(k, required=True, low=1, high=1 << 24) for k in keys.values())
    if rank and groups and rank % groups:
        meta.problem(
            keys["time_step_rank"],
            f"the metadata key '{keys['time_step_rank']}' is {rank}, not a multiple of the {groups} key heads "
            f"({keys['group_count']})",
        )
    if inner and state and rank and inner != state * rank:
        meta.problem(
            keys["inner_size"],
            f"the metadata key '{keys['inner_size']}' is {inner}, not {state * rank} (state_size * time_step_rank)",
        )
    return conv, state, groups, rank


def _diffusion(meta: Meta, arch: str) -> tuple[int, bool, int]:
    """Keys of the preview pass. Values that make no sense only rule the preview out (see clover.py)."""
    meta.f32(f"{arch}.diffusion.expert_coreset_share", 0.0, positive=False)
    meta.u32(f"{arch}.diffusion.expert_coreset_min", high=(1 << 32) - 1)
    return (
        meta.u32(f"{arch}.diffusion.block_length", MAX_BLOCK, high=(1 << 32) - 1),
        meta.flag(f"{arch}.diffusion.shift_logits", False),
        meta.u32(f"{arch}.diffusion.expert_coreset", high=(1 << 32) - 1),
    )
