"""From a model and settings to the command that starts the server: file, plan, arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyclover import arguments
from pyclover.engine.build_info import programs
from pyclover.engine.context import ContextOptions
from pyclover.engine.speculation import DraftSelf
from pyclover.engine.threads import default_threads, usable_processors
from pyclover.errors import PathLike, ServerError, UsageError
from pyclover.files.gate import ValidatedModel, validate
from pyclover.plan.fit import fit as plan_for
from pyclover.plan.geometry import geometry_of
from pyclover.serve import address, block_overrides, memory
from pyclover.serve.settings import ServerSettings, ignored_variables
from pyclover.serve.template import check_template
from pyclover.serve.workers import check_workers
from pyclover.source import model_file

if TYPE_CHECKING:
    from pyclover.engine.blocks import BlockParams
    from pyclover.hub.progress import ProgressFunction
    from pyclover.plan.result import Plan

ALL_LAYERS = 999
N_CTX_UNPLANNED = 8192
MIN_TOKENS = 2  # of a context and a batch: llama.cpp's server begins with a pass of so many, or aborts
# those of the context that the plan chooses, or llama.cpp when nothing is planned
PLANNED = ("n_ctx", "n_batch", "n_ubatch", "cache_type_k", "cache_type_v")
PLACES: tuple[str, ...] = ("n_gpu_layers", "n_cpu_moe")


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A server that can be started.

    Attributes:
        model: as the user called it. path: the file, the first of a split set.
        settings: with the port that was found. plan: None when nothing was planned.
        n_ctx: tokens that all requests share. n_threads: that generate.
        block_params: those that are others than the file's. can_draft: the file has block passes.
        command: without the folder of the page.
        warnings: one sentence each.
    """

    model: str
    path: Path
    settings: ServerSettings
    plan: Plan | None
    n_ctx: int
    n_threads: int
    block_params: Mapping[str, Any]
    can_draft: bool
    command: tuple[str, ...]
    warnings: tuple[str, ...]


def program(name: str) -> str:
    """Path of a program of the package.

    Raises:
        ServerError: this build lacks it.
    """
    found = programs().get(name)
    if found is None:
        raise ServerError(
            f"this build of pyclover has no program {name}: install one with llama.cpp's programs "
            "(clover-run tool lists them)"
        )
    return str(found)


def reachable(settings: ServerSettings) -> ServerSettings:
    """The settings with a port on which the server can listen.

    Raises:
        ServerError: the port is taken, or a worker cannot be reached.
    """
    port = address.bindable(settings.host, settings.port)
    check_workers(settings.rpc)
    return replace(settings, port=port)


def prepare(
    model: PathLike,
    settings: ServerSettings,
    context: Mapping[str, Any],
    *,
    block_params: BlockParams | Mapping[str, Any] | None = None,
    fit: bool = True,
    mmap: bool = True,
    progress: ProgressFunction | None = None,
) -> Prepared:
    """Looks at everything that can be wrong before a model is loaded, which may take minutes.

    Args:
        context: settings with the names of `Clover`'s arguments; None and what is missing is chosen.
        block_params: how block passes compute, where that is not as the file says.

    Raises:
        ServerError: the port is taken, a worker cannot be reached, or the build has no server.
        TemplateError: the chat template takes too long or too much memory.
        DoesNotFitError, FileError, DownloadError, UsageError: as Clover().
    """
    given = {name: value for name, value in context.items() if value is not None}
    placed: dict[str, Any] = {name: given.pop(name) for name in PLACES if name in given}
    for name, value in placed.items():
        arguments.integer(name, value, -1)
    options = ContextOptions(**given)
    server = program("llama")
    settings = reachable(settings)
    fit, mmap = arguments.boolean("fit", fit), arguments.boolean("mmap", mmap)
    source = model_file(model, fit=fit and not settings.rpc, progress=progress)
    file = validate(source.path)
    warnings = [*source.warnings, *file.warnings, *_remarks(settings)]

    changes = block_overrides.checked(block_params, geometry_of(file))
    settings = settings.resolved(can_draft=geometry_of(file).can_draft, n_rows=options.n_ubatch)

    plan = None
    if fit and not settings.rpc:
        wished = {name: given[name] for name in PLANNED if name in given}
        n_max = settings.speculation.n_max if isinstance(settings.speculation, DraftSelf) else 0
        plan = plan_for(
            file, **wished, **placed, n_max=n_max, flash_attn=options.flash_attn is not False, mmap=mmap,
            rs_snapshots=options.rs_snapshots,
        )  # fmt: skip
        warnings += plan.warnings
        sizes, n_ctx, n_ubatch = plan.arguments(), plan.settings.n_ctx, plan.settings.n_ubatch
        caches = memory.caches(plan, settings.n_slots)
        sizes += caches.arguments() if caches else []
    else:
        n_ctx = options.n_ctx if options.n_ctx is not None else min(N_CTX_UNPLANNED, geometry_of(file).n_ctx_train)
        n_ctx, n_ubatch = n_ctx or geometry_of(file).n_ctx_train, options.n_ubatch
        sizes = _unplanned(options, placed, n_ctx, workers=bool(settings.rpc))
    for name, value in (("n_ctx", n_ctx), ("n_batch", options.n_batch)):
        if value < MIN_TOKENS:
            raise UsageError(f"{name} is {value}: a server needs at least {MIN_TOKENS}", option=name)
    if isinstance(settings.speculation, DraftSelf):
        memory.check_rows(settings.speculation.n_rows, settings.n_slots, min(n_ubatch, n_ctx))

    n_threads = options.n_threads or default_threads(sum(h.file_bytes for h in file.headers))
    if n_threads > usable_processors():
        warnings.append(
            f"{n_threads} threads were asked for, and {usable_processors()} processors are usable here: it may be many "
            "times slower than with as many threads as processors (-t)"
        )
    if settings.template is not None:
        arguments.text("template", settings.template)
    check_template(settings.template, file)
    flash = "auto" if options.flash_attn == "auto" else "on" if options.flash_attn else "off"
    command = [
        server, "serve", "-m", str(file.first_path), "--alias", alias(model, file), "--port", str(settings.port),
        *settings.arguments(), *sizes, "-t", str(n_threads), "-tb", str(options.n_threads_batch or n_threads),
        "-fa", flash, *([] if mmap else ["--load-mode", "none"]), "--log-colors", "off",
        *(["--spec-rollback", "snapshots"] if options.rs_snapshots else []),
        *block_overrides.override_arguments(changes),
        *([] if settings.template is None else ["--chat-template", settings.template]),
    ]  # fmt: skip
    return Prepared(
        model=str(model), path=file.first_path, settings=settings, plan=plan, n_ctx=n_ctx, n_threads=n_threads,
        block_params=changes, can_draft=geometry_of(file).can_draft, command=tuple(command),
        warnings=tuple(dict.fromkeys(warnings)),
    )  # fmt: skip


def alias(model: PathLike, file: ValidatedModel) -> str:
    """What clients call the model: as the user does, without a path."""
    name = str(model)
    named = isinstance(model, str) and not Path(name).expanduser().exists() and name != "auto"
    return (name if named else file.first_path.stem).replace(",", "_")


def _unplanned(options: ContextOptions, placed: Mapping[str, int], n_ctx: int, *, workers: bool) -> list[str]:
    """Sizes as arguments when no plan has chosen them; with workers, all layers go to these."""
    n_layers = placed.get("n_gpu_layers", -1 if workers else None)
    n_moe = placed.get("n_cpu_moe")
    words: list[str | int] = ["-c", n_ctx, "-b", options.n_batch, "-ub", options.n_ubatch]
    words += ["-ctk", options.cache_type_k, "-ctv", options.cache_type_v]
    words += [] if n_layers is None else ["-ngl", ALL_LAYERS if n_layers == -1 else n_layers]
    words += [] if n_moe is None else ["--n-cpu-moe", ALL_LAYERS if n_moe == -1 else n_moe]
    return [str(word) for word in words]


def _remarks(settings: ServerSettings) -> list[str]:
    """What is odd about the settings, without being wrong."""
    out = []
    if isinstance(settings.speculation, DraftSelf) and settings.speculation.relaxed:
        out.append("relaxed acceptance is on: it changes the text of greedy requests")
    if settings.rpc:
        out.append("with workers nothing is planned: whether the model fits, their memories decide")
    if settings.cors_origins == "*" and not settings.api_keys:
        out.append("any web page that you open can use this server: --cors-origins is * and there is no key")
    if names := ignored_variables():
        out.append(f"{', '.join(names)} in the environment: no effect on this server, use its options")
    return out
