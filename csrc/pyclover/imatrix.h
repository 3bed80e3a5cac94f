/* Importance matrices: sums of the squared activations that meet each weight.
 *
 * A collector belongs to the thread that computes with the contexts it is given to. It must outlive them. */
#pragma once

#include "base.h"
#include "context.h"

#ifdef __cplusplus
extern "C" {
#endif

/* cffi: begin */
/* One weight: n_matrices experts, or one matrix. */
typedef struct pc_imatrix_entry {
    char name[64];
    uint64_t n_per_row;
    uint64_t n_matrices;
    uint64_t n_refused; /* rows of activations with NaN or infinity, which are not in the sums */
} pc_imatrix_entry;

int pc_imatrix_create(pc_imatrix ** out);
void pc_imatrix_free(pc_imatrix * imatrix);

/* The weights that were met so far, ordered by name; the same counting as in pc_tokenize. */
int pc_imatrix_entries(const pc_imatrix * imatrix, pc_imatrix_entry * out, size_t capacity, size_t * n_entries);

/* Of one weight: sums [n_matrices, n_per_row], and how many rows each of them sums up [n_matrices]. */
int pc_imatrix_get(const pc_imatrix * imatrix, const char * name, double * sums, uint64_t * counts);

/* Back to no rows at all. */
int pc_imatrix_clear(pc_imatrix * imatrix);

/* Adds tokens to the memory, computing every row of every layer: a prompt leaves out of the last layer what only its last
 * token needs. */
int pc_context_append(pc_context * context, const int32_t * tokens, size_t n_tokens);
/* cffi: end */

#ifdef __cplusplus
}
#endif
