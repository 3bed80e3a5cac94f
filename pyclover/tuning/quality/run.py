"""What the steps of one evaluation share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyclover.errors import CancelledError
from pyclover.tuning.quality.kept import FORMAT, Folder, build_facts, text_sha256
from pyclover.tuning.quality.result import Progress
from pyclover.tuning.quality.subject import counting

ProgressFunction = Callable[[Progress], object]


@dataclass
class Run:
    """An evaluation under way.

    Attributes:
        settings: for Clover. text: what is judged by; None: a file of logits has its tokens.
        n_ctx: tokens of a chunk. n_chunks: at most so many, -1: all.
        resume: use what earlier runs left. prompts: that drafts are measured with. n_predict: tokens of an answer.
        n_models: that are judged, the reference included.
    """

    folder: Folder
    settings: Mapping[str, Any]
    text: str | None
    n_ctx: int
    n_chunks: int
    resume: bool
    prompts: Sequence[str]
    n_predict: int
    n_models: int
    progress: ProgressFunction | None
    _n_ready: int = field(default=0)

    def common(self) -> dict[str, Any]:
        """What all numbers of this run depend on, whatever the file."""
        return {"format": FORMAT, "build": build_facts(), **counting(self.settings)}

    def text_facts(self) -> dict[str, Any]:
        """What the chunks depend on, where there is a text."""
        assert self.text is not None
        return {"text": text_sha256(self.text), "n_ctx": self.n_ctx, "n_chunks": self.n_chunks}

    def next_model(self) -> None:
        """One more is ready."""
        self._n_ready += 1

    def tell(
        self, stage: str, name: str, n_done: int = 0, n_total: int = 0, *, n_bytes: int = 0, path: Path | None = None
    ) -> None:
        """Tells the caller how far it is.

        Raises:
            CancelledError: the caller wants it to stop.
        """
        if self.progress is None:
            return
        share = n_done / n_total if n_total else 0.0
        if self.prompts and stage != "waiting":  # drafts count as a fifth of a model's work
            share = 0.8 + 0.2 * share if stage == "drafts" else 0.8 * share
        part = min(1.0, (self._n_ready + share) / self.n_models)
        if self.progress(Progress(stage, name, n_done, n_total, part, n_bytes, path)) is False:
            raise CancelledError("the evaluation was stopped; run it again and it goes on where it was")
