"""Block passes of a context: previews, rounds of drafting, steps of block diffusion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from pyclover import arguments
from pyclover._native import buffer, check, ffi, lib, taken
from pyclover.engine.model import Model, as_tokens
from pyclover.engine.speculation import check_share
from pyclover.errors import SpeculationUnavailableError, UsageError, shortened

if TYPE_CHECKING:
    from pyclover.engine.context import Context
    from pyclover.engine.sampler import Sampler
    from pyclover.engine.speculation import DraftSelf


@dataclass(frozen=True, kw_only=True)
class BlockParams:
    """How block passes compute. Read from the file's metadata (clover_moe.diffusion.*), where it has them.

    Attributes:
        block_length: rows that the model was trained with, 1 to 32.
        shift_logits: row t is about position t + 1 instead of its own.
        expert_coreset: experts that a block may use, those with the largest sums of router probabilities; 0: all.
        expert_coreset_share: another rule: each row votes with its best experts' probabilities, and the fewest experts
            that hold this share of all votes are kept, at least expert_coreset_min; 0: off.
        scale_activation: of the logit scale of the block softmax.
        history_query: what the clean state is read by: q / sqrt(head size), or the unit vector q.
    """

    block_length: int = 32
    shift_logits: bool = False
    expert_coreset: int = 0
    expert_coreset_share: float = 0.0
    expert_coreset_min: int = 16
    scale_activation: Literal["none", "exp", "softplus"] = "none"
    history_query: Literal["scaled", "unit"] = "scaled"


WORDS = {"scale_activation": ("none", "exp", "softplus"), "history_query": ("scaled", "unit")}


def block_pass_missing(model: Model) -> str:
    """Why a model can neither draft nor generate by blocks; "" when it can."""
    with buffer() as out:
        with model.handle as native:
            check(lib.pc_model_block_missing(native, out))
        return taken(out).decode("utf-8", "replace")


def require_block_pass(model: Model, what: str) -> None:
    """Raises SpeculationUnavailableError when the model cannot do `what`."""
    missing = block_pass_missing(model)
    if missing:
        raise SpeculationUnavailableError(f"{model.path}: {what} is not possible: {missing}")


def get_block_params(context: Context) -> BlockParams:
    out = ffi.new("pc_block_params *")
    with context.handle as native:
        check(lib.pc_context_get_block_params(native, out))
    return BlockParams(
        block_length=int(out.block_length),
        shift_logits=bool(out.shift_logits),
        expert_coreset=int(out.expert_coreset),
        expert_coreset_share=float(out.expert_coreset_share),
        expert_coreset_min=int(out.expert_coreset_min),
        scale_activation=ffi.string(out.scale_activation).decode(),
        history_query=ffi.string(out.history_query).decode(),
    )


def check_block_params(params: BlockParams) -> None:
    """Raises UsageError for values that no model could compute with."""
    if not isinstance(params, BlockParams):
        raise UsageError(f"block_params is {shortened(params)}: it must be BlockParams(...)", option="block_params")
    for name in ("block_length", "expert_coreset", "expert_coreset_min"):
        value = getattr(params, name)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 2**32 - 1:
            raise UsageError(f"{name} is {shortened(value)}: it must be an integer of at least 0", option=name)
    arguments.boolean("shift_logits", params.shift_logits)
    check_share("expert_coreset_share", params.expert_coreset_share)
    for name, known in WORDS.items():
        if getattr(params, name) not in known:
            raise UsageError(
                f"{name} is {shortened(getattr(params, name))}: it must be one of {', '.join(known)}", option=name
            )


def set_block_params(context: Context, params: BlockParams) -> None:
    """Raises UsageError for values that are out of range."""
    check_block_params(params)
    native_params = ffi.new("pc_block_params *")
    for name in ("block_length", "expert_coreset", "expert_coreset_min", "shift_logits", "expert_coreset_share"):
        setattr(native_params, name, getattr(params, name))
    for name in WORDS:
        setattr(native_params, name, getattr(params, name).encode())
    try:
        with context.handle as native:
            check(lib.pc_context_set_block_params(native, native_params))
    except UsageError as error:  # the sentence begins with the name
        error.option = str(error).split(" ", 1)[0]
        raise


def preview(context: Context, rows: Sequence[int], n_prefix: int) -> npt.NDArray[np.float32]:
    """Logits [n_rows, n_vocab] of a block after the n_prefix tokens that the memory holds; nothing is kept."""
    ids = as_tokens(rows)
    out = np.empty((len(ids), context.model.info.n_vocab), dtype=np.float32)
    with context.handle as native:
        status = lib.pc_context_preview(native, ids, len(ids), ffi.from_buffer("float *", out))
        context.check(status, n_prefix + len(ids))
    return out


def look_ahead(context: Context, tokens: Sequence[int], n_rows: int) -> npt.NDArray[np.float32]:
    """Adds tokens to the memory; returns logits [n_rows, n_vocab] of masks behind them, made in the same pass."""
    ids = as_tokens(tokens)
    out = np.empty((n_rows, context.model.info.n_vocab), dtype=np.float32)
    with context.handle as native:
        status = lib.pc_context_look_ahead(native, ids, len(ids), n_rows, ffi.from_buffer("float *", out))
        context.check(status, context.n_ctx + 1)
    return out


def check_rows(context: Context, n_rows: int, what: str) -> None:
    """Raises UsageError when a context cannot compute so many rows of a block at once."""
    for option, flag, n in (("n_ubatch", "-ub", context.n_ubatch), ("n_batch", "-b", context.n_batch)):
        if n < n_rows:
            raise UsageError(
                f"{what} needs {n_rows} rows in one pass, and {option} is {n}: load the model with a larger {option} "
                f"({flag}), and n_ctx (-c) if that is smaller", option=option,
            )  # fmt: skip


class Drafter:
    """Rounds of draft-self on a context, and plain steps where its controller wants them."""

    def __init__(self, context: Context, sampler: Sampler, settings: DraftSelf) -> None:
        self._context = context
        self._sampler = sampler
        self._params = ffi.new("pc_draft_params *")
        self._params.n_max = settings.n_max
        self._params.n_rows = settings.block or 0
        self._params.n_steps = settings.n_steps
        self._params.p_min = settings.p_min
        self._params.accept_ratio = settings.ratio
        self._params.accept_delta = settings.delta
        self._params.ahead = settings.may_ahead
        self._params.ways = lib.PC_WAY_FEW_EXPERTS
        self._params.ways |= lib.PC_WAY_FULL_BLOCK if settings.block is None else 0
        self._params.ways |= lib.PC_WAY_TWO_STEPS if settings.steps is None else 0
        self._tokens = ffi.new("int32_t[]", lib.PC_BLOCK_MAX)
        self._n_tokens = ffi.new("size_t *")
        self._is_end = ffi.new("int32_t *")
        self._controller = context.controller(settings) if settings.adapts else None

    def round(self, n_left: int) -> tuple[list[int], bool]:
        """The next tokens, at most n_left, and whether the last of them ends the text."""
        out = (self._tokens, self._n_tokens, self._is_end)
        with self._context.handle as native, self._sampler.handle as chain:
            if self._controller is None:
                status = lib.pc_context_draft_step(native, chain, self._params, n_left, *out)
            else:
                with self._controller.handle as controller:
                    status = lib.pc_context_auto_step(native, chain, controller, self._params, n_left, *out)
            self._context.check(status, self._context.n_ctx + 1)
        return list(ffi.unpack(self._tokens, self._n_tokens[0])), bool(self._is_end[0])

    def take_back(self, n_tokens: int) -> None:
        """Takes the last tokens of the round back."""
        with self._context.handle as native:
            check(lib.pc_context_take_back(native, n_tokens))


class Block:
    """A block of block diffusion: known rows first, then masked ones that denoise() decides."""

    def __init__(self, context: Context, known: Sequence[int], n_rows: int) -> None:
        self._context = context
        self.n_rows = n_rows
        self.n_known = len(known)
        mask = context.model.info.mask
        self._rows = ffi.new("int32_t[]", [*known, *[mask] * (n_rows - len(known))])
        self._masked = ffi.new("uint8_t[]", [0] * len(known) + [1] * (n_rows - len(known)))

    @property
    def rows(self) -> tuple[int | None, ...]:
        """Tokens of all rows, None where they are not decided."""
        return tuple(None if self._masked[i] else int(self._rows[i]) for i in range(self.n_rows))

    @property
    def finished(self) -> bool:
        return not any(self._masked[i] for i in range(self.n_rows))

    def denoise(self, threshold: float) -> int:
        """One pass; returns how many rows it decided."""
        n = ffi.new("size_t *")
        with self._context.handle as native:
            self._context.check(
                lib.pc_context_denoise(native, self._rows, self._masked, self.n_rows, threshold, n),
                self._context.n_ctx + 1,
            )
        return int(n[0])


def commit(context: Context, tokens: Sequence[int], n_new: int) -> None:
    """Adds the tokens of a finished block to the memory; n_new of them are part of the answer."""
    ids = as_tokens(tokens)
    with context.handle as native:
        context.check(lib.pc_context_commit(native, ids, len(ids), n_new), context.n_ctx + 1)


def graphs_built(context: Context) -> int:
    """Graphs that were built for passes so far; a pass like the last one of its kind needs no new one."""
    n_built, seconds = ffi.new("uint64_t *"), ffi.new("double *")
    with context.handle as native:
        check(lib.pc_context_graphs(native, n_built, seconds))
    return int(n_built[0])


def raw_spec_stats(context: Context) -> Any:
    out = ffi.new("pc_spec_stats *")
    with context.handle as native:
        check(lib.pc_context_get_spec_stats(native, out))
    return out
