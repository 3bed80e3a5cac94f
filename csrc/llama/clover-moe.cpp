#include "llama-memory-recurrent.h"
#include "models.h"

#include <algorithm>
#include <cctype>
#include <string>
#include <vector>

// q and k of the delta net are divided by sqrt(sum of squares + this), whatever the file's RMS epsilon is
static constexpr float CLOVER_GDN_NORM_EPS = 1e-6f;

//
// hyper-parameters
//

void llama_model_clover_moe::load_arch_hparams(llama_model_loader & ml) {
    if (hparams.n_embd_head_k() != hparams.n_embd_head_v()) {
        throw std::runtime_error("Clover requires equal key and value head sizes");
    }
    if (hparams.n_layer_nextn != 0) {
        throw std::runtime_error("clover_moe.nextn_predict_layers must be 0: Clover has no next-token-prediction layers");
    }

    ml.get_key_or_arr(LLM_KV_EXPERT_FEED_FORWARD_LENGTH, hparams.n_ff_exp_arr, hparams.n_layer_all);

    // files made before the architecture was merged upstream lack the count; the tensors tell
    if (!ml.get_key(LLM_KV_EXPERT_SHARED_COUNT, hparams.n_expert_shared, false)) {
        hparams.n_expert_shared = ml.get_tensor_meta("blk.0.ffn_up_shexp.weight") != nullptr ? 1 : 0;
        LLAMA_LOG_WARN("clover_moe.expert_shared_count is missing: taken as %u from the tensors\n", hparams.n_expert_shared);
    }
    if (hparams.n_expert_shared != 0) {
        ml.get_key(LLM_KV_EXPERT_SHARED_FEED_FORWARD_LENGTH, hparams.n_ff_shexp);
    } else if (ml.get_tensor_meta("blk.0.ffn_up_shexp.weight") != nullptr) {
        // without its shared experts this would silently be another model
        throw std::runtime_error(
            "clover_moe.expert_shared_count is 0 but the file has shared experts (blk.0.ffn_up_shexp.weight)");
    }
    ml.get_key(LLM_KV_ATTENTION_LAYERNORM_RMS_EPS, hparams.f_norm_rms_eps);

    ml.get_key(LLM_KV_SSM_CONV_KERNEL, hparams.ssm_d_conv);
    ml.get_key(LLM_KV_SSM_INNER_SIZE, hparams.ssm_d_inner);
    ml.get_key(LLM_KV_SSM_STATE_SIZE, hparams.ssm_d_state);
    ml.get_key(LLM_KV_SSM_TIME_STEP_RANK, hparams.ssm_dt_rank);
    ml.get_key(LLM_KV_SSM_GROUP_COUNT, hparams.ssm_n_group);

    if (!ml.get_key_or_arr(LLM_KV_ATTENTION_RECURRENT_LAYERS, hparams.is_recr_impl, hparams.n_layer_all, false)) {
        uint32_t interval = 0;
        ml.get_key(LLM_KV_FULL_ATTENTION_INTERVAL, interval);
        if (interval == 0) {
            throw std::runtime_error("Clover requires a positive full attention interval");
        }
        for (uint32_t il = 0; il < hparams.n_layer_all; ++il) {
            hparams.is_recr_impl[il] = (il + 1) % interval != 0;
        }
    }
    uint32_t n_linear = 0;
    for (uint32_t il = 0; il < hparams.n_layer_all; ++il) {
        n_linear += hparams.is_recr(il) ? 1 : 0;
    }
    if (n_linear == 0 || n_linear == hparams.n_layer_all) {
        throw std::runtime_error("Clover requires both full and linear attention layers");
    }

    const bool positive = hparams.ssm_dt_rank > 0 && hparams.ssm_n_group > 0 && hparams.ssm_d_state > 0 && hparams.ssm_d_conv > 0;
    if (!positive || hparams.ssm_dt_rank % hparams.ssm_n_group != 0 ||
        (uint64_t) hparams.ssm_d_inner != (uint64_t) hparams.ssm_d_state * hparams.ssm_dt_rank) {
        throw std::runtime_error("Clover has invalid gated delta net dimensions");
    }

    for (uint32_t il = 0; il < hparams.n_layer_all; ++il) {
        const uint32_t n_used = hparams.n_expert_used(il);
        if (n_used == 0 || n_used > hparams.n_expert) {
            throw std::runtime_error("clover_moe.expert_used_count must be between 1 and clover_moe.expert_count");
        }
        if (hparams.is_recr(il)) {
            continue;
        }
        if (hparams.n_head(il) == 0 || hparams.n_head_kv(il) == 0 || hparams.n_head(il) % hparams.n_head_kv(il) != 0) {
            throw std::runtime_error("clover_moe.attention.head_count must be a positive multiple of attention.head_count_kv");
        }
    }
    const uint32_t n_rot = hparams.n_rot();
    if (n_rot == 0 || n_rot % 2 != 0 || n_rot > hparams.n_embd_head_k()) {
        throw std::runtime_error("clover_moe.rope.dimension_count must be even, positive and at most the head size");
    }

    // block pass; every default is named in llama-hparams.h
    ml.get_key(LLM_KV_CLOVER_BLOCK_LENGTH, hparams.clover_block_length, false);
    ml.get_key(LLM_KV_CLOVER_SHIFT_LOGITS, hparams.clover_shift_logits, false);
    ml.get_key(LLM_KV_CLOVER_EXPERT_CORESET, hparams.clover_expert_coreset, false);
    ml.get_key(LLM_KV_CLOVER_EXPERT_CORESET_SHARE, hparams.clover_expert_coreset_share, false);
    ml.get_key(LLM_KV_CLOVER_EXPERT_CORESET_MIN, hparams.clover_expert_coreset_min, false);

    type = hparams.n_layer() == 40 ? LLM_TYPE_35B_A3B : LLM_TYPE_UNKNOWN;
}

//
// tensors
//

// What only Clover has, per delta net layer. The names in files made by others are not settled, so a tensor that the
// architecture does not know is adopted when its name holds the keyword and its shape fits.
struct clover_preview_tensor {
    enum llm_tensor id;
    const char * suffix;  // of the canonical name, nullptr for none
    const char * keyword; // in the lower-case name
    struct ggml_tensor * llama_layer::* slot;
};

static const clover_preview_tensor CLOVER_PREVIEW_TENSORS[] = {
    { LLM_TENSOR_SSM_CONV1D_RIGHT, "weight", "right", &llama_layer::ssm_conv1d_right },
    { LLM_TENSOR_SSM_BD_LOGIT_SCALE, nullptr, "logit_scale", &llama_layer::ssm_bd_logit_scale },
    { LLM_TENSOR_SSM_BD_HISTORY_BIAS, nullptr, "history_bias", &llama_layer::ssm_bd_history_bias },
    { LLM_TENSOR_SSM_BD_HISTORY_C, nullptr, "history_c", &llama_layer::ssm_bd_history_c },
};

static bool clover_preview_shape_fits(const llama_hparams & hparams, const clover_preview_tensor & kind, const ggml_tensor * t) {
    if (t->type != GGML_TYPE_F32) {
        return false;
    }
    if (kind.id == LLM_TENSOR_SSM_CONV1D_RIGHT) {
        const int64_t channels = (int64_t) hparams.ssm_d_inner + 2 * (int64_t) hparams.ssm_n_group * hparams.ssm_d_state;
        return ggml_is_matrix(t) && t->ne[0] == (int64_t) hparams.ssm_d_conv - 1 && t->ne[1] == channels;
    }
    // one value per value head, or one for all of them, however the file shapes it
    const int64_t n = ggml_nelements(t);
    return (n == 1 || n == (int64_t) hparams.ssm_dt_rank) && (t->ne[0] == n || t->ne[1] == n);
}

static std::string clover_lower(std::string s) {
    std::transform(s.begin(), s.end(), s.begin(), [](unsigned char c) { return (char) std::tolower(c); });
    return s;
}

// gives the tensor of layer il that matches `kind` its canonical name, so that the loader finds it there
static void clover_adopt(llama_model_loader & ml, const llama_hparams & hparams, const clover_preview_tensor & kind,
                         const std::string & canonical, int il) {
    const std::string prefix = "blk." + std::to_string(il) + ".";
    for (auto it = ml.weights_map.begin(); it != ml.weights_map.end(); ++it) {
        const std::string & name = it->first;
        if (name.compare(0, prefix.size(), prefix) != 0 || clover_lower(name).find(kind.keyword) == std::string::npos ||
            !clover_preview_shape_fits(hparams, kind, it->second.tensor)) {
            continue;
        }
        LLAMA_LOG_INFO("tensor '%s' is taken as '%s'\n", name.c_str(), canonical.c_str());
        auto node = ml.weights_map.extract(it);
        node.key() = canonical;
        ggml_set_name(node.mapped().tensor, canonical.c_str());
        ml.weights_map.insert(std::move(node));
        return;
    }
}

void llama_model_clover_moe::load_preview_tensors(llama_model_loader & ml, int il) {
    for (const auto & kind : CLOVER_PREVIEW_TENSORS) {
        const auto full = kind.suffix ? tn(kind.id, kind.suffix, il) : tn(kind.id, il);
        const std::string name = full.str();
        if (ml.get_weight(name.c_str()) == nullptr) {
            clover_adopt(ml, hparams, kind, name, il);
        }
        const ggml_tensor * meta = ml.get_tensor_meta(name.c_str());
        if (meta == nullptr || !clover_preview_shape_fits(hparams, kind, meta)) {
            continue; // a tensor of that name that does not fit is reported with the unused ones
        }
        layers[il].*kind.slot = create_tensor(full, { meta->ne[0], meta->ne[1] }, TENSOR_NOT_REQUIRED);
    }
}

void llama_model_clover_moe::load_layer(llama_model_loader & ml, int il) {
    LLAMA_LOAD_LOCALS;

    auto & layer = layers[il];

    const auto required = [&](enum llm_tensor id, const char * suffix, const std::initializer_list<int64_t> & ne) {
        return create_tensor(tn(id, suffix, il), ne, 0);
    };

    layer.attn_norm = required(LLM_TENSOR_ATTN_NORM, "weight", { n_embd });
    layer.attn_post_norm = required(LLM_TENSOR_ATTN_POST_NORM, "weight", { n_embd });

    if (hparams.is_recr(il)) {
        const int64_t n_key = (int64_t) hparams.ssm_n_group * hparams.ssm_d_state;
        const int64_t n_value = hparams.ssm_d_inner;
        const int64_t n_heads = hparams.ssm_dt_rank;

        layer.wqkv = required(LLM_TENSOR_ATTN_QKV, "weight", { n_embd, 2 * n_key + n_value });
        layer.wqkv_gate = required(LLM_TENSOR_ATTN_GATE, "weight", { n_embd, n_value });
        layer.ssm_conv1d = required(LLM_TENSOR_SSM_CONV1D, "weight", { hparams.ssm_d_conv, 2 * n_key + n_value });
        layer.ssm_dt = required(LLM_TENSOR_SSM_DT, "bias", { n_heads });
        layer.ssm_a = create_tensor(tn(LLM_TENSOR_SSM_A_NOSCAN, il), { n_heads }, 0);
        layer.ssm_beta = required(LLM_TENSOR_SSM_BETA, "weight", { n_embd, n_heads });
        layer.ssm_alpha = required(LLM_TENSOR_SSM_ALPHA, "weight", { n_embd, n_heads });
        layer.ssm_norm = required(LLM_TENSOR_SSM_NORM, "weight", { hparams.ssm_d_state });
        layer.ssm_out = required(LLM_TENSOR_SSM_OUT, "weight", { n_value, n_embd });

        load_preview_tensors(ml, il);
    } else {
        // attn_q holds, for each head, the query and then the gate of the head's output
        create_tensor_qkv(layer, il, n_embd, 2 * n_embd_head_k * n_head, n_embd_k_gqa, n_embd_v_gqa, 0);
        layer.wo = required(LLM_TENSOR_ATTN_OUT, "weight", { n_embd_head_k * n_head, n_embd });
        layer.attn_q_norm = required(LLM_TENSOR_ATTN_Q_NORM, "weight", { n_embd_head_k });
        layer.attn_k_norm = required(LLM_TENSOR_ATTN_K_NORM, "weight", { n_embd_head_k });
    }

    const int64_t n_ff_exp = hparams.n_ff_exp(il);
    layer.ffn_gate_inp = required(LLM_TENSOR_FFN_GATE_INP, "weight", { n_embd, n_expert });
    layer.ffn_down_exps = required(LLM_TENSOR_FFN_DOWN_EXPS, "weight", { n_ff_exp, n_embd, n_expert });
    create_tensor_gate_up_exps(layer, il, n_embd, n_ff_exp, n_expert, 0);

    if (hparams.n_expert_shared != 0) {
        const int64_t n_ff_shexp = hparams.n_ff_shexp;
        layer.ffn_gate_inp_shexp = required(LLM_TENSOR_FFN_GATE_INP_SHEXP, "weight", { n_embd });
        layer.ffn_gate_shexp = required(LLM_TENSOR_FFN_GATE_SHEXP, "weight", { n_embd, n_ff_shexp });
        layer.ffn_up_shexp = required(LLM_TENSOR_FFN_UP_SHEXP, "weight", { n_embd, n_ff_shexp });
        layer.ffn_down_shexp = required(LLM_TENSOR_FFN_DOWN_SHEXP, "weight", { n_ff_shexp, n_embd });
    }
}

void llama_model_clover_moe::load_arch_tensors(llama_model_loader & ml) {
    LLAMA_LOAD_LOCALS;

    tok_embd = create_tensor(tn(LLM_TENSOR_TOKEN_EMBD, "weight"), { n_embd, n_vocab }, 0);
    output_norm = create_tensor(tn(LLM_TENSOR_OUTPUT_NORM, "weight"), { n_embd }, 0);
    output = create_tensor(tn(LLM_TENSOR_OUTPUT, "weight"), { n_embd, n_vocab }, TENSOR_NOT_REQUIRED);
    if (output == nullptr) {
        output = create_tensor(tn(LLM_TENSOR_TOKEN_EMBD, "weight"), { n_embd, n_vocab }, TENSOR_DUPLICATED);
    }
    for (int il = 0; il < n_layer; ++il) {
        load_layer(ml, il);
    }
}

bool llama_clover_warn_unused(llama_model_loader & ml) {
    std::set<std::string> used;
    for (const auto & entry : ml.ctx_map) {
        ggml_context * ctx = entry.second.get();
        for (ggml_tensor * t = ggml_get_first_tensor(ctx); t != nullptr; t = ggml_get_next_tensor(ctx, t)) {
            used.insert(ggml_get_name(t));
        }
    }
    std::vector<std::string> unused;
    for (const auto & entry : ml.weights_map) {
        if (used.count(entry.first) == 0) {
            const ggml_tensor * t = entry.second.tensor;
            unused.push_back(entry.first + " [" + llama_format_tensor_shape(t) + "]");
            ml.size_data -= ggml_nbytes(t); // load progress counts only what is read
        }
    }
    if (!unused.empty()) {
        // log lines have a limited length in some receivers: a file with many such tensors names the first ones
        static constexpr size_t n_named = 16;
        std::string list;
        for (size_t i = 0; i < unused.size() && i < n_named; ++i) {
            list += (i > 0 ? ", " : "") + unused[i];
        }
        if (unused.size() > n_named) {
            list += " and " + std::to_string(unused.size() - n_named) + " more";
        }
        LLAMA_LOG_WARN("%zu tensors are unknown to clover_moe and not used: %s\n", unused.size(), list.c_str());
    }
    return true;
}

//
// graph
//

std::unique_ptr<llm_graph_context> llama_model_clover_moe::build_arch_graph(const llm_graph_params & params) const {
    return std::make_unique<graph>(*this, params);
}

llama_model_clover_moe::graph::graph(const llama_model & model, const llm_graph_params & params)
    : llm_build_delta_net_base(params), model(model) {
    ggml_tensor * x = build_inp_embd(model.tok_embd);
    cb(x, "model.input_embed", -1);

    auto * inp = build_inp_mem_hybrid();
    ggml_tensor * inp_pos = build_inp_pos();
    ggml_tensor * inp_out_ids = build_inp_out_ids();

    for (int il = 0; il < n_layer; ++il) {
        res->t_layer_inp[il] = x;

        ggml_tensor * residual = x;

        ggml_tensor * cur = build_norm(x, model.layers[il].attn_norm, nullptr, LLM_NORM_RMS, il);
        cb(cur, "attn_norm", il);
        ggml_build_forward_expand(gf, cur);

        cur = hparams.is_recr(il) ? delta_net(inp->get_recr(), cur, il) : attention(inp->get_attn(), cur, inp_pos, il);

        // the last layer's feed-forward part is needed only for rows that are asked for
        if (il == n_layer - 1 && inp_out_ids != nullptr) {
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

        x = cur;
    }

    x = build_norm(x, model.output_norm, nullptr, LLM_NORM_RMS, -1);
    cb(x, "result_norm", -1);
    res->t_embd = x;

    x = build_lora_mm(model.output, x, model.output_s);
    cb(x, "result_output", -1);
    res->t_logits = x;

    ggml_build_forward_expand(gf, x);
}

ggml_tensor * llama_model_clover_moe::graph::attention(llm_graph_input_attn_kv * inp, ggml_tensor * x, ggml_tensor * pos,
                                                       int il) {
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
        return ggml_rope_ext(ctx0, t, pos, nullptr, n_rot, rope_type, n_ctx_orig, freq_base, freq_scale, ext_factor, attn_factor,
                             beta_fast, beta_slow);
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

ggml_tensor * llama_model_clover_moe::graph::delta_net(llm_graph_input_rs * inp, ggml_tensor * x, int il) {
    const auto & layer = model.layers[il];
    const int64_t n_dim = hparams.ssm_d_state;
    const int64_t n_kheads = hparams.ssm_n_group;
    const int64_t n_vheads = hparams.ssm_dt_rank;
    const int64_t n_rows = ubatch.n_seq_tokens;
    const int64_t n_seqs = ubatch.n_seqs;
    const int64_t channels = n_dim * (2 * n_kheads + n_vheads);

    GGML_ASSERT(n_seqs > 0 && ubatch.equal_seqs() && ubatch.n_tokens == n_rows * n_seqs);

    ggml_tensor * qkv = build_lora_mm(layer.wqkv, x, layer.wqkv_s);
    qkv = ggml_reshape_3d(ctx0, qkv, channels, n_rows, n_seqs);
    ggml_tensor * z = build_lora_mm(layer.wqkv_gate, x, layer.wqkv_gate_s);
    cb(qkv, "gdn_qkv", il);
    cb(z, "gdn_z", il);

    ggml_tensor * beta = ggml_sigmoid(ctx0, build_lora_mm(layer.ssm_beta, x, layer.ssm_beta_s));
    beta = ggml_reshape_4d(ctx0, beta, 1, n_vheads, n_rows, n_seqs);

    // logarithm of the decay: -exp(A_log) * softplus(alpha + dt); ssm_a holds the first factor
    ggml_tensor * decay = build_lora_mm(layer.ssm_alpha, x, layer.ssm_alpha_s);
    decay = ggml_softplus(ctx0, ggml_add(ctx0, decay, layer.ssm_dt));
    decay = ggml_mul(ctx0, decay, layer.ssm_a);
    decay = ggml_reshape_4d(ctx0, decay, 1, n_vheads, n_rows, n_seqs);
    cb(beta, "gdn_beta", il);
    cb(decay, "gdn_decay", il);

    ggml_tensor * conv_states = inp->mctx->get_r_l(il);
    ggml_tensor * gdn_states = inp->mctx->get_s_l(il);

    ggml_tensor * conv_in = build_conv_state(inp, conv_states, qkv, layer.ssm_conv1d->ne[0], channels, il);
    ggml_tensor * mixed = ggml_silu(ctx0, ggml_ssm_conv(ctx0, conv_in, layer.ssm_conv1d));
    cb(mixed, "gdn_conv", il);

    const size_t row = ggml_row_size(mixed->type, channels);
    const auto heads = [&](int64_t n_heads, int64_t first) {
        return ggml_view_4d(ctx0, mixed, n_dim, n_heads, n_rows, n_seqs, ggml_row_size(mixed->type, n_dim), row, row * n_rows,
                            ggml_row_size(mixed->type, first * n_dim));
    };
    ggml_tensor * q = build_gdn_l2_norm(ctx0, heads(n_kheads, 0), CLOVER_GDN_NORM_EPS);
    ggml_tensor * k = build_gdn_l2_norm(ctx0, heads(n_kheads, n_kheads), CLOVER_GDN_NORM_EPS);
    ggml_tensor * v = heads(n_vheads, 2 * n_kheads);

    // value head h reads key head h mod n_kheads: the fused operator does that by itself
    if (n_kheads != n_vheads && !(cparams.fused_gdn_ar && cparams.fused_gdn_ch)) {
        q = ggml_repeat_4d(ctx0, q, n_dim, n_vheads, n_rows, n_seqs);
        k = ggml_repeat_4d(ctx0, k, n_dim, n_vheads, n_rows, n_seqs);
    }

    ggml_tensor * state = build_rs(inp, gdn_states, hparams.n_embd_s(), n_seqs);
    state = ggml_reshape_4d(ctx0, state, n_dim, n_dim, n_vheads, n_seqs);

    ggml_tensor * out = build_recurrent_attn(inp, gdn_states, q, k, v, decay, beta, state, il);

    z = ggml_reshape_4d(ctx0, z, n_dim, n_vheads, n_rows, n_seqs);
    out = ggml_mul(ctx0, build_norm(out, layer.ssm_norm, nullptr, LLM_NORM_RMS, il), ggml_silu(ctx0, z));
    out = ggml_reshape_2d(ctx0, out, n_dim * n_vheads, n_rows * n_seqs);
    out = build_lora_mm(layer.ssm_out, out, layer.ssm_out_s);
    cb(out, "gdn_output", il);
    return out;
}

ggml_tensor * llama_model_clover_moe::graph::experts(ggml_tensor * x, int il) {
    const auto & layer = model.layers[il];

    // softmax over all experts, the best n_expert_used with their weights made to sum to 1, no further scale
    ggml_tensor * out =
        build_moe_ffn(x, layer.ffn_gate_inp, layer.ffn_up_exps, layer.ffn_gate_exps, layer.ffn_down_exps, nullptr, n_expert,
                      n_expert_used, LLM_FFN_SILU, true, 1.0f, LLAMA_EXPERT_GATING_FUNC_TYPE_SOFTMAX, il, nullptr,
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
