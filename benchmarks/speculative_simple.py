#!/usr/bin/env python3
"""draft-self of pyclover against `llama-speculative-simple --spec-type draft-self` of the same build.

    python benchmarks/speculative_simple.py MODEL.gguf [--pairs 9] [--n-max 3 7 15] [--n-predict 256] [--threads 2]
                                            [--prompt TEXT | --file FILE] [--keep PAIRS.jsonl] [--json FILE]

Both decode greedily and without loss, with drafts of exactly n-max tokens from one block pass (no controller, nothing
made ahead, as the program has neither by default), the same sizes, caches and threads, and neither stops at an end
token. A pair runs both once, each in a process of its own, and the one that begins changes with every pair, as do the
lengths of drafts: what the machine does in the course of a run hits all of them alike.

Speeds are those that the two count themselves: pyclover's `stats.decode_tok_per_s` (passes and choosing of tokens), the
program's "decoded" (its whole loop, writing included). Beside it stands pyclover's time from the first to the last
piece of its stream, which has Python in it and is the stricter of the two. A draft is checked by both in the same way,
so both accept the same: what they accepted is printed, and a pair whose texts differ is counted and named.

Printed for each length: medians, and the ratio within pairs (pyclover / the program; above 1 is faster) with its
quartiles and the 95 % interval of its median (which is one from 6 pairs on; with fewer it is their range). --keep adds
every pair to a file and reports on all that it holds for these settings. Interrupted with Ctrl-C, it reports on the
pairs it has. Drafts of `tiny` hit in what it was trained for: give it a question in its chat form, and an --n-predict
no longer than the answer.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from versus import WARM_UP, median_interval

PROMPT = "The river runs past the old mill, and in spring the water stands high in the meadows."
PROGRAM = "llama-speculative-simple"
N_BATCH = 512


def ours(args: argparse.Namespace, prompt: str, n_max: int) -> dict[str, Any]:
    """In this process; called in one of its own."""
    import pyclover
    from pyclover.engine.context import FlashAttention

    flash: FlashAttention = "auto" if args.flash_attn == "auto" else args.flash_attn == "on"
    how = pyclover.DraftSelf(n_max=n_max, steps=1, adaptive=False, ahead=False)
    with pyclover.Clover(
        args.model, n_ctx=args.n_ctx, n_batch=N_BATCH, n_ubatch=N_BATCH, n_threads=args.threads,
        flash_attn=flash, cache_type_k=args.cache_type,
        cache_type_v=args.cache_type,
    ) as m:  # fmt: skip
        m.generate(WARM_UP, max_tokens=16, temperature=0)  # the program reads all weights once before it begins
        times, sizes, text, stats = [], [], "", None
        for piece in m.stream(prompt, max_tokens=args.n_predict, temperature=0, ignore_eos=True, speculation=how):
            text += piece.text
            if piece.tokens:
                times.append(time.perf_counter())
                sizes.append(len(piece.tokens))
            stats = piece.stats
        assert stats is not None
        return {
            "counted": stats.decode_tok_per_s, "outside": sum(sizes[1:]) / (times[-1] - times[0]),
            "n_tokens": stats.n_generated, "drafted": stats.drafted, "accepted": stats.accepted, "text": text,
        }  # fmt: skip


def theirs(args: argparse.Namespace, prompt: str, n_max: int) -> dict[str, Any]:
    from pyclover.engine.build_info import programs

    if PROGRAM not in programs():
        raise SystemExit(f"this build of pyclover has no {PROGRAM} (clover-run tool lists what it has)")
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as f:
        f.write(prompt + "\n")  # the program takes one off the end
        f.flush()
        command = [str(programs()[PROGRAM]), "-m", args.model, "-f", f.name, "-c", args.n_ctx, "-t", args.threads]
        command += ["-b", N_BATCH, "-ub", N_BATCH, "-tb", args.threads, "-fa", args.flash_attn, "--color", "off"]
        command += ["-ctk", args.cache_type, "-ctv", args.cache_type, "--temp", "0", "--ignore-eos", "--no-escape"]
        command += ["-n", args.n_predict - 1]  # it goes on until it has one more
        command += ["--spec-type", "draft-self", "--spec-draft-n-max", n_max]
        done = subprocess.run(
            [str(word) for word in command], stdin=subprocess.DEVNULL, capture_output=True, check=False
        )
    said, written = done.stderr.decode("utf-8", "replace"), done.stdout.decode("utf-8", "replace")
    if done.returncode != 0:
        raise SystemExit(f"{PROGRAM} failed: {said.strip()[-500:]}")

    def found(pattern: str) -> float:
        match = re.search(pattern, said + written)
        assert match is not None, f"no {pattern} in {said[-2000:]}"
        return float(match.group(1))

    return {
        "counted": found(r"decoded +\d+ tokens in .*?speed: +([\d.]+) t/s"), "n_tokens": found(r"n_predict = (\d+)"),
        "drafted": found(r"n_drafted = (\d+)"), "accepted": found(r"n_accept += (\d+)"), "text": written,
    }  # fmt: skip


def apart(args: argparse.Namespace, prompt: str, n_max: int) -> dict[str, Any]:
    """Ours in a process of its own, as the program is one."""
    command = [sys.executable, __file__, args.model, "--only", n_max, "--threads", args.threads, "--n-ctx", args.n_ctx]
    command += ["--n-predict", args.n_predict, "--flash-attn", args.flash_attn, "--cache-type", args.cache_type]
    done = subprocess.run([str(word) for word in command], input=prompt.encode(), capture_output=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"pyclover failed: {done.stderr.decode('utf-8', 'replace').strip()[-500:]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def one_pair(args: argparse.Namespace, prompt: str, n_max: int, flip: bool) -> dict[str, Any]:
    engines = {"pyclover": apart, PROGRAM: theirs}
    pair = {name: engines[name](args, prompt, n_max) for name in (reversed(engines) if flip else engines)}
    text = pair["pyclover"].pop("text").rstrip()
    same = text in pair[PROGRAM].pop("text").replace("\r\n", "\n")
    return {"n_max": n_max, "same_text": same, "settings": settings_of(args, prompt), **pair}


def settings_of(args: argparse.Namespace, prompt: str) -> dict[str, Any]:
    """What pairs must have in common to be reported together."""
    names = ("n_predict", "threads", "n_ctx", "flash_attn", "cache_type")
    return {"model": Path(args.model).name, "prompt": prompt, **{name: getattr(args, name) for name in names}}


def summary(values: list[float]) -> dict[str, float]:
    values = sorted(values)
    low, mid, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
    begin, end = median_interval(values)
    return {"median": mid, "q1": low, "q3": high, "median_low": begin, "median_high": end}


def report(pairs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    rows = []
    for n_max in sorted({p["n_max"] for p in pairs}):
        mine = [p for p in pairs if p["n_max"] == n_max]
        we, they = [p["pyclover"] for p in mine], [p[PROGRAM] for p in mine]
        rows.append({
            "mode": "draft-self (lossless)", "n_max": n_max, "pairs": len(mine),
            "pyclover_tok_per_s": statistics.median(w["counted"] for w in we),
            "pyclover_outside_tok_per_s": statistics.median(w["outside"] for w in we),
            "program_tok_per_s": statistics.median(t["counted"] for t in they),
            "ratio": summary([w["counted"] / t["counted"] for w, t in zip(we, they, strict=True)]),
            "ratio_outside": summary([w["outside"] / t["counted"] for w, t in zip(we, they, strict=True)]),
            "pyclover_acceptance": sum(w["accepted"] for w in we) / max(1, sum(w["drafted"] for w in we)),
            "program_acceptance": sum(t["accepted"] for t in they) / max(1, sum(t["drafted"] for t in they)),
            "other_text": sum(not p["same_text"] for p in mine),
        })  # fmt: skip
    return rows


def table(rows: list[dict[str, Any]]) -> None:
    print(f"{'n-max':>5} {'pairs':>5} {'pyclover':>9} {'outside':>9} {'program':>9}   ratio (quartiles; median's 95 %)")
    for r in rows:
        line = f"{r['n_max']:5} {r['pairs']:5} {r['pyclover_tok_per_s']:9.1f} {r['pyclover_outside_tok_per_s']:9.1f} "
        line += f"{r['program_tok_per_s']:9.1f}   "
        words = []
        for name, said in (("ratio", "counted"), ("ratio_outside", "outside")):
            x = r[name]
            words.append(f"{said} {x['median']:.3f} ({x['q1']:.3f} to {x['q3']:.3f}; "
                         f"{x['median_low']:.3f} to {x['median_high']:.3f})")  # fmt: skip
        print(line + ", ".join(words))
        print(f"{'':11} accepted {r['pyclover_acceptance']:.1%}, by the program {r['program_acceptance']:.1%}", end="")
        print(f"; the texts of {r['other_text']} pairs differ" if r["other_text"] else "; the same text")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--pairs", type=int, default=9, help="of each length of drafts")
    parser.add_argument("--n-max", type=int, nargs="+", default=[3, 7, 15])
    parser.add_argument("--n-predict", type=int, default=256)
    parser.add_argument("--n-ctx", type=int, default=2048)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--flash-attn", choices=("auto", "on", "off"), default="auto")
    parser.add_argument("--cache-type", default="f16")
    parser.add_argument("--prompt", default=PROMPT)
    parser.add_argument("--file", type=Path, help="prompt, in place of --prompt")
    parser.add_argument("--keep", type=Path, help="JSON lines, one a pair; pairs of earlier runs count too")
    parser.add_argument("--json", type=Path, dest="json_file", help="write what is printed as JSON, too")
    parser.add_argument("--only", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.only is not None:
        print(json.dumps(ours(args, sys.stdin.buffer.read().decode(), args.only)))
        return
    prompt = args.file.read_text(encoding="utf-8") if args.file else args.prompt
    pairs: list[dict[str, Any]] = []
    if args.keep and args.keep.exists():
        kept = [json.loads(line) for line in args.keep.read_text().splitlines()]
        pairs = [p for p in kept if p["settings"] == settings_of(args, prompt)]
    try:
        for i in range(args.pairs + 1):
            for n_max in args.n_max if i % 4 < 2 else reversed(args.n_max):
                pair = one_pair(args, prompt, n_max, flip=bool(i % 2))
                if i == 0:  # warms the file cache
                    continue
                pairs.append(pair)
                if args.keep:
                    with args.keep.open("a") as f:
                        f.write(json.dumps(pair) + "\n")
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        if not pairs:
            return
    rows = report(pairs)
    print(f"{Path(args.model).name}, {args.threads} threads, {args.n_predict} tokens, tok/s, draft-self (lossless)")
    table(rows)
    if args.json_file:
        args.json_file.write_text(json.dumps({"settings": settings_of(args, prompt), "results": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
