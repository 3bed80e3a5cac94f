// Block passes: previews, drafting with verification, block diffusion.
#include "context.hpp"

#include "clover-draft.h"
#include "draft-controller.h"
#include "llama-clover.h"

#include <algorithm>
#include <cmath>
#include <memory>

using namespace pyclover;

namespace {

struct batch_owner {
    explicit batch_owner(llama_context * ctx) : batch(llama_batch_ext_init(ctx)) {}
    ~batch_owner() { llama_batch_ext_free(batch); }
    batch_owner(const batch_owner &) = delete;
    batch_owner & operator=(const batch_owner &) = delete;

    llama_batch_ext * const batch;
};

void require_block_pass(const pc_model & model) {
    const std::string missing = llama_clover_block_missing(model.model);
    if (!missing.empty()) {
        throw error(PC_NO_BLOCK_PASS, missing);
    }
}

// A block pass whose numbers are none leaves such numbers in free cells of the KV cache, where a later pass would meet them
// (0 times NaN is NaN): everything is cleared.
[[noreturn]] void refuse_numbers(pc_context & c) {
    c.forget();
    throw error(PC_DECODE_FAILED, "the model computed no usable logits (NaN or infinite): its weights may be damaged");
}

void check_block_result(int32_t rc) {
    if (rc == 2) {
        throw error(PC_CANCELLED, "the call was stopped");
    }
    if (rc == 1) {
        throw error(PC_CONTEXT_FULL, "the context has no room left for a block");
    }
    if (rc != 0) {
        const std::string why = telling_error_line();
        throw error(error_lines_say_out_of_memory() ? PC_OUT_OF_MEMORY : PC_DECODE_FAILED,
                    "llama.cpp could not compute the block (code " + std::to_string(rc) + ")" + (why.empty() ? "" : ": " + why));
    }
}

// Logits of the last preview that are about the position of row t: a shifted model's row is about the next position, and
// the first position's logits are those of the last token before the block.
const float * block_row(const pc_context & c, bool shift, size_t t) {
    if (shift && t == 0) {
        return c.kept_logits.data();
    }
    return llama_get_logits_ith(c.ctx, (int32_t) t - (shift ? 1 : 0));
}

} // namespace

void pc_context::preview(const llama_token * rows, size_t n_rows) {
    require_block_pass(*model);
    check_tokens(rows, n_rows);
    if (n_rows < 1 || n_rows > PC_BLOCK_MAX) {
        throw error(PC_BAD_ARGUMENT, "a block has 1 to 32 rows, not " + std::to_string(n_rows));
    }
    check_room(history.size() + n_rows);
    if (stop_requested()) {
        throw error(PC_CANCELLED, "the call was stopped");
    }
    settle();
    if (logits_ready) {
        const float * logits = last_logits();
        kept_logits.assign(logits, logits + model->n_vocab);
    }
    batch_owner owner(ctx);
    for (size_t t = 0; t < n_rows; t++) {
        const auto pos = (llama_pos) (history.size() + t);
        const int32_t row = llama_batch_ext_add_token(owner.batch, 0, rows[t]);
        if (row < 0 || !llama_batch_ext_set_pos(owner.batch, row, &pos) ||
            !llama_batch_ext_set_output_logits(owner.batch, row, true)) {
            throw error(PC_NATIVE_FAILURE, "llama.cpp did not take a row of the block");
        }
    }
    clear_error_lines();
    logits_ready = false; // the output is the block's now
    n_fresh = 0;          // a block pass brings the recurrent state up to date
    spec.previews++;
    stopwatch watch(spec.preview_s);
    check_block_result(llama_clover_process_block(ctx, owner.batch));
    llama_synchronize(ctx);
}

extern "C" int pc_model_block_missing(const pc_model * model, pc_buffer * out) {
    return guarded([&] {
        const std::string missing = llama_clover_block_missing(required(model, "model")->model);
        give_bytes(out, missing.data(), missing.size());
    });
}

extern "C" int pc_context_get_block_params(const pc_context * context, pc_block_params * out) {
    return guarded([&] {
        const clover_block_params & p = llama_clover_get_block_params(required(context, "context")->ctx);
        *required(out, "out") = {};
        out->block_length = p.block_length;
        out->shift_logits = p.shift_logits ? 1 : 0;
        out->expert_coreset = p.expert_coreset;
        out->expert_coreset_share = p.expert_coreset_share;
        out->expert_coreset_min = p.expert_coreset_min;
        std::snprintf(out->scale_activation, sizeof out->scale_activation, "%s", clover_activation_name(p.scale_activation));
        std::snprintf(out->history_query, sizeof out->history_query, "%s", clover_history_name(p.history_query));
    });
}

extern "C" int pc_context_set_block_params(pc_context * context, const pc_block_params * params) {
    return guarded([&] {
        const pc_block_params & p = *required(params, "params");
        clover_block_params to;
        to.block_length = p.block_length;
        to.shift_logits = p.shift_logits != 0;
        to.expert_coreset = p.expert_coreset;
        to.expert_coreset_share = p.expert_coreset_share;
        to.expert_coreset_min = p.expert_coreset_min;
        if (!clover_activation_from_name(p.scale_activation, to.scale_activation)) {
            throw error(PC_BAD_ARGUMENT, "scale_activation must be none, exp or softplus");
        }
        if (!clover_history_from_name(p.history_query, to.history_query)) {
            throw error(PC_BAD_ARGUMENT, "history_query must be scaled or unit");
        }
        try {
            llama_clover_set_block_params(required(context, "context")->ctx, to);
        } catch (const std::invalid_argument & e) {
            throw error(PC_BAD_ARGUMENT, e.what());
        }
    });
}

extern "C" int pc_context_preview(pc_context * context, const int32_t * rows, size_t n_rows, float * out) {
    return guarded([&] {
        pc_context & c = *required(context, "context");
        required(out, "out");
        const auto n_vocab = (size_t) c.model->n_vocab;
        c.preview(rows, n_rows);
        const bool shift = llama_clover_get_block_params(c.ctx).shift_logits;
        if (shift && c.kept_logits.empty()) {
            throw error(PC_BAD_ARGUMENT,
                        "the first row of a shifted block needs the logits of the last token: read the prompt again");
        }
        for (size_t t = 0; t < n_rows; t++) {
            const float * logits = block_row(c, shift, t);
            std::copy_n(logits, n_vocab, out + t * n_vocab);
            if (std::isnan(*logits)) {
                refuse_numbers(c);
            }
        }
        if (!c.kept_logits.empty()) {
            // back to where the sampler looks for them
            std::copy(c.kept_logits.begin(), c.kept_logits.end(), llama_get_logits_ith(c.ctx, -1));
            c.logits_ready = true;
            c.logits_row = -1;
        }
    });
}

extern "C" int pc_context_look_ahead(pc_context * context, const int32_t * tokens, size_t n_tokens, size_t n_rows, float * out) {
    return guarded([&] {
        pc_context & c = *required(context, "context");
        required(out, "out");
        require_block_pass(*c.model);
        c.check_tokens(tokens, n_tokens);
        const size_t n_all = n_tokens + n_rows;
        if (n_tokens < 1 || n_rows < 1 || n_rows > PC_BLOCK_MAX || c.snapshots ||
            n_all > std::min({ (size_t) c.n_batch, (size_t) llama_n_ubatch(c.ctx), (size_t) c.n_outputs })) {
            throw error(PC_BAD_ARGUMENT, std::to_string(n_tokens) + " tokens and a block of " + std::to_string(n_rows) +
                                             " rows cannot be computed in one pass here");
        }
        c.check_room(c.history.size() + n_all);
        c.pending = LLAMA_TOKEN_NULL;
        c.compute(tokens, n_tokens, true, n_rows);
        c.logits_row = (int32_t) n_tokens - 1;
        const auto n_vocab = (size_t) c.model->n_vocab;
        for (size_t t = 0; t < n_rows; t++) {
            std::copy_n(llama_get_logits_ith(c.ctx, (int32_t) (n_tokens + t)), n_vocab, out + t * n_vocab);
        }
    });
}

//
// draft-self
//

namespace {

clover_draft_params translated(const pc_draft_params & p) {
    clover_draft_params params;
    params.n_max = p.n_max;
    params.n_rows = p.n_rows;
    params.n_steps = p.n_steps;
    params.p_min = p.p_min;
    return params;
}

// Drafts what follows the pending token; shorter than n when the drafter is not sure enough.
std::vector<llama_token> drafted(pc_context & c, int32_t n, const pc_draft_params & p) {
    if (n < 1) {
        return {};
    }
    clover_draft_params params = translated(p);
    params.n_rows = std::min<int32_t>(p.n_rows, (int32_t) (c.n_ctx - c.history.size()));
    std::vector<clover_draft_request> requests(1);
    requests[0].pos = (llama_pos) c.history.size();
    requests[0].last = c.pending;

    if (c.stop_requested()) {
        throw error(PC_CANCELLED, "the call was stopped");
    }
    clear_error_lines();
    c.logits_ready = false;
    c.n_fresh = 0; // a block pass brings the recurrent state up to date
    c.spec.previews += (uint64_t) std::min(p.n_steps, n);
    const double built_s = llama_clover_build_s(c.ctx);
    stopwatch watch(c.spec.preview_s);
    const int32_t rc = clover_draft(c.ctx, requests, n, params);
    c.draft_build_s = llama_clover_build_s(c.ctx) - built_s;
    if (rc == CLOVER_DRAFT_NO_LOGITS) {
        refuse_numbers(c);
    }
    check_block_result(rc);
    return std::move(requests[0].draft);
}

// The draft that the last check's pass made, at most n tokens of it; empty: there is none for what follows now.
std::vector<llama_token> drafted_before(pc_context & c, int32_t n) {
    std::vector<llama_token> draft;
    if (c.next_draft_at == c.history.size() && c.next_draft_after == c.pending) {
        draft = std::move(c.next_draft);
        draft.resize(std::min(draft.size(), (size_t) std::max(n, 0)));
    }
    c.next_draft.clear();
    return draft;
}

// Rows that can look ahead in the pass that checks a draft; 0: none.
size_t rows_ahead(const pc_context & c, const pc_draft_params & p, size_t n_drafted, uint64_t n_left) {
    const size_t n_rows = (size_t) std::max(p.n_rows, p.n_max + 1);
    const size_t n_check = n_drafted + 1;
    const bool fits = c.history.size() + n_check + n_rows <= c.n_ctx &&
                      n_check + n_rows <= std::min(c.n_batch, llama_n_ubatch(c.ctx)) && n_check + n_rows <= c.n_outputs;
    return p.ahead != 0 && p.n_steps == 1 && n_drafted > 0 && n_left > n_check + 1 && fits && !c.snapshots ? n_rows : 0;
}

// What the rows behind a check say once all of it is accepted; row `first_row` of the output is the first of them.
void read_ahead(pc_context & c, const pc_draft_params & p, int32_t first_row, size_t n_rows) {
    const bool shift = llama_clover_get_block_params(c.ctx).shift_logits;
    const llama_token mask = llama_vocab_mask(c.model->vocab);
    const auto best = [&](size_t row) {
        const float * logits = llama_get_logits_ith(c.ctx, first_row + (int32_t) row);
        return clover_best_token(logits, c.model->n_vocab, mask, p.p_min > 0.0f);
    };
    // the block did not know the token that is pending now: if it took it for another one, the rest does not fit it
    if (!shift && best(0).id != c.pending) {
        return;
    }
    for (size_t row = shift ? 0 : 1; row < n_rows && c.next_draft.size() < (size_t) p.n_max; row++) {
        const clover_best token = best(row);
        if (token.id == LLAMA_TOKEN_NULL || (p.p_min > 0.0f && token.p < p.p_min)) {
            break;
        }
        c.next_draft.push_back(token.id);
    }
    c.spec.ahead_used += c.next_draft.empty() ? 0 : 1;
    c.next_draft_at = c.history.size();
    c.next_draft_after = c.pending;
}

void keep_state_before(pc_context & c, size_t n_drafted) {
    if (!c.model->recurrent || n_drafted <= c.n_rs_seq) {
        return; // snapshots reach far enough
    }
    stopwatch watch(c.spec.rollback_s);
    c.draft_state = c.recurrent_state();
    if (c.draft_state.empty()) {
        throw error(PC_NATIVE_FAILURE, "llama.cpp could not write its state");
    }
}

void check_draft_params(const pc_context & c, const pc_sampler & sampler, const pc_draft_params & p) {
    if (const char * wrong = clover_draft_params_error(translated(p))) {
        throw error(PC_BAD_ARGUMENT, wrong);
    }
    const clover_relaxed relaxed{ p.accept_ratio, p.accept_delta };
    if (const char * wrong = clover_relaxed_error(relaxed)) {
        throw error(PC_BAD_ARGUMENT, wrong);
    }
    if (relaxed.on() && !sampler.argmax) {
        throw error(PC_BAD_ARGUMENT, "relaxed acceptance works with greedy decoding alone: temperature 0, no penalties, DRY, "
                                     "grammar, logit bias or ignore_eos");
    }
    require_block_pass(*c.model);
}

} // namespace

extern "C" int pc_context_draft_step(pc_context * context, pc_sampler * sampler, const pc_draft_params * params, uint64_t n_left,
                                     int32_t * tokens, size_t * n_tokens, int32_t * is_end) {
    return guarded([&] {
        pc_context & c = *required(context, "context");
        required(sampler, "sampler");
        required(tokens, "tokens");
        *required(n_tokens, "n_tokens") = 0;
        *required(is_end, "is_end") = 0;
        const pc_draft_params & p = *required(params, "params");
        check_draft_params(c, *sampler, p);

        const auto emit = [&](llama_token token) {
            tokens[(*n_tokens)++] = token;
            c.pending = token;
            c.stats.n_sampled++;
            *is_end = llama_vocab_is_eog(c.model->vocab, token) ? 1 : 0;
        };
        if (c.pending == LLAMA_TOKEN_NULL) { // the first token comes from the prompt
            stopwatch watch(c.stats.sample_s);
            c.last_logits();
            emit(c.choose(*sampler, c.logits_row));
            return;
        }
        c.check_room(c.history.size() + 1);
        const size_t room = c.n_ctx - c.history.size() - 1;
        const size_t wanted = n_left > 0 ? (size_t) n_left - 1 : 0;
        const size_t n = std::min({ (size_t) p.n_max, wanted, room, (size_t) c.n_batch - 1 });

        stopwatch passes(c.stats.decode_s);
        c.settle();
        std::vector<llama_token> batch = drafted_before(c, (int32_t) n);
        if (batch.empty()) {
            batch = drafted(c, (int32_t) n, p);
        }
        batch.insert(batch.begin(), c.pending);
        const size_t n_drafted = batch.size() - 1;
        const size_t n_ahead = rows_ahead(c, p, n_drafted, n_left);
        const size_t start = c.history.size();
        keep_state_before(c, n_drafted);
        std::vector<uint8_t> state = std::move(c.draft_state);
        {
            stopwatch watch(c.spec.verify_s);
            c.compute(batch.data(), batch.size(), true, n_ahead);
        }
        c.spec.ahead += n_ahead > 0 ? 1 : 0;
        c.draft_start = start;
        c.draft_state = std::move(state);
        passes.stop();

        stopwatch watch(c.stats.sample_s);
        const clover_relaxed relaxed{ p.accept_ratio, p.accept_delta };
        c.spec.rounds++;
        size_t n_accepted = 0;
        size_t n_checked = n_drafted;
        for (size_t i = 0; i <= n_drafted; i++) {
            llama_token chosen = c.choose(*sampler, (int32_t) i);
            bool accepted = i < n_drafted && chosen == batch[i + 1];
            if (!accepted && i < n_drafted && relaxed.on()) {
                const float * logits = llama_get_logits_ith(c.ctx, (int32_t) i);
                accepted = clover_accepts(logits, c.model->n_vocab, batch[i + 1], relaxed);
                chosen = accepted ? batch[i + 1] : chosen;
            }
            if (accepted) {
                c.spec.accepted_at[i]++;
                n_accepted++;
            }
            if (*is_end == 0) {
                emit(chosen);
            }
            if (!accepted) {
                break;
            }
            // behind an end token only greedy decoding can tell what it would have accepted
            if (*is_end != 0 && !sampler->argmax) {
                n_checked = i + 1;
                break;
            }
        }
        c.spec.drafted += n_checked;
        for (size_t i = 0; i < n_checked; i++) {
            c.spec.drafted_at[i]++;
        }
        c.spec.accepted += n_accepted;
        c.spec.emitted += *n_tokens;
        c.stats.n_decoded += *n_tokens;
        // the last token that was chosen is pending; what was computed behind the one before it goes
        const size_t n_kept = start + *n_tokens;
        c.n_beyond = c.history.size() - n_kept;
        c.history.resize(n_kept);
        c.logits_row = (int32_t) *n_tokens - 1;
        if (n_ahead > 0 && n_accepted == n_drafted && *is_end == 0) {
            read_ahead(c, p, (int32_t) n_drafted + 1, n_ahead);
        }
    });
}

struct pc_controller {
    draft_controller controller;
};

namespace {

uint64_t sum(const uint64_t (&counts)[31]) {
    uint64_t n = 0;
    for (const uint64_t count : counts) {
        n += count;
    }
    return n;
}

static_assert(PC_N_WAYS == DRAFT_WAYS, "ways to make a draft");

draft_may allowed(bool ahead, int32_t ways, int32_t full_rows) {
    draft_may may;
    may.ahead = ahead;
    may.full_rows = (ways & PC_WAY_FULL_BLOCK) != 0 ? full_rows : 0;
    may.two_steps = (ways & PC_WAY_TWO_STEPS) != 0;
    may.few_experts = (ways & PC_WAY_FEW_EXPERTS) != 0;
    return may;
}

// What is left of the ways that the caller allows.
draft_may allowed_here(const pc_context & c, const pc_draft_params & p) {
    const clover_block_params & block = llama_clover_get_block_params(c.ctx);
    const size_t full = std::min({ (size_t) block.block_length, (size_t) c.n_batch, (size_t) llama_n_ubatch(c.ctx),
                                   (size_t) c.n_outputs, c.n_ctx - c.history.size() });
    draft_may may = allowed(p.ahead != 0 && p.n_steps == 1 && !c.snapshots, p.ways, p.n_rows == 0 ? (int32_t) full : 0);
    may.two_steps = may.two_steps && p.n_steps == 1;
    may.few_experts = may.few_experts && block.expert_coreset == 0 && block.expert_coreset_share == 0.0f &&
                      llama_clover_few_experts(c.model->model) > 0;
    return may;
}

// Undoes what the last round left behind before anything else is timed.
void settle_first(pc_context & c, draft_controller & controller) {
    if (c.n_beyond == 0) {
        return;
    }
    double seconds = 0.0;
    {
        stopwatch watch(seconds);
        stopwatch passes(c.stats.decode_s);
        c.settle();
    }
    controller.saw_rollback(seconds);
}

} // namespace

extern "C" int pc_controller_create(int32_t n_max, int32_t start_plain, pc_controller ** out) {
    return guarded([&] {
        *required(out, "out") = nullptr;
        if (n_max < 1 || n_max > DRAFT_N_MAX) {
            throw error(PC_BAD_ARGUMENT, "a draft has 1 to 31 tokens, not " + std::to_string(n_max));
        }
        *out = new pc_controller{ draft_controller(n_max, start_plain != 0) };
    });
}

extern "C" void pc_controller_free(pc_controller * controller) {
    delete controller;
}

extern "C" int pc_controller_get_state(const pc_controller * controller, pc_controller_state * out) {
    return guarded([&] {
        const draft_controller & c = required(controller, "controller")->controller;
        pc_controller_state & state = *required(out, "out");
        state = {};
        state.best = c.best();
        state.n_plain = c.n_plain;
        state.n_rounds = c.n_rounds;
        state.n_probes = c.n_probes;
        state.n_ahead = c.n_ahead;
        state.way = c.best_way();
        for (int32_t way = 0; way < PC_N_WAYS; way++) {
            state.rounds_of_way[way] = c.rounds_of((draft_way) way);
        }
        state.plain_s = c.plain_s();
        state.tokens_per_s[0] = c.tokens_per_s(0);
        for (int32_t n = 1; n <= DRAFT_N_MAX; n++) {
            state.preview_s[n] = c.preview_s(n);
            state.verify_s[n] = c.verify_s(n);
            state.ahead_s[n] = c.ahead_s(n);
            state.acceptance[n] = c.acceptance(n);
            state.tokens_per_s[n] = c.tokens_per_s(n);
        }
    });
}

extern "C" int pc_controller_choose(pc_controller * controller, uint64_t n_left, int32_t may_ahead, int32_t ways,
                                    int32_t full_rows, int32_t * n, int32_t * ahead, int32_t * way) {
    return guarded([&] {
        const draft_may may = allowed(may_ahead != 0, ways, full_rows);
        const draft_choice choice = required(controller, "controller")->controller.choose(n_left, may);
        *required(n, "n") = choice.n;
        *required(ahead, "ahead") = choice.ahead ? 1 : 0;
        *required(way, "way") = choice.way;
    });
}

extern "C" int pc_controller_saw_plain(pc_controller * controller, double seconds) {
    return guarded([&] { required(controller, "controller")->controller.saw_plain(seconds); });
}

extern "C" int pc_controller_saw_round(pc_controller * controller, int32_t n_drafted, int32_t n_checked, int32_t n_accepted,
                                       double preview_s, double verify_s, int32_t ahead, int32_t used) {
    return guarded([&] {
        required(controller, "controller")
            ->controller.saw_round(n_drafted, n_checked, n_accepted, preview_s, verify_s, ahead != 0, used != 0);
    });
}

extern "C" int pc_controller_saw_rollback(pc_controller * controller, double seconds) {
    return guarded([&] { required(controller, "controller")->controller.saw_rollback(seconds); });
}

extern "C" int pc_context_auto_step(pc_context * context, pc_sampler * sampler, pc_controller * controller,
                                    const pc_draft_params * params, uint64_t n_left, int32_t * tokens, size_t * n_tokens,
                                    int32_t * is_end) {
    int status = PC_OK;
    const int own = guarded([&] {
        pc_context & c = *required(context, "context");
        draft_controller & decides = required(controller, "controller")->controller;
        pc_draft_params p = *required(params, "params");
        required(tokens, "tokens");
        required(n_tokens, "n_tokens");
        if (c.pending == LLAMA_TOKEN_NULL) { // the first token comes from the prompt
            status = pc_context_draft_step(context, sampler, params, n_left, tokens, n_tokens, is_end);
            return;
        }
        settle_first(c, decides);
        const size_t room = c.n_ctx > c.history.size() ? c.n_ctx - c.history.size() - 1 : 0;
        const draft_may may = allowed_here(c, p);
        const draft_choice choice = decides.choose(n_left, may);
        const int32_t n = std::min({ choice.n, p.n_max, (int32_t) room, std::max(0, (int32_t) c.n_batch - 1) });
        double seconds = 0.0;
        const double built_before_s = llama_clover_build_s(c.ctx);
        const auto built_s = [&] {
            return llama_clover_build_s(c.ctx) - built_before_s;
        };
        c.draft_build_s = 0.0;
        if (n < 1) {
            *n_tokens = 0;
            {
                stopwatch watch(seconds);
                status = pc_context_step(context, sampler, tokens, is_end);
            }
            if (status == PC_OK) {
                *n_tokens = 1;
                decides.saw_plain(std::max(0.0, seconds - built_s()));
                decides.saw_build(built_s());
            }
            return;
        }
        p.n_max = n;
        p.ahead = choice.ahead ? 1 : 0;
        p.n_steps = std::min(p.n_steps, n);
        if (p.n_rows != 0 && p.n_rows <= n) {
            p.n_rows = 0;
        }
        if (choice.way == DRAFT_FULL_BLOCK && n < may.full_rows) {
            p.n_rows = may.full_rows;
        }
        if (choice.way == DRAFT_TWO_STEPS && n > 1) {
            p.n_steps = 2;
        }
        const clover_experts_for_now experts(c.ctx,
                                             choice.way == DRAFT_FEW_EXPERTS ? llama_clover_few_experts(c.model->model) : 0);
        const pc_spec_stats before = c.spec;
        {
            stopwatch watch(seconds);
            status = pc_context_draft_step(context, sampler, &p, n_left, tokens, n_tokens, is_end);
        }
        const auto n_drafted = (int32_t) (sum(c.spec.drafted_at) - sum(before.drafted_at));
        if (status == PC_OK && n_drafted > 0) {
            const double whole_s = c.spec.preview_s - before.preview_s;
            const double preview_s = std::max(whole_s > 0.0 ? 1e-9 : 0.0, whole_s - c.draft_build_s);
            const double verify_s = std::max(0.0, seconds - whole_s - (built_s() - c.draft_build_s));
            decides.saw_round(whole_s > 0.0 ? n : n_drafted, n_drafted, (int32_t) (c.spec.accepted - before.accepted), preview_s,
                              verify_s, c.spec.ahead > before.ahead, c.spec.ahead_used > before.ahead_used);
            decides.saw_build(built_s());
        }
    });
    return own != PC_OK ? own : status;
}

extern "C" int pc_context_take_back(pc_context * context, size_t n_tokens) {
    return guarded([&] {
        pc_context & c = *required(context, "context");
        if (n_tokens == 0) {
            return;
        }
        if (c.pending == LLAMA_TOKEN_NULL || n_tokens >= c.history.size() || !c.cuttable(c.history.size() - n_tokens)) {
            throw error(PC_BAD_ARGUMENT, "only tokens of the last round can be taken back, and not all of them");
        }
        c.pending = c.history[c.history.size() - n_tokens];
        c.n_beyond += n_tokens;
        c.history.resize(c.history.size() - n_tokens);
        c.logits_row -= (int32_t) n_tokens;
        c.spec.emitted -= std::min<uint64_t>(c.spec.emitted, n_tokens);
        c.stats.n_decoded -= std::min<uint64_t>(c.stats.n_decoded, n_tokens);
    });
}

//
// block diffusion
//

extern "C" int pc_context_denoise(pc_context * context, int32_t * rows, uint8_t * masked, size_t n_rows, float threshold,
                                  size_t * n_fixed) {
    return guarded([&] {
        pc_context & c = *required(context, "context");
        required(rows, "rows");
        required(masked, "masked");
        *required(n_fixed, "n_fixed") = 0;
        if (!(threshold >= 0.0f && threshold <= 1.0f)) {
            throw error(PC_BAD_ARGUMENT, "the threshold must be between 0 and 1");
        }
        stopwatch passes(c.stats.decode_s);
        c.preview(rows, n_rows);
        passes.stop();

        stopwatch watch(c.stats.sample_s);
        const llama_token mask = llama_vocab_mask(c.model->vocab);
        const bool shift = llama_clover_get_block_params(c.ctx).shift_logits;
        std::vector<clover_best> best(n_rows);
        size_t surest = n_rows;
        for (size_t t = 0; t < n_rows; t++) {
            if (masked[t] == 0) {
                continue;
            }
            if (shift && t == 0 && c.kept_logits.empty()) {
                throw error(PC_BAD_ARGUMENT, "the first row of a shifted block needs the logits of the last token");
            }
            const float * logits = block_row(c, shift, t);
            best[t] = clover_best_token(logits, c.model->n_vocab, mask, true);
            if (best[t].id == LLAMA_TOKEN_NULL || !std::isfinite(best[t].p)) {
                refuse_numbers(c);
            }
            if (surest == n_rows || best[t].p > best[surest].p) {
                surest = t;
            }
        }
        for (size_t t = 0; t < n_rows; t++) {
            if (masked[t] != 0 && (t == surest || best[t].p > threshold)) {
                rows[t] = best[t].id;
                masked[t] = 0;
                (*n_fixed)++;
            }
        }
        c.spec.fixed += *n_fixed;
        c.stats.n_sampled += *n_fixed;
    });
}

extern "C" int pc_context_commit(pc_context * context, const int32_t * tokens, size_t n_tokens, size_t n_new) {
    return guarded([&] {
        pc_context & c = *required(context, "context");
        c.check_tokens(tokens, n_tokens);
        c.check_room(c.history.size() + n_tokens);
        c.pending = LLAMA_TOKEN_NULL;
        stopwatch passes(c.stats.decode_s);
        stopwatch watch(c.spec.verify_s);
        for (size_t done = 0; done < n_tokens; done += c.n_batch) {
            c.compute(tokens + done, std::min<size_t>(c.n_batch, n_tokens - done), false);
        }
        c.spec.commits++;
        c.stats.n_decoded += n_new;
    });
}

extern "C" int pc_context_get_spec_stats(const pc_context * context, pc_spec_stats * out) {
    return guarded([&] { *required(out, "out") = required(context, "context")->spec; });
}

extern "C" int pc_context_graphs(const pc_context * context, uint64_t * n_built, double * seconds) {
    return guarded([&] {
        const pc_context & c = *required(context, "context");
        *required(n_built, "n_built") = llama_clover_graphs_built(c.ctx);
        *required(seconds, "seconds") = llama_clover_build_s(c.ctx);
    });
}
