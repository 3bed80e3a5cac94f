// Shared by the sources of the C interface; not seen by Python.
#pragma once

#include "llama.h"
#include "pyclover.h"
#include "sampling.h"

#include <atomic>
#include <chrono>
#include <cstring>
#include <exception>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

namespace pyclover {

// A failure with the status that the caller gets.
class error : public std::runtime_error {
  public:
    error(pc_status status, const std::string & message) : std::runtime_error(message), status(status) {}

    const pc_status status;
};

// An assertion of llama.cpp, turned into an exception by the abort callback.
class assertion : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

int report(pc_status status, const std::string & message) noexcept;
int report_current_exception() noexcept;
void install_abort_handler() noexcept;

// While one of these lives, llama.cpp's assertions in this thread are thrown instead of ending the process.
class assertions_throw {
  public:
    assertions_throw() noexcept;
    ~assertions_throw();
    assertions_throw(const assertions_throw &) = delete;
    assertions_throw & operator=(const assertions_throw &) = delete;
};

// Runs the body of an interface function: every exception becomes a status.
template <typename F> int guarded(F && body) noexcept {
    try {
        assertions_throw scope;
        body();
        return PC_OK;
    } catch (...) {
        return report_current_exception();
    }
}

// Error lines that llama.cpp logged in this thread since clear(), the most telling one for a message.
void clear_error_lines();
std::string telling_error_line();
bool error_lines_say_out_of_memory();
bool says_out_of_memory(const std::string & line);
constexpr const char * NO_MEMORY = "the system has no memory left";

// Eval callback of a context whose activations are summed up; `imatrix` is the pc_imatrix.
bool collect_imatrix(ggml_tensor * t, bool ask, void * imatrix);

void give_bytes(pc_buffer * out, const void * data, size_t size);

template <typename T> T * required(T * pointer, const char * what) {
    if (pointer == nullptr) {
        throw error(PC_BAD_ARGUMENT, std::string(what) + " must not be NULL");
    }
    return pointer;
}

class stopwatch {
  public:
    explicit stopwatch(double & total_s) : total(total_s), start(clock::now()) {}
    ~stopwatch() { stop(); }
    stopwatch(const stopwatch &) = delete;
    stopwatch & operator=(const stopwatch &) = delete;

    void stop() {
        if (running) {
            total += std::chrono::duration<double>(clock::now() - start).count();
            running = false;
        }
    }

  private:
    using clock = std::chrono::steady_clock;
    bool running = true;
    double & total;
    clock::time_point start;
};

} // namespace pyclover

struct pc_model {
    llama_model * model = nullptr;
    const llama_vocab * vocab = nullptr;
    int32_t n_vocab = 0;
    bool recurrent = false;
    // where the routed experts are; llama.cpp keeps a pointer to both
    std::string expert_pattern;
    llama_model_tensor_buft_override placed[2] = {};
};

struct pc_sampler {
    common_sampler * sampler = nullptr;
    uint32_t seed = 0;
    bool argmax = false; // greedy with nothing that changes logits: no candidate list is needed
};
