/* A model file: weights and vocabulary. */
#pragma once

#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* cffi: begin */
typedef struct pc_model pc_model;

typedef struct pc_model_params {
    int32_t n_gpu_layers; /* negative: all */
    int32_t n_cpu_moe;    /* routed experts of the first so many layers stay in main memory; negative: of all */
    int32_t main_gpu;
    int32_t mmap;          /* 0 or 1 */
    int32_t mlock;         /* 0 or 1 */
    int32_t check_tensors; /* 0 or 1: read and check every value */
    int32_t vocab_only;    /* 0 or 1 */
    pc_progress_fn progress;
    void * user;
} pc_model_params;

typedef struct pc_model_info {
    int32_t n_vocab;
    int32_t n_ctx_train;
    int32_t n_embd;
    int32_t n_layer;
    uint64_t n_params;
    uint64_t size_bytes; /* of the tensors */
    int32_t recurrent;   /* 1: part of the memory is a state that cannot be cut back */
    int32_t has_decoder;
    int32_t has_encoder;
    int32_t diffusion; /* 1: a diffusion architecture of llama.cpp, with no autoregressive mode */
    int32_t add_bos;
    int32_t bos, eos, eot, mask; /* -1: none */
} pc_model_info;

/* path: the (first) file, UTF-8, already checked by the caller. */
int pc_model_load(const char * path, const pc_model_params * params, pc_model ** out);
void pc_model_free(pc_model * model);
int pc_model_get_info(const pc_model * model, pc_model_info * out);

/* Writes at most `capacity` ids and always the number of ids of the whole text to *n_tokens. */
int pc_tokenize(const pc_model * model, const char * text, size_t size, int32_t add_special, int32_t parse_special, int32_t * out,
                size_t capacity, size_t * n_tokens);

/* Bytes of one token; special tokens give their text only when asked for. The same counting as in pc_tokenize. */
int pc_token_piece(const pc_model * model, int32_t token, int32_t special, char * out, size_t capacity, size_t * n_bytes);

/* Text of many tokens as llama.cpp puts it together (space rules included); bytes, perhaps not valid UTF-8. */
int pc_detokenize(const pc_model * model, const int32_t * tokens, size_t n_tokens, int32_t remove_special,
                  int32_t unparse_special, pc_buffer * out);

int pc_token_is_end(const pc_model * model, int32_t token, int32_t * out);
/* cffi: end */

#ifdef __cplusplus
}
#endif
