"""Chat templates: what they may do, and what a wrong one says."""

from __future__ import annotations

from typing import Any

import pytest

from pyclover.chat.template import render_names
from pyclover.errors import TemplateError

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% if enable_thinking is defined and not enable_thinking %}"
    "<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
HELLO = [{"role": "user", "content": "Hello & <b>"}]


def render(source: str, messages: list[dict[str, str]], **names: Any) -> str:
    return render_names(source, {"messages": messages, "add_generation_prompt": True, **names})


def test_messages_become_a_prompt() -> None:
    assert render(CHATML, HELLO) == "<|im_start|>user\nHello & <b><|im_end|>\n<|im_start|>assistant\n"
    assert render(CHATML, HELLO, add_generation_prompt=False) == "<|im_start|>user\nHello & <b><|im_end|>\n"
    assert render(CHATML, HELLO, enable_thinking=False).endswith("assistant\n<think>\n\n</think>\n\n")


def test_what_templates_of_models_use() -> None:
    tools = [{"type": "function", "function": {"name": "f", "description": "é <x>"}}]
    assert render("{{ tools | tojson }}", HELLO, tools=tools) == (
        '[{"type": "function", "function": {"name": "f", "description": "é <x>"}}]'
    )
    assert render("{{ tools | map(attribute='function') | tojson }}", HELLO, tools=tools) == (
        '[{"name": "f", "description": "é <x>"}]'
    )
    assert render("{{ '<b>' | safe + messages[0].content }}", HELLO) == "<b>Hello & <b>"
    loop = "{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}"
    assert render(loop, HELLO) == "01"
    assert render("  {% if true %}\n  a\n  {% endif %}\n", HELLO) == "  a\n"
    assert render("{{ bos_token }}{{ eos_token }}", HELLO, bos_token="<s>", eos_token="</s>") == "<s></s>"
    assert len(render("{{ strftime_now('%Y') }}", HELLO)) == 4


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("{% for %}", "line 1"),
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[0].content.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe|immutable|not safely"),
        ("{{ nothing.at.all }}", "undefined"),
        ("{{ 1 / 0 }}", "division"),
        ("{{ 'a' * 100000000 }}", "writes more"),
        ("{{ [] | min }}{{ 5 | tojson(indent='x') + 1 }}", "fails|cannot"),
    ],
)
def test_a_template_that_cannot_be_used(source: str, said: str) -> None:
    with pytest.raises(TemplateError, match=said):
        render(source, HELLO)
