"""The template for files that have none: ChatML with thinking, and tool calls as in Hermes.

The rules are those of Qwen3.x: the thinking of earlier questions is left out, that since the last question is kept
(a loop of tool calls goes on with its thoughts), an answer opens with <think>, or with an empty thought when thinking
is off.
"""

from __future__ import annotations

NOTE = (
    "the file has no chat template: pyclover's own (ChatML with thinking) is used, and may not be what the model knows"
)

TEMPLATE = """\
{%- set ns = namespace(question=-1) %}
{%- for message in messages %}
    {%- if message.role == 'user' %}{%- set ns.question = loop.index0 %}{%- endif %}
{%- endfor %}
{%- set has_system = messages and messages[0].role == 'system' %}
{%- if tools or has_system %}
    {{- '<|im_start|>system\\n' }}
    {%- if has_system %}{{- messages[0].content }}{%- endif %}
    {%- if tools %}
        {%- if has_system and messages[0].content %}{{- '\\n\\n' }}{%- endif %}
        {{- 'You may call these functions, described in <tools></tools>:\\n<tools>' }}
        {%- for tool in tools %}{{- '\\n' + tool | tojson }}{%- endfor %}
        {{- '\\n</tools>\\nTo call one, write its name and arguments as JSON inside <tool_call></tool_call>:\\n' }}
        {{- '<tool_call>\\n{"name": <name>, "arguments": <object>}\\n</tool_call>' }}
    {%- endif %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if loop.index0 > ns.question and message.reasoning_content %}
            {{- '<think>\\n' + message.reasoning_content | trim + '\\n</think>\\n\\n' }}
        {%- endif %}
        {{- message.content }}
        {%- for call in message.tool_calls or [] %}
            {%- if message.content or not loop.first %}{{- '\\n' }}{%- endif %}
            {{- '<tool_call>\\n{"name": ' + call.function.name | tojson + ', "arguments": ' }}
            {{- call.function.arguments | tojson + '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif not (loop.first and has_system) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and not enable_thinking %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- else %}
        {{- '<think>\\n' }}
    {%- endif %}
{%- endif %}
"""
