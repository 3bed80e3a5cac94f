"""The text that files are judged by, cut as llama-perplexity cuts it.

The tokens of the whole text lie end to end in chunks of n_ctx; what is left at the end is not used. Each chunk is read
on its own, its first token replaced by the start token where the vocabulary wants one. Of each chunk the tokens behind
the first n_ctx / 2 + 1 are scored, so that every scored token has at least half a chunk before it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pyclover import arguments
from pyclover.errors import UsageError

MIN_CTX = 4
DEFAULT_CTX = 512

Tokens = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Chunks:
    """Token ids of all chunks, [n_chunks, n_ctx]."""

    tokens: Tokens

    @property
    def n_chunks(self) -> int:
        return int(self.tokens.shape[0])

    @property
    def n_ctx(self) -> int:
        return int(self.tokens.shape[1])

    @property
    def first(self) -> int:
        """The first position of a chunk whose logits are scored."""
        return self.n_ctx // 2

    @property
    def n_scored(self) -> int:
        """Scored tokens of a chunk."""
        return scored(self.n_ctx)

    def read(self, k: int, bos: int | None) -> list[int]:
        """What the model reads of chunk k: all but its last token, which is only predicted."""
        tokens: list[int] = self.tokens[k, :-1].tolist()
        if bos is not None:
            tokens[0] = bos
        return tokens

    def targets(self, k: int) -> Tokens:
        """The scored tokens of chunk k, [n_scored]."""
        return self.tokens[k, self.first + 1 :]


def scored(n_ctx: int) -> int:
    """Scored tokens of a chunk of n_ctx tokens."""
    return n_ctx - 1 - n_ctx // 2


def cut(tokens: Sequence[int], n_ctx: int, n_chunks: int) -> Chunks:
    """The chunks of a text.

    Args:
        n_chunks: at most so many; -1: all.

    Raises:
        UsageError: the text has fewer than two chunks.
    """
    if len(tokens) < 2 * n_ctx:
        raise UsageError(
            f"the text has {len(tokens)} tokens, and chunks of {n_ctx} tokens need at least {2 * n_ctx}: give a longer "
            "text, or smaller chunks with n_ctx (-c)",
            option="text",
        )
    n_there = len(tokens) // n_ctx
    n = n_there if n_chunks < 0 else min(n_chunks, n_there)
    return Chunks(np.asarray(tokens[: n * n_ctx], dtype=np.int32).reshape(n, n_ctx))


def read_text(text: str | os.PathLike[str]) -> str:
    """The text itself, or that of a file; one line end at the very end of a file is dropped, as llama.cpp does.

    Raises:
        UsageError: the file cannot be read, or is not UTF-8.
    """
    if isinstance(text, str):
        return arguments.text("text", text)
    path = arguments.path("text", text).expanduser()
    try:
        return path.read_bytes().decode().removesuffix("\n")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{path} is not UTF-8 text ({error.reason} at byte {error.start}): give a text file", option="text"
        ) from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}", option="text") from None
