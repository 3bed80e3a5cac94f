#ifndef CLOVER_MOE_H
#define CLOVER_MOE_H

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

    // which tensors that only the block pass reads are not there; "" when all are
    std::string missing_for_block_pass() const;

  private:
    std::string block_error; // why the file's settings make a block pass impossible, "" when they do not

    void load_block_params(llama_model_loader & ml);
    void load_layer(llama_model_loader & ml, int il);
    void load_preview_tensors(llama_model_loader & ml, int il);
};

#endif
