#ifndef DRAFT_SELF_H
#define DRAFT_SELF_H

// Type "draft-self" of common/speculative: the target drafts by itself with block passes. Included by speculative.cpp,
// after what it derives from.

#include "../src/clover-draft.h"
#include "../src/llama-clover.h"
#include "draft-controller.h"

#include <algorithm>
#include <chrono>
#include <utility>

struct common_speculative_impl_draft_self : public common_speculative_impl {
    common_speculative_impl_draft_self(const common_params_speculative & spec, uint32_t n_seq)
        : common_speculative_impl(COMMON_SPECULATIVE_TYPE_DRAFT_SELF, n_seq, spec.draft.n_max), open(n_seq), made_ahead(n_seq),
          counts(n_seq), ctx(spec.draft.ctx_tgt), n_min(spec.draft.n_min) {
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
        if (spec.draft.ahead > 0 && params.n_steps > 1) {
            throw std::runtime_error("draft-self: a draft that is made ahead has one pass alone: leave --spec-draft-ahead or "
                                     "--spec-draft-steps out");
        }
        // nothing rides behind a check where snapshots are taken
        const bool wanted = spec.draft.ahead < 0 ? spec.draft.adaptive : spec.draft.ahead > 0;
        may_ahead = wanted && !spec.draft.snapshots && params.n_steps == 1;
        with_ahead = common_batch(ctx);
        few_experts = llama_clover_few_experts(llama_get_model(ctx));
        if (spec.draft.adaptive) {
            for (uint32_t seq = 0; seq < n_seq; ++seq) {
                deciders.push_back(std::make_unique<draft_controller>(params.n_max, spec.draft.start_plain));
            }
        }
        SPC_TRC("adding speculative implementation 'draft-self', n_max=%d, n_rows=%d, n_steps=%d, p_min=%f\n", params.n_max,
                params.n_rows, params.n_steps, (double) params.p_min);
    }

    void begin(llama_seq_id seq, const llama_tokens &) override {
        open[seq] = {};
        made_ahead[seq] = {};
        counts[seq] = {};
    }

    // The check of one sequence's draft, when it is all that the batch holds: the rows of the next block ride behind it.
    bool decode(const common_batch & batch, int32_t & rc) override {
        decodes = true;
        for (round & r : open) {
            r.looked = false;
        }
        if (!batch.has_token() || batch.tokens[0].seq_id < 0 || batch.tokens[0].seq_id >= (llama_seq_id) open.size()) {
            return false;
        }
        const llama_seq_id seq = batch.tokens[0].seq_id;
        round & r = open[seq];
        const bool alone = r.n_drafted > 0 && batch.size() == r.n_drafted + 1 && batch.tokens[0].pos[0] == r.pos &&
                           std::all_of(batch.tokens.begin(), batch.tokens.end(),
                                       [&](const auto & t) { return t.seq_id == seq && t.seq_ids_extra.empty(); });
        if (r.n_ahead == 0 || !alone) {
            return false;
        }
        with_ahead.clear();
        for (const auto & token : batch.tokens) {
            with_ahead.add(token.id, token.pos[0], seq, token.output);
        }
        const llama_token mask = llama_vocab_mask(llama_model_get_vocab(llama_get_model(ctx)));
        for (int32_t i = 0; i < r.n_ahead; ++i) {
            with_ahead.add(mask, r.pos + r.n_drafted + 1 + i, seq, true);
        }
        const clover_experts_for_now experts(ctx, r.way == DRAFT_FEW_EXPERTS ? few_experts : 0);
        rc = llama_clover_process_ahead(ctx, with_ahead.get(), (uint32_t) r.n_ahead);
        if (rc == 1 || rc == -1) {
            return false; // no room for so many rows, or not possible here: the memory is as it was
        }
        r.looked = rc == 0;
        return true;
    }

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
        r.n_accepted = std::min<int32_t>(n_accepted, r.n_drafted);
        r.timed = r.timed && !is_other && r.n_drafted > 0;
        if (r.looked) {
            counts[seq].n_made++;
            made_ahead[seq] = read_ahead(r);
        } else {
            tell(seq, r, false);
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
        ready = clock::now();
        ready_build_s = llama_clover_build_s(ctx);
        for (size_t seq = 0; seq < dparams.size(); ++seq) {
            const auto & dp = dparams[seq];
            round & r = open[seq];
            r = {};
            if (!dp.drafting || dp.n_max < 1) {
                continue;
            }
            llama_tokens there = taken_ahead((llama_seq_id) seq, dp);
            int32_t n_own = params.n_max;
            bool ahead = may.ahead;
            if (!deciders.empty()) {
                r.waits = true;
                const draft_choice choice = deciders[seq]->choose((uint64_t) dp.n_max + 1, may);
                n_own = choice.n;
                way = choice.way;
                ahead = choice.ahead;
                if (n_own < 1) {
                    continue;
                }
            }
            n_own = std::min({ n_own, params.n_max, dp.n_max });
            r.pos = dp.pos0;
            r.way = way;
            r.n = n_own;
            r.n_ahead = ahead ? rows_ahead(r, dp.n_max, may) : 0;
            there.resize(std::min(there.size(), (size_t) n_own));
            if (!there.empty() && (int32_t) there.size() >= n_min) {
                counts[seq].n_used++;
                r.n_drafted = (int32_t) there.size();
                *dp.result = std::move(there);
                continue;
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
        if (requests.empty()) {
            return;
        }
        clover_draft_params now = params;
        now.n_steps = std::min(way == DRAFT_TWO_STEPS ? 2 : now.n_steps, n);
        if (way == DRAFT_FULL_BLOCK && n < may.full_rows) {
            now.n_rows = may.full_rows;
        }
        const clover_experts_for_now experts(ctx, way == DRAFT_FEW_EXPERTS ? few_experts : 0);
        const auto began = clock::now();
        const double began_build_s = llama_clover_build_s(ctx);
        const int32_t rc = clover_draft(ctx, requests, n, now);
        const double preview_s = since(began, began_build_s);
        ready = clock::now();
        ready_build_s = llama_clover_build_s(ctx);
        if (rc != 0) {
            // without a draft the target goes on token by token
            SPC_WRN("block pass failed (%d), nothing is drafted\n", rc);
            for (const auto & request : requests) {
                open[request.seq_id] = {};
            }
            return;
        }
        for (size_t i = 0; i < requests.size(); ++i) {
            auto & request = requests[i];
            request.draft.resize(std::min(request.draft.size(), (size_t) wanted[i]));
            round & r = open[request.seq_id];
            r.preview_s = preview_s;
            if (!request.draft.empty() && (int32_t) request.draft.size() >= n_min) {
                r.n_drafted = (int32_t) request.draft.size();
                *dparams[request.seq_id].result = std::move(request.draft);
            }
        }
    }

    common_speculative_ahead ahead(llama_seq_id seq) const override { return counts[seq]; }

  private:
    using clock = std::chrono::steady_clock;

    // Seconds since then, without what went into graphs.
    double since(clock::time_point then, double then_build_s) const {
        const double seconds = std::chrono::duration<double>(clock::now() - then).count();
        return std::max(1e-9, seconds - (llama_clover_build_s(ctx) - then_build_s));
    }

    // what is known of a sequence's round before its tokens are accepted
    struct round {
        bool waits = false;     // for its check
        bool timed = false;     // its check was all that its pass computed
        bool looked = false;    // rows of the next block rode behind it
        llama_pos pos = 0;      // of the token before the draft
        int32_t n = 0;          // tokens that were wanted
        int32_t n_drafted = 0;  // tokens that there are
        int32_t n_accepted = 0; // of them
        int32_t n_ahead = 0;    // rows that are to ride behind the check
        draft_way way = DRAFT_AS_ASKED;
        double preview_s = 0.0;
        double verify_s = 0.0;
    };

    // a draft that a check's pass has made, and what it is good for
    struct next_draft {
        round by;
        llama_pos pos = 0;                    // of the token before it
        llama_token after = LLAMA_TOKEN_NULL; // which that token has to be; null: any
        llama_tokens tokens;
    };

    // Tells the controller how a round went.
    void tell(llama_seq_id seq, const round & r, bool used) {
        if (!deciders.empty() && r.timed) {
            deciders[seq]->saw_round(r.n_drafted, r.n_drafted, r.n_accepted, r.preview_s, r.verify_s, r.looked, used);
        }
    }

    // Rows of the next block behind a check of this round; 0: there is no room or no use for them.
    int32_t rows_ahead(const round & r, int32_t n_max, const draft_may & may) const {
        const int32_t n_check = r.n + 1;
        int32_t n_rows = std::max(params.n_rows, r.n + 1);
        if (r.way == DRAFT_FULL_BLOCK) {
            n_rows = std::max(n_rows, may.full_rows);
        }
        const bool fits = n_check + n_rows <= (int32_t) std::min(llama_n_ubatch(ctx), llama_n_batch(ctx)) &&
                          r.pos + n_check + n_rows <= (llama_pos) llama_n_ctx_seq(ctx);
        return fits && r.way != DRAFT_TWO_STEPS && n_max > n_check ? n_rows : 0;
    }

    // What the rows behind a check say, once all of its draft is accepted. They did not know the token that the check adds:
    // where they took it for another one, the rest does not fit it.
    next_draft read_ahead(const round & r) const {
        next_draft next;
        next.by = r;
        next.pos = r.pos + r.n_drafted + 1;
        if (r.n_accepted < r.n_drafted) {
            return next;
        }
        const llama_vocab * vocab = llama_model_get_vocab(llama_get_model(ctx));
        const auto best = [&](int32_t row) {
            return clover_best_token(llama_get_logits_ith(ctx, r.n_drafted + 1 + row), llama_vocab_n_tokens(vocab),
                                     llama_vocab_mask(vocab), params.p_min > 0.0f);
        };
        const bool shift = llama_clover_get_block_params(ctx).shift_logits;
        if (!shift) {
            next.after = best(0).id;
            if (next.after == LLAMA_TOKEN_NULL) {
                return next;
            }
        }
        for (int32_t row = shift ? 0 : 1; row < r.n_ahead && (int32_t) next.tokens.size() < r.n; ++row) {
            const clover_best token = best(row);
            if (token.id == LLAMA_TOKEN_NULL || (params.p_min > 0.0f && token.p < params.p_min)) {
                break;
            }
            next.tokens.push_back(token.id);
        }
        return next;
    }

    // The draft that the last check's pass made, where it fits what came; with that its round is over.
    llama_tokens taken_ahead(llama_seq_id seq, const common_speculative_draft_params & dp) {
        next_draft next = std::exchange(made_ahead[seq], {});
        const bool fits =
            !next.tokens.empty() && next.pos == dp.pos0 && (next.after == LLAMA_TOKEN_NULL || next.after == dp.id_last);
        if (next.by.looked) {
            tell(seq, next.by, fits);
        }
        return fits ? std::move(next.tokens) : llama_tokens();
    }

    // How drafts may be made. One pass drafts for all sequences, so they differ where only one of them wants a draft.
    draft_may allowed(const common_speculative_draft_params_vec & dparams) const {
        draft_may may;
        const auto n_drafting =
            std::count_if(dparams.begin(), dparams.end(), [](const auto & dp) { return dp.drafting && dp.n_max > 0; });
        if (n_drafting != 1) {
            return may;
        }
        may.ahead = may_ahead && decodes;
        const clover_block_params & block = llama_clover_get_block_params(ctx);
        may.full_rows = params.n_rows == 0 ? (int32_t) std::min(block.block_length, llama_n_ubatch(ctx)) : 0;
        may.two_steps = params.n_steps == 1;
        may.few_experts = few_experts > 0 && block.expert_coreset == 0 && block.expert_coreset_share == 0.0f;
        return may;
    }

    std::vector<round> open;            // by sequence
    std::vector<next_draft> made_ahead; // the same
    std::vector<common_speculative_ahead> counts;
    std::vector<std::unique_ptr<draft_controller>> deciders; // the same; none: drafts of one length
    common_batch with_ahead;
    clock::time_point ready;
    double ready_build_s = 0.0; // graphs until then
    llama_context * ctx;
    clover_draft_params params;
    int32_t n_min;
    uint32_t few_experts;   // 0: all are needed
    bool may_ahead = false; // drafts may be made ahead
    bool decodes = false;   // the target's passes come through decode(), so that they can be
};

#endif
