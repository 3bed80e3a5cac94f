#ifndef DRAFT_SELF_H
#define DRAFT_SELF_H

// Type "draft-self" of common/speculative: the target drafts by itself with block passes. Included by speculative.cpp,
// after what it derives from.

#include "../src/clover-draft.h"
#include "../src/llama-clover.h"
#include "draft-controller.h"

#include <algorithm>
#include <chrono>

struct common_speculative_impl_draft_self : public common_speculative_impl {
    common_speculative_impl_draft_self(const common_params_speculative & spec, uint32_t n_seq)
        : common_speculative_impl(COMMON_SPECULATIVE_TYPE_DRAFT_SELF, n_seq, spec.draft.n_max), open(n_seq),
          ctx(spec.draft.ctx_tgt), n_min(spec.draft.n_min) {
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
        few_experts = llama_clover_few_experts(llama_get_model(ctx));
        if (spec.draft.adaptive) {
            for (uint32_t seq = 0; seq < n_seq; ++seq) {
                deciders.push_back(std::make_unique<draft_controller>(params.n_max, spec.draft.start_plain));
            }
        }
        SPC_TRC("adding speculative implementation 'draft-self', n_max=%d, n_rows=%d, n_steps=%d, p_min=%f\n", params.n_max,
                params.n_rows, params.n_steps, (double) params.p_min);
    }

    void begin(llama_seq_id seq, const llama_tokens &) override { open[seq] = {}; }

    // Called after each pass of the target: the time since the drafts were ready is that of their check.
    bool process(const common_batch & batch) override {
        size_t n_rows = 0;
        for (const round & r : open) {
            n_rows += r.waits ? r.n_drafted + 1 : 0;
        }
        if (n_rows == 0) {
            return true;
        }
        llama_synchronize(ctx);
        // a pass that reads a prompt as well says nothing about a check
        const bool alone = (size_t) batch.size() == n_rows;
        const double seconds = since(ready, ready_build_s);
        for (size_t seq = 0; seq < open.size(); ++seq) {
            round & r = open[seq];
            if (!r.waits) {
                continue;
            }
            r.waits = false;
            r.verify_s = seconds;
            r.timed = alone;
            if (r.n_drafted == 0 && r.preview_s == 0.0 && alone) {
                deciders[seq]->saw_plain(seconds);
            }
        }
        return true;
    }

    void accept(llama_seq_id seq, uint16_t n_accepted, bool is_other) override {
        round & r = open[seq];
        if (!deciders.empty() && !is_other && r.timed && r.n_drafted > 0) {
            const int32_t n = r.n_drafted;
            deciders[seq]->saw_round(n, n, std::min<int32_t>(n_accepted, n), r.preview_s, r.verify_s);
        }
        r = {};
    }

    // One block pass for all sequences. Their blocks have the same length, so the longest draft decides, and the least room.
    void draft(common_speculative_draft_params_vec & dparams) override {
        std::vector<clover_draft_request> requests;
        std::vector<int32_t> wanted;
        int32_t n = 0;
        int32_t room = params.n_max;
        draft_way way = DRAFT_AS_ASKED;
        const draft_may may = allowed(dparams);
        for (size_t seq = 0; seq < dparams.size(); ++seq) {
            const auto & dp = dparams[seq];
            open[seq] = {};
            if (!dp.drafting || dp.n_max < 1) {
                continue;
            }
            int32_t n_own = params.n_max;
            if (!deciders.empty()) {
                open[seq].waits = true;
                const draft_choice choice = deciders[seq]->choose((uint64_t) dp.n_max + 1, may);
                n_own = choice.n;
                way = choice.way;
                if (n_own < 1) {
                    continue;
                }
            }
            n = std::max(n, n_own);
            room = std::min(room, dp.n_max);
            clover_draft_request request;
            request.seq_id = (llama_seq_id) seq;
            request.pos = dp.pos0;
            request.last = dp.id_last;
            requests.push_back(std::move(request));
            wanted.push_back(n_own);
        }
        n = std::min(n, room);
        const auto began = clock::now();
        const double began_build_s = llama_clover_build_s(ctx);
        ready = began;
        ready_build_s = began_build_s;
        if (requests.empty()) {
            return;
        }
        clover_draft_params now = params;
        now.n_steps = std::min(way == DRAFT_TWO_STEPS ? 2 : now.n_steps, n);
        if (way == DRAFT_FULL_BLOCK && n < may.full_rows) {
            now.n_rows = may.full_rows;
        }
        const clover_experts_for_now experts(ctx, way == DRAFT_FEW_EXPERTS ? few_experts : 0);
        const int32_t rc = clover_draft(ctx, requests, n, now);
        const double preview_s = since(began, began_build_s);
        ready = clock::now();
        ready_build_s = llama_clover_build_s(ctx);
        if (rc != 0) {
            // without a draft the target goes on token by token
            SPC_WRN("block pass failed (%d), nothing is drafted\n", rc);
            open.assign(open.size(), {});
            return;
        }
        for (size_t i = 0; i < requests.size(); ++i) {
            auto & request = requests[i];
            request.draft.resize(std::min(request.draft.size(), (size_t) wanted[i]));
            round & r = open[request.seq_id];
            r.preview_s = preview_s;
            if ((int32_t) request.draft.size() >= n_min) {
                r.n_drafted = (int32_t) request.draft.size();
                *dparams[request.seq_id].result = std::move(request.draft);
            }
        }
    }

  private:
    using clock = std::chrono::steady_clock;

    // Seconds since then, without what went into graphs.
    double since(clock::time_point then, double then_build_s) const {
        const double seconds = std::chrono::duration<double>(clock::now() - then).count();
        return std::max(1e-9, seconds - (llama_clover_build_s(ctx) - then_build_s));
    }

    // How drafts may be made. One pass drafts for all sequences, so they differ where only one of them wants a draft.
    draft_may allowed(const common_speculative_draft_params_vec & dparams) const {
        draft_may may;
        const auto n_drafting =
            std::count_if(dparams.begin(), dparams.end(), [](const auto & dp) { return dp.drafting && dp.n_max > 0; });
        if (n_drafting != 1) {
            return may;
        }
        const clover_block_params & block = llama_clover_get_block_params(ctx);
        may.full_rows = params.n_rows == 0 ? (int32_t) std::min(block.block_length, llama_n_ubatch(ctx)) : 0;
        may.two_steps = params.n_steps == 1;
        may.few_experts = few_experts > 0 && block.expert_coreset == 0 && block.expert_coreset_share == 0.0f;
        return may;
    }

    // what is known of a sequence's round before its tokens are accepted
    struct round {
        bool waits = false; // for its check
        bool timed = false;
        int32_t n_drafted = 0;
        double preview_s = 0.0;
        double verify_s = 0.0;
    };

    std::vector<round> open;                                 // by sequence
    std::vector<std::unique_ptr<draft_controller>> deciders; // the same; none: drafts of one length
    clock::time_point ready;
    double ready_build_s = 0.0; // graphs until then
    llama_context * ctx;
    clover_draft_params params;
    int32_t n_min;
    uint32_t few_experts; // 0: all are needed
};

#endif
