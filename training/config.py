"""Sizes of the model and settings of the training run. Nothing here needs torch."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class ModelConfig:
    """Hyper-parameters of a Clover model. Names follow the metadata keys of the GGUF file."""

    n_vocab: int = 1024
    n_embd: int = 128
    n_layer: int = 8
    interval: int = 4  # layer i has full attention when (i + 1) % interval == 0, else it is a gated delta net
    n_head: int = 4
    n_head_kv: int = 2
    head_dim: int = 32
    n_rot: int = 16
    rope_base: float = 1e4
    conv: int = 4
    state: int = 32
    groups: int = 4  # key heads of a gated delta net
    rank: int = 4  # value heads
    n_expert: int = 8
    n_used: int = 2
    n_ff: int = 64
    n_ff_shared: int = 64
    eps: float = 1e-6
    n_ctx: int = 2048
    block_length: int = 8  # of block diffusion, written to the file; 1 to 32
    mask_token: int = -1  # set from the tokenizer
    coreset: int = 0  # experts that a block may use in the preview pass; 0 = all
    coreset_share: float = 0.0  # the other rule: by the share of the rows' votes that they hold; 0 = off
    coreset_min: int = 16  # with a share: at least so many

    def is_linear(self, layer: int) -> bool:
        return (layer + 1) % self.interval != 0

    @property
    def conv_channels(self) -> int:
        return (2 * self.groups + self.rank) * self.state


@dataclass(frozen=True)
class TrainConfig:
    """One training run. Shares are of the whole run, whether it is measured in minutes or in steps."""

    seed: int = 20261
    processes: int = 2
    batch: int = 12  # sequences of a step and process
    length: int = 128  # clean rows of a sequence
    noisy: int = 64  # noisy rows of a sequence
    lr: float = 3e-3  # AdamW: embedding, vectors, router
    lr_muon: float = 0.02  # Muon: matrices
    weight_decay: float = 0.05
    clip: float = 1.0
    warmup_steps: int = 80
    copy_share: float = 0.12  # the copy-heavy mix up to here
    constant_share: float = 0.45  # constant rate up to here, then linear to zero
    whole_share: float = 0.5  # whole blocks as in block diffusion from here
    prompt_weight: float = 0.05  # of the causal loss on prompt tokens
    after_end_weight: float = 0.1  # of both losses on tokens after the end of an answer
    block_weight: float = 1.25
    balance_weight: float = 0.01
    compile: bool = True


def dump(config: ModelConfig | TrainConfig) -> dict[str, Any]:
    return dataclasses.asdict(config)


def write_json(path: Path, data: Any) -> None:
    path.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
