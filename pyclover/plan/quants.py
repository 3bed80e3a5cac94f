"""Files of Clover-35B-A3B known by their size alone: enough to choose one before it is downloaded."""

from __future__ import annotations

from collections.abc import Mapping

from pyclover.plan.fit import best_of
from pyclover.plan.geometry import INPUT, OUTPUT, Geometry, Weight
from pyclover.plan.machine import Machine
from pyclover.plan.result import Plan
from pyclover.plan.search import Wishes

# Sizes of the model (see docs/files.md). Weights, in millions: routed experts of a layer, what else a layer has on
# average, the embedding, which the output equals.
N_LAYER, N_EMBD, N_VOCAB, N_CTX_TRAIN = 40, 2048, 248_320, 131_072
HEAD_DIM, KV_WIDTH = 256, 512
ROUTED, BESIDE, EMBEDDING = 805.3, 35.8, 508.6
_N_WEIGHTS = N_LAYER * (ROUTED + BESIDE) + 2 * EMBEDDING


def clover_35b(name: str, file_bytes: int, *, can_draft: bool = True, type_name: str = "") -> Geometry:
    """Clover-35B-A3B in a file of this size, every weight with the same number of bits.

    Args:
        type_name: of most weights ("Q4_0", …), for the processor's own copies; "" where it does not matter.
    """
    per_million = file_bytes / _N_WEIGHTS
    weights, first = [], 0

    def add(layer: int, part: str, millions: float, *, routed: bool) -> None:
        nonlocal first
        n_bytes = int(millions * per_million)
        weights.append(
            Weight(part, type_name, n_bytes, layer, routed, layer != INPUT, N_EMBD, 0, first, first + n_bytes)
        )
        first += n_bytes

    add(INPUT, "token_embd.weight", EMBEDDING, routed=False)
    add(OUTPUT, "output.weight", EMBEDDING, routed=False)
    for i in range(N_LAYER):
        add(i, f"blk.{i}.", BESIDE, routed=False)
        for part in ("gate", "up", "down"):
            add(i, f"blk.{i}.ffn_{part}_exps.weight", ROUTED / 3, routed=True)
    full = [(i + 1) % 4 == 0 for i in range(N_LAYER)]
    return Geometry(
        name=name, n_layer=N_LAYER, n_embd=N_EMBD, n_vocab=N_VOCAB, n_ctx_train=N_CTX_TRAIN, n_head=16,
        head_dim=HEAD_DIM, k_width=tuple(KV_WIDTH * f for f in full), v_width=tuple(KV_WIDTH * f for f in full),
        recurrent=tuple(not f for f in full), conv_size=3 * 8192, state_size=128 * 4096, conv_kernel=4, channels=8192,
        row_size=8192 + 2 * 32, block_length=32,
        key_size=2048, inner_size=4096, n_expert=256, n_expert_used=8, n_ff=512, can_draft=can_draft,
        weights=tuple(weights),
    )  # fmt: skip


def choose_quant(
    sizes: Mapping[str, int],
    machine: Machine,
    *,
    n_ctx: int | None = None,
    reserve_bytes: int | None = None,
) -> Plan:
    """The best of the model's files for a machine, by name and size in bytes; `Plan.model` is the name.

    Raises:
        DoesNotFitError: not even the smallest fits.
    """
    candidates = [(name, clover_35b(name, n)) for name, n in sizes.items()]
    return best_of(candidates, Wishes(n_ctx=n_ctx), machine, reserve_bytes)
