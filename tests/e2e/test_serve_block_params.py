"""Block parameters that are others than the file's: the server drafts with them as the API does."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

import pytest

import pyclover
from pyclover.engine.build_info import programs
from pyclover.serve.server import start_server

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif("llama" not in programs(), reason="built without llama.cpp's programs"),
]

PROMPT = "<|im_start|>user\nTell me a story about a cat.<|im_end|>\n<|im_start|>assistant\n"  # more than 48 tokens
FIXED = pyclover.DraftSelf(n_max=7, adaptive=False)
EXACT: dict[str, Any] = {
    "n_ctx": 1024, "n_threads": 1, "cache_type_k": "f32", "cache_type_v": "f32", "flash_attn": False,
}  # fmt: skip


# the two count what is drafted behind the last token a little differently
def drafts(block_params: dict[str, Any] | None) -> tuple[str, int, int]:
    """Text, drafted and accepted tokens of an answer of the server."""
    with start_server("tiny", port=0, speculation=FIXED, block_params=block_params, **EXACT) as server:
        body = {"prompt": PROMPT, "n_predict": 48, "temperature": 0}
        ask = urllib.request.Request(
            f"{server.url}/completion", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(ask, timeout=60) as answer:
            got = json.loads(answer.read())
    return got["content"], got["timings"]["draft_n"], got["timings"]["draft_n_accepted"]


@pytest.mark.parametrize("params", [{"shift_logits": True}, {"scale_activation": "exp"}])
def test_they_are_used(params: dict[str, Any]) -> None:
    with pyclover.Clover("tiny", **EXACT) as m:
        as_stored = m.block_params
        accepted = []
        for block_params in (as_stored, pyclover.BlockParams(**{**vars(as_stored), **params})):
            m.block_params = block_params
            stats = m.generate(PROMPT, max_tokens=48, temperature=0, speculation=FIXED).stats
            accepted.append(stats.accepted / stats.drafted)
    text, n_drafted, n_accepted = drafts(params)
    same, n_plain_drafted, n_plain_accepted = drafts(None)
    assert text == same  # drafts do not change it
    assert n_accepted / n_drafted == pytest.approx(accepted[1], abs=0.04)
    assert n_plain_accepted / n_plain_drafted == pytest.approx(accepted[0], abs=0.04)
    assert abs(accepted[0] - accepted[1]) > 0.08  # or the test shows nothing


def test_wrong_ones_are_refused_before_the_start() -> None:
    with pytest.raises(pyclover.UsageError, match="expert_coreset is 1000"):
        start_server("tiny", port=0, block_params={"expert_coreset": 1000})
    with pytest.raises(pyclover.UsageError, match="has no 'shift'"):
        start_server("tiny", port=0, block_params={"shift": True})
