"""Importance matrices: which columns of each weight matter, counted over plain passes and block passes alike.

llama.cpp's own program counts plain passes alone, and so knows nothing of what drafting asks of the weights.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pyclover import arguments
from pyclover.clover import Clover
from pyclover.engine import blocks
from pyclover.engine.context import Context
from pyclover.engine.imatrix import Collector, append
from pyclover.errors import FileError, NativeError, PathLike, UsageError
from pyclover.tuning import imatrix_state as state
from pyclover.tuning.imatrix_text import CHAT, Chunk, digest, make_chunks
from pyclover.tuning.new_file import PartFile, check_new, check_room

GROUP = 4  # chunks after which the sums are taken from native code, and work may go on later
SAVE_EVERY_S = 60.0
DEFAULT_CHUNK = 512

Progress = Callable[["ImatrixProgress"], None]


@dataclass(frozen=True)
class ImatrixProgress:
    """How far it is: chunks done, and the seconds that the rest will take at the speed so far (None: not known)."""

    n_done: int
    n_chunks: int
    left_s: float | None


@dataclass(frozen=True)
class Imatrix:
    """An importance matrix that was made.

    Attributes:
        path, n_bytes: of its file.
        n_chunks, n_chat: pieces of text, and how many of them are conversations.
        n_causal, n_preview: rows of plain passes and of block passes that were counted.
        n_weights: that it holds numbers for.
        not_finite: weight's name -> rows of activations with NaN or infinity, which were left out.
        never_used: weight's name -> numbers of its experts (from 0) that no row went to.
        notes: what could not be had.
        seconds: that it took; without the time before an interruption.
    """

    path: Path
    n_bytes: int
    n_chunks: int
    n_chat: int
    n_causal: int
    n_preview: int
    n_weights: int
    not_finite: Mapping[str, int]
    never_used: Mapping[str, tuple[int, ...]]
    notes: tuple[str, ...]
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """The result in types that JSON has."""
        return {
            **{name: getattr(self, name) for name in
               ("n_bytes", "n_chunks", "n_chat", "n_causal", "n_preview", "n_weights", "seconds")},
            "path": str(self.path), "not_finite": dict(self.not_finite), "notes": list(self.notes),
            "never_used": {name: list(experts) for name, experts in self.never_used.items()},
        }  # fmt: skip


def imatrix(
    model: PathLike,
    out: PathLike,
    texts: Sequence[PathLike] | PathLike = (),
    *,
    n_chunks: int | None = None,
    n_tokens: int = DEFAULT_CHUNK,
    chat_share: float = 1 / 3,
    preview_share: float = 0.5,
    overwrite: bool = False,
    resume: bool = True,
    progress: Progress | None = None,
    **load: Any,
) -> Imatrix:
    """Count what a model's weights are multiplied with, and write it for `quantize`.

    The text is cut into chunks, each computed from an empty memory. In a model that can draft, block passes are made
    along each chunk: the next block with its first token known and the others masked, all or some of them.

    Args:
        model: as `Clover`'s; the better its types, the better the matrix.
        out: the new file, best named ….gguf.
        texts: UTF-8 files of your own; none: built-in text of many kinds.
        n_chunks: in all; None: 96 of the built-in text, else all that the files give.
        n_tokens: of a chunk.
        chat_share: part of the chunks that is conversations in the model's own chat template, with thinking and tools.
        preview_share: part of the counted rows that come from block passes; 0 for none.
        overwrite: take the place of another file.
        resume: go on where the same work was interrupted.
        progress: called after each chunk, from the calling thread; what it raises ends the work.
        load: keywords of `Clover`.

    Raises:
        UsageError: an argument makes no sense. FileError: a file cannot be read or written.
        NativeError: the model computes no usable numbers; the message names the first weights that saw such.
        and what `Clover` raises.
    """
    path = arguments.path("out", out).expanduser()
    several = _several(texts)
    overwrite, resume = arguments.boolean("overwrite", overwrite), arguments.boolean("resume", resume)
    _check(n_chunks, n_tokens, chat_share, preview_share)
    if progress is not None and not callable(progress):
        raise UsageError("progress must be a function or None", option="progress")
    read = [arguments.path("texts", t).expanduser() for t in several]
    check_new(path, [*read, arguments.path("model", model).expanduser()], state.PART_SUFFIX, overwrite=overwrite)
    started = time.monotonic()
    load = {"n_ctx": n_tokens + _room(preview_share), "n_rs_seq": 0, **load}
    # locked from the start: of two runs for one file the second should not count for hours in vain
    with _part_file(path) as part:
        with Clover(model, **load) as clover:
            files = [header.path for header in clover._model.file.headers]
            check_new(path, files, state.PART_SUFFIX, overwrite=overwrite)
            chunks, notes = make_chunks(clover, several, n_chunks, n_tokens, chat_share)
            missing = blocks.block_pass_missing(clover._model)
            if missing and preview_share > 0:
                notes += (f"block passes are not counted: {missing}",)
                preview_share = 0.0
            check_room(path.parent, clover._model.file.headers[0].file_bytes // 64, "the importance matrix")
            with _Counter(clover, chunks, n_tokens, preview_share, path, resume=resume) as counter:
                sums = counter.run(progress)
        datasets = list(dict.fromkeys(chunk.source for chunk in sorted(chunks, key=lambda c: c.source)))
        try:
            n_bytes = state.write(part, sums, datasets, n_tokens, overwrite=overwrite)
        except OSError as e:
            raise _unwritable(path, e) from e
        state.remove(_state_path(path))
    return Imatrix(
        path=path, n_bytes=n_bytes, n_chunks=sums.n_chunks,
        n_chat=sum(chunk.source == CHAT for chunk in chunks),
        n_causal=sums.n_causal, n_preview=sums.n_preview, n_weights=len(sums.squares),
        not_finite={name: n for name, n in sums.refused.items() if n}, never_used=state.never_used(sums),
        notes=notes, seconds=time.monotonic() - started,
    )  # fmt: skip


def _several(texts: Sequence[PathLike] | PathLike) -> list[PathLike]:
    if isinstance(texts, (str, os.PathLike)):
        return [texts]
    try:
        return list(texts)
    except TypeError:
        raise UsageError("texts must be a path, or a list of them", option="texts") from None


def _part_file(path: Path) -> PartFile:
    try:
        return PartFile(path, state.PART_SUFFIX)
    except OSError as e:
        raise _unwritable(path, e) from e


def _unwritable(path: Path, e: OSError) -> FileError:
    return e if isinstance(e, FileError) else FileError(f"{path}: cannot be written: {e.strerror or e}", path=path)


def _room(preview_share: float) -> int:
    """Tokens of the context beside the chunk's."""
    return 32 if preview_share > 0 else 0


def _check(n_chunks: int | None, n_tokens: int, chat_share: float, preview_share: float) -> None:
    if n_chunks is not None:
        arguments.integer("n_chunks", n_chunks, 1)
    arguments.integer("n_tokens", n_tokens, 64, 1 << 20)
    for option, value, most in (("chat_share", chat_share, 1.0), ("preview_share", preview_share, 0.9)):
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= most:
            raise UsageError(f"{option} is {value!r}: it must be a number from 0 to {most:g}", option=option)


def _state_path(path: Path) -> Path:
    return path.with_name(path.name + state.STATE_SUFFIX)


class _Counter:
    """One run over the chunks."""

    def __init__(
        self, clover: Clover, chunks: Sequence[Chunk], n_tokens: int, preview_share: float, path: Path, *, resume: bool
    ) -> None:
        self._clover, self._chunks = clover, chunks
        self._share = preview_share
        self._state = _state_path(path)
        self._mask = clover._model.file.facts.special_tokens.get("mask", -1)
        self._collector = Collector()
        context = clover._context
        self._context = Context(clover._model, replace(context.options, n_ctx=context.n_ctx), self._collector)
        self._block = min(blocks.get_block_params(context).block_length, 32) if preview_share else 0
        words = f"{clover._model.fingerprint} {digest(chunks)} {n_tokens} {preview_share} {GROUP} {self._block}"
        key = hashlib.sha256(words.encode()).hexdigest()
        self._sums = (state.load(self._state, key) if resume else None) or state.Sums(key)

    def __enter__(self) -> _Counter:
        return self

    def __exit__(self, *_: object) -> None:
        self._context.close()

    def run(self, progress: Progress | None) -> state.Sums:
        """Counts the chunks that are not counted yet; where that is ended early, what is done is kept."""
        first = self._sums.n_chunks
        try:
            return self._run(progress)
        except BaseException:
            if self._sums.n_chunks > first:
                self._save()
            raise

    def _save(self) -> None:
        with contextlib.suppress(OSError):  # a full disk: only the way back is lost
            self._sums.save(self._state)

    def _run(self, progress: Progress | None) -> state.Sums:
        sums, n = self._sums, len(self._chunks)
        started, first = time.monotonic(), sums.n_chunks
        saved = started
        while sums.n_chunks < n:
            upto = min(sums.n_chunks + GROUP, n)
            rows = [0, 0]
            for i in range(sums.n_chunks, upto):
                for kind, n_rows in self._chunk(self._chunks[i].tokens, i):
                    rows[kind] += n_rows
                if progress is not None:
                    passed, done = time.monotonic() - started, i + 1 - first
                    progress(ImatrixProgress(i + 1, n, passed / done * (n - i - 1)))
            sums.take(self._collector)
            sums.n_chunks, sums.n_causal, sums.n_preview = upto, sums.n_causal + rows[0], sums.n_preview + rows[1]
            if time.monotonic() - saved > SAVE_EVERY_S and upto < n:
                self._save()
                saved = time.monotonic()
        return sums

    def _chunk(self, tokens: Sequence[int], number: int) -> Iterator[tuple[int, int]]:
        """Computes a chunk; yields (0 for plain passes and 1 for block passes, rows)."""
        rng = random.Random(number)
        with self._context.claim.held():
            self._context.clear()
            done = 0
            for at in self._places(len(tokens)):
                append(self._context, tokens[done:at], done)
                yield 0, at - done
                done = at
                if done < len(tokens):
                    self._preview(tokens[done : done + self._block], done, rng)
                    yield 1, len(tokens[done : done + self._block])

    def _places(self, n: int) -> list[int]:
        """Where block passes are made, evenly along the chunk so that each has all its rows, and the chunk's end."""
        if not self._share:
            return [n]
        n_blocks = max(1, round(n * self._share / (1 - self._share) / self._block))
        places = {max(1, (i + 1) * (n - self._block) // n_blocks) for i in range(n_blocks)}
        return [*sorted(places), n]

    def _preview(self, block: Sequence[int], n_before: int, rng: random.Random) -> None:
        """As drafting asks (one token known), or as block diffusion does in its later passes (some known)."""
        masked = rng.choice((1.0, 2 / 3, 1 / 3))
        rows = [block[0], *(self._mask if rng.random() < masked else token for token in block[1:])]
        try:
            blocks.preview(self._context, rows, n_before)
        except NativeError as e:
            bad = [f"'{w.name}'" for w in self._collector.weights() if w.n_refused]
            why = f"; weights that met NaN or infinity: {', '.join(bad[:4])}" if bad else ""
            raise NativeError(f"{e}{why}") from e


def describe(result: Imatrix) -> list[str]:
    """Sentences about what is wrong or missing, the most important first."""
    out = [f"{name}: {n} rows of activations were NaN or infinite, and are left out"
           for name, n in list(result.not_finite.items())[:8]]  # fmt: skip
    if len(result.not_finite) > 8:
        out.append(f"{len(result.not_finite) - 8} more weights met NaN or infinity")
    for name, experts in list(result.never_used.items())[:8]:
        listed = ", ".join(map(str, experts[:12])) + (", …" if len(experts) > 12 else "")
        out.append(f"{name}: no row went to {len(experts)} of its experts ({listed}): give more text")
    if len(result.never_used) > 8:
        out.append(f"{len(result.never_used) - 8} more weights have experts that no row went to")
    return [*out, *result.notes]
