"""What a quantization will give, before a byte is written: types, sizes to the byte, the program's arguments."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyclover.errors import FileError, UnsupportedModelError, UsageError
from pyclover.files.facts import ModelFacts
from pyclover.files.header import DEFAULT_ALIGNMENT, Header, TensorInfo, padded_to
from pyclover.files.model import check_model
from pyclover.files.shard_names import parse_shard_name
from pyclover.files.shards import ShardSet
from pyclover.files.values import MetaValue, ValueType
from pyclover.files.write import encode_entry, encode_header
from pyclover.tuning.imatrix_file import ImatrixFile
from pyclover.tuning.quantize_types import Target, needs_imatrix, targets_of
from pyclover.tuning.recipes import KEPT, Recipe

_SPLIT = ("split.no", "split.count", "split.tensors.count")
_QUANTIZATION_VERSION = 2  # GGML_QNT_VERSION
_TEXT_BYTES = 127  # llama_model_kv_override keeps 128 with the closing zero
_WORD = "Q8_0"  # a quantized type, so that the program asks for the type of each tensor; file_type is set apart
_OLD_TYPE = re.compile(
    r"[-._](?:I?Q\d\w*|TQ\d_\d|BF16|F16|F32|FP16|MXFP4\w*|NVFP4)(?:-hq|-exps[\w-]*)?$", re.IGNORECASE
)


@dataclass(frozen=True)
class QuantizePlan:
    """One output of a quantization.

    Attributes:
        entries: the new file's metadata: key -> (type, value).
        n_bytes: size of the new file.
    """

    recipe: Recipe
    shards: ShardSet
    facts: ModelFacts
    targets: tuple[Target, ...]
    imatrix: ImatrixFile | None
    entries: Mapping[str, tuple[ValueType, MetaValue]]
    n_bytes: int


def check_source(shards: ShardSet) -> ModelFacts:
    """Raises UnsupportedModelError where the model cannot be quantized at all; its facts otherwise."""
    facts = check_model(shards.header, shards.tensors)
    where = shards.first_path
    if facts.problems:
        first = facts.problems[0]
        raise UnsupportedModelError(f"{where}: {first.message}", path=where, key=first.key)
    for header in shards.headers:
        if header.alignment != DEFAULT_ALIGNMENT:
            raise UnsupportedModelError(
                f"{header.path}: its data is aligned to {header.alignment} bytes, and quantizing keeps "
                f"{DEFAULT_ALIGNMENT} alone; convert the model again", path=header.path, key="general.alignment",
            )  # fmt: skip
    return facts


def make_plan(
    shards: ShardSet, facts: ModelFacts, recipe: Recipe, imatrix: ImatrixFile | None, *, allow_requantize: bool
) -> QuantizePlan:
    """The plan for one recipe.

    Raises:
        UsageError: the recipe does not go with this model, or lacks an importance matrix.
        FileError: the weights are quantized already, or the importance matrix is another model's.
    """
    if recipe.highest_layer() >= facts.n_layer:
        raise UsageError(
            f"{recipe.source or recipe.name}: layer {recipe.highest_layer()} is named, and the last one of "
            f"{shards.first_path} is {facts.n_layer - 1}", option="recipe",
        )  # fmt: skip
    targets = targets_of(recipe, shards.tensors, facts)
    _check_kept(recipe, targets)
    if not allow_requantize:
        _check_source_types(shards, targets)
    _check_imatrix(recipe, targets, imatrix)
    entries = new_entries(shards.header, recipe, imatrix)
    return QuantizePlan(recipe, shards, facts, targets, imatrix, entries, _size(entries, targets))


def _check_kept(recipe: Recipe, targets: Sequence[Target]) -> None:
    asked = recipe.named_groups()
    for t in targets:
        if t.kept and t.group in asked and t.group in ("norm", "router") and t.tensor.type.name != "F32":
            raise UsageError(
                f"{recipe.source or recipe.name}: '{t.group}' is F32, and '{t.tensor.name}' is stored as "
                f"{t.tensor.type.name}, which quantizing leaves as it is; take the entry out", option="recipe",
            )  # fmt: skip


def _check_source_types(shards: ShardSet, targets: Sequence[Target]) -> None:
    for t in targets:
        if t.type is not t.tensor.type and t.tensor.type.name not in ("F32", "F16", "BF16"):
            raise FileError(
                f"{shards.first_path}: '{t.tensor.name}' is quantized already ({t.tensor.type.name}); take a file in "
                "BF16 or F16, or accept a second loss with allow_requantize=True (--allow-requantize)",
                path=shards.first_path, key=t.tensor.name,
            )  # fmt: skip


def _check_imatrix(recipe: Recipe, targets: Sequence[Target], imatrix: ImatrixFile | None) -> None:
    for t in targets:
        if imatrix is None:
            if needs_imatrix(t):
                raise UsageError(
                    f"{recipe.name} stores '{t.tensor.name}' as {t.type.name}, which is of no use without an "
                    "importance matrix: give one (see 'clover-run imatrix')", option="imatrix",
                )  # fmt: skip
            continue
        n = imatrix.n_values.get(t.tensor.name)
        if n is None and needs_imatrix(t):
            raise FileError(
                f"{imatrix.path}: it says nothing about '{t.tensor.name}', which {recipe.name} stores as "
                f"{t.type.name}; make it with a longer text", path=imatrix.path, key=t.tensor.name,
            )  # fmt: skip
        shape = t.tensor.shape
        expected = shape[0] * (shape[2] if len(shape) > 2 else 1)
        if n is not None and t.type is not t.tensor.type and n != expected and t.tensor.name != "token_embd.weight":
            raise FileError(
                f"{imatrix.path}: it holds {n} numbers for '{t.tensor.name}', which needs {expected}; it was made for "
                "another model", path=imatrix.path, key=t.tensor.name,
            )  # fmt: skip


def new_entries(header: Header, recipe: Recipe, imatrix: ImatrixFile | None) -> dict[str, tuple[ValueType, MetaValue]]:
    """The metadata of the new file, as the program writes it."""
    out = {key: (header.kinds[key], value) for key, value in header.metadata.items() if key not in _SPLIT}
    out["general.quantization_version"] = (ValueType.UINT32, _QUANTIZATION_VERSION)
    out["general.file_type"] = (ValueType.UINT32, recipe.file_type)
    if imatrix is not None:
        out["quantize.imatrix.file"] = (ValueType.STRING, _cut(imatrix.path.name))
        if imatrix.datasets:
            out["quantize.imatrix.dataset"] = (ValueType.STRING, _cut(imatrix.datasets[0]))
        out["quantize.imatrix.entries_count"] = (ValueType.UINT32, len(imatrix.n_values))
        if imatrix.n_chunks > 0:
            out["quantize.imatrix.chunks_count"] = (ValueType.UINT32, imatrix.n_chunks)
    return out


def _cut(text: str) -> str | bytes:
    raw = text.encode()[:_TEXT_BYTES]
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def _size(entries: Mapping[str, tuple[ValueType, MetaValue]], targets: Sequence[Target]) -> int:
    raw = [encode_entry(key, kind, value) for key, (kind, value) in entries.items()]
    tensors = [TensorInfo(t.tensor.name, shortest(t.tensor.shape), t.type, 0, t.n_bytes) for t in targets]
    data = sum(padded_to(t.n_bytes, DEFAULT_ALIGNMENT) for t in targets)
    return len(encode_header(3, raw, tensors, DEFAULT_ALIGNMENT)) + data


def shortest(shape: Sequence[int]) -> tuple[int, ...]:
    """A shape without the last dimensions of 1, as the program writes it."""
    n = max((i + 1 for i, size in enumerate(shape) if size > 1), default=1)
    return tuple(shape[:n]) or (1,)


def arguments_of(plan: QuantizePlan, out: Path, n_threads: int, *, allow_requantize: bool) -> list[str]:
    """The program's arguments behind its name. It runs in the folder of the importance matrix, so that the new file
    says the matrix's name and not where it lies."""
    args = ["--max-buffer-size", "1024", "--override-kv", f"general.file_type=int:{plan.recipe.file_type}"]
    for t in plan.targets:
        # what stays by its group is named too: under another name the program could take it for a weight
        if not t.kept or t.group in KEPT:
            args += ["--tensor-type", f"^{pattern(t.tensor.name)}$={t.type.name.lower()}"]
    if plan.imatrix is not None:
        args += ["--imatrix", plan.imatrix.path.name]
    if allow_requantize:
        args.append("--allow-requantize")
    return [*args, str(plan.shards.first_path.absolute()), str(out.absolute()), _WORD, str(n_threads)]


def pattern(name: str) -> str:
    """A regular expression for a tensor's name that survives being lowered, as the program lowers it."""
    return "".join(c if re.fullmatch(r"[a-z0-9_]", c) else "".join(f"\\x{b:02x}" for b in c.encode()) for c in name)


def default_name(shards: ShardSet, recipe: Recipe) -> str:
    """Name of the new file: the old one's with the recipe in the place of its type."""
    named = parse_shard_name(shards.first_path.name) if len(shards.paths) > 1 else None
    stem = named[0] if named else shards.first_path.stem
    return f"{_OLD_TYPE.sub('', stem) or stem}-{recipe.name}.gguf"
