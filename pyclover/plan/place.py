"""Which weights lie where: llama.cpp's own rules, so that an estimate counts what a load will do."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from pyclover.plan.geometry import INPUT, OUTPUT, Geometry, Weight
from pyclover.plan.machine import HOST, Machine
from pyclover.plan.settings import Settings

# Types that llama.cpp's code for the processor stores in another order, by the feature that it needs (ggml-cpu's
# repack.cpp: any one of the alternatives), and the rows that must come in whole groups.
_AVX2, _AVX512, _DOT, _I8MM = ({"AVX2"}, {"AVX512"}, {"NEON", "DOTPROD"}, {"NEON", "MATMUL_INT8"})
REPACKED: dict[str, tuple[tuple[set[str], int], ...]] = {
    "Q4_0": ((_AVX2, 8), (_I8MM, 4), (_DOT, 4)),
    "Q4_K": ((_AVX2, 8), (_I8MM, 8), (_DOT, 8)),
    "Q2_K": ((_AVX512, 8),),
    "Q5_K": ((_I8MM, 8), (_DOT, 8)),
    "Q6_K": ((_I8MM, 8), (_DOT, 8)),
    "IQ4_NL": ((_AVX2, 8), (_DOT, 4)),
    "MXFP4": ((_AVX2, 8), (_DOT, 4)),
    "Q8_0": ((_I8MM, 4), (_DOT, 4)),
    "Q1_0": ((_I8MM, 4), (_DOT, 4)),
}


@dataclass(frozen=True)
class Placement:
    """Name of the device of each layer, of the output, and of each layer's routed experts; HOST is the processor."""

    layers: tuple[str, ...]
    output: str
    experts: tuple[str, ...]

    def of(self, w: Weight) -> str:
        if w.layer == INPUT:
            return HOST  # llama.cpp never moves the embedding
        if w.layer == OUTPUT:
            return self.output
        return self.experts[w.layer] if w.routed else self.layers[w.layer]


def place(geometry: Geometry, settings: Settings, machine: Machine) -> Placement:
    """The last n_gpu_layers go to the devices in proportion to their free memory, the output counting as a layer."""
    n = geometry.n_layer
    devices = machine.used_devices
    n_gpu = min(settings.n_gpu_layers, n + 1) if devices else 0
    first = n + 1 - n_gpu
    shares = split_points([_share(d.room_bytes, machine) for d in devices])
    homes = []
    for i in range(n + 1):
        if i < first:
            homes.append(HOST)
        else:
            at = bisect_right(shares, (i - first) / n_gpu)
            homes.append(devices[min(at, len(devices) - 1)].name)
    experts = [HOST if i < settings.n_cpu_moe else homes[i] for i in range(n)]
    return Placement(tuple(homes[:n]), homes[n], tuple(experts))


def _share(room: int | None, machine: Machine) -> int:
    return room if room is not None else machine.host_free_bytes or 1


def split_points(free: Sequence[int]) -> list[float]:
    """Upper ends of the devices' shares of the layers, 0 to 1."""
    total = sum(free) or 1
    return [end / total for end in accumulate(free)]


def repacks(machine: Machine, w: Weight) -> bool:
    """Whether the processor's code copies this weight into memory of its own, in another order.

    With a GPU whose host memory is pinned, llama.cpp prefers that, or the mapped file, to the other order.
    """
    if not w.matrix or "REPACK" not in machine.cpu_features or any(d.pinned_host for d in machine.used_devices):
        return False
    return any(needs <= machine.cpu_features and w.n_out % group == 0 for needs, group in REPACKED.get(w.type, ()))


def mapped_span(weights: Iterable[Weight]) -> int:
    """Bytes of file between the first and the last of these weights, file by file: what llama.cpp maps for them."""
    ends: dict[int, tuple[int, int]] = {}
    for w in weights:
        first, end = ends.get(w.file, (w.first, w.end))
        ends[w.file] = min(first, w.first), max(end, w.end)
    return sum(end - first for first, end in ends.values())
