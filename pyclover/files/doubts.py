"""What is odd about a file that runs: metadata that its makers are unlikely to have meant."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pyclover.files.facts import CLOVER_ARCH, CloverFacts, ModelFacts
from pyclover.files.header import Header, TensorInfo
from pyclover.files.hparams import MAX_BLOCK
from pyclover.files.known_keys import known_key
from pyclover.files.preview import PREVIEW
from pyclover.files.repair_plan import BLOCK_LENGTH, MASK_TOKEN, SHARED_COUNT, TEMPLATE, TOKENS
from pyclover.files.repair_template import template_fault
from pyclover.files.roles import pooling
from pyclover.files.types import F32, FILE_TYPES, TYPES_BY_NAME
from pyclover.files.values import Array, ValueType

END_TOKEN = "<|im_end|>"
THINK_TOKEN = "<think>"
# Clover-35B-A3B as published: it is known by its layers and width
_PUBLISHED_SIZE = {"block_count": 40, "embedding_length": 2048}
_PUBLISHED = {
    "context_length": 131_072, "rope.freq_base": 1e7, "rope.dimension_count": 64, "attention.head_count": 16,
    "attention.head_count_kv": 2, "expert_count": 256, "expert_used_count": 8, "full_attention_interval": 4,
    "diffusion.block_length": MAX_BLOCK,
}  # fmt: skip
_MAY_MISS = ("full_attention_interval", "diffusion.block_length")  # listed by layer instead; 32 by default
_FLOATS = ("F32", "F16", "BF16")
# general.file_type's name where it is not the tensor type with a size behind it
_MAIN_TYPE = {"IQ2_M": "IQ2_S", "IQ2_S": "IQ2_XS", "IQ3_XS": "IQ3_S", "IQ3_M": "IQ3_S", "MXFP4_MOE": "MXFP4"}
_GUESSED = 1024  # bit of general.file_type: "not certain"
_LAYER = re.compile(r"blk\.\d+\.")


@dataclass(frozen=True)
class Doubt:
    """One odd thing: the key or tensor, and a sentence without the path."""

    key: str
    message: str


def find_doubts(headers: Sequence[Header], facts: ModelFacts) -> tuple[Doubt, ...]:
    """Odd things about a set of files, whose first header holds the metadata. Never raises."""
    header = headers[0]
    tensors = [t for h in headers for t in h.tensors]
    found = [*_template(header), *_file_type(header, tensors), *_types(tensors), *_shards(headers)]
    if isinstance(facts, CloverFacts):
        found += [*_tokens(header, facts), *_sizes(header, facts), *_block(facts), *_preview(facts), *_keys(header)]
    elif how := pooling(header):
        key = f"{header.architecture}.pooling_type"
        found.append(Doubt(key, f"{key} is {how}: the model was made for embeddings, not for writing text"))
    return tuple(found)


def _token(header: Header, number: int) -> str:
    tokens = header.metadata.get(TOKENS)
    if not isinstance(tokens, Array) or tokens.kind is not ValueType.STRING or not 0 <= number < len(tokens):
        return ""
    text = tokens[number]
    return text.decode("utf-8", "backslashreplace") if isinstance(text, bytes) else str(text)


def _has_token(header: Header, text: str) -> bool:
    tokens = header.metadata.get(TOKENS)
    if not isinstance(tokens, Array) or tokens.kind is not ValueType.STRING:
        return False
    return len(text).to_bytes(8, "little") + text.encode() in tokens.raw


def _template(header: Header) -> Iterator[Doubt]:
    if "tokenizer.ggml.model" not in header.metadata:
        return
    template = header.metadata.get(TEMPLATE)
    if not isinstance(template, str) or not template.strip():
        yield Doubt(TEMPLATE, f"there is no chat template ({TEMPLATE}): chats need one")
        return
    if fault := template_fault(template):
        yield Doubt(TEMPLATE, f"the chat template cannot be read as a jinja template: {fault}")
    if "think" not in template and _has_token(header, THINK_TOKEN):
        yield Doubt(
            TEMPLATE,
            f"the chat template does not know thinking, for which the vocabulary has {THINK_TOKEN}: it can be neither "
            "asked for nor switched off",
        )


def _file_type(header: Header, tensors: Sequence[TensorInfo]) -> Iterator[Doubt]:
    key = "general.file_type"
    value = header.metadata.get(key)
    if not isinstance(value, int) or not tensors:
        return
    name = FILE_TYPES.get(value & ~_GUESSED)
    if name is None:
        yield Doubt(key, f"{key} is {value}, which has no meaning")
        return
    main = _MAIN_TYPE.get(name) or (name if name in TYPES_BY_NAME else name.rpartition("_")[0])
    used = {t.type.name for t in tensors if len(t.shape) > 1}
    if used and main not in used:
        yield Doubt(key, f"{key} says {name}, and no weight is of the type {main}: it was made with another recipe")


def _types(tensors: Sequence[TensorInfo]) -> Iterator[Doubt]:
    """Types that cost quality for nearly no room: of norms, and of the routers, which choose the experts."""
    for what, word in (("norm", "norm"), ("router", "ffn_gate_inp")):
        odd = [t for t in tensors if word in t.name and t.type.name not in _FLOATS]
        if odd:
            more = f" and {len(odd) - 1} more" if len(odd) > 1 else ""
            yield Doubt(odd[0].name, f"the {what} '{odd[0].name}'{more} is quantized to {odd[0].type.name}")


def _shards(headers: Sequence[Header]) -> Iterator[Doubt]:
    """Shards that fit by number and name, but come from different quantizations or models."""
    first = headers[0]
    for header in headers[1:]:
        for key in ("general.architecture", "general.name", "general.file_type"):
            if key in header.metadata and key in first.metadata and header.metadata[key] != first.metadata[key]:
                yield Doubt(key, f"{header.path.name} says another {key} than the first shard: the set is mixed")
    by_role: dict[str, list[frozenset[str]]] = {}
    for header in headers:
        here: dict[str, set[str]] = {}
        for t in header.tensors:
            if len(t.shape) > 1 and (match := _LAYER.match(t.name)):
                here.setdefault(t.name[match.end() :], set()).add(t.type.name)
        for role, types in here.items():
            by_role.setdefault(role, []).append(frozenset(types))
    shared = {role: types for role, types in by_role.items() if len(types) > 1}
    # a recipe gives some layers more bits, but not every kind of weight in one shard
    differ = [role for role, types in shared.items() if not frozenset.intersection(*types)]
    if len(differ) > len(shared) / 2:
        kinds = " and ".join(sorted({"/".join(sorted(types)) for types in shared[differ[0]]}))
        yield Doubt(
            "split.no",
            f"{len(differ)} of {len(shared)} kinds of weights differ in type between shards, such as '{differ[0]}' "
            f"({kinds}): the set seems mixed from several quantizations",
        )


def _tokens(header: Header, facts: CloverFacts) -> Iterator[Doubt]:
    special = facts.special_tokens
    eos, mask = special.get("eos"), special.get("mask")
    key = "tokenizer.ggml.eos_token_id"
    if eos is None:
        yield Doubt(key, f"no end token is named ({key}): answers may not end")
    elif _token(header, eos) != END_TOKEN:
        yield Doubt(key, f"{key} is {eos} ('{_token(header, eos)}'), and Clover ends an answer with {END_TOKEN}")
    if mask is None:
        if facts.preview_tensors:
            yield Doubt(MASK_TOKEN, f"no mask token is named ({MASK_TOKEN}): without it there is no preview pass")
    elif "mask" not in _token(header, mask).lower():
        yield Doubt(MASK_TOKEN, f"{MASK_TOKEN} is {mask} ('{_token(header, mask)}'), which does not look like a mask")
    key = "tokenizer.ggml.pre"
    if header.metadata.get(key, "qwen35") != "qwen35":
        yield Doubt(key, f"{key} is {header.metadata[key]!r}, and Clover's text is split by 'qwen35'")
    key = "tokenizer.ggml.add_bos_token"
    if header.metadata.get(key) is True:
        yield Doubt(key, f"{key} is true, and Clover has no token for the beginning of a text")


def _sizes(header: Header, facts: CloverFacts) -> Iterator[Doubt]:
    key = f"{CLOVER_ARCH}.attention.causal"
    if not facts.causal:
        yield Doubt(key, f"{key} is false: with it full-attention layers see later tokens of the prompt")
    count = header.metadata.get(SHARED_COUNT, 0)
    if isinstance(count, int) and count > 1:
        yield Doubt(SHARED_COUNT, f"{SHARED_COUNT} is {count}, and only one shared expert is computed")
    if any(header.metadata.get(f"{CLOVER_ARCH}.{name}") != n for name, n in _PUBLISHED_SIZE.items()):
        return
    for name, published in _PUBLISHED.items():
        key = f"{CLOVER_ARCH}.{name}"
        value = header.metadata.get(key)
        if value is None and name in _MAY_MISS:
            continue
        if value is None:
            yield Doubt(key, f"{key} is missing, and the published model has {published}")
        elif not isinstance(value, Array) and value != published:
            yield Doubt(key, f"{key} is {value!r}, and the published model has {published}")


def _block(facts: CloverFacts) -> Iterator[Doubt]:
    if not 1 <= facts.block_length <= MAX_BLOCK:
        yield Doubt(BLOCK_LENGTH, f"{BLOCK_LENGTH} is {facts.block_length}, and a block has 1 to {MAX_BLOCK} rows")


def _preview(facts: CloverFacts) -> Iterator[Doubt]:
    """Tensors that would serve the preview pass, were they not of another type."""
    odd = [
        t for t in facts.unknown_tensors
        if t.type is not F32 and any(kind.keyword in t.name.lower() for kind in PREVIEW)
    ]  # fmt: skip
    if odd:
        more = f" and {len(odd) - 1} more" if len(odd) > 1 else ""
        yield Doubt(
            odd[0].name, f"'{odd[0].name}'{more} is of type {odd[0].type.name}, and the preview pass needs it in F32"
        )


def _keys(header: Header) -> Iterator[Doubt]:
    odd = [key for key in header.metadata if key.startswith(f"{CLOVER_ARCH}.") and known_key(key, CLOVER_ARCH) is None]
    if odd:
        more = f" and {len(odd) - 1} more" if len(odd) > 1 else ""
        yield Doubt(odd[0], f"the metadata key '{odd[0]}'{more} is not one that Clover has, and is not used")
