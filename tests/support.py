"""Paths and settings that tests share."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import pyclover

ROOT = Path(__file__).resolve().parent.parent
ORACLE = ROOT / "tests" / "oracle"

# The oracle's own settings: no rounding of the cache, no flash attention, one thread.
EXACT: dict[str, Any] = {
    "cache_type_k": "f32",
    "cache_type_v": "f32",
    "flash_attn": False,
    "n_threads": 1,
    "n_ubatch": 512,
}


@contextlib.contextmanager
def small_file_system(folder: Path, size: str) -> Iterator[Path]:
    """A file system of that size ("256k") at a new folder; the test is skipped where none can be made."""
    mount = shutil.which("mount")
    if mount is None or not hasattr(os, "geteuid") or os.geteuid() != 0:
        pytest.skip("only root can mount a small file system")
    folder.mkdir()
    made = subprocess.run(
        [mount, "-t", "tmpfs", "-o", f"size={size}", "none", str(folder)], capture_output=True, text=True, check=False
    )
    if made.returncode != 0:
        pytest.skip(f"no small file system could be mounted: {made.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def split_by_gguf_py(source: Path, folder: Path, rename: Callable[[str], str] = str) -> list[Path]:
    """A clover_moe file as a set of shards of at most 30 tensors, m-…; `rename` gives its tensors other names."""
    import gguf
    import numpy as np

    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(folder / "m.gguf", "clover_moe", split_max_tensors=30)
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            kind = field.types[0]
            add: Any = writer.add_array if kind is gguf.GGUFValueType.ARRAY else writer.add_key_value
            add(key, field.contents(), *([] if kind is gguf.GGUFValueType.ARRAY else [kind]))
    for t in reader.tensors:
        writer.add_tensor(rename(t.name), np.ascontiguousarray(t.data))
    writer.write_header_to_file(folder / "m.gguf")
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return sorted(folder.glob("m-*.gguf"))


def fixed_draft(**settings: Any) -> pyclover.DraftSelf:
    """Drafts of one length, whatever they cost: its statistics do not depend on the machine."""
    import pyclover  # conftest.py sets the path first, and imports this module before it does

    return pyclover.DraftSelf(**{"adaptive": False, **settings})
