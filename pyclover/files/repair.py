"""Repair a model file: complete its metadata, give its tensors the names that programs know. No weight changes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pyclover import arguments
from pyclover.errors import PathLike, UsageError
from pyclover.files.embedded import NAMES
from pyclover.files.facts import Capabilities, Problem
from pyclover.files.find import find_model
from pyclover.files.known_keys import Typed, typed
from pyclover.files.repair_in_place import check_fits, put_back, write_in_place
from pyclover.files.repair_plan import Change, Wishes, check_wishes, make_plan
from pyclover.files.repair_template import read_template
from pyclover.files.repair_write import check_out, new_headers, new_sizes, out_paths, write_set
from pyclover.files.shards import ShardSet, resolve
from pyclover.files.tensor_map import read_rules

Setting = Any  # of a key: a value, or (type's name, value)


@dataclass(frozen=True)
class Repair:
    """What was repaired, or would be.

    Attributes:
        path: the old file, the first one of a split set.
        out: the new file likewise; `path` itself for a repair in place, None where nothing was to be changed.
        outs: all new files.
        changes: in the order in which they were made; empty where there was nothing to repair.
        n_bytes: size of the new files.
        data_sha256: of the data section of all files one after the other, the same in the old files and the new ones;
            "" when no data was copied.
        written: False for a dry run, and where there was nothing to change.
        put_back: an earlier repair in place had been interrupted, and was undone first.
        capabilities: what the repaired model can do.
        problems: why it still cannot run; empty when it can.
    """

    path: Path
    out: Path | None
    outs: tuple[Path, ...]
    changes: tuple[Change, ...]
    n_bytes: int
    data_sha256: str
    written: bool
    put_back: bool
    capabilities: Capabilities
    problems: tuple[Problem, ...]

    def to_dict(self) -> dict[str, Any]:
        """The result in types that JSON has."""
        out = asdict(replace(self, changes=())) | {
            "path": str(self.path),
            "out": None if self.out is None else str(self.out),
        }
        out["outs"] = [str(path) for path in self.outs]
        out["changes"] = [change.to_dict() for change in self.changes]
        out["problems"] = [asdict(problem) for problem in self.problems]
        return out


def repair(
    path: PathLike,
    out: PathLike | None = None,
    *,
    set_metadata: Mapping[str, Setting] | None = None,
    map_tensors: Mapping[str, str] | None = None,
    shared_count: int | None = None,
    mask_token: int | str | None = None,
    block_length: int | None = None,
    chat_template: PathLike | None = None,
    dry_run: bool = False,
    in_place: bool = False,
    overwrite: bool = False,
    progress: Callable[[float], None] | None = None,
) -> Repair:
    """Complete a model file's metadata and mend its tensors' names; the old file stays, and so does every weight.

    Beyond what is asked for, it mends what the file itself tells: a shared-expert count that is missing, Clover's own
    tensors under other names, a mask token known by its text, the block length where those tensors are, known keys of
    a wrong type. The new file appears as a whole or not at all, after its data was compared with the old file's.

    Args:
        path: a GGUF file, or any shard of a split one.
        out: the new file; a folder, for the same name there; for a split set what its files begin with. None:
            NAME-repaired.gguf beside the old one.
        set_metadata: key -> value, or (type, value) with a type as "uint32", "string", "bool[]".
        map_tensors: old name -> new name; * stands for any text, and "re:" begins a regular expression.
        shared_count: clover_moe.expert_shared_count, 0 or 1.
        mask_token: number of the mask token, or its text.
        block_length: clover_moe.diffusion.block_length, 1 to 32.
        chat_template: a template's text, or a file with it.
        dry_run: only say what would be done.
        in_place: change the header in the old file; only where it stays as long as it is. A file with hard links, and
            one that a cache of downloads keeps (ours or Hugging Face's), is refused: others count on it as it is.
        overwrite: `out` may take the place of another file.
        progress: is told the part done, 0 to 1.

    Raises:
        UsageError: an argument makes no sense.
        RepairError: what is asked for does not go with this file, or the new one cannot be written.
        ModelNotFoundError, InvalidFileError, IncompleteSetError, UnsupportedModelError: as inspect.
    """
    dry_run, in_place = arguments.boolean("dry_run", dry_run), arguments.boolean("in_place", in_place)
    overwrite = arguments.boolean("overwrite", overwrite)
    where = find_model(path, option="path")
    target = None if out is None else arguments.path("out", out).expanduser()
    if in_place and (target is not None or overwrite):
        raise UsageError("in_place changes the file itself: leave out the new file's name and overwrite", option="out")
    if not isinstance(path, os.PathLike) and path in NAMES and (target is None or in_place):
        raise UsageError(f"'{path}' is the model in the package: say where the repaired one shall be", option="out")
    rules = read_rules({} if map_tensors is None else map_tensors)
    was_put_back = False if dry_run else put_back(where)
    shards = resolve(where)
    wishes = Wishes(
        metadata=_settings(shards, {} if set_metadata is None else set_metadata),
        rules=rules,
        shared_count=shared_count,
        mask_token=_mask(mask_token),
        block_length=block_length,
        chat_template=None if chat_template is None else read_template(chat_template),
    )
    check_wishes(wishes)
    plan = make_plan(shards, wishes)
    outs: tuple[Path, ...] = ()
    sha256, n_bytes = "", shards.file_bytes
    if plan.changes:
        headers = new_headers(shards, plan)
        if in_place:
            outs = shards.paths
            check_fits(shards, headers)
            if not dry_run:
                write_in_place(shards, headers)
        else:
            sizes = new_sizes(shards, headers)
            outs, n_bytes = out_paths(shards, where, target), sum(sizes)
            check_out(shards, outs, sizes, overwrite=overwrite)
            if not dry_run:
                sha256 = write_set(shards, headers, outs, plan, overwrite=overwrite, progress=progress)
    return Repair(
        path=shards.first_path,
        out=outs[0] if outs else None,
        outs=outs,
        changes=plan.changes,
        n_bytes=n_bytes,
        data_sha256=sha256,
        written=bool(plan.changes) and not dry_run,
        put_back=was_put_back,
        capabilities=plan.facts.capabilities,
        problems=plan.facts.problems,
    )


def _settings(shards: ShardSet, settings: Mapping[str, Setting]) -> dict[str, Typed]:
    if not isinstance(settings, Mapping):
        raise UsageError("set_metadata must map keys to values", option="set_metadata")
    header = shards.header
    arch = settings.get("general.architecture", header.architecture)
    out: dict[str, Typed] = {}
    for key, value in settings.items():
        key = arguments.text("set_metadata", key)
        if not key or "\0" in key or len(key.encode()) > 65535:
            raise UsageError(f"set_metadata: {key[:80]!r} is not a metadata key", option="set_metadata")
        kind, value = value if isinstance(value, tuple) and len(value) == 2 else ("", value)
        found = header.kinds.get(key)
        out[key] = typed(key, value, kind, found=found, arch=arch if isinstance(arch, str) else header.architecture)
    return out


def _mask(mask_token: int | str | None) -> int | str | None:
    if mask_token is None or (isinstance(mask_token, int) and not isinstance(mask_token, bool)):
        return mask_token
    return arguments.text("mask_token", mask_token)
