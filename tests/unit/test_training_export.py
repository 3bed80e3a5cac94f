"""An exported model, converted by the project's converter, computes in the numpy reference what PyTorch computes."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from support import ROOT

for module in ("torch", "tokenizers", "safetensors", "transformers", "jinja2"):
    pytest.importorskip(module, reason=f"export and converter need {module}")
sys.path += [str(ROOT), str(ROOT / "tests" / "unit")]

import torch  # noqa: E402
from test_training_model import SMALL, TOLERANCE, make  # noqa: E402

from training import export  # noqa: E402
from training.config import ModelConfig  # noqa: E402
from training.model import decode, empty_cache, preview  # noqa: E402
from training.template import CHAT_TEMPLATE  # noqa: E402
from training.tokenizer import MASK, train_tokenizer  # noqa: E402

N_VOCAB = 280
TREE = Path(os.environ.get("PYCLOVER_LLAMA_SRC") or ROOT / "build" / "llama.cpp")


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    if not (TREE / "conversion" / "clover.py").is_file():
        pytest.skip(f"{TREE} is not a patched llama.cpp tree: build first, or set PYCLOVER_LLAMA_SRC")
    folder = tmp_path_factory.mktemp("export")
    text = ["the cat and the hat", "What is 12 + 7?", "one and two and the three"] * 9
    tokenizer = train_tokenizer(text, N_VOCAB)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {**SMALL.__dict__, "n_vocab": N_VOCAB, "mask_token": tokenizer.token_to_id(MASK), "block_length": 16}
    model = make(ModelConfig(**config))
    export.write_checkpoint(model, folder / "tokenizer.json", folder / "hf")
    export.convert(folder / "hf", folder / "out.gguf", TREE, "f32")
    return model, folder / "out.gguf"


def test_logits_through_the_file(exported: tuple[Any, Path], reference: ModuleType) -> None:
    model, path = exported
    kv, tensors = reference.load(path)
    ids = np.random.default_rng(3).integers(0, N_VOCAB, 12).tolist()
    block = [ids[0], *[model.c.mask_token] * 5]
    logits, cache = decode(model, empty_cache(model, 1, 32), torch.tensor([ids]))
    want = reference.Cache(kv, tensors)
    np.testing.assert_allclose(logits[0].numpy(), reference.decode(want, ids), rtol=0, atol=TOLERANCE)
    got = preview(model, cache, torch.tensor([block]))[0].numpy()
    np.testing.assert_allclose(got, reference.preview(want, block), rtol=0, atol=TOLERANCE)


def test_metadata(exported: tuple[Any, Path]) -> None:
    from gguf import GGUFReader

    model, path = exported
    meta = {k: f.contents() for k, f in GGUFReader(path).fields.items() if not k.startswith("GGUF.")}
    expected = {
        "general.architecture": "clover_moe",
        "general.name": "tiny",
        "general.license": "mit",
        "clover_moe.diffusion.block_length": 16,
        "clover_moe.diffusion.shift_logits": False,
        "tokenizer.ggml.pre": "qwen35",
        "tokenizer.ggml.mask_token_id": model.c.mask_token,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }
    assert {k: meta.get(k) for k in expected} == expected
    assert meta["general.description"].startswith("A very small Clover")
    tokens = meta["tokenizer.ggml.tokens"]
    assert tokens[meta["tokenizer.ggml.eos_token_id"]] == "<|im_end|>"
    kinds = dict(zip(tokens, meta["tokenizer.ggml.token_type"], strict=True))
    assert [kinds[t] for t in ("<|im_end|>", MASK, "<think>", "<tool_call>")] == [3, 3, 4, 4]
