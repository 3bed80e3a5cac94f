"""What this build of the package has, and what it finds on this machine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pyclover._native import buffer, build_facts, check, ffi, generated, lib, taken

# Subcommands of the one `llama` program that are worth a name of their own.
LLAMA_COMMANDS = ("serve", "cli", "completion", "bench", "batched-bench", "quantize", "perplexity", "fit-params")


@dataclass(frozen=True)
class DeviceInfo:
    """A device that llama.cpp can compute on; sizes are 0 when it does not tell them."""

    name: str
    description: str
    kind: str
    total_bytes: int
    free_bytes: int


@dataclass(frozen=True)
class BuildInfo:
    """Attributes:
    version: of pyclover. llama_cpp_commit, llama_cpp_version: of the source it was built from.
    native: built for the processor of the machine that built it.
    cpu_needs: processor features without which it does not start.
    system_info: llama.cpp's own line on processor features.
    backends: that were built in. devices: that were found.
    programs: name -> path. patches: file names, in order.
    """

    version: str
    llama_cpp_commit: str
    llama_cpp_version: str
    compiler: str
    build_type: str
    native: bool
    openmp: bool
    cpu_needs: tuple[str, ...]
    system_info: str
    backends: tuple[str, ...]
    devices: tuple[DeviceInfo, ...]
    programs: Mapping[str, Path]
    patches: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {**asdict(self), "programs": {name: str(path) for name, path in self.programs.items()}}


def programs() -> dict[str, Path]:
    """Programs that the package ships: name -> path."""
    try:
        folder = generated("pyclover", "bin")
    except FileNotFoundError:
        return {}
    return {p.stem: p for p in sorted(folder.iterdir()) if p.is_file() and os.access(p, os.X_OK)}


def devices() -> tuple[DeviceInfo, ...]:
    """Devices that llama.cpp can compute on, free memory as it is now."""
    n = ffi.new("size_t *")
    check(lib.pc_devices(ffi.NULL, 0, n))
    out = ffi.new("pc_device[]", n[0])
    check(lib.pc_devices(out, n[0], n))

    def text(field: Any) -> str:
        return str(ffi.string(field).decode("utf-8", "replace"))

    return tuple(
        DeviceInfo(text(d.name), text(d.description), text(d.kind), int(d.total_bytes), int(d.free_bytes)) for d in out
    )


def build_info() -> BuildInfo:
    facts = build_facts()
    with buffer() as out:
        check(lib.pc_system_info(out))
        system_info = taken(out).decode("utf-8", "replace").strip()
    return BuildInfo(
        version=facts["version"],
        llama_cpp_commit=facts["llama_cpp_commit"],
        llama_cpp_version=facts["llama_cpp_version"],
        compiler=facts["compiler"],
        build_type=facts["build_type"],
        native=facts["native"] == "ON",
        openmp=facts["openmp"] == "ON",
        cpu_needs=tuple(facts["cpu_needs"]),
        system_info=system_info,
        backends=tuple(facts["backends"]),
        devices=devices(),
        programs=programs(),
        patches=tuple(facts["patches"]),
    )
