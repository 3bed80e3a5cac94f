"""How good the model is on held-out prompts: `python -m training.evaluate --out build/tiny`.

For every kind: exact answers with greedy decoding, acceptance of drafts (n_max 7, all drafted tokens count, also those
past the end), and exact answers in block diffusion with blocks of 8, 16 and 32. Exact is equality of the answer behind
the thought. Writes OUT/evaluation.json and OUT/evaluation.md.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
from tokenizers import Tokenizer

from training.checkpoint import load, load_model
from training.config import write_json
from training.data.mix import EXACT, KINDS, Document, document, draw
from training.generate import Diffused, block_diffusion, draft_self, plain
from training.layers import Clover
from training.tokenizer import END_OF_TURN, load_tokenizer, token_id

EVALUATION_SEED = 777_001  # used for nothing else; while working on the training, give another one
N_MAX, THRESHOLD, BLOCKS = 7, 0.9, (8, 16, 32)
N_PREDICT = 112
_BATCH = 64

# Questions of the everyday kind, with the answers that are expected.
EVERYDAY = (
    ("What is 12 + 7?", "12 + 7 = 19"), ("Spell the word planet backwards.", "t-e-n-a-l-p"),
    ("How many letters are in clover?", "clover has 6 letters."), ("Sort 30, 4, 17.", "4, 17, 30"),
    ("What is 6 times 7?", "6 * 7 = 42"), ("Count from 1 to 5.", "1, 2, 3, 4, 5"),
    ("How many minutes are 3 hours?", "3 hours are 180 minutes."), ("How many r are in strawberry?",
    "r is in strawberry 3 times."),
    ("What is speculative decoding?",
     "A cheap draft guesses several tokens, and the model checks all of them in one pass."),
    ("Which is larger, 43 or 58?", "58 is larger."), ("Hello!", "Hello! How can I help you?"),
    ("Write JSON with name Ada and age 36.", '{"name": "Ada", "age": 36}'),
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    document: Document
    prompt: list[int]

    def wanted(self) -> str:
        return self.document.answer.rpartition("</think>")[2].strip().removesuffix(END_OF_TURN)


def cases(tokenizer: Tokenizer, per_kind: int, seed: int) -> list[Case]:
    """Held-out prompts of every kind, without repetition as far as the kind has that many; 60 % with thinking."""
    out = []
    for kind in KINDS:
        rng = Random(f"{seed}/{kind}")
        seen: set[str] = set()
        for i in range(per_kind):
            for _ in range(200):
                d = document(kind, draw(kind, rng, evaluation=True), thinking=i % 5 < 3)
                if d.prompt not in seen:
                    break
            seen.add(d.prompt)
            out.append(Case(d, tokenizer.encode(d.prompt, add_special_tokens=False).ids))
    return out


def answer_of(tokenizer: Tokenizer, tokens: list[int]) -> str:
    text = tokenizer.decode(tokens, skip_special_tokens=False)
    return text.rpartition("</think>")[2].strip().removesuffix(END_OF_TURN)


def in_batches(todo: list[Case], run: Callable[[list[list[int]]], list[Any]]) -> list[Any]:
    """Results in the order of the cases; batches hold prompts of like lengths."""
    order = sorted(range(len(todo)), key=lambda i: len(todo[i].prompt))
    out: list[Any] = [None] * len(todo)
    for at in range(0, len(order), _BATCH):
        part = order[at : at + _BATCH]
        for i, result in zip(part, run([todo[i].prompt for i in part]), strict=True):
            out[i] = result
    return out


def share(a: float, b: float) -> float | None:
    return round(a / b, 4) if b else None


def evaluate(model: Clover, tokenizer: Tokenizer, per_kind: int, seed: int) -> dict[str, Any]:
    todo = cases(tokenizer, per_kind, seed)
    end = token_id(tokenizer, END_OF_TURN)
    texts = in_batches(todo, lambda p: plain(model, p, end, N_PREDICT))
    drafts = in_batches(todo, lambda p: draft_self(model, p, end, N_PREDICT, N_MAX))

    def in_blocks(size: int) -> list[Diffused]:
        return in_batches(todo, lambda p: block_diffusion(model, p, end, N_PREDICT, size, THRESHOLD))

    diffused = {size: in_blocks(size) for size in BLOCKS}
    kinds = {}
    for kind in KINDS:
        mine = [i for i, case in enumerate(todo) if case.document.kind == kind]
        entry: dict[str, Any] = {"n": len(mine)}

        def exact(tokens: Callable[[int], list[int]], mine: list[int] = mine) -> float | None:
            right = sum(answer_of(tokenizer, tokens(i)) == todo[i].wanted() for i in mine)
            return share(right, len(mine))

        if kind in EXACT:
            entry["exact"] = exact(lambda i: texts[i])
            for size in BLOCKS:
                answers = [d.tokens for d in diffused[size]]
                entry[f"diffusion_{size}"] = exact(answers.__getitem__)
        own = [drafts[i] for i in mine]
        entry["acceptance"] = share(sum(d.accepted for d in own), sum(d.drafted for d in own))
        entry["tokens_per_round"] = share(sum(d.accepted + d.rounds for d in own), sum(d.rounds for d in own))
        for size, d in diffused.items():
            entry[f"tokens_per_pass_{size}"] = share(
                sum(len(d[i].tokens) for i in mine), sum(d[i].passes for i in mine)
            )
        kinds[kind] = entry
    mean = {key: _mean(kinds, key) for key in ("exact", "acceptance", "diffusion_8", "diffusion_16", "diffusion_32")}
    own = [d for d, case in zip(drafts, todo, strict=True) if case.document.kind in EXACT]
    at = [
        share(sum(d.accepted_at[i] for d in own), sum(d.drafted_at[i] for d in own)) for i in range(N_MAX)
    ]  # cumulative: accepted up to and with this place
    return {
        "seed": seed, "n_max": N_MAX, "threshold": THRESHOLD, "n_predict": N_PREDICT,
        "mean_of_kinds": mean, "kinds": kinds,
        "accepted_at": at, "lossless": sum(a == d.tokens for a, d in zip(texts, drafts, strict=True)) / len(todo),
        "everyday": everyday(model, tokenizer),
        "wrong": _wrong(tokenizer, todo, texts),
    }  # fmt: skip


def _mean(kinds: dict[str, dict[str, Any]], key: str) -> float:
    values = [kinds[k][key] for k in EXACT]
    return round(float(sum(values)) / len(values), 4)


def _wrong(tokenizer: Tokenizer, todo: list[Case], texts: list[list[int]]) -> list[dict[str, str]]:
    """Up to three wrong answers of each kind, to look at."""
    out: list[dict[str, str]] = []
    for case, tokens in zip(todo, texts, strict=True):
        kind = case.document.kind
        if kind in EXACT and answer_of(tokenizer, tokens) != case.wanted() and sum(w["kind"] == kind for w in out) < 3:
            said = tokenizer.decode(tokens, skip_special_tokens=False)
            out.append({"kind": kind, "prompt": case.document.prompt, "wanted": case.document.answer, "said": said})
    return out


def everyday(model: Clover, tokenizer: Tokenizer) -> list[dict[str, Any]]:
    end = token_id(tokenizer, END_OF_TURN)
    out = []
    for thinking in (True, False):
        head = "<|im_start|>assistant\n<think>\n" + ("" if thinking else "\n</think>\n\n")
        prompts = [f"<|im_start|>user\n{q}<|im_end|>\n{head}" for q, _ in EVERYDAY]
        ids = [e.ids for e in tokenizer.encode_batch(prompts, add_special_tokens=False)]
        for (question, wanted), tokens in zip(EVERYDAY, plain(model, ids, end, N_PREDICT), strict=True):
            said = answer_of(tokenizer, tokens)
            right = said == wanted or (not thinking and said.endswith(wanted))
            out.append({"question": question, "thinking": thinking, "right": right, "said": said})
    return out


def table(result: dict[str, Any]) -> str:
    def cell(value: float | None, percent: bool = True) -> str:
        return "-" if value is None else f"{value:.1%}" if percent else f"{value:.2f}"

    columns = ("exact", "acceptance", "diffusion_8", "diffusion_16", "diffusion_32")
    head = ["kind", "n", "exact", f"acceptance (n_max {N_MAX})", *(f"diffusion, blocks of {b}" for b in BLOCKS)]
    lines = [
        "| " + " | ".join([*head, "tokens per round", "tokens per pass (8)"]) + " |",
        "|---" * (len(head) + 2) + "|",
    ]
    for kind, entry in result["kinds"].items():
        cells = [kind, str(entry["n"]), *(cell(entry.get(c)) for c in columns)]
        cells += [cell(entry["tokens_per_round"], False), cell(entry["tokens_per_pass_8"], False)]
        lines.append("| " + " | ".join(cells) + " |")
    cells = ["**mean of kinds**, prose aside", "", *(cell(result["mean_of_kinds"][c]) for c in columns), "", ""]
    lines.append("| " + " | ".join(cells) + " |")
    right = sum(e["right"] for e in result["everyday"])
    lines += ["", f"Everyday questions: {right} of {len(result['everyday'])} right. Drafted text equal to plain text: "]
    lines[-1] += f"{result['lossless']:.1%}. Accepted up to and with place 1 to {N_MAX}: "
    lines[-1] += " ".join(cell(a) for a in result["accepted_at"]) + f". Threshold {THRESHOLD}, seed {result['seed']}."
    return "\n".join(lines) + "\n"


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the run")
    parser.add_argument("--examples", type=int, default=50, help="prompts of each kind")
    parser.add_argument("--seed", type=int, default=EVALUATION_SEED)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--f16", action="store_true", help="round the weights as the f16 file does")
    a = parser.parse_args(argv)
    torch.set_num_threads(a.threads)
    began = time.monotonic()
    model = load_model(a.out)
    if a.f16:
        with torch.no_grad():
            for name, p in model.named_parameters():
                if p.dim() > 1 and not name.endswith(("router", "conv", "conv_right")):  # these stay F32
                    p.copy_(p.half().float())
    result = evaluate(model, load_tokenizer(a.out / "tokenizer.json"), a.examples, a.seed)
    saved = load(a.out) or {}
    result |= {
        "step": saved.get("step"),
        "trained_s": saved.get("elapsed_s"),
        "took_s": round(time.monotonic() - began),
    }
    write_json(a.out / "evaluation.json", result)
    (a.out / "evaluation.md").write_text(table(result), encoding="utf-8")
    print(table(result))


if __name__ == "__main__":
    main()
