// Types that a KV cache may have.
#pragma once

#include "ggml.h"

#include <array>
#include <cstring>

namespace pyclover {

constexpr std::array<ggml_type, 9> CACHE_TYPES = { GGML_TYPE_F32,  GGML_TYPE_F16,  GGML_TYPE_BF16,
                                                   GGML_TYPE_Q8_0, GGML_TYPE_Q4_0, GGML_TYPE_Q4_1,
                                                   GGML_TYPE_Q5_0, GGML_TYPE_Q5_1, GGML_TYPE_IQ4_NL };

// GGML_TYPE_COUNT when there is none of that name
inline ggml_type cache_type_named(const char * name) {
    for (const ggml_type type : CACHE_TYPES) {
        if (std::strcmp(ggml_type_name(type), name) == 0) {
            return type;
        }
    }
    return GGML_TYPE_COUNT;
}

} // namespace pyclover
