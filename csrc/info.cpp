// What this build and this machine have.
#include "internal.hpp"

#include "cache_types.hpp"
#include "ggml-backend.h"
#include "llama-arch.h"

#include <cstdio>

using namespace pyclover;

extern "C" int pc_devices(pc_device * out, size_t capacity, size_t * n_devices) {
    return guarded([&] {
        required(n_devices, "n_devices");
        const size_t n = ggml_backend_dev_count();
        *n_devices = n;
        for (size_t i = 0; i < n && i < capacity; i++) {
            ggml_backend_dev_t device = ggml_backend_dev_get(i);
            ggml_backend_dev_props props{};
            ggml_backend_dev_get_props(device, &props);
            pc_device & d = out[i];
            d = {};
            std::snprintf(d.name, sizeof d.name, "%s", props.name);
            std::snprintf(d.description, sizeof d.description, "%s", props.description);
            const char * kind = "accel";
            switch (props.type) {
            case GGML_BACKEND_DEVICE_TYPE_CPU:
                kind = "cpu";
                break;
            case GGML_BACKEND_DEVICE_TYPE_GPU:
                kind = "gpu";
                break;
            case GGML_BACKEND_DEVICE_TYPE_IGPU:
                kind = "igpu";
                break;
            default:
                break;
            }
            std::snprintf(d.kind, sizeof d.kind, "%s", kind);
            d.total_bytes = props.memory_total;
            d.free_bytes = props.memory_free;
        }
    });
}

extern "C" int pc_system_info(pc_buffer * out) {
    return guarded([&] {
        const char * text = llama_print_system_info();
        give_bytes(out, text, std::strlen(text));
    });
}

extern "C" int pc_knows_architecture(const char * name, int32_t * out) {
    return guarded([&] {
        const llm_arch arch = llm_arch_from_string(required(name, "name"));
        // "clip" is known for quantizing only
        *required(out, "out") = arch != LLM_ARCH_UNKNOWN && arch != LLM_ARCH_CLIP ? 1 : 0;
    });
}

extern "C" int pc_cache_types(pc_buffer * out) {
    return guarded([&] {
        std::string names;
        for (const ggml_type type : CACHE_TYPES) {
            names += (names.empty() ? "" : " ");
            names += ggml_type_name(type);
        }
        give_bytes(out, names.data(), names.size());
    });
}
