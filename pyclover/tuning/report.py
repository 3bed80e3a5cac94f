"""Tables of benchmarks and tunings: cells for people, CSV and YAML for programs."""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from pyclover.tuning.bench import Figure
from pyclover.tuning.table import Row

COLUMNS = (
    "setting", "runs", "tok/s", "95 %", "times plain", "95 %", "accepted", "tokens/round", "needed", "prompt tok/s",
    "first token",
)  # fmt: skip
CSV_COLUMNS = (
    "label", "mode", "n_max", "steps", "block", "p_min", "adaptive", "ahead", "accept_ratio", "accept_delta",
    "threshold", "expert_coreset", "n_threads", "n_batch", "n_ubatch", "n_runs", "dropped_after", "prompt_tok_per_s",
    "tok_per_s", "tok_per_s_low", "tok_per_s_high", "first_s", "ratio", "ratio_low", "ratio_high", "ratio_total",
    "ratio_n", "ratio_over", "acceptance", "tokens_per_round", "tokens_needed", "tokens_per_pass", "changed",
    "n_changed",
)  # fmt: skip


def interval(low: float | None, high: float | None, digits: int) -> str:
    """An interval for people, "-" where there is none."""
    return "-" if low is None or high is None else f"{low:.{digits}f} to {high:.{digits}f}"


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def table(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """Cells below COLUMNS, one row a candidate."""
    out: list[tuple[str, ...]] = []
    for row in rows:
        r = row.ratio
        label = row.label + (f" (left after {row.dropped_after} turns)" if row.dropped_after is not None else "")
        out.append((
            label, str(row.n_runs), _number(row.tok_per_s or None, 1),
            interval(row.tok_per_s_low, row.tok_per_s_high, 1),
            _number(r.total, 3) if r else "-", interval(r.low, r.high, 3) if r else "-",
            "-" if row.acceptance is None else f"{row.acceptance:.1%}", _number(row.tokens_per_round, 2),
            _number(row.tokens_needed, 2), _number(row.prompt_tok_per_s or None, 1), f"{1000 * row.first_s:.1f} ms",
        ))  # fmt: skip
    return out


def kinds_table(rows: Sequence[Row]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Ratios to plain by kind of prompt -> column names and cells; nothing where there is one kind."""
    kinds = list(dict.fromkeys(kind for row in rows for kind in row.by_kind))
    if len(kinds) < 2:
        return (), []
    cells = [(row.label, *(_number(row.by_kind.get(kind), 3) for kind in kinds)) for row in rows if row.by_kind]
    return ("times plain", *kinds), cells


def changed_table(rows: Sequence[Row]) -> list[tuple[str, str, str]]:
    """Of candidates that change the text: what share of tokens; of others, answers that differ at a near-tie."""
    return [
        (row.label, f"{row.changed:.1%}", f"{row.n_changed} of {row.n_runs}")
        for row in rows if row.changed is not None and (row.changed > 0 or not row.candidate.lossless)
    ]  # fmt: skip


def figures_table(figures: Sequence[Figure]) -> list[tuple[str, ...]]:
    """Cells of llama-bench's figures: test, setting, median, interval, mean and standard deviation."""
    return [
        (
            f.test, f.label or "default", f"{f.tok_per_s:.2f}", interval(f.low, f.high, 2),
            f"{f.mean:.2f} ± {f.stdev:.2f}",
        )
        for f in figures
    ]  # fmt: skip


def flat(row: Row) -> dict[str, Any]:
    """A row as one level of names, those of CSV_COLUMNS."""
    r = row.ratio
    ratio = {
        "ratio": r and r.median, "ratio_low": r and r.low, "ratio_high": r and r.high, "ratio_total": r and r.total,
        "ratio_n": r and r.n, "ratio_over": r and r.over,
    }  # fmt: skip
    own = {
        f.name: getattr(row, f.name) for f in dataclasses.fields(row) if f.name not in ("candidate", "by_kind", "ratio")
    }
    values = {**dataclasses.asdict(row.candidate), **own, **ratio}
    kinds = {f"ratio_{kind}": share for kind, share in row.by_kind.items()}
    return {name: values[name] for name in CSV_COLUMNS} | kinds


def to_csv(rows: Sequence[Row]) -> str:
    """The rows with all numbers in full, one line each, names in the first."""
    records = [flat(row) for row in rows]
    names = list(dict.fromkeys(name for record in records for name in record))
    out = io.StringIO()
    writer = csv.DictWriter(out, names, lineterminator="\n", restval="")
    writer.writeheader()
    writer.writerows(records)
    return out.getvalue()


def to_yaml(value: Mapping[str, Any]) -> str:
    """A result as YAML."""
    return yaml.safe_dump(_plain(value), sort_keys=False, allow_unicode=True)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _plain(dataclasses.asdict(value))
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value
