#ifndef CLOVER_DRAFT_H
#define CLOVER_DRAFT_H

// Drafts from block passes, and when a target accepts them. Shared by common/speculative and by bindings.

#include "llama.h"

#include <string>
#include <vector>

struct clover_draft_params {
    int32_t n_max = 3;   // tokens of a draft, 1 to 31
    int32_t n_rows = 0;  // rows of the block, the last known token included; 0: as many as are drafted, and it
    int32_t n_steps = 1; // block passes for one draft: each fixes the surest of the rows that are left
    float p_min = 0.0f;  // a draft ends before a token that is less probable
};

// What is wrong with the values for this context; nullptr: nothing.
const char * clover_draft_params_error(const clover_draft_params & params);

struct clover_draft_request {
    llama_seq_id seq_id = 0;
    llama_pos pos = 0; // of `last`, which the memory does not hold yet
    llama_token last = 0;
    std::vector<llama_token> draft; // result, at most n tokens
};

// Drafts n tokens (1 to 31) for each request with block passes that leave the memory as it is.
// Returns 0, or what llama_clover_process_block() returned, or CLOVER_DRAFT_NO_LOGITS; then there are no drafts.
constexpr int32_t CLOVER_DRAFT_NO_LOGITS = -100; // no number among a row's logits
int32_t clover_draft(llama_context * ctx, std::vector<clover_draft_request> & requests, int32_t n,
                     const clover_draft_params & params);

// The most probable token but the mask token, and its probability where it is asked for (the mask token has none).
struct clover_best {
    llama_token id = LLAMA_TOKEN_NULL;
    float p = 0.0f;
};
clover_best clover_best_token(const float * logits, int32_t n_vocab, llama_token mask, bool with_probability);

// Lossy acceptance: with p the target's distribution, H its entropy in nats and p1 its largest probability, a token is
// accepted when it is the most probable one, or among the ten most probable with p >= ratio * p1 or
// p >= p1 - delta * (1 - exp(-H)). ratio 1 and delta 0 accept the most probable token alone.
struct clover_relaxed {
    float ratio = 1.0f;
    float delta = 0.0f;

    bool on() const { return ratio != 1.0f || delta != 0.0f; }
};
// The whole text as a number. Throws std::invalid_argument or std::out_of_range.
float clover_number_from_text(const std::string & text);
const char * clover_relaxed_error(const clover_relaxed & relaxed); // nullptr: nothing is wrong
bool clover_accepts(const float * logits, int32_t n_vocab, llama_token token, const clover_relaxed & relaxed);

#endif
