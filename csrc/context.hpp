// One sequence on a model.
#pragma once

#include "internal.hpp"

#include "ggml-cpu.h"

#include <deque>

struct pc_context {
    pc_model * model = nullptr;
    llama_context * ctx = nullptr;
    ggml_threadpool * pool = nullptr;
    ggml_threadpool * pool_batch = nullptr; // the same as pool when both have as many threads

    uint32_t n_ctx = 0;
    uint32_t n_batch = 0;
    uint32_t n_outputs = 0;
    uint32_t n_rs_seq = 0;
    bool snapshots = false; // of a recurrent memory, n_rs_seq of them; else Clover keeps rows

    // What the memory holds, token by token. Kept in step with it: when a pass fails, both are emptied.
    std::vector<llama_token> history;
    bool logits_ready = false;              // a row of the output belongs to the last token of history:
    int32_t logits_row = -1;                // this one, -1: the last
    std::vector<float> kept_logits;         // those of the last token of history, from before a preview took the output
    llama_token pending = LLAMA_TOKEN_NULL; // chosen by the last step, not computed yet

    // The recurrent part of the memory after `n_tokens` of history, with the logits there. The attention part needs no
    // copy: its cells stay valid as long as history keeps these tokens, so a checkpoint is dropped when it does not.
    struct checkpoint {
        size_t n_tokens = 0;
        std::vector<uint8_t> state;
        std::vector<float> logits;
    };
    std::deque<checkpoint> checkpoints;
    size_t n_checkpoints_max = 0;

    std::atomic<bool> cancelled{ false };
    pc_poll_fn poll = nullptr;
    void * user = nullptr;
    std::chrono::steady_clock::time_point next_poll{};
    uint32_t n_unpolled = 0;

    // A pass over a draft computes tokens that are not kept. They are removed before the next pass, not at once, because
    // llama.cpp can take a recurrent memory back only once after a pass.
    size_t n_beyond = 0;              // tokens that llama.cpp's memory holds behind history
    size_t n_fresh = 0;               // so many of the last pass can be taken back by its snapshots
    size_t draft_start = 0;           // tokens before the last draft's pass, and
    std::vector<uint8_t> draft_state; // the recurrent memory there, where snapshots are too few; else empty

    // A draft that was made in the pass that checked the one before it. It is good behind so many tokens of history, when
    // the pending token is the one that it was made for.
    std::vector<llama_token> next_draft;
    double draft_build_s = 0.0; // of the last draft's time: graphs
    size_t next_draft_at = 0;
    llama_token next_draft_after = LLAMA_TOKEN_NULL;

    pc_stats stats{};
    pc_spec_stats spec{};

    pc_context() = default;
    pc_context(const pc_context &) = delete;
    pc_context & operator=(const pc_context &) = delete;
    ~pc_context();

    bool stop_requested();
    void forget();             // empties memory and history
    void settle();             // removes what lies behind history
    void cut(size_t n_tokens); // keeps the first n_tokens of history; they must be cuttable
    bool cuttable(size_t n_tokens) const;
    bool restore(size_t n_at_most, size_t n_prompt); // to the best checkpoint, false: there is none
    std::vector<uint8_t> recurrent_state();          // the recurrent part of the memory; empty: llama.cpp could not write it
    void save_checkpoint();
    // appends; at most n_batch tokens. n_ahead: rows of masks behind them that look ahead, and are not kept
    void compute(const llama_token * tokens, size_t n_tokens, bool every_row, size_t n_ahead = 0);
    void preview(const llama_token * rows, size_t n_rows);    // every row; history and memory stay
    llama_token choose(pc_sampler & sampler, int32_t row);    // from the logits of a row, -1: the last
    void append(const llama_token * tokens, size_t n_tokens); // any number, counted as read; logits of the last
    void check_tokens(const llama_token * tokens, size_t n_tokens) const;
    void check_room(size_t n_tokens) const;

    const float * last_logits();
};
