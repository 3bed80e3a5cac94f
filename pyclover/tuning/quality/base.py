"""The reference's logits: found on the disk, or computed and written there."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pyclover.errors import InvalidFileError, UsageError
from pyclover.tuning.quality.chunks import cut
from pyclover.tuning.quality.logits_file import LogitsFile, LogitsWriter, facts_path, read_facts
from pyclover.tuning.quality.rows import HEAD, pack
from pyclover.tuning.quality.run import Run
from pyclover.tuning.quality.subject import Loaded, Subject


@dataclass(frozen=True)
class Base:
    """What files are compared with.

    Attributes:
        n_chunks: of the file's chunks, so many are used.
        id: what the logits are made of; tells one reference from another.
    """

    file: LogitsFile
    n_chunks: int
    id: Mapping[str, Any]


def given(path: Path, n_ctx: int | None, n_chunks: int) -> Base:
    """A file of logits without its model, whoever wrote it.

    Raises:
        UsageError: there is no such file, or its chunks have another length.
        InvalidFileError: it is damaged.
    """
    if not path.exists():
        raise UsageError(
            f"{path} is not there: give the reference whose logits shall be written to it (-r), or another file",
            option="logits",
        )
    file = LogitsFile(path)
    if n_ctx is not None and n_ctx != file.chunks.n_ctx:
        raise UsageError(
            f"{path} has chunks of {file.chunks.n_ctx} tokens, not {n_ctx}: leave n_ctx (-c) out", option="n_ctx"
        )
    n = file.chunks.n_chunks if n_chunks < 0 else min(n_chunks, file.chunks.n_chunks)
    state = os.stat(path)
    return Base(file, n, {"size": state.st_size, "mtime_ns": state.st_mtime_ns, "facts": read_facts(path)})


def facts_of(run: Run, subject: Subject) -> dict[str, Any]:
    """What a reference's logits are made of."""
    return {**run.common(), **run.text_facts(), "reference": subject.id, "name": subject.path.name}


def find_or_write(run: Run, subject: Subject, loaded: Loaded, path: Path | None) -> Base:
    """The reference's logits.

    Args:
        path: where they shall be; None: in the cache.

    Raises:
        UsageError: the text is too short, or `path` is something else.
        FileError: the disk has no room, or cannot be written or read.
    """
    facts = facts_of(run, subject)
    where = run.folder.logits(subject.path.stem, facts) if path is None else path
    with run.folder.lock(where, lambda: run.tell("waiting", subject.name)):
        file = _finished(where, facts, anew=path is None and not run.resume, given=path is not None)
        if file is None:
            _write(run, subject, loaded, where, facts)
            file = LogitsFile(where)
    return Base(file, file.chunks.n_chunks, facts)


def _finished(path: Path, facts: Mapping[str, Any], *, anew: bool, given: bool) -> LogitsFile | None:
    """The file, when it is there and is what is wanted."""
    if path.is_dir():
        raise UsageError(f"{path} is a folder: give a file for the reference's logits", option="logits")
    if not path.exists() or anew:
        return None
    found = read_facts(path)
    if found != dict(facts):
        differ = [k for k in facts if found is not None and found.get(k) != facts[k]]
        why = (
            f"other than wanted: {', '.join(differ)}" if found is not None else f"no {facts_path(path).name} beside it"
        )
        raise UsageError(
            f"{path} is there, and is not known to be made of this reference and text ({why}): leave the reference out "
            "to take it as it is, or give another name", option="logits",
        )  # fmt: skip
    try:
        return LogitsFile(path)
    except InvalidFileError:
        if given:
            raise
        return None  # in the cache it is made anew


def _write(run: Run, subject: Subject, loaded: Loaded, path: Path, facts: Mapping[str, Any]) -> None:
    assert run.text is not None
    if not path.parent.is_dir():
        raise UsageError(f"{path.parent} is no folder: make it, or give another place", option="logits")
    chunks = cut(loaded.tokens(run.text), run.n_ctx, run.n_chunks)
    with contextlib.closing(LogitsWriter(path, chunks, loaded.model.info.n_vocab, facts, resume=run.resume)) as writer:
        while True:
            run.tell("logits", subject.name, writer.n_done, chunks.n_chunks, n_bytes=writer.n_bytes, path=path)
            if writer.n_done == chunks.n_chunks:
                break
            rows = pack(loaded.logits(chunks, writer.n_done))
            if not np.isfinite(rows[:, :HEAD].view("<f4")).all():
                raise InvalidFileError(
                    f"{subject.path} gives logits that are no numbers in chunk {writer.n_done + 1}, so it cannot be a "
                    "reference: its weights are damaged, load it with check_tensors to see which",
                    path=subject.path,
                )
            writer.append(rows)
        writer.finish()
