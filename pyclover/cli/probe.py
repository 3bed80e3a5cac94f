"""Facts about this machine, read without native code. What cannot be known is None, never 0."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import sys
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
CGROUP = Path("/sys/fs/cgroup")
DEV = Path("/dev")
_NO_LIMIT_BYTES = 1 << 60  # cgroup v1 writes a number near 2**63 for "no limit"


@dataclass(frozen=True)
class Cpu:
    """The processor; `features` as /proc/cpuinfo spells them, None where there is no such list."""

    model: str
    features: frozenset[str] | None


@dataclass(frozen=True)
class Threads:
    """Processors of the machine, those this process may run on, and the time limit of its container in processors."""

    physical: int | None
    logical: int | None
    allowed: int | None
    quota: float | None

    @property
    def usable(self) -> int | None:
        """Threads that can run at once."""
        counts = [count for count in (self.physical, self.allowed) if count]
        if self.quota is not None:
            counts.append(max(1, int(self.quota)))
        return min(counts) if counts else self.logical


@dataclass(frozen=True)
class Memory:
    """Main memory; `limit_bytes` is what the container may use in all."""

    total_bytes: int
    available_bytes: int
    limit_bytes: int | None


def cpu(proc: Path = PROC) -> Cpu:
    """The processor's name and features."""
    text = _read(proc / "cpuinfo") or ""
    name = re.search(r"^(?:model name|Model|Hardware|cpu)\s*:\s*(.+)$", text, re.MULTILINE)
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", text, re.MULTILINE)
    return Cpu(
        model=name[1].strip() if name else platform.processor() or platform.machine() or "unknown",
        features=frozenset(flags[1].split()) if flags else None,
    )


def threads(proc: Path = PROC, cgroup: Path = CGROUP) -> Threads:
    """Processors and the limits on them."""
    import psutil

    allowed = len(os.sched_getaffinity(0)) if sys.platform == "linux" else None
    return Threads(
        physical=psutil.cpu_count(logical=False),
        logical=psutil.cpu_count(logical=True),
        allowed=allowed,
        quota=cpu_quota(proc, cgroup),
    )


def memory(proc: Path = PROC, cgroup: Path = CGROUP) -> Memory:
    """Main memory and the container's limit on it."""
    import psutil

    state = psutil.virtual_memory()
    return Memory(total_bytes=state.total, available_bytes=state.available, limit_bytes=memory_limit(proc, cgroup))


def cpu_quota(proc: Path = PROC, cgroup: Path = CGROUP) -> float | None:
    """The container's limit in processors (0.5 = half of one), None without a limit."""
    quotas = []
    for folder in _cgroup_folders(proc, cgroup):
        fields = (_read(folder / "cpu.max") or "max").split()
        if len(fields) == 2 and fields[0].isdigit() and int(fields[1]) > 0:
            quotas.append(int(fields[0]) / int(fields[1]))
    quota, period = (_number(cgroup / "cpu" / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
    if quota is not None and quota > 0 and period:
        quotas.append(quota / period)
    return min(quotas, default=None)


def memory_limit(proc: Path = PROC, cgroup: Path = CGROUP) -> int | None:
    """The container's limit in bytes, None without a limit."""
    files = [folder / "memory.max" for folder in _cgroup_folders(proc, cgroup)]
    files.append(cgroup / "memory" / "memory.limit_in_bytes")
    limits = [limit for limit in map(_number, files) if limit is not None and limit < _NO_LIMIT_BYTES]
    return min(limits, default=None)


def gpu_hints(dev: Path = DEV) -> dict[str, str]:
    """Back ends that this machine seems to have a GPU for, with what shows it."""
    hints = {}
    if (dev / "nvidiactl").exists():
        hints["CUDA"] = f"{dev}/nvidiactl"
    if (dev / "kfd").exists():
        hints["HIP"] = f"{dev}/kfd"
    if sys.platform == "darwin" and platform.machine() == "arm64":
        hints["Metal"] = "an Apple chip"
    return hints


def _cgroup_folders(proc: Path, cgroup: Path) -> list[Path]:
    """Folders of this process's cgroup (v2) from the innermost to the root: a limit may stand in any of them."""
    entry = re.search(r"^0::/?(.*)$", _read(proc / "self" / "cgroup") or "", re.MULTILINE)
    parts = [part for part in entry[1].split("/") if part] if entry else []
    return [cgroup.joinpath(*parts[:n]) for n in range(len(parts), -1, -1)]


def _read(path: Path) -> str | None:
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return path.read_text(encoding="utf-8")
    return None


def _number(path: Path) -> int | None:
    with contextlib.suppress(ValueError):
        return int(_read(path) or "")
    return None
