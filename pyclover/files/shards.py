"""Split models: from any one shard to the whole set, in order, checked.

llama.cpp opens the first shard and finds the others by name, `PREFIX-00001-of-00003.gguf`, so that scheme is the
only one accepted; it then demands that every shard's own number fits and that the tensor total is right.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Protocol, TypeAlias
from urllib.parse import urlsplit

from pyclover import arguments
from pyclover.errors import IncompleteSetError, InvalidFileError, PathLike
from pyclover.files.cursor import Readable
from pyclover.files.header import Header, TensorInfo
from pyclover.files.header_read import read_header, read_open_header
from pyclover.files.shard_names import parse_shard_name, shard_name
from pyclover.files.undo import find_undo

_MERGE = "download the shards again and keep them as separate files under their own names"


class OpenFile(Readable, Protocol):
    """An open file that is not local: its size in bytes, and its name or address for messages."""

    @property
    def size(self) -> int: ...

    @property
    def name(self) -> str: ...


# opens the file that was asked for (None), or another shard of its set by file name
Opener: TypeAlias = Callable[[str | None], AbstractContextManager[OpenFile]]


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


def resolve(path: PathLike) -> ShardSet:
    """The whole set that `path`, any shard of it or an unsplit file, belongs to.

    Raises:
        ModelNotFoundError, InvalidFileError, UnsupportedModelError: as read_header, for any file of the set.
        IncompleteSetError: shards are missing; the error names them all.
        InvalidFileError: the files do not belong together.
    """
    where = arguments.path("path", path)
    named = parse_shard_name(where.name)
    if find_undo(where) is not None:
        raise InvalidFileError(
            f"{where}: a repair in place was interrupted, or is still running; let it end, or run 'clover-run repair "
            "--in-place' on the file once more, which first puts the old header back", path=where,
        )  # fmt: skip
    if named is not None and not where.exists():
        _check_present(where, *named)  # says which shards are missing, not just this one
    header = read_header(where)
    if not _is_split(where, header, named):
        return ShardSet((where,), (header,))
    assert named is not None
    prefix, no, count = named
    paths = _check_present(where, prefix, no, count)
    headers = tuple(header if i == no else read_header(p) for i, p in enumerate(paths))
    return _checked(paths, headers)


def resolve_open(open_file: Opener) -> ShardSet:
    """Like resolve, for files that are not local: only their headers are read, the shards of a set one by one.

    Raises:
        as resolve, and whatever `open_file` raises.
    """
    header = _read_open(open_file, None)
    last = Path(PurePosixPath(urlsplit(header.name).path).name)
    named = parse_shard_name(last.name)
    if not _is_split(last, header, named):
        return ShardSet((header.path,), (header,))
    assert named is not None
    prefix, no, count = named
    headers = tuple(header if i == no else _read_open(open_file, shard_name(prefix, i, count)) for i in range(count))
    return _checked(tuple(h.path for h in headers), headers)


def _read_open(open_file: Opener, shard: str | None) -> Header:
    with open_file(shard) as file:
        return read_open_header(file, file.size, file.name)


def _is_split(where: Path, header: Header, named: tuple[str, int, int] | None) -> bool:
    """Whether the file is part of a set; `where` and `named` say what it is called.

    Raises:
        InvalidFileError: its name and its metadata do not agree.
    """
    split = header.split
    if split is None:
        # A file that only looks like a shard runs alone: llama.cpp goes by the metadata.
        if named is not None and named[2] > 1 and not header.metadata.get("tokenizer.ggml.model"):
            raise InvalidFileError(
                f"{header.name}: named as shard {named[1] + 1} of {named[2]}, but its metadata (split.count) says "
                "otherwise; download the set again", path=header.name, key="split.count",
            )  # fmt: skip
        return False
    if header.joined:
        raise InvalidFileError(
            f"{header.name}: another GGUF file begins inside it, so {split.count} shards were joined with cat, which "
            f"llama.cpp cannot read; {_MERGE}", path=header.name, key="split.count",
        )  # fmt: skip
    if named is None:
        raise InvalidFileError(
            f"{header.name}: this is shard {_number(split.no)} of {split.count}, and the others are found only by "
            f"name; rename it to {shard_name(where.stem, split.no or 0, split.count)} and the others alike",
            path=header.name, key="split.count",
        )  # fmt: skip
    if named[2] != split.count:
        raise InvalidFileError(
            f"{header.name}: the file name says {named[2]} shards, its metadata (split.count) says {split.count}; it "
            "was renamed or mixed up, download the set again", path=header.name, key="split.count",
        )  # fmt: skip
    return True


def _checked(paths: tuple[Path, ...], headers: tuple[Header, ...]) -> ShardSet:
    for i, header in enumerate(headers):
        _check_shard(header, i, len(headers))
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
    for path in paths:
        if not path.is_file():
            raise InvalidFileError(
                f"{path}: this shard is a folder, a pipe or a device instead of a file; move it away and download the "
                "shard into its place", path=path,
            )  # fmt: skip
    return paths


def _check_shard(header: Header, no: int, count: int) -> None:
    split = header.split
    if split is None or split.count != count:
        raise InvalidFileError(
            f"{header.name}: its metadata (split.count) says {1 if split is None else split.count} shards, the set has "
            f"{count}; the files come from different sets, download them again", path=header.name, key="split.count",
        )  # fmt: skip
    if split.no != no:
        raise InvalidFileError(
            f"{header.name}: the file name says shard {no + 1}, its metadata (split.no) says {_number(split.no)}; it "
            "was renamed, or is another shard's copy; download it again", path=header.name, key="split.no",
        )  # fmt: skip
    if header.joined:
        raise InvalidFileError(
            f"{header.name}: another GGUF file begins inside it, so shards were joined with cat; {_MERGE}",
            path=header.name, key="split.count",
        )  # fmt: skip


def _check_tensors(headers: Sequence[Header]) -> None:
    owner: dict[str, Path] = {}
    for header in headers:
        for tensor in header.tensors:
            if tensor.name in owner:
                raise InvalidFileError(
                    f"{header.name}: tensor '{tensor.name}' is also in {owner[tensor.name].name}; the files come from "
                    "different sets, download them again", path=header.name, key=tensor.name,
                )  # fmt: skip
            owner[tensor.name] = header.path
    first = headers[0]
    assert first.split is not None
    announced = first.split.n_tensors
    if announced != len(owner):
        text = "does not announce" if announced is None else f"announces {announced}"
        raise InvalidFileError(
            f"{first.name}: its metadata (split.tensors.count) {text} tensors for the set, and the shards hold "
            f"{len(owner)}; the files come from different sets, download them again",
            path=first.name, key="split.tensors.count",
        )  # fmt: skip
