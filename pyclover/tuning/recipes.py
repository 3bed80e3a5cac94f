"""Recipes of quantization: YAML files that say which type each group of tensors gets.

    description: one line
    base: Q4_K_M                # another recipe; what this one says goes before what that one says
    file_type: Q4_K_M           # what general.file_type will say; the base's where left out
    default: Q4_K               # type of what no entry names; the base's where left out
    groups: {output: Q6_K, attention.v: Q5_K}
    layers:                     # entries for some layers go before `groups`, later ones before earlier ones
      - in: more_bits           # see layer_sets
        routed_experts.down: Q6_K

A group may have parts, as `routed_experts.down`; an entry for a part goes before one for the group.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from pyclover import arguments
from pyclover.errors import PathLike, UsageError, shortened
from pyclover.files.types import F32, FILE_TYPES, TYPES_BY_NAME, GgmlType
from pyclover.tuning.layer_sets import FORMS, LayerSet, read_layers

# group -> its parts, by the names that they have in files (`part_of`)
PARTS: dict[str, tuple[str, ...]] = {
    "attention": ("q", "k", "v", "qkv", "output"),
    "gdn": ("qkv", "gate", "alpha", "beta", "out"),
    "shared_expert": ("gate", "up", "down"),
    "routed_experts": ("gate", "up", "down", "gate_up"),
    "ffn": ("gate", "up", "down"),
    "embedding": (),
    "output": (),
    "clover": (),
    "norm": (),
    "router": (),
    "other": (),
}
KEPT = ("clover", "norm", "router")  # their tensors stay as they are stored
MAX_FILE_BYTES = 1 << 16
MAX_BASES = 8
_KEYS = ("description", "base", "file_type", "default", "groups", "layers")
# types that the program can write; Q8_1 and Q8_K are for activations, and have no form in files
TYPES = tuple(t.name for t in TYPES_BY_NAME.values() if t.is_weight)


@dataclass(frozen=True)
class Step:
    """What one file of a recipe and its bases says."""

    groups: Mapping[str, GgmlType]
    layers: tuple[tuple[LayerSet, Mapping[str, GgmlType]], ...]


@dataclass(frozen=True)
class Recipe:
    """A recipe with its bases.

    Attributes:
        name: as it is asked for; part of the names of files.
        source: its file, "" for one of the package.
        file_type: value of general.file_type (files.types.FILE_TYPES).
        steps: the recipe itself first, then its base, then the base's base.
    """

    name: str
    description: str
    source: str
    file_type: int
    default: GgmlType
    steps: tuple[Step, ...]

    def type_of(self, group: str, part: str, layer: int, n_layer: int) -> GgmlType:
        """The type of a tensor; `part` "" where it has none, `layer` -1 outside the layers."""
        keys = (f"{group}.{part}", group) if part else (group,)
        for step in self.steps:
            for where, types in reversed(step.layers):
                if layer >= 0 and where.has(layer, n_layer):
                    for key in keys:
                        if key in types:
                            return types[key]
            for key in keys:
                if key in step.groups:
                    return step.groups[key]
        return self.default

    def named_groups(self) -> frozenset[str]:
        """The groups that an entry names, without their parts."""
        entries = [at for step in self.steps for at in (step.groups, *(types for _, types in step.layers))]
        return frozenset(key.split(".")[0] for at in entries for key in at)

    def highest_layer(self) -> int:
        """The largest number of a layer that it names, -1 for none."""
        return max((where.highest() for step in self.steps for where, _ in step.layers), default=-1)


def builtin_names() -> tuple[str, ...]:
    """Names of the recipes of the package, from many bits to few as their descriptions go."""
    folder = resources.files("pyclover") / "data" / "recipes"
    names = [p.name.removesuffix(".yaml") for p in folder.iterdir() if p.name.endswith(".yaml")]
    return tuple(sorted(names, key=_rank))


def read_recipe(recipe: PathLike) -> Recipe:
    """A recipe of the package by its name (any case), or one of the user's by its file.

    Raises:
        UsageError: there is none of that name, or something in it is wrong; the message names file, key and value.
    """
    where = arguments.path("recipe", recipe)
    if isinstance(recipe, str):
        named = {name.lower(): name for name in builtin_names()}.get(recipe.lower())
        if named is not None:
            return _build(named, "", _builtin(named), ())
        if not recipe.lower().endswith((".yaml", ".yml")) and not where.is_file():
            raise UsageError(
                f"there is no recipe {shortened(recipe)}: give the path of a YAML file, or one of "
                f"{', '.join(builtin_names())}", option="recipe",
            )  # fmt: skip
    return _build(where.name.rsplit(".", 1)[0], str(where), _read(where), (where.resolve(),))


def _build(name: str, source: str, data: bytes, seen: tuple[Path, ...]) -> Recipe:
    return _Reader(name, source).recipe(data, seen)


class _Reader:
    """Turns one file into a recipe; errors name it."""

    def __init__(self, name: str, source: str) -> None:
        self._name, self._source = name, source
        self._where = source or f"the recipe {name} of the package"

    def recipe(self, data: bytes, seen: tuple[Path, ...]) -> Recipe:
        keys = self._document(data)
        base = self._base(keys["base"], seen) if "base" in keys else None
        description = keys.get("description", "")
        if not isinstance(description, str):
            raise self._wrong("description", description, "must be text")
        if "default" in keys:
            default = self._type("default", keys["default"])
        elif base is not None:
            default = base.default
        else:
            raise UsageError(f"{self._where}: neither 'default' nor 'base' is given; one must be", option="recipe")
        file_type = self._file_type(keys.get("file_type"), base, default)
        layers = keys.get("layers") or []
        if not isinstance(layers, list):
            raise self._wrong("layers", layers, "must be a list, each item with 'in' and groups")
        step = Step(
            self._types("groups", keys.get("groups") or {}),
            tuple(self._layers(f"layers[{i}]", entry) for i, entry in enumerate(layers)),
        )
        steps = (step, *(base.steps if base else ()))
        return Recipe(self._name, description, self._source, file_type, default, steps)

    def _document(self, data: bytes) -> dict[str, Any]:
        try:
            keys = yaml.load(data, _Loader)  # a SafeLoader
        except yaml.YAMLError as e:
            text = " ".join(str(e).split())
            raise UsageError(f"{self._where} is no YAML: {text}", option="recipe") from None
        except (ValueError, KeyError, AttributeError, TypeError) as e:  # a date in month 13, '!!int x'
            raise UsageError(
                f"{self._where} is no YAML: a value is not what it looks like ({e})", option="recipe"
            ) from e
        except RecursionError:
            raise UsageError(f"{self._where} is nested too deeply for a recipe", option="recipe") from None
        if not isinstance(keys, dict):
            raise UsageError(
                f"{self._where} is no recipe: it must have keys such as {', '.join(_KEYS[3:])}", option="recipe"
            )
        for key in keys:
            if key not in _KEYS:
                raise UsageError(
                    f"{self._where}: {shortened(key)} is no key of a recipe; there are {', '.join(_KEYS)}",
                    option="recipe",
                )
        return keys

    def _base(self, value: object, seen: tuple[Path, ...]) -> Recipe:
        if not isinstance(value, str) or not value:
            raise self._wrong("base", value, "must be the name of a recipe, or its file beside this one")
        if value in builtin_names():
            return _build(value, "", _builtin(value), seen)
        where = (Path(self._source).parent / value) if self._source else Path(value)
        if len(seen) >= MAX_BASES or where.resolve() in seen:
            raise self._wrong("base", value, "leads in a circle, or through too many files")
        if not self._source or not where.is_file():
            raise self._wrong(
                "base", value, f"is neither a file beside this one nor one of {', '.join(builtin_names())}"
            )
        return _build(where.name.rsplit(".", 1)[0], str(where), _read(where), (*seen, where.resolve()))

    def _file_type(self, value: object, base: Recipe | None, default: GgmlType) -> int:
        names = {name: number for number, name in FILE_TYPES.items()}
        if value is not None:
            if not isinstance(value, str) or value not in names:
                raise self._wrong("file_type", value, f"must be one of {', '.join(names)}")
            return names[value]
        if base is not None:
            return base.file_type
        # the mixtures of these types are called after them, "_S" for the plainest
        return names.get(default.name, names.get(f"{default.name}_S", 0))

    def _layers(self, key: str, entry: object) -> tuple[LayerSet, Mapping[str, GgmlType]]:
        if not isinstance(entry, dict) or "in" not in entry:
            raise self._wrong(key, entry, "must have 'in', the layers, and groups with their types")
        text = entry["in"]
        layers = read_layers(str(text)) if isinstance(text, (str, int)) and not isinstance(text, bool) else None
        if layers is None:
            raise self._wrong(f"{key}.in", text, f"names no layers; write, with commas between, {FORMS}")
        types = self._types(key, {k: v for k, v in entry.items() if k != "in"})
        for name in types:
            if name in ("embedding", "output"):
                raise self._wrong(f"{key}.{name}", types[name].name, f"is for no layer: put '{name}' under 'groups'")
        return layers, types

    def _types(self, at: str, value: object) -> Mapping[str, GgmlType]:
        if not isinstance(value, dict):
            raise self._wrong(at, value, "must map groups of tensors to types")
        out: dict[str, GgmlType] = {}
        for key, name in value.items():
            group, dot, part = str(key).partition(".")
            if group not in PARTS:
                raise UsageError(
                    f"{self._where}: '{at}.{key}' is no group of tensors; there are {', '.join(PARTS)}",
                    option="recipe",
                )
            if dot and part not in PARTS[group]:
                there = f"has {', '.join(PARTS[group])}" if PARTS[group] else "has no parts"
                raise UsageError(f"{self._where}: '{at}.{key}' is no part of '{group}', which {there}", option="recipe")
            kind = self._type(f"{at}.{key}", name)
            if group in KEPT and kind is not F32:
                raise self._wrong(f"{at}.{key}", name, "must be F32: they are small, and matter much")
            out[str(key)] = kind
        return out

    def _type(self, key: str, value: object) -> GgmlType:
        kind = TYPES_BY_NAME.get(value.upper()) if isinstance(value, str) else None
        if kind is None or not kind.is_weight:
            raise self._wrong(key, value, f"is no type of weights; there are {', '.join(TYPES)}")
        return kind

    def _wrong(self, key: str, value: object, why: str) -> UsageError:
        return UsageError(f"{self._where}: '{key}' is {shortened(value)}: it {why}", option="recipe")


def _builtin(name: str) -> bytes:
    return (resources.files("pyclover") / "data" / "recipes" / f"{name}.yaml").read_bytes()


def _read(path: Path) -> bytes:
    try:
        with path.expanduser().open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as e:
        raise UsageError(f"{path}: the recipe cannot be read: {e.strerror or e}", option="recipe") from None
    if len(data) > MAX_FILE_BYTES:
        raise UsageError(f"{path} has more than {MAX_FILE_BYTES} bytes, which no recipe has", option="recipe")
    return data


def _rank(name: str) -> tuple[float, int, str]:
    """Sorts the names: more bits first, variants behind what they vary."""
    first = name.split("-")[0]
    found = next((t for t in sorted(TYPES, key=len, reverse=True) if first.startswith(t)), "F32")
    return (-TYPES_BY_NAME[found].bits_per_weight, len(name.split("-")), name)


class _Loader(yaml.SafeLoader):
    """PyYAML's, but a key given twice is an error, and so is an alias: a few nested ones stand for any number of
    values."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(
                None, None, f"'*{event.anchor}' is an alias, which no recipe needs: write out what it stands for",
                event.start_mark,
            )  # fmt: skip
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Any] = set()
        for key in (self.construct_object(key, deep=True) for key, _ in node.value):
            if not isinstance(key, Hashable):
                break  # PyYAML says what is wrong with it
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"the key {key!r} is given twice", node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)
