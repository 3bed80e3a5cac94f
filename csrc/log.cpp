// Log ring and the error lines of the running call.
#include "internal.hpp"

#include <algorithm>
#include <array>
#include <deque>
#include <mutex>

namespace pyclover {

namespace {

constexpr size_t MAX_LINES = 2000;
constexpr size_t MAX_LINE_BYTES = 4096;
constexpr size_t MAX_ERROR_LINES = 32;

struct ring {
    std::mutex mutex;
    std::deque<std::string> lines; // "<level digit> <text>"
    std::string partial;
    char partial_level = '0' + PC_LOG_INFO;
    uint64_t n_lost = 0;
};

// never destroyed: a pool thread may log while the process ends
ring & the_ring() {
    static auto * instance = new ring;
    return *instance;
}

std::atomic<int> minimum_level{ PC_LOG_INFO };
thread_local std::vector<std::string> error_lines;

int level_of(ggml_log_level level) {
    switch (level) {
    case GGML_LOG_LEVEL_ERROR:
        return PC_LOG_ERROR;
    case GGML_LOG_LEVEL_WARN:
        return PC_LOG_WARN;
    case GGML_LOG_LEVEL_DEBUG:
        return PC_LOG_DEBUG;
    default:
        return PC_LOG_INFO;
    }
}

void push(ring & r, char level, std::string text) {
    while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) {
        text.pop_back();
    }
    if (text.empty() || text == ".") { // llama.cpp prints a dot for each percent that it loaded
        return;
    }
    for (char & c : text) {
        if (c == '\n') {
            c = ' ';
        }
    }
    if (text.size() > MAX_LINE_BYTES) {
        text.resize(MAX_LINE_BYTES);
    }
    if (r.lines.size() >= MAX_LINES) {
        r.lines.pop_front();
        r.n_lost++;
    }
    r.lines.push_back(std::string(1, level) + ' ' + std::move(text));
}

void on_log(ggml_log_level level, const char * text, void * /*user*/) {
    try {
        if (text == nullptr) {
            return;
        }
        if (level == GGML_LOG_LEVEL_ERROR && error_lines.size() < MAX_ERROR_LINES) {
            error_lines.emplace_back(text);
        }
        ring & r = the_ring();
        std::lock_guard<std::mutex> lock(r.mutex);
        if (level == GGML_LOG_LEVEL_CONT) {
            r.partial += text;
        } else {
            const int ours = level_of(level);
            if (ours < minimum_level) {
                return;
            }
            if (!r.partial.empty()) {
                push(r, r.partial_level, std::move(r.partial));
            }
            r.partial = text;
            r.partial_level = static_cast<char>('0' + ours);
        }
        if (!r.partial.empty() && (r.partial.back() == '\n' || r.partial.size() > MAX_LINE_BYTES)) {
            push(r, r.partial_level, std::move(r.partial));
            r.partial.clear();
        }
    } catch (...) { // out of memory while logging: the line is lost, the program goes on
    }
}

bool contains(const std::string & text, const char * part) {
    return text.find(part) != std::string::npos;
}

std::string without_prefix(std::string line) {
    if (contains(line, "GGML_ASSERT") && says_out_of_memory(line)) {
        return NO_MEMORY;
    }
    while (!line.empty() && line.back() == '\n') {
        line.pop_back();
    }
    // the innermost reason stands last: "a: error loading model: error loading model hyperparameters: key not found ..."
    static const std::array<const char *, 4> introductions = { "error loading model hyperparameters: ",
                                                               "error loading model vocabulary: ", "error loading model: ",
                                                               "failed to initialize the context: " };
    for (const char * introduction : introductions) {
        const size_t at = line.find(introduction);
        if (at != std::string::npos) {
            return line.substr(at + std::strlen(introduction));
        }
    }
    return line;
}

} // namespace

void clear_error_lines() {
    error_lines.clear();
}

std::string telling_error_line() {
    for (const auto & line : error_lines) {
        if (contains(line, "error loading model") || contains(line, "failed to initialize the context")) {
            return without_prefix(line);
        }
    }
    return error_lines.empty() ? std::string() : without_prefix(error_lines.front());
}

bool says_out_of_memory(const std::string & line) {
    // the last four: what ggml asserts right after it has asked the system for memory
    for (const char * words : { "failed to allocate", "unable to allocate", "out of memory", "cannot allocate", "bad_alloc",
                                NO_MEMORY, "mem_buffer != NULL", "galloc != NULL", "bufts != NULL", "buffers != NULL" }) {
        if (contains(line, words)) {
            return true;
        }
    }
    return false;
}

bool error_lines_say_out_of_memory() {
    return std::any_of(error_lines.begin(), error_lines.end(), says_out_of_memory);
}

} // namespace pyclover

using namespace pyclover;

extern "C" int pc_log_set_level(int level) {
    return guarded([&] {
        if (level < PC_LOG_DEBUG || level > PC_LOG_ERROR) {
            throw error(PC_BAD_ARGUMENT, "the log level must be 1 (debug) to 4 (error)");
        }
        minimum_level = level;
        llama_log_set(on_log, nullptr); // also ggml's
    });
}

extern "C" int pc_log_drain(pc_buffer * out, uint64_t * n_lost) {
    return guarded([&] {
        required(out, "out");
        required(n_lost, "n_lost");
        std::deque<std::string> lines;
        {
            ring & r = the_ring();
            std::lock_guard<std::mutex> lock(r.mutex);
            lines.swap(r.lines);
            *n_lost = r.n_lost;
            r.n_lost = 0;
        }
        std::string all;
        for (const auto & line : lines) {
            all += line;
            all += '\n';
        }
        give_bytes(out, all.data(), all.size());
    });
}
