// Block passes from the context's point of view.

#include "llama-clover.h"

#include "clover-graphs.h"
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

double llama_clover_build_s(const llama_context * ctx) {
    return 1e-6 * (double) ctx->clover_build_time_us();
}

uint64_t llama_clover_graphs_built(const llama_context * ctx) {
    return ctx->clover_graphs_built();
}

uint32_t llama_clover_few_experts(const llama_model * model) {
    const uint32_t n = std::max(2 * model->hparams.n_expert_used_max(), model->hparams.n_expert / 8);
    return n < model->hparams.n_expert ? n : 0;
}

clover_experts_for_now::clover_experts_for_now(llama_context * ctx, uint32_t n_experts)
    : ctx(n_experts > 0 ? ctx : nullptr), before(llama_clover_get_block_params(ctx)) {
    if (this->ctx != nullptr) {
        clover_block_params params = before;
        params.expert_coreset = n_experts;
        llama_clover_set_block_params(ctx, params);
    }
}

clover_experts_for_now::~clover_experts_for_now() {
    if (ctx != nullptr) {
        llama_clover_set_block_params(ctx, before);
    }
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
    const auto n_outputs = std::count_if(batch.tokens.begin(), batch.tokens.end(), [](const auto & t) { return t.output; });
    if ((size_t) n_outputs > cparams.n_outputs_max || !sampling.samplers.empty()) {
        // samplers in the graph must not see rows that are no text
        LLAMA_LOG_DEBUG("%s: logits of %zu rows, and the context gives those of %u, or it samples in the graph\n", __func__,
                        (size_t) n_outputs, cparams.n_outputs_max);
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
    const auto n_outputs = std::count_if(batch.tokens.begin(), batch.tokens.end(), [](const auto & t) { return t.output; });
    if ((size_t) n_outputs > cparams.n_outputs_max) {
        LLAMA_LOG_ERROR("%s: logits of %zu rows, and the context gives those of %u\n", __func__, (size_t) n_outputs,
                        cparams.n_outputs_max);
        return -1;
    }
    // samplers in the graph are the target's: a draft must not move their random numbers
    struct samplers_aside {
        explicit samplers_aside(decltype(sampling.samplers) & samplers) : samplers(samplers) { samplers.swap(kept); }
        ~samplers_aside() { samplers.swap(kept); }
        decltype(sampling.samplers) & samplers;
        decltype(sampling.samplers) kept;
    } aside(sampling.samplers);
    // what decode() may do with the scheduler beside its pass is done with the context's own
    sched_reserve();
    memory_update(false);
    clover_turn turn(*this, clover_kept->block);
    return decode(batch, true);
}

clover_turn::clover_turn(llama_context & ctx, clover_graphs & graphs) : ctx(ctx), graphs(graphs) {
    ctx.clover_swap(graphs);
}

clover_turn::~clover_turn() {
    ctx.clover_swap(graphs);
}

void llama_context::clover_swap(clover_graphs & graphs) {
    std::swap(sched, graphs.sched);
    std::swap(gf_res_prev, graphs.results);
    std::swap(gf_res_prev_active, graphs.active);
}

void llama_context::clover_reserve(const llama_memory_context_i * mctx, uint32_t n_tokens) {
    clover_kept.reset();
    if (model.arch != LLM_ARCH_CLOVER_MOE || mctx == nullptr) {
        return;
    }
    clover_kept = std::make_shared<clover_kept_graphs>();
    const bool no_alloc = model.hparams.no_alloc;
    const bool takes_back = cparams.n_rs_seq > 0;
    const size_t max_nodes = graph_max_nodes(n_tokens);
    const auto prepare = [&](clover_graphs & graphs) {
        graphs.sched.reset(ggml_backend_sched_new(backend_ptrs.data(), backend_buft.data(), (int) backend_ptrs.size(), max_nodes,
                                                  false, cparams.op_offload));
        graphs.sizes.assign(backend_ptrs.size(), 0);
    };
    bool reserved = true;
    const auto reserve = [&](clover_graphs & graphs, uint32_t n_rows, uint32_t n_seqs, llm_graph_type type) {
        prepare(graphs);
        clover_turn turn(*this, graphs);
        reserved = reserved && graph_reserve(n_rows, n_seqs, std::min(n_rows, cparams.n_outputs_max), mctx, no_alloc,
                                             no_alloc ? graphs.sizes.data() : nullptr, type) != nullptr;
    };
    // one sequence: blocks of any kind, and drafts that may look ahead; several: drafts alone
    const uint32_t n_seqs = cparams.n_seq_max;
    const uint32_t n_block = cparams.clover_block.block_length;
    const uint32_t n_draft = cparams.n_rs_seq + 1;
    if (llama_clover_has_block_pass(model)) {
        reserve(clover_kept->block, std::min(n_tokens, n_seqs > 1 && takes_back ? n_draft * n_seqs : n_block * n_seqs), n_seqs,
                LLM_GRAPH_TYPE_DECODER_BLOCK);
    }
    if (takes_back) {
        reserve(clover_kept->check, std::min({ n_tokens, CLOVER_CHECK_MAX, std::max(n_draft * n_seqs, n_draft + n_block) }), 1,
                LLM_GRAPH_TYPE_DEFAULT);
    }
    const auto * hybrid = dynamic_cast<const llama_memory_hybrid *>(memory.get());
    if (hybrid != nullptr && hybrid->get_mem_recr()->log) {
        clover_graphs & replay = clover_kept->replay;
        prepare(replay);
        replay.results[0] = std::make_unique<llm_graph_result>(max_nodes);
        reserved = reserved && clover_reserve_replay(*hybrid->get_mem_recr(), no_alloc);
    }
    if (!reserved) {
        throw std::runtime_error("failed to allocate compute buffers of the block pass");
    }
    const auto mib = [&](const clover_graphs & graphs) {
        size_t size = 0;
        for (size_t i = 0; i < backend_ptrs.size(); ++i) {
            size += clover_compute_size(graphs, i);
        }
        return double(size) / 1024.0 / 1024.0;
    };
    LLAMA_LOG_INFO("%s: compute buffers of blocks, checks and rows applied again = %.2f, %.2f, %.2f MiB\n", __func__,
                   mib(clover_kept->block), mib(clover_kept->check), mib(clover_kept->replay));
}

std::shared_ptr<void> llama_context::clover_check(const llama_batch_ext & batch) {
    const size_t n_rows = batch.tokens.size();
    if (!clover_kept || !clover_kept->check.sched || n_rows < 2 || n_rows > CLOVER_CHECK_MAX) {
        return nullptr;
    }
    sched_reserve();
    memory_update(false);
    return std::make_shared<clover_turn>(*this, clover_kept->check);
}

size_t llama_context::clover_compute_size(const clover_graphs & graphs, size_t i_backend) const {
    if (!graphs.sched) {
        return 0;
    }
    return model.hparams.no_alloc ? graphs.sizes[i_backend]
                                  : ggml_backend_sched_get_buffer_size(graphs.sched.get(), backend_ptrs[i_backend]);
}

size_t llama_context::clover_compute_size(size_t i_backend) const {
    return clover_compute_size(clover_kept->block, i_backend) + clover_compute_size(clover_kept->check, i_backend) +
           clover_compute_size(clover_kept->replay, i_backend);
}
