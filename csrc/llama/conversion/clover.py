"""Checkpoint class for Clover (`clover_moe`): Qwen3.5-MoE's text model with plain rotary positions and a block pass.

Clover adds four tensors to each linear layer: the right half of the convolution, and per value head a logit scale,
a history bias and a history factor of the block's softmax. They are F32 in every file. Value heads come grouped by
their key head and are written in the order of GGUF (value head h belongs to key head h mod key heads).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch import Tensor

from .base import ModelBase, gguf, logger
from .qwen import _LinearAttentionVReorderBase

MAX_BLOCK_LENGTH = 32
DEFAULT_BLOCK_LENGTH = 32

# Kind of tensor -> suffix of its name in the file.
BLOCK_TENSORS = {
    gguf.MODEL_TENSOR.SSM_CONV1D_RIGHT: ".weight",
    gguf.MODEL_TENSOR.SSM_BD_LOGIT_SCALE: "",
    gguf.MODEL_TENSOR.SSM_BD_HISTORY_BIAS: "",
    gguf.MODEL_TENSOR.SSM_BD_HISTORY_C: "",
}

# What a tokenizer.json splits text by -> the name under which llama.cpp knows that rule.
_SPLIT_QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?LETTERS+|\p{N}| ?[^\s\p{L}MARKS\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
PRE_TOKENIZERS = {
    _SPLIT_QWEN.replace("LETTERS", r"[\p{L}\p{M}]").replace("MARKS", r"\p{M}"): "qwen35",
    _SPLIT_QWEN.replace("LETTERS", r"\p{L}").replace("MARKS", ""): "qwen2",
}


def pre_tokenizer_of(tokenizer: dict[str, Any]) -> str | None:
    """Name of the splitting rule of a parsed tokenizer.json; None when it is not exactly one of `PRE_TOKENIZERS`.

    The rule itself decides, so a small vocabulary of our own is recognised as well as the real one. Another step in the
    chain, another option of a step, or a model other than byte-level BPE would change the tokens: the answer is None.
    """
    pre = tokenizer.get("pre_tokenizer") or {}
    steps = pre.get("pretokenizers") if pre.get("type") == "Sequence" else None
    if (tokenizer.get("model") or {}).get("type") != "BPE" or not steps or len(steps) != 2:
        return None
    split, byte_level = steps
    if (split.get("type"), byte_level.get("type")) != ("Split", "ByteLevel"):
        return None
    if split.get("behavior") != "Isolated" or split.get("invert"):
        return None
    # add_prefix_space and use_regex are on when they are not written
    if byte_level.get("add_prefix_space", True) or byte_level.get("use_regex", True):
        return None
    pattern = split.get("pattern") or {}
    return PRE_TOKENIZERS.get(pattern.get("Regex", "")) if isinstance(pattern, dict) else None


def regular_interval(recurrent: Sequence[bool]) -> int | None:
    """The n for which exactly every n-th layer is a full one; None when the pattern is irregular."""
    if False not in recurrent:
        return None
    n = recurrent.index(False) + 1
    return n if all(linear == ((i + 1) % n != 0) for i, linear in enumerate(recurrent)) else None


@ModelBase.register("CloverMoeModelLM", "CloverMoeForCausalLM")
@ModelBase.example("Diffuspace/Clover-35B-A3B-Preview")
class CloverMoeModel(_LinearAttentionVReorderBase):
    model_arch = gguf.MODEL_ARCH.CLOVER_MOE

    # the architecture has no multi-token-prediction block; tensors of one left in a checkpoint are dropped
    no_mtp = True
    supports_mtp_export = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Positions are plain; sections left over from Qwen's config mean nothing for text. And `is_causal: false` can
        # only be about the block pass: written to the file it would break ordinary decoding.
        self.rope_parameters = {k: v for k, v in self.rope_parameters.items() if k != "mrope_section"}
        self.hparams = {k: v for k, v in self.hparams.items() if k != "is_causal"}
        self.n_key_heads: int = self.hparams["linear_num_key_heads"]
        self.n_value_heads: int = self.hparams["linear_num_value_heads"]
        if self.n_value_heads % self.n_key_heads:
            raise ValueError(
                f"config.json: linear_num_value_heads ({self.n_value_heads}) must be a multiple of "
                f"linear_num_key_heads ({self.n_key_heads})"
            )
        if self.hparams["linear_key_head_dim"] != self.hparams["linear_value_head_dim"]:
            raise ValueError("config.json: Clover needs equal linear_key_head_dim and linear_value_head_dim")
        self.recurrent = self._recurrent_layers()

    # --- checks before any weight is read ---

    @classmethod
    def filter_tensors(cls, item: tuple[str, Callable[[], Tensor]]) -> tuple[str, Callable[[], Tensor]] | None:
        if item[0].removeprefix("model.").startswith("mtp."):
            logger.info(f"clover: {item[0]} is left out: {gguf.MODEL_ARCH_NAMES[cls.model_arch]} has no such block")
        return super().filter_tensors(item)

    def write(self) -> None:
        if self.model_tensors:  # none: an adapter is converted and of the base only the configuration is here
            self._check_tensors()
        tokenizer_json = self.dir_model / "tokenizer.json"
        if tokenizer_json.is_file() and self._pre_tokenizer() is None:
            from transformers import AutoTokenizer

            self.get_vocab_base_pre(AutoTokenizer.from_pretrained(self.dir_model))
        super().write()

    def _check_tensors(self) -> None:
        shared = any(".mlp.shared_expert." in name for name in self.model_tensors)
        if shared != bool(self.n_ff_shared):
            raise ValueError(
                f"config.json: shared_expert_intermediate_size is {self.n_ff_shared}, but the checkpoint has "
                f"{'' if shared else 'no '}tensors of a shared expert"
            )
        for i, linear in enumerate(self.recurrent):
            found = any(name.startswith(f"model.layers.{i}.linear_attn.") for name in self.model_tensors)
            if found != linear:
                raise ValueError(
                    f"config.json: layer {i} is a {'linear' if linear else 'full'} attention layer by layer_types or "
                    f"full_attention_interval, but its tensors are those of the other kind"
                )
        have = {(bid, kind) for name in self.model_tensors for bid, kind in [self._block_kind(name)] if kind}
        if not have:
            logger.warning(
                "clover: no tensors of the block pass in this checkpoint: the file will decode one token at "
                "a time and cannot draft for itself"
            )
            return
        missing = [
            self.format_tensor_name(kind, i, suffix)
            for i, linear in enumerate(self.recurrent)
            if linear
            for kind, suffix in BLOCK_TENSORS.items()
            if (i, kind) not in have
        ]
        if missing:
            raise ValueError(f"The checkpoint lacks some tensors of the block pass: {', '.join(missing)}")

    def _recurrent_layers(self) -> list[bool]:
        """Which layers are linear ones, from `layer_types` or else `full_attention_interval`."""
        n = self.block_count
        if (types := self.hparams.get("layer_types")) is not None:
            if len(types) != n or set(types) - {"linear_attention", "full_attention"}:
                raise ValueError(
                    f"config.json: layer_types must hold {n} entries, each linear_attention or full_attention"
                )
            recurrent = [kind == "linear_attention" for kind in types]
        elif (interval := self.hparams.get("full_attention_interval")) is not None:
            if interval < 1:
                raise ValueError(f"config.json: full_attention_interval is {interval}, it must be positive")
            recurrent = [(i + 1) % interval != 0 for i in range(n)]
        else:
            raise ValueError("config.json: layer_types or full_attention_interval is needed to tell the layers apart")
        if len(set(recurrent)) != 2:
            raise ValueError("config.json: Clover needs both full and linear attention layers")
        return recurrent

    # --- metadata ---

    @property
    def n_ff_shared(self) -> int:
        return int(self.hparams.get("shared_expert_intermediate_size") or 0)

    def set_gguf_parameters(self) -> None:
        super().set_gguf_parameters()
        keys, arch = gguf.Keys, gguf.MODEL_ARCH_NAMES[self.model_arch]

        # one of the two, never both: an array beside an interval that does not describe it would mislead
        self.gguf_writer.remove_key(keys.Attention.RECURRENT_LAYERS.format(arch=arch))
        self.gguf_writer.remove_key(keys.LLM.FULL_ATTENTION_INTERVAL.format(arch=arch))
        if (interval := regular_interval(self.recurrent)) is not None:
            self.gguf_writer.add_full_attention_interval(interval)
        else:
            self.gguf_writer.add_recurrent_layers(self.recurrent)

        self.gguf_writer.add_expert_shared_count(1 if self.n_ff_shared else 0)
        if not self.n_ff_shared:
            self.gguf_writer.remove_key(keys.LLM.EXPERT_SHARED_FEED_FORWARD_LENGTH.format(arch=arch))

        block = self.find_hparam(["block_length", "block_size"], optional=True)
        block = DEFAULT_BLOCK_LENGTH if block is None else block
        if not 1 <= block <= MAX_BLOCK_LENGTH:
            raise ValueError(f"config.json: the block length is {block}, it must be 1 to {MAX_BLOCK_LENGTH}")
        self.gguf_writer.add_uint32(f"{arch}.diffusion.block_length", block)
        for name, add in (
            ("shift_logits", self.gguf_writer.add_bool),
            ("expert_coreset", self.gguf_writer.add_uint32),
            ("expert_coreset_share", self.gguf_writer.add_float32),
            ("expert_coreset_min", self.gguf_writer.add_uint32),
        ):
            if (value := self.hparams.get(name)) is not None:
                add(f"{arch}.diffusion.{name}", value)

    # --- tokenizer ---

    def set_vocab(self) -> None:
        super().set_vocab()
        key = gguf.Keys.Tokenizer.MASK_ID
        written = next((kv[key].value for kv in self.gguf_writer.kv_data if key in kv), None)
        wanted = self.hparams.get("mask_token_id")
        if wanted is None and written is None:
            logger.warning(
                "clover: no mask token: give mask_token_id in config.json or mask_token in "
                "tokenizer_config.json, else the file cannot draft for itself"
            )
        elif wanted is not None and wanted != written:
            if written is not None:
                logger.warning(f"clover: config.json's mask_token_id {wanted} is used, not the tokenizer's {written}")
                self.gguf_writer.remove_key(key)
            self.gguf_writer.add_mask_token_id(wanted)

    def _pre_tokenizer(self) -> str | None:
        path = self.dir_model / "tokenizer.json"
        return pre_tokenizer_of(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else None

    def get_vocab_base_pre(self, tokenizer: Any) -> str:
        if (pre := self._pre_tokenizer()) is not None:
            return pre
        try:
            return super().get_vocab_base_pre(tokenizer)
        except NotImplementedError as e:
            raise ValueError(
                f"{self.dir_model / 'tokenizer.json'}: its pre_tokenizer is not known; Clover's is byte-level BPE "
                f"after the split rule of Qwen3.5, see PRE_TOKENIZERS in conversion/clover.py"
            ) from e

    # --- tensors ---

    def _block_kind(self, name: str) -> tuple[int | None, gguf.MODEL_TENSOR | None]:
        """Layer and kind of a tensor that only the block pass uses; the kind is None for all others.

        Only the last part of the names is published, so whatever stands between it and the layer number is ignored.
        """
        bid = next((int(part) for part in name.split(".") if part.isdecimal()), None)
        kind = self.tensor_map.get_type(f"model.layers.{bid}.linear_attn.{name.rpartition('.')[2]}")
        return bid, kind if kind in BLOCK_TENSORS else None

    def tensor_force_quant(
        self, name: str, new_name: str, bid: int | None, n_dims: int
    ) -> gguf.GGMLQuantizationType | bool:
        if any(self.match_model_tensor_name(new_name, kind, bid, suffix) for kind, suffix in BLOCK_TENSORS.items()):
            return gguf.GGMLQuantizationType.F32
        return super().tensor_force_quant(name, new_name, bid, n_dims)

    def modify_tensors(self, data_torch: Tensor, name: str, bid: int | None) -> Iterable[tuple[str, Tensor]]:
        _, kind = self._block_kind(name)
        if kind is None:
            if name.endswith(".shared_expert_gate.weight") and not hasattr(data_torch, "get_lora_A_B"):
                data_torch = data_torch.reshape(-1)  # one row, a vector in the file
            yield from super().modify_tensors(data_torch, name, bid)
        elif kind == gguf.MODEL_TENSOR.SSM_CONV1D_RIGHT:
            yield self.format_tensor_name(kind, bid, BLOCK_TENSORS[kind]), self._right_kernel(data_torch, name)
        else:
            yield self.format_tensor_name(kind, bid, BLOCK_TENSORS[kind]), self._per_head(data_torch, name)

    def _tile_heads(self, data: Tensor, head_dim: int) -> Tensor:
        """Value heads along the first axis, from grouped by key head to the order of GGUF."""
        return self._reorder_v_heads(data, 0, self.n_key_heads, self.n_value_heads // self.n_key_heads, head_dim)

    def _right_kernel(self, data: Tensor, name: str) -> Tensor:
        """[channels, taps], [channels, 1, taps] or [taps, channels] -> [channels, taps], value channels reordered."""
        head_dim = self.hparams["linear_key_head_dim"]
        qk = 2 * head_dim * self.n_key_heads
        channels = qk + head_dim * self.n_value_heads
        taps = self.hparams["linear_conv_kernel_dim"] - 1
        shape = tuple(data.shape)
        if shape in ((channels, taps), (channels, 1, taps)):
            data = data.reshape(channels, taps)
        elif shape == (taps, channels):
            data = data.permute(1, 0).contiguous()
        else:
            raise ValueError(
                f"{name}: shape {list(shape)} is neither [{channels}, {taps}] nor [{channels}, 1, {taps}] "
                f"nor [{taps}, {channels}]"
            )
        return torch.cat([data[:qk], self._tile_heads(data[qk:], head_dim)], dim=0)

    def _per_head(self, data: Tensor, name: str) -> Tensor:
        """[R], [1, R], [R, 1] or one number for all heads -> [R] in the order of GGUF."""
        shape = tuple(data.shape)
        n = data.numel()
        if n not in (1, self.n_value_heads) or max(shape, default=1) != n:
            raise ValueError(
                f"{name}: shape {list(shape)} does not hold one number or one for each of the "
                f"{self.n_value_heads} value heads"
            )
        data = data.reshape(-1, 1)
        return self._tile_heads(data if n == self.n_value_heads else data.repeat(self.n_value_heads, 1), 1).reshape(-1)
