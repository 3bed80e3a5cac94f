"""Judges model files by a text: perplexity, divergence from a reference, accepted drafts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyclover import arguments
from pyclover.errors import PathLike, UsageError
from pyclover.tuning.quality import statistics
from pyclover.tuning.quality.acceptance import PROMPTS
from pyclover.tuning.quality.base import Base, find_or_write, given
from pyclover.tuning.quality.chunks import DEFAULT_CTX, MIN_CTX, read_text, scored
from pyclover.tuning.quality.judge import about, accepted, judge, loaded
from pyclover.tuning.quality.kept import Folder
from pyclover.tuning.quality.result import Evaluation, FileQuality
from pyclover.tuning.quality.rows import Scores
from pyclover.tuning.quality.run import ProgressFunction, Run
from pyclover.tuning.quality.subject import Subject, check_settings, subjects


def evaluate(
    files: PathLike | Sequence[PathLike],
    *,
    reference: PathLike | None = None,
    text: str | os.PathLike[str] | None = None,
    logits: PathLike | None = None,
    n_ctx: int | None = None,
    n_chunks: int = -1,
    draft_prompts: Sequence[str] | None = None,
    n_predict: int = 128,
    resume: bool = True,
    cache_dir: PathLike | None = None,
    progress: ProgressFunction | None = None,
    **settings: Any,
) -> Evaluation:
    """Judges model files by a text, as llama-perplexity does: the numbers are the same.

    The reference is read once; its logits stay on the disk (vocabulary x scored tokens x 2 bytes), in the form of
    llama-perplexity's --kl-divergence-base. An interrupted call goes on where it was when it is made again, and loses
    at most one chunk.

    Args:
        files: one or more models: paths, "tiny", or names on the hub.
        reference: the model that they are compared with, such as BF16 or Q8_0. None: perplexity alone, unless `logits`
            is a file that is there already.
        text: the text itself, or a Path of a file with it.
        logits: a file for the reference's logits. None: in the cache folder. Without a reference it must be there, from
            an earlier call or from llama-perplexity; its tokens are the text then.
        n_ctx: tokens of a chunk, at least 4, of which the second half is scored. None: 512, or as `logits` has.
        n_chunks: chunks at most; -1: all that the text has.
        draft_prompts: questions that files which can draft answer, to see how many drafted tokens they accept; None:
            six built-in ones; empty: none. n_predict: tokens of an answer at most.
        resume: use what earlier calls with the same files, text, settings and build left; False: compute all anew.
        cache_dir: None: PYCLOVER_CACHE, else the user's cache folder.
        progress: called with a `Progress` after each chunk and prompt; returning False stops the call.
        settings: as of Clover: n_batch, n_ubatch, n_threads, n_threads_batch, n_gpu_layers, n_cpu_moe, flash_attn,
            cache_type_k, cache_type_v, fit, mmap. The cache is f16 unless said otherwise.

    Raises:
        UsageError: an argument that cannot be honoured, a text that is too short, files with different vocabularies.
        ModelNotFoundError, InvalidFileError, IncompleteSetError, UnsupportedModelError, DownloadError, LoadError,
        DoesNotFitError, OutOfMemoryError: a model that cannot be used, as of Clover; InvalidFileError also for a
            damaged file of logits.
        FileError: no room for the reference's logits, or a disk that cannot be written.
        CancelledError: progress returned False.
    """
    models = _listed("files", files)
    if not models:
        raise UsageError("there is no file to judge: give at least one", option="files")
    if n_ctx is not None:
        arguments.integer("n_ctx", n_ctx, MIN_CTX)
    if arguments.integer("n_chunks", n_chunks, -1) == 0:
        raise UsageError("n_chunks is 0: give at least 1, or -1 for all", option="n_chunks")
    arguments.integer("n_predict", n_predict, 1)
    resume = arguments.boolean("resume", resume)
    if progress is not None and not callable(progress):
        raise UsageError("progress must be a function or None", option="progress")
    prompts = _prompts(draft_prompts)
    chosen = check_settings(settings)
    words = None if text is None else read_text(text)
    where = None if logits is None else arguments.path("logits", logits).expanduser()
    if words is None and (reference is not None or where is None):
        raise UsageError("there is no text to judge by: give one", option="text")
    base = given(where, n_ctx, n_chunks) if where is not None and reference is None else None
    found = subjects([*([] if reference is None else [reference]), *models])
    run = Run(
        folder=Folder(cache_dir), settings=chosen, text=words,
        n_ctx=base.file.chunks.n_ctx if base is not None else n_ctx or DEFAULT_CTX, n_chunks=n_chunks, resume=resume,
        prompts=prompts, n_predict=n_predict, n_models=len(found), progress=progress,
    )  # fmt: skip
    about_reference = None
    if reference is not None or base is not None:
        _check_sizes(found, base)
    if reference is not None:
        base, about_reference = _reference(run, found.pop(0), where)
    return _judged(run, found, base, about_reference)


def _check_sizes(found: Sequence[Subject], base: Base | None) -> None:
    """Raises UsageError for a vocabulary of another size: before the reference is read for hours. With the same size
    the tokens of the text decide, once the file is loaded."""
    wanted = found[0].report.n_vocab if base is None else base.file.n_vocab
    for subject in found:
        n = subject.report.n_vocab
        if n and wanted and n != wanted:
            raise UsageError(
                f"{subject.path} has another vocabulary than the reference ({n} tokens, not {wanted}): their logits "
                "cannot be compared", option="files",
            )  # fmt: skip


def _reference(run: Run, subject: Subject, logits: Path | None) -> tuple[Base, FileQuality]:
    """The reference's logits, and what else is known of it."""
    with loaded(run, subject) as model:
        base = find_or_write(run, subject, model, logits)
        drafts = accepted(run, subject, model)
    run.next_model()
    return base, about(run, subject, drafts)


def _judged(run: Run, found: Sequence[Subject], base: Base | None, about_reference: FileQuality | None) -> Evaluation:
    """All files, one after the other."""
    judged: list[FileQuality] = []
    scores: Scores | None = None
    for subject in found:
        quality, scores = judge(run, subject, base)
        judged.append(quality)
        run.next_model()
    assert scores is not None
    # the scores of each file tell the reference's perplexity, the same one
    ppl_base = None if base is None else statistics.divergence(scores).ppl_base
    return Evaluation(
        files=tuple(judged),
        reference=None if about_reference is None else replace(about_reference, ppl=ppl_base),
        logits=None if base is None else base.file.path,
        ppl_base=ppl_base,
        n_ctx=run.n_ctx,
        n_chunks=scores.size // scored(run.n_ctx),
        n_tokens=scores.size,
    )


def _listed(option: str, given: PathLike | Sequence[PathLike]) -> list[PathLike]:
    if isinstance(given, (str, os.PathLike)):
        return [given]
    try:
        return list(given)
    except TypeError:
        raise UsageError(f"{option} must be a path, or a list of them", option=option) from None


def _prompts(given: Sequence[str] | None) -> tuple[str, ...]:
    if given is None:
        return PROMPTS
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise UsageError("draft_prompts must be a sequence of str", option="draft_prompts")
    for prompt in given:
        if not arguments.text("draft_prompts", prompt).strip():
            raise UsageError("draft_prompts has an empty prompt: leave it out", option="draft_prompts")
    return tuple(given)
