"""One file's scores and drafts: taken from the disk, or computed."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np

from pyclover.tuning.quality import acceptance, statistics
from pyclover.tuning.quality.acceptance import Acceptance
from pyclover.tuning.quality.base import Base
from pyclover.tuning.quality.chunks import Chunks, cut, scored
from pyclover.tuning.quality.journal import Journal
from pyclover.tuning.quality.result import FileQuality
from pyclover.tuning.quality.rows import Scores, score
from pyclover.tuning.quality.run import Run
from pyclover.tuning.quality.subject import Loaded, Subject


def loaded(run: Run, subject: Subject) -> Loaded:
    """The file's model, for the chunks and drafts of this run."""
    return Loaded(subject, run.n_ctx, run.settings, drafts=bool(run.prompts) and not why_no_drafts(run, subject))


def judge(run: Run, subject: Subject, base: Base | None) -> tuple[FileQuality, Scores]:
    """A file's numbers, and the scores of all tokens.

    Raises:
        UsageError: its vocabulary is not the reference's, or the text is too short.
        FileError: the disk cannot be written.
    """
    with loaded(run, subject) as model:
        chunks, n_kept = _scores(run, subject, model, base)
        drafts = accepted(run, subject, model)
    scores = np.concatenate(chunks)
    warnings = subject.warnings(run.n_ctx)
    n_bad = int(np.count_nonzero(~np.isfinite(scores["nll"])))
    if n_bad:
        warnings += (
            f"{subject.name}: {n_bad} of {scores.size} tokens got logits that are no numbers: its weights are damaged",
        )
    quality = about(
        run, subject, drafts,
        ppl=statistics.perplexity(scores),
        divergence=None if base is None else statistics.divergence(scores),
        n_kept=n_kept, warnings=warnings,
    )  # fmt: skip
    return quality, scores


def about(run: Run, subject: Subject, drafts: Acceptance | None, **numbers: Any) -> FileQuality:
    """A file's facts, and what was found out about it."""
    report = subject.report
    return FileQuality(
        path=subject.path, name=subject.name, file_type=report.file_type, file_bytes=report.file_bytes,
        bits_per_weight=report.bits_per_weight, acceptance=drafts,
        no_drafts="" if drafts is not None else why_no_drafts(run, subject) or "not asked for",
        **{"warnings": subject.warnings(run.n_ctx), **numbers},
    )  # fmt: skip


def why_no_drafts(run: Run, subject: Subject) -> str:
    """Why a file's drafts cannot be measured; "" when they can."""
    able = subject.report.capabilities.draft_self
    if not able.available:
        return able.reason
    n_rows = acceptance.N_MAX + 1
    for name in ("n_batch", "n_ubatch"):
        if run.settings.get(name, n_rows) < n_rows:
            return f"{name} is {run.settings[name]}, and drafts need {n_rows} rows in one pass"
    return ""


def _scores(run: Run, subject: Subject, model: Loaded, base: Base | None) -> tuple[list[Scores], int]:
    """The scores of all chunks, and how many chunks were there already."""
    facts = {**run.common(), "file": subject.id}
    if base is None:
        facts |= run.text_facts()
    else:
        facts |= {"base": dict(base.id), "n_chunks": base.n_chunks}
        facts |= {} if run.text is None else run.text_facts()  # beside a file of logits it is checked, once
    path = run.folder.scores(subject.path.stem, facts)
    journal = Journal(path, scored(run.n_ctx))
    with run.folder.lock(path, lambda: run.tell("waiting", subject.name)):
        there = journal.finished() if run.resume else None
        if there is not None and (base is None or len(there) == base.n_chunks):
            run.tell("scores", subject.name, len(there), len(there))
            return there, len(there)
        chunks = _chunks(run, model, base)
        with contextlib.closing(journal):
            done = journal.begin(chunks.n_chunks, resume=run.resume)
            n_kept = len(done)
            while True:
                run.tell("scores", subject.name, len(done), chunks.n_chunks)
                k = len(done)
                if k == chunks.n_chunks:
                    break
                rows = None if base is None else base.file.rows(k)
                done.append(score(model.logits(chunks, k), chunks.targets(k), rows))
                journal.append(done[-1])
            journal.finish()
    return done, n_kept


def _chunks(run: Run, model: Loaded, base: Base | None) -> Chunks:
    if base is None:
        assert run.text is not None
        return cut(model.tokens(run.text), run.n_ctx, run.n_chunks)
    chunks = Chunks(base.file.chunks.tokens[: base.n_chunks])
    model.check_vocabulary(chunks, base.file.n_vocab, run.text)
    return chunks


def accepted(run: Run, subject: Subject, model: Loaded) -> Acceptance | None:
    """How many drafted tokens the file accepts; None where that is not asked for or not possible."""
    if not run.prompts or why_no_drafts(run, subject):
        return None
    facts = {
        **run.common(), "file": subject.id, "prompts": list(run.prompts), "n_predict": run.n_predict,
        "n_max": acceptance.N_MAX,
    }  # fmt: skip
    path = run.folder.drafts(subject.path.stem, facts)
    n = len(run.prompts)
    found = acceptance.read(path) if run.resume else None
    if found is None:
        run.tell("drafts", subject.name, 0, n)
        found = acceptance.measure(
            model.model, run.prompts, run.n_predict, lambda n_done: run.tell("drafts", subject.name, n_done, n)
        )
        acceptance.write(path, found)
    return found
