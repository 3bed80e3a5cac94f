"""The packed pass of training: clean and noisy rows of a batch of sequences in one go.

A sequence holds several documents; nothing crosses from one to the next. Its clean rows are read causally, each whole
sequence as one chunk of the delta rule: with A the strict lower part of beta_i exp(G_i - G_j) k_i.k_j (G the running
sum of the log decay) the writes d solve (I + A) d = beta v, and no state is ever formed. A noisy row belongs to a block
that stands at some place of a document; it sees the clean rows before the block and the whole block, as in the preview
pass. The read of the state before the block is linear attention over the writes d.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from training import sparse
from training.layers import Attention, Clover, DeltaNet, Layer, rms, rope_tables


class Batch(NamedTuple):
    """Integer tensors [B, L] of clean rows (c_) and [B, N] of noisy rows (x_); weights are float.

    doc: number of the document within the sequence; pos: position within the document; target -1 never occurs with a
    positive weight. Noisy: block: number within the sequence; off: row within the block; after: rows of the block that
    follow; start: clean row at which the block stands.
    """

    c_ids: Tensor
    c_doc: Tensor
    c_pos: Tensor
    c_target: Tensor
    c_weight: Tensor
    x_ids: Tensor
    x_doc: Tensor
    x_pos: Tensor
    x_block: Tensor
    x_off: Tensor
    x_after: Tensor
    x_start: Tensor
    x_target: Tensor
    x_weight: Tensor


class Views(NamedTuple):
    """What rows see of each other, computed once for all layers."""

    causal: Tensor  # [B, L, L] clean row i sees clean row j
    history: Tensor  # [B, N, L] noisy row sees clean row
    block: Tensor  # [B, N, N]
    cos: Tensor
    sin: Tensor


def views(model: Clover, b: Batch) -> Views:
    at = torch.arange(b.c_ids.shape[1])
    same = b.c_doc[:, :, None] == b.c_doc[:, None, :]
    history = (b.x_doc[:, :, None] == b.c_doc[:, None, :]) & (at < b.x_start[:, :, None])
    block = b.x_block[:, :, None] == b.x_block[:, None, :]
    cos, sin = rope_tables(torch.cat([b.c_pos, b.x_pos], dim=1), model.c.n_rot, model.c.rope_base)
    return Views(same & (at[:, None] >= at), history, block, cos, sin)


def convolution(m: DeltaNet, u: Tensor, b: Batch) -> Tensor:
    """u [B, L + N, channels]. Taps in a document or block are shifts; a block's first rows reach into clean rows."""
    taps, n_clean = m.c.conv, b.c_ids.shape[1]
    clean, noisy = u[:, :n_clean], u[:, n_clean:]
    pre_c, pre_x = clean * m.conv[-1], noisy * m.conv[-1]
    for d in range(1, taps):
        w, right = m.conv[taps - 1 - d], m.conv_right[d - 1]
        before = F.pad(clean, (0, 0, d, 0))[:, :n_clean]
        pre_c = pre_c + before * (b.c_pos >= d)[..., None] * w
        inside = F.pad(noisy, (0, 0, d, 0))[:, : noisy.shape[1]] * (b.x_off >= d)[..., None]
        index = (b.x_start - d + b.x_off).clamp(0, n_clean - 1)
        outside = clean.gather(1, index[..., None].expand(-1, -1, clean.shape[2]))
        outside = outside * ((b.x_off < d) & (b.x_pos >= d))[..., None]
        ahead = F.pad(noisy, (0, 0, 0, d))[:, d:] * (b.x_after >= d)[..., None]
        pre_x = pre_x + (inside + outside) * w + ahead * right
    return torch.cat([pre_c, pre_x], dim=1)


def delta_net(m: DeltaNet, x: Tensor, b: Batch, see: Views) -> Tensor:
    c, n_clean = m.c, b.c_ids.shape[1]
    q, k, v = m.heads(convolution(m, F.linear(x, m.qkv), b))
    (q_c, q_x), (k_c, k_x), (v_c, v_x) = ((a[:, :, :n_clean], a[:, :, n_clean:]) for a in (q, k, v))
    log_decay, beta = m.gates(x[:, :n_clean])
    total = log_decay.cumsum(1).transpose(1, 2)  # G [B, R, L]
    beta = beta.transpose(1, 2)[..., None]
    gap = (total[..., :, None] - total[..., None, :]).masked_fill(~see.causal[:, None], -1e30)
    decay = gap.exp()
    a = torch.tril((k_c @ k_c.transpose(2, 3)) * decay * beta, -1)
    writes = torch.linalg.solve_triangular(a, v_c * beta, upper=False, unitriangular=True)
    o_c = ((q_c @ k_c.transpose(2, 3)) * decay / math.sqrt(c.state)) @ writes

    end = (b.x_start - 1).clamp(min=0)[:, None].expand(-1, c.rank, -1)
    gap = total.gather(2, end)[..., :, None] - total[..., None, :]
    faded = gap.masked_fill(~see.history[:, None], -1e30).exp()
    history = ((q_x @ k_c.transpose(2, 3)) * faded / math.sqrt(c.state)) @ writes * m.bd_c[:, None, None]
    logits = ((q_x @ k_x.transpose(2, 3)) * m.bd_scale[:, None, None]).masked_fill(~see.block[:, None], -1e30)
    slot = m.bd_bias[None, :, None, None].expand(*logits.shape[:3], 1)
    p = torch.softmax(torch.cat([logits, slot], dim=-1), dim=-1)
    o_x = p[..., :-1] @ v_x + p[..., -1:] * history
    return m.finish(torch.cat([o_c, o_x], dim=2), x)


def attention(m: Attention, x: Tensor, see: Views) -> Tensor:
    q, k, v, gate = m.project(x, see.cos, see.sin)
    n = see.block.shape[1]
    visible = torch.cat([F.pad(see.causal, (0, n)), torch.cat([see.history, see.block], dim=2)], dim=1)
    return m.attend(q, k, v, gate, visible[:, None])


def layer_pass(layer: Layer, x: Tensor, b: Batch, see: Views) -> tuple[Tensor, Tensor]:
    """One layer of all rows, and its balance term. Layers of a kind share one compilation of this function."""
    h = rms(x, layer.norm, layer.mixer.c.eps)
    mixer = layer.mixer
    x = x + (delta_net(mixer, h, b, see) if isinstance(mixer, DeltaNet) else attention(mixer, h, see))
    y, even = sparse.mixture(layer.mlp, rms(x, layer.post_norm, mixer.c.eps).flatten(0, 1))
    return x + y.view_as(x), even


def cross_entropy(x: Tensor, norm: Tensor, embed: Tensor, target: Tensor, eps: float) -> Tensor:
    logits = F.linear(rms(x, norm, eps), embed)
    return F.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="none").view_as(target)


class Passes:
    """The functions that take the time, as they are or compiled."""

    def __init__(self, compiled: bool = False) -> None:
        self.layer, self.head = layer_pass, cross_entropy
        if compiled:
            self.layer = torch.compile(layer_pass, dynamic=False)
            self.head = torch.compile(cross_entropy, dynamic=False)


def hidden(model: Clover, b: Batch, passes: Passes) -> tuple[Tensor, Tensor]:
    """Hidden values [B, L + N, E] of clean, then noisy rows, before the last norm, and the mean balance term."""
    see = views(model, b)
    x = F.embedding(torch.cat([b.c_ids, b.x_ids], dim=1), model.embed)
    balance = x.new_zeros(())
    for layer in model.typed_layers():
        x, even = passes.layer(layer, x, b, see)
        balance = balance + even / model.c.n_layer
    return x, balance


def forward(model: Clover, b: Batch) -> Tensor:
    """Logits [B, L + N, V] of clean, then noisy rows."""
    return F.linear(rms(hidden(model, b, Passes())[0], model.norm, model.c.eps), model.embed)


def losses(model: Clover, b: Batch, passes: Passes) -> tuple[Tensor, Tensor, Tensor]:
    """Causal and block cross-entropy (weighted means), and the balance term."""
    x, balance = hidden(model, b, passes)
    ce = passes.head(x, model.norm, model.embed, torch.cat([b.c_target, b.x_target], dim=1), model.c.eps)
    causal, block = ce.split([b.c_ids.shape[1], b.x_ids.shape[1]], dim=1)
    mean_c = (causal * b.c_weight).sum() / b.c_weight.sum().clamp(min=1)
    mean_x = (block * b.x_weight).sum() / b.x_weight.sum().clamp(min=1)
    return mean_c, mean_x, balance
