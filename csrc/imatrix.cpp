// Importance matrices: what each weight is multiplied with.
#include "context.hpp"

#include "ggml-backend.h"
#include "ggml.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <vector>

using namespace pyclover;

namespace {

struct sums {
    size_t n_per_row = 0;
    uint64_t n_refused = 0;
    std::vector<double> values; // [n_matrices, n_per_row]
    std::vector<uint64_t> counts;

    // One row of activations that met the given matrix.
    void add(size_t matrix, const float * row) {
        // NaN and infinity survive every sum of squares
        float test = 0.0f;
        for (size_t i = 0; i < n_per_row; i++) {
            test += row[i] * 0.0f;
        }
        if (!(test == 0.0f)) {
            n_refused++;
            return;
        }
        double * to = values.data() + matrix * n_per_row;
        for (size_t i = 0; i < n_per_row; i++) {
            to[i] += (double) row[i] * row[i];
        }
        counts[matrix]++;
    }
};

// The name that the file gives the weight: a copy on another device is called DEVICE#NAME#NUMBER.
std::string weight_name(const ggml_tensor * weight) {
    const std::string name = weight->name;
    const size_t first = name.find('#');
    if (first == std::string::npos) {
        return name;
    }
    const size_t last = name.find('#', first + 1);
    return name.substr(first + 1, last == std::string::npos ? last : last - first - 1);
}

bool is_counted(const ggml_tensor * t) {
    if (t->op != GGML_OP_MUL_MAT && t->op != GGML_OP_MUL_MAT_ID) {
        return false;
    }
    const ggml_tensor * rows = t->src[1];
    if (rows->type != GGML_TYPE_F32 || rows->nb[0] != sizeof(float)) {
        return false;
    }
    const std::string name = weight_name(t->src[0]);
    return name.compare(0, 4, "blk.") == 0 && name.size() > 7 && name.compare(name.size() - 7, 7, ".weight") == 0;
}

} // namespace

struct pc_imatrix {
    std::map<std::string, sums> weights;
    std::string failure; // of the callback, which cannot report one

    void collect(const ggml_tensor * t);

  private:
    sums & of(const ggml_tensor * weight, size_t n_per_row, size_t n_matrices);

    std::vector<uint8_t> rows_here; // copies of what lies on a device
    std::vector<uint8_t> ids_here;
};

sums & pc_imatrix::of(const ggml_tensor * weight, size_t n_per_row, size_t n_matrices) {
    sums & s = weights[weight_name(weight)];
    if (s.counts.empty()) {
        s.n_per_row = n_per_row;
        s.values.resize(n_per_row * n_matrices);
        s.counts.resize(n_matrices);
    } else if (s.n_per_row != n_per_row || s.counts.size() != n_matrices) {
        throw error(PC_NATIVE_FAILURE, std::string("the weight ") + weight->name + " is used in two shapes");
    }
    return s;
}

void pc_imatrix::collect(const ggml_tensor * t) {
    const ggml_tensor * weight = t->src[0];
    const ggml_tensor * rows = t->src[1];
    const auto * data = static_cast<const uint8_t *>(rows->data);
    if (!ggml_backend_buffer_is_host(rows->buffer)) {
        rows_here.resize(ggml_nbytes(rows));
        ggml_backend_tensor_get(rows, rows_here.data(), 0, rows_here.size());
        data = rows_here.data();
    }
    const auto row_at = [&](int64_t i1, int64_t i2, int64_t i3) {
        return reinterpret_cast<const float *>(data + i1 * rows->nb[1] + i2 * rows->nb[2] + i3 * rows->nb[3]);
    };

    if (t->op == GGML_OP_MUL_MAT_ID) {
        // rows [n_per_row, n_used or 1, n_tokens], ids [n_used, n_tokens]
        const ggml_tensor * ids = t->src[2];
        sums & s = of(weight, (size_t) rows->ne[0], (size_t) weight->ne[2]);
        ids_here.resize(ggml_nbytes(ids));
        ggml_backend_tensor_get(ids, ids_here.data(), 0, ids_here.size());
        for (int64_t token = 0; token < ids->ne[1]; token++) {
            for (int64_t used = 0; used < ids->ne[0]; used++) {
                int32_t expert = -1;
                std::memcpy(&expert, ids_here.data() + token * ids->nb[1] + used * ids->nb[0], sizeof(expert));
                if (expert < 0 || expert >= weight->ne[2]) {
                    throw error(PC_NATIVE_FAILURE, std::string("a token of ") + weight->name + " goes to no expert");
                }
                s.add((size_t) expert, row_at(used % rows->ne[1], token, 0));
            }
        }
        return;
    }
    sums & s = of(weight, (size_t) rows->ne[0], (size_t) (weight->ne[2] * weight->ne[3]));
    for (int64_t i3 = 0; i3 < rows->ne[3]; i3++) {
        for (int64_t i2 = 0; i2 < rows->ne[2]; i2++) {
            const int64_t matrix = (i3 % weight->ne[3]) * weight->ne[2] + i2 % weight->ne[2];
            for (int64_t i1 = 0; i1 < rows->ne[1]; i1++) {
                s.add((size_t) matrix, row_at(i1, i2, i3));
            }
        }
    }
}

bool pyclover::collect_imatrix(ggml_tensor * t, bool ask, void * imatrix) {
    auto & self = *static_cast<pc_imatrix *>(imatrix);
    if (ask) {
        return self.failure.empty() && is_counted(t);
    }
    try {
        self.collect(t);
    } catch (const std::exception & e) {
        self.failure = e.what(); // asked for nothing more; the next call that reads it tells
    }
    return true;
}

namespace {

const pc_imatrix & sound(const pc_imatrix * imatrix) {
    if (!required(imatrix, "imatrix")->failure.empty()) {
        throw error(PC_NATIVE_FAILURE, "the importance matrix is incomplete: " + imatrix->failure);
    }
    return *imatrix;
}

} // namespace

extern "C" int pc_imatrix_create(pc_imatrix ** out) {
    return guarded([&] {
        *required(out, "out") = nullptr;
        *out = std::make_unique<pc_imatrix>().release();
    });
}

extern "C" void pc_imatrix_free(pc_imatrix * imatrix) {
    delete imatrix;
}

extern "C" int pc_imatrix_entries(const pc_imatrix * imatrix, pc_imatrix_entry * out, size_t capacity, size_t * n_entries) {
    return guarded([&] {
        const pc_imatrix & self = sound(imatrix);
        *required(n_entries, "n_entries") = self.weights.size();
        if (capacity < self.weights.size()) {
            return;
        }
        size_t i = 0;
        for (const auto & [name, s] : self.weights) {
            pc_imatrix_entry & entry = required(out, "out")[i++];
            entry = {};
            std::snprintf(entry.name, sizeof entry.name, "%s", name.c_str());
            entry.n_per_row = s.n_per_row;
            entry.n_matrices = s.counts.size();
            entry.n_refused = s.n_refused;
        }
    });
}

extern "C" int pc_imatrix_get(const pc_imatrix * imatrix, const char * name, double * sums, uint64_t * counts) {
    return guarded([&] {
        const pc_imatrix & self = sound(imatrix);
        const auto found = self.weights.find(required(name, "name"));
        if (found == self.weights.end()) {
            throw error(PC_BAD_ARGUMENT, std::string("no activations of ") + name + " were met");
        }
        std::copy(found->second.values.begin(), found->second.values.end(), required(sums, "sums"));
        std::copy(found->second.counts.begin(), found->second.counts.end(), required(counts, "counts"));
    });
}

extern "C" int pc_imatrix_clear(pc_imatrix * imatrix) {
    return guarded([&] { required(imatrix, "imatrix")->weights.clear(); });
}

extern "C" int pc_context_append(pc_context * context, const int32_t * tokens, size_t n_tokens) {
    return guarded([&] {
        pc_context & c = *required(context, "context");
        c.check_tokens(tokens, n_tokens);
        c.check_room(c.history.size() + n_tokens);
        const size_t most = std::max<size_t>(1, std::min<size_t>(c.n_batch, c.n_outputs));
        for (size_t done = 0; done < n_tokens;) {
            const size_t n = std::min(most, n_tokens - done);
            c.compute(tokens + done, n, true);
            done += n;
        }
    });
}
