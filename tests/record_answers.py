"""Writes tests/data/answers.jsonl: answers of the model in the package, as data for the tests of the answer parser.

Run by hand (it needs the extra train): python tests/record_answers.py. Tests never generate them, because the model is
trained anew now and then. First line: {"template": …, "tools": [[…], …]}. Then one line an answer: "kind", "thinking",
"tools" (index), "parts": [text, n_tokens] of ordinary tokens in a row, [text] of a special token; "want": what
`wanted` makes of it, a reading of this one format of its own, without llama.cpp's parser.
"""

from __future__ import annotations

import json
import random
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
N_EACH = 10
MAX_TOKENS = 80
_CALL = re.compile(r"<tool_call>\n<function=(.*?)>\n(.*?)</function>\n</tool_call>\s*", re.DOTALL)
_ARGUMENT = re.compile(r"<parameter=(.*?)>\n(.*?)\n</parameter>\n", re.DOTALL)


def wanted(parts: list[list[Any]], thinking: bool, tools: list[Any]) -> dict[str, Any] | None:
    """Reasoning, content and calls [name, arguments as text]; None for an answer that is cut inside a call.

    A call of a tool that there is not stays in the content, as it was written.
    """
    text = "".join(part[0] for part in parts)
    n_reasoning, reasoning = 0, ""
    if thinking:
        at = [part[0] for part in parts].index("</think>") if ["</think>"] in parts else len(parts)
        thought = parts[:at]
        n_reasoning = sum(part[1] if len(part) > 1 else 1 for part in thought)
        reasoning = "".join(part[0] for part in thought).lstrip()
        text = "".join(part[0] for part in parts[at + 1 :])
    calls = [[name, dict(_ARGUMENT.findall(inside))] for name, inside in _CALL.findall(text)]
    if all(name in {tool["function"]["name"] for tool in tools} for name, _ in calls):
        content = _CALL.sub("", text).lstrip()
        if "<tool_call>" in content:
            return None
    else:
        calls, content = [], text.lstrip()
    return {"reasoning": reasoning, "content": content, "calls": calls, "n_reasoning": n_reasoning}


def main() -> None:
    sys.path.append(str(ROOT))
    import pyclover
    from pyclover._native import buffer, check, ffi, lib, taken
    from training.data.mix import KINDS, draw

    tools: list[Any] = []
    lines = []
    with pyclover.Clover("tiny", n_ctx=1024, n_threads=1) as m:
        special = {m.tokenize(tag, add_special=False)[0] for tag in TAGS}
        for kind in KINDS:
            rng = random.Random(kind)
            for i in range(N_EACH):
                thinking = i % 2 == 0
                sample = draw(kind, rng, evaluation=True)
                messages = list(sample.chat(thinking))
                while messages[-1]["role"] == "assistant":
                    messages.pop()
                given = list(sample.tools or [])
                if given not in tools:
                    tools.append(given)
                request = {
                    "template": m.chat_template,
                    "messages": messages,
                    "tools": given,
                    "enable_thinking": thinking,
                }
                with buffer() as out:
                    check(lib.pc_chat_prepare(ffi.new("char[]", json.dumps(request).encode()), out))
                    prompt = json.loads(taken(out))["prompt"]
                made = m.generate(prompt, max_tokens=MAX_TOKENS, temperature=0 if i % 4 < 2 else 1.0, seed=i)
                parts: list[list[Any]] = []
                pending, n = b"", 0
                for token in (*made.tokens, None):
                    if token is None or token in special:
                        if n:
                            parts.append([pending.decode("utf-8", "replace"), n])
                        pending, n = b"", 0
                        if token is not None:
                            parts.append([m.detokenize([token])])
                    else:
                        pending += m._model.token_bytes(token)
                        n += 1
                want = wanted(parts, thinking, given)
                line = {"kind": kind, "thinking": thinking, "tools": tools.index(given), "parts": parts, "want": want}
                lines.append(line)
        head = {"template": m.chat_template, "tools": tools}
    path = ROOT / "tests" / "data" / "answers.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for line in (head, *lines):
            file.write(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
