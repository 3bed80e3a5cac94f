#pragma once

// Architecture "clover_moe" (Clover-35B-A3B and relatives). Included at the end of models.h.

struct llama_model_loader;

// Warns once, with names and shapes, about tensors of the file that no graph uses. Returns true, which is what
// llama_model_loader::done_getting_tensors() takes as "a part of the file is enough".
bool llama_clover_warn_unused(llama_model_loader & ml);

struct llama_model_clover_moe : public llama_model_base {
    explicit llama_model_clover_moe(const struct llama_model_params & params) : llama_model_base(params) {}

    void load_arch_hparams(llama_model_loader & ml) override;
    void load_arch_tensors(llama_model_loader & ml) override;

    std::unique_ptr<llm_graph_context> build_arch_graph(const llm_graph_params & params) const override;

    // autoregressive mode: full attention layers with a KV cache, the others with a gated delta net
    struct graph : public llm_build_delta_net_base {
        graph(const llama_model & model, const llm_graph_params & params);

      private:
        ggml_tensor * attention(llm_graph_input_attn_kv * inp, ggml_tensor * x, ggml_tensor * pos, int il);
        ggml_tensor * delta_net(llm_graph_input_rs * inp, ggml_tensor * x, int il);
        ggml_tensor * experts(ggml_tensor * x, int il);

        const llama_model & model;
    };

  private:
    void load_layer(llama_model_loader & ml, int il);
    void load_preview_tensors(llama_model_loader & ml, int il);
};
