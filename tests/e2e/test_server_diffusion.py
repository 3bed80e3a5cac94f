"""Block diffusion in the package's server: the same tokens as through the API, beside other requests."""

from __future__ import annotations

import http.client
import itertools
import json
import threading
import time
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
        ({"diffusion": {"steps": 1}}, 'diffusion has no field "steps"'),
        ({"diffusion": {"\0" + "x" * 5000: 1}}, 'xxx": it has threshold'),
        ({"diffusion": {"threshold": 2}}, "diffusion.threshold"),
        ({"diffusion": {"threshold": "0.9"}}, "diffusion.threshold"),
        ({"diffusion": {"block": 33}}, "diffusion.block"),
        ({"diffusion": {"block": 1e300}}, "diffusion.block"),
        ({"diffusion": {"max_steps": 0}}, "diffusion.max_steps"),
        ({"diffusion": {"stream_blocks": "yes"}}, "diffusion.stream_blocks"),
        ({"diffusion": True, "temperature": 0.5}, "temperature"),
        ({"diffusion": True, "grammar": 'root ::= "a"'}, "grammar or tool_choice"),
        ({"diffusion": True, "json_schema": {"type": "object"}}, "json_schema"),
        ({"diffusion": True, "logit_bias": [[5, -1]]}, "logit_bias"),
        ({"diffusion": True, "n_probs": 3}, "logprobs (n_probs)"),
        ({"diffusion": True, "mirostat": 2}, "mirostat"),
        ({"diffusion": True, "xtc_probability": 0.5}, "xtc_probability"),
        ({"diffusion": True, "top_n_sigma": 1.0}, "top_n_sigma"),
        ({"diffusion": True, "typical_p": 0.5}, "typical_p"),
        ({"diffusion": True, "reasoning_budget_tokens": 9}, "thinking budget"),
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


QUESTIONS = ("Count from 3 to 9.", "What is 12 + 7?", "Who are you?", "Sort 5, 3, 9, 1.")


def chat(question: str) -> str:
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize("mode", [{}, {"diffusion": True}], ids=["plain", "diffusion"])
def test_a_prompt_that_differs_at_the_first_token_leaves_no_state_behind(mode: dict[str, Any]) -> None:
    """The checkpoint of a text whose first token was another one was taken for the next text's."""
    with server(TINY, "-np", "1") as port:
        wanted = [
            completed(port, {"prompt": chat(q), "n_predict": 30, "cache_prompt": False, **mode})["content"]
            for q in QUESTIONS
        ]
    for i in range(1, len(QUESTIONS)):
        with server(TINY, "-np", "1") as port:
            completed(port, {"prompt": "Once upon a time", "n_predict": 30, "temperature": 0})
            for k in (0, i):
                got = completed(port, {"prompt": chat(QUESTIONS[k]), "n_predict": 30, **mode})
                assert got["content"] == wanted[k], (i, k)


def hang_up(port: int, after_s: float) -> None:
    """A request for a long story whose client leaves."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    body = {"prompt": "Once upon a time", "n_predict": 500, "stream": True, "diffusion": {"threshold": 1}}
    connection.request("POST", "/completion", json.dumps(body), {"Content-Type": "application/json"})
    time.sleep(after_s)
    connection.close()


def test_what_a_client_that_left_has_computed_reaches_nobody() -> None:
    """Rows of its last block were applied to the state of another sequence that got its place."""
    bodies = [
        {"prompt": chat(q), "n_predict": 40, "cache_prompt": False, "diffusion": {"threshold": t}}
        for q in (*QUESTIONS, "Count from 3 to 20.", "Count from 11 to 31.") for t in (0.9, 1)
    ]  # fmt: skip
    with server(TINY, "-np", "4", "--kv-unified", "-c", "8192", *drafting(7)) as port:
        wanted = [completed(port, body)["content"] for body in bodies]
        left = threading.Event()

        def leave() -> None:
            for i in itertools.count():
                if left.is_set():
                    return
                hang_up(port, 0.02 + 0.03 * (i % 5))

        one = threading.Thread(target=leave)
        one.start()
        try:
            with ThreadPoolExecutor(3) as pool:
                for _ in range(6):
                    assert [got["content"] for got in pool.map(lambda body: completed(port, body), bodies)] == wanted
        finally:
            left.set()
            one.join()


def first_text_s(port: int, body: dict[str, Any]) -> tuple[float, float]:
    """Seconds to the first piece of a stream, and to its end."""
    began = time.monotonic()
    first = 0.0
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    connection.request(
        "POST", "/completion", json.dumps({**body, "stream": True}), {"Content-Type": "application/json"}
    )
    for line in connection.getresponse():
        if line.startswith(b"data:") and json.loads(line[5:])["content"] and not first:
            first = time.monotonic() - began
    connection.close()
    return first, time.monotonic() - began


@pytest.mark.parametrize(
    ("blocks", "flags"),
    [((8,) * 8, ()), ((8, 16, 8, 16), ()), ((32, 32, 32), ()), ((32, 0), ("-b", "32", "-ub", "32"))],
    ids=["more-than-fit", "two-lengths", "one-at-a-time", "beside-plain"],
)
def test_nobody_waits_until_others_are_done(blocks: tuple[int, ...], flags: tuple[str, ...]) -> None:
    with server(TINY, "-np", str(len(blocks)), "--kv-unified", "-c", "8192", *flags) as port:
        bodies = [
            {"prompt": "Once upon a time", "n_predict": 320, "cache_prompt": False,
             **({"diffusion": {"threshold": 1, "block": n}} if n else {"ignore_eos": True})}
            for n in blocks
        ]  # fmt: skip
        with ThreadPoolExecutor(len(bodies)) as pool:
            times = list(pool.map(lambda body: first_text_s(port, body), bodies))
    # whoever begins with the others has its first block long before the first of them is at its end
    assert max(first for first, _ in times) < 0.5 * min(end for _, end in times)


def test_slots_with_caches_of_their_own() -> None:
    """Blocks of slots that are no neighbours cannot share a pass there."""
    with server(TINY, "-np", "4", "--no-kv-unified", "-c", "4096") as port:
        bodies = [
            {"prompt": chat(q), "n_predict": 60, "id_slot": i, "cache_prompt": False,
             **({"diffusion": {"threshold": 1}} if i in (0, 2, 3) else {"temperature": 0})}
            for i, q in enumerate(("Count from 3 to 20.", "Who are you?", "Count from 5 to 25.", "Count from 1 to 9."))
        ]  # fmt: skip
        wanted = [completed(port, body)["content"] for body in bodies]
        for _ in range(3):
            with ThreadPoolExecutor(4) as pool:
                assert [got["content"] for got in pool.map(lambda body: completed(port, body), bodies)] == wanted


def test_a_prompt_that_leaves_room_for_one_token_beside_other_blocks() -> None:
    with server(TINY, "-np", "2", "--kv-unified", "-c", "4096") as port:
        story = {"prompt": "Once upon a time", "n_predict": 400, "diffusion": {"block": 32, "threshold": 1}}
        ids = [int(i) for i in json.loads(post(port, "/tokenize", {"content": "a b c " * 1500})[1])["tokens"]][:2047]
        assert len(ids) == 2047
        with ThreadPoolExecutor(1) as pool:
            other = pool.submit(completed, port, story)
            time.sleep(0.3)
            got = completed(port, {**request(ids, 5), "diffusion": {"block": 1}})
            assert (len(got["tokens"]), got["stop_type"]) == (1, "limit")
            assert other.result()["timings"]["diffusion_passes"] > 0


def test_the_whole_prompt_is_named_and_the_settings() -> None:
    with server(TINY, "-np", "1") as port:
        for prompt in (PROMPTS[0], PROMPTS[3]):
            got = completed(port, {"prompt": prompt, "n_predict": 4, "diffusion": {"block": 16}})
            assert got["prompt"] == prompt
            assert got["generation_settings"]["diffusion"] == {
                "threshold": pytest.approx(0.95), "block": 16, "max_steps": None, "stream_blocks": False,
            }  # fmt: skip
        assert completed(port, {"prompt": "Hi", "n_predict": 4})["generation_settings"]["diffusion"] is False


def test_chat_forms_and_the_server_s_own_budget() -> None:
    messages = {"messages": [{"role": "user", "content": "What is 12 + 7?"}], "max_tokens": 40}
    with server(TINY, "-np", "1", "--jinja", "--reasoning-budget", "5") as port:
        status, text = post(port, "/v1/chat/completions", {**messages, "diffusion": True})
        assert status == 200, text
        assert json.loads(text)["timings"]["diffusion_passes"] > 0
        status, text = post(port, "/v1/chat/completions", {**messages, "diffusion": True, "thinking_budget_tokens": 9})
        assert status == 400
        assert "thinking budget" in text
        # Anthropic's form
        status, text = post(port, "/v1/messages", {**messages, "diffusion": 7})
        assert status == 400
        assert "diffusion must be true" in text
        status, text = post(port, "/v1/messages", {**messages, "diffusion": {"threshold": 0, "block": 32}})
        assert status == 200, text
        plain = post(port, "/v1/messages", messages)[1]
        assert json.loads(text)["content"] != json.loads(plain)["content"]  # one pass decides all: other words


def test_passes_are_progress() -> None:
    with server(TINY, "-np", "1", "--slots") as port, ThreadPoolExecutor(1) as pool:
        story = {"prompt": "Once upon a time", "n_predict": 400, "diffusion": {"block": 32, "threshold": 1}}
        answer = pool.submit(completed, port, story)
        seen = set()
        while not answer.done():
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            connection.request("GET", "/slots")
            seen.add(json.loads(connection.getresponse().read())[0].get("diffusion_passes"))
            connection.close()
            time.sleep(0.01)
        assert len(seen) > 3


def test_a_signal_ends_the_server_whatever_it_does() -> None:
    """Its handler took a lock that the thread which it had interrupted held at times."""
    for i in range(12):
        with server(TINY, "-np", "2", "--kv-unified", "-c", "4096") as port:
            for _ in range(2):
                threading.Thread(target=hang_up, args=(port, 1.0), daemon=True).start()
            time.sleep(0.1 + 0.03 * i)
            began = time.monotonic()
        assert time.monotonic() - began < 10
