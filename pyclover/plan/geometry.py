"""What of a model decides its memory: sizes from the metadata, and the true bytes of every tensor."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from pyclover.files.facts import CloverFacts, ModelFacts
from pyclover.files.gate import ValidatedModel
from pyclover.files.header import Header, TensorInfo
from pyclover.files.values import Array

_LAYER = re.compile(r"blk\.(\d+)\.")
INPUT, OUTPUT = -1, -2  # in place of a layer's number


@dataclass(frozen=True)
class Weight:
    """One tensor that is loaded.

    Attributes:
        layer: its number, or INPUT or OUTPUT.
        routed: it holds routed experts.
        matrix: it is multiplied by, so that the processor's code may want it in another order.
        file, first, end: which file of a split set, and where in it.
    """

    name: str
    type: str
    n_bytes: int
    layer: int
    routed: bool
    matrix: bool
    n_out: int
    file: int
    first: int
    end: int


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """Sizes of a model; 0 stands for a part that it does not have.

    Attributes:
        k_width, v_width: numbers that one token adds to the KV cache, by layer; 0 in recurrent layers.
        head_dim: of keys; a quantized cache needs whole blocks in it.
        recurrent: layers with a state. conv_size, state_size: numbers in each one's two parts.
        channels, key_size, inner_size: widths inside a Gated DeltaNet layer.
        row_size: numbers that such a layer keeps of a token that can be taken back; 0: it keeps whole states.
        block_length: rows of a block.
        rough: not Clover; activations are guessed from the usual shape of a transformer.
    """

    name: str
    n_layer: int
    n_embd: int
    n_vocab: int
    n_ctx_train: int
    n_head: int
    head_dim: int
    k_width: tuple[int, ...]
    v_width: tuple[int, ...]
    recurrent: tuple[bool, ...]
    conv_size: int = 0
    state_size: int = 0
    conv_kernel: int = 0
    channels: int = 0
    key_size: int = 0
    inner_size: int = 0
    row_size: int = 0
    block_length: int = 0
    n_expert: int = 0
    n_expert_used: int = 0
    n_ff: int = 0
    can_draft: bool = False
    rough: bool = False
    weights: tuple[Weight, ...] = ()

    @property
    def n_recurrent(self) -> int:
        return sum(self.recurrent)

    @cached_property
    def has_experts(self) -> bool:
        return any(w.routed for w in self.weights)

    @cached_property
    def weights_bytes(self) -> int:
        """Bytes of all tensors; of a mixture of experts all experts, for they all lie in memory."""
        return sum(w.n_bytes for w in self.weights)

    @cached_property
    def largest_routed_bytes(self) -> int:
        return max((w.n_bytes for w in self.weights if w.routed), default=0)


def geometry_of(model: ValidatedModel) -> Geometry:
    """The geometry of a model whose files passed the gate."""
    facts, header = model.facts, model.headers[0]
    skipped = {t.name for t in facts.unknown_tensors}
    files = [[t for t in h.tensors if t.name not in skipped] for h in model.headers]
    weights = _weights(files, [h.data_offset for h in model.headers])
    # a layer that the file does not announce is none; llama.cpp will say so, an estimate must not fail over it
    weights = tuple(w if w.layer < facts.n_layer else replace(w, layer=OUTPUT, routed=False) for w in weights)
    name = model.first_path.name
    if isinstance(facts, CloverFacts):
        return _clover(name, facts, weights)
    return _other(name, facts, header, weights)


def _weights(files: Sequence[Sequence[TensorInfo]], data_offsets: Sequence[int]) -> tuple[Weight, ...]:
    out = [weight(t, i, data_offsets[i]) for i, tensors in enumerate(files) for t in tensors]
    if not any(w.layer == OUTPUT and w.matrix for w in out):
        # a tied output: the embedding once more, which costs memory where the two do not lie in the same buffer
        out += [_as_output(w) for w in out if w.name == "token_embd.weight"]
    return tuple(out)


def weight(t: TensorInfo, file: int = 0, data_offset: int = 0) -> Weight:
    """Where a tensor belongs, by its name."""
    match = _LAYER.match(t.name)
    layer = int(match[1]) if match else OUTPUT if t.name.startswith("output") else INPUT
    n_dims = sum(d > 1 for d in t.shape)
    vector = t.name.endswith(("norm.weight", ".bias", ".scale", ".input_scale")) or n_dims < 2
    convolution = ".ssm_conv1d" in t.name
    first = data_offset + t.offset
    return Weight(
        name=t.name, type=t.type.name, n_bytes=t.n_bytes, layer=layer, routed="_exps." in t.name,
        matrix=not vector and not convolution and layer != INPUT, n_out=t.shape[1] if len(t.shape) > 1 else 1,
        file=file, first=first, end=first + t.n_bytes,
    )  # fmt: skip


def _as_output(w: Weight) -> Weight:
    return Weight("output.weight", w.type, w.n_bytes, OUTPUT, False, True, w.n_out, w.file, w.first, w.end)


def _clover(name: str, facts: CloverFacts, weights: tuple[Weight, ...]) -> Geometry:
    full = tuple(kind == "full" for kind in facts.layer_kinds)
    width = facts.n_head_kv * facts.head_dim
    inner = facts.ssm_time_step_rank * facts.ssm_state_size
    key = facts.ssm_group_count * facts.ssm_state_size
    channels = 2 * key + inner
    return Geometry(
        name=name, n_layer=facts.n_layer, n_embd=facts.n_embd, n_vocab=facts.n_vocab, n_ctx_train=facts.n_ctx_train,
        n_head=facts.n_head, head_dim=facts.head_dim, k_width=tuple(width * f for f in full),
        v_width=tuple(width * f for f in full), recurrent=tuple(not f for f in full),
        conv_size=(facts.ssm_conv_kernel - 1) * channels, state_size=facts.ssm_state_size * inner,
        conv_kernel=facts.ssm_conv_kernel, channels=channels, key_size=key, inner_size=inner,
        row_size=channels + 2 * facts.ssm_time_step_rank, block_length=facts.block_length,
        n_expert=facts.n_expert, n_expert_used=max(facts.n_expert_used, default=0), n_ff=max(facts.n_ff_exp, default=0),
        can_draft=facts.capabilities.draft_self.available, weights=weights,
    )  # fmt: skip


def _other(name: str, facts: ModelFacts, header: Header, weights: tuple[Weight, ...]) -> Geometry:
    """A model of another architecture: a transformer by the usual keys, perhaps with state-space layers."""
    arch, n_layer = facts.architecture, facts.n_layer

    def number(key: str, default: int = 0) -> int:
        value = header.metadata.get(f"{arch}.{key}", default)
        if isinstance(value, Array):
            value = max((x for x in value if isinstance(x, int)), default=default)
        return int(value) if isinstance(value, int) else default

    n_head = number("attention.head_count")
    head_k = number("attention.key_length", facts.n_embd // n_head if n_head else 0)
    head_v = number("attention.value_length", head_k)
    n_kv = number("attention.head_count_kv", n_head)
    conv, inner, state, groups = (
        number(f"ssm.{key}") for key in ("conv_kernel", "inner_size", "state_size", "group_count")
    )
    with_state = {w.layer for w in weights if ".ssm_" in w.name}
    with_keys = {w.layer for w in weights if re.search(r"\.attn_(k|qkv|kv_a_mqa)\.", w.name)} or set(range(n_layer))
    recurrent = tuple(i in with_state for i in range(n_layer))
    interval = number("full_attention_interval")
    full = tuple(i in with_keys and not (recurrent[i] and interval and (i + 1) % interval) for i in range(n_layer))
    channels = inner + 2 * groups * state
    return Geometry(
        name=name, n_layer=n_layer, n_embd=facts.n_embd, n_vocab=facts.n_vocab, n_ctx_train=facts.n_ctx_train,
        n_head=n_head, head_dim=head_k, k_width=tuple(n_kv * head_k * f for f in full),
        v_width=tuple(n_kv * head_v * f for f in full), recurrent=recurrent,
        conv_size=max(conv - 1, 0) * channels, state_size=state * inner, conv_kernel=conv, channels=channels,
        key_size=groups * state, inner_size=inner, n_expert=number("expert_count"),
        n_expert_used=number("expert_used_count"), rough=True, weights=weights,
        n_ff=number("expert_feed_forward_length") or number("feed_forward_length"),
    )  # fmt: skip
