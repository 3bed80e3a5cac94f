"""The PyTorch Clover against the independent numpy reference, and the packed training pass against both."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from support import ROOT

torch = pytest.importorskip("torch", reason="training needs torch")
sys.path.append(str(ROOT))

from training.config import ModelConfig  # noqa: E402
from training.layers import Clover, DeltaNet  # noqa: E402
from training.model import decode, empty_cache, preview  # noqa: E402
from training.step import Batch, forward  # noqa: E402

TOLERANCE = 1e-4
SMALL = ModelConfig(
    n_vocab=61, n_embd=32, n_layer=4, interval=2, n_head=4, n_head_kv=2, head_dim=16, n_rot=8,
    state=8, groups=2, rank=4, n_expert=5, n_used=2, n_ff=12, n_ff_shared=20, mask_token=60,
)  # fmt: skip


def make(config: ModelConfig = SMALL) -> Clover:
    """Random weights, all of them away from their starting values."""
    torch.manual_seed(5)
    torch.set_num_threads(1)
    model = Clover(config).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.2)
        model.embed.mul_(2)
    return model


def reference_model(model: Clover) -> tuple[dict[str, Any], dict[str, np.ndarray[Any, Any]]]:
    """What reference_numpy.load would read from a file with these weights, named by the tables of FACTS.md."""
    c = model.c
    kv = {
        "attention.head_count": c.n_head, "attention.head_count_kv": c.n_head_kv, "attention.key_length": c.head_dim,
        "attention.layer_norm_rms_epsilon": c.eps, "rope.dimension_count": c.n_rot, "rope.freq_base": c.rope_base,
        "ssm.state_size": c.state, "ssm.group_count": c.groups, "ssm.time_step_rank": c.rank,
        "ssm.conv_kernel": c.conv, "block_count": c.n_layer, "full_attention_interval": c.interval,
        "expert_used_count": c.n_used, "expert_shared_count": 1, "diffusion.expert_coreset": c.coreset,
        "diffusion.expert_coreset_share": c.coreset_share, "diffusion.expert_coreset_min": c.coreset_min,
        "tokenizer.ggml.mask_token_id": c.mask_token,
    }  # fmt: skip
    t = {"token_embd.weight": model.embed, "output_norm.weight": model.norm}
    for i, layer in enumerate(model.layers):
        m, mlp = layer.mixer, layer.mlp
        named = {"attn_norm.weight": layer.norm, "post_attention_norm.weight": layer.post_norm,
                 "ffn_gate_inp.weight": mlp.router, "ffn_gate_up_exps.weight": mlp.gate_up,
                 "ffn_down_exps.weight": mlp.down, "ffn_gate_shexp.weight": mlp.shared_gate_up[: c.n_ff_shared],
                 "ffn_up_shexp.weight": mlp.shared_gate_up[c.n_ff_shared :], "ffn_down_shexp.weight": mlp.shared_down,
                 "ffn_gate_inp_shexp.weight": mlp.shared_gate}  # fmt: skip
        if isinstance(m, DeltaNet):
            named |= {"attn_qkv.weight": m.qkv, "attn_gate.weight": m.gate, "ssm_conv1d.weight": m.conv.t(),
                      "ssm_dt.bias": m.dt_bias, "ssm_a": -m.a_log.exp(), "ssm_beta.weight": m.beta,
                      "ssm_alpha.weight": m.alpha, "ssm_norm.weight": m.norm, "ssm_out.weight": m.out,
                      "ssm_conv1d_right.weight": m.conv_right.t(), "ssm_bd_logit_scale": m.bd_scale,
                      "ssm_bd_history_bias": m.bd_bias, "ssm_bd_history_c": m.bd_c}  # fmt: skip
        else:
            named |= {"attn_q.weight": m.q, "attn_k.weight": m.k, "attn_v.weight": m.v, "attn_output.weight": m.out,
                      "attn_q_norm.weight": m.q_norm, "attn_k_norm.weight": m.k_norm}  # fmt: skip
        t |= {f"blk.{i}.{name}": a for name, a in named.items()}
    return kv, {name: a.detach().double().numpy() for name, a in t.items()}


def sequences(seed: int, lengths: list[int]) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, SMALL.n_vocab - 1, n).tolist() for n in lengths]


def padded(rows: list[list[int]]) -> tuple[Any, Any]:
    width = max(map(len, rows))
    return torch.tensor([r + [0] * (width - len(r)) for r in rows]), torch.tensor([len(r) for r in rows])


@pytest.mark.parametrize("coreset", [{}, {"coreset": 3}, {"coreset_share": 0.4, "coreset_min": 2}], ids=str)
def test_decode_and_preview_equal_the_reference(reference: ModuleType, coreset: dict[str, float]) -> None:
    """Ragged batch, two decodes in a row, a preview between them that must change nothing."""
    model = make(ModelConfig(**{**SMALL.__dict__, **coreset}))
    first, second = sequences(1, [9, 1, 5]), sequences(2, [2, 4, 3])
    blocks = [[7, 60, 60, 3, 60], [60] * 8, [1]]
    ids, count = padded(first)
    logits, cache = decode(model, empty_cache(model, 3, 32), ids, count)
    drafts = preview(model, cache, *padded(blocks))
    later, _ = decode(model, cache, *padded(second))
    for b in range(3):
        want = reference.Cache(*reference_model(model))
        for got, rows, name in ((logits, first, "decode"), (drafts, blocks, "preview"), (later, second, "decode")):
            expected = getattr(reference, name)(want, rows[b])
            assert np.abs(expected).max() > 1
            np.testing.assert_allclose(got[b, : len(rows[b])].numpy(), expected, rtol=0, atol=TOLERANCE)


def test_rows_past_the_count_leave_no_trace() -> None:
    model = make()
    ids = torch.tensor(sequences(3, [8]))
    _, rolled = decode(model, empty_cache(model, 1, 24), ids, torch.tensor([3]))
    _, plain = decode(model, empty_cache(model, 1, 24), ids[:, :3])
    tail = torch.tensor(sequences(4, [4]))
    torch.testing.assert_close(decode(model, rolled, tail)[0], decode(model, plain, tail)[0], rtol=0, atol=TOLERANCE)


def test_packed_pass_equals_the_reference(reference: ModuleType) -> None:
    """Two documents in one sequence; blocks at a document's start, near it, across its end, in each document."""
    model = make()
    docs = sequences(6, [14, 11])
    # document, place of its first row, rows
    blocks = [(0, 0, [60, 4, 60]), (0, 2, [5, 60, 60, 60, 9, 60]), (0, 13, [1, 60, 60, 60]), (1, 1, [60]),
              (1, 8, [2, 60, 3, 60, 60, 60, 60])]  # fmt: skip
    pad = 3
    c_ids = [*docs[0], *docs[1], *[0] * pad]
    c_doc = [0] * len(docs[0]) + [1] * len(docs[1]) + [2] * pad
    c_pos = [*range(len(docs[0])), *range(len(docs[1])), *range(pad)]
    x: dict[str, list[int]] = {k: [] for k in ("ids", "doc", "pos", "block", "off", "after", "start")}
    for number, (doc, at, rows) in enumerate(blocks):
        for off, token in enumerate(rows):
            row = {"ids": token, "doc": doc, "pos": at + off, "block": number, "off": off,
                   "after": len(rows) - 1 - off, "start": at + (len(docs[0]) if doc else 0)}  # fmt: skip
            for key, value in row.items():
                x[key].append(value)
    zero = torch.zeros(1, len(c_ids))
    none = torch.zeros(1, len(x["ids"]))
    batch = Batch(
        torch.tensor([c_ids]), torch.tensor([c_doc]), torch.tensor([c_pos]), zero.long(), zero,
        *(torch.tensor([x[k]]) for k in ("ids", "doc", "pos", "block", "off", "after", "start")), none.long(), none,
    )  # fmt: skip
    logits = forward(model, batch)[0].detach().numpy()

    weights = reference_model(model)
    row = len(c_ids)
    for doc, at, rows in blocks:
        cache = reference.Cache(*weights)
        if at:
            reference.decode(cache, docs[doc][:at])
        want = reference.preview(cache, rows)
        np.testing.assert_allclose(logits[row : row + len(rows)], want, rtol=0, atol=TOLERANCE)
        row += len(rows)
    row = 0
    for doc in docs:
        want = reference.decode(reference.Cache(*weights), doc)
        np.testing.assert_allclose(logits[row : row + len(doc)], want, rtol=0, atol=TOLERANCE)
        row += len(doc)


def test_sparse_experts_have_the_gradient_of_dense_ones() -> None:
    from training import sparse
    from training.model import mixture

    mlp = make().layers[0].mlp
    x = torch.randn(37, SMALL.n_embd, requires_grad=True)
    names = [n for n, _ in mlp.named_parameters()]
    probe = torch.randn(37, SMALL.n_embd)
    dense = mixture(mlp, x[None], torch.ones(1, 37, dtype=torch.bool), restricted=False)[0]
    packed, _ = sparse.mixture(mlp, x)
    torch.testing.assert_close(packed, dense, rtol=0, atol=1e-5)
    sources = [x, *mlp.parameters()]
    for name, a, b in zip(
        ["x", *names],
        torch.autograd.grad((packed * probe).sum(), sources),
        torch.autograd.grad((dense * probe).sum(), sources),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4, msg=f"gradient of {name}")
