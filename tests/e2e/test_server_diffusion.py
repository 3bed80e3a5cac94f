"""Block diffusion in the package's server: the same tokens as through the API, beside other requests."""

from __future__ import annotations

import http.client
import itertools
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from llama_server import drafting, request, server
from support import ORACLE

import pyclover
from pyclover.engine.build_info import programs

TINY = Path(pyclover.__file__).parent / "data" / "tiny.gguf"
ALONE: dict[str, Any] = {
    "n_threads": 1, "cache_type_k": "f32", "cache_type_v": "f32", "flash_attn": False, "fit": False,
}  # fmt: skip
PROMPTS = (
    "<|im_start|>user\nWhat is 12 + 7?<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\nSpell the word planet backwards.<|im_end|>\n<|im_start|>assistant\n<think>\n",
    "<|im_start|>user\nCount from 3 to 9.<|im_end|>\n<|im_start|>assistant\n",
    "Hi",  # less than a block: all of it is in the first one
)
SETTINGS: tuple[dict[str, Any], ...] = (
    {"threshold": 0.9},
    {"threshold": 0.5, "block": 16},
    {"threshold": 0.99, "block": 32, "max_steps": 3},
    {"block": 3, "max_steps": 1},
)

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif("llama" not in programs(), reason="built without llama.cpp's programs"),
]


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with server(str(TINY.with_suffix("")), *drafting(7), "-np", "4", "--kv-unified", "-c", "2048") as port:
        yield port


def post(port: int, path: str, body: dict[str, Any]) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def completed(port: int, body: dict[str, Any]) -> dict[str, Any]:
    status, text = post(port, "/completion", body)
    assert status == 200, text
    found: dict[str, Any] = json.loads(text)
    return found


def chunks(text: str) -> list[dict[str, Any]]:
    lines = [line[5:].strip() for line in text.splitlines() if line.startswith("data:")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def test_tokens_are_those_of_the_api(port: int) -> None:
    """Also while others draft and decode: their tokens are those that they give alone."""
    bodies, wanted = [], []
    with pyclover.Clover(str(TINY), n_ctx=2048, **ALONE) as m:
        for prompt in PROMPTS:
            ids = m.tokenize(prompt, add_special=False)
            for settings in SETTINGS:
                expected = m.generate(
                    ids, max_tokens=40, speculation=pyclover.BlockDiffusion(**{"threshold": 0.95, **settings})
                )
                bodies.append({**request(ids, 40), "diffusion": settings})
                wanted.append((expected, len(ids)))
            bodies.append(request(ids, 40))
            wanted.append((m.generate(ids, max_tokens=40, temperature=0), len(ids)))
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda body: completed(port, body), bodies))
    for body, got, (expected, n_prompt) in zip(bodies, answers, wanted, strict=True):
        tokens = got["tokens"][:-1] if got["stop_type"] == "eos" else got["tokens"]  # the end token is not text
        assert tokens == list(expected.tokens), body
        assert got["content"] == expected.text
        assert got["tokens_evaluated"] == n_prompt
        assert (got["stop_type"] == "limit") == (expected.finish_reason == "length")
        if "diffusion" in body:
            timings = got["timings"]
            assert timings["diffusion_passes"] == expected.stats.previews
            assert timings["diffusion_fixed"] == expected.stats.fixed
            assert "draft_n" not in timings


def test_the_context_is_filled_and_no_more() -> None:
    with pyclover.Clover(str(TINY), n_ctx=256, **ALONE) as m:
        chat = m.tokenize(PROMPTS[2].replace("9", "40"), add_special=False)
        ids = m.tokenize("a b c d e f " * 60, add_special=False)[: 235 - len(chat)] + chat
        expected = m.generate(ids, speculation=pyclover.BlockDiffusion(threshold=0.9))
    assert (len(expected.tokens), expected.finish_reason) == (21, "length")
    with server(str(TINY.with_suffix("")), "-np", "1", "-c", "256") as small:
        for _ in range(2):
            got = completed(small, {**request(ids, -1), "diffusion": {"threshold": 0.9}})
            assert got["tokens"] == list(expected.tokens)
            assert (got["stop_type"], got["truncated"]) == ("limit", True)


def test_stop_strings_and_limits(port: int) -> None:
    body = {"prompt": PROMPTS[2], "diffusion": True, "n_predict": 40}
    whole = completed(port, body)["content"]
    assert "5" in whole
    stopped = completed(port, {**body, "stop": ["5"]})
    assert (stopped["content"], stopped["stop_type"], stopped["stopping_word"]) == (whole.split("5")[0], "word", "5")
    cut = completed(port, {**body, "n_predict": 3, "return_tokens": True})
    assert (len(cut["tokens"]), cut["stop_type"]) == (3, "limit")


@pytest.mark.parametrize("path", ["/completion", "/v1/completions", "/v1/chat/completions"])
def test_the_block_in_the_making_is_streamed_on_request(port: int, path: str) -> None:
    body: dict[str, Any] = {"n_predict": 24, "max_tokens": 24, "stream": True, "timings_per_token": True}
    if path == "/v1/chat/completions":
        body["messages"] = [{"role": "user", "content": "What is 12 + 7?"}]
    else:
        body["prompt"] = PROMPTS[0]
    plain = {**body, "diffusion": {"threshold": 0.9}}
    status, text = post(port, path, plain)
    assert status == 200
    assert '"diffusion_block":' not in text
    status, text = post(port, path, {**plain, "diffusion": {"threshold": 0.9, "stream_blocks": True}})
    assert status == 200
    found = chunks(text)
    blocks = [chunk["diffusion_block"] for chunk in found if "diffusion_block" in chunk]
    timings = [chunk["timings"] for chunk in found if "timings" in chunk]
    assert len(blocks) == timings[-1]["diffusion_passes"]
    assert all(row is None or isinstance(row, str) for block in blocks for row in block)
    for before, after in itertools.pairwise(blocks):
        if None in before:  # the same block, one pass later
            assert len(before) == len(after)
            assert all(row is None or row == later for row, later in zip(before, after, strict=True))
            assert before.count(None) > after.count(None)
    if path == "/completion":
        said = "".join(chunk["content"] for chunk in found)
        done = "".join("".join(block) for block in blocks if None not in block)
        assert done.startswith(said)
    if path == "/v1/chat/completions":
        roles = [chunk for chunk in found if chunk["choices"] and chunk["choices"][0]["delta"].get("role")]
        assert len(roles) == 1


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"diffusion": 1}, "true, false or an object"),
        ({"diffusion": {"steps": 1}}, "diffusion.steps is not known"),
        ({"diffusion": {"threshold": 2}}, "diffusion.threshold"),
        ({"diffusion": {"threshold": None}}, "diffusion.threshold"),
        ({"diffusion": {"block": 33}}, "diffusion.block"),
        ({"diffusion": {"block": 1e300}}, "diffusion.block"),
        ({"diffusion": {"max_steps": 0}}, "diffusion.max_steps"),
        ({"diffusion": {"stream_blocks": "yes"}}, "diffusion.stream_blocks"),
        ({"diffusion": True, "temperature": 0.5}, "temperature"),
        ({"diffusion": True, "grammar": 'root ::= "a"'}, "cannot be held to"),
        ({"diffusion": True, "json_schema": {"type": "object"}}, "json_schema"),
        ({"diffusion": True, "logit_bias": [[5, -1]]}, "logit_bias"),
        ({"diffusion": True, "n_probs": 3}, "n_probs"),
        ({"diffusion": True, "ignore_eos": True}, "ignore_eos"),
        ({"diffusion": True, "presence_penalty": 0.5}, "presence_penalty"),
        ({"diffusion": True, "n_cmpl": 2}, "n_cmpl"),
    ],
)
def test_what_it_cannot_do_is_refused(port: int, more: dict[str, Any], words: str) -> None:
    status, text = post(port, "/completion", {"prompt": PROMPTS[0], "n_predict": 8, **more})
    assert status == 400, text
    assert words in json.loads(text)["error"]["message"]
    assert completed(port, {"prompt": PROMPTS[0], "n_predict": 2})["stop_type"] == "limit"


def test_a_model_without_block_passes_says_so() -> None:
    with server(str(ORACLE / "expected" / "tiny_a")) as port:
        status, text = post(port, "/completion", {"prompt": [1, 2, 3], "diffusion": True})
        assert status == 400
        assert "block diffusion is not possible" in text


def test_shifted_rows_take_the_last_token_into_account() -> None:
    """With shift_logits the first row of a block comes from the logits of the token before it."""
    params = pyclover.BlockParams(block_length=8, shift_logits=True)
    flags = ("--override-kv", "clover_moe.diffusion.shift_logits=bool:true")
    with pyclover.Clover(str(TINY), n_ctx=1024, **ALONE) as m:
        m.block_params = params
        ids = [m.tokenize(prompt, add_special=False) for prompt in PROMPTS]
        ids = [x[: len(x) // 8 * 8] for x in ids if len(x) >= 8]  # no known rows in the first block
        wanted = [
            list(m.generate(x, max_tokens=20, speculation=pyclover.BlockDiffusion(threshold=0.9)).tokens) for x in ids
        ]
    with server(str(TINY.with_suffix("")), *flags) as port:
        for x, tokens in zip(ids, wanted, strict=True):
            got = completed(port, {**request(x, 20), "diffusion": {"threshold": 0.9}})
            assert got["tokens"][: len(tokens)] == tokens
