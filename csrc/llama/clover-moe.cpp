#include "clover-graph.h"

#include <algorithm>
#include <cctype>
#include <string>
#include <vector>

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

    load_block_params(ml);

    type = hparams.n_layer() == 40 ? LLM_TYPE_35B_A3B : LLM_TYPE_UNKNOWN;
}

void llama_model_clover_moe::load_block_params(llama_model_loader & ml) {
    clover_block_params & block = hparams.clover_block;

    ml.get_key(LLM_KV_CLOVER_BLOCK_LENGTH, block.block_length, false);
    ml.get_key(LLM_KV_CLOVER_SHIFT_LOGITS, block.shift_logits, false);
    ml.get_key(LLM_KV_CLOVER_EXPERT_CORESET, block.expert_coreset, false);
    ml.get_key(LLM_KV_CLOVER_EXPERT_CORESET_SHARE, block.expert_coreset_share, false);
    ml.get_key(LLM_KV_CLOVER_EXPERT_CORESET_MIN, block.expert_coreset_min, false);

    // values that no block pass can honour leave the file with plain decoding
    std::string name;
    if (ml.get_key(LLM_KV_CLOVER_SCALE_ACTIVATION, name, false) &&
        !clover_activation_from_name(name.c_str(), block.scale_activation)) {
        block_error = "clover_moe.diffusion.logit_scale_activation is '" + name + "': it must be none, exp or softplus";
    }
    if (ml.get_key(LLM_KV_CLOVER_HISTORY_QUERY, name, false) && !clover_history_from_name(name.c_str(), block.history_query)) {
        block_error = "clover_moe.diffusion.history_query is '" + name + "': it must be scaled or unit";
    }
    if (const char * wrong = clover_block_params_error(block, hparams.n_expert, hparams.n_expert_used_max())) {
        block_error = std::string("clover_moe.diffusion.") + wrong;
    }
    if (!block_error.empty()) {
        LLAMA_LOG_WARN("%s: no block pass: %s\n", __func__, block_error.c_str());
        block = {};
    }
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

std::string llama_model_clover_moe::missing_for_block_pass() const {
    if (!block_error.empty()) {
        return block_error;
    }
    bool any = false;
    std::string first;
    size_t n_missing = 0;
    for (uint32_t il = 0; il < hparams.n_layer_all; ++il) {
        for (const auto & kind : CLOVER_PREVIEW_TENSORS) {
            if (!hparams.is_recr(il)) {
                continue;
            }
            if (layers[il].*kind.slot != nullptr) {
                any = true;
            } else if (n_missing++ == 0) {
                first = LLM_TN(arch)(kind.id, kind.suffix, (int) il).str();
            }
        }
    }
    if (!any) {
        return "the file has no preview tensors (blk.*.ssm_conv1d_right and blk.*.ssm_bd_*)";
    }
    const std::string others = n_missing > 1 ? " and " + std::to_string(n_missing - 1) + " others" : "";
    return n_missing == 0 ? "" : "preview tensors are incomplete: '" + first + "'" + others + " not found";
}

std::unique_ptr<llm_graph_context> llama_model_clover_moe::build_arch_graph(const llm_graph_params & params) const {
    if (params.gtype == LLM_GRAPH_TYPE_DECODER_BLOCK) {
        return std::make_unique<clover_graph_block>(*this, params);
    }
    return std::make_unique<clover_graph_causal>(*this, params);
}
