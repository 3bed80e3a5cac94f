// Graph of the block pass.

#include "clover-graph.h"
#include "llama-memory-hybrid.h"
#include "llama-memory-recurrent.h"

// The memory as it is: keys and values of the block go to free cells, which are given back after the pass; the state of
// the delta nets is read where it lies.
class clover_block_input : public llm_graph_input_i {
  public:
    clover_block_input(ggml_context * ctx, const llama_ubatch & ubatch, const llama_hparams & hparams,
                       const llama_cparams & cparams, const llama_memory_hybrid_context * memory)
        : params(cparams.clover_block), memory(memory), attn(hparams, cparams, memory->get_attn()) {
        const auto * cells = memory->get_attn();
        attn.self_k_idxs = cells->build_input_k_idxs(ctx, ubatch);
        attn.self_v_idxs = cells->build_input_v_idxs(ctx, ubatch);

        const mask_shape shape(ubatch, cparams, cells);
        attn.self_kq_mask = ggml_new_tensor_4d(ctx, cparams.flash_attn ? GGML_TYPE_F16 : GGML_TYPE_F32, shape.n_kv, shape.n_rows,
                                               1, shape.n_streams);
        ggml_set_input(attn.self_kq_mask);
        ggml_set_name(attn.self_kq_mask, "block_kq_mask");
        attn.self_kq_mask_cnv = attn.self_kq_mask;

        attn.self_k_rot = cells->build_input_k_rot(ctx);
        attn.self_v_rot = cells->build_input_v_rot(ctx);

        state_rows = ggml_new_tensor_1d(ctx, GGML_TYPE_I32, ubatch.n_seqs);
        ggml_set_input(state_rows);
        ggml_set_name(state_rows, "block_state_rows");
        state_exists = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, 1, 1, ubatch.n_seqs);
        ggml_set_input(state_exists);
        ggml_set_name(state_exists, "block_state_exists");
    }

    void set_input(const llama_ubatch * ubatch) override {
        const auto * cells = memory->get_attn();
        cells->set_input_k_idxs(attn.self_k_idxs, ubatch);
        cells->set_input_v_idxs(attn.self_v_idxs, ubatch);
        // every committed position lies before the block, so "not causal" is: the prefix and the whole block
        cells->set_input_kq_mask(attn.self_kq_mask, ubatch, false);
        if (attn.self_k_rot != nullptr) {
            cells->set_input_k_rot(attn.self_k_rot);
        }
        if (attn.self_v_rot != nullptr) {
            cells->set_input_v_rot(attn.self_v_rot);
        }
        GGML_ASSERT(ggml_backend_buffer_is_host(state_rows->buffer) && ggml_backend_buffer_is_host(state_exists->buffer));
        auto * rows = static_cast<int32_t *>(state_rows->data);
        auto * exists = static_cast<float *>(state_exists->data);
        for (uint32_t s = 0; s < ubatch->n_seqs; ++s) {
            const int32_t row = memory->get_recr()->state_row(ubatch->seq_id[s * ubatch->n_seq_tokens][0]);
            rows[s] = std::max(row, 0);
            exists[s] = row >= 0 ? 1.0f : 0.0f;
        }
    }

    bool can_reuse(const llm_graph_params & other) override {
        memory = static_cast<const llama_memory_hybrid_context *>(other.mctx);
        attn.mctx = memory->get_attn();
        const mask_shape shape(other.ubatch, other.cparams, memory->get_attn());
        return params == other.cparams.clover_block && attn.self_k_idxs->ne[0] == other.ubatch.n_tokens &&
               attn.self_kq_mask->ne[0] == shape.n_kv && attn.self_kq_mask->ne[1] == shape.n_rows &&
               attn.self_kq_mask->ne[3] == shape.n_streams && state_rows->ne[0] == other.ubatch.n_seqs;
    }

    ggml_tensor * state_rows = nullptr;   // I32 [n_seqs]: where the state of each sequence lies
    ggml_tensor * state_exists = nullptr; // F32 [1, 1, n_seqs]: 0 for a sequence without tokens, whose state is all zeros
    const clover_block_params params;
    const llama_memory_hybrid_context * memory;
    llm_graph_input_attn_kv attn;

  private:
    struct mask_shape {
        mask_shape(const llama_ubatch & ubatch, const llama_cparams & cparams, const llama_kv_cache_context * cells)
            : n_kv(cells->get_n_kv()), n_streams(cparams.kv_unified ? 1 : ubatch.n_seqs_unq),
              n_rows(ubatch.n_tokens / n_streams) {}

        const int64_t n_kv;
        const int64_t n_streams;
        const int64_t n_rows;
    };
};

bool clover_uses_coreset(const clover_block_params & p) {
    return p.expert_coreset > 0 || p.expert_coreset_share > 0.0f;
}

clover_graph_block::clover_graph_block(const llama_model & model, const llm_graph_params & params) : clover_graph(model, params) {
    GGML_ASSERT(ubatch.n_seqs > 0 && ubatch.equal_seqs() && ubatch.n_tokens == ubatch.n_seq_tokens * ubatch.n_seqs);

    auto input = std::make_unique<clover_block_input>(ctx0, ubatch, hparams, cparams,
                                                      static_cast<const llama_memory_hybrid_context *>(mctx));
    inp = static_cast<clover_block_input *>(res->add_input(std::move(input)));
    // all rows of a block have a say in its coreset, also those that nobody asks for
    build(!clover_uses_coreset(block));
}

ggml_tensor * clover_graph_block::mix(ggml_tensor * x, int il) {
    if (!hparams.is_recr(il)) {
        return attention(&inp->attn, x, il);
    }
    const auto * states = inp->memory->get_recr();
    const int64_t n_dim = hparams.ssm_d_state;
    const int64_t n_before = model.layers[il].ssm_conv1d->ne[0] - 1;
    const int64_t n_seqs = ubatch.n_seqs;
    const auto read = [&](ggml_tensor * memory, int64_t size) {
        return ggml_get_rows(ctx0, ggml_reshape_2d(ctx0, memory, size, memory->ne[1]), inp->state_rows);
    };
    ggml_tensor * before = read(states->get_r_l(il), hparams.n_embd_r());
    before = ggml_reshape_3d(ctx0, before, n_before, gdn_channels(), n_seqs);
    before = ggml_mul(ctx0, before, inp->state_exists);
    ggml_tensor * state = read(states->get_s_l(il), hparams.n_embd_s());
    state = ggml_reshape_4d(ctx0, state, n_dim, n_dim, hparams.ssm_dt_rank, n_seqs);
    return gdn_output(block_rows(gdn_qkv(x, il), before, state, inp->state_exists, il), x, il);
}

ggml_tensor * clover_graph_block::route(ggml_tensor * x, int il) {
    if (!clover_uses_coreset(block)) {
        return nullptr;
    }
    return block_route(build_lora_mm(model.layers[il].ffn_gate_inp, x), ubatch.n_seq_tokens, ubatch.n_seqs, il);
}

//
// parts of a block
//

// qkv [channels, n_rows, n_seqs] -> [n_dim, value heads, n_rows, n_seqs]; exists: 0 where the state counts as zeros, or nullptr
ggml_tensor * clover_graph::block_rows(ggml_tensor * qkv, ggml_tensor * before, ggml_tensor * state, ggml_tensor * exists,
                                       int il) {
    ggml_tensor * mixed = block_convolution(qkv, before, il);
    return block_softmax(clover_gdn_split(ctx0, hparams, mixed, qkv->ne[1], qkv->ne[2]), state, exists, il);
}

// Both convolutions, one SiLU after their sum: the causal one starts from the clean rows before the block, the other one
// looks ahead, and rows past the end of the block count as 0.
ggml_tensor * clover_graph::block_convolution(ggml_tensor * qkv, ggml_tensor * before, int il) {
    const auto & layer = model.layers[il];
    const int64_t n_rows = qkv->ne[1];
    const int64_t n_seqs = qkv->ne[2];

    ggml_tensor * rows = ggml_transpose(ctx0, qkv);
    ggml_tensor * sum = ggml_ssm_conv(ctx0, ggml_concat(ctx0, before, rows, 0), layer.ssm_conv1d);
    if (n_rows > 1) {
        ggml_tensor * ahead =
            ggml_cont(ctx0, ggml_view_3d(ctx0, qkv, gdn_channels(), n_rows - 1, n_seqs, qkv->nb[1], qkv->nb[2], qkv->nb[1]));
        ahead = ggml_cont(ctx0, ggml_transpose(ctx0, ahead));
        ahead = ggml_pad(ctx0, ahead, (int) layer.ssm_conv1d_right->ne[0], 0, 0, 0);
        sum = ggml_add(ctx0, sum, ggml_ssm_conv(ctx0, ahead, layer.ssm_conv1d_right));
    }
    sum = ggml_silu(ctx0, sum);
    cb(sum, "gdn_block_conv", il);
    return sum;
}

ggml_tensor * clover_graph::per_head(ggml_tensor * values) {
    return ggml_reshape_3d(ctx0, values, 1, 1, ggml_nelements(values));
}

// Softmax over the rows of the block and one more slot, the read of the clean state [n_dim, n_dim, value heads, n_seqs].
ggml_tensor * clover_graph::block_softmax(const clover_gdn_heads & heads, ggml_tensor * state, ggml_tensor * exists, int il) {
    const auto & layer = model.layers[il];
    const int64_t n_dim = hparams.ssm_d_state;
    const int64_t n_vheads = hparams.ssm_dt_rank;
    const int64_t n_rows = heads.v->ne[2];
    const int64_t n_seqs = heads.v->ne[3];

    ggml_tensor * q = ggml_cont(ctx0, ggml_permute(ctx0, gdn_repeat(heads.q), 0, 2, 1, 3)); // [n_dim, n_rows, n_vheads, n_seqs]
    ggml_tensor * k = ggml_cont(ctx0, ggml_permute(ctx0, gdn_repeat(heads.k), 0, 2, 1, 3));
    ggml_tensor * v = ggml_cont(ctx0, ggml_permute(ctx0, heads.v, 1, 2, 0, 3)); // [n_rows, n_dim, n_vheads, n_seqs]

    ggml_tensor * scale = per_head(layer.ssm_bd_logit_scale);
    if (block.scale_activation == CLOVER_ACTIVATION_EXP) {
        scale = ggml_exp(ctx0, scale);
    } else if (block.scale_activation == CLOVER_ACTIVATION_SOFTPLUS) {
        scale = ggml_softplus(ctx0, scale);
    }
    ggml_tensor * logits = ggml_mul_mat(ctx0, k, q); // [n_rows of k, n_rows of q, n_vheads, n_seqs]
    ggml_prec_set_acc(logits, GGML_PREC_F32);
    logits = ggml_mul(ctx0, logits, scale);
    ggml_tensor * history = ggml_repeat_4d(ctx0, per_head(layer.ssm_bd_history_bias), 1, n_rows, n_vheads, n_seqs);
    ggml_tensor * weights = ggml_soft_max(ctx0, ggml_concat(ctx0, logits, history, 0));
    cb(weights, "gdn_block_weights", il);

    const auto columns = [&](int64_t first, int64_t n) {
        return ggml_cont(ctx0, ggml_view_4d(ctx0, weights, n, n_rows, n_vheads, n_seqs, weights->nb[1], weights->nb[2],
                                            weights->nb[3], first * ggml_element_size(weights)));
    };
    ggml_tensor * out = ggml_mul_mat(ctx0, v, columns(0, n_rows)); // [n_dim, n_rows, n_vheads, n_seqs]

    // row j of a stored state is column j of the matrix, so this product reads it by q
    ggml_tensor * read = ggml_mul_mat(ctx0, state, q);
    ggml_prec_set_acc(read, GGML_PREC_F32);
    if (block.history_query == CLOVER_HISTORY_SCALED) {
        read = ggml_scale(ctx0, read, 1.0f / sqrtf(float(n_dim)));
    }
    if (exists != nullptr) {
        read = ggml_mul(ctx0, read, ggml_reshape_4d(ctx0, exists, 1, 1, 1, n_seqs));
    }
    ggml_tensor * share = ggml_mul(ctx0, columns(n_rows, 1), per_head(layer.ssm_bd_history_c));
    out = ggml_add(ctx0, out, ggml_mul(ctx0, read, share));
    cb(out, "gdn_block_mixed", il);

    return ggml_cont(ctx0, ggml_permute(ctx0, out, 0, 2, 1, 3)); // [n_dim, n_vheads, n_rows, n_seqs]
}

//
// expert coreset: the experts that the rows of a block share
//

// logits of the router [n_expert, n_rows * n_seqs], with those of experts outside the coreset of each block out of reach
ggml_tensor * clover_graph::block_route(ggml_tensor * logits, int64_t n_rows, int64_t n_seqs, int il) {
    ggml_tensor * probs = ggml_soft_max(ctx0, logits);
    ggml_tensor * kept =
        block.expert_coreset_share > 0.0f ? coreset_by_share(probs, n_rows, n_seqs) : coreset_by_count(probs, n_rows, n_seqs);
    cb(kept, "block_coreset", il); // [n_expert, n_seqs], 1 or 0

    // experts outside get a logit that no softmax gives a weight
    constexpr float NEVER = 1e30f;
    kept = ggml_scale_bias(ctx0, ggml_reshape_3d(ctx0, kept, n_expert, 1, n_seqs), NEVER, -NEVER);
    logits = ggml_reshape_3d(ctx0, logits, n_expert, n_rows, n_seqs);
    return ggml_reshape_2d(ctx0, ggml_add(ctx0, logits, kept), n_expert, n_rows * n_seqs);
}

// [n_expert, n_rows * n_seqs] -> sums over the rows of each block [n_expert, n_seqs]
static ggml_tensor * clover_sum_of_rows(ggml_context * ctx, ggml_tensor * t, int64_t n_rows, int64_t n_seqs) {
    const int64_t n = t->ne[0];
    t = ggml_reshape_3d(ctx, t, n, n_rows, n_seqs);
    t = ggml_sum_rows(ctx, ggml_cont(ctx, ggml_permute(ctx, t, 1, 0, 2, 3)));
    return ggml_reshape_2d(ctx, t, n, n_seqs);
}

// 1 at the k largest of each column of `like`, 0 elsewhere
static ggml_tensor * clover_top_mask(ggml_context * ctx, ggml_tensor * like, int k) {
    const int64_t n = like->ne[0];
    const int64_t n_columns = like->ne[1];
    ggml_tensor * top = ggml_argsort_top_k(ctx, like, k);
    ggml_tensor * zeros = ggml_scale(ctx, ggml_reshape_3d(ctx, like, 1, n, n_columns), 0.0f);
    ggml_tensor * ones = ggml_view_3d(ctx, zeros, 1, k, n_columns, zeros->nb[1], zeros->nb[2], 0);
    ones = ggml_scale_bias(ctx, ggml_cont(ctx, ones), 0.0f, 1.0f);
    return ggml_reshape_2d(ctx, ggml_set_rows(ctx, zeros, ones, top), n, n_columns);
}

ggml_tensor * clover_graph::coreset_by_count(ggml_tensor * probs, int64_t n_rows, int64_t n_seqs) {
    ggml_tensor * sums = clover_sum_of_rows(ctx0, probs, n_rows, n_seqs);
    return clover_top_mask(ctx0, sums, (int) block.expert_coreset);
}

// Each row votes with its own best probabilities; the fewest experts that hold the share of all votes are kept, at least
// the minimum, and never one without a vote.
ggml_tensor * clover_graph::coreset_by_share(ggml_tensor * probs, int64_t n_rows, int64_t n_seqs) {
    const auto positive = [&](ggml_tensor * t) {
        return ggml_step(ctx0, t);
    };
    ggml_tensor * votes = ggml_mul(ctx0, probs, clover_top_mask(ctx0, probs, (int) n_expert_used));
    votes = clover_sum_of_rows(ctx0, votes, n_rows, n_seqs);

    ggml_tensor * order = ggml_argsort(ctx0, votes, GGML_SORT_ORDER_DESC);
    ggml_tensor * sorted = ggml_get_rows(ctx0, ggml_reshape_3d(ctx0, votes, 1, n_expert, n_seqs), order);
    sorted = ggml_reshape_2d(ctx0, sorted, n_expert, n_seqs);

    // kept while the better ones hold less than the share
    ggml_tensor * better = ggml_sub(ctx0, ggml_cumsum(ctx0, sorted), sorted);
    ggml_tensor * enough = ggml_scale(ctx0, ggml_sum_rows(ctx0, sorted), block.expert_coreset_share);
    ggml_tensor * kept = positive(ggml_sub(ctx0, ggml_repeat(ctx0, enough, better), better));

    const int64_t n_least = std::max<int64_t>(block.expert_coreset_min, n_expert_used);
    ggml_tensor * among_first =
        ggml_scale_bias(ctx0, ggml_arange(ctx0, 0.0f, float(n_expert), 1.0f), -1.0f, float(n_least) - 0.5f);
    kept = positive(ggml_add(ctx0, kept, positive(among_first)));
    kept = ggml_mul(ctx0, kept, positive(sorted));

    ggml_tensor * zeros = ggml_scale(ctx0, ggml_reshape_3d(ctx0, votes, 1, n_expert, n_seqs), 0.0f);
    kept = ggml_set_rows(ctx0, zeros, ggml_reshape_3d(ctx0, kept, 1, n_expert, n_seqs), order);
    return ggml_reshape_2d(ctx0, kept, n_expert, n_seqs);
}
