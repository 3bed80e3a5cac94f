#!/usr/bin/env python3
"""`auto` against plain decoding by kind of prompt, in interleaved pairs, with the best fixed drafts beside it.

    python benchmarks/auto_by_kind.py [MODEL.gguf] [--rounds 9] [--n-predict 128] [--threads 2] [--n-max 1,3,7,15]
                                      [--keep TURNS.jsonl]   add every turn to this file, report on all in it

Each turn is one built-in prompt, answered once by plain decoding, auto and each fixed length, in an order that turns
round. Printed by kind: auto / plain (ratio of the times for all tokens; median of the pairs with its interval) and
the best fixed length with its ratio. The goal is 0.98 in all kinds. Exit code 1 when it is missed. Interrupted with
Ctrl-C, it reports on the turns it has.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pyclover.tuning import loading
from pyclover.tuning.journal import Journal
from pyclover.tuning.prompts import built_in
from pyclover.tuning.sweep import Sweep
from pyclover.tuning.table import Turn, ratio_of
from pyclover.tuning.tune import run_race

GOAL = 0.98


def pairs(turns: list[Turn], mine: int) -> str:
    """The median of all pairs with its interval, for people."""
    from pyclover.tuning.statistics import median, median_interval

    ratios = [t.runs[0].s_per_token / t.runs[mine].s_per_token for t in turns if t.runs[mine].s_per_token > 0]
    found = median_interval(ratios)
    return f"median {median(ratios):.3f}" + (f" ({found[0]:.3f} to {found[1]:.3f})" if found else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="tiny")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--n-predict", type=int, default=128)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--n-max", default="1,3,7,15")
    parser.add_argument("--kinds", default="")
    parser.add_argument("--keep", type=Path)
    args = parser.parse_args()
    prompts = built_in(args.kinds.split(",")) if args.kinds else built_in()
    candidates = Sweep(n_max=tuple(int(n) for n in args.n_max.split(","))).candidates()
    options = {} if args.threads is None else {"n_threads": args.threads}
    header = {"what": "auto_by_kind", "model": args.model, "n_predict": args.n_predict, "threads": args.threads,
              "candidates": [c.label for c in candidates], "kinds": args.kinds}  # fmt: skip
    stand = loading.load(args.model, candidates, prompts, max_tokens=args.n_predict, options=options)
    resume = args.keep is not None and args.keep.exists()
    with stand.clover, Journal(args.keep, header, resume=resume) as journal:
        earlier = len(journal.turns)
        rounds = args.rounds + -(-earlier // len(prompts))
        try:
            run_race(candidates, prompts, stand, journal, repetitions=rounds, warm_up=stand.warm_up, drop=False)
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
        turns = [Turn.from_dict(turn) for turn in journal.turns]
    print(f"{args.model}, {len(turns)} turns ({earlier} of them earlier), up to {args.n_predict} tokens each")
    missed = False
    for kind in dict.fromkeys(prompt.kind for prompt in prompts):
        mine = [turn for turn in turns if prompts[turn.prompt].kind == kind]
        auto = ratio_of(mine, 1, 0)
        if auto is None:
            continue
        fixed = {i: r for i in range(2, len(candidates)) if (r := ratio_of(mine, i, 0)) is not None}
        best = max(fixed, key=lambda i: fixed[i].total)
        missed |= auto.total < GOAL
        print(
            f"{kind:11} auto / plain {auto.total:.3f}, {pairs(mine, 1)}; "
            f"best fixed {candidates[best].label}: {fixed[best].total:.3f}, {pairs(mine, best)}; {len(mine)} turns"
        )
    sys.exit(int(missed))


if __name__ == "__main__":
    main()
