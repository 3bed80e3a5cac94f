"""Sums of the squared activations that meet each weight, collected while a context computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pyclover._native import check, ffi, lib
from pyclover.engine.context import Context
from pyclover.engine.model import as_tokens


@dataclass(frozen=True)
class CollectedWeight:
    """One weight that activations have met.

    Attributes:
        n_matrices: experts of a routed weight, else 1.
        n_refused: rows of activations with NaN or infinity, which are not in the sums.
    """

    name: str
    n_per_row: int
    n_matrices: int
    n_refused: int


class Collector:
    """Give it to a Context; one thread at a time. It lives as long as any context that has it."""

    def __init__(self) -> None:
        out = ffi.new("pc_imatrix **")
        check(lib.pc_imatrix_create(out))
        self.pointer = ffi.gc(out[0], lib.pc_imatrix_free)

    def weights(self) -> tuple[CollectedWeight, ...]:
        """What was met so far, ordered by name.

        Raises:
            NativeError: a pass could not be counted; what there is, is incomplete.
        """
        n = ffi.new("size_t *")
        check(lib.pc_imatrix_entries(self.pointer, ffi.NULL, 0, n))
        out = ffi.new("pc_imatrix_entry[]", n[0])
        check(lib.pc_imatrix_entries(self.pointer, out, n[0], n))
        return tuple(
            CollectedWeight(ffi.string(e.name).decode(), int(e.n_per_row), int(e.n_matrices), int(e.n_refused))
            for e in out
        )

    def sums(self, weight: CollectedWeight) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.uint64]]:
        """Sums of squares, float64 [n_matrices, n_per_row], and how many rows they sum up, uint64 [n_matrices]."""
        sums = np.empty((weight.n_matrices, weight.n_per_row), dtype=np.float64)
        counts = np.empty(weight.n_matrices, dtype=np.uint64)
        check(
            lib.pc_imatrix_get(
                self.pointer, weight.name.encode(),
                ffi.from_buffer("double *", sums), ffi.from_buffer("uint64_t *", counts),
            )
        )  # fmt: skip
        return sums, counts

    def clear(self) -> None:
        """Forgets all."""
        check(lib.pc_imatrix_clear(self.pointer))


def append(context: Context, tokens: Sequence[int], n_before: int) -> None:
    """Computes every row of every layer for tokens that follow the n_before that the memory holds."""
    ids = as_tokens(tokens)
    with context.handle as native:
        context.check(lib.pc_context_append(native, ids, len(ids)), n_before + len(ids))
