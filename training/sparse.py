"""Experts for many rows at once with fixed shapes: each row meets only its own experts, and one compilation serves all.

The (row, expert) pairs are sorted by expert into slots; an expert's slots are filled up to whole tiles, so that a tile
has one expert. One batched product over the tiles then does all of them. The two moves between rows and slots know
their inverse, so both directions of the gradient are gathers too.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from training.layers import Experts

TILE = 64


class _Move(torch.autograd.Function):
    """x [n, E] -> [m, E]: row `forward_index[i]` of x, or zeros for n.  `back_index` [n * k]: where each row went."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, forward_index: Tensor, back_index: Tensor) -> Tensor:
        ctx.save_for_backward(back_index)
        ctx.n = x.shape[0]
        return torch.cat([x, x.new_zeros(1, x.shape[1])])[forward_index]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (grad,) = grads
        (back_index,) = ctx.saved_tensors
        g = torch.cat([grad, grad.new_zeros(1, grad.shape[1])])[back_index]
        return g.view(ctx.n, -1, grad.shape[1]).sum(1), None, None


def move(x: Tensor, forward_index: Tensor, back_index: Tensor) -> Tensor:
    return cast(Tensor, _Move.apply(x, forward_index, back_index))  # type: ignore[no-untyped-call]


def slots_of(expert: Tensor, n_expert: int) -> tuple[Tensor, Tensor, Tensor]:
    """expert [A] of each pair -> slot of each pair [A], pair of each slot (A for none), expert of each tile."""
    a = expert.shape[0]
    tiles = -(-a // TILE) + n_expert
    onehot = F.one_hot(expert, n_expert)
    rank = (onehot.cumsum(0) * onehot).sum(1) - 1
    ends = ((onehot.sum(0) + TILE - 1) // TILE * TILE).cumsum(0)
    starts = F.pad(ends[:-1], (1, 0))
    slot = (onehot * starts).sum(1) + rank
    pair = torch.full((tiles * TILE,), a, dtype=torch.long).scatter(0, slot, torch.arange(a))
    first = torch.arange(tiles)[:, None] * TILE
    return slot, pair, (first >= ends).sum(1).clamp(max=n_expert - 1)


def mixture(mlp: Experts, x: Tensor) -> tuple[Tensor, Tensor]:
    """x [N, E] -> the layer's output [N, E], and the balance term of the router (1 when the load is even)."""
    c, n = mlp.c, x.shape[0]
    r = torch.softmax(F.linear(x, mlp.router), dim=-1)
    top, expert = r.topk(c.n_used, dim=-1)
    w = top / top.sum(-1, keepdim=True)
    slot, pair, tile_expert = slots_of(expert.flatten(), c.n_expert)
    row = torch.div(pair, c.n_used, rounding_mode="floor")  # of an empty slot: n
    onehot = F.one_hot(tile_expert, c.n_expert).to(x.dtype)
    gate_up = (onehot @ mlp.gate_up.flatten(1)).view(-1, *mlp.gate_up.shape[1:])
    down = (onehot @ mlp.down.flatten(1)).view(-1, *mlp.down.shape[1:])
    xs = move(x, row, slot).view(-1, TILE, c.n_embd)
    g, u = (xs @ gate_up.transpose(1, 2)).chunk(2, dim=-1)
    ys = ((F.silu(g) * u) @ down.transpose(1, 2)).view(-1, c.n_embd)
    y = (move(ys, slot, pair).view(n, c.n_used, c.n_embd) * w[..., None]).sum(1)
    load = F.one_hot(expert, c.n_expert).to(x.dtype).sum(1).mean(0) / c.n_used
    return y + mlp.shared(x), c.n_expert * (load * r.mean(0)).sum()
