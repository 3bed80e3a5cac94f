"""The catalogue: repositories that are known to hold Clover files, ours and the user's own."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import platformdirs
import yaml

from pyclover.errors import DownloadError, UsageError, shortened
from pyclover.hub.names import check_repo

FILE_NAME = "catalogue.yaml"
MAX_FILE_BYTES = 1 << 20

_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?(GiB|GB|MiB|MB)")
_UNITS = {"GiB": 2**30, "GB": 10**9, "MiB": 2**20, "MB": 10**6}
_FORMATS = ("gguf", "safetensors")
_MODES = ("plain", "draft-self", "block diffusion")
_MAX_BYTES = 2**50  # above any model; a listing decides
_WORDS = {str: "text (in quotes)", bool: "yes or no (without quotes)", dict: "a mapping", list: "a list"}


@dataclass(frozen=True)
class Entry:
    """A repository of the catalogue.

    Attributes:
        official: by the makers of the model.
        format: "gguf" or "safetensors".
        quants: about how many bytes each has, None where that is not known. The hub's listing decides.
        modes: what the files can do; () where nobody has looked.
        auto: whether "auto" may choose from it.
        source: the file that the entry stands in, "" for ours.
    """

    repo: str
    maker: str = ""
    official: bool = False
    format: str = "gguf"
    quants: dict[str, int | None] = field(default_factory=dict)
    modes: tuple[str, ...] = ()
    auto: bool = False
    note: str = ""
    source: str = ""


def user_file() -> Path:
    """The user's own catalogue; it need not be there."""
    given = os.environ.get("PYCLOVER_CONFIG")
    folder = Path(given) if given else platformdirs.user_config_path("pyclover", appauthor=False)
    return folder / FILE_NAME


def entries() -> tuple[Entry, ...]:
    """All entries in order of preference: the user's own first; one of the same repository replaces ours.

    Raises:
        DownloadError: the user's file cannot be read.
        UsageError: there is something wrong in it; the message names entry and key.
    """
    own: tuple[Entry, ...] = ()
    path = user_file()
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # a pipe would be waited for
            raise UsageError(f"{path} is no file: remove it, or put a catalogue in its place")
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        raise DownloadError(f"{path}: {error.strerror or error}; make it readable, or remove it", path=path,
                            reason="disk") from error  # fmt: skip
    else:
        if len(data) > MAX_FILE_BYTES:
            raise UsageError(f"{path} has more than {MAX_FILE_BYTES} bytes, which no catalogue has: check it")
        own = parse(data, str(path))
    ours = parse((resources.files("pyclover") / "data" / FILE_NAME).read_bytes(), "")
    taken = {entry.repo.lower() for entry in own}
    return own + tuple(entry for entry in ours if entry.repo.lower() not in taken)


def auto_repositories() -> tuple[tuple[str, ...], ...]:
    """Repositories that "auto" chooses from, the preferred ones first: the user's own together, then ours."""
    fitting = [entry for entry in entries() if entry.auto and entry.format == "gguf"]
    groups = (tuple(entry.repo for entry in fitting if bool(entry.source) is own) for own in (True, False))
    return tuple(group for group in groups if group)


def parse(data: bytes, source: str) -> tuple[Entry, ...]:
    """The entries of a catalogue file.

    Raises:
        UsageError: it is not YAML, or not of this form.
    """
    where = source or "the built-in catalogue"
    try:
        tree = yaml.load(data.decode("utf-8"), _Loader)
    except UnicodeDecodeError:
        raise UsageError(f"{where}: it is not UTF-8 text: save it as that, or remove the file") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f" in line {mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or type(error).__name__
        raise UsageError(f"{where}: no YAML{line} ({problem}): correct it, or remove the file") from None
    if tree is None:
        return ()
    items = tree.get("repositories") if isinstance(tree, dict) else None
    if not isinstance(items, list):
        raise UsageError(f'{where}: it must be a mapping with a list under the key "repositories"')
    found = tuple(_entry(item, f"{where}: entry {i}", source) for i, item in enumerate(items, 1))
    names = [entry.repo.lower() for entry in found]
    for i, name in enumerate(names):
        if name in names[:i]:
            raise UsageError(
                f"{where}: entries {names.index(name) + 1} and {i + 1} are both about {found[i].repo}: keep one of them"
            )
    return found


class _Loader(yaml.SafeLoader):
    """YAML that says no to a key that is there twice, of which one would be lost without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} is there twice", key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def _entry(item: Any, where: str, source: str) -> Entry:
    if not isinstance(item, dict) or not isinstance(item.get("repo"), str):
        raise UsageError(f'{where} must be a mapping with the key "repo", as in repo: owner/name')
    try:
        check_repo(item["repo"])
    except UsageError as error:
        raise UsageError(f"{where}, key repo: {error}") from None
    kinds: dict[str, type] = {
        "repo": str, "maker": str, "official": bool, "format": str, "quants": dict, "modes": list, "auto": bool,
        "note": str,
    }  # fmt: skip
    for key, value in item.items():
        if key not in kinds:
            raise UsageError(f"{where} has an unknown key {key!r}: known are {', '.join(kinds)}")
        if not isinstance(value, kinds[key]):
            raise UsageError(f"{where}, key {key}: {_WORDS[kinds[key]]} is wanted, not {_shown(value)}")
    if item.get("format", "gguf") not in _FORMATS:
        raise UsageError(f"{where}, key format: {item['format']!r} is none of {', '.join(_FORMATS)}")
    modes = tuple(item.get("modes", ()))
    for mode in modes:
        if mode not in _MODES:
            raise UsageError(f"{where}, key modes: {_shown(mode)} is none of {', '.join(_MODES)}")
    values = {key: value for key, value in item.items() if key not in ("quants", "modes")}
    return Entry(**values, quants=_quants(item.get("quants", {}), where), modes=modes, source=source)


def _quants(items: Mapping[Any, Any], where: str) -> dict[str, int | None]:
    quants: dict[str, int | None] = {}
    for name, size in items.items():
        hit = _SIZE.fullmatch(size) if isinstance(size, str) else None
        n_bytes = None if hit is None else float(hit[1]) * _UNITS[hit[2]]
        if not isinstance(name, str) or (hit is None and size != "unknown") or (n_bytes or 0) > _MAX_BYTES:
            raise UsageError(
                f"{where}, key quants: {_shown(name)}: {_shown(size)} must be a name with a size, as 18.24 GiB, or "
                "unknown"
            )
        quants[name] = None if n_bytes is None else round(n_bytes)
    return quants


def _shown(value: object) -> str:
    """A value in a message; aliases in YAML can make a list that is written out without end."""
    return "…" if isinstance(value, (dict, list, set, tuple)) else shortened(value, 60)
