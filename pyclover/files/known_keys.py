"""Metadata keys with the types that llama.cpp and the block pass ask for, and reading a value for them."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyclover.errors import UsageError, shortened
from pyclover.files.values import Array, MetaValue, Scalar, ValueType
from pyclover.files.vocab import SPECIAL_TOKENS
from pyclover.files.write import make_array

U32, F32, BOOL, STR = ValueType.UINT32, ValueType.FLOAT32, ValueType.BOOL, ValueType.STRING
_OPTION = "set_metadata"


@dataclass(frozen=True)
class Typed:
    """A value with the type that it is stored as."""

    kind: ValueType
    value: MetaValue


@dataclass(frozen=True)
class KnownKey:
    """What may stand under a key.

    Attributes:
        kind: type of a single value, None where there must be an array.
        elements: types that the elements of an array may have; () where there may be none.
    """

    kind: ValueType | None
    elements: tuple[ValueType, ...] = ()


_LAYERS = (ValueType.UINT32, ValueType.INT32, ValueType.BOOL)
_PER_LAYER = KnownKey(U32, _LAYERS)

_GENERAL: dict[str, ValueType] = {
    "general.architecture": STR, "general.type": STR, "general.name": STR, "general.size_label": STR,
    "general.file_type": U32, "general.quantization_version": U32,
}  # fmt: skip
_TOKENIZER: dict[str, ValueType] = {
    "tokenizer.ggml.model": STR, "tokenizer.ggml.pre": STR, "tokenizer.chat_template": STR,
    "tokenizer.ggml.add_bos_token": BOOL, "tokenizer.ggml.add_eos_token": BOOL, "tokenizer.ggml.add_sep_token": BOOL,
    "tokenizer.ggml.add_space_prefix": BOOL, "tokenizer.ggml.remove_extra_whitespaces": BOOL,
    **dict.fromkeys(SPECIAL_TOKENS.values(), U32),
}  # fmt: skip
_TOKENIZER_ARRAYS: dict[str, tuple[ValueType, ...]] = {
    "tokenizer.ggml.tokens": (STR,), "tokenizer.ggml.merges": (STR,), "tokenizer.ggml.token_type": (ValueType.INT32,),
    "tokenizer.ggml.scores": (F32,), "tokenizer.ggml.suppress_tokens": (ValueType.INT32,),
}  # fmt: skip
# behind "ARCHITECTURE."; of every architecture those that llama.cpp's common loader reads
_COMMON: dict[str, ValueType] = {
    "context_length": U32, "embedding_length": U32, "embedding_length_out": U32, "block_count": U32, "vocab_size": U32,
    "expert_count": U32, "nextn_predict_layers": U32, "pooling_type": U32, "attention.key_length": U32,
    "attention.value_length": U32, "attention.causal": BOOL, "attention.scale": F32,
    "attention.layer_norm_rms_epsilon": F32, "rope.dimension_count": U32, "rope.freq_base": F32,
    "rope.scaling.type": STR, "rope.scaling.factor": F32, "rope.scaling.attn_factor": F32,
    "rope.scaling.original_context_length": U32, "rope.scaling.finetuned": BOOL, "rope.scale_linear": F32,
    "expert_shared_count": U32, "expert_shared_feed_forward_length": U32, "expert_weights_scale": F32,
    "expert_weights_norm": BOOL, "expert_gating_func": U32, "expert_group_count": U32, "expert_group_used_count": U32,
    "full_attention_interval": U32, "ssm.conv_kernel": U32, "ssm.inner_size": U32, "ssm.state_size": U32,
    "ssm.time_step_rank": U32, "ssm.group_count": U32,
}  # fmt: skip
_COMMON_PER_LAYER = (
    "feed_forward_length", "attention.head_count", "attention.head_count_kv", "expert_used_count",
    "expert_feed_forward_length",
)  # fmt: skip
_COMMON_ARRAYS: dict[str, tuple[ValueType, ...]] = {
    "attention.recurrent_layers": _LAYERS,
    "rope.dimension_sections": (ValueType.INT32, U32),
}
_CLOVER: dict[str, ValueType] = {
    "diffusion.block_length": U32, "diffusion.shift_logits": BOOL, "diffusion.expert_coreset": U32,
    "diffusion.expert_coreset_share": F32, "diffusion.expert_coreset_min": U32,
    "diffusion.logit_scale_activation": STR, "diffusion.history_query": STR,
}  # fmt: skip


def known_key(key: str, arch: str) -> KnownKey | None:
    """What may stand under a key of a file of that architecture; None for a key that is not known here."""
    if kind := (_GENERAL | _TOKENIZER).get(key):
        return KnownKey(kind)
    if elements := _TOKENIZER_ARRAYS.get(key):
        return KnownKey(None, elements)
    name = key.removeprefix(f"{arch}.")
    if not arch or name == key:
        return None
    if kind := (_COMMON | _CLOVER).get(name):
        return KnownKey(kind)
    if name in _COMMON_PER_LAYER:
        return _PER_LAYER
    return KnownKey(None, _COMMON_ARRAYS[name]) if name in _COMMON_ARRAYS else None


_NAMES: dict[str, ValueType] = {kind.label: kind for kind in ValueType if kind is not ValueType.ARRAY}
_NAMES |= {"u8": ValueType.UINT8, "i8": ValueType.INT8, "u16": ValueType.UINT16, "i16": ValueType.INT16, "u32": U32,
           "i32": ValueType.INT32, "f32": F32, "u64": ValueType.UINT64, "i64": ValueType.INT64,
           "f64": ValueType.FLOAT64, "str": STR}  # fmt: skip
TYPE_NAMES = tuple(_NAMES)


def typed(key: str, value: Any, kind_name: str = "", *, found: ValueType | None = None, arch: str = "") -> Typed:
    """A value for a key, of the type that the key demands; else of the one named, else of the one that it has now.

    Args:
        value: a Python value; a list for an array.
        kind_name: a name of TYPE_NAMES, with [] behind it for an array; "" to go by the key.
        found: type that is stored under the key now.

    Raises:
        UsageError: the type is not the key's, the value not the type's, or the type is not to be told.
    """
    known = known_key(key, arch)
    many = isinstance(value, (list, tuple))
    kind = _kind(key, value, kind_name, known, found, many)
    if many:
        return Typed(ValueType.ARRAY, _array(key, kind, value))
    return Typed(kind, _scalar(key, kind, value))


def _kind(
    key: str, value: Any, kind_name: str, known: KnownKey | None, found: ValueType | None, many: bool
) -> ValueType:
    """Type of the value, or of its elements."""
    if kind_name:
        kind = _NAMES.get(kind_name.removesuffix("[]"))
        if kind is None:
            raise _wrong(f"'{kind_name}' is no type ({key}); types are {', '.join(TYPE_NAMES)}, arrays have [] behind")
        if kind_name.endswith("[]") != many:
            raise _wrong(f"{key}: {shortened(value)} is {'a list' if many else 'no list'}, which {kind_name} is not")
        if known is not None and kind not in (known.elements if many else (known.kind,)):
            raise _wrong(f"{key} is given as {kind_name}, and must be {_expected(known)}")
        return kind
    if known is not None:
        choices = known.elements if many else (known.kind,)
        if not choices or choices[0] is None:
            raise _wrong(f"{key} is given as {shortened(value)}, and must be {_expected(known)}")
        return BOOL if many and BOOL in choices and all(isinstance(v, bool) for v in value) else choices[0]
    if found is not None and found is not ValueType.ARRAY and not many:
        return found
    sample = value[0] if many and value else value
    for python_type, natural in ((bool, BOOL), (str, STR), (float, F32)):
        if isinstance(sample, python_type):
            return natural
    raise _wrong(f"the type of {key} is not known: say it, as in uint32 or string")


def _expected(known: KnownKey) -> str:
    kinds = [known.kind.label] if known.kind is not None else []
    if known.elements:
        kinds.append("an array of " + " or ".join(kind.label for kind in known.elements))
    return " or ".join(kinds)


def _scalar(key: str, kind: ValueType, value: Any) -> Scalar:
    if kind is STR:
        if not isinstance(value, str) or "\0" in value:
            raise _wrong(f"{key} must be text without a zero byte, and is {shortened(value)}")
        try:
            value.encode()
        except UnicodeEncodeError:
            raise _wrong(f"{key} holds a lone surrogate, which is no character") from None
        return value
    if kind is BOOL:
        if not isinstance(value, bool):
            raise _wrong(f"{key} must be true or false, and is {shortened(value)}")
        return value
    real = kind in (F32, ValueType.FLOAT64)
    if isinstance(value, bool) or not isinstance(value, (int, float) if real else int):
        raise _wrong(f"{key} must be a {'number' if real else 'whole number'}, and is {shortened(value)}")
    try:
        stored = make_array(kind, [float(value) if real else value])[0]
    except (struct.error, OverflowError):
        raise _wrong(f"{key} is {shortened(value)}, which {kind.label} cannot hold") from None
    if isinstance(stored, float) and not math.isfinite(stored):
        raise _wrong(f"{key} is {shortened(value)}, which is not a finite number")
    return stored


def _array(key: str, kind: ValueType, values: Sequence[Any]) -> Array:
    return make_array(kind, [_scalar(key, kind, value) for value in values])


def read_setting(text: str) -> tuple[str, str, Any]:
    """KEY=TYPE:VALUE of a command line: key, name of the type, value.

    Raises:
        UsageError: it is not of that form, or the value cannot be read as the type.
    """
    key, equals, rest = text.partition("=")
    kind_name, colon, value = rest.partition(":")
    if not key or not equals or not colon:
        raise _wrong(f"'{text}' is not KEY=TYPE:VALUE, as in clover_moe.expert_shared_count=uint32:1")
    kind = _NAMES.get(kind_name.removesuffix("[]"))
    if kind is None or (kind is STR and not kind_name.endswith("[]")):
        return key, kind_name, value
    try:
        return key, kind_name, json.loads(value)
    except (ValueError, RecursionError):
        value = value if len(value) <= 80 else f"{value[:79]}…"
        example = "[1, 2]" if kind_name.endswith("[]") else "true" if kind is BOOL else "1"
        raise _wrong(f"the value of {key}, '{value}', cannot be read as {kind_name}; write it as {example}") from None


def _wrong(message: str) -> UsageError:
    return UsageError(message, option=_OPTION)


def lossless(value: MetaValue, kind: ValueType) -> MetaValue | None:
    """The same value stored as another type, None where that would change it; a float64 may be rounded to float32."""
    if isinstance(value, (Array, str, bytes)) or kind in (STR, ValueType.ARRAY):
        return None
    if kind is BOOL:
        return bool(value) if value in (0, 1) else None
    if kind is not F32 and kind is not ValueType.FLOAT64:
        if isinstance(value, float) and not value.is_integer():
            return None
        value = int(value)
    try:
        stored = make_array(kind, [value])[0]
    except (struct.error, OverflowError):
        return None
    rounded = kind is F32 and isinstance(value, float)
    return stored if stored == value or rounded else None
