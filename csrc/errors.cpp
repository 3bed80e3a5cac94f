// Statuses, messages, assertions, buffers, start-up.
#include "internal.hpp"
#include "log.h"

#include <cstdio>
#include <cstdlib>
#include <mutex>

namespace pyclover {

namespace {

thread_local std::string last_message;
thread_local int n_throwing_scopes = 0;

// ggml calls this where it would abort. Threads of the compute pool and code outside of our calls keep the abort: there
// is no one to catch an exception.
void on_ggml_abort(const char * message) {
    if (n_throwing_scopes > 0) {
        // "/folder/of/the/build/ggml.c:12: reason": the folder says nothing to the reader
        const char * colon = std::strchr(message, ':');
        const char * name = message;
        for (const char * c = message; colon != nullptr && c < colon; c++) {
            if (*c == '/' || *c == '\\') {
                name = c + 1;
            }
        }
        throw assertion(name);
    }
    std::fprintf(stderr, "%s\n", message);
}

} // namespace

assertions_throw::assertions_throw() noexcept {
    n_throwing_scopes++;
}

assertions_throw::~assertions_throw() {
    n_throwing_scopes--;
}

void install_abort_handler() noexcept {
    ggml_set_abort_callback(on_ggml_abort);
}

int report(pc_status status, const std::string & message) noexcept {
    try {
        last_message = message;
    } catch (...) {
        last_message.clear();
    }
    return status;
}

int report_current_exception() noexcept {
    try {
        throw;
    } catch (const error & e) {
        return report(e.status, e.what());
    } catch (const std::bad_alloc &) {
        return report(PC_OUT_OF_MEMORY, NO_MEMORY);
    } catch (const assertion & e) {
        if (says_out_of_memory(e.what())) {
            return report(PC_OUT_OF_MEMORY, NO_MEMORY);
        }
        return report(PC_NATIVE_FAILURE, std::string("a check inside llama.cpp failed: ") + e.what());
    } catch (const std::exception & e) {
        if (std::strstr(e.what(), "empty grammar stack") != nullptr) {
            return report(PC_BAD_GRAMMAR, "the grammar allows none of the vocabulary's tokens here: change it");
        }
        return report(PC_NATIVE_FAILURE, e.what());
    } catch (...) {
        return report(PC_NATIVE_FAILURE, "an unknown failure in native code");
    }
}

void give_bytes(pc_buffer * out, const void * data, size_t size) {
    required(out, "out");
    out->data = static_cast<char *>(std::malloc(size > 0 ? size : 1));
    if (out->data == nullptr) {
        out->size = 0;
        throw std::bad_alloc();
    }
    if (size > 0) {
        std::memcpy(out->data, data, size);
    }
    out->size = size;
}

} // namespace pyclover

using namespace pyclover;

extern "C" const char * pc_last_error(void) {
    return last_message.c_str();
}

extern "C" void pc_buffer_free(pc_buffer * buffer) {
    if (buffer != nullptr) {
        std::free(buffer->data);
        buffer->data = nullptr;
        buffer->size = 0;
    }
}

extern "C" int pc_init(void) {
    static std::once_flag once;
    return guarded([] {
        std::call_once(once, [] {
            install_abort_handler();
            pc_log_set_level(PC_LOG_INFO);
            common_log_set_verbosity_thold(-1); // common/ writes to the terminal by itself
            llama_backend_init();
        });
    });
}
