"""One sequence of tokens on a model, and who may use it."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from pyclover import arguments
from pyclover._native import buffer, check, ffi, lib, taken
from pyclover.engine.controller import Controller
from pyclover.engine.handle import Handle
from pyclover.engine.model import Model, as_tokens
from pyclover.engine.results import MemoryUse
from pyclover.engine.threads import default_threads
from pyclover.errors import (
    BusyError,
    CancelledError,
    ClosedError,
    ContextFullError,
    OutOfMemoryError,
    UsageError,
    shortened,
)

if TYPE_CHECKING:
    from pyclover.engine.imatrix import Collector
    from pyclover.engine.sampler import Sampler
    from pyclover.engine.speculation import DraftSelf

FlashAttention = bool | Literal["auto"]
DEFAULT_N_CTX = 8192
MAX_INT = 2**31 - 1
MAX_THREADS = 512  # of ggml
PLAIN_TYPES = ("f32", "f16", "bf16")  # of a cache; the others are blocks of quantized numbers
CHECKPOINTS = 2
CLAIM_POLL_S = 0.05  # how often one who waits looks whether the context was closed


@dataclass(frozen=True, kw_only=True)
class ContextOptions:
    """Settings of a context, with llama.cpp's names.

    Attributes:
        n_ctx: tokens that prompt and answer share; None: the model's length, at most 8,192; 0: the model's length.
        n_batch, n_ubatch: prompt tokens handed over, and computed, at once.
        n_threads, n_threads_batch: for single tokens and for prompts; None: the physical cores, 1 for a small model.
        flash_attn: True, False or "auto".
        cache_type_k, cache_type_v: "f32", "f16", "bf16", "q8_0", …
        offload_kqv: keep the caches on the GPU with their layers.
        n_rs_seq: tokens at the end of a pass that can be taken back from a recurrent memory, 0 to 31.
        rs_snapshots: take them back by a snapshot of the state for each; False: Clover keeps what the tokens brought
            to the state and applies those that stay again, which takes a sixtieth of the memory.
    """

    n_ctx: int | None = None
    n_batch: int = 2048
    n_ubatch: int = 512
    n_threads: int | None = None
    n_threads_batch: int | None = None
    flash_attn: FlashAttention = "auto"
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    offload_kqv: bool = True
    n_rs_seq: int = 0
    rs_snapshots: bool = False

    def __post_init__(self) -> None:
        ranges = {
            "n_ctx": (0, MAX_INT), "n_batch": (1, MAX_INT), "n_ubatch": (1, MAX_INT), "n_rs_seq": (0, 31),
            "n_threads": (1, MAX_THREADS), "n_threads_batch": (1, MAX_THREADS),
        }  # fmt: skip
        for name, (low, high) in ranges.items():
            if getattr(self, name) is not None or name not in ("n_ctx", "n_threads", "n_threads_batch"):
                arguments.integer(name, getattr(self, name), low, high)
        arguments.boolean("offload_kqv", self.offload_kqv)
        arguments.boolean("rs_snapshots", self.rs_snapshots)
        if not isinstance(self.flash_attn, bool) and not (
            isinstance(self.flash_attn, str) and self.flash_attn == "auto"
        ):
            raise UsageError(
                f'flash_attn is {shortened(self.flash_attn)}: it must be True, False or "auto"', option="flash_attn"
            )
        for name in ("cache_type_k", "cache_type_v"):
            value = getattr(self, name)
            if not isinstance(value, str) or value not in cache_types():
                raise UsageError(
                    f"{name} is {shortened(value)}: it must be one of {', '.join(cache_types())}", option=name
                )
        if self.flash_attn is False and self.cache_type_v not in PLAIN_TYPES:
            raise UsageError(
                f"cache_type_v is {self.cache_type_v}, which needs flash attention: leave flash_attn out, or take one "
                f"of {', '.join(PLAIN_TYPES)}",
                option="cache_type_v",
            )


def cache_types() -> tuple[str, ...]:
    """Names of the types that a KV cache may have."""
    with buffer() as out:
        check(lib.pc_cache_types(out))
        return tuple(taken(out).decode().split())


class Claim:
    """Lets one thread at a time use a context. Others wait; the thread that has it already gets BusyError."""

    def __init__(self, context: Callable[[], Context | None]) -> None:
        self._lock = threading.Lock()
        self._context = context  # a weak reference: a circle would keep the context alive
        self._owner: threading.Thread | None = None  # not its number, which a later thread may get

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        if self._owner is threading.current_thread():
            raise BusyError(
                "this context is in use by an unfinished stream of the same thread: read the stream to its end or "
                "close() it first"
            )
        while not self._lock.acquire(timeout=CLAIM_POLL_S):
            context = self._context()
            if context is None or context.closed:
                raise ClosedError("the context is closed: load the model again")
        try:
            self._owner = threading.current_thread()
            yield
        finally:
            self._owner = None
            self._lock.release()


class Context:
    """The memory of one sequence. Calls are made by one thread at a time; see `claim`.

    Args:
        collector: gets the activations of every pass; passes take longer with one.

    Raises:
        UsageError: settings that cannot be honoured.
        OutOfMemoryError: no room for caches and buffers.
    """

    def __init__(self, model: Model, options: ContextOptions, collector: Collector | None = None) -> None:
        self.model = model
        self.claim = Claim(weakref.ref(self))
        n_ctx = options.n_ctx if options.n_ctx is not None else min(model.info.n_ctx_train, DEFAULT_N_CTX)
        threads = options.n_threads or default_threads(model.info.size_bytes)
        type_k, type_v = (
            ffi.new("char[]", options.cache_type_k.encode()),
            ffi.new("char[]", options.cache_type_v.encode()),
        )
        params = ffi.new("pc_context_params *")
        params.n_ctx = n_ctx
        params.n_batch = options.n_batch
        params.n_ubatch = options.n_ubatch
        params.n_threads = threads
        params.n_threads_batch = options.n_threads_batch or threads
        params.flash_attn = -1 if options.flash_attn == "auto" else int(options.flash_attn)
        params.cache_type_k = type_k
        params.cache_type_v = type_v
        params.offload_kqv = options.offload_kqv
        params.n_rs_seq = options.n_rs_seq
        params.rs_snapshots = options.rs_snapshots
        params.n_checkpoints = CHECKPOINTS
        params.poll = lib.pyclover_poll
        params.user = ffi.NULL
        if collector is not None:  # it must outlive the native context
            params.imatrix = collector.pointer
            self.collector = collector
        out = ffi.new("pc_context **")
        with model.handle as native_model:
            try:
                check(lib.pc_context_create(native_model, params, out), path=model.path)
            except OutOfMemoryError as error:
                n_wanted = n_ctx or model.info.n_ctx_train
                raise OutOfMemoryError(
                    f"{error}; a context of n_ctx={n_wanted} tokens was asked for: make it smaller"
                ) from None
            except UsageError as error:  # a cache type that does not fit the sizes of the model's heads
                quantized = [n for n in ("cache_type_v", "cache_type_k") if getattr(options, n) not in PLAIN_TYPES]
                rows = "n_rs_seq" if "n_rs_seq" in str(error) else ""
                error.option = error.option or rows or (quantized[0] if quantized else "")
                raise
        self.handle = Handle(self, out[0], lib.pc_context_free, "the context", stop=lib.pc_context_cancel)
        self.options = options
        info = ffi.new("pc_context_info *")
        check(lib.pc_context_get_info(out[0], info))
        self.n_ctx = int(info.n_ctx)
        self.n_batch, self.n_ubatch = int(info.n_batch), int(info.n_ubatch)
        self.n_threads, self.n_threads_batch = int(info.n_threads), int(info.n_threads_batch)
        self._controllers: dict[DraftSelf, Controller] = {}
        model.adopt(self)

    def controller(self, settings: DraftSelf) -> Controller:
        """What decides about drafts with these settings; what it has learned stays for the next generation."""
        found = self._controllers.get(settings)
        if found is None:
            found = Controller(settings.n_max, start_plain=settings.start_plain)
            self._controllers[settings] = found
        return found

    @property
    def closed(self) -> bool:
        return self.handle.closed

    def close(self) -> None:
        """Stops the call that runs in another thread, waits for it, and frees the memory."""
        self.handle.close()

    def cancel(self) -> None:
        """Stops the running call within one batch. Any thread, also from a signal handler."""
        check(self.handle.call_aside(lib.pc_context_cancel))

    def arm(self) -> None:
        """Forgets a cancel() that no running call has seen."""
        with self.handle as context:
            check(lib.pc_context_arm(context))

    def check(self, status: int, n_needed: int = 0) -> None:
        """Turns the status of a native call into an exception that speaks of this context."""
        try:
            check(status, path=self.model.path)
        except ContextFullError:
            raise ContextFullError(self.full_message(n_needed), n_ctx=self.n_ctx, n_needed=n_needed) from None
        except CancelledError:
            raise CancelledError("the call was stopped by cancel()") from None

    def full_message(self, n_needed: int) -> str:
        return (
            f"{n_needed} tokens do not fit into a context of {self.n_ctx}: shorten the prompt or load the model "
            f"with a larger n_ctx (-c); the model was trained for {self.model.info.n_ctx_train}"
        )

    # ---- calls: the caller holds the claim ------------------------------------------------------------------------

    def prompt(self, tokens: Sequence[int], n_stable: int = 0) -> None:
        """Makes the memory hold exactly these tokens; what it holds already is not computed again.

        Args:
            n_stable: so many of them, from the first, are likely to begin the next prompt too; 0: not known.
        """
        ids = as_tokens(tokens)
        with self.handle as context:
            self.check(lib.pc_context_prompt(context, ids, len(ids), n_stable), len(ids))

    def step(self, sampler: Sampler) -> tuple[int, bool]:
        """The next token, and whether it ends the text."""
        with self.handle as context, sampler.handle as chain:
            self.check(lib.pc_context_step(context, chain, sampler.token, sampler.is_end), self.n_ctx + 1)
        return sampler.token[0], bool(sampler.is_end[0])

    def logits(self, tokens: Sequence[int]) -> npt.NDArray[np.float32]:
        """Logits after each token, float32 [n_tokens, n_vocab]. The memory holds these tokens afterwards."""
        ids = as_tokens(tokens)
        out = np.empty((len(ids), self.model.info.n_vocab), dtype=np.float32)
        with self.handle as context:
            self.check(lib.pc_context_logits(context, ids, len(ids), ffi.from_buffer("float *", out)), len(ids))
        return out

    def last_logits(self) -> npt.NDArray[np.float32]:
        """Logits after the last computed token, float32 [n_vocab]."""
        out = np.empty(self.model.info.n_vocab, dtype=np.float32)
        with self.handle as context:
            self.check(lib.pc_context_last_logits(context, ffi.from_buffer("float *", out)))
        return out

    def score(self, tokens: Sequence[int]) -> tuple[float, ...]:
        """Natural logarithm of the probability of each token but the first, given those before it."""
        ids = as_tokens(tokens)
        out = ffi.new("float[]", max(len(ids) - 1, 1))
        with self.handle as context:
            self.check(lib.pc_context_score(context, ids, len(ids), out), len(ids))
        return tuple(out[0 : len(ids) - 1])

    def clear(self) -> None:
        with self.handle as context:
            check(lib.pc_context_clear(context))

    def tokens(self) -> list[int]:
        """What the memory holds."""
        n = ffi.new("size_t *")
        out = ffi.new("int32_t[]", self.n_ctx)
        with self.handle as context:
            check(lib.pc_context_tokens(context, out, self.n_ctx, n))
        return list(ffi.unpack(out, n[0])) if n[0] else []

    def raw_stats(self) -> Any:
        out = ffi.new("pc_stats *")
        with self.handle as context:
            check(lib.pc_context_get_stats(context, out))
        return out

    def memory(self) -> tuple[MemoryUse, ...]:
        """Memory as allocated, by device and kind."""
        n = ffi.new("size_t *")
        with self.handle as context:
            check(lib.pc_context_memory(context, ffi.NULL, 0, n))
        out = ffi.new("pc_memory_use[]", n[0])
        with self.handle as context:
            check(lib.pc_context_memory(context, out, n[0], n))
        uses = []
        for entry in out:
            device = ffi.string(entry.device).decode("utf-8", "replace")
            sizes: tuple[tuple[Literal["weights", "context", "compute"], int], ...] = (
                ("weights", entry.weights_bytes), ("context", entry.context_bytes), ("compute", entry.compute_bytes),
            )  # fmt: skip
            uses += [MemoryUse(device, kind, int(size)) for kind, size in sizes if size > 0]
        return tuple(uses)

    def get_state(self) -> bytes:
        with buffer() as out:
            with self.handle as context:
                self.check(lib.pc_context_get_state(context, out))
            return taken(out)

    def set_state(self, data: bytes, n_tokens: int) -> None:
        with self.handle as context:
            self.check(lib.pc_context_set_state(context, data, len(data)), n_tokens)
