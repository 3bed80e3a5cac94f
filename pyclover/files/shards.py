"""Split models: from any one shard to the whole set, in order, checked.

llama.cpp opens the first shard and finds the others by name, `PREFIX-00001-of-00003.gguf`, so that scheme is the
only one accepted; it then demands that every shard's own number fits and that the tensor total is right.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pyclover import arguments
from pyclover.errors import IncompleteSetError, InvalidFileError, PathLike
from pyclover.files.header import Header, TensorInfo, read_header

_NAME = re.compile(r"(?P<prefix>.+)-(?P<no>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)
_MERGE = "download the shards again and keep them as separate files under their own names"


@dataclass(frozen=True)
class ShardSet:
    """A model's files in order; one path when it is not split.

    Attributes:
        headers: the checked header of each file; the first holds the model's metadata.
    """

    paths: tuple[Path, ...]
    headers: tuple[Header, ...]

    @property
    def first_path(self) -> Path:
        """The path that llama.cpp must be given."""
        return self.paths[0]

    @property
    def header(self) -> Header:
        """The first file's header, which holds the metadata."""
        return self.headers[0]

    @property
    def tensors(self) -> tuple[TensorInfo, ...]:
        """Tensors of all files, in file order."""
        return tuple(t for h in self.headers for t in h.tensors)

    @property
    def file_bytes(self) -> int:
        return sum(h.file_bytes for h in self.headers)


def shard_name(prefix: str, no: int, count: int) -> str:
    """File name of shard `no` (from 0) of `count`, as llama.cpp spells it."""
    return f"{prefix}-{no + 1:05d}-of-{count:05d}.gguf"


def parse_shard_name(name: str) -> tuple[str, int, int] | None:
    """(prefix, number from 0, count) of a shard's file name, or None when it is not one."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    no, count = int(match["no"]), int(match["count"])
    return (match["prefix"], no - 1, count) if 1 <= no <= count else None


def resolve(path: PathLike) -> ShardSet:
    """The whole set that `path`, any shard of it or an unsplit file, belongs to.

    Raises:
        ModelNotFoundError, InvalidFileError, UnsupportedModelError: as read_header, for any file of the set.
        IncompleteSetError: shards are missing; the error names them all.
        InvalidFileError: the files do not belong together.
    """
    where = arguments.path("path", path)
    named = parse_shard_name(where.name)
    if named is not None and not where.exists():
        _check_present(where, *named)  # says which shards are missing, not just this one
    header = read_header(where)
    split = header.split
    if split is None:
        # A file that only looks like a shard runs alone: llama.cpp goes by the metadata.
        if named is not None and named[2] > 1 and not header.metadata.get("tokenizer.ggml.model"):
            raise InvalidFileError(
                f"{where}: named as shard {named[1] + 1} of {named[2]}, but its metadata (split.count) says otherwise; "
                "download the set again", path=where, key="split.count",
            )  # fmt: skip
        return ShardSet((where,), (header,))
    if header.joined:
        raise InvalidFileError(
            f"{where}: another GGUF file begins inside it, so {split.count} shards were joined with cat, which "
            f"llama.cpp cannot read; {_MERGE}", path=where, key="split.count",
        )  # fmt: skip
    if named is None:
        raise InvalidFileError(
            f"{where}: this is shard {_number(split.no)} of {split.count}, and the others are found only by name; "
            f"rename it to {shard_name(where.stem, split.no or 0, split.count)} and the others alike",
            path=where, key="split.count",
        )  # fmt: skip
    prefix, no, count = named
    if count != split.count:
        raise InvalidFileError(
            f"{where}: the file name says {count} shards, its metadata (split.count) says {split.count}; it was "
            "renamed or mixed up, download the set again", path=where, key="split.count",
        )  # fmt: skip
    paths = _check_present(where, prefix, no, count)
    headers = tuple(header if i == no else read_header(p) for i, p in enumerate(paths))
    for i, h in enumerate(headers):
        _check_shard(h, i, count)
    _check_tensors(headers)
    return ShardSet(paths, headers)


def _number(no: int | None) -> str:
    return "?" if no is None else str(no + 1)


def _check_present(where: Path, prefix: str, no: int, count: int) -> tuple[Path, ...]:
    paths = tuple(where if i == no else where.with_name(shard_name(prefix, i, count)) for i in range(count))
    missing = [p for p in paths if not p.exists()]
    if missing:
        # five digits of a name are no reason to print 99,999 paths
        names = ", ".join(p.name for p in missing[:50]) + (
            f" and {len(missing) - 50} more" if len(missing) > 50 else ""
        )
        raise IncompleteSetError(
            f"{where}: {len(missing)} of the set's {count} shards missing from {where.parent}: {names}; download them "
            "into the same folder", path=where, missing=[str(p) for p in missing],
        )  # fmt: skip
    return paths


def _check_shard(header: Header, no: int, count: int) -> None:
    split = header.split
    if split is None or split.count != count:
        raise InvalidFileError(
            f"{header.path}: its metadata (split.count) says {1 if split is None else split.count} shards, the set has "
            f"{count}; the files come from different sets, download them again", path=header.path, key="split.count",
        )  # fmt: skip
    if split.no != no:
        raise InvalidFileError(
            f"{header.path}: the file name says shard {no + 1}, its metadata (split.no) says {_number(split.no)}; it "
            "was renamed, or is another shard's copy; download it again", path=header.path, key="split.no",
        )  # fmt: skip
    if header.joined:
        raise InvalidFileError(
            f"{header.path}: another GGUF file begins inside it, so shards were joined with cat; {_MERGE}",
            path=header.path, key="split.count",
        )  # fmt: skip


def _check_tensors(headers: Sequence[Header]) -> None:
    owner: dict[str, Path] = {}
    for header in headers:
        for tensor in header.tensors:
            if tensor.name in owner:
                raise InvalidFileError(
                    f"{header.path}: tensor '{tensor.name}' is also in {owner[tensor.name].name}; the files come from "
                    "different sets, download them again", path=header.path, key=tensor.name,
                )  # fmt: skip
            owner[tensor.name] = header.path
    first = headers[0]
    assert first.split is not None
    announced = first.split.n_tensors
    if announced != len(owner):
        text = "does not announce" if announced is None else f"announces {announced}"
        raise InvalidFileError(
            f"{first.path}: its metadata (split.tensors.count) {text} tensors for the set, and the shards hold "
            f"{len(owner)}; the files come from different sets, download them again",
            path=first.path, key="split.tensors.count",
        )  # fmt: skip
