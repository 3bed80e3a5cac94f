"""What a server takes beyond the plan for one sequence: states of further slots, and its caches in main memory."""

from __future__ import annotations

from dataclasses import dataclass

from pyclover.errors import DoesNotFitError, UsageError
from pyclover.plan.machine import HOST, MIB
from pyclover.plan.result import Plan
from pyclover.plan.room import MEMORY, Pool

# llama.cpp's own bounds; it does not ask whether there is so much
MAX_CACHE_BYTES = 8192 * MIB
MAX_CHECKPOINTS = 32
STATES = ("recurrent state", "rollback")


@dataclass(frozen=True)
class Caches:
    """Main memory for prompts that were read before, and states kept of a slot's prompt to go back to."""

    cache_bytes: int
    n_checkpoints: int

    def arguments(self) -> list[str]:
        """As arguments of `llama serve`."""
        return ["--cache-ram", str(self.cache_bytes // MIB), "--ctx-checkpoints", str(self.n_checkpoints)]


def caches(plan: Plan, n_slots: int) -> Caches | None:
    """Caches that the plan leaves room for; None when it is not known how much is free.

    Raises:
        DoesNotFitError: the states of so many slots do not fit.
    """
    spare: int | None = None
    for pool in plan.pools:
        state = _state_bytes(plan, pool)
        if pool.free_bytes is None:
            continue
        left = pool.free_bytes - pool.reserve_bytes - pool.needed_bytes
        more = (n_slots - 1) * state
        if more > left:
            raise DoesNotFitError(
                f"{n_slots} slots do not fit: each but the first takes {state / MIB:.0f} MiB "
                f"{'of memory' if pool.name == MEMORY else 'on ' + pool.name}, and {max(left, 0) / MIB:.0f} MiB are "
                f"left; take -np {1 + max(left, 0) // state} or fewer",
                needed_bytes=pool.needed_bytes + more, free_bytes=pool.free_bytes, device=pool.name,
            )  # fmt: skip
        if pool.name == MEMORY:
            spare = left - more
    if spare is None:
        return None
    one = max(plan.estimate.of(kind="recurrent state"), 1)
    n_checkpoints = max(1, min(MAX_CHECKPOINTS, spare // 4 // (n_slots * one)))
    return Caches(min(MAX_CACHE_BYTES, max(0, spare // 2)), n_checkpoints)


def _state_bytes(plan: Plan, pool: Pool) -> int:
    """Of one slot, in this memory."""
    shared = [HOST, *(d.name for d in plan.machine.used_devices if d.unified)]
    devices = shared if pool.name == MEMORY else [pool.name]
    return sum(plan.estimate.of(kind=kind, device=device) for kind in STATES for device in devices)


def check_rows(n_rows: int, n_slots: int, n_ubatch: int) -> None:
    """Raises UsageError when the drafts of all slots do not fit into one pass."""
    if n_rows * n_slots > n_ubatch:
        raise UsageError(
            f"drafts of {n_slots} slots have {n_rows * n_slots} rows, and a pass has {n_ubatch}: take a larger -ub, "
            "fewer slots (-np) or a smaller --spec-draft-n-max",
            option="n_ubatch",
        )
