#!/usr/bin/env python3
"""Speed of whole programs that take turns: what the machine does meanwhile hits all of them alike.

    python benchmarks/alternating.py MODEL.gguf [--what decode|prompt] [--runs 4] [--window 1.0] [--n-predict 1400]
                                     [--n-prompt 1500] [--threads 2] [--flash-attn auto|on|off]
                                     [--peer-python PYTHON] [--keep WINDOWS.jsonl]

The programs: `clover-run generate`, the same build's `llama completion`, and with --peer-python (a Python that has
llama-cpp-python) a loop over `Llama.generate` that writes each token. All continue the same prompt greedily, so they
write the same text; they are started together and stopped (SIGSTOP) as soon as their text begins. Then each in turn
goes on (SIGCONT) for a window, the order turning round every time, until the first is through. A window counts the
characters that came out, and with them the tokens: the text is known. Each window starts with the caches that the
others left. --flash-attn is given to the first two; llama-cpp-python has it off unless it is "on".

With --what prompt each reads the same long prompt (pyclover through its Python API). They are stopped when they have
loaded and are about to read, and go on in turns until each has said its first token; the windows of a program added up
are its time for the prompt, so that one run gives one ratio.

Printed: tokens a second in the windows, and the ratio to the others within a round of windows (or a run): its median
with quartiles and 95 % interval, and that of the sums.
"""

from __future__ import annotations

import argparse
import bisect
import json
import os
import selectors
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from versus import TEXT, median_interval

PROMPT = "The river runs past the old mill, and in spring the water stands high in the meadows."
PEER = """
import sys, llama_cpp
model, threads, n, prompt, flash = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5] == "on"
m = llama_cpp.Llama(model, n_ctx=2048, n_threads=threads, n_threads_batch=threads, flash_attn=flash, verbose=False)
for i, token in enumerate(m.generate(m.tokenize(prompt.encode()), temp=0.0, top_k=1)):
    if i == n:
        break
    sys.stdout.buffer.write(m.detokenize([token], special=False))
    sys.stdout.flush()
"""
# What --what prompt runs: a mark on stderr just before the prompt is read, one token after it.
OURS_PROMPT = """
import sys, pyclover
model, threads, file = sys.argv[1], int(sys.argv[2]), sys.argv[3]
flash = {"auto": "auto", "on": True, "off": False}[sys.argv[4]]
with pyclover.Clover(model, n_ctx=2048, n_threads=threads, flash_attn=flash) as m:
    prompt = open(file).read()
    print("generate: n_ctx", file=sys.stderr, flush=True)
    m.generate(prompt, max_tokens=1, temperature=0, ignore_eos=True)
    print("x", flush=True)
"""
PEER_PROMPT = """
import sys, llama_cpp
model, threads, file, flash = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4] == "on"
m = llama_cpp.Llama(model, n_ctx=2048, n_threads=threads, n_threads_batch=threads, flash_attn=flash, verbose=False)
prompt = m.tokenize(open(file, "rb").read())
print("generate: n_ctx", file=sys.stderr, flush=True)
next(iter(m.generate(prompt, temp=0.0, top_k=1)))
print("x", flush=True)
"""


@dataclass
class Program:
    name: str
    process: subprocess.Popen[bytes]
    n_bytes: int = 0
    done: bool = False
    windows: list[tuple[int, float]] = field(default_factory=list)  # tokens, seconds

    def read(self, seconds: float, until_text: bool = False) -> float:
        """Reads for that long, or until something comes; returns the time it took."""
        assert self.process.stdout is not None
        began = time.perf_counter()
        end = began + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while (left := end - time.perf_counter()) > 0:
                if selector.select(left):
                    data = os.read(self.process.stdout.fileno(), 1 << 16)
                    if not data:
                        self.done = True
                        break
                    self.n_bytes += len(data)
                    if until_text:
                        break
        return time.perf_counter() - began


def commands(args: argparse.Namespace, file: str) -> dict[str, list[str]]:
    from pyclover.engine.build_info import programs

    common = ["-m", args.model, "-n", str(args.n_predict), "-c", "2048", "-t", str(args.threads), "--temp", "0"]
    common += ["--flash-attn", args.flash_attn]
    run = [str(Path(sys.executable).with_name("clover-run")), "generate", *common, "--ignore-eos", "-p", PROMPT]
    completion = [str(programs()["llama"]), "completion", *common, "--ignore-eos", "-f", file]
    found = {"pyclover": run, "llama completion": [*completion, "-no-cnv", "--no-display-prompt"]}
    if args.peer_python:
        found["llama-cpp-python"] = [
            args.peer_python, "-c", PEER, args.model, str(args.threads), str(args.n_predict), PROMPT, args.flash_attn,
        ]  # fmt: skip
    return found


def token_ends(args: argparse.Namespace) -> list[int]:
    """Byte at which each token of the text ends."""
    import pyclover

    with pyclover.Clover(args.model, n_ctx=2048, n_threads=args.threads) as m:
        tokens = m.generate(PROMPT, max_tokens=args.n_predict, temperature=0, ignore_eos=True).tokens
        sizes = [len(m._model.token_bytes(token)) for token in tokens]
    ends, at = [], 0
    for size in sizes:
        at += size
        ends.append(at)
    return ends


def long_prompt(args: argparse.Namespace) -> str:
    import pyclover

    with pyclover.Clover(args.model, n_ctx=64) as m:
        return m.detokenize(m.tokenize(TEXT * (args.n_prompt // 20 + 1))[: args.n_prompt])


def one_run(args: argparse.Namespace, file: str, ends: list[int], flip: bool) -> list[dict[str, tuple[int, float]]]:
    programs = []
    for name, command in commands(args, file).items():
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        program = Program(name, process)
        while program.n_bytes == 0 and not program.done:  # one after the other, so that loading disturbs nobody
            program.read(0.02)
        process.send_signal(signal.SIGSTOP)
        if program.done:
            raise SystemExit(f"{name} ended without text: {' '.join(command)}")
        programs.append(program)
    rounds: list[dict[str, tuple[int, float]]] = []
    try:
        while not any(p.done for p in programs):
            flip = not flip
            measured = {}
            for p in reversed(programs) if flip else programs:
                before = bisect.bisect_right(ends, p.n_bytes)
                p.process.send_signal(signal.SIGCONT)
                seconds = p.read(args.window)
                p.process.send_signal(signal.SIGSTOP)
                measured[p.name] = (bisect.bisect_right(ends, p.n_bytes) - before, seconds)
            if not any(p.done for p in programs):
                rounds.append(measured)
    finally:
        for p in programs:
            p.process.kill()
            p.process.wait()
    return rounds[1:]


def prompt_commands(args: argparse.Namespace, file: str) -> dict[str, list[str]]:
    from pyclover.engine.build_info import programs

    rest = [args.model, str(args.threads), file, args.flash_attn]
    completion = [str(programs()["llama"]), "completion", "-m", args.model, "-n", "1", "-c", "2048", "--temp", "0"]
    completion += ["-t", str(args.threads), "--flash-attn", args.flash_attn, "-f", file, "--ignore-eos", "-no-cnv"]
    found = {"pyclover": [sys.executable, "-c", OURS_PROMPT, *rest]}
    found["llama completion"] = [*completion, "--no-display-prompt"]
    if args.peer_python:
        found["llama-cpp-python"] = [args.peer_python, "-c", PEER_PROMPT, *rest]
    return found


def one_prompt(args: argparse.Namespace, file: str, n_tokens: int, flip: bool) -> list[dict[str, tuple[int, float]]]:
    """Seconds until the first token of each, in turns."""
    programs = []
    for name, command in prompt_commands(args, file).items():
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert process.stderr is not None
        if not any(b"generate: n_ctx" in line for line in process.stderr):
            raise SystemExit(f"{name} never came to its prompt: {' '.join(command)}")
        process.send_signal(signal.SIGSTOP)
        programs.append(Program(name, process))
    taken = dict.fromkeys((p.name for p in programs), 0.0)
    try:
        left = programs
        while left:
            flip = not flip
            for p in reversed(left) if flip else left:
                p.process.send_signal(signal.SIGCONT)
                taken[p.name] += p.read(args.window, until_text=True)
                p.process.send_signal(signal.SIGSTOP)
            left = [p for p in left if not p.done and p.n_bytes == 0]
    finally:
        for p in programs:
            p.process.kill()
            p.process.wait()
    return [{name: (n_tokens, seconds) for name, seconds in taken.items()}]


def report(rounds: list[dict[str, tuple[int, float]]]) -> None:
    for name in rounds[0]:
        mine = [r for r in rounds if name in r]
        total = sum(r[name][0] for r in mine) / sum(r[name][1] for r in mine)
        line = f"{name:17} {total:8.2f} tok/s"
        if name != "pyclover":
            speeds = [(r["pyclover"][0] / r["pyclover"][1], r[name][0] / r[name][1]) for r in mine]
            ratios = sorted(a / b for a, b in speeds if b)
            low, mid, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
            ours = sum(r["pyclover"][0] for r in mine) / sum(r["pyclover"][1] for r in mine)
            line += f"   pyclover / it: {mid:.3f} (quartiles {low:.3f} to {high:.3f}, median "
            line += "{:.3f} to {:.3f}".format(*median_interval(ratios))
            line += f"), of the sums {ours / total:.3f}; {len(ratios)} rounds"
        print(line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--what", choices=("decode", "prompt"), default="decode")
    parser.add_argument("--n-prompt", type=int, default=1500, help="tokens of the prompt, with --what prompt")
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument("--window", type=float, default=1.0, help="seconds")
    parser.add_argument("--n-predict", type=int, default=1400)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--flash-attn", choices=("auto", "on", "off"), default="auto")
    parser.add_argument("--peer-python", default="")
    parser.add_argument("--keep", type=Path, help="JSON lines, one a round; rounds of earlier runs count too")
    args = parser.parse_args()
    rounds = []
    if args.keep and args.keep.exists():
        rounds = [json.loads(line) for line in args.keep.read_text().splitlines()]
    text, ends = PROMPT, []
    if args.what == "prompt":
        text = long_prompt(args)
    else:
        ends = token_ends(args)
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as f:
        f.write(text)
        f.flush()
        for i in range(args.runs):
            if args.what == "prompt":
                new = one_prompt(args, f.name, args.n_prompt, bool(i % 2))
            else:
                new = one_run(args, f.name, ends, bool(i % 2))
            rounds += new
            if args.keep:
                with args.keep.open("a") as kept:
                    kept.writelines(json.dumps(r) + "\n" for r in new)
            report(rounds)


if __name__ == "__main__":
    main()
