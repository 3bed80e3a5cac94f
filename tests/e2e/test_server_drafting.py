"""draft-self in llama.cpp's own programs: the server and llama-speculative-simple of the package."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from llama_server import EXACT, FOLDER, ask, drafting, free_port, request, server
from support import ORACLE

import pyclover
from pyclover.engine.build_info import programs

N_CLIENTS = 8

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif("llama" not in programs(), reason="built without llama.cpp's programs"),
]


@pytest.mark.parametrize("name", ["tiny_a_preview", "tiny_b_preview"])
def test_the_server_drafts_as_the_reference(name: str, expected: Callable[[str], dict[str, Any]]) -> None:
    """This is also the test of the server's target context: without it nothing would be drafted."""
    by_settings: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for run in expected(name)["draft_self"]:
        by_settings.setdefault((run["n_max"], run["ratio"], run["delta"], run["block"]), []).append(run)
    assert len(by_settings) == 5
    for (n_max, ratio, delta, block), runs in by_settings.items():
        more = ["--spec-draft-rows", str(block)] if block else []
        if ratio != 1:
            more += ["--spec-accept-ratio", str(ratio), "--spec-accept-delta", str(delta)]
        with server(name, "-np", "1", *drafting(n_max, *more)) as port:
            for run in runs:
                got = ask(port, request(run["prompt_ids"], run["n_predict"]))
                n = len(got["tokens"])
                assert got["tokens"] == run["tokens"][:n]
                assert n == run["n_predict"] or got["stop_type"] == "eos"
                timings = got["timings"]
                assert timings["draft_n"] > 0
                assert sum(timings["draft_n_by_position"]) == timings["draft_n"]
                assert sum(timings["draft_n_accepted_by_position"]) == timings["draft_n_accepted"]
                assert timings["draft_rounds"] >= timings["draft_n_by_position"][0]
                assert timings["draft_relaxed"] == (ratio != 1)


@pytest.mark.parametrize("name", ["tiny_a_preview", "tiny_b_preview"])
def test_speculative_simple_writes_what_the_reference_does(
    name: str, expected: Callable[[str], dict[str, Any]]
) -> None:
    with pyclover.Clover(FOLDER / f"{name}.gguf", n_ctx=64, n_threads=1) as m:
        for run in expected(name)["draft_self"]:
            command = [str(programs()["llama-speculative-simple"]), "-m", m.path, *EXACT, "-p", run["prompt"]]
            command += ["-n", str(run["n_predict"] - 1), *drafting(run["n_max"])]  # it goes on until it has one more
            if run["block"]:
                command += ["--spec-draft-rows", str(run["block"])]
            if run["ratio"] != 1:
                command += ["--spec-accept-ratio", str(run["ratio"]), "--spec-accept-delta", str(run["delta"])]
            done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", timeout=60, check=False)
            assert done.returncode == 0, done.stderr
            tokens = run["tokens"]
            tokens = tokens[: tokens.index(m.info.eos)] if m.info.eos in tokens else tokens
            assert m.detokenize(tokens) in done.stdout


@pytest.mark.parametrize("cache", ["--kv-unified", "--no-kv-unified"])
def test_eight_clients_two_of_which_leave(cache: str) -> None:
    name = "tiny_a_preview"
    with pyclover.Clover(FOLDER / f"{name}.gguf", n_ctx=64, n_threads=1) as m:
        texts = ["The quick brown fox", "a", "blocks of text and numbers", "12 + 7 =", "over the lazy dog", "x y z"]
        ids = [m.tokenize(f"{texts[i % len(texts)]} {i}") for i in range(N_CLIENTS)]
    lengths = [12, 20, 33, 48, 64, 40, 25, 56]
    with server(name, "-np", "1", *drafting(7)) as port:
        alone = [ask(port, request(i, n))["tokens"] for i, n in zip(ids, lengths, strict=True)]

    with server(name, "-np", "4", "-c", "4096", cache, *drafting(7)) as port:
        # several times: requests that begin while others are checked once moved the states of these
        for _ in range(10):
            got = all_at_once(port, ids, lengths, leaving=(2, 5))
            assert [g for g in got if g is not None] == [a for i, a in enumerate(alone) if i not in (2, 5)]
        assert ask(port, request(ids[0], lengths[0]))["tokens"] == alone[0]


def all_at_once(
    port: int, ids: list[list[int]], lengths: list[int], leaving: tuple[int, ...]
) -> list[list[int] | None]:
    """Answers of clients that ask together; those that leave hang up when their answer has begun."""
    got: list[list[int] | None] = [None] * len(ids)

    def stays(i: int) -> None:
        got[i] = ask(port, request(ids[i], lengths[i]), timeout=120)["tokens"]

    def leaves(i: int) -> None:
        body = json.dumps({**request(ids[i], 600), "stream": True, "ignore_eos": True})
        with socket.create_connection(("127.0.0.1", port), timeout=60) as s:
            head = "POST /completion HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: "
            s.sendall(f"{head}{len(body)}\r\n\r\n{body}".encode())
            assert s.recv(64)  # the answer has begun

    threads = [threading.Thread(target=leaves if i in leaving else stays, args=(i,)) for i in range(len(ids))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(150)
        assert not thread.is_alive(), "a client waits for ever"
    return got


@pytest.mark.parametrize("start", [(), ("--spec-draft-start-plain",)], ids=["drafts-first", "plain-first"])
def test_drafts_that_do_not_pay_are_given_up(start: tuple[str, ...]) -> None:
    """Of a random model nearly no draft is accepted, so that a round costs two passes for one token."""
    name = "tiny_a_preview"
    with pyclover.Clover(FOLDER / f"{name}.gguf", n_ctx=64, n_threads=1) as m:
        ids = m.tokenize("The quick brown fox")
    asked = {**request(ids, 300), "ignore_eos": True}
    with server(name, "-c", "512", *drafting(7)) as port:
        fixed = ask(port, asked)
    with server(name, "-c", "512", *drafting(7, "--spec-draft-adaptive", *start)) as port:
        adaptive = ask(port, asked)
    assert adaptive["tokens"] == fixed["tokens"]
    n_fixed, n_adaptive = (answer["timings"].get("draft_rounds", 0) for answer in (fixed, adaptive))
    assert n_fixed > 150
    assert n_adaptive < n_fixed // 3


def test_four_slots_with_a_controller_each_answer_as_one() -> None:
    name = "tiny_a_preview"
    with pyclover.Clover(FOLDER / f"{name}.gguf", n_ctx=64, n_threads=1) as m:
        ids = [m.tokenize(f"blocks of text {i}") for i in range(8)]
    lengths = [30, 50, 20, 64, 41, 33, 12, 57]
    with server(name, "-np", "1", "-c", "1024") as port:
        alone = [ask(port, request(i, n))["tokens"] for i, n in zip(ids, lengths, strict=True)]
    with server(name, "-np", "4", "-c", "4096", *drafting(7, "--spec-draft-adaptive")) as port:
        for _ in range(5):
            assert all_at_once(port, ids, lengths, leaving=()) == alone


QUESTIONS = ["What is 12 + 7?", "Count from 3 to 17.", "Sort 5 3 9 1", "Tell me a story about a cat.", "Spell planet."]


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.9, "seed": 5, "top_k": 20}], ids=["greedy", "sampled"])
@pytest.mark.parametrize("slots", [("-np", "1"), ("-np", "4", "--kv-unified"), ("-np", "4", "--no-kv-unified")])
def test_drafts_made_ahead_change_nothing(slots: tuple[str, ...], sampling: dict[str, Any]) -> None:
    with pyclover.Clover("tiny", n_ctx=256, n_threads=1) as m:
        tiny = Path(m.path)
        asked = [f"<|im_start|>user\n{q}<|im_end|>\n<|im_start|>assistant\n" for q in QUESTIONS]
        ids = [m.tokenize(text, parse_special=True) for text in asked]
    with server(tiny, *slots) as port:
        plain = [ask(port, {**request(i, 60), **sampling})["tokens"] for i in ids]
    with server(tiny, *slots, *drafting(7, "--spec-draft-ahead")) as port:
        got = [ask(port, {**request(i, 60), **sampling}) for i in ids]
        assert [one["tokens"] for one in got] == plain
        timings = [one["timings"] for one in got]
        assert all(t["draft_ahead"] > 0 for t in timings)
        assert sum(t["draft_ahead_used"] for t in timings) > 1
        if not sampling:
            # a check of one is alone in its pass or not as it comes: the text is the same
            assert all_at_once(port, ids, [60] * len(ids), leaving=()) == plain
    with server(tiny, *slots, *drafting(7, "--spec-draft-ahead", "--spec-rollback", "snapshots")) as port:
        one = ask(port, {**request(ids[1], 60), **sampling})
    assert one["tokens"] == plain[1]
    assert one["timings"]["draft_ahead"] == 0  # nothing can ride behind a check there


@pytest.mark.parametrize("name", ["tiny_a_preview", "tiny_b_preview"])
def test_the_server_drafts_ahead_as_the_reference_writes(name: str, expected: Callable[[str], dict[str, Any]]) -> None:
    runs = [run for run in expected(name)["draft_self"] if run["ratio"] == 1]
    assert len(runs) >= 3
    for run in runs:
        more = ["--spec-draft-rows", str(run["block"])] if run["block"] else []
        with server(name, "-np", "1", *drafting(run["n_max"], "--spec-draft-ahead", *more)) as port:
            got = ask(port, request(run["prompt_ids"], run["n_predict"]))
        n = len(got["tokens"])
        assert got["tokens"] == run["tokens"][:n]
        assert n == run["n_predict"] or got["stop_type"] == "eos"
        assert got["timings"]["draft_ahead"] > 0


# the published quick start's flags; only the model's path is another
# fmt: off
QUICK_START = [
    "-p", "Hello", "-n", "48", "-c", "1024", "-b", "512", "-ub", "256", "-ngl", "99", "-t", "1", "-tb", "1",
    "--temp", "0", "--top-k", "40", "--top-p", "0.95", "--min-p", "0.05", "--seed", "1", "-ctk", "f32", "-ctv", "f32",
    "--flash-attn", "off", "--spec-type", "draft-self", "--spec-draft-n-max", "15",
    "--spec-accept-ratio", "0.9", "--spec-accept-delta", "0.6",
]
# fmt: on


def test_the_quick_start_runs_word_for_word(tmp_path: Path) -> None:
    model = ["-m", str(FOLDER / "tiny_b_preview.gguf")]
    ours = [sys.executable, "-m", "pyclover.cli.main", "generate", *model, *QUICK_START, "--color", "-q"]
    theirs = [str(programs()["llama-speculative-simple"]), *model, *QUICK_START, "--color", "off"]
    env = {**os.environ, "NO_COLOR": "1"}
    done = [
        subprocess.run(
            command, capture_output=True, text=True, encoding="utf-8", timeout=60, check=False, env=env, cwd=tmp_path
        )
        for command in (ours, theirs)
    ]
    assert [d.returncode for d in done] == [0, 0], done
    text = done[0].stdout.rstrip("\n")
    assert len(text) > 40
    assert text in done[1].stdout


def run_program(program: str, *args: str) -> subprocess.CompletedProcess[str]:
    command = [str(programs()["llama"]), "serve"] if program == "serve" else [str(programs()[program])]
    more = ["--host", "127.0.0.1", "--port", str(free_port())] if program == "serve" else ["-p", "Hello", "-n", "4"]
    return subprocess.run([*command, *args, *more], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("program", ["serve", "llama-speculative-simple"])
@pytest.mark.parametrize(
    ("file", "args", "said"),
    [
        (ORACLE / "expected" / "tiny_a.gguf", drafting(3), "no preview tensors"),
        (FOLDER / "tiny_a_preview.gguf", drafting(0), "between 1 and 31"),
        (FOLDER / "tiny_a_preview.gguf", drafting(32), "between 1 and 31"),
        (FOLDER / "tiny_a_preview.gguf", drafting(-1), "invalid value"),
        (FOLDER / "tiny_a_preview.gguf", drafting(3, "--spec-draft-steps", "2", "--spec-draft-ahead"), "one pass"),
        (FOLDER / "tiny_a_preview.gguf", drafting(3, "--spec-accept-ratio", "1.5"), "accept_ratio"),
        (FOLDER / "tiny_a_preview.gguf", drafting(3, "--spec-accept-delta", "-1"), "accept_delta"),
        (FOLDER / "tiny_a_preview.gguf", drafting(3, "--spec-accept-ratio", "0.9", "--temp", "0.8"), "--temp 0"),
    ],
)
def test_what_was_asked_for_and_cannot_start_stops_the_program(
    program: str, file: Any, args: list[str], said: str
) -> None:
    done = run_program(program, "-m", str(file), "-c", "256", "-t", "1", *args)
    assert done.returncode == 1, done.stderr
    assert said in done.stderr + done.stdout


def test_relaxed_acceptance_never_overrules_a_request() -> None:
    """A banned token stays banned, and the text is then that of the lossless server."""
    body = request([347, 12, 5], 40)
    with server("tiny_a_preview", "-np", "1", *drafting(7, "--spec-accept-ratio", "0.05")) as port:
        free = ask(port, body)
        banned = [[token, False] for token in sorted(set(free["tokens"]))[:3]]
        relaxed = ask(port, {**body, "logit_bias": banned})
    with server("tiny_a_preview", "-np", "1", *drafting(7)) as port:
        lossless = ask(port, {**body, "logit_bias": banned})
    assert free["timings"]["draft_relaxed"]
    assert not relaxed["timings"]["draft_relaxed"]
    assert not {token for token, _ in banned} & set(relaxed["tokens"])
    assert relaxed["tokens"] == lossless["tokens"]


@pytest.mark.parametrize("small", [["-ub", "8"], ["-b", "8"], ["-c", "8"]])
@pytest.mark.parametrize("program", [("llama-speculative-simple",), ("llama", "serve")])
def test_batches_too_small_for_a_draft_are_an_error_of_one_line(small: list[str], program: tuple[str, ...]) -> None:
    command = [
        str(programs()[program[0]]),
        *program[1:],
        "-m",
        str(FOLDER / "tiny_a_preview.gguf"),
        *drafting(31),
        *small,
    ]
    command += ["-p", "The quick"] if program[0] != "llama" else ["--host", "127.0.0.1", "--port", str(free_port())]
    done = subprocess.run([*command, "--temp", "0"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "--spec-draft-n-max 31 needs batches of 33 tokens" in done.stderr + done.stdout


@pytest.mark.parametrize("value", ["0.9xyz", "x", "1.5", "nan"])
def test_an_acceptance_ratio_that_is_no_number(value: str) -> None:
    command = [str(programs()["llama-speculative-simple"]), "-m", str(FOLDER / "tiny_a_preview.gguf"), "-p", "x"]
    command += [*drafting(3), "--temp", "0", "--spec-accept-ratio", value]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "--spec-accept-ratio" in done.stderr


def test_relaxed_acceptance_says_so_at_the_start() -> None:
    command = [
        str(programs()["llama-speculative-simple"]),
        "-m",
        str(FOLDER / "tiny_a_preview.gguf"),
        "-p",
        "x",
        "-n",
        "4",
    ]
    command += [*EXACT, *drafting(3), "--spec-accept-ratio", "0.5"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0
    assert "changes the text" in done.stderr + done.stdout
