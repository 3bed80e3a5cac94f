"""The number of threads that is chosen when none is given."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from pyclover.engine import threads


def test_small_models_get_one_thread() -> None:
    assert threads.default_threads(1 << 20) == 1


@pytest.mark.parametrize(
    ("usable", "physical", "limit", "chosen"),
    [(16, 8, None, 8), (4, 8, None, 4), (16, 8, 2.5, 2), (16, 8, 0.5, 1), (2, None, None, 2)],
)
def test_others_get_the_cores_they_may_use(
    usable: int, physical: int | None, limit: float | None, chosen: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads.os, "sched_getaffinity", lambda pid: set(range(usable)), raising=False)
    monkeypatch.setattr(psutil, "cpu_count", lambda logical: physical)
    monkeypatch.setattr(threads, "cgroup_limit", lambda: limit)
    assert threads.default_threads(1 << 30) == chosen


@pytest.mark.parametrize(("text", "limit"), [("max 100000\n", None), ("250000 100000\n", 2.5), ("nonsense", None)])
def test_cgroup_limit(text: str, limit: float | None, tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text(text)
    assert threads.cgroup_limit(tmp_path / "cpu.max") == limit
    assert threads.cgroup_limit(tmp_path / "none") is None
