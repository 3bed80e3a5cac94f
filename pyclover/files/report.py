"""Everything that can be said about a model file without loading it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pyclover.errors import PathLike, RepairError
from pyclover.files.doubts import Doubt, find_doubts
from pyclover.files.facts import Capabilities, Capability, CloverFacts, ModelFacts, Problem
from pyclover.files.gate import file_warnings
from pyclover.files.header import Header, TensorInfo
from pyclover.files.model import check_model
from pyclover.files.repair_plan import Change, make_plan
from pyclover.files.roles import no_text
from pyclover.files.shards import Opener, ShardSet, resolve, resolve_open
from pyclover.files.types import FILE_TYPES
from pyclover.files.values import Array, ValueType
from pyclover.files.weight_groups import GroupUse, bits_per_weight, group_by_name, use_by_group

_GUESSED = 1024  # bit of general.file_type: "not certain"


@dataclass(frozen=True)
class SpecialToken:
    """A token with a role; `text` as far as it is valid UTF-8."""

    id: int
    text: str


@dataclass(frozen=True)
class ListedTensor:
    """A tensor of the full list; `group` is its kind (weight_groups.GROUPS), `file` the number of its file from 0."""

    name: str
    shape: tuple[int, ...]
    type: str
    n_bytes: int
    group: str
    file: int


@dataclass(frozen=True)
class Report:
    """What `inspect` found. A number that the file does not give is 0, a text "".

    Attributes:
        paths: the files; addresses, for a model that is not on this machine.
        groups: weights by kind (see weight_groups.GROUPS); a kind without weights is left out.
        layers: kind ("linear", "full") to number of layers; empty for other architectures.
        preview_tensors: canonical name -> name in the file.
        doubts: what is odd about the metadata without being wrong.
        cures: what `repair` would change by itself.
        tensors: all of them, in file order.
    """

    paths: tuple[Path | str, ...]
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
    doubts: tuple[Doubt, ...] = ()
    cures: tuple[Change, ...] = ()
    tensors: tuple[ListedTensor, ...] = ()

    def to_dict(self, *, tensors: bool = False) -> dict[str, Any]:
        """The report in types that JSON has; the list of all tensors only where it is asked for."""
        out = asdict(self if tensors else replace(self, tensors=()))
        if not tensors:
            del out["tensors"]
        out["cures"] = [change.to_dict() for change in self.cures]
        out["paths"] = [str(p) for p in self.paths]
        out["unknown_tensors"] = [
            {"name": t.name, "shape": list(t.shape), "type": t.type.name, "n_bytes": t.n_bytes}
            for t in self.unknown_tensors
        ]
        for key in ("warnings", "problems", "preview_missing", "doubts"):
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
    return _report(shards, shards.paths)


def inspect_open(open_file: Opener) -> Report:
    """Like inspect, for a model that is not on this machine: only the headers of its files are fetched.

    Raises:
        InvalidFileError, UnsupportedModelError: as inspect; and whatever `open_file` raises.
    """
    shards = resolve_open(open_file)
    return _report(shards, tuple(header.name for header in shards.headers))


def _report(shards: ShardSet, paths: tuple[Path | str, ...]) -> Report:
    header, tensors = shards.header, shards.tensors
    facts = check_model(header, tensors)
    groups = group_by_name(tensors, facts)
    cures = _cures(shards)
    clover = facts if isinstance(facts, CloverFacts) else None
    n_bytes = sum(t.n_bytes for t in tensors)
    return Report(
        paths=paths,
        file_bytes=shards.file_bytes,
        gguf_version=header.version,
        architecture=facts.architecture,
        name=_text(header, "general.name"),
        size_label=_text(header, "general.size_label"),
        file_type=_file_type(header),
        n_params=facts.n_params,
        n_params_active=facts.n_params_active,
        n_bytes=n_bytes,
        bits_per_weight=bits_per_weight(n_bytes, facts.n_params),
        groups=use_by_group(tensors, groups),
        n_tensors=len(tensors),
        n_ctx_train=facts.n_ctx_train,
        n_layer=facts.n_layer,
        layers={"linear": clover.n_layer_linear, "full": clover.n_layer_full} if clover else {},
        n_embd=facts.n_embd,
        n_vocab=facts.n_vocab,
        special_tokens=_special(header, facts),
        has_chat_template=bool(_text(header, "tokenizer.chat_template")),
        capabilities=_capabilities(header, facts),
        preview_tensors=dict(clover.preview_tensors) if clover else {},
        preview_missing=clover.preview_missing if clover else (),
        unknown_tensors=facts.unknown_tensors,
        warnings=tuple(_with_cure(w, cures) for w in facts.warnings) + file_warnings(shards),
        problems=facts.problems,
        doubts=find_doubts(shards.headers, facts),
        cures=cures,
        tensors=tuple(
            ListedTensor(t.name, t.shape, t.type.name, t.n_bytes, groups[t.name], i)
            for i, h in enumerate(shards.headers)
            for t in h.tensors
        ),
    )


def _cures(shards: ShardSet) -> tuple[Change, ...]:
    try:
        return make_plan(shards).changes
    except RepairError:  # the file's names clash, so that it is for its owner to decide
        return ()


def _with_cure(warning: str, cures: Sequence[Change]) -> str:
    """The warning, with the command that ends it."""
    cured = "clover-run repair" not in warning and any(f"'{change.key}'" in warning for change in cures)
    return f"{warning}; 'clover-run repair' writes a file without this fault" if cured else warning


def _capabilities(header: Header, facts: ModelFacts) -> Capabilities:
    """Not every model that llama.cpp loads writes text."""
    reason = no_text(header)
    if not reason or not facts.capabilities.plain:
        return facts.capabilities
    return replace(facts.capabilities, plain=Capability(False, reason))


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
