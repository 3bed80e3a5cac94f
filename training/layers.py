"""Parameters of the model and the arithmetic that training and inference share."""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (torch's own convention)

from training.config import ModelConfig

UNIT_EPS = 1e-6  # of the unit vectors of q and k; fixed by the architecture


def rms(x: Tensor, w: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * w


def unit(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + UNIT_EPS)


def rope_tables(positions: Tensor, n_rot: int, base: float) -> tuple[Tensor, Tensor]:
    """Cosines and sines [..., n_rot / 2] of whole-number positions."""
    frequency = base ** (-torch.arange(n_rot // 2, dtype=torch.float32) * 2.0 / n_rot)
    angle = positions.to(torch.float32)[..., None] * frequency
    return angle.cos(), angle.sin()


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates dimension i of x [..., T, heads, D] with dimension i + n_rot / 2."""
    h = cos.shape[-1]
    cos, sin = cos[..., None, :], sin[..., None, :]
    a, b = x[..., :h], x[..., h : 2 * h]
    return torch.cat([a * cos - b * sin, a * sin + b * cos, x[..., 2 * h :]], dim=-1)


def matrix(rows: int, columns: int, gain: float = 1.0) -> nn.Parameter:
    return nn.Parameter(torch.randn(rows, columns) * (gain / math.sqrt(columns)))


def ones(n: int, value: float = 1.0) -> nn.Parameter:
    return nn.Parameter(torch.full((n,), value))


class Attention(nn.Module):
    """Full attention with a query gate. q holds per head D rows of query, then D of gate."""

    def __init__(self, c: ModelConfig, out_gain: float) -> None:
        super().__init__()
        self.c = c
        self.q = matrix(2 * c.n_head * c.head_dim, c.n_embd)
        self.k = matrix(c.n_head_kv * c.head_dim, c.n_embd)
        self.v = matrix(c.n_head_kv * c.head_dim, c.n_embd)
        self.out = matrix(c.n_embd, c.n_head * c.head_dim, out_gain)
        self.q_norm, self.k_norm = ones(c.head_dim), ones(c.head_dim)

    def project(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """x [B, T, E] -> q, k, v, gate, each [B, T, heads, D]; q and k are normed and rotated."""
        c, (b, t, _) = self.c, x.shape
        q, gate = F.linear(x, self.q).view(b, t, c.n_head, 2, c.head_dim).unbind(3)
        k = F.linear(x, self.k).view(b, t, c.n_head_kv, c.head_dim)
        v = F.linear(x, self.v).view(b, t, c.n_head_kv, c.head_dim)
        q = rope(rms(q, self.q_norm, c.eps), cos, sin)
        k = rope(rms(k, self.k_norm, c.eps), cos, sin)
        return q, k, v, gate

    def attend(self, q: Tensor, k: Tensor, v: Tensor, gate: Tensor, visible: Tensor) -> Tensor:
        """visible [B, 1, T, keys] -> [B, T, E]"""
        repeat = self.c.n_head // self.c.n_head_kv
        k, v = (a.repeat_interleave(repeat, dim=2).transpose(1, 2) for a in (k, v))
        o = F.scaled_dot_product_attention(q.transpose(1, 2), k, v, attn_mask=visible)
        o = o.transpose(1, 2) * torch.sigmoid(gate)
        return F.linear(o.flatten(2), self.out)


class DeltaNet(nn.Module):
    """Gated delta net with the tensors of the block pass. Value head h uses key head h mod key heads."""

    def __init__(self, c: ModelConfig, out_gain: float) -> None:
        super().__init__()
        self.c = c
        inner = c.rank * c.state
        self.qkv = matrix(c.conv_channels, c.n_embd)
        self.gate = matrix(inner, c.n_embd)
        self.out = matrix(c.n_embd, inner, out_gain)
        self.alpha, self.beta = matrix(c.rank, c.n_embd, 0.5), matrix(c.rank, c.n_embd, 0.5)
        # one row for each tap, so that a tap's weights lie together; files have one row for each channel
        self.conv = nn.Parameter(torch.randn(c.conv, c.conv_channels) * 0.15)
        with torch.no_grad():
            self.conv[-1] += 0.7
        self.conv_right = nn.Parameter(torch.randn(c.conv - 1, c.conv_channels) * 0.15)
        self.a_log = nn.Parameter(torch.empty(c.rank).uniform_(0.5, 8.0).log())
        step = torch.empty(c.rank).uniform_(math.log(2e-3), math.log(0.2)).exp()
        self.dt_bias = nn.Parameter(step + torch.log(-torch.expm1(-step)))  # softplus of it is the step
        self.norm = ones(c.state)
        self.bd_scale, self.bd_bias, self.bd_c = ones(c.rank, 4.0), ones(c.rank, 2.0), ones(c.rank, 4.0)

    def heads(self, pre: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Result of the convolution [B, T, channels] -> q, k (unit vectors), v, each [B, R, T, S]."""
        c, (b, t, _) = self.c, pre.shape
        q, k, v = F.silu(pre).split([c.groups * c.state, c.groups * c.state, c.rank * c.state], dim=-1)
        q, k = unit(q.view(b, t, c.groups, c.state)), unit(k.view(b, t, c.groups, c.state))
        if c.rank != c.groups:
            q, k = (a.repeat(1, 1, c.rank // c.groups, 1) for a in (q, k))
        return q.transpose(1, 2), k.transpose(1, 2), v.view(b, t, c.rank, c.state).transpose(1, 2)

    def gates(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Logarithm of the decay, and beta, each [B, T, R]."""
        log_decay = -F.softplus(F.linear(x, self.alpha) + self.dt_bias) * self.a_log.exp()
        return log_decay, torch.sigmoid(F.linear(x, self.beta))

    def finish(self, o: Tensor, x: Tensor) -> Tensor:
        """o [B, R, T, S], x [B, T, E] -> [B, T, E]"""
        z = F.linear(x, self.gate).unflatten(-1, (self.c.rank, self.c.state))
        return F.linear((rms(o.transpose(1, 2), self.norm, self.c.eps) * F.silu(z)).flatten(2), self.out)


class Experts(nn.Module):
    """Router, experts and the shared expert."""

    def __init__(self, c: ModelConfig, out_gain: float) -> None:
        super().__init__()
        self.c = c
        self.router = matrix(c.n_expert, c.n_embd)
        self.gate_up = nn.Parameter(torch.randn(c.n_expert, 2 * c.n_ff, c.n_embd) / math.sqrt(c.n_embd))
        self.down = nn.Parameter(torch.randn(c.n_expert, c.n_embd, c.n_ff) * (out_gain / math.sqrt(c.n_ff)))
        self.shared_gate_up = matrix(2 * c.n_ff_shared, c.n_embd)
        self.shared_down = matrix(c.n_embd, c.n_ff_shared, out_gain)
        self.shared_gate = nn.Parameter(torch.zeros(c.n_embd))

    def shared(self, x: Tensor) -> Tensor:
        g, u = F.linear(x, self.shared_gate_up).chunk(2, dim=-1)
        return F.linear(F.silu(g) * u, self.shared_down) * torch.sigmoid(x @ self.shared_gate)[..., None]


class Layer(nn.Module):
    def __init__(self, c: ModelConfig, linear: bool) -> None:
        super().__init__()
        gain = 1.0 / math.sqrt(2 * c.n_layer)
        self.norm, self.post_norm = ones(c.n_embd), ones(c.n_embd)
        self.mixer: DeltaNet | Attention = DeltaNet(c, gain) if linear else Attention(c, gain)
        self.mlp = Experts(c, gain)


class Clover(nn.Module):
    """All parameters; the output head is the embedding. Passes: `training.model` and `training.step`."""

    def __init__(self, c: ModelConfig) -> None:
        super().__init__()
        self.c = c
        self.embed = nn.Parameter(torch.randn(c.n_vocab, c.n_embd) * 0.05)
        self.layers = nn.ModuleList(Layer(c, c.is_linear(i)) for i in range(c.n_layer))
        self.norm = ones(c.n_embd)

    def typed_layers(self) -> list[Layer]:
        """The layers as what they are; a ModuleList knows modules only."""
        return [cast(Layer, layer) for layer in self.layers]
