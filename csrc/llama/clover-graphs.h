// Graphs that stay allocated while passes of other kinds are made.

#ifndef CLOVER_GRAPHS_H
#define CLOVER_GRAPHS_H

#include "ggml-cpp.h"
#include "llama-graph.h"

#include <array>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

struct llama_context;

constexpr uint32_t CLOVER_CHECK_MAX = 64; // a draft, the token before it, and a block that looks ahead

// A scheduler and what it has allocated. While drafting, a block pass, its check, the rows that are applied to the state and
// plain steps take turns: with one scheduler each would be planned anew every time.
struct clover_graphs {
    ggml_backend_sched_ptr sched;
    std::array<llm_graph_result_ptr, 2> results; // as llama_context::gf_res_prev
    llm_graph_result * active = nullptr;
    std::vector<size_t> sizes; // of the buffers, per backend, where none are allocated
};

// The rows that were applied to the state last: cell and number for each sequence.
using clover_replayed = std::vector<std::pair<uint32_t, uint32_t>>;

// What a context keeps for Clover beside its own scheduler. A part without a scheduler is not needed in this context.
struct clover_kept_graphs {
    clover_graphs block;
    clover_graphs check; // causal passes of more rows than one, and at most CLOVER_CHECK_MAX
    clover_graphs replay;
    clover_replayed replayed;
};

// While it lives, a context works with other graphs than its own.
class clover_turn {
  public:
    clover_turn(llama_context & ctx, clover_graphs & graphs);
    ~clover_turn();

    clover_turn(const clover_turn &) = delete;
    clover_turn & operator=(const clover_turn &) = delete;

  private:
    llama_context & ctx;
    clover_graphs & graphs;
};

#endif
