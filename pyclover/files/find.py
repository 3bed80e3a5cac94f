"""From what a user calls a model to its file."""

from __future__ import annotations

import os
from pathlib import Path

from pyclover import arguments
from pyclover.errors import ModelNotFoundError, PathLike
from pyclover.files.embedded import NAMES, embedded_path


def find_model(model: PathLike, *, option: str = "model") -> Path:
    """File of a model's name or path; `option` is what errors call it.

    Raises:
        ModelNotFoundError: there is no such file, and the name is none that this version knows.
    """
    path = arguments.path(option, model)
    name = os.fspath(path) if isinstance(model, os.PathLike) else model
    if name in NAMES:
        return embedded_path(name)
    try:
        path = path.expanduser()
        os.stat(path)
    except RuntimeError:
        user = name.split("/")[0]
        raise ModelNotFoundError(f"{name}: there is no home folder of {user}; give the whole path", path=name) from None
    except (FileNotFoundError, NotADirectoryError):
        if path.is_symlink():
            raise ModelNotFoundError(
                f"{name} is a link to {os.readlink(path)}, where nothing is: correct the link, or give the file's path",
                path=name,
            ) from None
    except OSError as e:  # a name that is too long, links in a circle, a folder that may not be entered
        raise ModelNotFoundError(f"{name}: {e.strerror or e}; check the path", path=name) from None
    else:
        return path
    if name == "auto" or (
        name.count("/") == 1 and not name.startswith((".", "~", "/")) and not name.lower().endswith(".gguf")
    ):
        raise ModelNotFoundError(
            f"{name} is not a file here: `clover-run download {name}` fetches a model of that name from the hub, and "
            "says its path",
            path=name,
        )
    if name.lower().startswith(("http://", "https://")):
        raise ModelNotFoundError(
            f"{name} is an address, and a model runs from a file: download it, or name it as OWNER/REPO:QUANT if it is "
            "on the hub (`clover-run inspect` reads an address, too)",
            path=name,
        )
    raise ModelNotFoundError(
        f'there is no file {name}: give the path of a GGUF file, or "tiny" for the model in the package', path=name
    )
