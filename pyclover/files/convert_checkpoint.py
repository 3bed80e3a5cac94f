"""A checkpoint in Hugging Face's form, as far as it can be known without reading a weight."""

from __future__ import annotations

import json
import os
import re
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pyclover.errors import IncompleteSetError, InvalidFileError, ModelNotFoundError, PathLike
from pyclover.files.convert_safetensors import Stored, read_tensors
from pyclover.files.cursor import Readable

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
# What the converter reads beside the weights.
SMALL_SUFFIXES = (".json", ".jinja", ".txt", ".model", ".md")
MAX_SMALL_BYTES = 256 << 20
_SHARD = re.compile(r"(model-)(\d{5})(-of-)(\d{5})(\.safetensors)")
_MAX_NAMED = 8


class Source(Protocol):
    """Where a checkpoint's files come from; names are those in its folder."""

    @property
    def title(self) -> str:
        """The checkpoint in messages."""

    @property
    def model_name(self) -> str:
        """Last part of its name: what the converter takes for the folder's."""

    @property
    def names(self) -> tuple[str, ...]: ...

    def size(self, name: str) -> int:
        """Bytes of a file."""

    def identity(self, name: str) -> str:
        """What a file has and another content has not, without reading it."""

    def open(self, name: str) -> AbstractContextManager[Readable]:
        """A file for reading some bytes of it."""

    def read(self, name: str) -> bytes:
        """A small file whole."""

    def fetch(self, name: str) -> Path:
        """A weight file, brought to this machine when it is not here."""

    def release(self, name: str) -> None:
        """Nothing of a weight file is needed any more."""


class LocalSource:
    """A folder on this machine.

    Raises:
        ModelNotFoundError, InvalidFileError: there is none of that name, or it cannot be read.
    """

    def __init__(self, folder: PathLike) -> None:
        self.folder = Path(folder)
        try:
            found = [entry.name for entry in os.scandir(self.folder) if _is_file(entry)]
        except FileNotFoundError:
            raise ModelNotFoundError(f"{self.folder}: there is no such folder; check the path", path=folder) from None
        except NotADirectoryError:
            raise InvalidFileError(
                f"{self.folder}: this is a file; give the folder of the checkpoint", path=folder
            ) from None
        except OSError as e:
            raise InvalidFileError(f"{self.folder}: cannot be read: {e.strerror or e}", path=folder) from None
        self.title = str(self.folder)
        self.model_name = self.folder.resolve().name or "checkpoint"
        self.names = tuple(sorted(found))

    def size(self, name: str) -> int:
        return (self.folder / name).stat().st_size

    def identity(self, name: str) -> str:
        state = (self.folder / name).stat()
        return f"{(self.folder / name).resolve()}:{state.st_size}:{state.st_mtime_ns}"

    def open(self, name: str) -> AbstractContextManager[Readable]:
        return (self.folder / name).open("rb")

    def read(self, name: str) -> bytes:
        return (self.folder / name).read_bytes()

    def fetch(self, name: str) -> Path:
        return (self.folder / name).resolve()

    def release(self, name: str) -> None:
        pass


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint holds.

    Attributes:
        config: config.json; what it nests under text_config stands on top.
        shards: the weight files in the order in which the converter reads them.
        headers: of each shard, the bytes before its data.
        tensors: by name.
        shard_of: name of a tensor -> its shard.
    """

    source: Source
    config: dict[str, Any]
    shards: tuple[str, ...]
    headers: dict[str, bytes]
    tensors: dict[str, Stored]
    shard_of: dict[str, str]

    @property
    def title(self) -> str:
        return self.source.title


def read_checkpoint(source: Source) -> Checkpoint:
    """Read config.json, the index, and the header of every weight file.

    Raises:
        ModelNotFoundError: there is no checkpoint of safetensors files.
        IncompleteSetError: weight files are missing.
        InvalidFileError: a file is damaged, or the index contradicts the weight files.
    """
    if CONFIG not in source.names:
        raise ModelNotFoundError(
            f"{source.title}: there is no {CONFIG}; give the folder of a checkpoint in Hugging Face's form, or its "
            "owner/repo on the hub", path=source.title,
        )  # fmt: skip
    config = read_json(source, CONFIG)
    nested = config.get("text_config")
    config = {**config, **nested} if isinstance(nested, dict) else config
    index = read_json(source, INDEX) if INDEX in source.names else None
    shards = _indexed(source, index) if index is not None else _unindexed(source)
    headers: dict[str, bytes] = {}
    tensors: dict[str, Stored] = {}
    shard_of: dict[str, str] = {}
    for shard in shards:
        where = f"{source.title}/{shard}"
        try:
            with source.open(shard) as file:
                headers[shard], found = read_tensors(file, source.size(shard), where)
        except OSError as e:
            raise InvalidFileError(f"{where}: cannot be read: {e.strerror or e}", path=where) from None
        for name in found.keys() & tensors.keys():
            raise InvalidFileError(
                f"{where}: the tensor '{name}' is in {shard_of[name]} too; remove the file that does not belong here",
                path=where, key=name,
            )  # fmt: skip
        tensors |= found
        shard_of |= dict.fromkeys(found, shard)
    if index is not None:
        _check_index(source, index["weight_map"], shard_of)
    return Checkpoint(source, config, shards, headers, tensors, shard_of)


def read_json(source: Source, name: str) -> dict[str, Any]:
    """A JSON object in a small file.

    Raises:
        InvalidFileError: it is none.
    """
    where = f"{source.title}/{name}"
    try:
        if source.size(name) > MAX_SMALL_BYTES:
            raise InvalidFileError(f"{where}: the file is larger than any of its kind; download it again", path=where)
        value = json.loads(source.read(name).decode("utf-8"))
    except OSError as e:
        raise InvalidFileError(f"{where}: cannot be read: {e.strerror or e}", path=where) from None
    except (ValueError, RecursionError) as e:
        raise InvalidFileError(f"{where}: this is no JSON ({e}); download it again", path=where) from None
    if not isinstance(value, dict):
        raise InvalidFileError(f"{where}: this is no JSON object; download it again", path=where)
    return value


def _is_file(entry: os.DirEntry[str]) -> bool:
    """Whether it is a file, or a link to one; a link that leads nowhere or in a circle counts as nothing."""
    try:
        return entry.is_file()
    except OSError:
        return False


def shown(names: list[str]) -> str:
    """Names for a message: the first ones, and how many more there are."""
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return ", ".join(names[:_MAX_NAMED]) + more


def _indexed(source: Source, index: dict[str, Any]) -> tuple[str, ...]:
    where = f"{source.title}/{INDEX}"
    weight_map = index.get("weight_map")
    if (
        not isinstance(weight_map, dict)
        or not weight_map
        or not all(isinstance(shard, str) and shard and not set(shard) & set("/\\\0") for shard in weight_map.values())
    ):
        raise InvalidFileError(
            f"{where}: its weight_map does not give the file of each tensor; download it again", path=where,
            key="weight_map",
        )  # fmt: skip
    shards = sorted(set(weight_map.values()))
    missing = [shard for shard in shards if shard not in source.names]
    if missing:
        raise _incomplete(source, missing)
    return tuple(shards)


def _unindexed(source: Source) -> tuple[str, ...]:
    shards = sorted(n for n in source.names if n.startswith("model") and n.endswith(".safetensors"))
    if not shards:
        other = [n for n in source.names if n.endswith((".bin", ".pt", ".pth", ".ckpt", ".gguf", ".safetensors"))]
        have = f" (but {shown(other)})" if other else ""
        raise ModelNotFoundError(
            f"{source.title}: there are no model*.safetensors files{have}; give a checkpoint that was saved as "
            "safetensors", path=source.title,
        )  # fmt: skip
    hits = [hit for hit in map(_SHARD.fullmatch, shards) if hit is not None]
    count = max((int(hit[4]) for hit in hits), default=0)
    if hits and count <= 10_000:
        missing = sorted({f"model-{i:05d}-of-{count:05d}.safetensors" for i in range(1, count + 1)} - set(shards))
        if missing:
            raise _incomplete(source, missing)
    return tuple(shards)


def _incomplete(source: Source, missing: list[str]) -> IncompleteSetError:
    what = "1 weight file is" if len(missing) == 1 else f"{len(missing)} weight files are"
    return IncompleteSetError(
        f"{source.title}: {what} missing: {shown(missing)}; download what is missing", path=source.title,
        missing=missing,
    )  # fmt: skip


def _check_index(source: Source, weight_map: dict[str, str], shard_of: dict[str, str]) -> None:
    """Raises InvalidFileError where the index and the weight files do not name the same tensors."""
    where = f"{source.title}/{INDEX}"
    absent = sorted(name for name in weight_map if name not in shard_of)
    extra = sorted(name for name in shard_of if name not in weight_map)
    moved = sorted(name for name, shard in weight_map.items() if shard_of.get(name, shard) != shard)
    for names, what in (
        (absent, "it lists tensors that no weight file has"),
        (extra, "weight files have tensors that it does not list"),
        (moved, "it gives another file than the one that has them for the tensors"),
    ):
        if names:
            raise InvalidFileError(
                f"{where}: {what}: {shown(names)}; download the index and the weight files again", path=where,
                key=names[0],
            )  # fmt: skip
