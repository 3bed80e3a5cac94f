/* Status codes, messages, buffers.
 *
 * Rules for every function of this interface: it returns a pc_status; it never lets a C++ exception or a llama.cpp
 * assertion out; on failure the message of the calling thread is read with pc_last_error(). Handles are opaque. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* cffi: begin */
enum pc_status {
    PC_OK = 0,
    PC_BAD_ARGUMENT = 1,
    PC_LOAD_FAILED = 2,
    PC_OUT_OF_MEMORY = 3,
    PC_CANCELLED = 4,
    PC_CONTEXT_FULL = 5,
    PC_DECODE_FAILED = 6,
    PC_BAD_STATE = 7,
    PC_BAD_GRAMMAR = 8,
    PC_NATIVE_FAILURE = 9,
    PC_NO_BLOCK_PASS = 10, /* the model cannot draft */
};

/* Message of the last failure in this thread; valid until the next call in this thread. */
const char * pc_last_error(void);

/* Bytes owned by the receiver; give them back with pc_buffer_free(). */
typedef struct pc_buffer {
    char * data;
    size_t size;
} pc_buffer;

void pc_buffer_free(pc_buffer * buffer);

/* Asked from the calling thread every few milliseconds while a call runs; non-zero stops the call (PC_CANCELLED). */
typedef int (*pc_poll_fn)(void * user);

/* Told how much of a model is loaded, 0 to 1, from the calling thread; non-zero stops the load (PC_CANCELLED). */
typedef int (*pc_progress_fn)(float fraction, void * user);

/* Once per process, before anything else; more calls do nothing. */
int pc_init(void);
/* cffi: end */

#ifdef __cplusplus
}
#endif
