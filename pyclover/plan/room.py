"""Whether an estimate fits: what each memory needs against what it has to give."""

from __future__ import annotations

from dataclasses import dataclass

from pyclover.plan.estimate import Estimate
from pyclover.plan.machine import HOST, Machine


@dataclass(frozen=True)
class Pool:
    """One memory: the machine's, or that of a card.

    Attributes:
        name: "memory" for the machine's, else the device.
        free_bytes: None when it is not available; nothing is refused then.
        reserve_bytes: what of it stays free.
    """

    name: str
    needed_bytes: int
    free_bytes: int | None
    reserve_bytes: int

    @property
    def short_bytes(self) -> int:
        """What is missing; 0 when it fits."""
        if self.free_bytes is None:
            return 0
        return max(0, self.needed_bytes - max(0, self.free_bytes - self.reserve_bytes))


MEMORY = "memory"


def pools(estimate: Estimate, machine: Machine, reserve_bytes: int | None = None) -> tuple[Pool, ...]:
    """The machine's memory first. GPUs that have none of their own take theirs from it.

    Args:
        reserve_bytes: of every memory; None: see Machine.reserve_bytes.
    """
    shared = [d for d in machine.used_devices if d.unified]
    in_memory = sum(estimate.of(device=name) for name in (HOST, *(d.name for d in shared)))
    reserve = machine.reserve_bytes() if reserve_bytes is None else reserve_bytes
    out = [Pool(MEMORY, in_memory, machine.host_free_bytes, reserve)]
    for d in machine.used_devices:
        needed = estimate.of(device=d.name)
        if not d.unified:
            reserve = machine.reserve_bytes(d) if reserve_bytes is None else reserve_bytes
            out.append(Pool(d.name, needed, d.room_bytes, reserve))
        elif d.limit_bytes is not None:  # the limit is meant to be used up: it leaves the system its part
            out.append(Pool(d.name, needed, d.limit_bytes, 0))
    return tuple(out)


def short(found: tuple[Pool, ...]) -> int:
    """Bytes missing in all memories together."""
    return sum(pool.short_bytes for pool in found)
