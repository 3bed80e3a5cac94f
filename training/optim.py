"""Muon for the matrices, AdamW for the rest, with one learning-rate factor for both."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from training.config import TrainConfig
from training.layers import Clover

_NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
# Embedding and router are tables, the small projections and kernels vectors by nature: these stay with AdamW.
_NOT_MATRICES = ("embed", "router", "alpha", "beta", "conv", "conv_right")


def orthogonal(g: Tensor, steps: int = 5) -> Tensor:
    """Nearly the nearest orthogonal matrices of a stack [n, rows, columns], by Newton-Schulz iteration."""
    a, b, c = _NEWTON_SCHULZ
    tall = g.shape[1] > g.shape[2]
    x = g.transpose(1, 2) if tall else g
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(steps):
        y = x @ x.transpose(1, 2)
        x = a * x + (b * y + c * (y @ y)) @ x
    out: Tensor = x.transpose(1, 2) if tall else x
    return out


class Muon(torch.optim.Optimizer):
    """Momentum, made orthogonal. Each parameter is a stack of matrices with the given number of rows; equal shapes go
    together."""

    def __init__(
        self, params: list[tuple[nn.Parameter, int]], lr: float, momentum: float = 0.95, weight_decay: float = 0.0
    ) -> None:
        shapes = sorted({(rows, p.shape[-1]) for p, rows in params})
        groups = [
            {"params": [p for p, rows in params if (rows, p.shape[-1]) == shape], "rows": shape[0]} for shape in shapes
        ]
        super().__init__(groups, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            stacks = []
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["momentum"] = torch.zeros_like(p)
                state["momentum"].lerp_(p.grad, 1 - group["momentum"])
                mixed = torch.lerp(p.grad, state["momentum"], group["momentum"])
                stacks.append(mixed.reshape(-1, group["rows"], p.shape[-1]))
            update = orthogonal(torch.cat(stacks))
            rate = group["lr"] * max(1.0, update.shape[1] / update.shape[2]) ** 0.5
            for p, u in zip(group["params"], update.split([len(s) for s in stacks]), strict=True):
                p.mul_(1 - group["lr"] * group["weight_decay"]).add_(u.reshape(p.shape), alpha=-rate)


def optimizers(model: Clover, c: TrainConfig) -> list[torch.optim.Optimizer]:
    matrices: list[tuple[nn.Parameter, int]] = []
    plain: list[nn.Parameter] = []
    vectors: list[nn.Parameter] = []
    for name, p in model.named_parameters():
        last = name.rpartition(".")[2]
        if p.dim() >= 2 and last not in _NOT_MATRICES:
            matrices.append((p, p.shape[-2] // 2 if last.endswith("gate_up") else p.shape[-2]))
        else:
            (plain if p.dim() >= 2 else vectors).append(p)
    groups = [{"params": plain, "weight_decay": c.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return [
        Muon(matrices, c.lr_muon, weight_decay=c.weight_decay),
        torch.optim.AdamW(groups, lr=c.lr, betas=(0.9, 0.98), eps=1e-9, fused=True),
    ]


def set_rates(opts: list[torch.optim.Optimizer], c: TrainConfig, factor: float) -> None:
    for opt, rate in zip(opts, (c.lr_muon, c.lr), strict=True):
        for group in opt.param_groups:
            group["lr"] = rate * factor
