// Block passes from the context's point of view.

#include "llama-clover.h"

#include "llama-batch.h"
#include "llama-context.h"
#include "llama-impl.h"
#include "llama-memory-hybrid.h"
#include "llama-memory-recurrent.h"
#include "llama-model.h"
#include "models/models.h"

#include <algorithm>
#include <map>
#include <stdexcept>

std::string llama_clover_block_missing(const llama_model * model) {
    if (model->arch != LLM_ARCH_CLOVER_MOE) {
        return "the architecture is not clover_moe";
    }
    const std::string missing = static_cast<const llama_model_clover_moe *>(model)->missing_for_block_pass();
    if (!missing.empty()) {
        return missing;
    }
    if (model->vocab.token_mask() == LLAMA_TOKEN_NULL) {
        return "the file names no mask token (tokenizer.ggml.mask_token_id)";
    }
    return "";
}

bool llama_clover_has_block_pass(const llama_model & model) {
    return llama_clover_block_missing(&model).empty();
}

const clover_block_params & llama_clover_get_block_params(const llama_context * ctx) {
    return ctx->get_cparams().clover_block;
}

void llama_clover_set_block_params(llama_context * ctx, const clover_block_params & params) {
    const auto & hparams = ctx->get_model().hparams;
    if (const char * wrong = clover_block_params_error(params, hparams.n_expert, hparams.n_expert_used_max())) {
        throw std::invalid_argument(wrong);
    }
    ctx->set_clover_block(params);
}

void llama_context::set_clover_block(const clover_block_params & params) {
    cparams.clover_block = params;
}

// What is wrong with a batch for a block pass; nullptr: nothing. Positions that do not follow are found by the batch
// allocator.
static const char * batch_error(const llama_batch_ext & batch) {
    std::map<llama_seq_id, size_t> n_rows;
    for (const auto & token : batch.tokens) {
        if (token.seq_ids.size() != 1) {
            return "a row of a block belongs to one sequence";
        }
        n_rows[*token.seq_ids.begin()]++;
    }
    for (const auto & entry : n_rows) {
        if (entry.second != n_rows.begin()->second) {
            return "all blocks of a pass must have the same number of rows";
        }
        if (entry.second > CLOVER_BLOCK_MAX) {
            return "a block has at most 32 rows";
        }
    }
    return nullptr;
}

int32_t llama_clover_process_block(llama_context * ctx, llama_batch_ext * batch) {
    if (const char * wrong = batch_error(*batch)) {
        LLAMA_LOG_ERROR("%s: %s\n", __func__, wrong);
        return -1;
    }
    return ctx->process_block(*batch);
}

int32_t llama_clover_process_ahead(llama_context * ctx, llama_batch_ext * batch, uint32_t n_ahead) {
    return ctx->process_ahead(*batch, n_ahead);
}

int llama_context::process_ahead(const llama_batch_ext & batch, uint32_t n_ahead) {
    auto * hybrid = dynamic_cast<llama_memory_hybrid *>(memory.get());
    if (hybrid == nullptr || !llama_clover_has_block_pass(model)) {
        LLAMA_LOG_ERROR("%s: %s\n", __func__,
                        hybrid ? llama_clover_block_missing(&model).c_str() : "the context has no such memory");
        return -1;
    }
    llama_memory_recurrent * states = hybrid->get_mem_recr();
    const size_t n_rows = batch.tokens.size();
    if (n_ahead < 1 || n_ahead > CLOVER_BLOCK_MAX || n_ahead >= n_rows || n_rows > cparams.n_ubatch ||
        (!states->log && cparams.n_rs_seq > 0)) {
        LLAMA_LOG_ERROR("%s: %zu rows, %u of which look ahead, cannot be computed in one pass here\n", __func__, n_rows, n_ahead);
        return -1;
    }
    const llama_seq_id seq_id = *batch.tokens[0].seq_ids.begin();
    if (std::any_of(batch.tokens.begin(), batch.tokens.end(),
                    [&](const auto & token) { return token.seq_ids.size() != 1 || *token.seq_ids.begin() != seq_id; })) {
        LLAMA_LOG_ERROR("%s: rows of more than one sequence\n", __func__);
        return -1;
    }
    const llama_pos first = batch.tokens[n_rows - n_ahead].pos[0];
    states->n_ahead = n_ahead;
    const int rc = decode(batch);
    states->n_ahead = 0;
    hybrid->get_mem_attn()->seq_rm(seq_id, first, -1);
    return rc;
}

int llama_context::process_block(const llama_batch_ext & batch) {
    if (!memory || !llama_clover_has_block_pass(model)) {
        LLAMA_LOG_ERROR("%s: %s\n", __func__, memory ? llama_clover_block_missing(&model).c_str() : "the context has no memory");
        return -1;
    }
    if (batch.tokens.size() > cparams.n_ubatch) {
        LLAMA_LOG_ERROR("%s: %zu rows do not fit into one ubatch of %u\n", __func__, batch.tokens.size(), cparams.n_ubatch);
        return -1;
    }
    // samplers in the graph are the target's: a draft must not move their random numbers
    struct samplers_aside {
        explicit samplers_aside(decltype(sampling.samplers) & samplers) : samplers(samplers) { samplers.swap(kept); }
        ~samplers_aside() { samplers.swap(kept); }
        decltype(sampling.samplers) & samplers;
        decltype(sampling.samplers) kept;
    } aside(sampling.samplers);
    return decode(batch, true);
}
