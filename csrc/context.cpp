// Contexts: life, prompts, steps.
#include "context.hpp"

#include "llama-clover.h"

#include "cache_types.hpp"

#include <algorithm>
#include <cmath>
#include <memory>

using namespace pyclover;

namespace {

// Logits of one pass stay below this, so that a vocabulary of 248,320 does not cost half a gigabyte.
constexpr size_t MAX_LOGITS_BYTES = 64u << 20;
constexpr auto POLL_INTERVAL = std::chrono::milliseconds(25);

bool on_abort(void * self) {
    return static_cast<pc_context *>(self)->stop_requested();
}

ggml_type cache_type(const char * name, const char * option) {
    const ggml_type type = cache_type_named(required(name, option));
    if (type == GGML_TYPE_COUNT) {
        throw error(PC_BAD_ARGUMENT, std::string(option) + ": there is no cache type '" + name + "'");
    }
    return type;
}

ggml_threadpool * new_pool(int n_threads) {
    ggml_threadpool_params params = ggml_threadpool_params_default(n_threads);
    ggml_threadpool * pool = ggml_threadpool_new(&params);
    if (pool == nullptr) {
        throw error(PC_NATIVE_FAILURE, "could not start " + std::to_string(n_threads) + " threads");
    }
    return pool;
}

// Largest value; NaN never wins. Lanes let the compiler use vector instructions without reordering a reduction.
float largest(const float * x, size_t n) {
    constexpr size_t LANES = 16;
    float lane[LANES];
    std::fill_n(lane, LANES, -INFINITY);
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        for (size_t j = 0; j < LANES; j++) {
            lane[j] = x[i + j] > lane[j] ? x[i + j] : lane[j];
        }
    }
    for (; i < n; i++) {
        lane[0] = x[i] > lane[0] ? x[i] : lane[0];
    }
    return *std::max_element(lane, lane + LANES);
}

// Also finds logits that no sampler could use.
llama_token argmax(const float * logits, size_t n) {
    const float best = largest(logits, n);
    if (!std::isfinite(best)) {
        throw error(PC_DECODE_FAILED, "the model computed no usable logits (NaN or infinite): its weights may be damaged");
    }
    return (llama_token) (std::find(logits, logits + n, best) - logits);
}

void setup_threads(pc_context & c, const pc_context_params & p) {
    if (p.n_threads < 1 || p.n_threads > 512 || p.n_threads_batch < 1 || p.n_threads_batch > 512) {
        throw error(PC_BAD_ARGUMENT, "the number of threads must be between 1 and 512");
    }
    if (p.n_threads > 1) {
        c.pool = new_pool(p.n_threads);
    }
    if (p.n_threads_batch > 1) {
        c.pool_batch = p.n_threads_batch == p.n_threads ? c.pool : new_pool(p.n_threads_batch);
    }
    if (c.pool != nullptr && c.pool_batch != nullptr) {
        llama_attach_threadpool(c.ctx, c.pool, c.pool_batch);
    }
}

// Computes one token with this thread alone. ggml checks some values only while it computes, and a failed check in one of
// its own threads ends the process; here it becomes an error. The gate in front knows what clover_moe needs, so only
// files of other architectures are tried. An encoder's decoder cannot run before the encoder did: not tried.
void try_one_token(pc_context & c) {
    char architecture[32] = "";
    llama_model_meta_val_str(c.model->model, "general.architecture", architecture, sizeof(architecture));
    if (std::strcmp(architecture, "clover_moe") == 0 || llama_model_has_encoder(c.model->model)) {
        return;
    }
    const int32_t n_threads = llama_n_threads(c.ctx);
    const int32_t n_threads_batch = llama_n_threads_batch(c.ctx);
    llama_set_n_threads(c.ctx, 1, 1);
    const llama_token token = std::max(0, llama_vocab_bos(c.model->vocab));
    c.check_tokens(&token, 1);
    c.compute(&token, 1, false);
    c.forget();
    llama_set_n_threads(c.ctx, n_threads, n_threads_batch);
}

} // namespace

//
// pc_context
//

pc_context::~pc_context() {
    if (ctx != nullptr) {
        llama_free(ctx);
    }
    if (pool_batch != nullptr && pool_batch != pool) {
        ggml_threadpool_free(pool_batch);
    }
    if (pool != nullptr) {
        ggml_threadpool_free(pool);
    }
}

bool pc_context::stop_requested() {
    if (cancelled.load(std::memory_order_relaxed)) {
        return true;
    }
    if (poll == nullptr || (++n_unpolled & 7) != 0) {
        return false;
    }
    const auto now = std::chrono::steady_clock::now();
    if (now < next_poll) {
        return false;
    }
    next_poll = now + POLL_INTERVAL;
    if (poll(user) != 0) {
        cancelled = true;
        return true;
    }
    return false;
}

void pc_context::forget() {
    llama_memory_clear(llama_get_memory(ctx), true);
    history.clear();
    checkpoints.clear();
    logits_ready = false;
    pending = LLAMA_TOKEN_NULL;
    n_beyond = 0;
    n_fresh = 0;
    draft_state.clear();
}

bool pc_context::cuttable(size_t n_tokens) const {
    if (n_tokens == history.size() || n_tokens == 0) {
        return true;
    }
    if (model->recurrent) {
        const size_t n_back = n_beyond + history.size() - n_tokens;
        return n_back <= n_fresh || (!draft_state.empty() && n_tokens > draft_start);
    }
    // a sliding window forgets what lies behind it: the window before the cut must still be there
    const int32_t window = llama_model_n_swa(model->model);
    if (window > 0) {
        const int64_t first = llama_memory_seq_pos_min(llama_get_memory(ctx), 0);
        return first <= std::max<int64_t>(0, (int64_t) n_tokens - window);
    }
    return true;
}

void pc_context::cut(size_t n_tokens) {
    if (n_tokens == history.size()) {
        return;
    }
    if (n_tokens == 0) {
        forget();
        return;
    }
    while (!checkpoints.empty() && checkpoints.back().n_tokens > n_tokens) {
        checkpoints.pop_back();
    }
    n_beyond += history.size() - n_tokens;
    history.resize(n_tokens);
    logits_ready = false;
}

void pc_context::settle() {
    if (n_beyond == 0) {
        return;
    }
    stopwatch watch(spec.rollback_s);
    llama_memory_t memory = llama_get_memory(ctx);
    const bool by_snapshot = !model->recurrent || n_beyond <= n_fresh;
    n_beyond = 0;
    n_fresh = 0;
    if (by_snapshot && llama_memory_seq_rm(memory, 0, (llama_pos) history.size(), -1)) {
        return;
    }
    // back to the state before the draft, and once more over what was kept of it
    std::vector<llama_token> again = history;
    const std::vector<uint8_t> state = std::move(draft_state);
    draft_state.clear();
    if (!state.empty() &&
        llama_state_seq_set_data_ext(ctx, state.data(), state.size(), 0, LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY) != 0 &&
        llama_memory_seq_rm(memory, 0, (llama_pos) draft_start, -1)) {
        again.erase(again.begin(), again.begin() + (std::ptrdiff_t) draft_start);
        history.resize(draft_start);
    } else {
        const llama_token chosen = pending;
        forget();
        pending = chosen;
    }
    for (size_t done = 0; done < again.size(); done += n_batch) {
        compute(again.data() + done, std::min<size_t>(n_batch, again.size() - done), false);
    }
}

std::vector<uint8_t> pc_context::recurrent_state() {
    const llama_state_seq_flags flags = LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY;
    n_fresh = 0; // writing brings the state up to date
    std::vector<uint8_t> state(llama_state_seq_get_size_ext(ctx, 0, flags));
    if (llama_state_seq_get_data_ext(ctx, state.data(), state.size(), 0, flags) != state.size()) {
        state.clear();
    }
    return state;
}

void pc_context::save_checkpoint() {
    if (!model->recurrent || n_checkpoints_max == 0 || history.empty() || !logits_ready) {
        return;
    }
    if (!checkpoints.empty() && checkpoints.back().n_tokens == history.size()) {
        return;
    }
    checkpoint c;
    c.n_tokens = history.size();
    c.state = recurrent_state();
    if (c.state.empty()) {
        return; // a shortcut less, nothing else
    }
    const float * logits = last_logits();
    c.logits.assign(logits, logits + model->n_vocab);
    if (checkpoints.size() >= n_checkpoints_max) {
        checkpoints.pop_front();
    }
    checkpoints.push_back(std::move(c));
}

bool pc_context::restore(size_t n_at_most, size_t n_prompt) {
    while (!checkpoints.empty() && checkpoints.back().n_tokens > n_at_most) {
        checkpoints.pop_back();
    }
    if (checkpoints.empty()) {
        return false;
    }
    const checkpoint & c = checkpoints.back();
    const llama_state_seq_flags flags = LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY;
    if (llama_state_seq_set_data_ext(ctx, c.state.data(), c.state.size(), 0, flags) == 0 ||
        !llama_memory_seq_rm(llama_get_memory(ctx), 0, (llama_pos) c.n_tokens, -1)) {
        forget();
        return false;
    }
    history.resize(c.n_tokens);
    logits_ready = false;
    n_beyond = 0;
    n_fresh = 0;
    draft_state.clear();
    if (c.n_tokens == n_prompt) {
        // nothing is left to compute: put the logits where the sampler looks for them
        std::copy(c.logits.begin(), c.logits.end(), llama_get_logits_ith(ctx, -1));
        logits_ready = true;
        logits_row = -1;
    }
    return true;
}

void pc_context::check_tokens(const llama_token * tokens, size_t n_tokens) const {
    if (n_tokens > 0) {
        required(tokens, "tokens");
    }
    for (size_t i = 0; i < n_tokens; i++) {
        if (tokens[i] < 0 || tokens[i] >= model->n_vocab) {
            throw error(PC_BAD_ARGUMENT, "token id " + std::to_string(tokens[i]) + " at position " + std::to_string(i) +
                                             " is not in the vocabulary of " + std::to_string(model->n_vocab));
        }
    }
}

void pc_context::check_room(size_t n_tokens) const {
    if (n_tokens > n_ctx) {
        throw error(PC_CONTEXT_FULL, std::to_string(n_tokens) + " tokens do not fit into a context of " + std::to_string(n_ctx));
    }
}

// The tokens, and behind them a block of masks, in one pass.
static int32_t compute_ahead(llama_context * ctx, const llama_batch & tokens, size_t n_ahead) {
    std::unique_ptr<llama_batch_ext, decltype(&llama_batch_ext_free)> batch(llama_batch_ext_init(ctx), llama_batch_ext_free);
    const llama_token mask = llama_vocab_mask(llama_model_get_vocab(llama_get_model(ctx)));
    const auto n_tokens = (size_t) tokens.n_tokens;
    for (size_t i = 0; i < n_tokens + n_ahead; i++) {
        const llama_pos pos = tokens.pos[0] + (llama_pos) i;
        const int32_t row = llama_batch_ext_add_token(batch.get(), 0, i < n_tokens ? tokens.token[i] : mask);
        if (row < 0 || !llama_batch_ext_set_pos(batch.get(), row, &pos) ||
            !llama_batch_ext_set_output_logits(batch.get(), row, true)) {
            return -1;
        }
    }
    return llama_clover_process_ahead(ctx, batch.get(), (uint32_t) n_ahead);
}

void pc_context::compute(const llama_token * tokens, size_t n_tokens, bool every_row, size_t n_ahead) {
    if (stop_requested()) {
        throw error(PC_CANCELLED, "the call was stopped");
    }
    settle();
    llama_batch batch = llama_batch_init((int32_t) n_tokens, 0, 1);
    const auto give_back = [](llama_batch * b) {
        llama_batch_free(*b);
    };
    std::unique_ptr<llama_batch, decltype(give_back)> owner(&batch, give_back);
    batch.n_tokens = (int32_t) n_tokens;
    for (size_t i = 0; i < n_tokens; i++) {
        batch.token[i] = tokens[i];
        batch.pos[i] = (llama_pos) (history.size() + i);
        batch.n_seq_id[i] = 1;
        batch.seq_id[i][0] = 0;
        batch.logits[i] = every_row || i + 1 == n_tokens ? 1 : 0;
    }
    clear_error_lines();
    int rc = 0;
    try {
        rc = n_ahead > 0 ? compute_ahead(ctx, batch, n_ahead) : llama_decode(ctx, batch);
    } catch (...) {
        forget();
        throw;
    }
    if (rc == 0) {
        llama_synchronize(ctx);
        history.insert(history.end(), tokens, tokens + n_tokens);
        logits_ready = true;
        logits_row = -1;
        kept_logits.clear();
        n_fresh = std::min<size_t>(n_rs_seq, n_tokens - 1);
        draft_state.clear();
        return;
    }
    const std::string why = telling_error_line();
    const bool no_memory = error_lines_say_out_of_memory();
    forget(); // a part of the pass may have been written
    if (rc == 2) {
        throw error(PC_CANCELLED, "the call was stopped");
    }
    if (rc == 1) {
        throw error(PC_CONTEXT_FULL, "the context has no room left for " + std::to_string(n_tokens) + " tokens");
    }
    throw error(no_memory ? PC_OUT_OF_MEMORY : PC_DECODE_FAILED,
                "llama.cpp could not compute the tokens (code " + std::to_string(rc) + ")" + (why.empty() ? "" : ": " + why));
}

void pc_context::append(const llama_token * tokens, size_t n_tokens) {
    for (size_t done = 0; done < n_tokens;) {
        const size_t n = std::min<size_t>(n_batch, n_tokens - done);
        compute(tokens + done, n, false);
        done += n;
        stats.n_read += n;
    }
}

const float * pc_context::last_logits() {
    const float * logits = logits_ready ? llama_get_logits_ith(ctx, logits_row) : nullptr;
    if (logits == nullptr) {
        throw error(PC_BAD_ARGUMENT, "there are no logits: read a prompt first");
    }
    return logits;
}

llama_token pc_context::choose(pc_sampler & sampler, int32_t row) {
    const llama_token best = argmax(llama_get_logits_ith(ctx, row), (size_t) model->n_vocab);
    if (sampler.argmax) {
        return best;
    }
    const llama_token chosen = common_sampler_sample(sampler.sampler, ctx, row);
    common_sampler_accept(sampler.sampler, chosen, true);
    return chosen;
}

//
// interface
//

extern "C" int pc_context_create(pc_model * model, const pc_context_params * params, pc_context ** out) {
    return guarded([&] {
        required(model, "model");
        const pc_context_params & p = *required(params, "params");
        *required(out, "out") = nullptr;
        clear_error_lines();

        auto c = std::make_unique<pc_context>();
        c->model = model;
        c->poll = p.poll;
        c->user = p.user;
        c->n_checkpoints_max = (size_t) std::max(0, p.n_checkpoints);
        c->n_rs_seq = model->recurrent ? p.n_rs_seq : 0;

        const uint32_t n_ctx = p.n_ctx > 0 ? p.n_ctx : (uint32_t) llama_model_n_ctx_train(model->model);
        const uint32_t n_batch = std::min(std::max(p.n_batch, 1u), n_ctx);
        const size_t n_rows = MAX_LOGITS_BYTES / (sizeof(float) * (size_t) std::max(model->n_vocab, 1));

        llama_context_params lp = llama_context_default_params();
        lp.n_ctx = n_ctx;
        lp.n_batch = n_batch;
        lp.n_ubatch = std::min(std::max(p.n_ubatch, 1u), n_batch);
        lp.n_seq_max = 1;
        lp.n_rs_seq = c->n_rs_seq;
        lp.rs_snapshots = p.rs_snapshots != 0;
        c->snapshots = c->n_rs_seq > 0 && p.rs_snapshots != 0;
        if (lp.n_rs_seq > 0 && lp.n_ubatch < lp.n_rs_seq + 2) {
            throw error(PC_BAD_ARGUMENT, "with n_rs_seq=" + std::to_string(lp.n_rs_seq) + " a batch must have " +
                                             std::to_string(lp.n_rs_seq + 2) +
                                             " tokens: n_ubatch, n_batch and n_ctx must each be " + "at least that");
        }
        lp.n_outputs_max = (uint32_t) std::min<size_t>(n_batch, std::max<size_t>(n_rows, 32));
        lp.n_threads = p.n_threads;
        lp.n_threads_batch = p.n_threads_batch;
        lp.flash_attn_type = (llama_flash_attn_type) std::min(std::max(p.flash_attn, -1), 1);
        lp.type_k = cache_type(p.cache_type_k, "cache_type_k");
        lp.type_v = cache_type(p.cache_type_v, "cache_type_v");
        lp.offload_kqv = p.offload_kqv != 0;
        lp.no_perf = true;
        lp.abort_callback = on_abort;
        lp.abort_callback_data = c.get();
        lp.cb_eval = p.imatrix != nullptr ? collect_imatrix : nullptr;
        lp.cb_eval_user_data = p.imatrix;

        c->ctx = llama_init_from_model(model->model, lp);
        if (c->ctx == nullptr) {
            const std::string why = telling_error_line();
            throw error(error_lines_say_out_of_memory() ? PC_OUT_OF_MEMORY : PC_BAD_ARGUMENT,
                        why.empty() ? "llama.cpp could not create a context and gave no reason" : why);
        }
        if (llama_get_memory(c->ctx) == nullptr) {
            throw error(PC_BAD_ARGUMENT, "this model has no memory of earlier tokens, so it cannot generate text");
        }
        c->n_ctx = n_ctx; // llama.cpp may round its own up
        c->n_batch = n_batch;
        c->n_outputs = lp.n_outputs_max;
        if (p.n_threads > 1 || p.n_threads_batch > 1) {
            try_one_token(*c);
        }
        setup_threads(*c, p);
        *out = c.release();
    });
}

extern "C" void pc_context_free(pc_context * context) {
    delete context;
}

extern "C" int pc_context_get_info(const pc_context * context, pc_context_info * out) {
    return guarded([&] {
        required(context, "context");
        required(out, "out");
        *out = {};
        out->n_ctx = context->n_ctx;
        out->n_batch = context->n_batch;
        out->n_ubatch = llama_n_ubatch(context->ctx);
        out->n_threads = llama_n_threads(context->ctx);
        out->n_threads_batch = llama_n_threads_batch(context->ctx);
        out->n_outputs = context->n_outputs;
    });
}

extern "C" int pc_context_cancel(pc_context * context) {
    return guarded([&] { required(context, "context")->cancelled = true; });
}

extern "C" int pc_context_arm(pc_context * context) {
    return guarded([&] { required(context, "context")->cancelled = false; });
}

extern "C" int pc_context_prompt(pc_context * context, const int32_t * tokens, size_t n_tokens, size_t n_stable) {
    return guarded([&] {
        pc_context & c = *required(context, "context");
        c.check_tokens(tokens, n_tokens);
        if (n_tokens == 0) {
            throw error(PC_BAD_ARGUMENT, "the prompt has no tokens");
        }
        c.check_room(n_tokens);
        c.pending = LLAMA_TOKEN_NULL;
        c.stats = {};
        c.spec = {};
        c.stats.n_prompt = n_tokens;
        c.stats.first_difference = -1;
        stopwatch watch(c.stats.prompt_s);

        const size_t n_common =
            (size_t) (std::mismatch(c.history.begin(), c.history.end(), tokens, tokens + n_tokens).first - c.history.begin());
        const bool complete = n_common == n_tokens && c.history.size() == n_tokens && c.logits_ready;
        if (!complete) {
            // the last token is computed in any case: its logits are needed
            const size_t n_keep = std::min(n_common, n_tokens - 1);
            if (c.cuttable(n_keep)) {
                c.cut(n_keep);
            } else if (!c.restore(n_common, n_tokens)) {
                c.stats.first_difference = (int64_t) n_common;
                c.forget();
            }
        }
        c.stats.n_reused = c.history.size();
        if (c.model->recurrent && n_stable < n_tokens && n_stable > c.history.size()) {
            c.append(tokens + c.history.size(), n_stable - c.history.size());
            c.settle();
            c.save_checkpoint();
        }
        c.append(tokens + c.history.size(), n_tokens - c.history.size());
        c.settle();
        c.save_checkpoint();
    });
}

extern "C" int pc_context_step(pc_context * context, pc_sampler * sampler, int32_t * token, int32_t * is_end) {
    return guarded([&] {
        pc_context & c = *required(context, "context");
        required(sampler, "sampler");
        required(token, "token");
        required(is_end, "is_end");
        if (c.pending != LLAMA_TOKEN_NULL) {
            c.check_room(c.history.size() + 1);
            const llama_token next = c.pending;
            c.pending = LLAMA_TOKEN_NULL;
            stopwatch watch(c.stats.decode_s);
            c.compute(&next, 1, false);
            c.stats.n_decoded++;
        }
        stopwatch watch(c.stats.sample_s);
        c.last_logits();
        const llama_token chosen = c.choose(*sampler, c.logits_row);
        c.pending = chosen;
        c.stats.n_sampled++;
        *token = chosen;
        *is_end = llama_vocab_is_eog(c.model->vocab, chosen) ? 1 : 0;
    });
}

// Computes tokens from an empty memory and hands each row of logits to `take`.
template <typename F> static void every_row(pc_context & c, const int32_t * tokens, size_t n_tokens, F && take) {
    c.check_tokens(tokens, n_tokens);
    c.check_room(n_tokens);
    c.forget();
    c.stats = {};
    c.stats.n_prompt = n_tokens;
    c.stats.first_difference = -1;
    stopwatch watch(c.stats.prompt_s);
    for (size_t done = 0; done < n_tokens;) {
        const size_t n = std::min<size_t>(c.n_outputs, n_tokens - done);
        c.compute(tokens + done, n, true);
        c.stats.n_read += n;
        for (size_t i = 0; i < n; i++) {
            take(done + i, llama_get_logits_ith(c.ctx, (int32_t) i));
        }
        done += n;
    }
}

extern "C" int pc_context_logits(pc_context * context, const int32_t * tokens, size_t n_tokens, float * out) {
    return guarded([&] {
        pc_context & c = *required(context, "context");
        if (n_tokens > 0) {
            required(out, "out");
        }
        const size_t n_vocab = (size_t) c.model->n_vocab;
        every_row(c, tokens, n_tokens,
                  [&](size_t row, const float * logits) { std::copy_n(logits, n_vocab, out + row * n_vocab); });
    });
}

extern "C" int pc_context_last_logits(pc_context * context, float * out) {
    return guarded([&] {
        pc_context & c = *required(context, "context");
        const float * logits = c.last_logits();
        std::copy_n(logits, c.model->n_vocab, required(out, "out"));
    });
}

extern "C" int pc_context_score(pc_context * context, const int32_t * tokens, size_t n_tokens, float * out) {
    return guarded([&] {
        pc_context & c = *required(context, "context");
        if (n_tokens < 2) {
            throw error(PC_BAD_ARGUMENT, "a text of fewer than 2 tokens has nothing to score");
        }
        required(out, "out");
        const size_t n_vocab = (size_t) c.model->n_vocab;
        every_row(c, tokens, n_tokens, [&](size_t row, const float * logits) {
            if (row + 1 == n_tokens) {
                return;
            }
            const float best = largest(logits, n_vocab);
            double sum = 0;
            for (size_t i = 0; i < n_vocab; i++) {
                sum += std::exp((double) logits[i] - best);
            }
            out[row] = (float) ((double) logits[tokens[row + 1]] - best - std::log(sum));
        });
    });
}

extern "C" int pc_context_clear(pc_context * context) {
    return guarded([&] {
        pc_context & c = *required(context, "context");
        c.forget();
        c.stats = {};
        c.stats.first_difference = -1;
        c.spec = {};
    });
}

extern "C" int pc_context_tokens(const pc_context * context, int32_t * out, size_t capacity, size_t * n_tokens) {
    return guarded([&] {
        const auto & history = required(context, "context")->history;
        *required(n_tokens, "n_tokens") = history.size();
        std::copy_n(history.begin(), std::min(capacity, history.size()), out);
    });
}

extern "C" int pc_context_get_stats(const pc_context * context, pc_stats * out) {
    return guarded([&] { *required(out, "out") = required(context, "context")->stats; });
}
