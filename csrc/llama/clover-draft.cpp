#include "clover-draft.h"

#include "llama-clover.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <stdexcept>

const char * clover_draft_params_error(const clover_draft_params & p) {
    if (p.n_max < 1 || p.n_max >= (int32_t) CLOVER_BLOCK_MAX) {
        return "the number of tokens to draft must be between 1 and 31";
    }
    if (p.n_rows != 0 && (p.n_rows < 2 || p.n_rows > (int32_t) CLOVER_BLOCK_MAX)) {
        return "the number of rows of a draft's block must be 0 or between 2 and 32";
    }
    if (p.n_rows != 0 && p.n_rows <= p.n_max) {
        return "the rows of a draft's block must be at least one more than the tokens of a draft";
    }
    if (p.n_steps < 1 || p.n_steps > (int32_t) CLOVER_BLOCK_MAX) {
        return "the number of steps of a draft must be between 1 and 32";
    }
    if (p.n_steps > p.n_max) {
        return "the steps of a draft must be at most as many as its tokens";
    }
    if (!(p.p_min >= 0.0f && p.p_min <= 1.0f)) {
        return "the least probability of a drafted token must be between 0 and 1";
    }
    return nullptr;
}

const char * clover_relaxed_error(const clover_relaxed & relaxed) {
    if (!(relaxed.ratio >= 0.0f && relaxed.ratio <= 1.0f)) {
        return "accept_ratio must be between 0 and 1";
    }
    if (!(relaxed.delta >= 0.0f && relaxed.delta <= 1.0f)) {
        return "accept_delta must be between 0 and 1";
    }
    return nullptr;
}

float clover_number_from_text(const std::string & text) {
    size_t n_read = 0;
    const float value = std::stof(text, &n_read);
    if (n_read != text.size()) {
        throw std::invalid_argument("'" + text + "' is not a number");
    }
    return value;
}

clover_best clover_best_token(const float * logits, int32_t n_vocab, llama_token mask, bool with_probability) {
    clover_best best;
    float top = -INFINITY;
    for (llama_token id = 0; id < n_vocab; ++id) {
        if (logits[id] > top && id != mask) {
            top = logits[id];
            best.id = id;
        }
    }
    if (with_probability && best.id != LLAMA_TOKEN_NULL) {
        double sum = 0.0;
        for (llama_token id = 0; id < n_vocab; ++id) {
            sum += id == mask ? 0.0 : std::exp(double(logits[id]) - double(top));
        }
        best.p = float(1.0 / sum);
    }
    return best;
}

bool clover_accepts(const float * logits, int32_t n_vocab, llama_token token, const clover_relaxed & relaxed) {
    if (token < 0 || token >= n_vocab) {
        return false;
    }
    const auto top = std::max_element(logits, logits + n_vocab);
    if (token == (llama_token) (top - logits)) {
        return true;
    }
    constexpr int N_CANDIDATES = 10;
    const float own = logits[token];
    if (!relaxed.on() || std::count_if(logits, logits + n_vocab, [own](float x) { return x > own; }) >= N_CANDIDATES) {
        return false;
    }
    double sum = 0.0;
    double weighted = 0.0; // sum of e^x * x, with x relative to the top
    for (int32_t id = 0; id < n_vocab; ++id) {
        const double x = double(logits[id]) - double(*top);
        const double e = std::exp(x);
        sum += e;
        weighted += e > 0.0 ? e * x : 0.0;
    }
    const double p1 = 1.0 / sum;
    const double p = std::exp(double(own) - double(*top)) / sum;
    const double entropy = std::log(sum) - weighted / sum;
    return p >= double(relaxed.ratio) * p1 || p >= p1 - double(relaxed.delta) * (1.0 - std::exp(-entropy));
}

// Rows of one request's block: the last known token, then n_rows - 1 that are masked at first.
struct clover_draft_block {
    std::vector<llama_token> rows;
    std::vector<clover_best> best; // of the rows to draft, [n]
    std::vector<int32_t> masked;   // indices into best that are not fixed yet
};

int32_t clover_draft(llama_context * ctx, std::vector<clover_draft_request> & requests, int32_t n,
                     const clover_draft_params & params) {
    const llama_vocab * vocab = llama_model_get_vocab(llama_get_model(ctx));
    const llama_token mask = llama_vocab_mask(vocab);
    const int32_t n_vocab = llama_vocab_n_tokens(vocab);
    const int32_t n_rows = std::max(n + 1, params.n_rows);
    const int32_t n_steps = std::min(params.n_steps, n);
    const bool with_probability = n_steps > 1 || params.p_min > 0.0f;
    // row of the block that is about the first drafted position
    const int32_t first = llama_clover_get_block_params(ctx).shift_logits ? 0 : 1;

    std::vector<clover_draft_block> blocks(requests.size());
    for (size_t r = 0; r < requests.size(); ++r) {
        requests[r].draft.clear();
        blocks[r].rows.assign(n_rows, mask);
        blocks[r].rows[0] = requests[r].last;
        blocks[r].best.resize(n);
        blocks[r].masked.resize(n);
        std::iota(blocks[r].masked.begin(), blocks[r].masked.end(), 0);
    }

    std::unique_ptr<llama_batch_ext, decltype(&llama_batch_ext_free)> batch(llama_batch_ext_init(ctx), llama_batch_ext_free);
    for (int32_t step = 0; step < n_steps; ++step) {
        llama_batch_ext_clear(batch.get());
        for (size_t r = 0; r < requests.size(); ++r) {
            for (int32_t t = 0; t < n_rows; ++t) {
                const llama_pos pos = requests[r].pos + t;
                const int32_t row = llama_batch_ext_add_token(batch.get(), requests[r].seq_id, blocks[r].rows[t]);
                if (row < 0 || !llama_batch_ext_set_pos(batch.get(), row, &pos)) {
                    return -1;
                }
                llama_batch_ext_set_output_logits(batch.get(), row, t >= first && t < first + n);
            }
        }
        if (const int32_t rc = llama_clover_process_block(ctx, batch.get())) {
            return rc;
        }
        for (size_t r = 0; r < requests.size(); ++r) {
            clover_draft_block & block = blocks[r];
            for (const int32_t i : block.masked) {
                const float * logits = llama_get_logits_ith(ctx, int32_t(r) * n_rows + first + i);
                block.best[i] = clover_best_token(logits, n_vocab, mask, with_probability);
            }
            // an equal part in each step, the surest first
            const int32_t n_left = int32_t(block.masked.size());
            const int32_t n_fixed = (n_left + n_steps - step - 1) / (n_steps - step);
            std::stable_sort(block.masked.begin(), block.masked.end(),
                             [&](int32_t a, int32_t b) { return block.best[a].p > block.best[b].p; });
            for (int32_t i = 0; i < n_fixed; ++i) {
                block.rows[block.masked[i] + 1] = block.best[block.masked[i]].id;
            }
            block.masked.erase(block.masked.begin(), block.masked.begin() + n_fixed);
        }
    }
    for (size_t r = 0; r < requests.size(); ++r) {
        for (const clover_best & best : blocks[r].best) {
            if (best.id == LLAMA_TOKEN_NULL) {
                return CLOVER_DRAFT_NO_LOGITS;
            }
            if (best.p < params.p_min) {
                break;
            }
            requests[r].draft.push_back(best.id);
        }
    }
    return 0;
}
