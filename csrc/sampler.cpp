// Sampler chains.
#include "grammar.hpp"
#include "internal.hpp"
#include "json-schema-to-grammar.h"

#include <cmath>

using namespace pyclover;

namespace {

std::string grammar_of_schema(const char * json_schema) {
    try {
        return json_schema_to_grammar(common_json::parse(json_schema));
    } catch (const assertion &) {
        throw;
    } catch (const std::exception & e) {
        std::string why = e.what(); // "JSON schema conversion failed:\nJSON schema error at #: ..."
        for (const char * introduction : { "conversion failed:\n", "JSON schema error " }) {
            const size_t found = why.find(introduction);
            why = found == std::string::npos ? why : why.substr(found + std::strlen(introduction));
        }
        throw error(PC_BAD_GRAMMAR, "the JSON schema cannot be turned into a grammar: " + why.substr(0, 300));
    }
}

llama_tokens tokens_of(const pc_model * model, const std::string & text) {
    return common_tokenize(model->vocab, text, false, true);
}

// A grammar of tool calls starts at a trigger, and stays out of the way while the model thinks.
void add_triggers(const pc_model * model, const common_json & chat, common_params_sampling & out) {
    for (const common_json & text : chat.value("preserved_tokens", common_json::array())) {
        const llama_tokens tokens = tokens_of(model, text.get<std::string>());
        if (tokens.size() == 1) {
            out.preserved_tokens.insert(tokens[0]);
        }
    }
    for (const common_json & item : chat.value("grammar_triggers", common_json::array())) {
        common_grammar_trigger trigger;
        trigger.type = (common_grammar_trigger_type) item.at("type").get<int>();
        trigger.value = item.at("value").get<std::string>();
        if (trigger.type == COMMON_GRAMMAR_TRIGGER_TYPE_WORD) {
            const llama_tokens tokens = tokens_of(model, trigger.value);
            if (tokens.size() == 1 && out.preserved_tokens.count(tokens[0]) != 0) {
                trigger.type = COMMON_GRAMMAR_TRIGGER_TYPE_TOKEN;
                trigger.token = tokens[0];
            }
        }
        out.grammar_triggers.push_back(trigger);
    }
    out.grammar_lazy = chat.value("grammar_lazy", false);
    if (out.grammar_lazy && out.grammar_triggers.empty()) {
        throw error(PC_BAD_ARGUMENT, "a lazy grammar needs triggers");
    }
}

void add_thinking(const pc_model * model, const common_json & chat, common_params_sampling & out) {
    const std::string start = chat.value("thinking_start", "");
    for (const common_json & end : chat.value("thinking_ends", common_json::array())) {
        const llama_tokens tokens = tokens_of(model, end.get<std::string>());
        if (!tokens.empty()) {
            out.reasoning_budget_end.push_back(tokens);
        }
    }
    if (start.empty() || out.reasoning_budget_end.empty()) {
        return;
    }
    out.reasoning_budget_start = tokens_of(model, start);
    out.reasoning_budget_tokens = chat.value("thinking_budget", -1);
    out.reasoning_budget_forced = tokens_of(model, chat.value("thinking_message", ""));
    const llama_tokens & end = out.reasoning_budget_end.front();
    out.reasoning_budget_forced.insert(out.reasoning_budget_forced.end(), end.begin(), end.end());
}

void add_chat(const pc_model * model, const char * text, common_params_sampling & out) {
    try {
        const common_json chat = common_json::parse(text);
        out.generation_prompt = chat.value("generation_prompt", "");
        if (!out.grammar.empty()) {
            out.grammar.type = COMMON_GRAMMAR_TYPE_TOOL_CALLS; // of the whole answer: what the prompt opened is part of it
            add_triggers(model, chat, out);
        }
        add_thinking(model, chat, out);
    } catch (const common_json_error & e) {
        throw error(PC_BAD_ARGUMENT, std::string("chat settings: ") + e.what());
    }
}

common_params_sampling translated(const pc_model * model, const pc_sampler_params & p) {
    common_params_sampling out;
    out.seed = p.seed;
    out.temp = p.temperature;
    out.top_k = p.top_k;
    out.top_p = p.top_p;
    out.min_p = p.min_p;
    out.typ_p = p.typical_p;
    out.penalty_repeat = p.repeat_penalty;
    out.penalty_last_n = p.repeat_last_n;
    out.penalty_freq = p.frequency_penalty;
    out.penalty_present = p.presence_penalty;
    out.dry_multiplier = p.dry_multiplier;
    out.dry_base = p.dry_base;
    out.dry_allowed_length = p.dry_allowed_length;
    out.dry_penalty_last_n = p.dry_penalty_last_n;
    out.ignore_eos = p.ignore_eos != 0;
    out.no_perf = true;
    for (size_t i = 0; i < p.n_bias; i++) {
        const int32_t token = p.bias_tokens[i];
        if (token < 0 || token >= model->n_vocab) {
            throw error(PC_BAD_ARGUMENT, "logit_bias names token " + std::to_string(token) +
                                             ", which is not in the vocabulary of " + std::to_string(model->n_vocab));
        }
        out.logit_bias.push_back({ token, p.bias_values[i] });
    }
    if (out.ignore_eos) {
        for (int32_t token = 0; token < model->n_vocab; token++) {
            if (llama_vocab_is_eog(model->vocab, token)) {
                out.logit_bias.push_back({ token, -INFINITY });
            }
        }
    }
    if (p.grammar != nullptr) {
        grammar_check::run(model->vocab, p.grammar);
        out.grammar = { COMMON_GRAMMAR_TYPE_USER, p.grammar };
    }
    if (p.chat != nullptr) {
        add_chat(model, p.chat, out);
    }
    return out;
}

bool is_plain_argmax(const pc_model * model, const common_params_sampling & p) {
    int32_t n_suppressed = 0;
    llama_vocab_get_suppress_tokens(model->vocab, &n_suppressed);
    const bool penalties =
        p.penalty_last_n != 0 && (p.penalty_repeat != 1.0f || p.penalty_freq != 0.0f || p.penalty_present != 0.0f);
    const bool dry = p.dry_multiplier != 0.0f;
    return p.temp <= 0.0f && !penalties && !dry && p.logit_bias.empty() && p.grammar.empty() && p.reasoning_budget_tokens < 0 &&
           n_suppressed == 0;
}

} // namespace

extern "C" int pc_sampler_create(const pc_model * model, const pc_sampler_params * params, pc_sampler ** out) {
    return guarded([&] {
        required(model, "model");
        required(params, "params");
        *required(out, "out") = nullptr;
        clear_error_lines();
        common_params_sampling settings = translated(model, *params);
        common_sampler * made = nullptr;
        try {
            made = common_sampler_init(model->model, settings);
        } catch (const assertion &) {
            throw;
        } catch (const std::exception & e) {
            throw error(settings.grammar.empty() ? PC_BAD_ARGUMENT : PC_BAD_GRAMMAR, e.what());
        }
        if (made == nullptr) {
            throw error(PC_BAD_GRAMMAR, "llama.cpp could not use the grammar");
        }
        auto * handle = new pc_sampler;
        handle->sampler = made;
        handle->seed = common_sampler_get_seed(made);
        handle->argmax = is_plain_argmax(model, settings);
        *out = handle;
    });
}

extern "C" void pc_sampler_free(pc_sampler * sampler) {
    if (sampler != nullptr) {
        common_sampler_free(sampler->sampler);
        delete sampler;
    }
}

extern "C" int pc_sampler_seed(const pc_sampler * sampler, uint32_t * out) {
    return guarded([&] { *required(out, "out") = required(sampler, "sampler")->seed; });
}

extern "C" int pc_sampler_accept(pc_sampler * sampler, const int32_t * tokens, size_t n_tokens) {
    return guarded([&] {
        required(sampler, "sampler");
        for (size_t i = 0; i < n_tokens; i++) {
            common_sampler_accept(sampler->sampler, tokens[i], false); // false: not generated, the grammar starts after it
        }
    });
}

extern "C" int pc_grammar_check(const char * grammar) {
    return guarded([&] { grammar_check::run(nullptr, required(grammar, "grammar")); });
}

extern "C" int pc_schema_to_grammar(const char * json_schema, pc_buffer * out) {
    return guarded([&] {
        const std::string grammar = grammar_of_schema(required(json_schema, "json_schema"));
        give_bytes(out, grammar.data(), grammar.size());
    });
}
