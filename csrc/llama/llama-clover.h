#ifndef LLAMA_CLOVER_H
#define LLAMA_CLOVER_H

// Block pass of clover_moe: what llama.cpp's C interface lacks. C++, like llama-ext.h.

#include "clover-params.h"
#include "llama.h"

#include <string>

struct llama_batch_ext;

// Why the model cannot run block passes; empty: it can.
std::string llama_clover_block_missing(const llama_model * model);
bool llama_clover_has_block_pass(const llama_model & model);

// How block passes of this context compute; at first as the model's file says. Throws std::invalid_argument for values
// that are out of range.
const clover_block_params & llama_clover_get_block_params(const llama_context * ctx);
void llama_clover_set_block_params(llama_context * ctx, const clover_block_params & params);

// Seconds that went into building graphs so far. A graph is used again while passes of its kind keep their shape, so
// whoever times passes to choose among them leaves this out.
double llama_clover_build_s(const llama_context * ctx);
uint64_t llama_clover_graphs_built(const llama_context * ctx);

// A coreset that makes a draft cheaper and little worse: twice the experts of a token, or an eighth of all; 0: there are not
// enough for that.
uint32_t llama_clover_few_experts(const llama_model * model);

// Block parameters that are others for a while; 0 experts: they stay.
class clover_experts_for_now {
  public:
    clover_experts_for_now(llama_context * ctx, uint32_t n_experts);
    ~clover_experts_for_now();

    clover_experts_for_now(const clover_experts_for_now &) = delete;
    clover_experts_for_now & operator=(const clover_experts_for_now &) = delete;

  private:
    llama_context * ctx;
    const clover_block_params before;
};

// One pass over blocks that follow what the sequences of the batch hold. Logits as after llama_process(), but the memory is
// afterwards what it was before, a pending rollback included. Every sequence has the same number of rows, at most 32, at
// the positions that follow its last one, and holds at least one token.
// Returns 0, 1 (no free cells), 2 (aborted), or less than 0 for other errors.
int32_t llama_clover_process_block(llama_context * ctx, llama_batch_ext * batch);

// One pass over tokens of one sequence, as llama_process(), whose last n_ahead rows are a block behind the others: it sees
// what is before it, these tokens included, and leaves nothing in the memory. All rows fit into one ubatch, and the
// context keeps no snapshots. Returns as llama_process(), and -1 for what it cannot do.
int32_t llama_clover_process_ahead(llama_context * ctx, llama_batch_ext * batch, uint32_t n_ahead);

#endif
