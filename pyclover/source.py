"""From what a user calls a model to a file on this machine: a path, a model of the package, or a name on the hub."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from pyclover import arguments
from pyclover.errors import DoesNotFitError, PathLike
from pyclover.files.embedded import NAMES
from pyclover.files.find import find_model

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyclover.hub.listing import Offer
    from pyclover.hub.progress import ProgressFunction


def is_hub_name(model: PathLike) -> bool:
    """Whether it is "auto" or owner/repo[:quant], and no file here."""
    if not isinstance(model, str) or model in NAMES or os.path.lexists(os.path.expanduser(model)):
        return False
    if model == "auto":
        return True
    if model.startswith((".", "~", "/")) or model.endswith(".gguf"):
        return False
    repo = model.partition(":")[0]
    return repo.count("/") == 1 and all(repo.split("/"))


def model_file(model: PathLike, *, progress: ProgressFunction | None = None) -> Path:
    """The model's file, the first one of a split set; downloaded when it is a name on the hub and not here yet.

    Args:
        progress: of a download, as for `pyclover.download`.

    Raises:
        ModelNotFoundError: there is no such file, or nothing of that name on the hub.
        DownloadError, CancelledError: as `pyclover.download`.
    """
    arguments.path("model", model)
    if not is_hub_name(model):
        return find_model(model)
    from pyclover.hub.download import download

    return download(os.fspath(model), fits=planned_fits(), progress=progress).path


def planned_fits() -> Callable[[Offer], bool]:
    """The question whether a file of Clover-35B-A3B fits this machine with the default settings, by its size alone."""
    from pyclover.plan.fit import plan
    from pyclover.plan.probe import probe
    from pyclover.plan.quants import clover_35b
    from pyclover.plan.search import Wishes

    machine = probe()

    def fits(offer: Offer) -> bool:
        try:
            plan(offer.quant, clover_35b(offer.quant, offer.n_bytes), Wishes(), machine)
        except DoesNotFitError:
            return False
        return True

    return fits
