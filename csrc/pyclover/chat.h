/* Conversations: what a chat template makes of them, and the parser of answers (llama.cpp's common/chat). JSON in and out. */
#pragma once

#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* cffi: begin */
typedef struct pc_chat_parser pc_chat_parser;

/* Runs a template, which may never end and may take any memory: call it in a process that can be given up.
 * request: {"template", "bos_token", "eos_token", "messages", "tools", "tool_choice", "parallel_tool_calls",
 * "enable_thinking", "chat_template_kwargs", "add_generation_prompt", "json_schema"}; messages and tools as in OpenAI's API.
 * out: {"prompt", "format", "parser", "generation_prompt", "grammar", "grammar_lazy", "grammar_triggers",
 * "preserved_tokens", "stops", "thinking_start", "thinking_ends", "supports_thinking", "caps"}. */
int pc_chat_prepare(const char * request, pc_buffer * out);

/* prepared: what pc_chat_prepare() gave, with "parse_tool_calls" (default true). */
int pc_chat_parser_create(const char * prepared, pc_chat_parser ** out);
void pc_chat_parser_free(pc_chat_parser * parser);

/* The message in a text that was generated: {"content", "reasoning_content", "tool_calls": [{"id", "name", "arguments"}]}.
 * is_partial: more text follows. */
int pc_chat_parser_parse(const pc_chat_parser * parser, const char * text, size_t size, int32_t is_partial, pc_buffer * out);
/* cffi: end */

#ifdef __cplusplus
}
#endif
