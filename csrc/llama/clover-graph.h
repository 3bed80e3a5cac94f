#ifndef CLOVER_GRAPH_H
#define CLOVER_GRAPH_H

// What the two graphs of clover_moe share, and the graphs.

#include "clover-params.h"
#include "models.h"

class clover_block_input;
class clover_pass_input;

// parts of a delta net layer
struct clover_gdn_heads {
    ggml_tensor * q; // [n_dim, key heads, n_rows, n_seqs], unit vectors
    ggml_tensor * k; // the same
    ggml_tensor * v; // [n_dim, value heads, n_rows, n_seqs]
};

inline int64_t clover_gdn_channels(const llama_hparams & hparams) {
    return (int64_t) hparams.ssm_d_state * (2 * hparams.ssm_n_group + hparams.ssm_dt_rank);
}

// of the convolution's result [channels, n_rows, n_seqs]
clover_gdn_heads clover_gdn_split(ggml_context * ctx, const llama_hparams & hparams, ggml_tensor * mixed, int64_t n_rows,
                                  int64_t n_seqs);

struct clover_graph : public llm_build_delta_net_base {
    clover_graph(const llama_model & model, const llm_graph_params & params)
        : llm_build_delta_net_base(params), model(model), block(params.cparams.clover_block) {}

    virtual ~clover_graph() = default;

  protected:
    // The whole graph from embedding to logits. Called by the constructors of what derives from this.
    void build(bool trim_early);

    // what a layer mixes between rows
    virtual ggml_tensor * mix(ggml_tensor * x, int il) = 0;

    // logits of the router [n_expert, n_rows] in place of the layer's own; nullptr: those
    virtual ggml_tensor * route(ggml_tensor * x, int il) {
        GGML_UNUSED(x);
        GGML_UNUSED(il);
        return nullptr;
    }

    ggml_tensor * attention(llm_graph_input_attn_kv * inp, ggml_tensor * x, int il);
    ggml_tensor * experts(ggml_tensor * x, int il);

    ggml_tensor * gdn_qkv(ggml_tensor * x, int il); // [channels, n_rows, n_seqs]
    ggml_tensor * gdn_repeat(ggml_tensor * t);      // key heads to value heads: head h reads h mod key heads
    ggml_tensor * gdn_output(ggml_tensor * out, ggml_tensor * x, int il);

    int64_t gdn_channels() const { return clover_gdn_channels(hparams); }

    // parts of a block: rows that see each other in both directions
    ggml_tensor * block_rows(ggml_tensor * qkv, ggml_tensor * before, ggml_tensor * state, ggml_tensor * exists, int il);
    ggml_tensor * block_convolution(ggml_tensor * qkv, ggml_tensor * before, int il); // before: [n_before, channels, n_seqs]
    ggml_tensor * block_softmax(const clover_gdn_heads & heads, ggml_tensor * state, ggml_tensor * exists, int il);
    ggml_tensor * block_route(ggml_tensor * logits, int64_t n_rows, int64_t n_seqs, int il);
    ggml_tensor * coreset_by_count(ggml_tensor * probs, int64_t n_rows, int64_t n_seqs);
    ggml_tensor * coreset_by_share(ggml_tensor * probs, int64_t n_rows, int64_t n_seqs);
    ggml_tensor * per_head(ggml_tensor * values); // [1, 1, value heads or 1]

    const llama_model & model;
    const clover_block_params & block;
    ggml_tensor * inp_pos = nullptr;
};

bool clover_uses_coreset(const clover_block_params & params);

// Autoregressive mode: full attention layers with a KV cache, the others with a gated delta net. The last rows of the one
// sequence may be a block that looks ahead: it sees what is before it, the pass's other rows included, and is not kept.
struct clover_graph_causal : public clover_graph {
    clover_graph_causal(const llama_model & model, const llm_graph_params & params);

  private:
    ggml_tensor * mix(ggml_tensor * x, int il) override;
    ggml_tensor * route(ggml_tensor * x, int il) override;
    ggml_tensor * delta_net(llm_graph_input_rs * inp, ggml_tensor * x, int il);
    // the result, and the state after all rows
    std::pair<ggml_tensor *, ggml_tensor *> scan(llm_graph_input_rs * inp, const clover_gdn_heads & heads, ggml_tensor * decay,
                                                 ggml_tensor * beta, int il);
    ggml_tensor * conv_input(llm_graph_input_rs * inp, ggml_tensor * qkv, int il);

    llm_graph_input_mem_hybrid * inp = nullptr;
    clover_pass_input * pass = nullptr;
};

// Block pass: the rows of a block see each other in both directions, and the memory as it is; nothing is kept.
struct clover_graph_block : public clover_graph {
    clover_graph_block(const llama_model & model, const llm_graph_params & params);

  private:
    ggml_tensor * mix(ggml_tensor * x, int il) override;
    ggml_tensor * route(ggml_tensor * x, int il) override;

    clover_block_input * inp = nullptr;
};

#endif
