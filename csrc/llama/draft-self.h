#ifndef DRAFT_SELF_H
#define DRAFT_SELF_H

// Type "draft-self" of common/speculative: the target drafts by itself with block passes. Included by speculative.cpp,
// after what it derives from.

#include "../src/clover-draft.h"
#include "../src/llama-clover.h"

struct common_speculative_impl_draft_self : public common_speculative_impl {
    common_speculative_impl_draft_self(const common_params_speculative & spec, uint32_t n_seq)
        : common_speculative_impl(COMMON_SPECULATIVE_TYPE_DRAFT_SELF, n_seq, spec.draft.n_max), ctx(spec.draft.ctx_tgt),
          n_min(spec.draft.n_min) {
        params.n_max = spec.draft.n_max;
        params.n_rows = spec.draft.n_rows;
        params.n_steps = spec.draft.n_steps;
        params.p_min = spec.draft.p_min;
        if (ctx == nullptr) {
            throw std::runtime_error("draft-self needs the target context (ctx_tgt)");
        }
        const std::string missing = llama_clover_block_missing(llama_get_model(ctx));
        if (!missing.empty()) {
            throw std::runtime_error("draft-self is not possible: " + missing);
        }
        if (const char * wrong = clover_draft_params_error(params)) {
            throw std::runtime_error(std::string("draft-self: ") + wrong);
        }
        const auto n_rows = (uint32_t) std::max(params.n_max + 1, params.n_rows);
        if (llama_n_ubatch(ctx) < n_rows * n_seq) {
            throw std::runtime_error("draft-self: " + std::to_string(n_seq) + " blocks of " + std::to_string(n_rows) +
                                     " rows do not fit into a ubatch of " + std::to_string(llama_n_ubatch(ctx)));
        }
        SPC_TRC("adding speculative implementation 'draft-self', n_max=%d, n_rows=%d, n_steps=%d, p_min=%f\n", params.n_max,
                params.n_rows, params.n_steps, (double) params.p_min);
    }

    void begin(llama_seq_id, const llama_tokens &) override {}

    bool process(const common_batch &) override { return true; }

    void accept(llama_seq_id, uint16_t, bool) override {}

    // One block pass for all sequences. Their blocks have the same length, so the one with the least room decides.
    void draft(common_speculative_draft_params_vec & dparams) override {
        std::vector<clover_draft_request> requests;
        int32_t n = params.n_max;
        for (size_t seq = 0; seq < dparams.size(); ++seq) {
            const auto & dp = dparams[seq];
            if (!dp.drafting || dp.n_max < 1) {
                continue;
            }
            n = std::min(n, dp.n_max);
            clover_draft_request request;
            request.seq_id = (llama_seq_id) seq;
            request.pos = dp.pos0;
            request.last = dp.id_last;
            requests.push_back(std::move(request));
        }
        if (requests.empty()) {
            return;
        }
        const int32_t rc = clover_draft(ctx, requests, n, params);
        if (rc != 0) {
            // without a draft the target goes on token by token
            SPC_WRN("block pass failed (%d), nothing is drafted\n", rc);
            return;
        }
        for (auto & request : requests) {
            if ((int32_t) request.draft.size() >= n_min) {
                *dparams[request.seq_id].result = std::move(request.draft);
            }
        }
    }

  private:
    llama_context * ctx;
    clover_draft_params params;
    int32_t n_min;
};

#endif
