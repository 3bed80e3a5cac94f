"""Batched drafting and block diffusion in PyTorch against the numpy reference: tokens, rounds and counts."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

import pytest
from support import ORACLE, ROOT

torch = pytest.importorskip("torch", reason="training needs torch")
sys.path += [str(ROOT), str(ROOT / "tests" / "unit")]

from test_training_model import make, reference_model, sequences  # noqa: E402

from training.config import ModelConfig  # noqa: E402
from training.generate import block_diffusion, draft_self, plain  # noqa: E402

END, N_PREDICT = 17, 20


@pytest.fixture(scope="module")
def reference_draft(reference: ModuleType) -> ModuleType:
    """Imports `reference_numpy` by that name, which the fixture has made known."""
    spec = importlib.util.spec_from_file_location("reference_draft", ORACLE / "reference_draft.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("n_max", [1, 7])
def test_drafting(reference_draft: ModuleType, n_max: int) -> None:
    model = make()
    prompts = sequences(8, [6, 11, 3])
    kv, t = reference_model(model)
    kv["tokenizer.ggml.eos_token_id"] = END
    texts = plain(model, prompts, END, N_PREDICT)
    got = draft_self(model, prompts, END, N_PREDICT, n_max)
    for prompt, text, d in zip(prompts, texts, got, strict=True):
        want = reference_draft.draft_self(kv, t, prompt, N_PREDICT, n_max)
        assert d.tokens == want["tokens"] == text == reference_draft.plain(kv, t, prompt, N_PREDICT)
        assert (d.rounds, d.drafted, d.accepted) == (len(want["rounds"]), want["drafted"], want["accepted"])
        assert (d.drafted_at, d.accepted_at) == (want["drafted_at"], want["accepted_at"])


@pytest.mark.parametrize(("size", "threshold"), [(4, 0.3), (8, 0.9)])
def test_block_diffusion(reference_draft: ModuleType, size: int, threshold: float) -> None:
    model = make(ModelConfig(**{**make().c.__dict__, "block_length": size}))
    prompts = sequences(9, [6, 8, 3])
    kv, t = reference_model(model)
    kv |= {"tokenizer.ggml.eos_token_id": END, "diffusion.block_length": size}
    got = block_diffusion(model, prompts, END, N_PREDICT, size, threshold)
    for prompt, d in zip(prompts, got, strict=True):
        want = reference_draft.block_diffusion(kv, t, prompt, N_PREDICT, threshold)
        assert d.tokens == want["tokens"]
        assert d.passes == want["passes"]
