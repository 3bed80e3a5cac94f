/* What this build and this machine have. */
#pragma once

#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* cffi: begin */
typedef struct pc_device {
    char name[64];
    char description[128];
    char kind[16]; /* "cpu", "gpu", "igpu", "accel" */
    uint64_t total_bytes;
    uint64_t free_bytes; /* 0 with total 0: the device does not say */
} pc_device;

/* The same counting as in pc_tokenize. */
int pc_devices(pc_device * out, size_t capacity, size_t * n_devices);

/* "NAME = VALUE | ..." of the features that the CPU code was compiled with and found. */
int pc_system_info(pc_buffer * out);

/* Whether llama.cpp runs models of an architecture (general.architecture): 0 or 1. */
int pc_knows_architecture(const char * name, int32_t * out);

/* Type names that a cache may have, separated by spaces. */
int pc_cache_types(pc_buffer * out);
/* cffi: end */

#ifdef __cplusplus
}
#endif
