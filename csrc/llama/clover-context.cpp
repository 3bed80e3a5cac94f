// Block passes from the context's point of view.

#include "llama-clover.h"

#include "llama-batch.h"
#include "llama-context.h"
#include "llama-impl.h"
#include "llama-memory.h"
#include "llama-model.h"
#include "models/models.h"

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
