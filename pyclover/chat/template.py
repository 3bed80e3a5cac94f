"""Renders a model's chat template.

The template comes with the model file, so it is code of somebody else: it runs in jinja2's immutable sandbox, with a
limit on what it may write. The names that it may use are those of Hugging Face's `apply_chat_template`.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import jinja2
import jinja2.sandbox

from pyclover.errors import TemplateError

Message = Mapping[str, Any]
MAX_TEXT = 64 << 20  # characters of a rendered prompt


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateRuntimeError(message)


def _tojson(value: Any, indent: int | None = None, **_: Any) -> str:
    # plain JSON, as models saw it in training; jinja2's own filter escapes for HTML
    return json.dumps(value, ensure_ascii=False, indent=indent)


@lru_cache(maxsize=8)
def _compiled(source: str) -> jinja2.Template:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    return environment.from_string(source)


def render(
    source: str,
    messages: Sequence[Message],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    add_generation_prompt: bool = True,
    bos_token: str = "",
    eos_token: str = "",
    **variables: Any,
) -> str:
    """The prompt text of a conversation.

    Args:
        source: the template, as the file has it under tokenizer.chat_template.
        messages: {"role": …, "content": …} and what else the template reads.
        tools: descriptions of functions as in OpenAI's API.
        add_generation_prompt: end with the opening of the answer.
        variables: further names for the template, such as enable_thinking.

    Raises:
        TemplateError: the template is damaged, or refuses these messages; the sentence has its words.
    """
    try:
        stream = _compiled(source).generate(
            messages=[dict(message) for message in messages],
            tools=None if tools is None else [dict(tool) for tool in tools],
            add_generation_prompt=add_generation_prompt,
            bos_token=bos_token,
            eos_token=eos_token,
            **variables,
        )
        parts: list[str] = []
        n = 0
        for part in stream:
            n += len(part)
            if n > MAX_TEXT:
                raise TemplateError(f"the chat template writes more than {MAX_TEXT} characters")
            parts.append(part)
        return "".join(parts)
    except jinja2.TemplateSyntaxError as error:
        raise TemplateError(f"the chat template is damaged in line {error.lineno}: {error.message}") from None
    except jinja2.TemplateError as error:
        raise TemplateError(f"the chat template cannot be used with these messages: {error.message}") from None
    except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError, RecursionError) as error:
        raise TemplateError(f"the chat template fails with these messages: {error}") from None
