// Conversations: templates and the parser of answers.
#include "chat.h"

#include "internal.hpp"

using namespace pyclover;

struct pc_chat_parser {
    common_chat_parser_params params;
};

namespace {

common_json parsed(const char * text, const char * what) {
    try {
        return common_json::parse(required(text, what));
    } catch (const common_json_error & e) {
        throw error(PC_BAD_ARGUMENT, std::string(what) + " is not JSON: " + e.what());
    }
}

common_chat_templates_inputs inputs_of(const common_json & request) {
    common_chat_templates_inputs inputs;
    inputs.messages = common_chat_msgs_parse_oaicompat(request.at("messages"));
    inputs.tools = common_chat_tools_parse_oaicompat(request.value("tools", common_json::array()));
    inputs.tool_choice = common_chat_tool_choice_parse_oaicompat(request.value("tool_choice", "auto"));
    inputs.json_schema = request.value("json_schema", "");
    inputs.add_generation_prompt = request.value("add_generation_prompt", true);
    inputs.enable_thinking = request.value("enable_thinking", true);
    inputs.parallel_tool_calls = request.value("parallel_tool_calls", false);
    inputs.reasoning_format = COMMON_REASONING_FORMAT_DEEPSEEK; // reasoning apart from content
    const common_json variables = request.value("chat_template_kwargs", common_json::object());
    for (const auto & item : variables.items()) {
        inputs.chat_template_kwargs[item.key()] = item.value().dump();
    }
    return inputs;
}

common_json triggers_of(const common_chat_params & made) {
    common_json out = common_json::array();
    for (const common_grammar_trigger & trigger : made.grammar_triggers) {
        out.push_back({ { "type", (int) trigger.type }, { "value", trigger.value } });
    }
    return out;
}

common_json prepared(const common_json & request) {
    const common_chat_templates_ptr templates = common_chat_templates_init(
        nullptr, request.at("template").get<std::string>(), request.value("bos_token", ""), request.value("eos_token", ""));
    common_chat_templates_inputs inputs = inputs_of(request);
    const std::map<std::string, bool> caps = common_chat_templates_get_caps(templates.get());
    if (!request.contains("parallel_tool_calls")) {
        const auto found = caps.find("supports_parallel_tool_calls");
        inputs.parallel_tool_calls = found != caps.end() && found->second;
    }
    const common_chat_params made = common_chat_templates_apply(templates.get(), inputs);
    common_json out = common_json::object();
    out["prompt"] = made.prompt;
    out["format"] = (int) made.format;
    out["parser"] = made.parser;
    out["generation_prompt"] = made.generation_prompt;
    out["grammar"] = made.grammar;
    out["grammar_lazy"] = made.grammar_lazy;
    out["grammar_triggers"] = triggers_of(made);
    out["preserved_tokens"] = made.preserved_tokens;
    out["stops"] = made.additional_stops;
    out["thinking_start"] = made.thinking_start_tag;
    out["thinking_ends"] = made.thinking_end_tags;
    out["supports_thinking"] = made.supports_thinking;
    out["caps"] = caps;
    return out;
}

void give_json(pc_buffer * out, const common_json & value) {
    const std::string text = value.dump_safe();
    give_bytes(out, text.data(), text.size());
}

} // namespace

extern "C" int pc_chat_prepare(const char * request, pc_buffer * out) {
    return guarded([&] {
        const common_json asked = parsed(request, "request");
        try {
            give_json(required(out, "out"), prepared(asked));
        } catch (const error &) {
            throw;
        } catch (const assertion &) {
            throw;
        } catch (const std::bad_alloc &) {
            throw;
        } catch (const std::exception & e) {
            throw error(PC_BAD_ARGUMENT, e.what());
        }
    });
}

extern "C" int pc_chat_parser_create(const char * prepared, pc_chat_parser ** out) {
    return guarded([&] {
        *required(out, "out") = nullptr;
        const common_json from = parsed(prepared, "prepared");
        auto made = std::make_unique<pc_chat_parser>();
        common_chat_parser_params & params = made->params;
        const int format = from.value("format", 0);
        if (format < 0 || format >= COMMON_CHAT_FORMAT_COUNT) {
            throw error(PC_BAD_ARGUMENT, "no chat format has the number " + std::to_string(format));
        }
        params.format = (common_chat_format) format;
        params.reasoning_format = COMMON_REASONING_FORMAT_DEEPSEEK;
        params.generation_prompt = from.value("generation_prompt", "");
        params.parse_tool_calls = from.value("parse_tool_calls", true);
        const std::string rules = from.value("parser", "");
        if (!rules.empty()) {
            params.parser.load(rules);
        }
        *out = made.release();
    });
}

extern "C" void pc_chat_parser_free(pc_chat_parser * parser) {
    delete parser;
}

extern "C" int pc_chat_parser_parse(const pc_chat_parser * parser, const char * text, size_t size, int32_t is_partial,
                                    pc_buffer * out) {
    return guarded([&] {
        required(parser, "parser");
        required(out, "out");
        const std::string given(required(text, "text"), size);
        const common_chat_msg message = common_chat_parse(given, is_partial != 0, parser->params);
        common_json calls = common_json::array();
        for (const common_chat_tool_call & call : message.tool_calls) {
            calls.push_back({ { "id", call.id }, { "name", call.name }, { "arguments", call.arguments } });
        }
        common_json answer = common_json::object();
        answer["content"] = message.content;
        answer["reasoning_content"] = message.reasoning_content;
        answer["tool_calls"] = calls;
        give_json(out, answer);
    });
}
