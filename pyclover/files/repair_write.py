"""Write a repaired set beside the old one: new headers, the old data, and nothing under its name before it is whole."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

from pyclover.errors import FileError, RepairError
from pyclover.files.header import Header, padded_to
from pyclover.files.header_read import read_header
from pyclover.files.known_keys import Typed
from pyclover.files.repair_plan import Plan
from pyclover.files.shard_names import parse_shard_name, shard_name
from pyclover.files.shards import ShardSet
from pyclover.files.tensor_map import renamed
from pyclover.files.values import MetaValue
from pyclover.files.write import encode_entry, encode_header
from pyclover.files.write_copy import compare_ranges, copy_range, forget_cached, write_full
from pyclover.files.write_new import PART_SUFFIX, NewFile, check_replaceable, exists, take_mode

Fraction = Callable[[float], None]
_SPARE_BYTES = 1 << 20  # for the file system's own records


def new_headers(shards: ShardSet, plan: Plan) -> tuple[bytes, ...]:
    """The header of each file as it will be, with its padding: entries that do not change keep their bytes."""
    return tuple(
        _new_header(header, plan.metadata if i == 0 else {}, plan.renames) for i, header in enumerate(shards.headers)
    )


def _new_header(header: Header, metadata: Mapping[str, Typed], renames: Mapping[str, str]) -> bytes:
    old = read_old_header(header)
    entries = {key: old[start:end] for key, (start, _, end) in header.spans.items()}
    for key, new in metadata.items():
        entries[key] = encode_entry(key, new.kind, new.value)
    tensors = renamed(header.tensors, renames)
    return encode_header(header.version, list(entries.values()), tensors, header.alignment)


def read_old_header(header: Header) -> bytes:
    """The bytes in front of the data."""
    try:
        with header.path.open("rb") as file:
            raw = file.read(header.data_offset)
    except OSError as e:
        raise RepairError(f"{header.path}: cannot be read: {e.strerror or e}", path=header.path) from e
    if len(raw) < header.header_end:
        raise RepairError(f"{header.path}: the file became shorter; is it still being written?", path=header.path)
    return raw


def out_paths(shards: ShardSet, where: Path, out: Path | None) -> tuple[Path, ...]:
    """Where the repaired files will be: OUT, a folder for the same names, or NAME-repaired beside the old file.

    For a split set OUT is the first shard's name, or what all of them begin with.
    """
    folder = out is not None and out.is_dir()
    named = parse_shard_name(shards.first_path.name) if len(shards.paths) > 1 else None
    if named is None:
        if folder or out is None:
            new_name = where.name if folder else f"{where.stem}-repaired{where.suffix or '.gguf'}"
            return ((out or where.parent) / new_name,)
        return (out,)
    prefix, _, count = named
    if folder or out is None:
        parent, prefix = out or where.parent, prefix if folder else f"{prefix}-repaired"
    else:
        given = parse_shard_name(out.name)
        if given is not None and given[2] != count:
            raise RepairError(
                f"{out}: the name says {given[2]} shards, and the set has {count}; give a name without numbers",
                path=out,
            )  # fmt: skip
        parent, prefix = out.parent, given[0] if given else out.name.removesuffix(".gguf")
    return tuple(parent / shard_name(prefix, i, count) for i in range(count))


def check_out(shards: ShardSet, outs: Sequence[Path], sizes: Sequence[int], *, overwrite: bool) -> None:
    """Raises RepairError when the files cannot or must not be written: before the first byte is."""
    folder = outs[0].parent
    if not folder.is_dir():
        raise RepairError(f"{folder}: there is no such folder; make it, or give another", path=folder)
    for out in outs:
        part = out.with_name(out.name + PART_SUFFIX)
        for source in shards.paths:
            with suppress(FileNotFoundError):
                if os.path.samefile(out, source):
                    raise RepairError(
                        f"{out}: this is the file that is to be repaired; give another name, or repair it in place",
                        path=out,
                    )  # fmt: skip
            with suppress(FileNotFoundError):
                if os.path.samefile(part, source):
                    raise RepairError(
                        f"{part}: this is the file that is to be repaired, and the new one would be written there "
                        "first; give it another name", path=out,
                    )  # fmt: skip
        with suppress(OSError):  # what cannot be looked at shows when it is written
            check_replaceable(out)
        if os.path.lexists(out) and not overwrite:
            raise exists(out)
    needed, free = sum(sizes) + _SPARE_BYTES, shutil.disk_usage(folder).free
    if needed > free:
        raise RepairError(
            f"{folder}: the repaired files need {needed} bytes, and {free} are free; make room, or give a folder on "
            "another disk", path=folder, needed_bytes=needed, free_bytes=free,
        )  # fmt: skip


def new_sizes(shards: ShardSet, headers: Sequence[bytes]) -> tuple[int, ...]:
    """Sizes of the files to write, in bytes. The data ends padded, as writers of GGUF leave it."""
    return tuple(
        len(raw) + padded_to(h.data_end - h.data_offset, h.alignment)
        for h, raw in zip(shards.headers, headers, strict=True)
    )


def write_set(
    shards: ShardSet, headers: Sequence[bytes], outs: Sequence[Path], plan: Plan, *, overwrite: bool,
    progress: Fraction | None,
) -> str:  # fmt: skip
    """Write all files, prove them, then give them their names; the first one last, for by it a set is opened.

    Returns:
        SHA-256 of the data of all files, in their order: 64 hexadecimal digits.

    Raises:
        RepairError: a file cannot be written, or is not what it should be. Nothing is left of it then.
    """
    sizes = new_sizes(shards, headers)
    total, done = max(2 * sum(sizes), 1), 0

    def step(n: int) -> None:
        nonlocal done
        done += n
        if progress is not None:
            progress(min(done / total, 1.0))

    digest = hashlib.sha256()
    current = outs[0]
    try:
        with ExitStack() as stack:
            files: list[NewFile] = []
            for header, raw, out, n in zip(shards.headers, headers, outs, sizes, strict=True):
                current = out
                file = stack.enter_context(NewFile(out))
                files.append(file)
                _fill(file, header, raw, n, digest.update, step)
                _check_result(file.part, header, plan if header is shards.header else replace(plan, metadata={}))
            if overwrite and len(outs) > 1:
                _clear(outs)
            _commit(files, overwrite=overwrite)
    except EOFError as e:
        raise RepairError(f"{current}: {e}; is it still being written?", path=current) from e
    except OSError as e:
        if e.errno == errno.ENOSPC:
            raise RepairError(f"{current}: the disk is full; make room and repair again", path=current) from e
        raise RepairError(f"{current}: cannot be written: {e.strerror or e}", path=current) from e
    return digest.hexdigest()


def _fill(
    file: NewFile,
    header: Header,
    raw: bytes,
    size: int,
    digest: Callable[[bytearray], object],
    step: Callable[[int], None],
) -> None:
    """Header, data, padding; then both files' data are read again and compared."""
    n = header.data_end - header.data_offset
    with header.path.open("rb") as source:
        take_mode(file.fd, header.path)
        write_full(file.fd, raw, 0)
        copy_range(source.fileno(), file.fd, header.data_offset, len(raw), n, step)
        os.ftruncate(file.fd, size)
        file.sync()
        forget_cached(file.fd)
        if not compare_ranges(source.fileno(), file.fd, header.data_offset, len(raw), n, digest, step):
            raise RepairError(
                f"{file.path}: the data that was written is not that of {header.path}; check the disk", path=file.path
            )


def _check_result(part: Path, old: Header, plan: Plan) -> None:
    """Read the new file as a stranger would, and hold it against the plan."""
    try:
        new = read_header(part)
    except FileError as e:
        raise RepairError(f"the repaired file would not be sound: {e}", path=part) from e
    wanted = {key: Typed(old.kinds[key], old.metadata[key]) for key in old.metadata} | dict(plan.metadata)
    same = list(new.metadata) == list(wanted) and all(
        new.kinds[key] is typed.kind and _equal(new.metadata[key], typed.value) for key, typed in wanted.items()
    )
    if not same or new.tensors != renamed(old.tensors, plan.renames) or new.joined:
        raise RepairError(f"{part}: the repaired file is not what was planned; check the disk", path=part)


def _equal(a: MetaValue, b: MetaValue) -> bool:
    return a == b or (a != a and b != b)  # a NaN is not equal to itself


def _commit(files: Sequence[NewFile], *, overwrite: bool) -> None:
    """Name all files or none: those of a set that can be named are taken back when one cannot."""
    named: list[Path] = []
    try:
        for file in reversed(files):
            file.commit(overwrite=overwrite)
            named.append(file.path)
    except BaseException:
        _clear(named)
        raise


def _clear(outs: Sequence[Path]) -> None:
    """Remove the old set of that name, its first file first: a mixture of two sets must never look whole."""
    for out in outs:
        with suppress(FileNotFoundError):
            os.unlink(out)
