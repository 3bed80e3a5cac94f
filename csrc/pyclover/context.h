/* One sequence of tokens on a model: reading a prompt, generating, logits, state.
 *
 * A context belongs to one thread at a time; only pc_context_cancel() may be called from another one. The model must
 * outlive it. */
#pragma once

#include "base.h"
#include "model.h"
#include "sampler.h"

#ifdef __cplusplus
extern "C" {
#endif

/* cffi: begin */
typedef struct pc_context pc_context;
typedef struct pc_imatrix pc_imatrix;

typedef struct pc_context_params {
    uint32_t n_ctx;    /* 0: as the model was trained */
    uint32_t n_batch;  /* tokens handed over at once */
    uint32_t n_ubatch; /* tokens computed at once */
    int32_t n_threads;
    int32_t n_threads_batch;
    int32_t flash_attn; /* -1: auto, 0, 1 */
    const char * cache_type_k;
    const char * cache_type_v;
    int32_t offload_kqv;
    uint32_t n_rs_seq;     /* so many tokens at the end of a pass can be taken back from a recurrent memory */
    int32_t rs_snapshots;  /* by as many snapshots of it; 0: Clover keeps the tokens' rows and applies them again */
    int32_t n_checkpoints; /* states of a recurrent memory kept for going back to the end of an earlier prompt */
    pc_poll_fn poll;       /* may be NULL */
    void * user;
    pc_imatrix * imatrix; /* gets the activations of every pass, see imatrix.h; may be NULL */
} pc_context_params;

typedef struct pc_context_info {
    uint32_t n_ctx;
    uint32_t n_batch;
    uint32_t n_ubatch;
    int32_t n_threads;
    int32_t n_threads_batch;
    uint32_t n_outputs; /* rows of logits that one pass may give */
} pc_context_info;

/* Times in seconds, counted since the prompt of the last pc_context_prompt(). */
typedef struct pc_stats {
    uint64_t n_prompt;  /* tokens of the prompt */
    uint64_t n_reused;  /* of them found in the memory */
    uint64_t n_read;    /* of them computed; a stopped call ends before all are */
    uint64_t n_decoded; /* tokens computed after the prompt, one pass each */
    uint64_t n_sampled;
    double prompt_s;
    double decode_s;
    double sample_s;
    int64_t first_difference; /* position where the memory did not match and was re-read from the start, -1: it did */
} pc_stats;

typedef struct pc_memory_use {
    char device[64];
    uint64_t weights_bytes;
    uint64_t context_bytes;
    uint64_t compute_bytes;
} pc_memory_use;

int pc_context_create(pc_model * model, const pc_context_params * params, pc_context ** out);
void pc_context_free(pc_context * context);
int pc_context_get_info(const pc_context * context, pc_context_info * out);

/* Stops the call that runs now, or the next one if none runs: pc_context_arm() forgets it. Any thread. */
int pc_context_cancel(pc_context * context);
int pc_context_arm(pc_context * context);

/* Makes the memory hold exactly these tokens, computing only what it does not hold yet, and their last logits ready.
 * n_stable: so many of them, from the first, are likely to begin the next prompt too; a recurrent memory keeps its state
 * there as well as at the end (0: at the end alone). */
int pc_context_prompt(pc_context * context, const int32_t * tokens, size_t n_tokens, size_t n_stable);

/* Takes tokens as read by the sampler (penalties, DRY) without choosing them. */
int pc_sampler_accept(pc_sampler * sampler, const int32_t * tokens, size_t n_tokens);

/* Computes the token of the last step, if any, and chooses the next one. *is_end: it ends the text. */
int pc_context_step(pc_context * context, pc_sampler * sampler, int32_t * token, int32_t * is_end);

/* Logits after each token [n_tokens, n_vocab], computed from an empty memory, which then holds these tokens. */
int pc_context_logits(pc_context * context, const int32_t * tokens, size_t n_tokens, float * out);

/* Logits after the last computed token [n_vocab]. */
int pc_context_last_logits(pc_context * context, float * out);

/* Natural logarithm of the probability of tokens[i + 1] after tokens[0..i], for each i [n_tokens - 1]. */
int pc_context_score(pc_context * context, const int32_t * tokens, size_t n_tokens, float * out);

/* Empties memory and counters. */
int pc_context_clear(pc_context * context);

/* The tokens that the memory holds; the same counting as in pc_tokenize. */
int pc_context_tokens(const pc_context * context, int32_t * out, size_t capacity, size_t * n_tokens);

int pc_context_get_stats(const pc_context * context, pc_stats * out);

/* Memory as allocated, one entry a kind of buffer; the same counting as in pc_tokenize. */
int pc_context_memory(const pc_context * context, pc_memory_use * out, size_t capacity, size_t * n_entries);

/* The whole state (memory, tokens, last logits) as bytes, and back. Only bytes from the same model and settings are safe:
 * the caller checks that. */
int pc_context_get_state(pc_context * context, pc_buffer * out);
int pc_context_set_state(pc_context * context, const char * data, size_t size);
/* cffi: end */

#ifdef __cplusplus
}
#endif
