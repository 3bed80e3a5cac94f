"""Greedy generation for a batch of prompts: one token at a time, drafting with the model's own blocks, block diffusion.

The rules and counts are those of sections 5 and 6 of the model's description, as in the numpy reference.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from training.layers import Clover
from training.model import Cache, decode, empty_cache, preview

MAX_BLOCK = 32


@dataclass
class Drafted:
    """What drafting did for one prompt."""

    tokens: list[int]
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    drafted_at: list[int] = field(default_factory=list)
    accepted_at: list[int] = field(default_factory=list)


@dataclass
class Diffused:
    tokens: list[int]
    passes: int = 0


def padded(rows: list[list[int]]) -> tuple[Tensor, Tensor]:
    width = max(1, *map(len, rows))
    return torch.tensor([r + [0] * (width - len(r)) for r in rows]), torch.tensor([len(r) for r in rows])


def until_end(tokens: list[int], end: int, n_predict: int) -> list[int]:
    tokens = tokens[:n_predict]
    return tokens[: tokens.index(end) + 1] if end in tokens else tokens


def finished(tokens: list[int], end: int, n_predict: int) -> bool:
    return len(tokens) >= n_predict or end in tokens


def prefill(model: Clover, prompts: list[list[int]], room: int) -> tuple[Tensor, Cache]:
    """Logits after each prompt's last token [B, V], and the cache."""
    ids, count = padded(prompts)
    logits, cache = decode(model, empty_cache(model, len(prompts), room), ids, count)
    return logits[torch.arange(len(prompts)), (count - 1).clamp(min=0)], cache


def room_for(prompts: list[list[int]], n_predict: int) -> int:
    return max(map(len, prompts)) + n_predict + 2 * MAX_BLOCK + 2


def plain(model: Clover, prompts: list[list[int]], end: int, n_predict: int) -> list[list[int]]:
    logits, cache = prefill(model, prompts, room_for(prompts, n_predict))
    texts = [[t] for t in logits.argmax(-1).tolist()]
    live = list(range(len(prompts)))
    while True:
        keep = [i for i, b in enumerate(live) if not finished(texts[b], end, n_predict)]
        if not keep:
            return texts
        if len(keep) < len(live):
            cache, live = cache.rows(torch.tensor(keep)), [live[i] for i in keep]
        logits, cache = decode(model, cache, torch.tensor([[texts[b][-1]] for b in live]))
        for b, t in zip(live, logits[:, -1].argmax(-1).tolist(), strict=True):
            texts[b].append(t)


def draft_self(model: Clover, prompts: list[list[int]], end: int, n_predict: int, n_max: int) -> list[Drafted]:
    """Lossless: a drafted token counts when it is the most probable one of the causal pass."""
    mask = model.c.mask_token
    logits, cache = prefill(model, prompts, room_for(prompts, n_predict))
    out = [Drafted([t], drafted_at=[0] * n_max, accepted_at=[0] * n_max) for t in logits.argmax(-1).tolist()]
    live = list(range(len(prompts)))
    while True:
        keep = [i for i, b in enumerate(live) if not finished(out[b].tokens, end, n_predict)]
        if not keep:
            break
        if len(keep) < len(live):
            cache, live = cache.rows(torch.tensor(keep)), [live[i] for i in keep]
        n = [min(n_max, n_predict - len(out[b].tokens) - 1) for b in live]
        rows, count = padded([[out[b].tokens[-1], *[mask] * k] for b, k in zip(live, n, strict=True)])
        logits = preview(model, cache, rows, count)
        logits[..., mask] = -torch.inf
        rows[:, 1:] = logits[:, 1:].argmax(-1)
        target = decode(model, cache, rows, count)[0].argmax(-1).tolist()
        drafts = rows.tolist()
        kept = []
        for i, b in enumerate(live):
            draft, k = drafts[i][1 : n[i] + 1], 0
            while k < n[i] and target[i][k] == draft[k]:
                k += 1
            d = out[b]
            d.tokens += [*draft[:k], target[i][k]]
            d.rounds, d.drafted, d.accepted = d.rounds + 1, d.drafted + n[i], d.accepted + k
            for at in range(n[i]):
                d.drafted_at[at] += 1
                d.accepted_at[at] += at < k
            kept.append(k + 1)
        _, cache = decode(model, cache, rows, torch.tensor(kept))
    for d in out:
        d.tokens = until_end(d.tokens, end, n_predict)
    return out


def block_diffusion(
    model: Clover, prompts: list[list[int]], end: int, n_predict: int, size: int, threshold: float
) -> list[Diffused]:
    """Blocks on a grid from position 0; the first one begins with the prompt's incomplete block."""
    mask = model.c.mask_token
    whole = [len(p) // size * size for p in prompts]
    _, cache = prefill(model, [p[:w] for p, w in zip(prompts, whole, strict=True)], room_for(prompts, n_predict))
    known = [p[w:] for p, w in zip(prompts, whole, strict=True)]
    out = [Diffused([]) for _ in prompts]
    live = list(range(len(prompts)))
    while True:
        keep = [i for i, b in enumerate(live) if not finished(out[b].tokens, end, n_predict)]
        if not keep:
            break
        if len(keep) < len(live):
            cache, live = cache.rows(torch.tensor(keep)), [live[i] for i in keep]
        rows = torch.tensor([known[b] + [mask] * (size - len(known[b])) for b in live])
        while (hidden := rows == mask).any():
            logits = preview(model, cache, rows)
            logits[..., mask] = -torch.inf
            p, token = torch.softmax(logits, dim=-1).max(-1)
            p = p.masked_fill(~hidden, -1.0)
            sure = p > threshold
            best = p.argmax(-1)
            at = torch.arange(len(live))
            sure[at, best] |= hidden[at, best]
            rows = torch.where(sure, token, rows)
            for i, b in enumerate(live):
                out[b].passes += bool(hidden[i].any())
        _, cache = decode(model, cache, rows)
        for b, row in zip(live, rows.tolist(), strict=True):
            out[b].tokens += row[len(known[b]) :]
            out[b].passes += 1
            known[b] = []
    for d in out:
        d.tokens = until_end(d.tokens, end, n_predict)
    return out
