"""From what a user calls a model to a file on this machine: a path, a model of the package, or a name on the hub."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pyclover import arguments
from pyclover.errors import DoesNotFitError, PathLike, UnsupportedModelError
from pyclover.files.embedded import NAMES
from pyclover.files.find import find_model

if TYPE_CHECKING:
    from pyclover.hub.auto import Judge
    from pyclover.hub.download import Download
    from pyclover.hub.listing import Offer
    from pyclover.hub.patience import Retry
    from pyclover.hub.progress import ProgressFunction
    from pyclover.plan.machine import Machine
    from pyclover.plan.result import Plan


def is_hub_name(model: PathLike) -> bool:
    """Whether it is "auto" or owner/repo[:quant], and no file here."""
    if not isinstance(model, str) or model in NAMES or os.path.lexists(os.path.expanduser(model)):
        return False
    if model == "auto":
        return True
    if model.startswith((".", "~", "/")) or model.lower().endswith(".gguf"):
        return False
    repo = model.partition(":")[0]
    return repo.count("/") == 1 and all(repo.split("/"))


class Source(NamedTuple):
    """A model's file, the first one of a split set.

    Attributes:
        warnings: what is odd about where it comes from, one sentence each.
        why: of a choice ("auto"), what was chosen and why; "" where there was none.
    """

    path: Path
    warnings: tuple[str, ...] = ()
    why: str = ""


def model_file(model: PathLike, *, fit: bool = True, progress: ProgressFunction | None = None) -> Source:
    """The model's file; downloaded when it is a name on the hub and not here yet.

    Args:
        fit: do not download what this machine's memories together cannot hold.
        progress: of a download, as for `pyclover.download`.

    Raises:
        ModelNotFoundError: there is no such file, or nothing of that name on the hub.
        UnsupportedModelError: the name means original weights, which are no GGUF file.
        DoesNotFitError: with fit, the file is larger than all memory there is.
        DownloadError, CancelledError: as `pyclover.download`.
    """
    arguments.path("model", model)
    if not is_hub_name(model):
        return Source(find_model(model))
    done = _download(os.fspath(model), accept=lambda offer: _check_offer(offer, fit), progress=progress)
    why = f"{done.repo}:{done.quant}: {done.why}" if done.why else ""
    return Source(done.path, done.warnings, why)


def _check_offer(offer: Offer, fit: bool) -> None:
    """Raises for what it would be vain to download."""
    if any(file.name.endswith(".safetensors") for file in offer.files):
        raise UnsupportedModelError(
            f"{offer.repo} has original weights (safetensors) and no GGUF file of that name: take a repository of GGUF "
            "files, such as `clover-run download --list` shows", path=offer.repo,
        )  # fmt: skip
    if not fit:
        return
    from pyclover.plan.probe import probe

    machine = probe()
    rooms = [machine.host_free_bytes, *(d.room_bytes for d in machine.used_devices if not d.unified)]
    free = sum(room for room in rooms if room is not None)
    if None not in rooms and offer.n_bytes > free:
        raise DoesNotFitError(
            f"{offer.repo}:{offer.quant} does not fit: it has {offer.n_bytes / 2**30:.2f} GiB, and all memory together "
            f"has {free / 2**30:.2f} GiB free; nothing was downloaded, take a smaller one or auto (--no-fit fetches it "
            "all the same)", needed_bytes=offer.n_bytes, free_bytes=free,
        )  # fmt: skip


def download(
    name: str,
    *,
    quant: str | None = None,
    revision: str | None = None,
    cache_dir: PathLike | None = None,
    token: str | bool | None = None,
    endpoint: str | None = None,
    offline: bool | None = None,
    fits: object = None,
    progress: ProgressFunction | None = None,
    retry: Retry | None = None,
) -> Download:
    """Brings a model to this machine, unless it is here already.

    Args:
        name: owner/repo, owner/repo:quant, or "auto": the best of the catalogue that fits. What is here and fits comes
            before what would have to be downloaded, unless that is clearly better; `why` of the result says it.
        quant: as behind the colon; "auto": the best that fits. Without one: the only one, else as `fits` chooses,
            else Q4_K_M.
        revision: branch, tag or commit. None: main.
        cache_dir: None: PYCLOVER_CACHE, else the user's cache folder.
        token: of the hub; None: HF_TOKEN, else that of `hf auth login`; False: none.
        endpoint: of a mirror; None: HF_ENDPOINT, else the public hub.
        offline: only what is here; None: as HF_HUB_OFFLINE says.
        fits: bytes that the weights may take, or a function that says of an `Offer` whether it fits. None: what can be
            run here, by a plan with the default settings, where the largest that fits is asked for.
        progress: called with a `DownloadProgress` some ten times a second; returning False stops the download.
        retry: patience with the hub.

    Raises:
        UsageError: an argument that cannot be honoured.
        ModelNotFoundError: no such repository, revision or quantization, or none that fits.
        IncompleteSetError: the repository lacks shards of the set.
        DownloadError: the hub or the disk failed, or the file is not what the hub announces.
        CancelledError: progress returned False.
    """
    return _download(
        name, quant=quant, revision=revision, cache_dir=cache_dir, token=token, endpoint=endpoint, offline=offline,
        fits=fits, progress=progress, retry=retry,
    )  # fmt: skip


def _download(name: str, *, quant: str | None = None, fits: object = None, **how: Any) -> Download:
    from pyclover.hub import download as hub
    from pyclover.hub.names import AUTO, parse_name

    wanted = parse_name(name, quant=quant)
    if fits is None and (wanted.repo is None or (wanted.quant or "").lower() == AUTO):
        from pyclover.plan.probe import probe

        fits = planned(probe())
    return hub.download(name, quant=quant, fits=fits, **how)


def planned(machine: Machine) -> Judge:
    """What of Clover-35B-A3B fits a machine with the default settings, by the sizes of its files alone.

    A smaller file that a GPU holds as a whole comes before a larger one that it does not.
    """
    from pyclover.hub.auto import Judge
    from pyclover.plan.fit import plan
    from pyclover.plan.quants import clover_35b
    from pyclover.plan.search import Wishes

    @cache  # it is asked again and again, and a plan takes a while
    def found(quant: str, n_bytes: int, machine: Machine) -> Plan | None:
        try:
            return plan(quant, clover_35b(quant, n_bytes), Wishes(), machine)
        except DoesNotFitError:
            return None

    at_rest = machine.at_rest()

    def on_gpu(offer: Offer) -> bool:
        made = found(offer.quant, offer.n_bytes, at_rest)
        return made is not None and made.all_on_gpu

    return Judge(
        now=lambda offer: found(offer.quant, offer.n_bytes, machine) is not None,
        at_rest=lambda offer: found(offer.quant, offer.n_bytes, at_rest) is not None,
        first=on_gpu if machine.used_devices else None,
    )
