#include "clover-graph.h"

#include "clover-log.h"
#include "llama-memory-hybrid.h"
#include "llama-memory-recurrent.h"

#include <algorithm>
#include <tuple>
#include <vector>

// q and k of the delta net are divided by sqrt(sum of squares + this), whatever the file's RMS epsilon is
static constexpr float CLOVER_GDN_NORM_EPS = 1e-6f;

//
// shared
//

void clover_graph::build(bool trim_early) {
    ggml_tensor * x = build_inp_embd(model.tok_embd);
    cb(x, "model.input_embed", -1);

    inp_pos = build_inp_pos();
    ggml_tensor * inp_out_ids = build_inp_out_ids();

    for (int il = 0; il < n_layer; ++il) {
        res->t_layer_inp[il] = x;

        ggml_tensor * residual = x;

        ggml_tensor * cur = build_norm(x, model.layers[il].attn_norm, nullptr, LLM_NORM_RMS, il);
        cb(cur, "attn_norm", il);
        ggml_build_forward_expand(gf, cur);

        cur = mix(cur, il);

        // the last layer's feed-forward part is needed only for rows that are asked for
        const bool trim = il == n_layer - 1 && inp_out_ids != nullptr;
        if (trim && trim_early) {
            cur = ggml_get_rows(ctx0, cur, inp_out_ids);
            residual = ggml_get_rows(ctx0, residual, inp_out_ids);
        }
        residual = ggml_add(ctx0, cur, residual);
        cb(residual, "attn_residual", il);

        cur = build_norm(residual, model.layers[il].attn_post_norm, nullptr, LLM_NORM_RMS, il);
        cb(cur, "attn_post_norm", il);

        cur = ggml_add(ctx0, experts(cur, il), residual);
        cur = build_cvec(cur, il);
        cb(cur, "l_out", il);

        x = trim && !trim_early ? ggml_get_rows(ctx0, cur, inp_out_ids) : cur;
    }

    x = build_norm(x, model.output_norm, nullptr, LLM_NORM_RMS, -1);
    cb(x, "result_norm", -1);
    res->t_embd = x;

    x = build_lora_mm(model.output, x, model.output_s);
    cb(x, "result_output", -1);
    res->t_logits = x;

    ggml_build_forward_expand(gf, x);
}

ggml_tensor * clover_graph::attention(llm_graph_input_attn_kv * inp, ggml_tensor * x, int il) {
    const auto & layer = model.layers[il];
    const int64_t n_dim = hparams.n_embd_head_k(il);

    auto [qg, k, v] = build_qkv(layer, x, 2 * n_dim, n_head, n_dim, n_head_kv, n_dim, n_head_kv, il, false);

    // per head: n_dim of query, then n_dim of gate
    const size_t size = ggml_element_size(qg);
    ggml_tensor * q = ggml_view_3d(ctx0, qg, n_dim, n_head, n_tokens, 2 * n_dim * size, 2 * n_dim * n_head * size, 0);
    ggml_tensor * gate =
        ggml_view_3d(ctx0, qg, n_dim, n_head, n_tokens, 2 * n_dim * size, 2 * n_dim * n_head * size, n_dim * size);
    gate = ggml_cont_2d(ctx0, gate, n_dim * n_head, n_tokens);

    k = ggml_reshape_3d(ctx0, k, n_dim, n_head_kv, n_tokens);
    v = ggml_reshape_3d(ctx0, v, n_dim, n_head_kv, n_tokens);
    q = build_norm(q, layer.attn_q_norm, nullptr, LLM_NORM_RMS, il);
    k = build_norm(k, layer.attn_k_norm, nullptr, LLM_NORM_RMS, il);

    const auto rotate = [&](ggml_tensor * t) {
        return ggml_rope_ext(ctx0, t, inp_pos, nullptr, n_rot, rope_type, n_ctx_orig, freq_base, freq_scale, ext_factor,
                             attn_factor, beta_fast, beta_slow);
    };
    q = rotate(q);
    k = rotate(k);
    cb(q, "Qcur", il);
    cb(k, "Kcur", il);
    cb(v, "Vcur", il);

    ggml_tensor * out =
        build_attn(inp, nullptr, nullptr, nullptr, q, k, v, nullptr, nullptr, nullptr, 1.0f / sqrtf(float(n_dim)), il);
    out = ggml_mul(ctx0, out, ggml_sigmoid(ctx0, gate));
    out = build_lora_mm(layer.wo, out, layer.wo_s);
    cb(out, "attn_output", il);
    return out;
}

ggml_tensor * clover_graph::experts(ggml_tensor * x, int il) {
    const auto & layer = model.layers[il];

    // softmax over all experts, the best n_expert_used with their weights made to sum to 1, no further scale
    ggml_tensor * out =
        build_moe_ffn(x, layer.ffn_gate_inp, layer.ffn_up_exps, layer.ffn_gate_exps, layer.ffn_down_exps, nullptr, n_expert,
                      n_expert_used, LLM_FFN_SILU, true, 1.0f, LLAMA_EXPERT_GATING_FUNC_TYPE_SOFTMAX, il, route(x, il),
                      layer.ffn_gate_up_exps, layer.ffn_up_exps_s, layer.ffn_gate_exps_s, layer.ffn_down_exps_s);
    cb(out, "ffn_moe_out", il);

    if (layer.ffn_up_shexp != nullptr) {
        ggml_tensor * shared =
            build_ffn(x, layer.ffn_up_shexp, nullptr, layer.ffn_up_shexp_s, layer.ffn_gate_shexp, nullptr, layer.ffn_gate_shexp_s,
                      layer.ffn_down_shexp, nullptr, layer.ffn_down_shexp_s, nullptr, LLM_FFN_SILU, LLM_FFN_PAR, il);
        ggml_tensor * gate = ggml_sigmoid(ctx0, build_lora_mm(layer.ffn_gate_inp_shexp, x));
        out = ggml_add(ctx0, out, ggml_mul(ctx0, shared, gate));
    }
    cb(out, "ffn_out", il);
    return out;
}

ggml_tensor * clover_graph::gdn_qkv(ggml_tensor * x, int il) {
    ggml_tensor * qkv = build_lora_mm(model.layers[il].wqkv, x, model.layers[il].wqkv_s);
    qkv = ggml_reshape_3d(ctx0, qkv, gdn_channels(), ubatch.n_seq_tokens, ubatch.n_seqs);
    cb(qkv, "gdn_qkv", il);
    return qkv;
}

clover_gdn_heads clover_gdn_split(ggml_context * ctx, const llama_hparams & hparams, ggml_tensor * mixed, int64_t n_rows,
                                  int64_t n_seqs) {
    const int64_t n_dim = hparams.ssm_d_state;
    const int64_t n_kheads = hparams.ssm_n_group;
    const int64_t n_vheads = hparams.ssm_dt_rank;
    const size_t row = ggml_row_size(mixed->type, clover_gdn_channels(hparams));
    const auto heads = [&](int64_t n_heads, int64_t first) {
        return ggml_view_4d(ctx, mixed, n_dim, n_heads, n_rows, n_seqs, ggml_row_size(mixed->type, n_dim), row, row * n_rows,
                            ggml_row_size(mixed->type, first * n_dim));
    };
    return {
        build_gdn_l2_norm(ctx, heads(n_kheads, 0), CLOVER_GDN_NORM_EPS),
        build_gdn_l2_norm(ctx, heads(n_kheads, n_kheads), CLOVER_GDN_NORM_EPS),
        heads(n_vheads, 2 * n_kheads),
    };
}

ggml_tensor * clover_graph::gdn_repeat(ggml_tensor * t) {
    return hparams.ssm_n_group == hparams.ssm_dt_rank
               ? t
               : ggml_repeat_4d(ctx0, t, hparams.ssm_d_state, hparams.ssm_dt_rank, t->ne[2], t->ne[3]);
}

ggml_tensor * clover_graph::gdn_output(ggml_tensor * out, ggml_tensor * x, int il) {
    const auto & layer = model.layers[il];
    const int64_t n_dim = hparams.ssm_d_state;
    const int64_t n_vheads = hparams.ssm_dt_rank;

    ggml_tensor * z = build_lora_mm(layer.wqkv_gate, x, layer.wqkv_gate_s);
    cb(z, "gdn_z", il);
    z = ggml_reshape_4d(ctx0, z, n_dim, n_vheads, ubatch.n_seq_tokens, ubatch.n_seqs);
    out = ggml_mul(ctx0, build_norm(out, layer.ssm_norm, nullptr, LLM_NORM_RMS, il), ggml_silu(ctx0, z));
    out = ggml_reshape_2d(ctx0, out, n_dim * n_vheads, n_tokens);
    out = build_lora_mm(layer.ssm_out, out, layer.ssm_out_s);
    cb(out, "gdn_output", il);
    return out;
}

//
// autoregressive mode
//

// What the graph takes from the memory beside its tensors, and what therefore has to be the same for its reuse.
class clover_pass_input : public llm_graph_input_i {
  public:
    clover_pass_input(const llama_memory_hybrid_context * memory, ggml_tensor * mask, const llama_ubatch & ubatch,
                      const clover_block_params & block)
        : n_kept(memory->get_recr()->n_kept(ubatch)), n_ahead(memory->get_recr()->n_ahead()),
          moves(memory->get_recr()->moves(ubatch)), block(block), memory(memory), mask(mask) {
        GGML_ASSERT(n_ahead == 0 || (ubatch.n_seqs == 1 && n_ahead < (int64_t) ubatch.n_seq_tokens));
    }

    // Set after the mask, which is causal: the rows of a block that looks ahead see all of it as well.
    void set_input(const llama_ubatch * ubatch) override {
        if (n_ahead == 0) {
            return;
        }
        const size_t n_causal = (ubatch->n_tokens - n_ahead) * mask->nb[1];
        const auto * rows = static_cast<const uint8_t *>(mask->data);
        const std::vector<uint8_t> causal(rows, rows + n_causal);
        memory->get_attn()->set_input_kq_mask(mask, ubatch, false);
        std::copy(causal.begin(), causal.end(), static_cast<uint8_t *>(mask->data));
    }

    bool can_reuse(const llm_graph_params & other) override {
        memory = static_cast<const llama_memory_hybrid_context *>(other.mctx);
        const auto * states = memory->get_recr();
        return n_kept == states->n_kept(other.ubatch) && n_ahead == states->n_ahead() && moves == states->moves(other.ubatch) &&
               (n_ahead == 0 || block == other.cparams.clover_block);
    }

    const int64_t n_kept;  // last rows of each sequence that are kept beside a state from before them
    const int64_t n_ahead; // rows behind them that are a block, and not kept
    const bool moves;      // a state is read from another place than it is written to

  private:
    const clover_block_params block; // how the rows ahead are computed
    const llama_memory_hybrid_context * memory;
    ggml_tensor * mask;
};

clover_graph_causal::clover_graph_causal(const llama_model & model, const llm_graph_params & params)
    : clover_graph(model, params) {
    inp = build_inp_mem_hybrid();
    auto input = std::make_unique<clover_pass_input>(static_cast<const llama_memory_hybrid_context *>(mctx),
                                                     inp->get_attn()->self_kq_mask, ubatch, block);
    pass = static_cast<clover_pass_input *>(res->add_input(std::move(input)));
    build(pass->n_ahead == 0 || !clover_uses_coreset(block));
}

ggml_tensor * clover_graph_causal::mix(ggml_tensor * x, int il) {
    return hparams.is_recr(il) ? delta_net(inp->get_recr(), x, il) : attention(inp->get_attn(), x, il);
}

ggml_tensor * clover_graph_causal::route(ggml_tensor * x, int il) {
    if (pass->n_ahead == 0 || !clover_uses_coreset(block)) {
        return nullptr;
    }
    const int64_t n_causal = n_tokens - pass->n_ahead;
    ggml_tensor * logits = build_lora_mm(model.layers[il].ffn_gate_inp, x);
    const auto part = [&](int64_t first, int64_t n) {
        return ggml_cont(ctx0, ggml_view_2d(ctx0, logits, logits->ne[0], n, logits->nb[1], first * logits->nb[1]));
    };
    return ggml_concat(ctx0, part(0, n_causal), block_route(part(n_causal, pass->n_ahead), pass->n_ahead, 1, il), 1);
}

// the first n rows of each sequence, or those from `first` on
static ggml_tensor * clover_rows(ggml_context * ctx, ggml_tensor * t, int64_t first, int64_t n) {
    return n == t->ne[2] ? t
                         : ggml_view_4d(ctx, t, t->ne[0], t->ne[1], n, t->ne[3], t->nb[1], t->nb[2], t->nb[3], first * t->nb[2]);
}

ggml_tensor * clover_graph_causal::delta_net(llm_graph_input_rs * inp_rs, ggml_tensor * x, int il) {
    const auto & layer = model.layers[il];
    const int64_t n_vheads = hparams.ssm_dt_rank;
    const int64_t n_all = ubatch.n_seq_tokens;
    const int64_t n_rows = n_all - pass->n_ahead;
    const int64_t n_seqs = ubatch.n_seqs;

    GGML_ASSERT(n_seqs > 0 && ubatch.equal_seqs() && ubatch.n_tokens == n_all * n_seqs);

    ggml_tensor * qkv = gdn_qkv(x, il);

    ggml_tensor * beta = ggml_sigmoid(ctx0, build_lora_mm(layer.ssm_beta, x, layer.ssm_beta_s));
    beta = clover_rows(ctx0, ggml_reshape_4d(ctx0, beta, 1, n_vheads, n_all, n_seqs), 0, n_rows);

    // logarithm of the decay: -exp(A_log) * softplus(alpha + dt); ssm_a holds the first factor
    ggml_tensor * decay = build_lora_mm(layer.ssm_alpha, x, layer.ssm_alpha_s);
    decay = ggml_softplus(ctx0, ggml_add(ctx0, decay, layer.ssm_dt));
    decay = ggml_mul(ctx0, decay, layer.ssm_a);
    decay = clover_rows(ctx0, ggml_reshape_4d(ctx0, decay, 1, n_vheads, n_all, n_seqs), 0, n_rows);
    cb(beta, "gdn_beta", il);
    cb(decay, "gdn_decay", il);

    const auto columns = [&](int64_t first, int64_t n) {
        return n == n_all ? qkv : ggml_view_3d(ctx0, qkv, gdn_channels(), n, n_seqs, qkv->nb[1], qkv->nb[2], first * qkv->nb[1]);
    };
    ggml_tensor * conv_in = conv_input(inp_rs, columns(0, n_rows), il);
    ggml_tensor * mixed = ggml_silu(ctx0, ggml_ssm_conv(ctx0, conv_in, layer.ssm_conv1d));
    cb(mixed, "gdn_conv", il);

    clover_gdn_heads heads = clover_gdn_split(ctx0, hparams, mixed, n_rows, n_seqs);
    // the fused operator lets value head h read key head h mod key heads by itself
    if (!(cparams.fused_gdn_ar && cparams.fused_gdn_ch)) {
        heads.q = gdn_repeat(heads.q);
        heads.k = gdn_repeat(heads.k);
    }
    auto [out, after] = scan(inp_rs, heads, decay, beta, il);

    if (pass->n_ahead > 0) {
        const int64_t n_before = layer.ssm_conv1d->ne[0] - 1;
        ggml_tensor * before = ggml_cont(ctx0, ggml_view_3d(ctx0, conv_in, n_before, gdn_channels(), n_seqs, conv_in->nb[1],
                                                            conv_in->nb[2], n_rows * ggml_element_size(conv_in)));
        ggml_tensor * ahead = ggml_cont(ctx0, columns(n_rows, pass->n_ahead));
        out = ggml_concat(ctx0, out, block_rows(ahead, before, after, nullptr, il), 2);
    }
    return gdn_output(out, x, il);
}

// The rows that the convolution reads: those before the pass, then its own. The memory keeps those before the kept rows.
ggml_tensor * clover_graph_causal::conv_input(llm_graph_input_rs * inp_rs, ggml_tensor * qkv, int il) {
    ggml_tensor * states = inp_rs->mctx->get_r_l(il);
    const int64_t n_before = model.layers[il].ssm_conv1d->ne[0] - 1;
    const clover_state_log * log = inp_rs->mctx->log();
    if (log == nullptr && cparams.n_rs_seq > 0) {
        return build_conv_state(inp_rs, states, qkv, n_before + 1, gdn_channels(), il);
    }
    const int64_t n_seqs = qkv->ne[2];
    const auto n_kept = (uint32_t) pass->n_kept;
    const auto n_head = (uint32_t) (qkv->ne[1] - n_kept);
    const uint32_t cell = inp_rs->mctx->get_head();

    ggml_tensor * before = build_rs(inp_rs, states, hparams.n_embd_r(), n_seqs);
    before = ggml_reshape_3d(ctx0, before, n_before, gdn_channels(), n_seqs);
    ggml_tensor * rows = ggml_concat(ctx0, before, ggml_transpose(ctx0, qkv), 0);
    ggml_tensor * last =
        ggml_view_3d(ctx0, rows, n_before, gdn_channels(), n_seqs, rows->nb[1], rows->nb[2], n_head * ggml_element_size(rows));
    ggml_tensor * place = ggml_view_2d(ctx0, states, hparams.n_embd_r(), n_seqs, states->nb[1], cell * states->nb[1]);
    ggml_build_forward_expand(gf, ggml_cpy(ctx0, last, place));
    if (n_kept > 0) {
        ggml_tensor * kept = ggml_view_3d(ctx0, qkv, gdn_channels(), n_kept, n_seqs, qkv->nb[1], qkv->nb[2], n_head * qkv->nb[1]);
        ggml_build_forward_expand(gf, ggml_cpy(ctx0, kept, log->inputs(ctx0, il, cell, (uint32_t) n_seqs, n_kept)));
    }
    return rows;
}

// The delta rule over all rows; the memory gets the state before the kept rows, and what these need to be applied to it.
std::pair<ggml_tensor *, ggml_tensor *> clover_graph_causal::scan(llm_graph_input_rs * inp_rs, const clover_gdn_heads & heads,
                                                                  ggml_tensor * decay, ggml_tensor * beta, int il) {
    const int64_t n_dim = hparams.ssm_d_state;
    const int64_t n_vheads = hparams.ssm_dt_rank;
    const int64_t n_seqs = heads.v->ne[3];

    ggml_tensor * states = inp_rs->mctx->get_s_l(il);
    ggml_tensor * state = build_rs(inp_rs, states, hparams.n_embd_s(), n_seqs);
    state = ggml_reshape_4d(ctx0, state, n_dim, n_dim, n_vheads, n_seqs);

    const clover_state_log * log = inp_rs->mctx->log();
    if (log == nullptr && cparams.n_rs_seq > 0) {
        return { build_recurrent_attn(inp_rs, states, heads.q, heads.k, heads.v, decay, beta, state, il), nullptr };
    }
    const auto n_kept = (uint32_t) pass->n_kept;
    const auto n_head = (uint32_t) (heads.v->ne[2] - n_kept);
    const uint32_t cell = inp_rs->mctx->get_head();

    const auto run = [&](int64_t first, int64_t n) {
        const auto part = [&](ggml_tensor * t) {
            return clover_rows(ctx0, t, first, n);
        };
        const auto values = [&](ggml_tensor * t) {
            t = part(t);
            return ggml_is_contiguous(t) ? t : ggml_cont(ctx0, t);
        };
        return build_delta_net(part(heads.q), part(heads.k), part(heads.v), values(decay), values(beta), state, il);
    };
    ggml_tensor * out = nullptr;
    if (n_head > 0) {
        std::tie(out, state) = run(0, n_head);
    }
    if (n_head > 0 || pass->moves) {
        ggml_tensor * place = ggml_view_2d(ctx0, states, hparams.n_embd_s(), n_seqs, states->nb[1], cell * states->nb[1]);
        ggml_build_forward_expand(gf, ggml_cpy(ctx0, state, place));
    }
    if (n_kept > 0) {
        ggml_tensor * tail = nullptr;
        std::tie(tail, state) = run(n_head, n_kept);
        out = out == nullptr ? tail : ggml_concat(ctx0, out, tail, 2);
        const auto keep = [&](ggml_tensor * t, ggml_tensor * place) {
            t = clover_rows(ctx0, t, n_head, n_kept);
            t = ggml_view_3d(ctx0, t, n_vheads, n_kept, n_seqs, t->nb[2], t->nb[3], 0);
            ggml_build_forward_expand(gf, ggml_cpy(ctx0, t, place));
        };
        keep(decay, log->decay(ctx0, il, cell, (uint32_t) n_seqs, n_kept));
        keep(beta, log->beta(ctx0, il, cell, (uint32_t) n_seqs, n_kept));
    }
    return { out, state };
}
