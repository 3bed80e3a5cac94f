"""From a checkpoint in Hugging Face's form to a GGUF file: `pyclover.convert`.

Weights on the hub come one file at a time. The converter plans the whole file from the headers of all weight files,
which are read by byte ranges, and computes a tensor only when it writes it, in the order of the weight files. So each
is fetched when the first of its tensors is written. It stays for the next conversion, or goes when its last tensor was
written. That takes no change of the converter, and weights come through the same door as all downloads: continued,
and checked before they are used.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyclover import arguments
from pyclover.errors import CloverError, ConvertError, PathLike, UsageError
from pyclover.files.convert_checkpoint import LocalSource
from pyclover.files.convert_output import Output, exists, no_room
from pyclover.files.convert_plan import OUTTYPES, ConvertPlan, make_plan
from pyclover.files.convert_progress import ConvertProgress
from pyclover.files.convert_run import check_python, run_converter
from pyclover.files.facts import Capabilities
from pyclover.files.header_read import read_header
from pyclover.files.hparams import MAX_BLOCK
from pyclover.files.model import check_model
from pyclover.source import is_hub_name

if TYPE_CHECKING:
    from pyclover.hub.checkpoint import HubSource
    from pyclover.hub.patience import Retry
    from pyclover.hub.progress import DownloadProgress

PYTHON_VARIABLE = "PYCLOVER_CONVERT_PYTHON"


@dataclass(frozen=True)
class Conversion:
    """A conversion, or what it would write.

    Attributes:
        source: the checkpoint: its folder, or owner/repo.
        path: the new file.
        outtype: type of the matrices.
        plain: without the tensors and keys of the block pass.
        n_bytes: of the new file; of a dry run the expected size.
        n_tensors: in the new file.
        types: how many tensors have which type.
        left_out: tensors of the checkpoint that the new file has not.
        mask_token_id: None when none is known.
        block_length: rows of a diffusion block.
        written: False for a dry run.
        resumed_bytes: that an earlier run had written, and this one kept.
        capabilities: what the new file can do; None for a dry run.
        warnings: one sentence each.
    """

    source: str
    path: Path
    outtype: str
    plain: bool
    n_bytes: int
    n_tensors: int
    types: dict[str, int]
    left_out: tuple[str, ...]
    mask_token_id: int | None
    block_length: int
    written: bool
    resumed_bytes: int
    capabilities: Capabilities | None
    warnings: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The same in types that JSON has."""
        return {
            **asdict(self), "path": str(self.path), "left_out": list(self.left_out), "warnings": list(self.warnings)
        }  # fmt: skip


def convert(
    source: PathLike,
    out: PathLike | None = None,
    *,
    outtype: str = "bf16",
    plain: bool = False,
    mask_token: int | str | None = None,
    block_length: int | None = None,
    chat_template: PathLike | None = None,
    dry_run: bool = False,
    overwrite: bool = False,
    resume: bool = True,
    python: PathLike | None = None,
    revision: str | None = None,
    cache_dir: PathLike | None = None,
    offline: bool | None = None,
    keep_shards: bool = True,
    retry: Retry | None = None,
    progress: Callable[[ConvertProgress], object] | None = None,
) -> Conversion:
    """Convert a Clover checkpoint in Hugging Face's form to GGUF.

    Everything is checked first, from headers and small files alone: config.json, index, weight files, the name, shape
    and type of every tensor, tokenizer. llama.cpp's converter, patched for Clover, then does the work in a program of
    its own, which needs torch and transformers (the package's extra `convert`). The new file appears as a whole or not
    at all.

    Args:
        source: folder of the checkpoint, or owner/repo on the hub; its weight files are then fetched one by one.
        out: the new file, or a folder for it. None: NAME-OUTTYPE.gguf in the current folder.
        outtype: of the matrices: bf16, f16, f32 or q8_0. Vectors, norms, routers, convolutions and Clover's own
            tensors are F32 in any case.
        plain: leave out the tensors and keys of the block pass: what builds of llama.cpp without our patches load.
        mask_token: number or text of the mask token, instead of what the checkpoint says.
        block_length: rows of a diffusion block, 1 to 32, likewise.
        chat_template: a template's text, or a file with it, likewise.
        dry_run: only check and plan.
        overwrite: `out` may take the place of another file.
        resume: continue what an earlier run for the same file left, if it would write the same bytes; and keep what
            is written when this one is stopped. False: neither.
        python: a Python that has the converter's packages. None: PYCLOVER_CONVERT_PYTHON, else this one.
        revision, cache_dir, offline, retry: of the hub, as for `pyclover.download`.
        keep_shards: whether weight files from the hub stay in the cache when they are converted.
        progress: called with a `ConvertProgress` some times a second; returning False stops the conversion.

    Raises:
        UsageError: an argument that cannot be honoured.
        ModelNotFoundError, IncompleteSetError, InvalidFileError: files of the checkpoint are missing or damaged.
        UnsupportedModelError: it is no Clover as this version knows it; `key` names the tensor or key at fault.
        ConvertError: packages, room or rights are missing, or the converter failed.
        DownloadError: as `pyclover.download`.
        CancelledError: `progress` returned False.
    """
    if progress is not None and not callable(progress):
        raise UsageError("progress must be a function or None", option="progress")
    # before anything is asked of a hub
    if outtype not in OUTTYPES:
        raise UsageError(f"outtype is {outtype!r:.80}: it must be {', '.join(OUTTYPES)}", option="outtype")
    plain, dry_run = arguments.boolean("plain", plain), arguments.boolean("dry_run", dry_run)
    overwrite, resume = arguments.boolean("overwrite", overwrite), arguments.boolean("resume", resume)
    keep_shards = arguments.boolean("keep_shards", keep_shards)
    if block_length is not None:
        arguments.integer("block_length", block_length, 1, MAX_BLOCK)
    if mask_token is not None and (isinstance(mask_token, bool) or not isinstance(mask_token, int)):
        arguments.text("mask_token", mask_token)
    converter, facts = _converter()
    place = _place(source, revision=revision, cache_dir=cache_dir, offline=offline, keep_shards=keep_shards,
                   retry=retry, progress=progress)  # fmt: skip
    plan = make_plan(
        place,
        outtype=outtype,
        plain=plain,
        mask_token=mask_token,
        block_length=block_length,
        chat_template=None if chat_template is None else os.fspath(chat_template),
        converter=facts,
    )
    try:
        target = _target(out, plan)
        _check_target(target, place, overwrite=overwrite)
    except OSError as e:
        raise ConvertError(f"{out}: no file can be made there: {e.strerror or e}", path=str(out)) from e
    warnings = plan.warnings if isinstance(place, LocalSource) else (*plan.warnings, *place.warnings)
    if dry_run:
        return _result(plan, target, plan.n_bytes, warnings)
    interpreter = os.fspath(python or os.environ.get(PYTHON_VARIABLE) or sys.executable)
    check_python(interpreter)
    try:
        with Output(target, plan.key, resume=resume) as file:
            if not resume:
                file.discard()
            file.check_room(plan.n_bytes)
            if not isinstance(place, LocalSource):
                _check_room(place, file, plan, keep_shards)
            said = run_converter(plan, file, converter=converter, python=interpreter, progress=progress)
            capabilities = _checked(file, plan)
            n_bytes = os.fstat(file.fd).st_size
            file.commit(overwrite=overwrite)
            return _result(plan, target, n_bytes, (*warnings, *said), file.kept_bytes, capabilities)
    except OSError as e:
        if isinstance(e, CloverError):
            raise
        why = "the disk is full; make room and convert again" if e.errno == errno.ENOSPC else e.strerror or str(e)
        raise ConvertError(f"{target}: cannot be written: {why}", path=target) from e


def _converter() -> tuple[Path, str]:
    """Folder of the converter in this package, and what tells it from another version's."""
    from pyclover._native import build_facts, generated

    try:
        folder = generated("pyclover", "converter")
    except FileNotFoundError:
        raise ConvertError("this installation of pyclover has no converter: install the package again") from None
    facts = build_facts()
    return folder, f"{facts['version']} {facts['llama_cpp_commit']}"


def _place(
    source: PathLike, *, keep_shards: bool, progress: Callable[[ConvertProgress], object] | None, **hub: Any
) -> LocalSource | HubSource:
    path = arguments.path("source", source)
    if not is_hub_name(source) or path.expanduser().exists():
        return LocalSource(path.expanduser())
    from pyclover.hub.checkpoint import HubSource

    def tell(state: DownloadProgress) -> object:
        assert progress is not None
        return progress(
            ConvertProgress(state.phase, state.file, state.done_bytes, state.total_bytes,
                            bytes_per_s=state.bytes_per_s, left_s=state.left_s)
        )  # fmt: skip

    return HubSource(os.fspath(source), keep=keep_shards, progress=None if progress is None else tell, **hub)


def _target(out: PathLike | None, plan: ConvertPlan) -> Path:
    name = f"{plan.checkpoint.source.model_name}{'-plain' if plan.plain else ''}-{plan.outtype.upper()}.gguf"
    if out is None:
        return Path(name)
    path = arguments.path("out", out).expanduser()
    is_folder = path.is_dir() or os.fspath(out).endswith(("/", os.sep))  # one that is not there is refused as such
    return path / name if is_folder else path


def _check_target(target: Path, place: LocalSource | HubSource, *, overwrite: bool) -> None:
    """Raises ConvertError where the file must not be made: before anything is written."""
    if not target.parent.is_dir():
        raise ConvertError(f"{target.parent}: there is no such folder; make it first", path=target)
    if os.path.lexists(target) and not overwrite:
        raise exists(target)
    if isinstance(place, LocalSource):
        for name in place.names:
            with contextlib.suppress(OSError):
                if os.path.samefile(target, place.folder / name):
                    raise ConvertError(
                        f"{target}: this file is a part of the checkpoint; give the new one another name", path=target
                    )


def _check_room(place: HubSource, file: Output, plan: ConvertPlan, keep: bool) -> None:
    """Room for weights and new file together, where they lie on one disk; elsewhere each is checked by itself."""
    import shutil

    everything, largest = place.missing_bytes()
    coming = everything if keep else min(everything, 2 * largest)  # a layer's experts may stand in two files
    folder = place.folder
    while not folder.is_dir():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    here = os.stat(folder).st_dev == os.fstat(file.fd).st_dev
    needed = coming + (max(plan.n_bytes - file.kept_bytes, 0) if here else 0)
    if needed > free:
        raise no_room(file.path if here else folder, needed, free)


def _checked(file: Output, plan: ConvertPlan) -> Capabilities:
    """What the written file can do; it is read back as any other file."""
    header = read_header(file.part)
    written = {(t.name, t.shape, t.type.name) for t in header.tensors}
    if written != {(t.name, t.shape, t.type.name) for t in plan.tensors}:
        file.discard()
        raise ConvertError(f"{file.path}: the converter wrote other tensors than were planned; please report it",
                           path=file.path)  # fmt: skip
    facts = check_model(header)
    if facts.problems:
        file.discard()
        problem = facts.problems[0]
        raise ConvertError(f"{file.path}: the new file could not run: {problem.message}; it was removed",
                           path=file.path, key=problem.key)  # fmt: skip
    return facts.capabilities


def _result(
    plan: ConvertPlan, path: Path, n_bytes: int, warnings: tuple[str, ...], resumed: int = 0,
    capabilities: Capabilities | None = None,
) -> Conversion:  # fmt: skip
    return Conversion(
        source=plan.checkpoint.title, path=path, outtype=plan.outtype, plain=plan.plain, n_bytes=n_bytes,
        n_tensors=len(plan.tensors), types=dict(Counter(t.type.name for t in plan.tensors).most_common()),
        left_out=plan.left_out, mask_token_id=plan.mask_token_id, block_length=plan.block_length,
        written=capabilities is not None, resumed_bytes=resumed, capabilities=capabilities, warnings=warnings,
    )  # fmt: skip
