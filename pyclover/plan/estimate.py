"""How much memory a model takes with given settings, by kind and device."""

from __future__ import annotations

from dataclasses import dataclass

from pyclover.files.types import GgmlType
from pyclover.plan.compute import (
    F32,
    MIN_COPIED_ROWS,
    N_COPIED,
    Work,
    compute_bytes,
    inputs_bytes,
    kept_bytes,
    output_bytes,
)
from pyclover.plan.geometry import Geometry, Weight
from pyclover.plan.machine import HOST, MIB, Device, Machine
from pyclover.plan.place import Placement, mapped_span, place, repacks
from pyclover.plan.settings import Settings, cache_type

KINDS = (
    "weights", "KV cache", "recurrent state", "rollback", "compute buffers", "output rows", "saved states",
    "overhead",
)  # fmt: skip
# The kinds that Clover.memory() reports, by its own names; the others lie outside of what llama.cpp counts.
MEASURED = {
    "weights": "weights", "KV cache": "context", "recurrent state": "context", "rollback": "context",
    "compute buffers": "compute",
}  # fmt: skip
# Kept for going back: two ends of prompts, and the point before a draft (csrc/context.cpp).
N_SAVED_STATES = 3
# Python, the libraries and their tables; then the vocabulary's texts and merges (measured: 78 MiB for 248,320 tokens).
HOST_BYTES, VOCAB_BYTES = 48 * MIB, 300
# A context of the driver, its libraries and their scratch memory. Not measured: no GPU was at hand.
GPU_BYTES = 384 * MIB
# Copies of a pass's inputs when several GPUs work on several passes at once (GGML_SCHED_MAX_COPIES).
N_PIPELINE = 4


@dataclass(frozen=True)
class Row:
    """Bytes of one kind on one device. Pinned memory of the host cannot be swapped out or shared."""

    kind: str
    device: str
    bytes: int
    pinned: bool = False


@dataclass(frozen=True)
class Estimate:
    """The rows, and what of the mapped file is in nobody's way.

    Attributes:
        idle_mapped_bytes: parts of the file that are mapped but not read again after loading, because the weights were
            copied elsewhere; Clover.memory() counts them as weights.
    """

    rows: tuple[Row, ...]
    idle_mapped_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        return sum(row.bytes for row in self.rows)

    def of(self, *, kind: str = "", device: str = "") -> int:
        """Bytes of a kind, on a device, or both."""
        return sum(r.bytes for r in self.rows if kind in ("", r.kind) and device in ("", r.device))

    def measurable(self) -> dict[str, int]:
        """What Clover.memory() should show: "weights", "context" and "compute" in bytes, over all devices."""
        out = {"weights": self.idle_mapped_bytes, "context": 0, "compute": 0}
        for row in self.rows:
            if row.kind in MEASURED:
                out[MEASURED[row.kind]] += row.bytes
        return out


class _Sums:
    """Bytes by kind and device in the making."""

    def __init__(self) -> None:
        self._bytes: dict[tuple[str, str], int] = {}
        self._pinned: set[tuple[str, str]] = set()

    def add(self, kind: str, device: str, n_bytes: int, *, pinned: bool = False) -> None:
        key = (kind, device)
        self._bytes[key] = self._bytes.get(key, 0) + n_bytes
        if pinned:
            self._pinned.add(key)

    def rows(self) -> tuple[Row, ...]:
        """In the order of KINDS, without empty ones."""
        found = [Row(kind, device, n, (kind, device) in self._pinned) for (kind, device), n in self._bytes.items() if n]
        return tuple(sorted(found, key=lambda row: KINDS.index(row.kind)))


class Estimator:
    """Estimates for one model on one machine. Sums over tensors are kept: a search asks for the same ones often."""

    def __init__(self, geometry: Geometry, machine: Machine) -> None:
        self.geometry, self.machine = geometry, machine
        self._repacked = {w for w in geometry.weights if repacks(machine, w)}
        self._sums: dict[Placement, tuple[dict[str, int], int, bool]] = {}

    def estimate(self, settings: Settings) -> Estimate:
        """What a load with these settings takes."""
        g, machine = self.geometry, self.machine
        places = place(g, settings, machine)
        weights, idle, host_experts = self._weights(places)
        gpus = [d for d in machine.used_devices if d.name in {*places.layers, places.output, *places.experts}]
        pinned = any(d.pinned_host for d in gpus)
        sums = _Sums()
        for device, n_bytes in weights.items():
            sums.add("weights", device, n_bytes, pinned=pinned and device == HOST and not settings.mmap)
        _context(sums, g, settings, places)
        _compute(sums, g, settings, places, gpus, host_experts=host_experts)
        sums.add("output rows", HOST, output_bytes(g, settings), pinned=pinned)
        sums.add("saved states", HOST, N_SAVED_STATES * _state_bytes(g) * g.n_recurrent)
        sums.add("overhead", HOST, HOST_BYTES + VOCAB_BYTES * g.n_vocab)
        for d in gpus:
            sums.add("overhead", d.name, GPU_BYTES + _unpacked(g, settings))
        return Estimate(sums.rows(), idle if settings.mmap else 0)

    def _weights(self, places: Placement) -> tuple[dict[str, int], int, bool]:
        """Bytes by device, mapped bytes that are idle after loading, and whether routed experts stay with the host."""
        if places in self._sums:
            return self._sums[places]
        by_device: dict[str, int] = {}
        stay: dict[tuple[int, int], Weight] = {}  # a tensor used twice is mapped once
        host_experts = copied = False
        for w in self.geometry.weights:
            device = places.of(w)
            if device == HOST:
                host_experts |= w.routed
                if w not in self._repacked:
                    stay[w.file, w.first] = w
                    continue
                copied = True
            by_device[device] = by_device.get(device, 0) + w.n_bytes
        resident = sum(w.n_bytes for w in stay.values())
        by_device[HOST] = by_device.get(HOST, 0) + resident
        idle = mapped_span(stay.values()) - resident if copied else 0
        self._sums[places] = by_device, max(0, idle), host_experts
        return self._sums[places]


def estimate(geometry: Geometry, settings: Settings, machine: Machine) -> Estimate:
    """What a load with these settings takes."""
    return Estimator(geometry, machine).estimate(settings)


def _state_bytes(g: Geometry) -> int:
    return (g.conv_size + g.state_size) * F32


def _row_bytes(kind: GgmlType, width: int) -> int:
    return -(-width // kind.block_size) * kind.type_size


def _context(sums: _Sums, g: Geometry, s: Settings, places: Placement) -> None:
    k, v = cache_type("cache_type_k", s.cache_type_k), cache_type("cache_type_v", s.cache_type_v)
    state = _state_bytes(g)
    rollback = s.n_max * state if s.rs_snapshots or not g.row_size else (s.n_max + (s.n_max > 0)) * g.row_size * F32
    for device, k_width, v_width, recurrent in zip(places.layers, g.k_width, g.v_width, g.recurrent, strict=True):
        if k_width or v_width:
            sums.add("KV cache", device, s.n_cells * (_row_bytes(k, k_width) + _row_bytes(v, v_width)))
        if recurrent:
            sums.add("recurrent state", device, state)
            sums.add("rollback", device, rollback)


def _compute(
    sums: _Sums, g: Geometry, s: Settings, places: Placement, gpus: list[Device], *, host_experts: bool
) -> None:
    for device in (HOST, *(d.name for d in gpus)):
        mine = [i for i, home in enumerate(places.layers) if home == device]
        work = Work(
            full=any(g.k_width[i] for i in mine),
            linear=any(g.recurrent[i] for i in mine),
            experts=device in places.experts,
            output=device == places.output,
        )
        n_bytes = compute_bytes(g, s, work)
        sums.add("compute buffers", device, kept_bytes(g, s, work))
        if device == HOST:
            inputs = inputs_bytes(g, s) if gpus else 0
            sums.add("compute buffers", HOST, max(n_bytes, inputs), pinned=any(d.pinned_host for d in gpus))
            continue
        if not work.full:  # its share of the inputs, which goes along with the layers that use the mask elsewhere
            n_bytes += 2 * s.n_rows * g.n_embd * F32
        if len(gpus) > 1 and s.n_gpu_layers > g.n_layer and not s.n_cpu_moe:
            n_bytes += (N_PIPELINE - 1) * inputs_bytes(g, s)
        if host_experts and s.n_rows >= MIN_COPIED_ROWS:
            n_bytes += N_COPIED * g.largest_routed_bytes
        sums.add("compute buffers", device, n_bytes)


def _unpacked(g: Geometry, s: Settings) -> int:
    """A quantized cache of one layer in half precision, as the GPU's attention reads it for a prompt."""
    plain = ("f32", "f16", "bf16")
    widths = [
        max(w, default=0) for w, kind in ((g.k_width, s.cache_type_k), (g.v_width, s.cache_type_v)) if kind not in plain
    ]
    return sum(widths) * s.n_cells * 2
