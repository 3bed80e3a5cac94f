"""Rules that give tensors other names: one name, a pattern with *, or a regular expression.

    blk.0.bd_c                         -> blk.0.ssm_bd_history_c
    model.layers.*.bd_scale            -> blk.*.ssm_bd_logit_scale
    re:layers[.](\\d+)[.]conv_(right)  -> blk.\\1.ssm_conv1d_\\2.weight

A * stands for any text, and the first * of the new name for what the first * of the old one stood for, and so on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from pyclover import arguments
from pyclover.errors import RepairError, UsageError
from pyclover.files.header import MAX_NAME_BYTES, TensorInfo

_OPTION = "map_tensors"
_REGEX = "re:"


@dataclass(frozen=True)
class Rule:
    """One rule; `old` is what the user wrote.

    Attributes:
        pattern: matches a whole name; None: `old` is one.
        template: the new name, with groups of the pattern where there is one.
    """

    old: str
    pattern: re.Pattern[str] | None
    template: str

    def rename(self, name: str) -> str | None:
        """The new name, None where the rule does not fit."""
        if self.pattern is None:
            return self.template if name == self.old else None
        if not self.old.startswith(_REGEX):  # bound to both ends; sub() reads the template once for all names
            new, n_fits = self.pattern.subn(self.template, name, count=1)
            return new if n_fits else None
        match = self.pattern.fullmatch(name)
        return None if match is None else match.expand(self.template)


def read_rules(map_tensors: Mapping[str, str]) -> tuple[Rule, ...]:
    """Rules from old -> new.

    Raises:
        UsageError: one makes no sense.
    """
    if not isinstance(map_tensors, Mapping):
        raise UsageError(f"{_OPTION} must map old names to new ones", option=_OPTION)
    return tuple(
        _read_rule(arguments.text(_OPTION, old), arguments.text(_OPTION, new)) for old, new in map_tensors.items()
    )


def _read_rule(old: str, new: str) -> Rule:
    if not old or not new:
        raise UsageError(f"{_OPTION}: {old!r} = {new!r} lacks a name", option=_OPTION)
    if old.startswith(_REGEX):
        return _read_regex(old, new)
    stars, wanted = old.count("*"), new.count("*")
    if wanted > stars:
        raise UsageError(
            f"{_OPTION}: {new!r} has more * than {old!r}, so there is nothing to put there", option=_OPTION
        )
    if not stars:
        return Rule(old, None, new)
    pattern = re.compile(rf"\A{'(.*)'.join(map(re.escape, old.split('*')))}\Z", re.DOTALL)
    parts = [part.replace("\\", "\\\\") for part in new.split("*")]
    template = parts[0] + "".join(rf"\g<{i}>{part}" for i, part in enumerate(parts[1:], 1))
    return Rule(old, pattern, template)


def _read_regex(old: str, new: str) -> Rule:
    try:
        pattern = re.compile(old.removeprefix(_REGEX), re.DOTALL)
    except re.error as e:
        raise UsageError(f"{_OPTION}: {old!r} is not a regular expression: {e}", option=_OPTION) from None
    try:  # reads the groups of the new name, whether or not there is a match
        pattern.sub(new, "")
    except (re.error, IndexError) as e:
        raise UsageError(f"{_OPTION}: {new!r} does not go with {old!r}: {e}", option=_OPTION) from None
    return Rule(old, pattern, new)


def apply_rules(rules: Iterable[Rule], names: Iterable[str], path: str) -> dict[str, str]:
    """Old name -> new name of the tensors that the rules rename; of several rules that fit a name the first counts.

    Raises:
        RepairError: a rule fits no tensor.
    """
    names = tuple(names)
    known = frozenset(names)
    taken: dict[str, str] = {}
    for rule in rules:
        # a plain name is looked up: with a rule for each of many tensors all of them would be compared with all
        there = names if rule.pattern is not None else (rule.old,) if rule.old in known else ()
        fits = {name: new for name in there if (new := rule.rename(name)) is not None}
        if not fits:
            what = f"no tensor whose name fits '{rule.old}'" if "*" in rule.old else f"no tensor '{rule.old}'"
            raise RepairError(f"{path}: there is {what}; clover-run inspect --tensors lists the names", path=path)
        for name, new in fits.items():
            taken.setdefault(name, new)
    return {old: new for old, new in taken.items() if old != new}


def renamed(tensors: Sequence[TensorInfo], renames: Mapping[str, str]) -> tuple[TensorInfo, ...]:
    """The tensors under their new names."""
    if not renames:
        return tuple(tensors)
    return tuple(replace(t, name=renames[t.name]) if t.name in renames else t for t in tensors)


def check_names(renames: Mapping[str, str], names: Iterable[str], path: str) -> None:
    """Hold the names that the tensors will have against the format and each other.

    Raises:
        RepairError: two tensors would have one name, or one a name that no tensor can have.
    """
    owner: dict[str, str] = {}
    for old in names:
        new = renames.get(old, old)
        if old in renames and (not new or "\0" in new or len(new.encode()) > MAX_NAME_BYTES):
            raise RepairError(
                f"{path}: '{new}' cannot be the name of a tensor ('{old}'): a name has 1 to {MAX_NAME_BYTES} bytes and "
                "no zero byte", path=path, key=old,
            )  # fmt: skip
        if new in owner:
            raise RepairError(
                f"{path}: the tensors '{owner[new]}' and '{old}' would both be called '{new}'; give one of them "
                "another name", path=path, key=old,
            )  # fmt: skip
        owner[new] = old
