// State of a context as bytes, memory in use.
#include "context.hpp"
#include "llama-ext.h"

#include <algorithm>
#include <cstdio>

using namespace pyclover;

namespace {

// Layout: magic, n_tokens, n_vocab (0 when there are no logits), size of llama.cpp's part; tokens; logits; that part.
struct state_head {
    uint64_t magic;
    uint64_t n_tokens;
    uint64_t n_logits;
    uint64_t n_bytes;
};

constexpr uint64_t STATE_MAGIC = 0x31305354'56434C50; // "PLCVTS01"

size_t bytes_after_head(const state_head & head) {
    return head.n_tokens * sizeof(llama_token) + head.n_logits * sizeof(float) + head.n_bytes;
}

} // namespace

extern "C" int pc_context_get_state(pc_context * context, pc_buffer * out) {
    return guarded([&] {
        pc_context & c = *required(context, "context");
        c.settle();
        c.n_fresh = 0; // writing brings the state up to date
        state_head head{};
        head.magic = STATE_MAGIC;
        head.n_tokens = c.history.size();
        head.n_logits = c.logits_ready ? (uint64_t) c.model->n_vocab : 0;
        head.n_bytes = llama_state_seq_get_size(c.ctx, 0);

        std::vector<char> all(sizeof head + bytes_after_head(head));
        char * at = all.data();
        const auto put = [&](const void * data, size_t size) {
            if (size > 0) {
                std::memcpy(at, data, size);
            }
            at += size;
        };
        put(&head, sizeof head);
        put(c.history.data(), head.n_tokens * sizeof(llama_token));
        if (head.n_logits > 0) {
            put(c.last_logits(), head.n_logits * sizeof(float));
        }
        if (llama_state_seq_get_data(c.ctx, reinterpret_cast<uint8_t *>(at), head.n_bytes, 0) != head.n_bytes) {
            throw error(PC_BAD_STATE, "llama.cpp could not write its state");
        }
        give_bytes(out, all.data(), all.size());
    });
}

extern "C" int pc_context_set_state(pc_context * context, const char * data, size_t size) {
    return guarded([&] {
        pc_context & c = *required(context, "context");
        required(data, "data");
        state_head head{};
        if (size < sizeof head) {
            throw error(PC_BAD_STATE, "the state is cut short");
        }
        std::memcpy(&head, data, sizeof head);
        const bool sane = head.magic == STATE_MAGIC && head.n_tokens <= size && head.n_logits <= size && head.n_bytes <= size &&
                          (head.n_logits == 0 || head.n_logits == (uint64_t) c.model->n_vocab);
        if (!sane || size != sizeof head + bytes_after_head(head)) {
            throw error(PC_BAD_STATE, "the state is damaged or belongs to another vocabulary");
        }
        std::vector<llama_token> tokens(head.n_tokens);
        const char * at = data + sizeof head;
        std::memcpy(tokens.data(), at, tokens.size() * sizeof(llama_token));
        at += tokens.size() * sizeof(llama_token);
        std::vector<float> logits(head.n_logits);
        std::memcpy(logits.data(), at, logits.size() * sizeof(float));
        at += logits.size() * sizeof(float);
        c.check_tokens(tokens.data(), tokens.size());
        c.check_room(tokens.size());

        if (tokens.empty()) {
            c.forget();
            return;
        }
        if (!logits.empty()) {
            // llama.cpp has a place for logits only after a pass: make one, its result does not matter
            c.forget();
            c.compute(tokens.data(), 1, false);
        }
        c.forget();
        if (llama_state_seq_set_data(c.ctx, reinterpret_cast<const uint8_t *>(at), head.n_bytes, 0) == 0) {
            c.forget();
            throw error(PC_BAD_STATE,
                        "llama.cpp does not take the state: it was saved with another model or other cache settings");
        }
        c.history = std::move(tokens);
        if (!logits.empty()) {
            std::copy(logits.begin(), logits.end(), llama_get_logits_ith(c.ctx, -1));
            c.logits_ready = true;
            c.save_checkpoint();
        }
    });
}

extern "C" int pc_context_memory(const pc_context * context, pc_memory_use * out, size_t capacity, size_t * n_entries) {
    return guarded([&] {
        required(context, "context");
        required(n_entries, "n_entries");
        size_t n = 0;
        for (const auto & [type, use] : llama_get_memory_breakdown(context->ctx)) {
            if (n < capacity) {
                pc_memory_use & entry = out[n];
                entry = {};
                std::snprintf(entry.device, sizeof entry.device, "%s", ggml_backend_buft_name(type));
                entry.weights_bytes = use.model;
                entry.context_bytes = use.context;
                entry.compute_bytes = use.compute;
            }
            n++;
        }
        *n_entries = n;
    });
}
