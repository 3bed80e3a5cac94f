"""Processor features, checked before the native library is loaded: a message instead of an illegal instruction.

Imports nothing of the package, because the build runs this file by itself.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")

# Features that the compiler may use when told to build for this very machine.
OF_INTEREST = (
    "sse4_2", "avx", "avx2", "bmi2", "fma", "f16c", "avx_vnni",
    "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512_vnni", "avx512vbmi", "avx512_bf16",
    "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16",
)  # fmt: skip


def features(cpuinfo: Path = CPUINFO) -> frozenset[str] | None:
    """Feature flags of the processor; None where the system does not tell them in this way."""
    try:
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "flags":
            return frozenset(value.split())
    return None


def missing(needed: Iterable[str], cpuinfo: Path = CPUINFO) -> tuple[str, ...]:
    """Needed features that this processor lacks; empty when it has all, or when that cannot be known."""
    have = features(cpuinfo)
    if have is None:
        return ()
    return tuple(name for name in needed if name not in have)


def model_name(cpuinfo: Path = CPUINFO) -> str:
    try:
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


if __name__ == "__main__":
    have = features() or frozenset()
    print(", ".join(f'"{name}"' for name in OF_INTEREST if name in have))
