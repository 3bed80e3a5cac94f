"""Quantize a model by recipes: several outputs in one go, sizes known before, each file whole or not there."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pyclover import arguments
from pyclover.engine.build_info import programs
from pyclover.engine.threads import usable_processors
from pyclover.errors import FileError, NativeError, PathLike, UsageError
from pyclover.files.embedded import NAMES
from pyclover.files.find import find_model
from pyclover.files.header import TensorInfo
from pyclover.files.header_read import read_header
from pyclover.files.shards import resolve
from pyclover.files.values import MetaValue
from pyclover.files.weight_groups import GroupUse, bits_per_weight, use_by_group
from pyclover.tuning.child import run_child
from pyclover.tuning.imatrix_file import read_imatrix
from pyclover.tuning.new_file import PartFile, check_new, check_room
from pyclover.tuning.quantize_plan import (
    QuantizePlan,
    arguments_of,
    check_source,
    default_name,
    make_plan,
    shortest,
)
from pyclover.tuning.quantize_types import fallbacks
from pyclover.tuning.recipes import Recipe, read_recipe

PART_SUFFIX = ".quantize.part"
DEFAULT_RECIPE = "Q4_K_M"

Progress = Callable[["QuantizeProgress"], None]


@dataclass(frozen=True)
class QuantizeProgress:
    """How far it is.

    Attributes:
        file: what is being written; number `i_file` (from 0) of `n_files`.
        done: part of the work on all files, 0 to 1.
        left_s: seconds that the rest will take at the speed so far, None while that is not known.
    """

    file: Path
    i_file: int
    n_files: int
    done: float
    left_s: float | None


@dataclass(frozen=True)
class Quantized:
    """One file of a quantization.

    Attributes:
        recipe: its name.
        predicted_bytes: size that the plan gives.
        n_bytes: size of the file, 0 for a dry run.
        bits_per_weight: of all weights together.
        groups: what each kind of weights takes (files.weight_groups.GROUPS).
        types: tensor's name -> its type.
        fallbacks: (recipe's type, type instead) -> tensors whose rows the recipe's type cannot divide into blocks.
        written: False for a dry run, and for a file that was there already (`resume`).
        seconds: that writing took.
    """

    recipe: str
    path: Path
    predicted_bytes: int
    n_bytes: int
    bits_per_weight: float
    groups: Mapping[str, GroupUse]
    types: Mapping[str, str]
    fallbacks: Mapping[tuple[str, str], tuple[str, ...]]
    written: bool
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """The result in types that JSON has; without the list of all tensors."""
        return {
            "recipe": self.recipe, "path": str(self.path), "predicted_bytes": self.predicted_bytes,
            "n_bytes": self.n_bytes, "bits_per_weight": self.bits_per_weight, "written": self.written,
            "seconds": self.seconds,
            "groups": {
                group: {"n_bytes": use.n_bytes, "bits_per_weight": use.bits_per_weight,
                        "types": {name: kind.n_tensors for name, kind in use.types.items()}}
                for group, use in self.groups.items()
            },
            "fallbacks": [
                {"wanted": wanted, "type": kind, "tensors": list(names)}
                for (wanted, kind), names in self.fallbacks.items()
            ],
        }  # fmt: skip


@dataclass(frozen=True)
class Quantization:
    """What was quantized, or would be.

    Attributes:
        path: the model, the first file of a split set; `n_bytes` is the size of all its files.
        files: one for each recipe, in their order.
        dry_run: nothing was written.
    """

    path: Path
    n_bytes: int
    files: tuple[Quantized, ...]
    dry_run: bool

    def to_dict(self) -> dict[str, Any]:
        """The result in types that JSON has."""
        return {
            "path": str(self.path), "n_bytes": self.n_bytes, "dry_run": self.dry_run,
            "files": [file.to_dict() for file in self.files],
        }  # fmt: skip


def quantize(
    path: PathLike,
    recipe: PathLike | Sequence[PathLike] = DEFAULT_RECIPE,
    out: PathLike | None = None,
    *,
    imatrix: PathLike | None = None,
    n_threads: int = 0,
    dry_run: bool = False,
    overwrite: bool = False,
    resume: bool = False,
    allow_requantize: bool = False,
    progress: Progress | None = None,
) -> Quantization:
    """Store a model's weights in smaller types. The model stays as it is, and so does its metadata.

    llama.cpp's own quantizing program does the work, told the type of each tensor. A file appears as a whole or not at
    all, after its header was read again and held against the plan. Clover's own tensors stay F32.

    Args:
        path: a GGUF file in BF16, F16 or F32, or any shard of a split one. The result is one file.
        recipe: name of a recipe of the package, or the path of a YAML file (docs/quantize.md); or several.
        out: the new file; a folder, for MODEL-RECIPE.gguf there. None: beside the model.
        imatrix: importance matrix, as `imatrix` makes it.
        n_threads: 0 or less for all processors.
        dry_run: only say what it would give.
        overwrite: take the place of other files.
        resume: a file that is there with the right types and size is taken as done.
        allow_requantize: from weights that are quantized already.
        progress: called several times a second, from the calling thread; what it raises ends the work.

    Raises:
        UsageError: an argument or a recipe makes no sense, or needs an importance matrix.
        FileError: a file cannot be read or written, or there is no room.
        ModelNotFoundError, InvalidFileError, IncompleteSetError, UnsupportedModelError: as inspect.
        NativeError: the program failed.
    """
    dry_run, overwrite = arguments.boolean("dry_run", dry_run), arguments.boolean("overwrite", overwrite)
    resume = arguments.boolean("resume", resume)
    allow_requantize = arguments.boolean("allow_requantize", allow_requantize)
    if progress is not None and not callable(progress):
        raise UsageError("progress must be a function or None", option="progress")
    recipes = _recipes(recipe)
    where = find_model(path, option="path")
    shards = resolve(where)
    facts = check_source(shards)
    matrix = None if imatrix is None else read_imatrix(imatrix)
    plans = [make_plan(shards, facts, r, matrix, allow_requantize=allow_requantize) for r in recipes]
    if not isinstance(path, os.PathLike) and path in NAMES and out is None and not dry_run:
        raise UsageError(f"'{path}' is the model in the package: say where the new file shall be", option="out")
    target = None if out is None else arguments.path("out", out).expanduser()
    if out is not None and target is not None and os.fspath(out).endswith(("/", os.sep)) and not target.is_dir():
        raise UsageError(f"{target} is no folder: make it, or give the name of a file without {os.sep}", option="out")
    outs = _outs(plans, where, target)
    sources = [*shards.paths, *([matrix.path] if matrix else [])]
    done = [resume and _is_done(plan, file) for plan, file in zip(plans, outs, strict=True)]
    todo = [(plan, file) for plan, file, is_done in zip(plans, outs, done, strict=True) if not is_done]
    for _, file in todo:
        if not dry_run or file.parent.is_dir():
            check_new(file, sources, PART_SUFFIX, overwrite=overwrite or dry_run)
    if dry_run:
        return Quantization(shards.first_path, shards.file_bytes, tuple(map(_planned, plans, outs)), True)
    if todo:
        check_room(outs[0].parent, sum(plan.n_bytes for plan, _ in todo), "quantizing")
    n_threads = n_threads if arguments.integer("n_threads", n_threads, -(2**31), 512) > 0 else usable_processors()
    clock = _Clock([file for _, file in todo], [plan.n_bytes for plan, _ in todo], progress)
    written = {
        file: _write(plan, file, n_threads, clock, overwrite=overwrite, allow_requantize=allow_requantize)
        for plan, file in todo
    }
    files = tuple(
        written.get(file) or replace(_planned(plan, file), n_bytes=plan.n_bytes)
        for plan, file in zip(plans, outs, strict=True)
    )
    return Quantization(shards.first_path, shards.file_bytes, files, False)


def _recipes(recipe: PathLike | Sequence[PathLike]) -> list[Recipe]:
    if isinstance(recipe, (str, os.PathLike)):
        return [read_recipe(recipe)]
    try:
        several = list(recipe)
    except TypeError:
        raise UsageError("recipe must be a name or a path, or a list of them", option="recipe") from None
    if not several:
        raise UsageError("no recipe is given: name one, such as Q4_K_M", option="recipe")
    recipes = [read_recipe(r) for r in several]
    names = [r.name for r in recipes]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"two recipes are called {name}, which gives one file: rename one", option="recipe")
    return recipes


def _outs(plans: Sequence[QuantizePlan], where: Path, out: Path | None) -> list[Path]:
    if out is not None and not out.is_dir():
        if len(plans) > 1:
            raise UsageError(f"{out} is no folder, and {len(plans)} recipes give as many files: make it, or give a "
                             "folder that is there", option="out")  # fmt: skip
        return [out]
    folder = out if out is not None else where.parent
    return [folder / default_name(plan.shards, plan.recipe) for plan in plans]


def _planned(plan: QuantizePlan, out: Path) -> Quantized:
    tensors = [replace(t.tensor, type=t.type, n_bytes=t.n_bytes) for t in plan.targets]
    n_bytes, n_params = sum(t.n_bytes for t in plan.targets), sum(t.n_elements for t in tensors)
    return Quantized(
        recipe=plan.recipe.name, path=out, predicted_bytes=plan.n_bytes, n_bytes=0,
        bits_per_weight=bits_per_weight(n_bytes, n_params),
        groups=use_by_group(tensors, {t.tensor.name: t.group for t in plan.targets}),
        types={t.tensor.name: t.type.name for t in plan.targets},
        fallbacks=fallbacks(plan.targets), written=False, seconds=0.0,
    )  # fmt: skip


class _Clock:
    """Turns bytes of the file at hand into progress of all of them."""

    def __init__(self, files: Sequence[Path], sizes: Sequence[int], progress: Progress | None) -> None:
        self._files, self._sizes, self._progress = list(files), list(sizes), progress
        self._started = time.monotonic()

    def tell(self, file: Path, n_bytes: int) -> None:
        if self._progress is None:
            return
        i = self._files.index(file)
        total = max(sum(self._sizes), 1)
        done = min((sum(self._sizes[:i]) + min(n_bytes, self._sizes[i])) / total, 1.0)
        passed = time.monotonic() - self._started
        left = passed / done * (1 - done) if done > 0.01 and passed > 1 else None
        self._progress(QuantizeProgress(file, i, len(self._files), done, left))


def _write(
    plan: QuantizePlan, out: Path, n_threads: int, clock: _Clock, *, overwrite: bool, allow_requantize: bool
) -> Quantized:
    llama = programs().get("llama")
    if llama is None:
        raise NativeError("this build of the package has no llama.cpp programs: build it with PYCLOVER_PROGRAMS=ON")
    started = time.monotonic()
    try:
        with PartFile(out, PART_SUFFIX) as file:
            command = [str(llama), "quantize"]
            command += arguments_of(plan, file.part, n_threads, allow_requantize=allow_requantize)
            folder = plan.imatrix.path.parent if plan.imatrix else out.parent
            try:
                run_child(command, folder=folder, keep=(file.fd,), watch=lambda: clock.tell(out, file.size))
            except NativeError:
                if _no_room(out, plan.n_bytes - file.size):
                    raise FileError(f"{out}: the disk is full; make room and quantize again", path=out) from None
                raise
            problem = _difference(plan, file.part)
            if problem:
                raise NativeError(
                    f"{out}: the program wrote another file than was planned: {problem}; please report it"
                )
            n_bytes = file.size
            file.sync()
            file.commit(overwrite=overwrite)
    except OSError as e:
        if isinstance(e, FileError):
            raise
        why = "the disk is full; make room and quantize again" if e.errno == errno.ENOSPC else e.strerror or str(e)
        raise FileError(f"{out}: cannot be written: {why}", path=out) from e
    clock.tell(out, plan.n_bytes)
    return replace(_planned(plan, out), n_bytes=n_bytes, written=True, seconds=time.monotonic() - started)


def _no_room(out: Path, n_bytes: int) -> bool:
    try:
        stat = os.statvfs(out.parent)
    except (OSError, AttributeError):
        return False
    return stat.f_bavail * stat.f_frsize < min(n_bytes, 1 << 20)


def _is_done(plan: QuantizePlan, out: Path) -> bool:
    try:
        return not _difference(plan, out)
    except FileError:
        return False


def _difference(plan: QuantizePlan, path: Path) -> str:
    """How a file differs from the plan, "" where it does not. Its header is read as a stranger would read it."""
    new = read_header(path)
    planned = {t.tensor.name: (shortest(t.tensor.shape), t.type.name) for t in plan.targets}
    found = {t.name: _facts(t) for t in new.tensors}
    for name in sorted(planned.keys() | found.keys()):
        if planned.get(name) != found.get(name):
            return f"'{name}' is {found.get(name)} instead of {planned.get(name)}"
    for key in sorted(plan.entries.keys() | new.metadata.keys()):
        wanted = plan.entries.get(key)
        if wanted is None or key not in new.metadata:
            return f"the metadata key '{key}' is {'missing' if wanted else 'new'}"
        if new.kinds[key] is not wanted[0] or not _equal(new.metadata[key], wanted[1]):
            return f"the metadata key '{key}' has another value"
    return "" if new.file_bytes == plan.n_bytes else f"it has {new.file_bytes} bytes instead of {plan.n_bytes}"


def _facts(t: TensorInfo) -> tuple[tuple[int, ...], str]:
    return shortest(t.shape), t.type.name


def _equal(a: MetaValue, b: MetaValue) -> bool:
    return a == b or (a != a and b != b)  # a NaN is not equal to itself
