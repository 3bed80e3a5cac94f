"""Machines that the planner is tried on, and the sizes of Clover-35B-A3B's published files."""

from __future__ import annotations

from pyclover.plan.machine import GIB, MIB, Device, Machine

AVX2 = frozenset({"AVX2", "REPACK"})
NEON = frozenset({"NEON", "DOTPROD", "REPACK"})


def card(name: str, total: int, free: int, index: int = 0) -> Device:
    """A card with memory of its own, sizes in MiB."""
    return Device(name=f"CUDA{index}", description=name, total_bytes=total * MIB, free_bytes=free * MIB)


def host(total: float, free: float, *devices: Device, features: frozenset[str] = AVX2, limit: str = "") -> Machine:
    """Main memory in GiB."""
    return Machine(
        host_total_bytes=int(total * GIB), host_free_bytes=int(free * GIB), devices=devices, cpu_features=features,
        host_limit=limit,
    )  # fmt: skip


# the driver of this part answers "not available" for its memory; what counts is the machine's
GB10 = Device(name="CUDA0", description="NVIDIA GB10", kind="igpu", unified=True)
# Metal keeps two thirds of 16 GiB resident
METAL = Device(
    name="Metal", description="Apple M2", total_bytes=10_922 * MIB, free_bytes=10_922 * MIB, unified=True,
    limit_bytes=10_922 * MIB, pinned_host=False,
)  # fmt: skip

MACHINES: dict[str, Machine] = {
    "GB10, 128 GB unified": host(119.7, 114.0, GB10, features=NEON),
    "RTX 4070 Laptop 8 GB, 32 GB": host(31.2, 27.5, card("RTX 4070 Laptop", 8188, 7700)),
    "RTX 4090 24 GB, 64 GB": host(62.7, 57.0, card("RTX 4090", 24_564, 23_600)),
    "RTX 4080 16 GB and RTX 3060 12 GB, 64 GB": host(
        62.7, 57.0, card("RTX 4080", 16_376, 15_700), card("RTX 3060", 12_288, 11_800, 1)
    ),
    "Mac, 16 GB unified": host(16.0, 12.5, METAL, features=NEON),
    "container with 8 GB": host(8.0, 7.8, limit="control group"),
    "no GPU, 32 GB": host(31.2, 28.0),
}

# bytes: the official files, then the community's two small ones
FILES: dict[str, int] = {
    "Q8_0": int(35.26 * GIB),
    "Q4_K_M": int(21.42 * GIB),
    "Q4_0": int(18.24 * GIB),
    "APEX-I-MiniPlus": 14_750_000_000,
    "APEX-I-NanoPlus": 12_560_000_000,
}
