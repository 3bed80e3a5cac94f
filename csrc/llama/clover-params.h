#ifndef CLOVER_PARAMS_H
#define CLOVER_PARAMS_H // not a pragma: the compiler may meet this file at two places, here and in llama.cpp's tree

// How the block pass of clover_moe computes. What nothing public settles is a value here, so that it can change without
// another design: these defaults, then the file's metadata (clover_moe.diffusion.*), then the context's own.

#include <cstdint>
#include <cstring>
#include <initializer_list>

enum clover_activation : uint32_t {
    CLOVER_ACTIVATION_NONE,
    CLOVER_ACTIVATION_EXP,
    CLOVER_ACTIVATION_SOFTPLUS,
};

enum clover_history : uint32_t {
    CLOVER_HISTORY_SCALED, // the state is read by q / sqrt(head size), as the causal layer does
    CLOVER_HISTORY_UNIT,   // by the unit vector q
};

struct clover_block_params {
    uint32_t block_length = 32; // rows that the model was trained with
    bool shift_logits = false;  // row t is about position t + 1 instead of its own

    // experts that a block may use, 0: all. By count, or by the share of the rows' votes that they hold.
    uint32_t expert_coreset = 0;
    float expert_coreset_share = 0.0f;
    uint32_t expert_coreset_min = 16; // with a share: at least so many

    clover_activation scale_activation = CLOVER_ACTIVATION_NONE; // of ssm_bd_logit_scale
    clover_history history_query = CLOVER_HISTORY_SCALED;

    bool operator==(const clover_block_params & other) const {
        return block_length == other.block_length && shift_logits == other.shift_logits &&
               expert_coreset == other.expert_coreset && expert_coreset_share == other.expert_coreset_share &&
               expert_coreset_min == other.expert_coreset_min && scale_activation == other.scale_activation &&
               history_query == other.history_query;
    }
};

static constexpr uint32_t CLOVER_BLOCK_MAX = 32; // rows of a block

inline const char * clover_activation_name(clover_activation value) {
    switch (value) {
    case CLOVER_ACTIVATION_NONE:
        return "none";
    case CLOVER_ACTIVATION_EXP:
        return "exp";
    case CLOVER_ACTIVATION_SOFTPLUS:
        return "softplus";
    }
    return "";
}

inline const char * clover_history_name(clover_history value) {
    return value == CLOVER_HISTORY_SCALED ? "scaled" : "unit";
}

inline bool clover_activation_from_name(const char * name, clover_activation & out) {
    for (const clover_activation value : { CLOVER_ACTIVATION_NONE, CLOVER_ACTIVATION_EXP, CLOVER_ACTIVATION_SOFTPLUS }) {
        if (std::strcmp(name, clover_activation_name(value)) == 0) {
            out = value;
            return true;
        }
    }
    return false;
}

inline bool clover_history_from_name(const char * name, clover_history & out) {
    for (const clover_history value : { CLOVER_HISTORY_SCALED, CLOVER_HISTORY_UNIT }) {
        if (std::strcmp(name, clover_history_name(value)) == 0) {
            out = value;
            return true;
        }
    }
    return false;
}

// What is wrong with the values, beginning with the name of one; nullptr: nothing.
inline const char * clover_block_params_error(const clover_block_params & p, uint32_t n_expert, uint32_t n_expert_used) {
    if (p.block_length < 1 || p.block_length > CLOVER_BLOCK_MAX) {
        return "block_length must be between 1 and 32";
    }
    if (p.expert_coreset > n_expert) {
        return "expert_coreset must be at most the number of experts";
    }
    if (p.expert_coreset != 0 && p.expert_coreset < n_expert_used) {
        return "expert_coreset must be 0 or at least the number of experts that a token uses";
    }
    if (!(p.expert_coreset_share >= 0.0f && p.expert_coreset_share <= 1.0f)) {
        return "expert_coreset_share must be between 0 and 1";
    }
    return nullptr;
}

#endif
