"""What a check of a model file yields: plain records, shared by the gate, the report and the engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from pyclover.files.header import TensorInfo

LayerKind: TypeAlias = Literal["linear", "full"]
CLOVER_ARCH = "clover_moe"


@dataclass(frozen=True)
class Problem:
    """A reason why the model cannot run: one sentence without the path, and the key or tensor at fault."""

    key: str
    message: str


@dataclass(frozen=True)
class Capability:
    """Whether a mode of generation is possible with this file; `reason` says why not, "" when it is."""

    available: bool
    reason: str = ""

    def __bool__(self) -> bool:
        return self.available


@dataclass(frozen=True)
class Capabilities:
    """The three modes: one token at a time, the model's own drafts, block diffusion."""

    plain: Capability
    draft_self: Capability
    block_diffusion: Capability


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """Facts about any model; a number that the file does not give is 0.

    Attributes:
        n_params: all weights.
        n_params_active: weights that take part in one token: all, but of the routed experts only those chosen.
        special_tokens: name ("eos", "mask", …) to token id.
        problems: why it cannot run; empty when it can.
        unknown_tensors: not read by this architecture; they are skipped (Clover only).
    """

    architecture: str
    n_layer: int = 0
    n_embd: int = 0
    n_vocab: int = 0
    n_ctx_train: int = 0
    n_params: int = 0
    n_params_active: int = 0
    special_tokens: Mapping[str, int] = field(default_factory=dict)
    capabilities: Capabilities
    warnings: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()
    unknown_tensors: tuple[TensorInfo, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CloverFacts(ModelFacts):
    """Facts about a clover_moe file; letters as in the tensor tables of the oracle's FACTS.

    Attributes:
        layer_kinds: "linear" (Gated DeltaNet) or "full" (attention), one per layer.
        n_expert_shared: 0 or 1, also where the key is missing and was derived from the tensors.
        expert_shared_count_missing: the key is absent.
        mask_token_id: None when the file names none.
        block_length: rows of a diffusion block, at most 32.
        preview_tensors: canonical name -> name in the file; complete when preview_complete.
        preview_missing: canonical names that no tensor of the file serves.
    """

    layer_kinds: tuple[LayerKind, ...] = ()
    n_head: int = 0
    n_head_kv: int = 0
    head_dim: int = 0
    n_rot: int = 0
    rope_freq_base: float = 0.0
    rms_eps: float = 0.0
    ssm_conv_kernel: int = 0
    ssm_state_size: int = 0
    ssm_group_count: int = 0
    ssm_time_step_rank: int = 0
    n_expert: int = 0
    n_expert_used: tuple[int, ...] = ()
    n_ff_exp: tuple[int, ...] = ()
    n_ff_shexp: int = 0
    n_expert_shared: int = 0
    expert_shared_count_missing: bool = False
    tied_output: bool = False
    causal: bool = True
    mask_token_id: int | None = None
    block_length: int = 32
    shift_logits: bool = False
    expert_coreset: int = 0
    preview_tensors: Mapping[str, str] = field(default_factory=dict)
    preview_missing: tuple[str, ...] = ()

    @property
    def preview_complete(self) -> bool:
        """Every linear layer has its right convolution and its block softmax."""
        return bool(self.preview_tensors) and not self.preview_missing

    @property
    def n_layer_full(self) -> int:
        return self.layer_kinds.count("full")

    @property
    def n_layer_linear(self) -> int:
        return self.layer_kinds.count("linear")
