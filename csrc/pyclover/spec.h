/* Block passes of Clover: previews, drafting with verification (draft-self), block diffusion. */
#pragma once

#include "base.h"
#include "context.h"
#include "model.h"
#include "sampler.h"

#ifdef __cplusplus
extern "C" {
#endif

/* cffi: begin */
#define PC_BLOCK_MAX 32

/* How block passes compute; see csrc/llama/clover-params.h. */
typedef struct pc_block_params {
    uint32_t block_length;
    int32_t shift_logits; /* 0 or 1 */
    uint32_t expert_coreset;
    float expert_coreset_share;
    uint32_t expert_coreset_min;
    char scale_activation[16]; /* "none", "exp" or "softplus" */
    char history_query[16];    /* "scaled" or "unit" */
} pc_block_params;

typedef struct pc_draft_params {
    int32_t n_max;      /* tokens of a draft, 1 to 31 */
    int32_t n_rows;     /* rows of its block; 0: n_max + 1 */
    int32_t n_steps;    /* block passes for a draft */
    float p_min;        /* a draft ends before a token that is less probable */
    float accept_ratio; /* 1 and ... */
    float accept_delta; /* ... 0: lossless */
    int32_t ahead; /* 0 or 1 (with a controller: it decides): the next draft is made in the pass that checks the last one, where
                      there is room */
    int32_t ways;  /* with a controller: PC_WAY_* bits, how else a draft may be made where that pays */
} pc_draft_params;

/* From a full block of rows, when n_rows is 0; in two steps, when n_steps is 1; by few experts, when the block has no coreset. */
#define PC_WAY_FULL_BLOCK 1
#define PC_WAY_TWO_STEPS 2
#define PC_WAY_FEW_EXPERTS 4
#define PC_N_WAYS 4 /* as asked, and these in this order */

/* Counted since the prompt of the last pc_context_prompt(); times in seconds. */
typedef struct pc_spec_stats {
    uint64_t rounds;         /* of drafting */
    uint64_t drafted;        /* tokens that were drafted and checked */
    uint64_t accepted;       /* of them accepted, also those that were dropped afterwards */
    uint64_t emitted;        /* tokens that rounds gave, dropped ones left out */
    uint64_t drafted_at[31]; /* by position in the draft */
    uint64_t accepted_at[31];
    uint64_t ahead;      /* checks in whose pass a next draft was made, */
    uint64_t ahead_used; /* and of these drafts the ones that were good for something */
    uint64_t previews;   /* block passes */
    uint64_t commits;    /* causal passes over finished blocks */
    uint64_t fixed;      /* rows of blocks that previews decided */
    double preview_s;
    double verify_s; /* passes over drafts and finished blocks */
    double rollback_s;
} pc_spec_stats;

/* Why the model cannot run block passes; empty: it can. */
int pc_model_block_missing(const pc_model * model, pc_buffer * out);

int pc_context_get_block_params(const pc_context * context, pc_block_params * out);
int pc_context_set_block_params(pc_context * context, const pc_block_params * params);

/* Logits [n_rows, n_vocab] of a block after what the memory holds, which stays as it is. Row t is about the position of
 * the block's row t, also for models whose own rows are shifted. */
int pc_context_preview(pc_context * context, const int32_t * rows, size_t n_rows, float * out);

/* Adds tokens to the memory, and in the same pass gives the logits [n_rows, n_vocab] of a block of masks behind them, of
 * which nothing is kept. All of it has to fit into one pass. */
int pc_context_look_ahead(pc_context * context, const int32_t * tokens, size_t n_tokens, size_t n_rows, float * out);

/* One round: drafts at most n_max tokens, and fewer when less than n_max + 1 are still wanted (n_left), checks them, and
 * gives the tokens that follow: the accepted ones and one more. The last of them is not in the memory yet. *is_end: it ends
 * the text. tokens: room for PC_BLOCK_MAX. */
int pc_context_draft_step(pc_context * context, pc_sampler * sampler, const pc_draft_params * params, uint64_t n_left,
                          int32_t * tokens, size_t * n_tokens, int32_t * is_end);

/* Decides before each step whether to draft, and how much; see csrc/llama/draft-controller.h. It may serve many contexts of
 * one model, one after the other: what it has learned stays. */
typedef struct pc_controller pc_controller;

typedef struct pc_controller_state {
    int32_t best;      /* tokens of a draft that it thinks best, 0: plain steps */
    uint64_t n_plain;  /* plain steps that it has seen */
    uint64_t n_rounds; /* of drafting */
    uint64_t n_probes; /* steps that were made to learn something */
    uint64_t n_ahead;  /* rounds in whose check the next draft was made */
    int32_t way;       /* in which drafts are best made, 0 to PC_N_WAYS - 1; what follows is about such drafts */
    uint64_t rounds_of_way[4];
    double plain_s;
    double preview_s[32]; /* by tokens drafted; what it believes, also where nothing was measured */
    double verify_s[32];
    double ahead_s[32];      /* a check in whose pass the next draft is made */
    double acceptance[32];   /* of the i-th token, when those before it are accepted */
    double tokens_per_s[32]; /* expected; [0] is plain */
} pc_controller_state;

/* start_plain: 0 or 1; 1: no draft before plain steps have been measured, and then only to see whether it pays. */
int pc_controller_create(int32_t n_max, int32_t start_plain, pc_controller ** out);
void pc_controller_free(pc_controller * controller);
int pc_controller_get_state(const pc_controller * controller, pc_controller_state * out);
/* What pc_context_auto_step() does with it: asks how many tokens to draft (0: a plain step), and tells what came of it. */
/* may_ahead: drafts can be made ahead; *ahead: the next one should be, in the pass that checks this one. ways: PC_WAY_* bits;
 * full_rows: of a full block; *way: in which the draft is to be made. */
int pc_controller_choose(pc_controller * controller, uint64_t n_left, int32_t may_ahead, int32_t ways, int32_t full_rows,
                         int32_t * n, int32_t * ahead, int32_t * way);
int pc_controller_saw_plain(pc_controller * controller, double seconds);
/* Of a round as it was chosen last. preview_s: 0 for a draft that was made ahead. ahead: the next one was made so; used: it can
 * be used. */
int pc_controller_saw_round(pc_controller * controller, int32_t n_drafted, int32_t n_checked, int32_t n_accepted,
                            double preview_s, double verify_s, int32_t ahead, int32_t used);
int pc_controller_saw_rollback(pc_controller * controller, double seconds);

/* A round as pc_context_draft_step(), or a plain step, as the controller decides; params->n_max is the most. */
int pc_context_auto_step(pc_context * context, pc_sampler * sampler, pc_controller * controller, const pc_draft_params * params,
                         uint64_t n_left, int32_t * tokens, size_t * n_tokens, int32_t * is_end);

/* Takes the last n_tokens of a round back; at least one of its tokens must stay. */
int pc_context_take_back(pc_context * context, size_t n_tokens);

/* One preview of a block in the making: rows [n_rows], masked [n_rows] (1: to be decided). Decides every masked row whose
 * most probable token is more probable than the threshold, and at least the surest. */
int pc_context_denoise(pc_context * context, int32_t * rows, uint8_t * masked, size_t n_rows, float threshold, size_t * n_fixed);

/* Adds the tokens of a finished block to the memory; n_new of them are counted as part of the answer. */
int pc_context_commit(pc_context * context, const int32_t * tokens, size_t n_tokens, size_t n_new);

/* Graphs that were built for passes so far, and the time that it took: a pass like the last one of its kind needs no new one. */
int pc_context_graphs(const pc_context * context, uint64_t * n_built, double * seconds);

int pc_context_get_spec_stats(const pc_context * context, pc_spec_stats * out);
/* cffi: end */

#ifdef __cplusplus
}
#endif
