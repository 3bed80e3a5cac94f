"""The sizes in a Clover checkpoint's config.json, each checked before a weight is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from pyclover.errors import UnsupportedModelError
from pyclover.files.convert_checkpoint import CONFIG
from pyclover.files.hparams import MAX_BLOCK, MAX_EXPERTS, MAX_LAYERS

ARCHITECTURES = ("CloverMoeModelLM", "CloverMoeForCausalLM")
_MAX = 2**31 - 1
_MAX_F32 = (2 - 2**-23) * 2.0**127  # numbers are F32 in the file
_KINDS = ("linear_attention", "full_attention")


@dataclass(frozen=True)
class Shape:
    """Sizes of the model.

    Attributes:
        linear: of each layer, whether it is a linear one.
        head_linear: size of a head of the linear layers.
        n_ff_shexp: 0 without a shared expert.
        tied: the output may be the embedding.
        block_length: rows of a diffusion block.
        mask_token_id: None when config.json names none.
    """

    n_embd: int
    n_vocab: int
    n_head: int
    n_head_kv: int
    head_dim: int
    n_expert: int
    n_ff_exp: int
    n_ff_shexp: int
    n_key: int
    n_value: int
    head_linear: int
    kernel: int
    linear: tuple[bool, ...]
    tied: bool
    block_length: int
    mask_token_id: int | None

    @property
    def channels(self) -> int:
        """Of the convolution: queries, keys and values of a linear layer."""
        return (2 * self.n_key + self.n_value) * self.head_linear


def read_shape(config: Mapping[str, Any], title: str) -> Shape:
    """The sizes; `title` is the checkpoint in messages.

    Raises:
        UnsupportedModelError: it is no Clover, or a key is missing or makes no sense; `key` names it.
    """
    return _Reader(config, f"{title}/{CONFIG}").shape()


class _Reader:
    def __init__(self, config: Mapping[str, Any], where: str) -> None:
        self._config = config
        self._where = where

    def fail(self, key: str, what: str) -> UnsupportedModelError:
        return UnsupportedModelError(f"{self._where}: {what}", path=self._where, key=key)

    def number(self, *keys: str, low: int = 1, high: int = _MAX, default: int | None = None) -> int:
        key = next((k for k in keys if self._config.get(k) is not None), keys[0])
        value = self._config.get(key)
        if value is None:
            if default is None:
                raise self.fail(key, f"there is no '{key}', which Clover needs; take the config.json of the model")
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.fail(key, f"'{key}' is {value!r:.60}, and must be an integer from {low} to {high}; correct it")
        return value

    def shape(self) -> Shape:
        self.check_kind()
        n_layer = self.number("num_hidden_layers", high=MAX_LAYERS)
        n_head, n_embd = self.number("num_attention_heads"), self.number("hidden_size")
        n_expert = self.number("num_local_experts", "num_experts", high=MAX_EXPERTS)
        n_key, n_value = self.number("linear_num_key_heads"), self.number("linear_num_value_heads")
        head = self.number("linear_key_head_dim")
        if n_value % n_key:
            raise self.fail("linear_num_value_heads", f"linear_num_value_heads ({n_value}) is no multiple of "
                            f"linear_num_key_heads ({n_key}); correct it")  # fmt: skip
        if self.number("linear_value_head_dim") != head:
            raise self.fail("linear_value_head_dim", "linear_key_head_dim and linear_value_head_dim differ, which "
                            "Clover cannot have; correct them")  # fmt: skip
        self.number("max_position_embeddings")
        n_used = self.number("num_experts_per_tok", high=n_expert)
        head_dim = self.number("head_dim", default=max(n_embd // n_head, 1))
        rope = self.check_floats()
        self.check_rotary(rope, head_dim)
        self.check_diffusion(n_used, n_expert)
        vocab = self.number("vocab_size")
        mask = self.number("mask_token_id", low=0, high=vocab - 1, default=-1)
        return Shape(
            n_embd=n_embd,
            n_vocab=vocab,
            n_head=n_head,
            n_head_kv=self.number("num_key_value_heads", default=n_head),
            head_dim=head_dim,
            n_expert=n_expert,
            n_ff_exp=self.number("moe_intermediate_size"),
            n_ff_shexp=self.number("shared_expert_intermediate_size", low=0, default=0),
            n_key=n_key,
            n_value=n_value,
            head_linear=head,
            kernel=self.number("linear_conv_kernel_dim", low=2),
            linear=self.layers(n_layer),
            tied=self._config.get("tie_word_embeddings") is True,
            block_length=self.number("block_length", "block_size", high=MAX_BLOCK, default=MAX_BLOCK),
            mask_token_id=None if mask < 0 else mask,
        )  # fmt: skip

    def check_kind(self) -> None:
        names = self._config.get("architectures")
        name = names[0] if isinstance(names, list) and names else None
        if name not in ARCHITECTURES:
            raise self.fail(
                "architectures",
                f"the model is a {name!r:.60} (architectures), and only Clover's ({' or '.join(ARCHITECTURES)}) is "
                "converted here; for other models use llama.cpp's convert_hf_to_gguf.py",
            )
        if self._config.get("quantization_config"):
            raise self.fail("quantization_config", "the weights are quantized already (quantization_config); convert "
                            "the original ones, in BF16, F16 or F32")  # fmt: skip

    def check_floats(self) -> Mapping[str, Any]:
        """What has no default that would be right, and that the converter would leave out without a word; returns what
        is said about rotary positions."""
        rope = self._config.get("rope_parameters") or self._config.get("rope_scaling") or {}
        rope = rope if isinstance(rope, dict) else {}
        for key, value in (("rms_norm_eps", self._config.get("rms_norm_eps")),
                           ("rope_theta", rope.get("rope_theta") or self._config.get("rope_theta"))):  # fmt: skip
            if not _is_number(value) or not value > 0:
                what = f"there is no '{key}', which Clover needs" if value is None else f"'{key}' is {value!r:.60}"
                raise self.fail(key, f"{what}; take the config.json of the model")
        return rope

    def check_rotary(self, rope: Mapping[str, Any], head_dim: int) -> None:
        """The part of a head that is turned: the converter would cut any number to an integer."""
        key = "partial_rotary_factor"
        value = next((at[key] for at in (rope, self._config) if at.get(key) is not None), 0.25)
        n_rot = int(head_dim * value) if _is_number(value) and 0 < value <= 1 else 0
        if not n_rot or n_rot % 2:
            raise self.fail(key, f"'{key}' is {value!r:.60}, and must give an even part of a head of {head_dim}; take "
                            "the config.json of the model")  # fmt: skip

    def check_diffusion(self, n_used: int, n_expert: int) -> None:
        """What is written as clover_moe.diffusion.*: another type would be written as something else."""
        shift = self._config.get("shift_logits", False)
        if not isinstance(shift, bool):
            raise self.fail("shift_logits", f"'shift_logits' is {shift!r:.60}, and must be true or false; correct it")
        coreset = self.number("expert_coreset", low=0, high=n_expert, default=0)
        if 0 < coreset < n_used:
            raise self.fail("expert_coreset", f"'expert_coreset' is {coreset}, and must be 0 or from {n_used} to "
                            f"{n_expert}; correct it")  # fmt: skip
        self.number("expert_coreset_min", low=0, default=0)
        share = self._config.get("expert_coreset_share", 0.0)
        if not _is_number(share) or not 0 <= share <= 1:
            raise self.fail("expert_coreset_share", f"'expert_coreset_share' is {share!r:.60}, and must be from 0 to "
                            "1; correct it")  # fmt: skip

    def layers(self, n_layer: int) -> tuple[bool, ...]:
        kinds = self._config.get("layer_types")
        if kinds is not None:
            if not isinstance(kinds, list) or len(kinds) != n_layer or any(kind not in _KINDS for kind in kinds):
                raise self.fail("layer_types", f"layer_types must have {n_layer} entries, each {' or '.join(_KINDS)}; "
                                "correct it")  # fmt: skip
            linear = tuple(kind == "linear_attention" for kind in kinds)
        else:
            interval = self.number("full_attention_interval")
            linear = tuple((i + 1) % interval != 0 for i in range(n_layer))
        if len(set(linear)) != 2:
            raise self.fail("layer_types", "all layers are of one kind, and Clover has both full and linear attention "
                            "layers; correct layer_types or full_attention_interval")  # fmt: skip
        return linear


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and -_MAX_F32 <= value <= _MAX_F32
