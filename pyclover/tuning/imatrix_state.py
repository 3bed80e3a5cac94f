"""The sums of an importance matrix: kept in double precision, stored now and then, written at the end."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from pyclover.engine.imatrix import Collector
from pyclover.files.write_new import sync_folder
from pyclover.tuning.imatrix_file import CHUNK_COUNT, CHUNK_SIZE, COUNTS, DATASETS, SUMS
from pyclover.tuning.new_file import PartFile

PART_SUFFIX = ".imatrix.part"
STATE_SUFFIX = ".imatrix.state"


@dataclass
class Sums:
    """Everything that was counted so far.

    Attributes:
        key: of text, model and settings; sums of another key do not go on.
        n_chunks: that are counted.
        n_causal, n_preview: rows of plain passes and of block passes.
        squares: weight's name -> float64 [n_matrices, n_per_row]; counts: uint64 [n_matrices].
        refused: weight's name -> rows with NaN or infinity.
    """

    key: str
    n_chunks: int = 0
    n_causal: int = 0
    n_preview: int = 0
    squares: dict[str, npt.NDArray[np.float64]] = field(default_factory=dict)
    counts: dict[str, npt.NDArray[np.uint64]] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)

    def take(self, collector: Collector) -> None:
        """Adds what the collector has, and empties it. Sums are the same wherever the work was interrupted, because
        they are always taken at the same places."""
        for weight in collector.weights():
            squares, counts = collector.sums(weight)
            if weight.name in self.squares:
                self.squares[weight.name] += squares
                self.counts[weight.name] += counts
            else:
                self.squares[weight.name], self.counts[weight.name] = squares, counts
            self.refused[weight.name] = self.refused.get(weight.name, 0) + weight.n_refused
        collector.clear()

    def save(self, path: Path) -> None:
        """Stores the state beside the file in the making; the old state stays until the new one is whole."""
        arrays: dict[str, Any] = {f"s:{name}": value for name, value in self.squares.items()}
        arrays |= {f"c:{name}": value for name, value in self.counts.items()}
        arrays["refused"] = np.array([self.refused[name] for name in sorted(self.refused)], dtype=np.uint64)
        arrays["numbers"] = np.array([self.n_chunks, self.n_causal, self.n_preview], dtype=np.uint64)
        arrays["key"] = np.array(self.key)
        new = _new(path)
        try:
            with new.open("wb") as file:
                np.savez(file, **arrays)
                file.flush()
                os.fsync(file.fileno())
            os.replace(new, path)
        except BaseException:  # a full disk, a second Ctrl-C
            with suppress(OSError):
                new.unlink()
            raise
        sync_folder(path.parent)


def _new(path: Path) -> Path:
    """Where a state is while it is written."""
    return path.with_name(path.name + ".new")


def load(path: Path, key: str) -> Sums | None:
    """The state that was stored, None where there is none of this key."""
    try:
        with np.load(path, allow_pickle=False) as found:
            if str(found["key"]) != key:
                return None
            n_chunks, n_causal, n_preview = (int(n) for n in found["numbers"])
            squares = {name[2:]: found[name] for name in found.files if name.startswith("s:")}
            counts = {name[2:]: found[name] for name in found.files if name.startswith("c:")}
            refused = dict(zip(sorted(counts), (int(n) for n in found["refused"]), strict=True))
    except (OSError, KeyError, ValueError, EOFError, zipfile.BadZipFile):
        return None
    return Sums(key, n_chunks, n_causal, n_preview, squares, counts, refused)


def write(part: PartFile, sums: Sums, datasets: Sequence[str], chunk_size: int, *, overwrite: bool) -> int:
    """Writes the importance matrix in llama.cpp's GGUF form and names it; returns its size in bytes.

    Raises:
        FileError: there is a file of that name; OSError: it cannot be written.
    """
    # no architecture: the format knows none, and the writer always sets one
    writer = gguf.GGUFWriter(part.part, "")
    writer.kv_data[0].clear()
    writer.add_string("general.type", "imatrix")
    writer.add_array(DATASETS, list(datasets))
    writer.add_uint32(CHUNK_COUNT, sums.n_chunks)
    writer.add_uint32(CHUNK_SIZE, chunk_size)
    for name in sorted(sums.squares):
        squares, counts = sums.squares[name].astype(np.float32), sums.counts[name].astype(np.float32)[:, None]
        # as llama.cpp writes them: without the dimension of one matrix
        writer.add_tensor(name + SUMS, squares[0] if len(squares) == 1 else squares)
        writer.add_tensor(name + COUNTS, counts[0] if len(counts) == 1 else counts)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    part.sync()
    n_bytes = part.size
    part.commit(overwrite=overwrite)
    return n_bytes


def remove(path: Path) -> None:
    """Removes a state that is not needed any more."""
    for file in (path, _new(path)):  # the latter of a run that was killed
        with suppress(OSError):
            file.unlink()


def never_used(sums: Sums) -> Mapping[str, tuple[int, ...]]:
    """Weight's name -> numbers of its experts (from 0) that no row went to."""
    out = {name: tuple(int(i) for i in np.flatnonzero(counts == 0)) for name, counts in sums.counts.items()}
    return {name: experts for name, experts in out.items() if experts}
