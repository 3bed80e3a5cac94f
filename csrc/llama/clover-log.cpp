#include "clover-log.h"

#include "clover-graphs.h"
#include "llama-context.h"
#include "llama-impl.h"
#include "llama-memory-hybrid.h"
#include "llama-memory-recurrent.h"
#include "llama-model.h"
#include "models/clover-graph.h"

#include <algorithm>
#include <stdexcept>

clover_state_log::clover_state_log(const llama_model & model, uint32_t n_cells, uint32_t n_rows, bool offload)
    : pending(n_cells, 0), n_channels(clover_gdn_channels(model.hparams)), n_heads(model.hparams.ssm_dt_rank), rows_max(n_rows),
      layers(model.hparams.n_layer(), nullptr) {
    const auto new_context = [&] {
        ggml_init_params params = { layers.size() * ggml_tensor_overhead(), nullptr, true };
        ggml_context_ptr ctx(ggml_init(params));
        if (!ctx) {
            throw std::runtime_error("no memory for the rows of the recurrent state");
        }
        return ctx;
    };
    std::vector<std::pair<ggml_backend_buffer_type_t, ggml_context_ptr>> contexts; // in the order of layers
    for (size_t il = 0; il < layers.size(); ++il) {
        if (!model.hparams.is_recr((uint32_t) il)) {
            continue;
        }
        const ggml_backend_buffer_type_t type =
            offload ? ggml_backend_dev_buffer_type(model.dev_layer((int) il)) : ggml_backend_cpu_buffer_type();
        auto it = std::find_if(contexts.begin(), contexts.end(), [&](const auto & entry) { return entry.first == type; });
        if (it == contexts.end()) {
            it = contexts.emplace(contexts.end(), type, new_context());
        }
        layers[il] = ggml_new_tensor_2d(it->second.get(), GGML_TYPE_F32, (n_channels + 2 * n_heads) * rows_max, n_cells);
        ggml_format_name(layers[il], "cache_log_l%d", (int) il);
    }
    size_t n_bytes = 0;
    for (auto & entry : contexts) {
        ggml_backend_buffer_ptr buffer(ggml_backend_alloc_ctx_tensors_from_buft(entry.second.get(), entry.first));
        if (!buffer) {
            throw std::runtime_error("no memory for the rows of the recurrent state");
        }
        ggml_backend_buffer_clear(buffer.get(), 0);
        n_bytes += ggml_backend_buffer_get_size(buffer.get());
        buffers.emplace_back(std::move(entry.second), std::move(buffer));
    }
    LLAMA_LOG_INFO("%s: %u rows in %u cells, %.2f MiB\n", __func__, rows_max, n_cells, double(n_bytes) / 1024.0 / 1024.0);
}

ggml_tensor * clover_state_log::view(ggml_context * ctx, int il, uint32_t cell, uint32_t n_cells, uint32_t n, int64_t n_values,
                                     int64_t first) const {
    ggml_tensor * t = layers[il];
    return ggml_view_3d(ctx, t, n_values, n, n_cells, n_values * sizeof(float), t->nb[1],
                        cell * t->nb[1] + first * sizeof(float));
}

ggml_tensor * clover_state_log::inputs(ggml_context * ctx, int il, uint32_t cell, uint32_t n_cells, uint32_t n) const {
    return view(ctx, il, cell, n_cells, n, n_channels, 0);
}

ggml_tensor * clover_state_log::beta(ggml_context * ctx, int il, uint32_t cell, uint32_t n_cells, uint32_t n) const {
    return view(ctx, il, cell, n_cells, n, n_heads, n_channels * rows_max);
}

ggml_tensor * clover_state_log::decay(ggml_context * ctx, int il, uint32_t cell, uint32_t n_cells, uint32_t n) const {
    return view(ctx, il, cell, n_cells, n, n_heads, (n_channels + n_heads) * rows_max);
}

bool clover_state_log::take_back(uint32_t cell, uint32_t n) {
    if (n > pending[cell]) {
        return false;
    }
    pending[cell] -= n;
    return true;
}

std::map<ggml_backend_buffer_type_t, size_t> clover_state_log::memory_breakdown() const {
    std::map<ggml_backend_buffer_type_t, size_t> sizes;
    for (const auto & entry : buffers) {
        sizes[ggml_backend_buffer_get_type(entry.second.get())] += ggml_backend_buffer_get_size(entry.second.get());
    }
    return sizes;
}

// Applies the first n kept rows of a cell to the state of one layer.
static void replay_layer(ggml_context * ctx, ggml_cgraph * gf, const llama_model & model, const llama_memory_recurrent & memory,
                         int il, uint32_t cell, uint32_t n) {
    const auto & hparams = model.hparams;
    const auto & layer = model.layers[il];
    const clover_state_log & log = *memory.log;
    const int64_t n_dim = hparams.ssm_d_state;
    const int64_t n_vheads = hparams.ssm_dt_rank;
    const int64_t n_before = layer.ssm_conv1d->ne[0] - 1;
    const int64_t n_channels = clover_gdn_channels(hparams);

    ggml_tensor * r = memory.r_l[il];
    ggml_tensor * s = memory.s_l[il];
    ggml_tensor * before =
        ggml_view_3d(ctx, r, n_before, n_channels, 1, n_before * ggml_element_size(r), r->nb[1], cell * r->nb[1]);
    ggml_tensor * state = ggml_view_4d(ctx, s, n_dim, n_dim, n_vheads, 1, n_dim * ggml_element_size(s),
                                       n_dim * n_dim * ggml_element_size(s), s->nb[1], cell * s->nb[1]);

    ggml_tensor * conv_in = ggml_concat(ctx, before, ggml_transpose(ctx, log.inputs(ctx, il, cell, 1, n)), 0);
    ggml_tensor * mixed = ggml_silu(ctx, ggml_ssm_conv(ctx, conv_in, layer.ssm_conv1d));
    const clover_gdn_heads heads = clover_gdn_split(ctx, hparams, mixed, n, 1);

    // what a query reads is of no use here
    const auto per_head = [&](ggml_tensor * t) {
        return ggml_reshape_4d(ctx, t, 1, n_vheads, n, 1);
    };
    ggml_tensor * out = ggml_gated_delta_net(ctx, heads.k, heads.k, heads.v, per_head(log.decay(ctx, il, cell, 1, n)),
                                             per_head(log.beta(ctx, il, cell, 1, n)), state, 1);
    ggml_tensor * after = ggml_view_1d(ctx, out, ggml_nelements(state), n_dim * n_vheads * n * ggml_element_size(out));
    ggml_build_forward_expand(gf, ggml_cpy(ctx, after, ggml_view_1d(ctx, s, ggml_nelements(state), cell * s->nb[1])));

    ggml_tensor * last = ggml_view_2d(ctx, conv_in, n_before, n_channels, conv_in->nb[1], n * ggml_element_size(conv_in));
    ggml_tensor * place = ggml_view_2d(ctx, r, n_before, n_channels, n_before * ggml_element_size(r), cell * r->nb[1]);
    ggml_build_forward_expand(gf, ggml_cpy(ctx, last, place));
}

static void build_replay(llm_graph_result & res, const llama_model & model, const llama_memory_recurrent & states,
                         const clover_replayed & rows) {
    res.reset();
    for (const auto & [cell, n] : rows) {
        for (int il = 0; il < (int) model.hparams.n_layer(); ++il) {
            if (model.hparams.is_recr((uint32_t) il)) {
                replay_layer(res.get_ctx(), res.get_gf(), model, states, il, cell, n);
            }
        }
    }
}

// More than replay_layer() makes of nodes and of tensors that are none.
static constexpr size_t REPLAY_NODES = 40;

// How many cells a graph has room for.
static size_t clover_cells_at_once(const llama_model & model, size_t max_nodes) {
    return std::max<size_t>(1, max_nodes / (REPLAY_NODES * model.hparams.n_layer()));
}

// Whether a ubatch, which is about to get its cells, needs the state of a cell or may move it; nullptr: whoever reads all.
// What other sequences kept in the same batch stays: it may yet be taken back.
static bool reads(const llama_memory_recurrent & memory, const llama_ubatch * ubatch, uint32_t cell) {
    if (ubatch == nullptr || ubatch->n_seqs_unq > 1) {
        return true;
    }
    return memory.cells[ubatch->seq_id_unq[0]].tail == (int32_t) cell;
}

bool llama_context::clover_replay(const llama_ubatch * ubatch) {
    auto * hybrid = model.arch == LLM_ARCH_CLOVER_MOE ? dynamic_cast<llama_memory_hybrid *>(memory.get()) : nullptr;
    llama_memory_recurrent * states = hybrid != nullptr ? hybrid->get_mem_recr() : nullptr;
    if (states == nullptr || !states->log) {
        return true;
    }
    std::vector<uint32_t> & pending = states->log->pending;
    std::vector<uint32_t> cells;
    for (uint32_t cell = 0; cell < states->size; ++cell) {
        if (states->cells[cell].is_empty()) {
            pending[cell] = 0; // of a sequence that is gone; another one may be moved here
        }
        if (pending[cell] > 0 && reads(*states, ubatch, cell)) {
            cells.push_back(cell);
        }
    }
    const size_t at_once = clover_cells_at_once(model, (size_t) gf_res_reserve->get_max_nodes());
    for (size_t first = 0; first < cells.size(); first += at_once) {
        const size_t n = std::min(cells.size() - first, at_once);
        clover_replayed rows;
        for (size_t i = first; i < first + n; ++i) {
            rows.emplace_back(cells[i], pending[cells[i]]);
        }
        if (!clover_apply(*states, rows)) {
            LLAMA_LOG_ERROR("%s: the recurrent state could not be brought up to date\n", __func__);
            return false;
        }
        for (const auto & entry : rows) {
            pending[entry.first] = 0;
        }
    }
    return true;
}

// The graph is used again where the last one applied as many rows of the same cells: it takes nothing from outside.
bool llama_context::clover_apply(const llama_memory_recurrent & states, const clover_replayed & rows) {
    clover_turn turn(*this, clover_kept->replay);
    llm_graph_result * res = gf_res_prev[0].get();
    if (gf_res_prev_active == nullptr || clover_kept->replayed != rows) {
        const int64_t t_build_us = ggml_time_us();
        gf_res_prev_active = nullptr;
        build_replay(*res, model, states, rows);
        ggml_backend_sched_reset(sched.get());
        if (!ggml_backend_sched_alloc_graph(sched.get(), res->get_gf())) {
            return false;
        }
        gf_res_prev_active = res;
        clover_kept->replayed = rows;
        clover_build_us += ggml_time_us() - t_build_us;
        clover_n_built++;
    }
    // half of it done would be neither the state before nor the one after: it is short enough not to be stopped
    const auto callback = abort_callback;
    const auto data = abort_callback_data;
    set_abort_callback(nullptr, nullptr);
    const bool done = graph_compute(res->get_gf(), false) == GGML_STATUS_SUCCESS;
    set_abort_callback(callback, data);
    return done;
}

bool llama_context::clover_reserve_replay(const llama_memory_recurrent & states, bool no_alloc) {
    clover_graphs & graphs = clover_kept->replay;
    llm_graph_result & res = *graphs.results[0];
    clover_replayed rows;
    const size_t n_cells = std::min<size_t>(states.size, clover_cells_at_once(model, (size_t) res.get_max_nodes()));
    for (uint32_t cell = 0; cell < n_cells; ++cell) {
        rows.emplace_back(cell, states.log->n_rows());
    }
    build_replay(res, model, states, rows);
    if (no_alloc) {
        ggml_backend_sched_reserve_size(graphs.sched.get(), res.get_gf(), graphs.sizes.data());
        return true;
    }
    return ggml_backend_sched_reserve(graphs.sched.get(), res.get_gf());
}
