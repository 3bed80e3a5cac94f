"""What tells one evaluation from another, and where its parts are kept.

    <cache>/evaluate/logits/<name>-<key>.kld        a reference's logits
    <cache>/evaluate/scores/<name>-<key>.scores     a file's scores
    <cache>/evaluate/scores/<name>-<key>.json       how often its drafts were accepted
    <cache>/evaluate/locks/<key>.lock               held by the process that writes one of them

The key comes from all that the numbers depend on, so nothing is ever taken for something else.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from pyclover.engine.build_info import build_info
from pyclover.errors import FileError, InvalidFileError, PathLike
from pyclover.files.gate import ValidatedModel
from pyclover.hub.store import Store

FORMAT = 1  # of scores and facts; a change makes what is kept unknown
_SAMPLES, _SAMPLE_BYTES = 64, 1 << 16
_KEY_DIGITS = 16
_STEM_CHARS = 48  # of a model's name: four bytes each, they still leave room in a file name


def identity(model: ValidatedModel) -> str:
    """Tells model files apart without reading all of them: headers, sizes, samples of the weights, time of change.

    Raises:
        InvalidFileError: a file cannot be read any more.
    """
    digest = hashlib.sha256(model.fingerprint().encode())
    for header in model.headers:
        try:
            with header.path.open("rb") as file:
                digest.update(str(os.fstat(file.fileno()).st_mtime_ns).encode())
                room = max(0, header.file_bytes - header.data_offset - _SAMPLE_BYTES)
                for i in range(_SAMPLES):
                    file.seek(header.data_offset + room * i // (_SAMPLES - 1))
                    digest.update(file.read(_SAMPLE_BYTES))
        except OSError as error:
            raise InvalidFileError(
                f"{header.path}: cannot be read: {error.strerror or error}", path=header.path
            ) from error
    return digest.hexdigest()


def text_sha256(text: str) -> str:
    """Of its UTF-8 bytes."""
    return hashlib.sha256(text.encode()).hexdigest()


def build_facts() -> dict[str, Any]:
    """What of this build the logits depend on."""
    info = build_info()
    return {"pyclover": info.version, "llama.cpp": info.llama_cpp_commit, "backends": list(info.backends)}


def key(facts: Mapping[str, Any]) -> str:
    """Short name of facts, in hexadecimal digits."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:_KEY_DIGITS]


def _name(stem: str, facts: Mapping[str, Any], ending: str) -> str:
    return f"{stem[:_STEM_CHARS]}-{key(facts)}{ending}"


class Folder:
    """The cache's part for evaluations.

    Args:
        cache_dir: None: PYCLOVER_CACHE, else the user's cache folder.

    Raises:
        FileError: it cannot be made.
    """

    def __init__(self, cache_dir: PathLike | None = None) -> None:
        self.root = Store(cache_dir).root / "evaluate"
        try:
            for name in ("logits", "scores", "locks"):
                (self.root / name).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FileError(
                f"{self.root}: cannot be made: {error.strerror or error}; choose another folder with cache_dir "
                "(PYCLOVER_CACHE)", path=self.root,
            ) from error  # fmt: skip

    def logits(self, name: str, facts: Mapping[str, Any]) -> Path:
        """Where a reference's logits are."""
        return self.root / "logits" / _name(name, facts, ".kld")

    def scores(self, name: str, facts: Mapping[str, Any]) -> Path:
        """Where a file's scores are."""
        return self.root / "scores" / _name(name, facts, ".scores")

    def drafts(self, name: str, facts: Mapping[str, Any]) -> Path:
        """Where it is kept how often a file's drafts were accepted."""
        return self.root / "scores" / _name(name, facts, ".json")

    @contextlib.contextmanager
    def lock(self, path: Path, waiting: Callable[[], None]) -> Iterator[None]:
        """Holds a file's name for this process; while another one has it, `waiting` is called again and again.

        Raises:
            FileError: it cannot be locked.
        """
        name = hashlib.sha256(os.fsencode(path.absolute())).hexdigest()[:_KEY_DIGITS]
        lock = FileLock(self.root / "locks" / f"{name}.lock")
        while True:
            try:
                lock.acquire(timeout=0.5, poll_interval=0.1)
                break
            except Timeout:
                waiting()
            except (OSError, NotImplementedError) as error:
                raise FileError(f"{lock.lock_file}: cannot be locked: {error}", path=lock.lock_file) from error
        try:
            yield
        finally:
            lock.release()
