"""Model files that a cache of downloads keeps as they came: their content is what a checksum says, and must stay so."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

RECORD = ".download.json"  # beside the files of a set that pyclover downloaded: what they are


def keeper(path: Path) -> str:
    """The cache that keeps a file, in words; "" for a file that is nobody's but the user's."""
    try:
        where = path.resolve()
    except (OSError, RuntimeError):  # links in a circle: whoever opens the file says it better
        return ""
    if _in_record(where):
        return "pyclover's cache"
    parts = where.parts
    if any(a.startswith("models--") and b in ("blobs", "snapshots") for a, b in pairwise(parts)):
        return "Hugging Face's cache"
    return ""


def _in_record(path: Path) -> bool:
    if not path.name or not path.with_name(RECORD).is_file():
        return False
    try:
        names = json.loads(path.with_name(RECORD).read_bytes())["names"]
        return any(str(name).rsplit("/", 1)[-1] == path.name for name in names)
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return True  # it cannot be read: better one refusal too many
