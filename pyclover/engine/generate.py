"""The generation loop: one native call a step, text put together in Python."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pyclover.engine.context import Context
from pyclover.engine.results import Completion, FinishReason, Stats, TextPiece
from pyclover.engine.sampler import Sampler
from pyclover.engine.sampling import Sampling
from pyclover.engine.text import TextAssembler
from pyclover.errors import CancelledError


def stats_of(context: Context, n_generated: int) -> Stats:
    """Statistics of the call that ends now."""
    raw = context.raw_stats()
    return Stats(
        n_prompt=raw.n_prompt,
        n_prompt_reused=raw.n_reused,
        n_prompt_read=raw.n_read,
        prompt_s=raw.prompt_s,
        n_generated=n_generated,
        n_decoded=raw.n_decoded,
        decode_s=raw.decode_s,
        sample_s=raw.sample_s,
        reread_from=None if raw.first_difference < 0 else raw.first_difference,
    )


def stream(
    context: Context, prompt: Sequence[int], *, max_tokens: int | None, stop: Sequence[str], sampling: Sampling
) -> Iterator[TextPiece]:
    """Pieces of text as they come; the last one has the finish reason and the statistics.

    Closing the iterator early leaves the context usable.

    Raises:
        ContextFullError: the prompt alone does not fit.
        BusyError, ClosedError, UsageError, GrammarError: see their descriptions.
    """
    with context.claim.held():
        context.arm()
        sampler = Sampler(context.model, sampling, context.n_ctx)
        try:
            yield from _run(context, sampler, prompt, max_tokens, stop)
        finally:
            sampler.close()


def _run(
    context: Context, sampler: Sampler, prompt: Sequence[int], max_tokens: int | None, stop: Sequence[str]
) -> Iterator[TextPiece]:
    assembler = TextAssembler(stop)
    limit = context.n_ctx + 1 - len(prompt)  # the last token is chosen but needs no room
    n_max = limit if max_tokens is None else min(max_tokens, limit)
    n_generated = 0
    reason: FinishReason = "length"
    tail: tuple[int, ...] = ()
    text = ""
    try:
        context.prompt(prompt)
        sampler.accept(prompt)
        while n_generated < n_max:
            token, is_end = context.step(sampler)
            if is_end:
                reason = "stop"
                break
            n_generated += 1
            text = assembler.push(context.model.token_bytes(token))
            if assembler.stopped is not None:
                reason, tail = "stop", (token,)
                break
            yield TextPiece(text, (token,))
            text = ""
    except CancelledError:
        reason = "cancelled"
    text += assembler.finish()
    if assembler.stopped is not None and reason != "cancelled":
        reason = "stop"
    yield TextPiece(text, tail, reason, assembler.stopped, stats_of(context, n_generated))


def complete(pieces: Iterator[TextPiece]) -> Completion:
    """All pieces of a stream as one result."""
    text: list[str] = []
    tokens: list[int] = []
    for piece in pieces:
        text.append(piece.text)
        tokens += piece.tokens
        if piece.stats is not None and piece.finish_reason is not None:
            return Completion("".join(text), tuple(tokens), piece.finish_reason, piece.stop, piece.stats)
    raise AssertionError("a stream ends with a piece that has statistics")
