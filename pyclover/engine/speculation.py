"""How text is generated when not token by token: settings of drafting and of block diffusion."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pyclover import arguments
from pyclover.errors import UsageError, shortened

if TYPE_CHECKING:
    from pyclover.engine.sampling import Sampling

BLOCK_MAX = 32
PLAIN = "plain"


def check_share(option: str, value: Any) -> None:
    """Raises UsageError unless `value` is a number between 0 and 1."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise UsageError(f"{option} is {shortened(value)}: it must be a number between 0 and 1", option=option)


@dataclass(frozen=True, kw_only=True)
class DraftSelf:
    """Draft-self: the model drafts tokens with a block pass and checks them with one causal pass.

    Attributes:
        n_max: tokens of a draft, 1 to 31.
        accept_ratio, accept_delta: relaxed acceptance, 0 to 1 each; it changes the text and needs greedy decoding. With
            p the distribution of the check, H its entropy in nats and p1 its largest probability, a drafted token x is
            accepted when it is the most probable one, or among the ten most probable with
            p(x) >= accept_ratio * p1 or p(x) >= p1 - accept_delta * (1 - exp(-H)). One of them alone: the other is 1
            or 0. None: lossless.
        block: rows of the block pass, n_max + 1 to 32; None: one more than are drafted.
        steps: block passes for a draft, 1 to n_max; each fixes an equal part of the rows, the surest first. None: one.
        p_min: a draft ends before a token that is less probable.
        ahead: make the next draft in the pass that checks the last one, behind whose tokens its rows ride: a draft that
            is accepted whole then needs one pass a round instead of two. The rows cost something in every round. None:
            the controller decides, and without one it is not done.
        adaptive: draft only while that is measured to be faster than plain steps, and as many tokens as pay best, n_max
            at most. None: yes, but not with relaxed acceptance, whose text would depend on what was measured.

    What decides about drafts also tries, where it is left open and may pay: the rows of a full block, two steps, and
    the block's most wanted experts alone.
    """

    n_max: int = 3
    accept_ratio: float | None = None
    accept_delta: float | None = None
    block: int | None = None
    steps: int | None = None
    p_min: float = 0.0
    ahead: bool | None = None
    adaptive: bool | None = None

    def __post_init__(self) -> None:
        arguments.integer("n_max", self.n_max, 1, BLOCK_MAX - 1)
        if self.steps is not None:
            arguments.integer("steps", self.steps, 1, BLOCK_MAX)
        check_share("p_min", self.p_min)
        if self.ahead is not None:
            arguments.boolean("ahead", self.ahead)
        if self.ahead and self.n_steps > 1:
            raise UsageError(
                f"steps is {self.steps}: a draft that is made ahead has one pass alone; leave ahead or steps out",
                option="ahead",
            )
        if self.adaptive is not None:
            arguments.boolean("adaptive", self.adaptive)
        if self.n_steps > self.n_max:
            raise UsageError(
                f"steps is {self.steps}: with n_max={self.n_max} it must be at most that, for each step fixes a token",
                option="steps",
            )
        if self.block is not None:
            arguments.integer("block", self.block, 2, BLOCK_MAX)
            if self.block <= self.n_max:
                raise UsageError(
                    f"block is {self.block}: with n_max={self.n_max} it must be at least {self.n_max + 1}, a draft and "
                    "the token before it",
                    option="block",
                )
        for option in ("accept_ratio", "accept_delta"):
            if getattr(self, option) is not None:
                check_share(option, getattr(self, option))

    @property
    def n_rows(self) -> int:
        """Rows of the block pass."""
        return self.block or self.n_max + 1

    @property
    def n_steps(self) -> int:
        """Block passes for a draft, where nothing else is found to be better."""
        return 1 if self.steps is None else self.steps

    @property
    def relaxed(self) -> bool:
        """Whether acceptance may change the text."""
        return (self.ratio, self.delta) != (1.0, 0.0)

    @property
    def adapts(self) -> bool:
        """Whether a controller decides before each step."""
        return not self.relaxed if self.adaptive is None else self.adaptive

    @property
    def may_ahead(self) -> bool:
        """Whether drafts may be made ahead."""
        return self.adapts if self.ahead is None else self.ahead

    @property
    def start_plain(self) -> bool:
        """Whether plain steps are measured before the first draft."""
        return False

    @property
    def ratio(self) -> float:
        return 1.0 if self.accept_ratio is None else float(self.accept_ratio)

    @property
    def delta(self) -> float:
        return 0.0 if self.accept_delta is None else float(self.accept_delta)

    @property
    def mode(self) -> str:
        """What every speed of this mode is called."""
        return "draft-self (relaxed: changes the text)" if self.relaxed else "draft-self (lossless)"


@dataclass(frozen=True, kw_only=True)
class BlockDiffusion:
    """Block diffusion, the model's native mode (LowConfidence): a block of masks is resolved in several passes.

    Greedy: sampling settings do not apply. Each pass fixes every masked row whose most probable token is more probable
    than `threshold`, and at least one.

    Attributes:
        threshold: 0 to 1.
        block: rows of a block, 1 to 32; None: as the model's file says. Blocks lie on a grid from the first token on.
        max_steps: block passes for a block at most, the last of which fixes what is left; None: as many as it takes.
    """

    threshold: float = 0.95
    block: int | None = None
    max_steps: int | None = None

    def __post_init__(self) -> None:
        check_share("threshold", self.threshold)
        if self.block is not None:
            arguments.integer("block", self.block, 1, BLOCK_MAX)
        if self.max_steps is not None:
            arguments.integer("max_steps", self.max_steps, 1, BLOCK_MAX)

    @property
    def mode(self) -> str:
        """What every speed of this mode is called."""
        return "block diffusion"


@dataclass(frozen=True, kw_only=True)
class AutoDraft(DraftSelf):
    """What speculation="auto" means: plain steps first, and drafts once they are measured to win."""

    n_max: int = 15

    @property
    def start_plain(self) -> bool:
        return True


AUTO = "auto"
Speculation = DraftSelf | BlockDiffusion | None
SpeculationLike = DraftSelf | BlockDiffusion | Literal["auto"] | None


def resolved(speculation: SpeculationLike, *, can_draft: bool, n_rows: int) -> Speculation:
    """What "auto" comes to for a model and a context.

    Args:
        can_draft: the model has a block pass.
        n_rows: that the context computes at once.
    """
    if speculation != AUTO:
        return speculation  # type: ignore[return-value]
    n_max = min(AutoDraft.n_max, n_rows - 1)
    return AutoDraft(n_max=n_max) if can_draft and n_max > 0 else None


def check_speculation(speculation: Speculation, settings: Sampling, given: Mapping[str, Any]) -> None:
    """Raises UsageError for what a mode cannot honour."""
    if isinstance(speculation, BlockDiffusion):
        for name, value in given.items():
            fine = name == "ignore_eos" or value is None or (name == "temperature" and settings.greedy)
            if not fine:
                raise UsageError(f"{name}: block diffusion is greedy; leave sampling settings out", option=name)
    elif isinstance(speculation, DraftSelf):
        in_the_way = settings.not_plain_argmax() if speculation.relaxed else ""
        if in_the_way:
            if in_the_way == "temperature":
                advice = "need greedy decoding: give temperature=0 (--temp 0)"
            else:
                advice = f"go by the model's own probabilities, which {in_the_way} changes: leave one of them out"
            raise UsageError(
                f"accept_ratio and accept_delta (relaxed acceptance) {advice}",
                option="accept_ratio" if speculation.accept_ratio is not None else "accept_delta",
            )
    elif speculation is not None:
        raise UsageError(
            f'speculation is {shortened(speculation)}: it must be None, "auto", DraftSelf(...) or BlockDiffusion(...)',
            option="speculation",
        )
