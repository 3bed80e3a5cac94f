"""Looks at the machine that this runs on."""

from __future__ import annotations

import platform
import sys
from pathlib import Path
from typing import Any

import psutil

from pyclover.plan import host
from pyclover.plan.machine import Device, Machine


def probe(
    *,
    meminfo: Path = Path("/proc/meminfo"),
    cgroup: Path = Path("/proc/self/cgroup"),
    cgroup_mount: Path = Path("/sys/fs/cgroup"),
) -> Machine:
    """The machine as it is now. The paths are for tests."""
    total, free = _system_memory(meminfo)
    limit, limit_free = host.cgroup_limit(cgroup, cgroup_mount), host.cgroup_free(cgroup, cgroup_mount)
    why = ""
    if limit is not None and limit_free is not None and (free is None or limit_free < free):
        why, free = "control group", limit_free
        total = limit if total is None else min(total, limit)
    warnings = []
    if free is None:
        warnings.append("the free memory of this machine is not available: nothing can be checked against it")
    devices, features = native_devices(), native_features()
    for d in devices:
        if d.room_bytes is None and not d.unified:
            warnings.append(f"the memory of {d.name} is not available: give n_gpu_layers (-ngl) to use it all the same")
    return Machine(
        host_total_bytes=total, host_free_bytes=free, host_limit=why, devices=devices, cpu_features=features,
        warnings=tuple(warnings),
    )  # fmt: skip


def _system_memory(meminfo: Path) -> tuple[int | None, int | None]:
    table = host.meminfo(meminfo)
    if "MemAvailable" in table:
        return table.get("MemTotal"), table["MemAvailable"]
    try:
        memory = psutil.virtual_memory()
    except Exception:  # psutil raises what the system's own calls raise
        return None, None
    return int(memory.total), int(memory.available)


def native_devices() -> tuple[Device, ...]:
    """The GPUs that the native library finds; none in a build for the processor alone."""
    from pyclover._native import check, ffi, lib

    n = ffi.new("size_t *")
    check(lib.pc_devices(ffi.NULL, 0, n))
    out = ffi.new("pc_device[]", n[0])
    check(lib.pc_devices(out, n[0], n))
    found = []
    for raw in out:
        text = {name: ffi.string(getattr(raw, name)).decode("utf-8", "replace") for name in ("name", "kind")}
        if text["kind"] in ("gpu", "igpu"):
            description = ffi.string(raw.description).decode("utf-8", "replace")
            found.append(device(text["name"], description, text["kind"], int(raw.total_bytes), int(raw.free_bytes)))
    return tuple(found)


def device(name: str, description: str, kind: str, total_bytes: int, free_bytes: int, **system: Any) -> Device:
    """A device as the back end tells of it. Total and free of 0 are its way to say "not available".

    Memory is shared only where the device is part of the processor: "igpu", or Metal on Apple's own processors. That
    unified addressing is switched on for a card does not make the machine's memory its own.
    """
    metal = name.startswith(("Metal", "MTL"))
    apple = system.get("platform", sys.platform) == "darwin" and system.get("machine", platform.machine()) == "arm64"
    unified = kind == "igpu" or (metal and apple)
    known = total_bytes > 0
    return Device(
        name=name,
        description=description,
        kind=kind,
        total_bytes=total_bytes if known else None,
        free_bytes=free_bytes if known else None,
        unified=unified,
        # Metal tells how much of the machine's memory it will keep resident; the others may have all of it
        limit_bytes=free_bytes if unified and metal and known else None,
        pinned_host=not metal,
    )


def native_features() -> frozenset[str]:
    """Features of the processor that the native code uses, as in llama.cpp's system line."""
    from pyclover._native import buffer, check, lib, taken

    with buffer() as out:
        check(lib.pc_system_info(out))
        return features(taken(out).decode("utf-8", "replace"))


def features(system_info: str) -> frozenset[str]:
    """Names that are 1 in "CPU : SSE3 = 1 | AVX2 = 1 | …"."""
    found = set()
    for part in system_info.replace(":", "|").split("|"):
        name, _, value = part.partition("=")
        if value.strip() == "1":
            found.add(name.strip())
    return frozenset(found)
