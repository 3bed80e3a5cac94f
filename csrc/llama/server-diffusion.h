#ifndef SERVER_DIFFUSION_H
#define SERVER_DIFFUSION_H

// Block diffusion in a slot of the server: blocks lie on a grid from the first token of the text on, each pass decides the
// sure rows of one, and a finished block is computed once more, causally. Greedy.

#include "../../src/clover-draft.h"
#include "../../src/llama-clover.h"
#include "server-common.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

// The field "diffusion" of a request: true, or an object with these names.
struct server_diffusion_params {
    bool on = false;
    float threshold = 0.95f;
    int32_t block = 0;          // rows; 0: as the model's file says
    int32_t max_steps = 0;      // passes for a block, the last of which decides what is left; 0: as many as it takes
    bool stream_blocks = false; // in a stream, the block after each pass

    // Throws std::invalid_argument for what it cannot be, also beside the request's other fields. own_budget: tokens of a
    // thought that the server allows by itself; as its sampling, that is for requests that go token by token.
    static server_diffusion_params from_request(const json & body, int32_t own_budget) {
        server_diffusion_params params;
        const json & value = body.at("diffusion");
        if (value.is_null() || value.is_boolean()) {
            params.on = value.is_boolean() && value.get<bool>();
        } else if (value.is_object()) {
            params.on = true;
            for (const auto & [name, given] : value.items()) {
                params.set(name, given);
            }
        } else {
            throw std::invalid_argument("diffusion must be true, false or an object");
        }
        if (params.on) {
            refuse_others(body, own_budget);
        }
        return params;
    }

    json to_json() const {
        return on ? json{ { "threshold", threshold },
                          { "block", block > 0 ? json(block) : json(nullptr) },
                          { "max_steps", max_steps > 0 ? json(max_steps) : json(nullptr) },
                          { "stream_blocks", stream_blocks } }
                  : json(false);
    }

  private:
    void set(const std::string & name, const json & given) {
        if (given.is_null() && (name == "threshold" || name == "stream_blocks")) {
            return;
        }
        if (name == "threshold") {
            threshold = given.is_number() ? given.get<float>() : -1.0f;
            if (!(threshold >= 0.0f && threshold <= 1.0f)) {
                throw std::invalid_argument("diffusion.threshold must be a number from 0 to 1");
            }
        } else if (name == "block") {
            block = rows(name, given);
        } else if (name == "max_steps") {
            max_steps = rows(name, given);
        } else if (name == "stream_blocks") {
            if (!given.is_boolean()) {
                throw std::invalid_argument("diffusion.stream_blocks must be true or false");
            }
            stream_blocks = given.get<bool>();
        } else {
            throw std::invalid_argument("diffusion has no field " + safe_json_to_str(json(name.substr(0, 40))) +
                                        ": it has threshold, block, max_steps and stream_blocks");
        }
    }

    static int32_t rows(const std::string & name, const json & given) {
        if (given.is_null()) {
            return 0;
        }
        const double n = given.is_number_integer() ? given.get<double>() : 0.0;
        if (!(n >= 1.0 && n <= double(CLOVER_BLOCK_MAX))) {
            throw std::invalid_argument("diffusion." + name + " must be an integer from 1 to " +
                                        std::to_string(CLOVER_BLOCK_MAX));
        }
        return int32_t(n);
    }

    // What would change a greedy answer, or needs tokens one by one.
    static void refuse_others(const json & body, int32_t own_budget) {
        const auto number = [&](const char * name, double otherwise) {
            return body.contains(name) && body.at(name).is_number() ? body.at(name).get<double>() : otherwise;
        };
        const auto refuse = [](const std::string & name) {
            throw std::invalid_argument(name + " cannot be combined with diffusion: leave one of them out");
        };
        if (number("temperature", 0.0) > 0.0) {
            throw std::invalid_argument("temperature: block diffusion is greedy, so it must be 0 or left out");
        }
        if (number("n_probs", 0.0) != 0.0) {
            refuse("logprobs (n_probs)");
        }
        for (const char * name : { "presence_penalty", "frequency_penalty", "dry_multiplier", "logprobs", "top_logprobs",
                                   "mirostat", "xtc_probability", "dynatemp_range" }) {
            if (number(name, 0.0) != 0.0) {
                refuse(name);
            }
        }
        for (const char * name : { "repeat_penalty", "typical_p" }) {
            if (number(name, 1.0) != 1.0) {
                refuse(name);
            }
        }
        for (const char * name : { "top_n_sigma", "adaptive_target" }) {
            if (number(name, -1.0) > 0.0) {
                refuse(name);
            }
        }
        for (const char * name : { "n", "n_cmpl" }) {
            if (number(name, 1.0) > 1.0) {
                refuse(name);
            }
        }
        const double budget = number("reasoning_budget_tokens", -1.0);
        if (budget >= 0.0 && budget != (double) own_budget) {
            refuse("a thinking budget (reasoning_budget_tokens)");
        }
        for (const char * name : { "logprobs", "ignore_eos" }) {
            if (body.contains(name) && body.at(name).is_boolean() && body.at(name).get<bool>()) {
                refuse(name);
            }
        }
        if (body.contains("logit_bias") && !body.at("logit_bias").empty()) {
            refuse("logit_bias");
        }
        // a grammar that waits for a call's first tag does not hold the text to anything
        const bool lazy = body.contains("grammar_lazy") && body.at("grammar_lazy") == true;
        const bool grammar =
            body.contains("grammar") && body.at("grammar").is_string() && !body.at("grammar").get<std::string>().empty();
        if (grammar && !lazy) {
            throw std::invalid_argument(
                "block diffusion cannot be held to a schema, a grammar or a call: leave diffusion out, or "
                "response_format, json_schema, grammar or tool_choice");
        }
        if (body.contains("json_schema") && !body.at("json_schema").is_null()) {
            refuse("json_schema");
        }
    }
};

class server_diffusion {
  public:
    static constexpr int32_t N_OUTPUTS = CLOVER_BLOCK_MAX; // rows of a pass for blocks

    bool on() const { return params.on; }
    bool streams() const { return params.stream_blocks; }
    // Tokens at the end of the prompt that the first block holds.
    int32_t n_tail() const { return (int32_t) tail.size(); }
    std::string tail_text(llama_context * ctx) const {
        std::string text;
        for (const llama_token id : tail) {
            text += common_token_to_piece(ctx, id, true);
        }
        return text;
    }

    // Takes the rest of the prompt behind its last whole block off it. Returns what is wrong; empty: nothing.
    std::string start(const server_diffusion_params & wanted, llama_context * ctx, server_tokens & prompt, int32_t n_ctx) {
        const std::string missing = llama_clover_block_missing(llama_get_model(ctx));
        if (!missing.empty()) {
            return "block diffusion is not possible with this model: " + missing;
        }
        if (prompt.has_mtmd) {
            return "block diffusion is for text alone";
        }
        const clover_block_params & block = llama_clover_get_block_params(ctx);
        size = (size_t) (wanted.block > 0 ? wanted.block : (int32_t) block.block_length);
        if (size > llama_n_ubatch(ctx)) {
            return "block diffusion needs " + std::to_string(size) + " rows in one pass, and -ub is " +
                   std::to_string(llama_n_ubatch(ctx)) +
                   ": ask for fewer with diffusion.block, or start the server with a larger -ub";
        }
        shift = block.shift_logits;
        params = wanted;
        if (prompt.size() < (size_t) n_ctx) { // what is too long is refused as ever
            const size_t n_whole = prompt.size() / size * size;
            known = prompt.get_tokens();
            known.erase(known.begin(), known.begin() + (std::ptrdiff_t) n_whole);
            tail = known;
            prompt.keep_first(n_whole);
        }
        return "";
    }

    // The text so far is computed; logits: of its last token, nullptr without one. The next block has so much room at most.
    void begin_block(const float * logits, size_t room, const llama_model * model) {
        const llama_vocab * vocab = llama_model_get_vocab(model);
        if (shift && logits != nullptr) {
            before.assign(logits, logits + llama_vocab_n_tokens(vocab));
        }
        mask = llama_vocab_mask(vocab);
        rows = std::exchange(known, {});
        n_known = rows.size();
        rows.resize(std::min(size, room), mask);
        masked.assign(rows.size(), 1);
        std::fill_n(masked.begin(), n_known, 0);
        n_steps = 0;
    }

    bool wants_pass() const { return !rows.empty() && n_left() > 0; }
    bool finished() const { return !rows.empty() && n_left() == 0; }

    // The tokens of a finished block that are new; take_rows() has what the memory still lacks.
    llama_tokens new_tokens() const { return llama_tokens(rows.begin() + (std::ptrdiff_t) n_known, rows.end()); }
    size_t n_rows() const { return rows.size(); }
    llama_tokens take_rows() { return std::exchange(rows, {}); }

    // The new rows as text, null where they are not decided.
    json view(llama_context * ctx) const {
        json out = json::array();
        for (size_t t = n_known; t < rows.size(); t++) {
            const std::string piece = masked[t] ? "" : common_token_to_piece(ctx, rows[t], true);
            const bool whole = validate_utf8(piece) == piece.size(); // a character may need several tokens
            out.push_back(masked[t] ? json(nullptr) : json(whole ? piece : "\xEF\xBF\xBD"));
        }
        return out;
    }

    // One pass for the blocks of several sequences, which follow `pos` tokens each. Blocks of other lengths than the first
    // one's are left for the next time, and so is what does not fit.
    class pass {
      public:
        pass(llama_context * ctx, size_t n_most) : ctx(ctx), n_most(n_most) {}

        bool add(llama_seq_id seq, llama_pos pos, server_diffusion & block) {
            const size_t most = std::min<size_t>(N_OUTPUTS, llama_n_ubatch(ctx));
            const size_t n = block.rows.size();
            if (!members.empty() &&
                (members.size() >= n_most || n != members[0].block->rows.size() || (members.size() + 1) * n > most)) {
                return false;
            }
            members.push_back({ seq, pos, &block });
            return true;
        }

        bool empty() const { return members.empty(); }

        // Returns as llama_clover_process_block(), or CLOVER_DRAFT_NO_LOGITS.
        int32_t run() {
            std::unique_ptr<llama_batch_ext, decltype(&llama_batch_ext_free)> batch(llama_batch_ext_init(ctx),
                                                                                    llama_batch_ext_free);
            for (const member & m : members) {
                for (size_t t = 0; t < m.block->rows.size(); t++) {
                    const llama_pos pos = m.pos + (llama_pos) t;
                    const int32_t row = llama_batch_ext_add_token(batch.get(), m.seq, m.block->rows[t]);
                    if (row < 0 || !llama_batch_ext_set_pos(batch.get(), row, &pos) ||
                        !llama_batch_ext_set_output_logits(batch.get(), row, true)) {
                        return -1;
                    }
                }
            }
            if (const int32_t rc = llama_clover_process_block(ctx, batch.get())) {
                return rc;
            }
            llama_synchronize(ctx);
            for (size_t i = 0; i < members.size(); i++) {
                if (!members[i].block->decide(ctx, (int32_t) (i * members[i].block->rows.size()))) {
                    return CLOVER_DRAFT_NO_LOGITS;
                }
            }
            return 0;
        }

      private:
        struct member {
            llama_seq_id seq;
            llama_pos pos;
            server_diffusion * block;
        };

        llama_context * ctx;
        const size_t n_most;
        std::vector<member> members;
    };

    uint64_t n_fixed = 0; // rows that passes have decided
    uint64_t turn = 0;    // of the server's, in which it was last computed

  private:
    size_t n_left() const { return (size_t) std::count(masked.begin(), masked.end(), 1); }

    // Decides all masked rows that are more probable than the threshold, and at least the surest.
    bool decide(llama_context * ctx, int32_t first) {
        const int32_t n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(ctx)));
        const float threshold = ++n_steps == params.max_steps ? 0.0f : params.threshold;
        std::vector<clover_best> best(rows.size());
        size_t surest = rows.size();
        for (size_t t = 0; t < rows.size(); t++) {
            if (masked[t] == 0) {
                continue;
            }
            const bool from_before = shift && t == 0;
            if (from_before && before.empty()) {
                return false;
            }
            const float * logits = from_before ? before.data() : llama_get_logits_ith(ctx, first + (int32_t) t - (shift ? 1 : 0));
            best[t] = clover_best_token(logits, n_vocab, mask, true);
            if (best[t].id == LLAMA_TOKEN_NULL || !std::isfinite(best[t].p)) {
                return false;
            }
            if (surest == rows.size() || best[t].p > best[surest].p) {
                surest = t;
            }
        }
        for (size_t t = 0; t < rows.size(); t++) {
            if (masked[t] != 0 && (t == surest || best[t].p > threshold)) {
                rows[t] = best[t].id;
                masked[t] = 0;
                n_fixed++;
            }
        }
        return true;
    }

    server_diffusion_params params;
    size_t size = 0; // of a block
    llama_tokens tail;
    bool shift = false;
    llama_token mask = LLAMA_TOKEN_NULL;
    llama_tokens known; // what the next block begins with
    llama_tokens rows;  // of the block in the making
    std::vector<uint8_t> masked;
    size_t n_known = 0;
    int32_t n_steps = 0;
    std::vector<float> before; // logits of the last token before the block, where rows are shifted
};

#endif
