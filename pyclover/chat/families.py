"""Changes of messages that llama.cpp makes for a few families of templates, known by words in the template."""

from __future__ import annotations

import json
from typing import Any

Messages = list[dict[str, Any]]


def trims_content(source: str) -> bool:
    """StepFun: blanks around a text make the model think in circles."""
    return "You have access to the following functions in JSONSchema format" in source


def reads_response_format(source: str) -> bool:
    """DeepSeek V4 is told the schema of the answer in the prompt."""
    return _is_deepseek_dsml(source) and "function_calls" not in source


def adjusted(source: str, messages: Messages) -> Messages:
    """The messages as the family of this template wants them."""
    # the order is llama.cpp's: the first family that fits is it
    if all(word in source for word in ("[SYSTEM_PROMPT]", "[TOOL_CALLS]", "[ARGS]")) and "[CALL_ID]" not in source:
        return [_ministral(message) for message in messages]
    if "<|channel|>" in source:
        return [_with_thinking(message, drop_content=True) for message in messages]
    if _is_lfm2(source):
        return [_with_thinking(message, drop_content=False) for message in messages]
    if _is_deepseek_dsml(source):
        return _in_order_of_calls(messages) if "function_calls" not in source else messages
    if "'<|tool_call>call:'" in source and "{#- OpenAI Chat Completions:" not in source:
        return _gemma_turns(messages)
    return messages


def finished(source: str, prompt: str, *, add_generation_prompt: bool) -> str:
    """The prompt with the end that the family wants."""
    if "<|channel|>" in source and not add_generation_prompt:
        head, found, tail = prompt.rpartition("<|return|>")  # only the last answer of a training text ends so
        return f"{head}<|end|>{tail}" if found else prompt
    if "'<|tool_call>call:'" in source and add_generation_prompt and prompt.endswith("<turn|>\n"):
        return prompt + "<|turn>model\n"  # Gemma 4 leaves it out behind an answer with a tool call
    return prompt


def _is_lfm2(source: str) -> bool:
    if "<|tool_list_start|>" in source:
        return "<|tool_list_end|>" in source
    return "List of tools: [" in source


def _is_deepseek_dsml(source: str) -> bool:
    return all(word in source for word in ("dsml_token", "DSML")) and (
        "function_calls" in source or "tool_calls" in source
    )


def _with_thinking(message: dict[str, Any], *, drop_content: bool) -> dict[str, Any]:
    """The thought under the name that the template reads."""
    if "reasoning_content" not in message:
        return message
    out = {**message, "thinking": message["reasoning_content"]}
    if drop_content and out.get("tool_calls"):
        del out["content"]
    return out


def _ministral(message: dict[str, Any]) -> dict[str, Any]:
    """Thought and text as parts of one content."""
    if message["role"] not in ("system", "assistant"):
        return message
    parts: list[dict[str, str]] = []
    if "reasoning_content" in message:
        parts.append({"type": "thinking", "thinking": message["reasoning_content"]})
    content = message["content"]
    parts += [{"type": "text", "text": content}] if isinstance(content, str) else content
    return {**{key: value for key, value in message.items() if key != "reasoning_content"}, "content": parts}


def _in_order_of_calls(messages: Messages) -> Messages:
    """DeepSeek V4: results that follow one another stand in the order in which the tools were called."""
    out = list(messages)
    order: dict[str, int] = {}
    i = 0
    while i < len(out):
        if out[i].get("tool_calls"):
            order = {call["id"]: n for n, call in enumerate(out[i]["tool_calls"]) if call.get("id")}
            i += 1
            continue
        end = i
        while end < len(out) and out[end]["role"] in ("user", "tool"):
            end += 1
        results = [n for n in range(i, end) if out[n]["role"] == "tool"]
        if len(results) > 1 and order:
            ranked = sorted((out[n] for n in results), key=lambda m: order.get(m.get("tool_call_id", ""), 0))
            for n, message in zip(results, ranked, strict=True):
                out[n] = message
        i = max(end, i + 1)
    return out


def _gemma_turns(messages: Messages) -> Messages:
    """Older templates of Gemma 4: calls, their results and the words after them are one turn of the model."""
    out: Messages = []
    i = 0
    while i < len(messages):
        if not messages[i].get("tool_calls"):
            out.append(messages[i])
            i += 1
            continue
        turn, i = _gemma_turn(messages, i)
        out.append(turn)
    return out


def _gemma_turn(messages: Messages, start: int) -> tuple[dict[str, Any], int]:
    """The turn that begins with the calls at `start`, and the index behind it."""
    first = messages[start]
    calls = first["tool_calls"]
    turn: dict[str, Any] = {"role": "assistant", "tool_calls": calls}
    responses: list[dict[str, Any]] = []
    i = start + 1
    while i < len(messages) and messages[i]["role"] == "tool":
        n = len(responses)
        name = calls[n]["function"]["name"] if n < len(calls) else messages[i].get("tool_call_id", "")
        responses.append({"name": name, "response": _read_result(messages[i]["content"])})
        i += 1
    if responses:
        turn["tool_responses"] = responses
    if i < len(messages) and messages[i]["role"] == "assistant":
        last = messages[i]
        if last["content"] and not last.get("tool_calls"):
            turn["content"] = last["content"]
            i += 1
    if "reasoning_content" in first:
        turn["reasoning_content"] = first["reasoning_content"]
    return turn, i


def _read_result(content: Any) -> Any:
    if not isinstance(content, str):
        return content
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return content
