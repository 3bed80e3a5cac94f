"""Everything that can be said about a model file without loading it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pyclover.errors import PathLike
from pyclover.files.facts import Capabilities, CloverFacts, ModelFacts, Problem
from pyclover.files.gate import file_warnings
from pyclover.files.header import Header, TensorInfo
from pyclover.files.model import check_model
from pyclover.files.shards import resolve
from pyclover.files.types import FILE_TYPES
from pyclover.files.values import Array, ValueType

GROUPS = (
    "embedding",
    "output",
    "attention",
    "gdn",
    "routed_experts",
    "shared_expert",
    "router",
    "clover",
    "norm",
    "other",
)
_LAYER = re.compile(r"blk\.(\d+)\.(.+)")
_GUESSED = 1024  # bit of general.file_type: "not certain"


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


@dataclass(frozen=True)
class SpecialToken:
    """A token with a role; `text` as far as it is valid UTF-8."""

    id: int
    text: str


@dataclass(frozen=True)
class Report:
    """What `inspect` found. A number that the file does not give is 0, a text "".

    Attributes:
        groups: weights by kind (see GROUPS); a kind without weights is left out.
        layers: kind ("linear", "full") to number of layers; empty for other architectures.
        preview_tensors: canonical name -> name in the file.
    """

    paths: tuple[Path, ...]
    file_bytes: int
    gguf_version: int
    architecture: str
    name: str
    size_label: str
    file_type: str
    n_params: int
    n_params_active: int
    n_bytes: int
    bits_per_weight: float
    groups: Mapping[str, GroupUse]
    n_tensors: int
    n_ctx_train: int
    n_layer: int
    layers: Mapping[str, int]
    n_embd: int
    n_vocab: int
    special_tokens: Mapping[str, SpecialToken]
    has_chat_template: bool
    capabilities: Capabilities
    preview_tensors: Mapping[str, str]
    preview_missing: tuple[str, ...]
    unknown_tensors: tuple[TensorInfo, ...]
    warnings: tuple[str, ...]
    problems: tuple[Problem, ...]

    def to_dict(self) -> dict[str, Any]:
        """The report in types that JSON has."""
        out = asdict(self)
        out["paths"] = [str(p) for p in self.paths]
        out["unknown_tensors"] = [
            {"name": t.name, "shape": list(t.shape), "type": t.type.name, "n_bytes": t.n_bytes}
            for t in self.unknown_tensors
        ]
        for key in ("warnings", "problems", "preview_missing"):
            out[key] = list(out[key])
        return out


def inspect(path: PathLike) -> Report:
    """Report on the model that `path`, a GGUF file or any shard of a split one, belongs to.

    A model that cannot run is reported with its `problems`.

    Raises:
        ModelNotFoundError, InvalidFileError, IncompleteSetError: as validate.
        UnsupportedModelError: only where the header itself cannot be read (version 1, big-endian, a removed type).
    """
    shards = resolve(path)
    header, tensors = shards.header, shards.tensors
    facts = check_model(header, tensors)
    clover = facts if isinstance(facts, CloverFacts) else None
    n_bytes = sum(t.n_bytes for t in tensors)
    return Report(
        paths=shards.paths,
        file_bytes=shards.file_bytes,
        gguf_version=header.version,
        architecture=facts.architecture,
        name=_text(header, "general.name"),
        size_label=_text(header, "general.size_label"),
        file_type=_file_type(header),
        n_params=facts.n_params,
        n_params_active=facts.n_params_active,
        n_bytes=n_bytes,
        bits_per_weight=_bits(n_bytes, facts.n_params),
        groups=_groups(tensors, facts),
        n_tensors=len(tensors),
        n_ctx_train=facts.n_ctx_train,
        n_layer=facts.n_layer,
        layers={"linear": clover.n_layer_linear, "full": clover.n_layer_full} if clover else {},
        n_embd=facts.n_embd,
        n_vocab=facts.n_vocab,
        special_tokens=_special(header, facts),
        has_chat_template=bool(_text(header, "tokenizer.chat_template")),
        capabilities=facts.capabilities,
        preview_tensors=dict(clover.preview_tensors) if clover else {},
        preview_missing=clover.preview_missing if clover else (),
        unknown_tensors=facts.unknown_tensors,
        warnings=facts.warnings + file_warnings(shards),
        problems=facts.problems,
    )


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
    return "attention" if part.startswith("attn_") else "other"


def _groups(tensors: Iterable[TensorInfo], facts: ModelFacts) -> dict[str, GroupUse]:
    if isinstance(facts, CloverFacts) and facts.layer_kinds:
        linear = frozenset(i for i, kind in enumerate(facts.layer_kinds) if kind == "linear")
    else:  # a layer with a state-space convolution
        linear = frozenset(
            int(m[1][:9]) for t in tensors if (m := _LAYER.fullmatch(t.name)) and m[2].startswith("ssm_conv1d.")
        )
    clover = frozenset(facts.preview_tensors.values()) if isinstance(facts, CloverFacts) else frozenset[str]()
    unknown = {t.name for t in facts.unknown_tensors}
    sorted_in: dict[str, dict[str, list[TensorInfo]]] = defaultdict(lambda: defaultdict(list))
    for t in tensors:
        group = "other" if t.name in unknown else group_of(t.name, linear_layers=linear, clover=clover)
        sorted_in[group][t.type.name].append(t)
    return {g: _group(sorted_in[g]) for g in GROUPS if g in sorted_in}


def _group(by_type: Mapping[str, list[TensorInfo]]) -> GroupUse:
    types = {
        name: TypeUse(len(ts), sum(t.n_elements for t in ts), sum(t.n_bytes for t in ts))
        for name, ts in sorted(by_type.items(), key=lambda item: -sum(t.n_bytes for t in item[1]))
    }
    n_params, n_bytes = sum(u.n_params for u in types.values()), sum(u.n_bytes for u in types.values())
    return GroupUse(n_params, n_bytes, _bits(n_bytes, n_params), types)


def _bits(n_bytes: int, n_params: int) -> float:
    return 8 * n_bytes / n_params if n_params else 0.0


def _text(header: Header, key: str) -> str:
    value = header.metadata.get(key)
    return value if isinstance(value, str) else ""


def _file_type(header: Header) -> str:
    value = header.metadata.get("general.file_type")
    if not isinstance(value, int):
        return ""
    return FILE_TYPES.get(value & ~_GUESSED, f"unknown ({value})")


def _special(header: Header, facts: ModelFacts) -> dict[str, SpecialToken]:
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    out: dict[str, SpecialToken] = {}
    for name, token in facts.special_tokens.items():
        text: object = ""
        if isinstance(tokens, Array) and tokens.kind is ValueType.STRING:
            text = tokens[token]
        shown = text.decode("utf-8", "backslashreplace") if isinstance(text, bytes) else str(text)
        out[name] = SpecialToken(token, shown)
    return out
