"""Buffers that a pass computes in.

llama.cpp lays a graph's intermediate results into one buffer per device, each over those that are no longer needed, so
its size is that of the widest moment. For Clover the moments that can be the widest are written out below, in numbers
of 4 bytes; the factors are what the allocator of the pinned llama.cpp leaves live or cannot reuse at that moment, found
by changing one size at a time and held against measurements in benchmarks/memory_estimates.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pyclover.plan.geometry import Geometry
from pyclover.plan.settings import Settings

F32 = 4
MAX_LOGITS_BYTES = 64 << 20  # of csrc/context.cpp: rows of logits that one pass may give stay below it
MIN_ROWS = 32  # a block
MAX_CHECK_ROWS = 64
# A batch of 32 tokens or more is computed on the GPU also where its weights lie in main memory: they are copied there
# for the time of one matrix product, and the copies of three such tensors can be live at once. Not measured.
N_COPIED, MIN_COPIED_ROWS = 3, 32


@dataclass(frozen=True)
class Work:
    """What a device has to do in a pass."""

    full: bool = False
    linear: bool = False
    experts: bool = False
    output: bool = False


def n_outputs(geometry: Geometry, settings: Settings) -> int:
    """Rows of logits that one pass may give."""
    n_rows = MAX_LOGITS_BYTES // (F32 * max(geometry.n_vocab, 1))
    return min(settings.n_batch, settings.n_ctx, max(n_rows, MIN_ROWS))


def output_bytes(geometry: Geometry, settings: Settings) -> int:
    """The rows as they are handed to the sampler."""
    return n_outputs(geometry, settings) * geometry.n_vocab * F32


def mask_bytes(settings: Settings) -> int:
    """Which tokens see which: half precision with flash attention."""
    return settings.n_cells * settings.n_rows * (2 if settings.flash_attn else 4)


def inputs_bytes(geometry: Geometry, settings: Settings) -> int:
    """What the processor prepares for a GPU: embeddings of the tokens, and the mask."""
    return 2 * settings.n_rows * geometry.n_embd * F32 + mask_bytes(settings)


def compute_bytes(geometry: Geometry, settings: Settings, work: Work) -> int:
    """The buffer of one device that does this work."""
    g, rows = geometry, settings.n_rows
    moments = [0]
    if work.linear or work.full or work.experts:
        feed_forward = _experts(g) if g.n_expert else 2 * g.n_ff + 3 * g.n_embd
        moments.append(rows * feed_forward)
    if work.linear:
        n_states = settings.n_max if settings.rs_snapshots or not g.row_size else 0
        moments.append(_delta_net(g, rows, n_states))
    attention = 0
    if work.full:
        heads = g.n_head * g.head_dim
        moments.append(rows * (4 * heads + 3 * g.n_embd))
        attention = mask_bytes(settings)
        if not settings.flash_attn:  # the products of all queries and keys, and what is live beside them
            moments.append(rows * (g.n_head * settings.n_cells + 4 * heads + 2 * g.n_embd))
    widest = max(moments) * F32 + attention
    if work.output:
        n = min(rows, n_outputs(g, settings))
        beside = 6 if n < rows else 4
        widest = max(widest, n * (g.n_vocab + beside * g.n_embd) * F32)
    return widest


def kept_bytes(geometry: Geometry, settings: Settings, work: Work) -> int:
    """Buffers beside it, of passes whose graphs are kept (csrc/llama/clover-graphs.h).

    Blocks, where the file has what they need; where tokens can be taken back, the checks of drafts, and the rows that
    are applied to the states again.
    """
    g, s = geometry, settings
    if not g.row_size:
        return 0

    def rows(n: int, work: Work) -> int:
        return compute_bytes(g, replace(s, n_ubatch=min(s.n_rows, n)), work)

    def states(n_rows: int) -> int:  # a state and what goes through the delta rule
        per_row = 2 * g.channels + g.inner_size + g.key_size
        return (g.state_size + g.conv_size + n_rows * per_row) * F32 if work.linear else 0

    total = 0
    if g.can_draft:  # the states are read and not written
        n_rows = min(s.n_rows, g.block_length)
        total += max(rows(n_rows, replace(work, linear=False)), states(n_rows))
    if s.n_max:
        total += rows(min(MAX_CHECK_ROWS, s.n_max + 1 + g.block_length), work)
        total += 0 if s.rs_snapshots else states(s.n_max + 1)
    return total


def _experts(g: Geometry) -> int:
    """Numbers per token in the routed experts: every expert's answer, gate and product, and the rows around them."""
    return g.n_expert_used * (g.n_embd + 2 * g.n_ff) + 5 * g.n_embd + 2 * g.n_expert


def _delta_net(g: Geometry, rows: int, n_states: int) -> int:
    """Numbers in a Gated DeltaNet layer. Each snapshot for taking tokens back leaves the operator as well."""
    carried = 2 * g.conv_size
    per_row = 2 * g.channels + 2 * g.key_size + 2 * g.inner_size + 3 * g.n_embd
    few_rows = (per_row - g.n_embd) * rows + g.state_size
    if n_states == 0:  # the layer's input is free again before the widest moment
        per_row -= 5 * g.n_embd // 2
    return carried + (1 + n_states) * g.state_size + max(per_row * rows, few_rows)
