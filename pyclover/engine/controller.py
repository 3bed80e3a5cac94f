"""Whether drafting pays: decided before each step, from what steps have cost and drafts have brought here."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Any

from pyclover._native import check, ffi, lib
from pyclover.engine.handle import Handle

N_MAX = 31
WAYS = ("as asked", "full block", "two steps", "few experts")  # as in csrc/pyclover/spec.h


@dataclass(frozen=True, kw_only=True)
class ControllerState:
    """What the controller believes; where nothing was measured, a guess from what was.

    Attributes:
        best: tokens of a draft that it thinks best, 0: plain steps.
        way: how such a draft is best made: "as asked", "full block", "two steps" or "few experts". Times and acceptance
            are those of such drafts.
        rounds_of_way: how many were made in each way.
        n_plain, n_rounds: steps of either kind that it has seen. n_probes: of them made to learn something. n_ahead:
            rounds in whose check the next draft was made.
        plain_s: time of a plain step.
        preview_s, verify_s: times of a round's passes with 1, 2, … tokens drafted. ahead_s: of a check in whose pass
            the next draft is made.
        acceptance: of the 1st, 2nd, … token of a draft, when those before it are accepted.
        tokens_per_s: expected, plainly and with 1, 2, … tokens drafted.
    """

    best: int
    way: str
    rounds_of_way: dict[str, int]
    n_plain: int
    n_rounds: int
    n_probes: int
    n_ahead: int
    plain_s: float
    preview_s: tuple[float, ...]
    verify_s: tuple[float, ...]
    ahead_s: tuple[float, ...]
    acceptance: tuple[float, ...]
    tokens_per_s: tuple[float, ...]

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(self).items()}


class Controller:
    """Decides between drafting and plain steps. Freed with the object; not for several threads at once.

    Args:
        n_max: at most so many tokens a draft, 1 to 31.
        start_plain: measure plain steps before the first draft; False: the other way round.
    """

    def __init__(self, n_max: int, *, start_plain: bool) -> None:
        out = ffi.new("pc_controller **")
        check(lib.pc_controller_create(n_max, start_plain, out))
        self.n_max = n_max
        self.handle = Handle(self, out[0], lib.pc_controller_free, "the controller")
        self._n, self._ahead, self._way = (ffi.new("int32_t *") for _ in range(3))

    @property
    def state(self) -> ControllerState:
        out = ffi.new("pc_controller_state *")
        with self.handle as controller:
            check(lib.pc_controller_get_state(controller, out))
        upto = self.n_max + 1
        return ControllerState(
            best=int(out.best), way=WAYS[out.way],
            rounds_of_way=dict(zip(WAYS, map(int, out.rounds_of_way), strict=True)),
            n_plain=int(out.n_plain), n_rounds=int(out.n_rounds), n_probes=int(out.n_probes),
            n_ahead=int(out.n_ahead), ahead_s=tuple(out.ahead_s[1:upto]),
            plain_s=float(out.plain_s), preview_s=tuple(out.preview_s[1:upto]), verify_s=tuple(out.verify_s[1:upto]),
            acceptance=tuple(out.acceptance[1:upto]), tokens_per_s=tuple(out.tokens_per_s[0:upto]),
        )  # fmt: skip

    @property
    def ahead(self) -> bool:
        """Whether the pass that checks the draft chosen last should make the next one."""
        return bool(self._ahead[0])

    @property
    def way(self) -> str:
        """How the draft chosen last is to be made, as in ControllerState.way."""
        return WAYS[self._way[0]]

    def choose(
        self, n_left: int = 0, *, may_ahead: bool = False, full_rows: int = 0, ways: Collection[str] = ()
    ) -> int:  # fmt: skip
        """Tokens to draft, 0 for a plain step. n_left: tokens still of use, 0: any number; may_ahead: see `ahead`;
        ways: of making a draft that are open; full_rows: of a full block."""
        bits = sum(1 << WAYS.index(way) - 1 for way in ways)
        with self.handle as controller:
            check(
                lib.pc_controller_choose(
                    controller, n_left, may_ahead, bits, full_rows, self._n, self._ahead, self._way
                )
            )
        return int(self._n[0])

    def saw_plain(self, seconds: float) -> None:
        with self.handle as controller:
            check(lib.pc_controller_saw_plain(controller, seconds))

    def saw_round(
        self, n_drafted: int, n_accepted: int, preview_s: float, verify_s: float, *, ahead: bool = False,
        used: bool = False,
    ) -> None:  # fmt: skip
        """preview_s: 0 for a draft made ahead. ahead: the next one was made in this check's pass; used: it serves."""
        with self.handle as controller:
            check(
                lib.pc_controller_saw_round(
                    controller, n_drafted, n_drafted, n_accepted, preview_s, verify_s, ahead, used
                )
            )

    def saw_rollback(self, seconds: float) -> None:
        with self.handle as controller:
            check(lib.pc_controller_saw_rollback(controller, seconds))
