"""A model is loaded as it was planned; what cannot fit is refused before anything is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support import ORACLE

import pyclover
from pyclover.plan import probe
from pyclover.plan.machine import GIB, MIB, Machine

TINY = ORACLE / "expected_preview" / "tiny_a_preview.gguf"


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets what the machine has."""

    def set_free(free_bytes: int) -> None:
        made = Machine(host_total_bytes=32 * GIB, host_free_bytes=free_bytes)
        monkeypatch.setattr(probe, "probe", lambda *_, **__: made)

    return set_free


def test_the_plan_is_what_was_loaded() -> None:
    with pyclover.Clover(TINY, n_ctx=300, n_batch=64, cache_type_k="q8_0") as m:
        assert m.plan is not None
        assert (m.n_ctx, m.plan.settings.n_ctx) == (300, 300)
        assert m.plan.settings.cache_type_k == "q8_0"
        assert m._context.n_batch == m.plan.settings.n_batch == 64
        assert (
            m._context.options.n_rs_seq == m.plan.settings.n_max == 15
        )  # plain steps keep no rows: it costs them nothing
        measured = sum(use.bytes for use in m.memory())
        estimated = sum(m.plan.estimate.measurable().values())
        assert abs(estimated - measured) < 64 * MIB
    with pyclover.Clover(TINY, fit=False) as m:
        assert m.plan is None


def test_a_model_that_cannot_fit_is_not_loaded(machine: Any, tmp_path: Path) -> None:
    machine(64 * MIB)
    with pytest.raises(pyclover.DoesNotFitError) as caught:
        pyclover.Clover(TINY)
    assert isinstance(caught.value, pyclover.OutOfMemoryError)
    assert caught.value.needed_bytes > 0
    with pyclover.Clover(TINY, n_ctx=64, fit=False) as m:  # whoever insists may try
        assert m.generate([5, 6], max_tokens=2, temperature=0).tokens


def test_what_was_asked_for_is_kept_or_refused(machine: Any) -> None:
    n_train = pyclover.inspect(TINY).n_ctx_train
    machine(32 * GIB)
    with pyclover.Clover(TINY) as m:
        assert m.n_ctx == min(n_train, 8192)
    asked: dict[str, Any] = {"n_ctx": n_train, "n_ubatch": 512, "cache_type_k": "f16", "cache_type_v": "f16"}
    large = Machine(host_free_bytes=32 * GIB, host_total_bytes=32 * GIB)
    needed = pyclover.fit(TINY, **asked, n_max=0, probe=large)
    room = needed.pools[0].needed_bytes + needed.pools[0].reserve_bytes
    machine(room - 1)
    with pytest.raises(pyclover.DoesNotFitError) as caught:
        pyclover.Clover(TINY, **asked)
    nearest = caught.value.nearest
    assert nearest is not None
    assert nearest.settings != needed.settings
    machine(room)
    with pyclover.Clover(TINY, **asked) as m:
        assert m.n_ctx == n_train
