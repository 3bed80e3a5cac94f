"""The chat template: its Jinja text, which goes into the file, and the same in Python, fast enough for training.

In the manner of Qwen3.6's: ChatML turns; the generation prompt opens a thought, or closes an empty one when
`enable_thinking` is false; thoughts of turns before the last question are dropped; a tool call is a <function=NAME>
element with <parameter=KEY> elements inside <tool_call>; tool results come in a user turn. Tools are listed as short
signatures, because a model of this size has no use for a long schema.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

Message = dict[str, Any]
Tool = dict[str, Any]

CHAT_TEMPLATE = r"""
{%- if not messages %}{{- raise_exception('The list of messages is empty.') }}{%- endif %}
{%- set first = messages[0] %}
{%- if tools or first.role == 'system' %}
    {{- '<|im_start|>system\n' }}
    {%- if first.role == 'system' %}{{- first.content | trim }}{%- endif %}
    {%- if tools %}
        {%- if first.role == 'system' and first.content | trim %}{{- '\n\n' }}{%- endif %}
        {{- 'Functions:' }}
        {%- for tool in tools %}
            {%- set f = tool.function if tool.function is defined else tool %}
            {{- '\n' + f.name + '(' }}
            {%- if f.parameters and f.parameters.properties %}
                {%- for key, value in f.parameters.properties | items %}
                    {{- (', ' if not loop.first else '') + key }}
                {%- endfor %}
            {%- endif %}
            {{- ')' }}
            {%- if f.description %}{{- ': ' + f.description }}{%- endif %}
        {%- endfor %}
    {%- endif %}
    {{- '<|im_end|>\n' }}
{%- endif %}
{%- set ns = namespace(question=-1) %}
{%- for message in messages %}
    {%- if message.role == 'user' %}{%- set ns.question = loop.index0 %}{%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = (message.content or '') | trim %}
    {%- if message.role == 'system' %}
        {%- if not loop.first %}{{- raise_exception('A system message must come first.') }}{%- endif %}
    {%- elif message.role == 'user' %}
        {{- '<|im_start|>user\n' + content + '<|im_end|>\n' }}
    {%- elif message.role == 'assistant' %}
        {%- set thought = '' %}
        {%- if message.reasoning_content is string %}
            {%- set thought = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set thought = content.split('</think>')[0].split('<think>')[-1] %}
            {%- set content = content.split('</think>')[-1] | trim %}
        {%- endif %}
        {{- '<|im_start|>assistant\n' }}
        {%- if loop.index0 > ns.question %}
            {{- '<think>\n' + thought | trim + '\n</think>\n\n' }}
        {%- endif %}
        {{- content }}
        {%- for tool_call in message.tool_calls or [] %}
            {%- set call = tool_call.function if tool_call.function is defined else tool_call %}
            {%- if not loop.first %}{{- '\n' }}{%- elif content %}{{- '\n\n' }}{%- endif %}
            {{- '<tool_call>\n<function=' + call.name + '>\n' }}
            {%- for key, value in (call.arguments or {}) | items %}
                {{- '<parameter=' + key + '>\n' }}
                {{- value if value is string else value | tojson }}
                {{- '\n</parameter>\n' }}
            {%- endfor %}
            {{- '</function>\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\n<tool_response>\n' + content + '\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\n' }}{%- endif %}
    {%- else %}
        {{- raise_exception('Unknown role: ' + message.role) }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n<think>\n' }}
    {%- if enable_thinking is defined and not enable_thinking %}{{- '\n</think>\n\n' }}{%- endif %}
{%- endif %}
""".strip()


def to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


@cache
def _jinja() -> Callable[..., str]:
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def raise_exception(message: str) -> None:
        raise ValueError(message)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    env.filters["tojson"] = to_json
    env.globals["raise_exception"] = raise_exception
    render: Callable[..., str] = env.from_string(CHAT_TEMPLATE).render
    return render


def render_jinja(messages: Sequence[Message], tools: Sequence[Tool] | None = None, **options: Any) -> str:
    """The text of a chat by the template itself. Options: add_generation_prompt, enable_thinking."""
    return _jinja()(messages=messages, tools=tools, **options)


def signature(tool: Tool) -> str:
    f = tool["function"]
    return f"{f['name']}({', '.join(f['parameters']['properties'])}): {f['description']}"


def call_text(call: Message) -> str:
    f = call["function"]
    arguments = "".join(
        f"<parameter={key}>\n{value if isinstance(value, str) else to_json(value)}\n</parameter>\n"
        for key, value in f["arguments"].items()
    )
    return f"<tool_call>\n<function={f['name']}>\n{arguments}</function>\n</tool_call>"


def answer_text(message: Message) -> str:
    """Content and tool calls of an assistant's message."""
    parts = [message["content"], "\n".join(map(call_text, message.get("tool_calls", [])))]
    return "\n\n".join(p for p in parts if p)


def split_chat(messages: Sequence[Message], tools: Sequence[Tool] | None, thinking: bool) -> tuple[str, str]:
    """Prompt as for generating the last message, and the text that is to be generated, its end token included.

    For clean messages of the generators only: no spaces around contents, thoughts under reasoning_content.
    """
    out = []
    start = int(messages[0]["role"] == "system")
    if start or tools:
        parts = [messages[0]["content"]] if start else []
        if tools:
            parts.append("Functions:\n" + "\n".join(map(signature, tools)))
        out.append("<|im_start|>system\n" + "\n\n".join(parts) + "<|im_end|>\n")
    question = max(i for i, m in enumerate(messages) if m["role"] == "user")
    for i, m in enumerate(messages[start:-1], start):
        if m["role"] == "user":
            out.append(f"<|im_start|>user\n{m['content']}<|im_end|>\n")
        elif m["role"] == "tool":
            out.append(f"<|im_start|>user\n<tool_response>\n{m['content']}\n</tool_response><|im_end|>\n")
        else:
            thought = f"<think>\n{m.get('reasoning_content', '')}\n</think>\n\n" if i > question else ""
            out.append(f"<|im_start|>assistant\n{thought}{answer_text(m)}<|im_end|>\n")
    out.append("<|im_start|>assistant\n<think>\n" + ("" if thinking else "\n</think>\n\n"))
    last = messages[-1]
    answer = answer_text(last) + "<|im_end|>"
    return "".join(out), f"{last['reasoning_content']}\n</think>\n\n{answer}" if thinking else answer
