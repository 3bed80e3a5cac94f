"""How many threads to compute with."""

from __future__ import annotations

import os
from pathlib import Path

import psutil

CGROUP_CPU_MAX = Path("/sys/fs/cgroup/cpu.max")


def cgroup_limit(cpu_max: Path = CGROUP_CPU_MAX) -> float | None:
    """Processors that the control group grants, None without a limit."""
    try:
        quota, period = cpu_max.read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else int(quota) / int(period)


# Below this a pass is over sooner than its threads have met, and beside a busy neighbour they wait for each other.
SMALL_MODEL_BYTES = 32 << 20


def default_threads(model_bytes: int) -> int:
    """Physical cores that this process may use, for more threads slow llama.cpp down; 1 for a small model."""
    if model_bytes < SMALL_MODEL_BYTES:
        return 1
    physical = psutil.cpu_count(logical=False) or usable_processors()
    return max(1, min(usable_processors(), physical))


def usable_processors() -> int:
    """Processors that this process may use; at least 1."""
    n = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    limit = cgroup_limit()
    return max(1, n if limit is None else min(n, int(limit)))
