#ifndef CLOVER_LOG_H
#define CLOVER_LOG_H

// Rollback without snapshots. A pass over several tokens leaves the recurrent state as it was before its last ones and
// keeps their rows: what the convolution reads, and the delta rule's decay and beta. Before the next pass, the rows
// that were not taken back are applied to the state with the delta net alone ("replay"). A row is about 33 KB in a layer
// of Clover-35B-A3B, a state 2 MB.

#include "ggml-cpp.h"
#include "llama.h"

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

struct llama_model;

class clover_state_log {
  public:
    // n_rows: at most so many tokens of a cell can be taken back. Throws std::runtime_error when there is no memory.
    clover_state_log(const llama_model & model, uint32_t n_cells, uint32_t n_rows, bool offload);

    uint32_t n_rows() const { return rows_max; }

    // Rows of a pass over n_tokens that are kept. A single token is not worth it: nothing takes it back.
    uint32_t n_kept(uint32_t n_tokens) const { return n_tokens > 1 ? (n_tokens < rows_max ? n_tokens : rows_max) : 0; }

    // n rows of each of n_cells cells from `cell` on
    ggml_tensor * inputs(ggml_context * ctx, int il, uint32_t cell, uint32_t n_cells, uint32_t n) const; // [channels, n, n_cells]
    ggml_tensor * beta(ggml_context * ctx, int il, uint32_t cell, uint32_t n_cells,
                       uint32_t n) const; // [value heads, n, n_cells]
    ggml_tensor * decay(ggml_context * ctx, int il, uint32_t cell, uint32_t n_cells, uint32_t n) const; // the same

    // Of each cell: kept rows that are to be applied to its state.
    std::vector<uint32_t> pending;

    // Takes the last n tokens of a cell back; false: it has not so many rows.
    bool take_back(uint32_t cell, uint32_t n);

    std::map<ggml_backend_buffer_type_t, size_t> memory_breakdown() const;

  private:
    ggml_tensor * view(ggml_context * ctx, int il, uint32_t cell, uint32_t n_cells, uint32_t n, int64_t n_values,
                       int64_t first) const;

    const int64_t n_channels;
    const int64_t n_heads;
    const uint32_t rows_max;
    std::vector<ggml_tensor *> layers; // F32 [values of all rows, cells]
    std::vector<std::pair<ggml_context_ptr, ggml_backend_buffer_ptr>> buffers;
};

#endif
