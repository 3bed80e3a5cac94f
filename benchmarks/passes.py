#!/usr/bin/env python3
"""What the parts of a draft's round cost, on a file with the sizes of Clover-35B-A3B or on any Clover file.

    python benchmarks/real_geometry.py clover-4.gguf --layers 4 --recipe q4_k
    python benchmarks/passes.py clover-4.gguf [--rows 4 8 16 32] [--rounds 15] [--threads 2]

Each round measures everything once, in random order; ratios are taken within a round. Printed
are their medians with quartiles and 95 % interval.

    preview / causal    a block pass over m rows against a causal pass over the same m tokens, logits of all rows
    rows / none         a check of m tokens whose rows are kept, with applying all of them to the state before the next
                        pass (the most that it can cost: rejected ones are not applied), against one that keeps nothing:
                        (check + next step - plain step) / check
    snapshots / none    the same with a snapshot of the state for each token

    one pass / two      a pass over m tokens with a block of m masks behind them, against a pass over the tokens and a
                        block pass over a token and m - 1 masks: a round of drafting that is accepted whole

and the memory that rows and snapshots take, and that of the graphs which make them. Tokens are random, the same for all
within a round: a pass over m of them meets about as many experts as m tokens of a text can.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable

from versus import median_interval

from pyclover.engine import blocks
from pyclover.engine.context import Context, ContextOptions
from pyclover.engine.model import Model

MIB = 1 << 20


def context(model: Model, threads: int, n_back: int, snapshots: bool = False) -> Context:
    options = ContextOptions(n_ctx=4096, n_threads=threads, n_rs_seq=n_back, rs_snapshots=snapshots)
    return Context(model, options)


def memory_bytes(c: Context, kind: str) -> int:
    return sum(use.bytes for use in c.memory() if use.kind == kind)


class Check:
    """Repeated checks of m tokens, all of which stay."""

    def __init__(self, c: Context) -> None:
        self.c = c
        self.begin()

    def begin(self) -> None:
        self.c.clear()
        self.c.prompt([1] * 8)
        blocks.commit(self.c, [2], 1)

    def seconds(self, block: list[int], depth: int = 1024) -> tuple[float, float]:
        """Of the check, and of the plain step behind it, which brings the state up to date as a block pass would."""
        if len(self.c.tokens()) > depth:
            self.begin()
        began = time.perf_counter()
        blocks.commit(self.c, block, len(block))
        checked = time.perf_counter()
        blocks.commit(self.c, block[:1], 1)
        return checked - began, time.perf_counter() - checked


def line(name: str, ratios: list[float]) -> str:
    ratios = sorted(ratios)
    low, mid, high = statistics.quantiles(ratios, n=4)
    interval = "{:.3f} to {:.3f}".format(*median_interval(ratios))
    return f"{name:34} {mid:.3f}  quartiles {low:.3f} to {high:.3f}, median {interval}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--rows", type=int, nargs="+", default=[4, 8, 16, 32])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()

    model = Model(args.model, mmap=False)  # a mapped page that was given up in between would count
    rng = random.Random(1)

    def tokens(n: int) -> list[int]:
        return [rng.randrange(model.info.n_vocab) for _ in range(n)]

    plain = context(model, args.threads, 0)
    mask = model.info.mask
    assert mask is not None, "the file names no mask token"
    for m in args.rows:
        n_back = m - 1
        rows, snapshots = context(model, args.threads, n_back), context(model, args.threads, n_back, snapshots=True)
        none = context(model, args.threads, 0)
        checks = {
            "none": Check(none),
            "rows": Check(rows),
            "snapshots": Check(snapshots),
        }

        def preview(block: list[int]) -> tuple[float, float]:
            plain.clear()
            began = time.perf_counter()
            blocks.preview(plain, block, 0)
            return time.perf_counter() - began, 0.0

        def causal(block: list[int]) -> tuple[float, float]:
            plain.clear()
            began = time.perf_counter()
            plain.logits(block)
            return time.perf_counter() - began, 0.0

        def ahead(block: list[int]) -> tuple[float, float]:
            plain.clear()
            began = time.perf_counter()
            blocks.look_ahead(plain, block, len(block))
            return time.perf_counter() - began, 0.0

        def mask_preview(block: list[int]) -> tuple[float, float]:
            plain.clear()
            began = time.perf_counter()
            blocks.preview(plain, [block[0], *[mask] * (len(block) - 1)], 0)
            return time.perf_counter() - began, 0.0

        jobs: dict[str, Callable[[list[int]], tuple[float, float]]] = {name: c.seconds for name, c in checks.items()}
        jobs |= {"preview": preview, "causal": causal, "ahead": ahead, "draft": mask_preview}
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in jobs}
        for i in range(args.rounds + 1):
            block = tokens(m)
            order = rng.sample(list(jobs), len(jobs))  # whoever is second meets the weights of this block again
            for name in order:
                seconds = jobs[name](block)
                if i > 0:
                    found[name].append(seconds)

        def ratios(a: str, b: str, found: dict[str, list[tuple[float, float]]] = found) -> list[float]:
            return [(x[0] + x[1] - y[1]) / y[0] for x, y in zip(found[a], found[b], strict=True)]

        print(f"{m} rows, {args.rounds} rounds; causal {1e3 * statistics.median(s for s, _ in found['causal']):.1f} ms")
        print("  " + line("preview / causal", ratios("preview", "causal")))
        two = [(c[0] + d[0], 0.0) for c, d in zip(found["causal"], found["draft"], strict=True)]
        print("  " + line("one pass / two passes", [a[0] / b[0] for a, b in zip(found["ahead"], two, strict=True)]))
        print("  " + line("check: rows / none", ratios("rows", "none")))
        print("  " + line("snapshots / none", ratios("snapshots", "none")))
        for kind, what in (("context", "kept for the way back"), ("compute", "buffers of its graphs")):
            more, whole = (memory_bytes(c, kind) - memory_bytes(none, kind) for c in (rows, snapshots))
            share = f": {more / whole:.1%}" if whole > 0 else ""
            print(f"  {what}: rows {more / MIB:.2f} MiB, snapshots {whole / MIB:.2f} MiB{share}", flush=True)
        for c in (rows, snapshots, none):
            c.close()


if __name__ == "__main__":
    main()
