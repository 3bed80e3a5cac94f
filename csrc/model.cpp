// Models and their vocabulary.
#include "internal.hpp"

using namespace pyclover;

namespace {

struct load_watch {
    pc_progress_fn progress;
    void * user;
    bool stopped = false;
    std::exception_ptr failure; // thrown by the callback's surroundings; must not pass llama.cpp's loader

    static bool on_progress(float fraction, void * self) {
        auto * watch = static_cast<load_watch *>(self);
        if (watch->progress != nullptr && watch->progress(fraction, watch->user) != 0) {
            watch->stopped = true;
            return false;
        }
        return true;
    }
};

// Names of the routed experts' tensors in the first n layers; in all when n is negative or more than any model has.
std::string experts_of_layers(int32_t n) {
    const bool all = n < 0 || n > 999;
    std::string layers = all ? "[0-9]+" : "";
    for (int32_t i = 0; !all && i < n; i++) {
        layers += (i > 0 ? "|" : "") + std::to_string(i);
    }
    return "^blk\\.(" + layers + ")\\.ffn_[a-z_]+_exps\\.";
}

void check_token(const pc_model * model, int32_t token) {
    if (token < 0 || token >= model->n_vocab) {
        throw error(PC_BAD_ARGUMENT,
                    "token id " + std::to_string(token) + " is not in the vocabulary of " + std::to_string(model->n_vocab));
    }
}

} // namespace

extern "C" int pc_model_load(const char * path, const pc_model_params * params, pc_model ** out) {
    return guarded([&] {
        required(path, "path");
        required(params, "params");
        *required(out, "out") = nullptr;
        clear_error_lines();

        load_watch watch{ params->progress, params->user, false, nullptr };

        auto handle = std::make_unique<pc_model>();
        llama_model_params lp = llama_model_default_params();
        lp.n_gpu_layers = params->n_gpu_layers;
        if (params->n_cpu_moe != 0) {
            handle->expert_pattern = experts_of_layers(params->n_cpu_moe);
            handle->placed[0] = { handle->expert_pattern.c_str(), ggml_backend_cpu_buffer_type() };
            lp.tensor_buft_overrides = handle->placed; // ended by an empty entry
        }
        lp.main_gpu = params->main_gpu;
        lp.load_mode = params->mmap != 0 ? (params->mlock != 0 ? LLAMA_LOAD_MODE_MMAP_MLOCK : LLAMA_LOAD_MODE_MMAP)
                                         : (params->mlock != 0 ? LLAMA_LOAD_MODE_MLOCK : LLAMA_LOAD_MODE_NONE);
        lp.check_tensors = params->check_tensors != 0;
        lp.vocab_only = params->vocab_only != 0;
        lp.progress_callback = load_watch::on_progress;
        lp.progress_callback_user_data = &watch;

        llama_model * loaded = llama_model_load_from_file(path, lp);
        if (loaded == nullptr) {
            if (watch.stopped) {
                throw error(PC_CANCELLED, "loading was stopped");
            }
            const std::string why = telling_error_line();
            throw error(error_lines_say_out_of_memory() ? PC_OUT_OF_MEMORY : PC_LOAD_FAILED,
                        why.empty() ? "llama.cpp gave no reason" : why);
        }
        handle->model = loaded;
        handle->vocab = llama_model_get_vocab(loaded);
        handle->n_vocab = llama_vocab_n_tokens(handle->vocab);
        handle->recurrent = llama_model_is_recurrent(loaded) || llama_model_is_hybrid(loaded);
        *out = handle.release();
    });
}

extern "C" void pc_model_free(pc_model * model) {
    if (model != nullptr) {
        llama_model_free(model->model);
        delete model;
    }
}

extern "C" int pc_model_get_info(const pc_model * model, pc_model_info * out) {
    return guarded([&] {
        required(model, "model");
        required(out, "out");
        const llama_model * m = model->model;
        *out = {};
        out->n_vocab = model->n_vocab;
        out->n_ctx_train = llama_model_n_ctx_train(m);
        out->n_embd = llama_model_n_embd(m);
        out->n_layer = llama_model_n_layer(m);
        out->n_params = llama_model_n_params(m);
        out->size_bytes = llama_model_size(m);
        out->recurrent = model->recurrent ? 1 : 0;
        out->has_decoder = llama_model_has_decoder(m) ? 1 : 0;
        out->has_encoder = llama_model_has_encoder(m) ? 1 : 0;
        out->diffusion = llama_model_is_diffusion(m) ? 1 : 0;
        out->add_bos = llama_vocab_get_add_bos(model->vocab) ? 1 : 0;
        out->bos = llama_vocab_bos(model->vocab);
        out->eos = llama_vocab_eos(model->vocab);
        out->eot = llama_vocab_eot(model->vocab);
        out->mask = llama_vocab_mask(model->vocab);
    });
}

extern "C" int pc_tokenize(const pc_model * model, const char * text, size_t size, int32_t add_special, int32_t parse_special,
                           int32_t * out, size_t capacity, size_t * n_tokens) {
    return guarded([&] {
        required(model, "model");
        required(n_tokens, "n_tokens");
        if (size > 0) {
            required(text, "text");
        }
        if (size > INT32_MAX / 4 || capacity > INT32_MAX) {
            throw error(PC_BAD_ARGUMENT, "the text is too long to be tokenized at once (512 MiB at most)");
        }
        const int32_t n = llama_tokenize(model->vocab, size > 0 ? text : "", (int32_t) size, out, (int32_t) capacity,
                                         add_special != 0, parse_special != 0);
        if (n == INT32_MIN) {
            throw error(PC_BAD_ARGUMENT, "the text has too many tokens");
        }
        *n_tokens = (size_t) (n < 0 ? -(int64_t) n : n);
    });
}

extern "C" int pc_token_piece(const pc_model * model, int32_t token, int32_t special, char * out, size_t capacity,
                              size_t * n_bytes) {
    return guarded([&] {
        required(model, "model");
        required(n_bytes, "n_bytes");
        check_token(model, token);
        const int32_t n = llama_token_to_piece(model->vocab, token, out, (int32_t) capacity, 0, special != 0);
        *n_bytes = (size_t) (n < 0 ? -n : n);
    });
}

extern "C" int pc_detokenize(const pc_model * model, const int32_t * tokens, size_t n_tokens, int32_t remove_special,
                             int32_t unparse_special, pc_buffer * out) {
    return guarded([&] {
        required(model, "model");
        if (n_tokens > 0) {
            required(tokens, "tokens");
        }
        if (n_tokens > INT32_MAX) {
            throw error(PC_BAD_ARGUMENT, "too many tokens");
        }
        for (size_t i = 0; i < n_tokens; i++) {
            check_token(model, tokens[i]);
        }
        std::string text(n_tokens * 8 + 16, '\0');
        for (int attempt = 0; attempt < 2; attempt++) {
            const int32_t n = llama_detokenize(model->vocab, tokens, (int32_t) n_tokens, text.data(), (int32_t) text.size(),
                                               remove_special != 0, unparse_special != 0);
            if (n >= 0) {
                give_bytes(out, text.data(), (size_t) n);
                return;
            }
            text.resize((size_t) -n);
        }
        throw error(PC_NATIVE_FAILURE, "llama.cpp could not put the tokens together");
    });
}

extern "C" int pc_token_is_end(const pc_model * model, int32_t token, int32_t * out) {
    return guarded([&] {
        check_token(required(model, "model"), token);
        *required(out, "out") = llama_vocab_is_eog(model->vocab, token) ? 1 : 0;
    });
}
