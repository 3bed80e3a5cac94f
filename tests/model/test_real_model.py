"""A real model that no one here made: SmolLM2-135M, a llama architecture, not a Clover."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import pyclover
from pyclover.engine.build_info import programs

PROMPTS = ["The capital of France is", "def fibonacci(n):\n", "Once upon a time, in a small village by the sea,"]


@pytest.mark.parametrize("prompt", PROMPTS)
def test_greedy_text_equals_llama_completion(smollm2: Path, prompt: str) -> None:
    llama = programs().get("llama")
    if llama is None:
        pytest.skip("built without llama.cpp's programs")
    command = [str(llama), "completion", "-m", str(smollm2), "-p", prompt, "-n", "128", "--temp", "0", "-t", "2"]
    command += ["-c", "1024", "-no-cnv", "--no-display-prompt", "--no-escape", "--ignore-eos", "--log-verbosity", "0"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=True)
    with pyclover.Clover(smollm2, n_ctx=1024, n_threads=2) as m:
        got = m.generate(prompt, max_tokens=128, temperature=0, ignore_eos=True)
        assert len(got.tokens) == 128
        assert got.text.strip() == done.stdout.decode().strip()


def test_a_prefix_is_cut_back(smollm2: Path) -> None:
    """A plain KV cache can be cut anywhere: only what differs is read again."""
    with pyclover.Clover(smollm2, n_ctx=1024, n_threads=2) as m:
        ids = m.tokenize("One two three four five six seven eight nine ten")
        m.generate(ids, max_tokens=8, temperature=0)
        changed = [*ids[:6], *m.tokenize(" apples and pears")]
        got = m.generate(changed, max_tokens=24, temperature=0)
        assert got.stats.n_prompt_reused == 6
        assert got.stats.reread_from is None
        m.clear()
        assert m.generate(changed, max_tokens=24, temperature=0).tokens == got.tokens


def test_perplexity_of_text_and_of_noise(smollm2: Path) -> None:
    """A language model finds English far more probable than the same words shuffled."""
    with pyclover.Clover(smollm2, n_ctx=512, n_threads=2) as m:
        text = "The quick brown fox jumps over the lazy dog and runs into the forest."
        shuffled = " ".join(sorted(text.split(), key=lambda w: w[::-1]))
        assert m.score(text).perplexity * 3 < m.score(shuffled).perplexity
