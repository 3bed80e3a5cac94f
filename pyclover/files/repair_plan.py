"""What a repair would change: worked out on the header alone, before anything is written.

First comes what the caller asks for, then what can be told from the file itself: the shared-expert count from the
tensors, canonical names of Clover's own tensors, the mask token by its text, and the type of a known key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from pyclover.errors import RepairError, UsageError, shortened
from pyclover.files.facts import CLOVER_ARCH, CloverFacts, ModelFacts, Problem
from pyclover.files.header import Header
from pyclover.files.hparams import MAX_BLOCK
from pyclover.files.known_keys import Typed, known_key, lossless
from pyclover.files.model import check_model
from pyclover.files.shards import ShardSet
from pyclover.files.tensor_map import Rule, apply_rules, check_names, renamed
from pyclover.files.values import Array, MetaValue, ValueType

SHARED_COUNT = f"{CLOVER_ARCH}.expert_shared_count"
BLOCK_LENGTH = f"{CLOVER_ARCH}.diffusion.block_length"
MASK_TOKEN = "tokenizer.ggml.mask_token_id"
TEMPLATE = "tokenizer.chat_template"
TOKENS = "tokenizer.ggml.tokens"
# texts that models trained with masks give the token; a vocabulary that has just one of them leaves no doubt
MASK_TEXTS = ("<|mask|>", "<|MASK|>", "<mask>", "<MASK>", "[MASK]", "<|mask_token|>", "<|mdm_mask|>")
_FIXED = ("general.alignment", "split.no", "split.count", "split.tensors.count")  # the files' layout, not the model


@dataclass(frozen=True)
class Change:
    """One change of a file.

    Attributes:
        kind: "add" and "set" are about metadata, "rename" about a tensor.
        key: of the metadata; name of the tensor in the old file.
        old, new: the values, None for what is not there; for "rename" the names.
        type: stored type of the new value, "" for a tensor.
    """

    kind: Literal["add", "set", "rename"]
    key: str
    old: MetaValue | None
    new: MetaValue
    type: str = ""

    def to_dict(self) -> dict[str, object]:
        """The change in types that JSON has."""
        old, new = _plain(self.old), _plain(self.new)
        return {"kind": self.kind, "key": self.key, "old": old, "new": new, "type": self.type}


def _plain(value: MetaValue | None) -> object:
    if isinstance(value, Array):
        return [_plain(item) for item in value]
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value


@dataclass(frozen=True)
class Wishes:
    """What a caller asks for; by itself nothing."""

    metadata: Mapping[str, Typed] = field(default_factory=dict)
    rules: Sequence[Rule] = ()
    shared_count: int | None = None
    mask_token: int | str | None = None
    block_length: int | None = None
    chat_template: str | None = None


@dataclass(frozen=True)
class Plan:
    """Changes, and what follows from them.

    Attributes:
        metadata: new or changed keys, which stand in the first file.
        renames: old name -> new name of tensors, in whatever file they are.
        facts: of the repaired model.
    """

    changes: tuple[Change, ...]
    metadata: Mapping[str, Typed]
    renames: Mapping[str, str]
    facts: ModelFacts


def make_plan(shards: ShardSet, wishes: Wishes | None = None) -> Plan:
    """Work out the changes; no wishes: only what the file itself tells.

    Raises:
        RepairError: a wish does not go with this file, or the result would not run where the old file does.
        UsageError: a wish makes no sense with any file.
    """
    wishes = wishes or Wishes()
    draft = _Draft(shards)
    before = draft.check()
    draft.rename(apply_rules(wishes.rules, (t.name for t in shards.tensors), draft.path))
    for key, value in wishes.metadata.items():
        if key in _FIXED:
            raise RepairError(
                f"{draft.path}: the metadata key '{key}' says how the file is laid out and cannot be set; leave it as "
                "it is", path=draft.path, key=key,
            )  # fmt: skip
        draft.set(key, value)
    _ask(draft, wishes)
    _check_block(draft)
    asked = frozenset(draft.metadata) | frozenset(draft.renames.values())
    _cure(draft)
    check_names(draft.renames, (t.name for t in shards.tensors), draft.path)
    after = draft.check()
    _no_new_problem(draft.path, before.problems, after.problems, asked)
    return Plan(draft.changes(), draft.metadata, draft.renames, after)


class _Draft:
    """A header under change."""

    def __init__(self, shards: ShardSet) -> None:
        self.shards = shards
        self.path = shards.header.name
        self.metadata: dict[str, Typed] = {}
        self.renames: dict[str, str] = {}
        self.tensors = shards.tensors  # under their new names
        self._facts: ModelFacts | None = None

    @property
    def header(self) -> Header:
        """The first file's header as it would be."""
        old = self.shards.header
        metadata = {**old.metadata, **{key: new.value for key, new in self.metadata.items()}}
        kinds = {**old.kinds, **{key: new.kind for key, new in self.metadata.items()}}
        return replace(old, metadata=metadata, kinds=kinds)

    def check(self) -> ModelFacts:
        """What the file would be; worked out anew only after a change."""
        if self._facts is None:
            self._facts = check_model(self.header, self.tensors)
        return self._facts

    def has(self, key: str) -> bool:
        return key in self.metadata or key in self.shards.header.metadata

    def set(self, key: str, new: Typed) -> None:
        """Change a key, unless it is so already."""
        old, self._facts = self.shards.header, None
        if key in old.metadata and old.kinds[key] is new.kind and old.metadata[key] == new.value:
            self.metadata.pop(key, None)
        else:
            self.metadata[key] = new

    def rename(self, renames: Mapping[str, str]) -> None:
        if renames:
            self.renames |= renames
            self._facts = None
            self.tensors = renamed(self.shards.tensors, self.renames)

    def changes(self) -> tuple[Change, ...]:
        old = self.shards.header
        out = [
            Change("set" if key in old.metadata else "add", key, old.metadata.get(key), new.value, new.kind.label)
            for key, new in self.metadata.items()
        ]
        out += [Change("rename", name, name, new) for name, new in self.renames.items()]
        return tuple(out)


def _ask(draft: _Draft, wishes: Wishes) -> None:
    """The wishes that have options of their own."""
    u32 = ValueType.UINT32
    for option, key, value in (
        ("shared_count", SHARED_COUNT, wishes.shared_count),
        ("block_length", BLOCK_LENGTH, wishes.block_length),
    ):
        if value is not None:
            _only_clover(draft, option)
            draft.set(key, Typed(u32, value))
    if wishes.mask_token is not None:
        draft.set(MASK_TOKEN, Typed(u32, _mask_id(draft, wishes.mask_token)))
    if wishes.chat_template is not None:
        draft.set(TEMPLATE, Typed(ValueType.STRING, wishes.chat_template))


def _check_block(draft: _Draft) -> None:
    """A length that the block pass cannot have is a mistake, whatever the file can do without it."""
    asked = draft.metadata.get(BLOCK_LENGTH)
    if asked is not None and isinstance(asked.value, int) and not 1 <= asked.value <= MAX_BLOCK:
        raise RepairError(
            f"{draft.path}: {BLOCK_LENGTH} cannot be {asked.value}: a block has 1 to {MAX_BLOCK} rows", path=draft.path,
            key=BLOCK_LENGTH,
        )  # fmt: skip


def _only_clover(draft: _Draft, option: str) -> None:
    arch = draft.header.architecture
    if arch != CLOVER_ARCH:
        raise RepairError(
            f"{draft.path}: {option} is about {CLOVER_ARCH}, and this file's architecture is '{arch}'; leave it out",
            path=draft.path, key="general.architecture",
        )  # fmt: skip


def _mask_id(draft: _Draft, wanted: int | str) -> int:
    tokens = _tokens(draft)
    if isinstance(wanted, int):
        if not 0 <= wanted < len(tokens):
            raise RepairError(
                f"{draft.path}: {shortened(wanted)} cannot be the mask token's number: the vocabulary has "
                f"{len(tokens)} tokens", path=draft.path, key=MASK_TOKEN,
            )  # fmt: skip
        return wanted
    try:
        return tokens.index(wanted.encode())
    except ValueError:
        raise RepairError(
            f"{draft.path}: no token of the vocabulary is '{wanted}'; give the mask token as it stands there, or its "
            "number", path=draft.path, key=MASK_TOKEN,
        ) from None  # fmt: skip


def _tokens(draft: _Draft) -> list[bytes]:
    value = draft.header.metadata.get(TOKENS)
    return value.raw_strings() if isinstance(value, Array) and value.kind is ValueType.STRING else []


def find_mask(tokens: Sequence[bytes]) -> int | None:
    """The token that must be the mask, None where none or several could be."""
    texts = {text.encode() for text in MASK_TEXTS}
    found = [i for i, token in enumerate(tokens) if token in texts]
    return found[0] if len(found) == 1 else None


def _cure(draft: _Draft) -> None:
    """What the file itself tells, where nothing else was asked for."""
    _cure_types(draft)
    if draft.header.architecture != CLOVER_ARCH:
        return
    facts = draft.check()
    if not isinstance(facts, CloverFacts):
        return
    original = {new: old for old, new in draft.renames.items()}
    draft.rename({original.get(here, here): name for name, here in facts.preview_tensors.items() if here != name})
    at_fault = {problem.key for problem in facts.problems}
    if facts.expert_shared_count_missing and SHARED_COUNT not in at_fault:
        draft.set(SHARED_COUNT, Typed(ValueType.UINT32, facts.n_expert_shared))
    if not draft.has(MASK_TOKEN) and (mask := find_mask(_tokens(draft))) is not None:
        draft.set(MASK_TOKEN, Typed(ValueType.UINT32, mask))
    absent = not draft.has(BLOCK_LENGTH) and facts.preview_complete
    if absent or (BLOCK_LENGTH not in at_fault and not 1 <= facts.block_length <= MAX_BLOCK):
        draft.set(BLOCK_LENGTH, Typed(ValueType.UINT32, MAX_BLOCK))


def _cure_types(draft: _Draft) -> None:
    """Values stored as another type than llama.cpp asks for, where the right type holds the same value."""
    header = draft.header
    for problem in draft.check().problems:
        known = known_key(problem.key, header.architecture)
        if known is None or known.kind is None or problem.key not in header.metadata:
            continue
        if header.kinds[problem.key] is known.kind:
            continue
        value = lossless(header.metadata[problem.key], known.kind)
        if value is not None:
            draft.set(problem.key, Typed(known.kind, value))


def _no_new_problem(path: str, before: Sequence[Problem], after: Sequence[Problem], asked: frozenset[str]) -> None:
    """A file that runs must not be made one that does not; one that does not run may keep other faults."""
    old = {problem.key for problem in before}
    for problem in after:
        if problem.key not in old and (not before or problem.key in asked):
            raise RepairError(
                f"{path}: with these changes the model could not run any more: {problem.message}", path=path,
                key=problem.key,
            )  # fmt: skip


def check_wishes(wishes: Wishes) -> None:
    """Raises UsageError for numbers that make sense with no file."""
    for option, value, low, high in (
        ("shared_count", wishes.shared_count, 0, 1),
        ("block_length", wishes.block_length, 1, MAX_BLOCK),
    ):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high):
            raise UsageError(f"{option} is {shortened(value)}: it must be from {low} to {high}", option=option)
