"""Inference: decoding with a cache and the preview pass, for a batch of prefixes of different lengths.

Written plainly, token by token in the recurrent layers, so that it can check the packed form of `training.step`.
A cache is never written to: each pass that commits tokens returns a new one; rolling back is keeping the old one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from training.layers import Attention, Clover, DeltaNet, Experts, rms, rope_tables


@dataclass(frozen=True)
class Cache:
    """Committed prefixes of B sequences.

    n [B] lengths; layers: (memory [B, C-1, channels], state [B, R, S, S]) of a delta net, (k, v [B, room, K, D]) of
    full attention.
    """

    n: Tensor
    layers: tuple[tuple[Tensor, Tensor], ...]

    def rows(self, index: Tensor) -> Cache:
        return Cache(self.n[index], tuple((a[index], b[index]) for a, b in self.layers))


def empty_cache(model: Clover, batch: int, room: int) -> Cache:
    """Room for `room` tokens of each sequence, rows of a block included."""
    c = model.c
    layers = []
    for i in range(c.n_layer):
        if c.is_linear(i):
            memory = torch.zeros(batch, c.conv - 1, c.conv_channels)
            layers.append((memory, torch.zeros(batch, c.rank, c.state, c.state)))
        else:
            k = torch.zeros(batch, room, c.n_head_kv, c.head_dim)
            layers.append((k, k))
    return Cache(torch.zeros(batch, dtype=torch.long), tuple(layers))


def kept_experts(r: Tensor, rows: Tensor, count: int) -> Tensor:
    """Which experts a block may use [B, 1, X]: the `count` largest sums of r [B, T, X] over the block's rows [B, T]."""
    order = torch.sort((r * rows[..., None]).sum(1), dim=-1, descending=True, stable=True).indices[:, :count]
    return torch.zeros(r.shape[0], r.shape[2], dtype=torch.bool).scatter_(1, order, True)[:, None]


def kept_by_share(r: Tensor, rows: Tensor, n_used: int, share: float, least: int) -> Tensor:
    """The other rule: each row votes with its best n_used probabilities, and the fewest experts that hold the share of
    all votes are kept, at least `least`, never one without a vote."""
    top = torch.sort(r, dim=-1, descending=True, stable=True).indices[..., :n_used]
    voted = torch.zeros_like(r).scatter_(-1, top, r.gather(-1, top))
    votes = torch.sort((voted * rows[..., None]).sum(1), dim=-1, descending=True, stable=True)
    better = votes.values.cumsum(-1) - votes.values
    place = torch.arange(r.shape[-1])
    keep = (better < share * votes.values.sum(-1, keepdim=True) - 1e-12) | (place < max(least, n_used))
    keep &= votes.values > 0
    return torch.zeros_like(keep).scatter_(1, votes.indices, keep)[:, None]


def mixture(mlp: Experts, x: Tensor, rows: Tensor, restricted: bool) -> Tensor:
    """The experts' part; `restricted`: to the coreset of the configuration, as in a preview."""
    c = mlp.c
    r = torch.softmax(F.linear(x, mlp.router), dim=-1)
    if restricted and c.coreset_share:
        r = r.masked_fill(~kept_by_share(r, rows, c.n_used, c.coreset_share, c.coreset_min), 0.0)
    elif restricted and c.coreset:
        r = r.masked_fill(~kept_experts(r, rows, c.coreset), 0.0)
    top = torch.sort(r, dim=-1, descending=True, stable=True)
    chosen = top.values[..., : c.n_used]
    w = torch.zeros_like(r).scatter(-1, top.indices[..., : c.n_used], chosen / chosen.sum(-1, keepdim=True))
    y = mlp.shared(x)
    for e in range(c.n_expert):
        g, u = F.linear(x, mlp.gate_up[e]).chunk(2, dim=-1)
        y = y + F.linear(F.silu(g) * u * w[..., e, None], mlp.down[e])
    return y


def delta_net(
    m: DeltaNet, x: Tensor, memory: Tensor, state: Tensor, count: Tensor, preview: bool
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    c, t = m.c, x.shape[1]
    real = torch.arange(t)[None] < count[:, None]  # [B, T]
    u = F.linear(x, m.qkv) * real[..., None]
    rows = torch.cat([memory, u], dim=1)
    pre = sum((rows[:, j : j + t] * m.conv[j] for j in range(c.conv)), torch.zeros(()))
    if preview:
        ahead = F.pad(u, (0, 0, 0, c.conv - 1))
        pre = pre + sum((ahead[:, d : d + t] * m.conv_right[d - 1] for d in range(1, c.conv)), torch.zeros(()))
    q, k, v = m.heads(pre)
    scaled = q / math.sqrt(c.state)
    if preview:
        history = (scaled @ state) * m.bd_c[:, None, None]
        logits = (q @ k.transpose(2, 3)) * m.bd_scale[:, None, None]
        logits = logits.masked_fill(~real[:, None, None, :], -1e30)
        slot = m.bd_bias[None, :, None, None].expand(*logits.shape[:3], 1)
        p = torch.softmax(torch.cat([logits, slot], dim=-1), dim=-1)
        return m.finish(p[..., :-1] @ v + p[..., -1:] * history, x), (memory, state)
    log_decay, beta = m.gates(x)
    log_decay, beta = log_decay * real[..., None], beta * real[..., None]  # rows past the count change nothing
    out = []
    for i in range(t):
        state = state * log_decay[:, i].exp()[..., None, None]
        d = (v[:, :, i] - (k[:, :, i, None] @ state).squeeze(2)) * beta[:, i, :, None]
        state = state + k[:, :, i, :, None] * d[:, :, None]
        out.append((scaled[:, :, i, None] @ state).squeeze(2))
    last = count[:, None] + torch.arange(c.conv - 1)
    memory = rows.gather(1, last[..., None].expand(-1, -1, rows.shape[2]))
    return m.finish(torch.stack(out, dim=2), x), (memory, state)


def attention(
    m: Attention, x: Tensor, k_old: Tensor, v_old: Tensor, n: Tensor, count: Tensor, preview: bool
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    t, room = x.shape[1], k_old.shape[1]
    at = n[:, None] + torch.arange(t)  # [B, T] positions
    q, k, v, gate = m.project(x, *rope_tables(at, m.c.n_rot, m.c.rope_base))
    where = at.clamp(max=room - 1)[..., None, None].expand(-1, -1, *k.shape[2:])
    keys, values = k_old.scatter(1, where, k), v_old.scatter(1, where, v)
    key_at = torch.arange(room)
    end = (n + count)[:, None, None] if preview else at[..., None] + 1
    visible = (key_at < end.expand(-1, t, -1))[:, None]
    return m.attend(q, keys, values, gate, visible), (keys, values)


@torch.no_grad()
def run(model: Clover, cache: Cache, ids: Tensor, count: Tensor, preview: bool) -> tuple[Tensor, Cache]:
    """ids [B, T], of which the first count[b] are real -> logits [B, T, V] (undefined past the count) and the cache.

    The cache must have room for n + T tokens.
    """
    c = model.c
    real = torch.arange(ids.shape[1])[None] < count[:, None]
    x = model.embed[ids]
    layers = []
    for layer, (a, b) in zip(model.typed_layers(), cache.layers, strict=True):
        h = rms(x, layer.norm, c.eps)
        if isinstance(layer.mixer, DeltaNet):
            y, new = delta_net(layer.mixer, h, a, b, count, preview)
        else:
            y, new = attention(layer.mixer, h, a, b, cache.n, count, preview)
        layers.append(new)
        x = x + y
        x = x + mixture(layer.mlp, rms(x, layer.post_norm, c.eps), real, restricted=preview)
    logits = F.linear(rms(x, model.norm, c.eps), model.embed)
    return logits, cache if preview else replace(cache, n=cache.n + count, layers=tuple(layers))


def decode(model: Clover, cache: Cache, ids: Tensor, count: Tensor | None = None) -> tuple[Tensor, Cache]:
    """Appends ids[b, :count[b]] to sequence b."""
    return run(model, cache, ids, torch.full((len(ids),), ids.shape[1]) if count is None else count, preview=False)


def preview(model: Clover, cache: Cache, ids: Tensor, count: Tensor | None = None) -> Tensor:
    """Logits of a block after the committed prefix; row t is about its own position. Nothing is kept."""
    return run(model, cache, ids, torch.full((len(ids),), ids.shape[1]) if count is None else count, preview=True)[0]
