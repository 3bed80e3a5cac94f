"""What a machine has: its memory and its GPUs, as found or as made up for a test."""

from __future__ import annotations

from dataclasses import dataclass, replace

MIB = 1 << 20
GIB = 1 << 30
HOST = "CPU"
# Of a machine on which little else runs, what a model can have, in percent: of the main memory, of a card's.
FREE_AT_REST, CARD_FREE_AT_REST = 90, 93


@dataclass(frozen=True, kw_only=True)
class Device:
    """A GPU that llama.cpp can compute on. None stands for "not available", which is not 0.

    Attributes:
        name: llama.cpp's ("CUDA0", "Metal", "Vulkan0").
        kind: "gpu", or "igpu" for one that is part of the processor.
        unified: it has no memory of its own but shares the machine's.
        limit_bytes: the most of a shared memory that it may use; None: all.
        pinned_host: what the processor hands it lies in memory that cannot be swapped out.
    """

    name: str
    description: str = ""
    kind: str = "gpu"
    total_bytes: int | None = None
    free_bytes: int | None = None
    unified: bool = False
    limit_bytes: int | None = None
    pinned_host: bool = True

    @property
    def room_bytes(self) -> int | None:
        """Memory of its own to plan with: what is free, or all when only that is known; None when neither is."""
        return self.free_bytes if self.free_bytes is not None else self.total_bytes


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Memory, devices and processor features.

    Attributes:
        host_free_bytes: what a new program could have, page cache that can be dropped included.
        host_limit: what makes it less than the system's own figure ("control group"), "" for nothing.
        cpu_features: names as in llama.cpp's system line ("AVX2", "REPACK").
        warnings: what could not be found out, one sentence each.
    """

    host_total_bytes: int | None = None
    host_free_bytes: int | None = None
    host_limit: str = ""
    devices: tuple[Device, ...] = ()
    cpu_features: frozenset[str] = frozenset()
    warnings: tuple[str, ...] = ()

    @property
    def used_devices(self) -> tuple[Device, ...]:
        """Devices that llama.cpp takes by itself: the cards, and integrated GPUs only where there is no card."""
        cards = tuple(d for d in self.devices if d.kind == "gpu")
        return cards or self.devices

    def reserve_bytes(self, device: Device | None = None) -> int:
        """What stays free of a device's memory, or of the machine's: others need some, and estimates are estimates."""
        own = device is not None and not device.unified
        total = device.total_bytes if device is not None and own else self.host_total_bytes
        wanted = max(512 * MIB, (total or 0) // (10 if own else 20))
        return min(wanted, total // 8) if total else wanted  # a small memory must not be all reserve

    def at_rest(self) -> Machine:
        """The same machine when little else runs; never less than is free now, and what is not known stays so."""

        def most(free: int | None, total: int | None, percent: int) -> int | None:
            return free if free is None or total is None else max(free, total * percent // 100)

        devices = tuple(
            replace(d, free_bytes=most(d.free_bytes, d.total_bytes, CARD_FREE_AT_REST)) for d in self.devices
        )
        return replace(
            self, host_free_bytes=most(self.host_free_bytes, self.host_total_bytes, FREE_AT_REST), devices=devices
        )
