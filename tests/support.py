"""Paths and settings that tests share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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
