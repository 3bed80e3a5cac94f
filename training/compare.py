"""Compares three implementations on a trained model: PyTorch, the numpy reference and the native build, all in F32.

`python -m training.compare --out build/tiny` exports OUT/tiny-f32.gguf and prints the greatest difference of logits
over 20 held-out prompts with their greedy answers: of every row in causal decoding, and of every row of previews of 8,
16 and 32 rows behind each prompt. Needs pyclover installed beside torch.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

from training.checkpoint import load_model
from training.config import write_json
from training.evaluate import EVALUATION_SEED, cases
from training.export import ROOT, convert, write_checkpoint
from training.generate import plain
from training.model import decode, empty_cache, preview
from training.tokenizer import END_OF_TURN, load_tokenizer, token_id

REFERENCE = ROOT / "tests" / "oracle" / "reference_numpy.py"
N_PROMPTS, N_ANSWER, BLOCKS = 20, 48, (8, 16, 32)


def load_reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference_numpy", REFERENCE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def compare(out: Path, gguf: Path) -> dict[str, dict[str, float]]:
    # the checkout comes first on the path but has no compiled part; the installed package is wanted
    here = [entry for entry in sys.path if Path(entry or ".").resolve() == ROOT]
    sys.path[:] = [entry for entry in sys.path if entry not in here] + here
    import pyclover

    model = load_model(out)
    tokenizer = load_tokenizer(out / "tokenizer.json")
    end = token_id(tokenizer, END_OF_TURN)
    prompts = [case.prompt for case in cases(tokenizer, 1, EVALUATION_SEED)][:N_PROMPTS]
    reference = load_reference()
    kv, tensors = reference.load(str(gguf))
    worst = {
        kind: dict.fromkeys(("torch - reference", "native - reference", "torch - native"), 0.0)
        for kind in ("causal", "preview")
    }

    def note(kind: str, ours: np.ndarray, theirs: np.ndarray, native: np.ndarray) -> None:
        pairs = ((ours, theirs), (native, theirs), (ours, native))
        for name, (a, b) in zip(worst[kind], pairs, strict=True):
            worst[kind][name] = max(worst[kind][name], float(np.abs(a - b).max()))

    options: dict[str, Any] = {"n_ctx": 512, "cache_type_k": "f32", "cache_type_v": "f32", "flash_attn": False}
    with pyclover.Clover(gguf, **options) as m, torch.no_grad():
        for prompt in prompts:
            answer = plain(model, [prompt], end, N_ANSWER)[0]
            ids = [*prompt, *answer]
            mine, _ = decode(model, empty_cache(model, 1, len(ids)), torch.tensor([ids]))
            note("causal", mine[0].numpy(), reference.forward(kv, tensors, ids), m.logits(ids))
            _, cache = decode(model, empty_cache(model, 1, len(prompt) + max(BLOCKS)), torch.tensor([prompt]))
            clean = reference.Cache(kv, tensors)
            reference.decode(clean, prompt)
            for size in BLOCKS:
                rows = [answer[0], *[model.c.mask_token] * (size - 1)]
                block = preview(model, cache, torch.tensor([rows]))[0].numpy()
                note("preview", block, reference.preview(clean, rows), m.preview(prompt, rows))
    return worst


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the run")
    parser.add_argument("--llama-cpp", type=Path, default=ROOT / "build/llama.cpp")
    a = parser.parse_args(argv)
    write_checkpoint(load_model(a.out), a.out / "tokenizer.json", a.out / "hf")
    gguf = a.out / "tiny-f32.gguf"
    convert(a.out / "hf", gguf, a.llama_cpp, "f32")
    result = compare(a.out, gguf)
    write_json(a.out / "compare.json", result)
    for kind, differences in result.items():
        for name, value in differences.items():
            print(f"{kind:8} {name:20} {value:.2g}")


if __name__ == "__main__":
    main()
