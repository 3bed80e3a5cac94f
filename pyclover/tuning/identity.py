"""What a measurement belongs to: the file, the machine, the build and the settings that were not part of it."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from pyclover.engine.threads import usable_processors
from pyclover.errors import InvalidFileError
from pyclover.files.gate import ValidatedModel

# Settings of `Clover` that change how fast a file runs and are not themselves tuned.
SETTINGS = ("n_gpu_layers", "n_cpu_moe", "flash_attn", "cache_type_k", "cache_type_v", "rs_snapshots")
N_SAMPLES, SAMPLE_BYTES = 32, 4096
CPUINFO = Path("/proc/cpuinfo")


@dataclass(frozen=True)
class Key:
    """Attributes:
    file: of its headers, sizes and samples of its weights. machine: of processor, memory and devices.
    build: of version, llama.cpp, compiler, back ends and patches. settings: as they were given, some of SETTINGS.
    """

    file: str
    machine: str
    build: str
    settings: tuple[tuple[str, Any], ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "settings": dict(self.settings)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Key:
        settings = values.get("settings") or {}
        words = {name: str(values.get(name, "")) for name in ("file", "machine", "build")}
        return cls(**words, settings=tuple(sorted(settings.items())))

    def differs_from(self, other: Key) -> tuple[str, ...]:
        """In what two keys differ: "file", "machine", "build", "settings"."""
        return tuple(name for name in asdict(self) if getattr(self, name) != getattr(other, name))


def key_of(model: ValidatedModel, settings: Mapping[str, Any]) -> Key:
    """The key of measurements of a model here, now.

    Args:
        settings: keywords of `Clover`; those of SETTINGS count.

    Raises:
        InvalidFileError: a file cannot be read any more.
    """
    given = {name: settings[name] for name in SETTINGS if settings.get(name) is not None}
    return Key(file_id(model), _digest(machine()), _digest(build()), tuple(sorted(given.items())))


def file_id(model: ValidatedModel) -> str:
    """Identifies the files: headers and sizes, and of each file 32 evenly spaced samples of its weights."""
    digest = hashlib.sha256(model.fingerprint().encode())
    for header in model.headers:
        room = max(0, header.file_bytes - header.data_offset - SAMPLE_BYTES)
        try:
            with header.path.open("rb") as file:
                for i in range(N_SAMPLES):
                    file.seek(header.data_offset + room * i // (N_SAMPLES - 1))
                    digest.update(file.read(SAMPLE_BYTES))
        except OSError as e:
            raise InvalidFileError(f"{header.path}: cannot be read: {e.strerror or e}", path=header.path) from e
    return digest.hexdigest()[:32]


def machine() -> dict[str, Any]:
    """Processor, memory and devices; not what else runs now."""
    from pyclover.engine.build_info import devices

    return {
        "processor": processor(), "processors": usable_processors(), "cores": psutil.cpu_count(logical=False),
        "memory_gib": round(psutil.virtual_memory().total / (1 << 30)),
        "devices": [[d.name, d.description] for d in devices() if d.kind in ("gpu", "igpu")],
    }  # fmt: skip


def processor(cpuinfo: Path = CPUINFO) -> str:
    """The processor's name, as the system tells it."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "Hardware", "cpu model"):
            return value.strip()
    return platform.processor() or platform.machine()


def build() -> dict[str, Any]:
    """What this build is made of."""
    from pyclover.engine.build_info import build_info

    info = build_info()
    names = ("version", "llama_cpp_commit", "compiler", "build_type", "native", "openmp", "backends", "patches")
    return {name: getattr(info, name) for name in names}


def _digest(facts: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]
