#!/usr/bin/env python3
"""The planner's estimates against what llama.cpp allocates, on files with the sizes of Clover-35B-A3B.

    python benchmarks/memory_estimates.py FOLDER [--layers 4 8] [--recipes q8_0 q4_k mixed] [--holes] [--snapshots]

Writes one file at a time into FOLDER (up to 8 GB), loads it, makes contexts of 4,096, 32,768 and 131,072 tokens with
caches of f16 and q8_0 and 0, 7 and 15 drafted tokens that can be taken back (n-max), and deletes it again. No token is
computed. With --holes the files have no data, which takes no disk; with --snapshots a state is kept for each of the
drafted tokens. Exit code 1 if a total is off by more than 5 % and 64 MiB.

Then the estimates for the official files, all 40 layers, which are not loaded.
"""

from __future__ import annotations

import argparse
import sys
import time
from itertools import product
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import real_geometry

from pyclover.engine.context import Context, ContextOptions
from pyclover.engine.model import Model
from pyclover.files.gate import validate
from pyclover.plan.estimate import KINDS, Estimator
from pyclover.plan.geometry import geometry_of
from pyclover.plan.machine import GIB, MIB
from pyclover.plan.probe import probe
from pyclover.plan.quants import clover_35b
from pyclover.plan.settings import Settings

CONTEXTS = (4096, 32768, 131072)
CACHES = ("f16", "q8_0")
N_MAX = (0, 7, 15)
OFFICIAL = {"Q8_0": 35.26, "Q4_K_M": 21.42, "Q4_0": 18.24}  # GiB, as published
TYPES = {"Q8_0": "Q8_0", "Q4_K_M": "Q4_K", "Q4_0": "Q4_0"}


def measure(path: Path, snapshots: bool) -> float:
    """Prints a line a context; returns the worst difference of a total, as a share, beyond 64 MiB."""
    started = time.perf_counter()
    model = Model(path)
    estimator = Estimator(geometry_of(validate(path)), probe())
    print(f"loaded in {time.perf_counter() - started:.0f} s")
    print(
        f"{'n_ctx':>7} {'cache':>5} {'n_max':>5}  {'weights':>17} {'context':>15} {'compute':>15} {'total':>17}  off by"
    )
    worst = 0.0
    for n_ctx, cache, n_max in product(CONTEXTS, CACHES, N_MAX):
        options = ContextOptions(
            n_ctx=n_ctx, cache_type_k=cache, cache_type_v=cache, n_rs_seq=n_max, rs_snapshots=snapshots, n_threads=1
        )
        context = Context(model, options)
        found = dict.fromkeys(("weights", "context", "compute"), 0)
        for use in context.memory():
            found[use.kind] += use.bytes
        context.close()
        settings = Settings(n_ctx=n_ctx, cache_type_k=cache, cache_type_v=cache, n_max=n_max, rs_snapshots=snapshots)
        expected = estimator.estimate(settings).measurable()
        total, true_total = sum(expected.values()), sum(found.values())
        share = (total - true_total) / true_total
        if abs(total - true_total) > 64 * MIB:
            worst = max(worst, abs(share))
        cells = "  ".join(f"{expected[k] / MIB:7.1f}/{found[k] / MIB:7.1f}" for k in found)
        cells += f"  {total / MIB:7.1f}/{true_total / MIB:7.1f}"
        print(f"{n_ctx:7} {cache:>5} {n_max:5}  {cells}  {100 * share:+.2f} %", flush=True)
    model.close()
    return worst


def official() -> None:
    """Estimates of the published files on this processor."""
    machine = probe()
    print("\nestimates for the official files, GiB, on this processor")
    print(
        f"{'file':>7} {'n_ctx':>7} {'cache':>5} {'n_max':>5}  "
        + " ".join(f"{kind:>16}" for kind in KINDS)
        + "     total"
    )
    for name, size in OFFICIAL.items():
        estimator = Estimator(clover_35b(name, int(size * GIB), type_name=TYPES[name]), machine)
        for n_ctx, cache, n_max in product(CONTEXTS, CACHES, N_MAX):
            found = estimator.estimate(Settings(n_ctx=n_ctx, cache_type_k=cache, cache_type_v=cache, n_max=n_max))
            cells = " ".join(f"{found.of(kind=kind) / GIB:16.3f}" for kind in KINDS)
            print(f"{name:>7} {n_ctx:7} {cache:>5} {n_max:5}  {cells} {found.total_bytes / GIB:16.3f}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, nargs="*", default=[4, 8])
    parser.add_argument(
        "--recipes", nargs="*", default=["q8_0", "q4_k", "mixed"], choices=sorted(real_geometry.RECIPES)
    )
    parser.add_argument("--holes", action="store_true", help="files without data")
    parser.add_argument("--snapshots", action="store_true", help="a state for each drafted token")
    args = parser.parse_args()
    worst = 0.0
    print("estimated / measured, MiB")
    for n_layer, recipe in product(args.layers, args.recipes):
        path = args.folder / f"clover-{n_layer}-{recipe}.gguf"
        try:
            n_bytes = real_geometry.write(path, n_layer, recipe, holes=args.holes)
            print(f"\n{n_layer} layers, {recipe}, {n_bytes / GIB:.2f} GiB of weights", flush=True)
            worst = max(worst, measure(path, args.snapshots))
        finally:
            path.unlink(missing_ok=True)
    official()
    print(f"\nworst total beyond 64 MiB: {100 * worst:.2f} %")
    return int(worst > 0.05)


if __name__ == "__main__":
    raise SystemExit(main())
