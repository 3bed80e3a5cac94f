"""The one call that stands between a path and native code: shards, headers, metadata, tensors."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from pyclover.errors import InvalidFileError, PathLike, UnsupportedModelError
from pyclover.files.facts import ModelFacts
from pyclover.files.header import Header
from pyclover.files.model import check_model
from pyclover.files.shards import ShardSet, resolve


@dataclass(frozen=True)
class ValidatedModel:
    """A model whose files passed every check.

    Attributes:
        first_path: the path to give to llama.cpp.
        headers: one per shard; the first holds the metadata.
        facts: CloverFacts for clover_moe.
        warnings: sentences to show to the user.
    """

    first_path: Path
    headers: tuple[Header, ...]
    facts: ModelFacts
    warnings: tuple[str, ...]

    def fingerprint(self) -> str:
        """Identifies the files by their headers and sizes, without reading the weights: 64 hexadecimal digits.

        Raises:
            InvalidFileError: a file cannot be read any more.
        """
        digest = hashlib.sha256()
        for header in self.headers:
            try:
                with header.path.open("rb") as file:
                    digest.update(header.file_bytes.to_bytes(8, "little"))
                    digest.update(hashlib.sha256(file.read(header.data_offset)).digest())
            except OSError as e:
                raise InvalidFileError(f"{header.path}: cannot be read: {e.strerror or e}", path=header.path) from e
        return digest.hexdigest()


def validate(path: PathLike) -> ValidatedModel:
    """Check the model that `path`, a GGUF file or any shard of a split one, belongs to.

    Raises:
        ModelNotFoundError: no such file.
        InvalidFileError: not a GGUF, damaged, cut short, or a set whose files do not belong together.
        IncompleteSetError: shards are missing.
        UnsupportedModelError: sound files that do not make a model that can run.
    """
    shards = resolve(path)
    facts = check_model(shards.header, shards.tensors)
    if facts.problems:
        first = facts.problems[0]
        raise UnsupportedModelError(f"{shards.first_path}: {first.message}", path=shards.first_path, key=first.key)
    return ValidatedModel(shards.first_path, shards.headers, facts, facts.warnings + file_warnings(shards))


def file_warnings(shards: ShardSet) -> tuple[str, ...]:
    """What is odd about the files without being wrong."""
    return tuple(
        f"{h.path.name}: another GGUF file begins behind the data, as if joined with cat; only the first is used"
        for h in shards.headers
        if h.joined
    )
