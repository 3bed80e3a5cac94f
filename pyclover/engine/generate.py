"""The generation loop: one native call a step, text put together in Python."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from pyclover.engine import blocks
from pyclover.engine.context import Context
from pyclover.engine.results import Completion, FinishReason, Stats, TextPiece
from pyclover.engine.sampler import Sampler
from pyclover.engine.sampling import ChatSampling, Sampling
from pyclover.engine.speculation import PLAIN, BlockDiffusion, DraftSelf, Speculation
from pyclover.engine.text import AssembledTokens, TokenText
from pyclover.errors import CancelledError, ContextFullError


def stats_of(context: Context, n_generated: int, mode: str = PLAIN) -> Stats:
    """Statistics of the call that ends now."""
    raw = context.raw_stats()
    stats = Stats(
        mode=mode,
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
    if mode == PLAIN:
        return stats
    spec = blocks.raw_spec_stats(context)
    n_positions = sum(1 for n in spec.drafted_at if n > 0)
    return replace(
        stats,
        rounds=spec.rounds,
        drafted=spec.drafted,
        accepted=spec.accepted,
        emitted=spec.emitted,
        drafted_by_position=tuple(spec.drafted_at[0:n_positions]),
        accepted_by_position=tuple(spec.accepted_at[0:n_positions]),
        ahead=spec.ahead,
        ahead_used=spec.ahead_used,
        previews=spec.previews,
        commits=spec.commits,
        fixed=spec.fixed,
        preview_s=spec.preview_s,
        verify_s=spec.verify_s,
        rollback_s=spec.rollback_s,
    )


def stream(
    context: Context,
    prompt: Sequence[int],
    *,
    max_tokens: int | None,
    stop: Sequence[str],
    sampling: Sampling,
    speculation: Speculation = None,
    chat: ChatSampling | None = None,
    text: TokenText | None = None,
    n_stable: int = 0,
) -> Iterator[TextPiece]:
    """Pieces of text as they come; the last one has the finish reason and the statistics.

    `text` takes the tokens instead of what puts them together plainly; `stop` is its own matter then.
    `n_stable`: see Context.prompt().

    Closing the iterator early leaves the context usable.

    Raises:
        ContextFullError: the prompt alone does not fit.
        BusyError, ClosedError, UsageError, GrammarError: see their descriptions.
    """
    with context.claim.held():
        context.arm()
        assembler = text or AssembledTokens(context.model.token_bytes, stop)
        if isinstance(speculation, BlockDiffusion):
            yield from _run_blocks(context, prompt, max_tokens, assembler, speculation, sampling.ignore_eos)
            return
        sampler = Sampler(context.model, sampling, context.n_ctx, chat)
        try:
            yield from _run(context, sampler, prompt, max_tokens, assembler, speculation, n_stable)
        finally:
            sampler.close()


def _run(
    context: Context,
    sampler: Sampler,
    prompt: Sequence[int],
    max_tokens: int | None,
    assembler: TokenText,
    settings: DraftSelf | None,
    n_stable: int,
) -> Iterator[TextPiece]:
    limit = context.n_ctx + 1 - len(prompt)  # the last token is chosen but needs no room
    n_max = limit if max_tokens is None else min(max_tokens, limit)
    drafter = None if settings is None else blocks.Drafter(context, sampler, settings)
    mode = PLAIN if settings is None else settings.mode
    n_generated = n_accepted = 0
    reason: FinishReason = "length"
    kept: tuple[int, ...] = ()
    text = ""
    try:
        context.prompt(prompt, n_stable)
        sampler.accept(prompt)
        while n_generated < n_max and reason == "length":
            if drafter is None:
                token, is_end = context.step(sampler)
                tokens = [token]
            else:
                tokens, is_end = drafter.round(n_max - n_generated)
            n_useful = len(tokens) - is_end  # an end token is not part of the text
            n_taken = 0
            while n_taken < n_useful and assembler.stopped is None:
                text += assembler.push(tokens[n_taken])
                n_taken += 1
            if drafter is not None and n_taken < n_useful:
                drafter.take_back(len(tokens) - n_taken)
            n_generated += n_taken
            kept = tuple(tokens[:n_taken])
            n_accepted = 0 if drafter is None else min(n_taken, len(tokens) - 1)
            if assembler.stopped is not None or is_end:
                reason = "stop"
                break
            yield TextPiece(text, kept, n_accepted=n_accepted)
            text, kept, n_accepted = "", (), 0
    except CancelledError:
        reason = "cancelled"
    stats = stats_of(context, n_generated, mode)
    if settings is not None and settings.adapts and stats.rounds == 0:
        stats = replace(stats, mode=PLAIN)
    yield replace(_last_piece(assembler, text, kept, reason, stats), n_accepted=n_accepted)


def _run_blocks(
    context: Context,
    prompt: Sequence[int],
    max_tokens: int | None,
    assembler: TokenText,
    settings: BlockDiffusion,
    ignore_eos: bool,
) -> Iterator[TextPiece]:
    limit = context.n_ctx - len(prompt)
    n_max = limit if max_tokens is None else min(max_tokens, limit)
    size = settings.block or blocks.get_block_params(context).block_length
    if len(prompt) > context.n_ctx:
        raise ContextFullError(context.full_message(len(prompt)), n_ctx=context.n_ctx, n_needed=len(prompt))
    n_whole = len(prompt) // size * size
    known = list(prompt[n_whole:])
    n_generated = 0
    reason: FinishReason = "length"
    kept: tuple[int, ...] = ()
    text = ""
    try:
        if n_whole > 0:
            context.prompt(prompt[:n_whole])
        else:
            context.clear()
        n_held = n_whole
        while n_generated < n_max and reason == "length":
            block = blocks.Block(context, known, min(size, context.n_ctx - n_held))
            n_steps = 0
            while not block.finished:
                n_steps += 1
                block.denoise(0.0 if n_steps == settings.max_steps else settings.threshold)
                yield TextPiece("", (), block=block.rows)
            tokens = [token for token in block.rows[block.n_known :] if token is not None]
            n_taken = 0
            for token in tokens[: n_max - n_generated]:
                if context.model.token_is_end(token) and not ignore_eos:
                    reason = "stop"
                    break
                n_taken += 1
                text += assembler.push(token)
                if assembler.stopped is not None:
                    reason = "stop"
                    break
            kept = tuple(tokens[:n_taken])
            n_generated += n_taken  # they are given out also when the commit is cancelled
            # the memory ends where the answer does
            if known or kept:
                blocks.commit(context, [*known, *kept], n_taken)
            n_held += len(known) + n_taken
            known = []
            if reason == "length":
                yield TextPiece(text, kept)
                text, kept = "", ()
    except CancelledError:
        reason = "cancelled"
    stats = replace(stats_of(context, n_generated, settings.mode), n_prompt=len(prompt))
    yield _last_piece(assembler, text, kept, reason, stats)


def _last_piece(
    assembler: TokenText, text: str, tokens: tuple[int, ...], reason: FinishReason, stats: Stats
) -> TextPiece:
    """What was held back comes out; a stop string may have come up in it."""
    text += assembler.finish()
    if assembler.stopped is not None and reason != "cancelled":
        reason = "stop"
    return TextPiece(text, tokens, reason, assembler.stopped, stats)


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
