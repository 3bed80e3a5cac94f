#!/usr/bin/env python3
"""Many clients at one server that drafts: is an answer lost, mixed up or changed, and does its memory grow?

    python benchmarks/clients.py [-m MODEL] [--clients 8] [--requests 50] [--slots 8] [--n-max 7] [--rounds 2]

Every request of every client is a question of its own, and greedy. First all are asked one after the other, with the
probabilities of each token; then, in each round, all clients ask at once, every second request as a stream. A text has
to be that of the single run. Requests that are computed together are rounded differently on some processors, so a text
may part from it at a tie: where the single run's own next tokens were less than TIE apart in log-probability. Such
texts are counted, and more than 2 % of them are an error; anything else that differs is an error at once. Exit code 1
with an error, or when a round after the first one leaves the server with more than 16 MiB more memory.
"""

from __future__ import annotations

import argparse
import http.client
import json
import statistics
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import Any, Literal

import psutil

from pyclover.engine.speculation import DraftSelf
from pyclover.serve.server import Server, start_server

TIE = 0.05  # of a natural logarithm
MAX_TIES = 0.02  # of all texts
MAX_GROWTH_MIB = 16.0
N_TOKENS = 48


@dataclass(frozen=True)
class Said:
    """An answer; `tokens` (of single runs) are text and, of that and the next likely ones, log-probability."""

    reasoning: str
    content: str
    finish_reason: str
    tokens: tuple[tuple[str, dict[str, float]], ...] = ()

    @property
    def text(self) -> tuple[str, str, str]:
        return self.reasoning, self.content, self.finish_reason


@dataclass
class Round:
    """All clients at once: texts that are equal, or that part at a tie; what was wrong; seconds; MiB afterwards."""

    n_equal: int = 0
    n_ties: int = 0
    widest_tie: float = 0.0
    wrong: list[str] = field(default_factory=list)
    seconds: float = 0.0
    rss_mib: float = 0.0


def question(client: int, request: int, n_requests: int) -> str:
    """No two are alike."""
    n = client * n_requests + request
    return f"What is {10 + n % 80} + {3 + n // 80 % 90}?" if n < 7200 else f"Count from {n} to {n + 3}."


class Client:
    """One connection that is kept."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)

    def ask(self, text: str, *, stream: bool = False, probabilities: bool = False) -> Said:
        """The answer.

        Raises:
            RuntimeError: the server refused, or the answer has no end.
        """
        body: dict[str, Any] = {"messages": [{"role": "user", "content": text}], "temperature": 0}
        body |= {"max_tokens": N_TOKENS, "stream": stream}
        body |= {"logprobs": True, "top_logprobs": 8} if probabilities else {}
        self._connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        answer = self._connection.getresponse()
        data = answer.read()
        if stream:  # llama.cpp's server closes the connection after a stream, without announcing it
            self._connection.close()
        if answer.status != 200:
            raise RuntimeError(f"status {answer.status}: {data[:200]!r}")
        return _streamed(data) if stream else _whole(json.loads(data))


def _whole(answer: dict[str, Any]) -> Said:
    [choice] = answer["choices"]
    message, seen = choice["message"], (choice.get("logprobs") or {}).get("content") or []
    tokens = tuple((t["token"], {o["token"]: o["logprob"] for o in t["top_logprobs"]}) for t in seen)
    return Said(message.get("reasoning_content") or "", message["content"] or "", choice["finish_reason"], tokens)


def _streamed(data: bytes) -> Said:
    events = [line[6:] for line in data.decode().splitlines() if line.startswith("data: ")]
    if not events or events[-1] != "[DONE]":
        raise RuntimeError("a stream that does not end")
    choices = [c for event in events[:-1] for c in json.loads(event)["choices"]]
    reasoning = "".join(c["delta"].get("reasoning_content") or "" for c in choices)
    content = "".join(c["delta"].get("content") or "" for c in choices)
    ends = [c["finish_reason"] for c in choices if c["finish_reason"]]
    if len(ends) != 1:
        raise RuntimeError(f"a stream with {len(ends)} ends")
    return Said(reasoning, content, ends[0])


def compared(single: Said, other: Said) -> float | Literal["equal", "different"]:
    """How a text stands to that of the single run; a number where they part at a tie: how wide it was."""
    if (single.reasoning.strip(), single.content, single.finish_reason) == (
        other.reasoning.strip(), other.content, other.finish_reason,
    ):  # fmt: skip
        return "equal"
    raw = "".join(text for text, _ in single.tokens)
    mine, theirs = single.reasoning.strip(), other.reasoning.strip()
    offset = raw.find(mine)
    if mine == theirs:
        mine, theirs = single.content, other.content
        offset = raw.rfind(mine)
    same = next((i for i, (a, b) in enumerate(zip(mine, theirs, strict=False)) if a != b), min(len(mine), len(theirs)))
    at = 0
    for text, likely in single.tokens:
        start = at - offset
        if start <= same < start + len(text) and start >= 0:
            gaps = [likely[text] - p for t, p in likely.items() if t != text and t and theirs[start:].startswith(t)]
            return min((gap for gap in gaps if gap < TIE), default="different")
        at += len(text)
    return "different"


def all_at_once(port: int, singles: dict[tuple[int, int], Said], n_clients: int, n_requests: int) -> Round:
    """One round."""
    got: dict[tuple[int, int], Said] = {}
    result = Round()

    def work(i: int) -> None:
        client = Client(port)
        for j in range(n_requests):
            try:
                got[i, j] = client.ask(question(i, j, n_requests), stream=j % 2 == 1)
            except (RuntimeError, OSError, http.client.HTTPException, ValueError, KeyError) as error:
                result.wrong.append(f"client {i}, request {j}: {type(error).__name__}: {error}")
                client = Client(port)

    began = time.monotonic()
    threads = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(n_clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    result.seconds = time.monotonic() - began
    owners = {single.text: key for key, single in singles.items()}
    for (i, j), single in singles.items():
        other = got.get((i, j))
        if other is None:
            continue  # told above
        how = compared(single, other)
        asked = f"client {i}, request {j}, {question(i, j, n_requests)!r}"
        if how == "equal":
            result.n_equal += 1
        elif other.text in owners:
            result.wrong.append(f"{asked}: the answer to request {owners[other.text]}")
        elif isinstance(how, float):
            result.n_ties += 1
            result.widest_tie = max(result.widest_tie, how)
        else:
            result.wrong.append(f"{asked}: {other.text} instead of {single.text}")
    if result.n_ties > MAX_TIES * len(singles):
        result.wrong.append(f"{result.n_ties} of {len(singles)} texts part at a tie")
    return result


def rss_mib(server: Server) -> float:
    """Of the server's process."""
    assert server.pid is not None
    return float(psutil.Process(server.pid).memory_info().rss / 2**20)


def measured(server: Server, n_clients: int, n_requests: int, n_rounds: int) -> list[Round]:
    """The single runs, then the rounds.

    Raises:
        RuntimeError: a single run failed, or two have the same answer, which could hide that they were mixed up.
    """
    client = Client(server.port)
    keys = [(i, j) for i in range(n_clients) for j in range(n_requests)]
    singles = {(i, j): client.ask(question(i, j, n_requests), probabilities=True) for i, j in keys}
    if len({single.text for single in singles.values()}) != len(singles):
        raise RuntimeError("two questions have the same answer: take another model")
    rounds = []
    for _ in range(n_rounds):
        rounds.append(all_at_once(server.port, singles, n_clients, n_requests))
        rounds[-1].rss_mib = rss_mib(server)
        if len(rounds) > 1 and rounds[-1].rss_mib - rounds[-2].rss_mib > MAX_GROWTH_MIB:
            rounds[-1].wrong.append(f"the server grew from {rounds[-2].rss_mib:.0f} to {rounds[-1].rss_mib:.0f} MiB")
    return rounds


def main() -> int:
    """Measures and prints; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", default="tiny")
    for name, default in (("clients", 8), ("requests", 50), ("slots", 8), ("n-max", 7), ("rounds", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    drafting = DraftSelf(n_max=args.n_max, adaptive=False) if args.n_max else None
    with start_server(args.model, port=0, n_slots=args.slots, speculation=drafting) as server:
        print(f"{server.mode}, {server.n_slots} slots, {server.n_threads} threads: {rss_mib(server):.1f} MiB at start")
        rounds = measured(server, args.clients, args.requests, args.rounds)
        for n, one in enumerate(rounds, 1):
            print(
                f"round {n}: {one.n_equal} of {args.clients * args.requests} equal, {one.n_ties} part at a tie "
                f"(widest {one.widest_tie:.3f}), {len(one.wrong)} wrong; {one.seconds:.1f} s, {one.rss_mib:.1f} MiB"
            )
        print(f"median of a round {statistics.median(one.seconds for one in rounds):.1f} s")
        restarts = server.n_restarts
    wrong = [text for one in rounds for text in one.wrong]
    wrong += [f"the server was started anew {restarts} times"] if restarts else []
    print(*wrong, sep="\n", file=sys.stderr) if wrong else None
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
