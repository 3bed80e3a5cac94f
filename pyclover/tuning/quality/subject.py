"""A model file to be judged: what is known of it without loading, and the loaded model once it is needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from pyclover.clover import Clover
from pyclover.errors import PathLike, UsageError
from pyclover.files.gate import validate
from pyclover.files.report import Report, inspect
from pyclover.source import model_file
from pyclover.tuning.quality import acceptance
from pyclover.tuning.quality.chunks import Chunks
from pyclover.tuning.quality.kept import identity
from pyclover.tuning.quality.rows import Floats

# what of Clover's arguments may be given; the types of the cache are never left to a plan, for they change the numbers
SETTINGS = (
    "n_batch", "n_ubatch", "n_threads", "n_threads_batch", "n_gpu_layers", "n_cpu_moe", "flash_attn", "cache_type_k",
    "cache_type_v", "fit", "mmap",
)  # fmt: skip
_DEFAULTS: Mapping[str, Any] = {"cache_type_k": "f16", "cache_type_v": "f16"}
_COUNTING = ("cache_type_k", "cache_type_v", "flash_attn")


@dataclass(frozen=True)
class Subject:
    """A file.

    Attributes:
        path: the first one of a split set. name: for tables and for files in the cache.
        id: see kept.identity.
    """

    path: Path
    name: str
    report: Report
    id: str

    def warnings(self, n_ctx: int) -> tuple[str, ...]:
        """What is odd about judging it in chunks of n_ctx."""
        n_train = self.report.n_ctx_train
        if n_ctx <= n_train:
            return self.report.warnings
        return (*self.report.warnings, f"{self.name}: n_ctx is {n_ctx}, but the model was trained for {n_train} tokens")


def subjects(models: Sequence[PathLike]) -> list[Subject]:
    """The files, in the order given; a name that two of them have becomes the whole path.

    Raises:
        ModelNotFoundError, InvalidFileError, IncompleteSetError, UnsupportedModelError: a file that cannot be used.
        DownloadError: a model on the hub that could not be fetched.
    """
    found = []
    for model in models:
        path = model_file(model).path
        checked = validate(path)
        found.append(Subject(checked.first_path, checked.first_path.stem, inspect(path), identity(checked)))
    paths = {name: {s.path for s in found if s.name == name} for name in {s.name for s in found}}
    return [replace(s, name=str(s.path)) if len(paths[s.name]) > 1 else s for s in found]


def check_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments for Clover; raises UsageError for one that has no place here."""
    for name in settings:
        if name not in SETTINGS:
            raise UsageError(f"{name} is no setting of an evaluation: there are {', '.join(SETTINGS)}", option=name)
    return {**_DEFAULTS, **{name: value for name, value in settings.items() if value is not None}}


def counting(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Of the settings, those that the numbers depend on."""
    return {name: settings.get(name, "auto") for name in _COUNTING}


class Loaded:
    """The model of a file, loaded when it is first asked for.

    Args:
        n_ctx: tokens of a chunk. drafts: the context must have room for drafts too.
    """

    def __init__(self, subject: Subject, n_ctx: int, settings: Mapping[str, Any], *, drafts: bool) -> None:
        self._subject, self._settings = subject, settings
        n_drafts = min(acceptance.N_CTX, subject.report.n_ctx_train) if drafts else 0
        self._n_ctx = max(n_ctx, n_drafts)
        self._model: Clover | None = None

    @property
    def model(self) -> Clover:
        if self._model is None:
            self._model = Clover(self._subject.path, n_ctx=self._n_ctx, **self._settings)
        return self._model

    def tokens(self, text: str) -> list[int]:
        """Of a text to be judged by: the text of special tokens is text there."""
        return self.model.tokenize(text, parse_special=False)

    def logits(self, chunks: Chunks, k: int) -> Floats:
        """The rows of chunk k that are scored, [n_scored, n_vocab]."""
        info = self.model.info
        return self.model.logits(chunks.read(k, info.bos if info.add_bos else None))[chunks.first :]

    def check_vocabulary(self, chunks: Chunks, n_vocab: int | None, text: str | None) -> None:
        """Raises UsageError when this model's tokens are not those of the reference."""
        same = n_vocab is None or n_vocab == self.model.info.n_vocab
        if same and text is not None:
            flat = chunks.tokens.ravel()
            tokens = self.tokens(text)[: flat.size]
            same = np.array_equal(np.asarray(tokens, dtype=np.int32), flat)
        if not same:
            raise UsageError(
                f"{self._subject.path} has another vocabulary than the reference, or the text is another one: their "
                "logits cannot be compared", option="files",
            )  # fmt: skip

    def __enter__(self) -> Loaded:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._model is not None:
            self._model.close()
