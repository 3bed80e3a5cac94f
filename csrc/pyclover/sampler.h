/* Choosing the next token from logits: llama.cpp's common sampler chain. */
#pragma once

#include "base.h"
#include "model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* cffi: begin */
typedef struct pc_sampler pc_sampler;

typedef struct pc_sampler_params {
    float temperature; /* <= 0: greedy */
    int32_t top_k;     /* <= 0: all */
    float top_p;
    float min_p;
    float typical_p;
    float repeat_penalty;
    int32_t repeat_last_n; /* -1: the whole context */
    float frequency_penalty;
    float presence_penalty;
    float dry_multiplier;
    float dry_base;
    int32_t dry_allowed_length;
    int32_t dry_penalty_last_n; /* -1: the whole context */
    uint32_t seed;              /* 0xFFFFFFFF: a random one */
    int32_t ignore_eos;         /* 0 or 1: end tokens are never chosen */
    const char * grammar;       /* GBNF, or NULL */
    /* JSON, or NULL: what pc_chat_prepare() gave, its own grammar aside, with "thinking_budget" (tokens; -1: no limit) and
     * "thinking_message" (put before the end of a thought that is cut). */
    const char * chat;
    const int32_t * bias_tokens;
    const float * bias_values;
    size_t n_bias;
} pc_sampler_params;

int pc_sampler_create(const pc_model * model, const pc_sampler_params * params, pc_sampler ** out);
void pc_sampler_free(pc_sampler * sampler);

/* Seed in use, also when a random one was asked for. */
int pc_sampler_seed(const pc_sampler * sampler, uint32_t * out);

/* What pc_sampler_create() checks of a grammar that names no tokens by their text, without a model. Repetitions must have
 * been checked before: some make the parser loop for ever. */
int pc_grammar_check(const char * grammar);

/* GBNF grammar of a JSON schema; a pattern that cannot be one becomes "any string", with a line on standard error. */
int pc_schema_to_grammar(const char * json_schema, pc_buffer * out);
/* cffi: end */

#ifdef __cplusplus
}
#endif
