"""Saved states: the memory of a context as a file.

A file is a line `pyclover-state 1`, a line of JSON (what the state belongs to, and the SHA-256 of the rest), and the
bytes that native code wrote. Native code sees them only when model, settings and hash agree.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from pyclover.engine.context import Context
from pyclover.errors import PathLike, StateError

MAGIC = b"pyclover-state 1\n"
MAX_HEAD_BYTES = 1 << 16


def _belongs_to(context: Context) -> dict[str, Any]:
    return {
        "model": context.model.fingerprint,
        "cache_type_k": context.options.cache_type_k,
        "cache_type_v": context.options.cache_type_v,
        "flash_attn": context.options.flash_attn,
    }


def save(context: Context, path: PathLike) -> None:
    """Writes the state beside `path` and puts it there when it is whole; an earlier file survives a failure.

    Raises:
        StateError: the file cannot be written.
    """
    target = Path(path)
    data = context.get_state()
    n_tokens = len(context.tokens())
    head = {
        **_belongs_to(context),
        "n_tokens": n_tokens,
        "n_bytes": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
    }
    temporary = None
    try:
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}.", delete=False) as f:
            temporary = f.name
            f.write(MAGIC + json.dumps(head).encode() + b"\n")
            f.write(data)
            f.flush()
            os.fsync(f.fileno())
        os.replace(temporary, target)
    except BaseException as e:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        if isinstance(e, OSError):
            raise StateError(
                f"cannot save the state to {target}: {e.strerror or e}; choose another place", path=target
            ) from None
        raise


def _read(path: Path) -> tuple[dict[str, Any], bytes]:
    try:
        with path.open("rb") as f:
            if f.read(len(MAGIC)) != MAGIC:
                raise StateError(f"{path} is not a state saved by this version of pyclover: save it again", path=path)
            line = f.readline(MAX_HEAD_BYTES)
            data = f.read()
    except OSError as e:
        raise StateError(f"cannot read the state {path}: {e.strerror or e}", path=path) from None
    try:
        head = json.loads(line)
        whole = len(data) == head["n_bytes"] and hashlib.sha256(data).hexdigest() == head["sha256"]
        int(head["n_tokens"])
    except (ValueError, KeyError, TypeError):
        whole = False
    if not whole:
        raise StateError(f"the state {path} is damaged or cut short: save it again", path=path)
    return head, data


def load(context: Context, path: PathLike) -> int:
    """Restores a saved state; returns the number of tokens that the memory holds now.

    Raises:
        StateError: unreadable, damaged, or saved with another model or other cache settings.
        ContextFullError: it holds more tokens than this context has room for.
    """
    source = Path(path)
    head, data = _read(source)
    for name, value in _belongs_to(context).items():
        if head.get(name) != value:
            what = (
                "another model file"
                if name == "model"
                else f"{name}={head.get(name)!r}, and this context has {value!r}"
            )
            raise StateError(f"the state {source} was saved with {what}: load it with the same settings", path=source)
    context.set_state(data, head["n_tokens"])
    return int(head["n_tokens"])
