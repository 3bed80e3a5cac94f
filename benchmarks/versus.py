#!/usr/bin/env python3
"""Plain decoding and prompt reading against the same build's `llama completion`, and llama-cpp-python if it is there.

    python benchmarks/versus.py MODEL.gguf [--pairs 9] [--threads 2] [--n-predict 128] [--n-prompt 512]
                                [--peer-python PYTHON]     a Python that has llama-cpp-python
                                [--keep ROUNDS.jsonl]      add every round to this file, report on all that it holds

Each round runs every engine once, each in a process of its own, with the same tokens to read and greedy decoding, in an
order that turns round every time. Ours is timed from outside the engine (the time between the first and the last piece
of text); llama completion by its own counters, sampling included; llama-cpp-python like ours. Each warms up before.
Printed: medians, and the median and quartiles of the ratio within rounds (ours / other; above 1 is faster), with the
95 % interval of the median (order statistics, binomial). Interrupted with Ctrl-C, it reports on the rounds it has.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TEXT = (
    "The river runs past the old mill, and in spring the water stands high in the meadows. People from the village "
    "walk there in the evening, look at the boats, and talk about the weather, the harvest and the price of bread. "
)
# llama completion loads twice (it fits the memory first) and computes a token before it measures. A virtual machine's
# processors come up to speed in that time, so every engine has some work to do first.
WARM_UP = "Good morning. " * 20


def ours(model: str, prompt: str, n_predict: int, threads: int) -> dict[str, float]:
    import pyclover

    with pyclover.Clover(model, n_ctx=2048, n_threads=threads) as m:
        m.generate(WARM_UP, max_tokens=16, temperature=0)
        times = []
        stats = None
        for piece in m.stream(prompt, max_tokens=n_predict, temperature=0, ignore_eos=True):
            if piece.tokens:
                times.append(time.perf_counter())
            stats = piece.stats
        assert stats is not None
        return {"prompt": stats.prompt_tok_per_s, "decode": (len(times) - 1) / (times[-1] - times[0])}


def peer(model: str, prompt: str, n_predict: int, threads: int) -> dict[str, float]:
    import llama_cpp  # type: ignore[import-not-found]

    m = llama_cpp.Llama(model, n_ctx=2048, n_threads=threads, n_threads_batch=threads, verbose=False)
    tokens = m.tokenize(prompt.encode(), special=True)
    for n, _ in enumerate(m.generate(m.tokenize(WARM_UP.encode()), temp=0.0, top_k=1)):
        if n == 16:
            break
    m.reset()
    times = [time.perf_counter()]
    for _ in m.generate(tokens, temp=0.0, top_k=1):
        times.append(time.perf_counter())
        if len(times) > n_predict:
            break
    return {"prompt": len(tokens) / (times[1] - times[0]), "decode": (len(times) - 2) / (times[-1] - times[1])}


def completion(model: str, prompt: str, n_predict: int, threads: int) -> dict[str, float]:
    from pyclover.engine.build_info import programs

    with tempfile.NamedTemporaryFile("w", suffix=".txt") as f:
        f.write(prompt)
        f.flush()
        command = [
            str(programs()["llama"]),
            "completion",
            "-m",
            model,
            "-f",
            f.name,
            "-n",
            str(n_predict),
            "--temp",
            "0",
        ]
        command += ["-t", str(threads), "-c", "2048", "-no-cnv", "--ignore-eos", "--no-display-prompt"]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)

    def found(pattern: str) -> float:
        match = re.search(pattern, done.stderr + done.stdout)
        assert match is not None, done.stderr[-2000:]
        return float(match.group(1))

    eval_ms, runs = found(r" eval time =\s+([\d.]+) ms /\s+\d+ runs"), found(r" eval time =\s+[\d.]+ ms /\s+(\d+) runs")
    sampling_ms = found(r"sampling time =\s+([\d.]+) ms")
    return {
        "prompt": found(r"prompt eval time =.*?([\d.]+) tokens per second"),
        "decode": 1e3 * runs / (eval_ms + sampling_ms),
    }


ENGINES = {"pyclover": ours, "llama completion": completion, "llama-cpp-python": peer}


def run_apart(python: str, engine: str, args: argparse.Namespace, prompt: str) -> dict[str, float]:
    command = [python, __file__, args.model, "--only", engine, "--threads", str(args.threads)]
    command += ["--n-predict", str(args.n_predict)]
    done = subprocess.run(command, input=prompt, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{engine} failed: {done.stderr.strip()[-500:]}")
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def median_interval(ratios: list[float]) -> tuple[float, float]:
    """95 % interval of the median of sorted values: ranks n/2 -+ 1.96 sqrt(n)/2 (normal limit of the binomial)."""
    n = len(ratios)
    reach = 1.96 * math.sqrt(n) / 2
    return ratios[max(0, math.floor(n / 2 - reach))], ratios[min(n - 1, math.ceil(n / 2 + reach) - 1)]


def report(rounds: list[dict[str, dict[str, float]]], names: list[str]) -> None:
    for what in ("prompt", "decode"):
        for name in names:
            values = [r[name][what] for r in rounds if name in r]
            line = f"{what:7} {name:17} {statistics.median(values):9.1f} tok/s"
            if name != "pyclover":
                ratios = sorted(r["pyclover"][what] / r[name][what] for r in rounds if name in r)
                low, mid, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
                line += f"   pyclover / it: {mid:.3f} (quartiles {low:.3f} to {high:.3f}"
                line += ", median {:.3f} to {:.3f}; {} rounds)".format(*median_interval(ratios), len(ratios))
            print(line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--n-predict", type=int, default=128)
    parser.add_argument("--n-prompt", type=int, default=512)
    parser.add_argument("--peer-python", default="")
    parser.add_argument("--keep", type=Path, help="JSON lines, one a round; rounds of earlier runs count too")
    parser.add_argument("--only", choices=sorted(ENGINES), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.only:
        print(json.dumps(ENGINES[args.only](args.model, sys.stdin.read(), args.n_predict, args.threads)))
        return

    import pyclover

    with pyclover.Clover(args.model, n_ctx=64) as m:
        tokens = m.tokenize(TEXT * (args.n_prompt // 20 + 1))[: args.n_prompt]
        prompt = m.detokenize(tokens)
    engines = {"pyclover": sys.executable, "llama completion": sys.executable}
    if args.peer_python:
        engines["llama-cpp-python"] = args.peer_python
    rounds: list[dict[str, dict[str, float]]] = []
    if args.keep and args.keep.exists():
        rounds = [json.loads(line) for line in args.keep.read_text().splitlines()]
    earlier = len(rounds)
    try:
        for i in range(args.pairs + 1):
            order = list(engines) if i % 2 else list(reversed(engines))  # nobody always runs on a warmer machine
            measured = {name: run_apart(engines[name], name, args, prompt) for name in order}
            if i > 0:  # the first round warms the file cache
                rounds.append(measured)
                if args.keep:
                    with args.keep.open("a") as f:
                        f.write(json.dumps(measured) + "\n")
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        if not rounds:
            return
    print(
        f"{Path(args.model).name}, {args.threads} threads, {len(rounds)} rounds ({earlier} of them earlier):", end=" "
    )
    print(f"{args.n_prompt} tokens read, {args.n_predict} generated")
    report(rounds, [name for name in ENGINES if any(name in r for r in rounds)])


if __name__ == "__main__":
    main()
