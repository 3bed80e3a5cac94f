"""What an evaluation gives back, and its table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pyclover.errors import PathLike
from pyclover.tuning.quality.acceptance import Acceptance
from pyclover.tuning.quality.statistics import Divergence, Estimate

NONE = "-"
Q8_0 = "Q8_0"


@dataclass(frozen=True)
class Progress:
    """How far an evaluation is.

    Attributes:
        stage: "logits" (of the reference), "scores", "drafts", or "waiting" for another process that does the same.
        name: the file at work.
        n_done, n_total: chunks; of drafts, prompts.
        part: of the whole evaluation, 0 to 1.
        n_bytes: of the reference's logits on the disk, as they will be; 0 in other stages.
        path: where they are written; None in other stages.
    """

    stage: str
    name: str
    n_done: int
    n_total: int
    part: float
    n_bytes: int = 0
    path: Path | None = None


@dataclass(frozen=True)
class FileQuality:
    """One file's numbers.

    Attributes:
        path: the first file of a split set. name: for tables.
        file_type: as general.file_type says, "" where it does not.
        file_bytes: of all its files. bits_per_weight: of all weights together.
        ppl: perplexity; of the reference, as far as its kept logits tell. None: not computed.
        divergence: from the reference; None without one, and of the reference itself.
        acceptance: of drafts; None where `no_drafts` says why.
        n_kept: chunks that an earlier run had scored.
        warnings: what is odd about the file, one sentence each.
    """

    path: Path
    name: str
    file_type: str
    file_bytes: int
    bits_per_weight: float
    ppl: Estimate | None = None
    divergence: Divergence | None = None
    acceptance: Acceptance | None = None
    no_drafts: str = ""
    n_kept: int = 0
    warnings: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The numbers in types that JSON has."""
        out = asdict(self) | {"path": str(self.path), "warnings": list(self.warnings)}
        out["acceptance"] = None if self.acceptance is None else self.acceptance.to_dict()
        for name in ("kld_percentiles", "p_diff_percentiles"):
            if self.divergence is not None:
                out["divergence"][name] = {f"{k:g}": v for k, v in out["divergence"][name].items()}
        return out


@dataclass(frozen=True)
class Evaluation:
    """Several files judged by the same text.

    Attributes:
        files: in the order given. reference: what they are compared with; None without one, and where only a file
            of logits stands for it.
        logits: that file; None without a reference.
        ppl_base: the reference's perplexity, as its kept logits tell; None without one.
        n_ctx: tokens of a chunk. n_chunks: how many; n_tokens: scored tokens, all chunks together.
    """

    files: tuple[FileQuality, ...]
    reference: FileQuality | None
    logits: Path | None
    ppl_base: Estimate | None
    n_ctx: int
    n_chunks: int
    n_tokens: int

    @property
    def q8_0(self) -> FileQuality | None:
        """The Q8_0 among the files, which the others' divergence is put in relation to; None when there is none."""
        return next((f for f in self.files if f.file_type == Q8_0 and f.divergence is not None), None)

    def relative_kld(self, file: FileQuality) -> float | None:
        """Mean KL divergence as a multiple of that of Q8_0; None where there is no such number."""
        unit = self.q8_0
        if unit is None or unit.divergence is None or file.divergence is None or not unit.divergence.kld.value > 0:
            return None
        return file.divergence.kld.value / unit.divergence.kld.value

    def to_dict(self) -> dict[str, Any]:
        """The result in types that JSON has."""
        return {
            "n_ctx": self.n_ctx,
            "n_chunks": self.n_chunks,
            "n_tokens": self.n_tokens,
            "logits": None if self.logits is None else str(self.logits),
            "ppl_base": None if self.ppl_base is None else asdict(self.ppl_base),
            "reference": None if self.reference is None else self.reference.to_dict(),
            "files": [{**file.to_dict(), "relative_kld": self.relative_kld(file)} for file in self.files],
        }

    def table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Column names, and a row of text for each file, the reference first."""
        compared = any(f.divergence is not None for f in self.files)
        columns: tuple[str, ...] = ("file", "type", "GiB", "bits/weight", "PPL")
        if compared:
            columns += ("mean KLD", "x Q8_0", "99 % KLD", "same top %")
        columns += ("accepted/draft", "accepted %")
        rows = [] if self.reference is None else [self._row(self.reference, compared, " (reference)")]
        return columns, rows + [self._row(file, compared) for file in self.files]

    def _row(self, file: FileQuality, compared: bool, what: str = "") -> tuple[str, ...]:
        row = [
            file.name + what,
            file.file_type or NONE,
            f"{file.file_bytes / 2**30:.3f}",
            f"{file.bits_per_weight:.2f}",
        ]
        row.append(_pm(file.ppl, 4))
        if compared:
            d, relative = file.divergence, self.relative_kld(file)
            row += (
                [_pm(d.kld, 6), NONE if relative is None else f"{relative:.2f}", f"{d.kld_percentiles[99.0]:.6f}",
                 _pm(d.same_top, 3, 100)] if d is not None else [NONE] * 4
            )  # fmt: skip
        a = file.acceptance
        row += [NONE, NONE] if a is None else [f"{a.accepted_per_round:.2f} of {a.n_max}", f"{100 * a.share:.1f}"]
        return tuple(row)

    def markdown(self) -> str:
        """The table in Markdown."""
        columns, rows = self.table()
        left = 2  # names and types stand left, numbers right
        lines = [_line(columns), "|" + "---|" * left + "--:|" * (len(columns) - left)]
        return "\n".join([*lines, *map(_line, rows)]) + "\n"

    def plot(self, path: PathLike) -> None:
        """Draws size against mean KL divergence, as PNG, or as the ending says (.svg, .pdf).

        Raises:
            UsageError: matplotlib is not installed, does not know the ending, or there is nothing to draw.
            FileError: the picture cannot be written.
        """
        from pyclover.tuning.quality.plot import draw

        draw(self, path)


def _pm(value: Estimate | None, digits: int, factor: float = 1.0) -> str:
    if value is None:
        return NONE
    return f"{factor * value.value:.{digits}f} ± {factor * value.error:.{digits}f}"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
