"""Rows of logits: how a reference's rows are kept in 16 bits, and what another model's rows say about the same tokens.

The form of a kept row is that of llama-perplexity's base files, so that the numbers are the same and the files may be
exchanged. A row of n_vocab logits becomes n_vocab rounded up to even, plus 4 words of 16 bits: scale and lowest log
probability as float32, then a number from 0 to 65535 for each token; its log probability is lowest + scale * number.
What is more than 16 below the likeliest token is kept as exactly 16 below it.

Sums over the vocabulary are taken in float64, single terms in float32, as there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from pyclover.engine.threads import usable_processors

Floats = npt.NDArray[np.float32]
Words = npt.NDArray[np.uint16]

HEAD = 4  # words before the numbers
LEVELS = 65535
PARALLEL = 1 << 20  # numbers below which threads cost more than they save
DEPTH = np.float32(16)  # nats below the likeliest token that are still told apart

# What is known of one scored token. Log probabilities are natural, `nll` is minus that of the token that came.
SCORE = np.dtype(
    [
        ("nll", "<f4"),  # of the model
        ("nll_base", "<f4"),  # of the reference; this and the next ones are 0 where there is no reference
        ("kld", "<f8"),  # KL divergence from the reference to the model, over the whole vocabulary
        ("p_diff", "<f4"),  # probability of the token that came, minus the reference's
        ("same_top", "u1"),  # 1 where the likeliest token is the same
    ]
)
Scores = npt.NDArray[Any]  # of SCORE, [n_tokens]


def row_words(n_vocab: int) -> int:
    """Words of 16 bits of a kept row."""
    return 2 * ((n_vocab + 1) // 2) + HEAD


def pack(logits: Floats) -> Words:
    """Rows as they are kept: [n_rows, n_vocab] -> [n_rows, row_words(n_vocab)]."""
    n_rows, n_vocab = logits.shape
    out = np.zeros((n_rows, row_words(n_vocab)), dtype="<u2")

    def work(rows: range) -> None:
        scratch = np.empty(n_vocab, dtype=np.float32)
        with np.errstate(invalid="ignore"):  # logits that are no numbers: the head of the row tells
            for i in rows:
                _pack_row(logits[i], out[i], scratch)

    _in_parallel(n_rows, n_vocab, work)
    return out


def _pack_row(row: Floats, out: Words, scratch: Floats) -> None:
    top = row.max()
    low = max(row.min(), top - DEPTH)
    log_sum = _log_sum(row, top, scratch)
    scale = (top - low) / np.float32(LEVELS)
    head = out[:HEAD].view("<f4")
    head[0], head[1] = scale, low - top - log_sum
    if scale:
        np.subtract(row, low, out=scratch)
        np.multiply(scratch, np.float32(1) / scale, out=scratch)
        np.rint(scratch, out=scratch)
        np.clip(scratch, 0, LEVELS, out=scratch)
        out[HEAD : HEAD + row.size] = scratch


def _log_sum(row: Floats, top: np.float32, scratch: Floats) -> np.float32:
    """Logarithm of the sum of exp(row - top)."""
    np.subtract(row, top, out=scratch)
    np.exp(scratch, out=scratch)
    log_sum: np.float32 = np.float32(math.log(scratch.sum(dtype=np.float64)))
    return log_sum


def score(logits: Floats, targets: npt.NDArray[np.int32], base: Words | None) -> Scores:
    """What the rows say about the tokens that came.

    Args:
        logits: [n_rows, n_vocab]. targets: the token that came after each row, [n_rows].
        base: the reference's rows as kept, [n_rows, row_words(n_vocab)]; None: there is no reference.

    Returns:
        SCORE [n_rows].
    """
    n_rows, n_vocab = logits.shape
    out = np.zeros(n_rows, dtype=SCORE)

    def work(rows: range) -> None:
        scratch = np.empty((3, n_vocab), dtype=np.float32)
        with np.errstate(invalid="ignore"):
            for i in rows:
                kept = None if base is None else base[i]
                out[i] = _score_row(logits[i], int(targets[i]), kept, scratch)

    _in_parallel(n_rows, n_vocab, work)
    return out


def _score_row(row: Floats, token: int, kept: Words | None, scratch: Floats) -> tuple[float, float, float, float, int]:
    best = int(row.argmax())
    top = row[best]
    level = top + _log_sum(row, top, scratch[0])  # log probability = logit - level
    nll = level - row[token]
    if kept is None:
        return float(nll), 0.0, 0.0, 0.0, 0
    scale, low = kept[:HEAD].view("<f4")
    numbers = kept[HEAD : HEAD + row.size]
    log_p, p, term = scratch
    log_p[:] = numbers
    np.multiply(log_p, scale, out=log_p)
    np.add(log_p, low, out=log_p)
    np.exp(log_p, out=p)
    np.subtract(log_p, row, out=term)
    np.add(term, level, out=term)
    np.multiply(term, p, out=term)
    if low <= -DEPTH:  # what is less likely than exp(-16) does not count
        np.multiply(term, log_p > -DEPTH, out=term)
    nll_base = -log_p[token]
    p_diff = np.exp(-nll) - np.exp(-nll_base)
    same = best == int(numbers.argmax())
    return float(nll), float(nll_base), float(term.sum(dtype=np.float64)), float(p_diff), int(same)


def _in_parallel(n_rows: int, n_vocab: int, work: Callable[[range], None]) -> None:
    """Gives all rows to `work`, in parts: numpy lets go of the interpreter while it computes a row."""
    n_parts = min(usable_processors(), n_rows)
    if n_parts < 2 or n_rows * n_vocab < PARALLEL:
        work(range(n_rows))
        return
    size = -(-n_rows // n_parts)
    parts = [range(first, min(first + size, n_rows)) for first in range(0, n_rows, size)]
    with ThreadPoolExecutor(len(parts)) as pool:
        for _ in pool.map(work, parts):
            pass
