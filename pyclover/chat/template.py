"""Renders a model's chat template.

The template comes with the model file, so it is code of somebody else: it runs in jinja2's immutable sandbox, with a
limit on what it may write. The sandbox limits neither time nor memory: chat/apart.py runs it in a process of its own.
The names that it may use are those of Hugging Face's `apply_chat_template`.
"""

from __future__ import annotations

import datetime
import json
import types
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.runtime
import jinja2.sandbox

from pyclover.errors import TemplateError

MAX_TEXT = 16 << 20  # characters of a rendered prompt


class _Generation(jinja2.ext.Extension):
    """{% generation %} marks the model's own words for training; here it is only its content."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's own declaration

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """The sandbox; text plus nothing is the text, as in llama.cpp's engine: descriptions may be missing in tools."""

    intercepted_binops = frozenset({"+"})

    def call_binop(self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any) -> Any:
        if isinstance(left, str) and _is_nothing(right):
            return left
        if isinstance(right, str) and _is_nothing(left):
            return right
        return super().call_binop(context, operator, left, right)


def _is_nothing(value: Any) -> bool:
    return value is None or isinstance(value, jinja2.Undefined)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateRuntimeError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # plain JSON, as models saw it in training; jinja2's own filter escapes for HTML
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
        default=_json_form,
    )


def _json_form(value: Any) -> list[Any] | None:
    """Of what json does not know: nothing, and what filters such as map give."""
    if isinstance(value, jinja2.Undefined):
        return None
    if isinstance(value, types.GeneratorType):
        return list(value)
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def _not_escaped(value: Any) -> Any:
    """A prompt is no HTML: what is marked as safe must not make jinja2 escape the text that is added to it."""
    return value


@lru_cache(maxsize=8)
def _compiled(source: str) -> jinja2.Template:
    environment = _Environment(trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, _Generation])
    environment.filters["tojson"] = _tojson
    environment.filters["safe"] = _not_escaped
    environment.globals["raise_exception"] = _raise_exception
    now: Callable[[str], str] = lambda form: datetime.datetime.now().strftime(form)  # noqa: E731
    environment.globals["strftime_now"] = now
    return environment.from_string(source)


def render_names(source: str, names: Mapping[str, Any]) -> str:
    """The text that a template writes, rendered in this process: for templates that are trusted to end.

    Args:
        source: the template.
        names: what the template may read: messages, tools, add_generation_prompt, …

    Raises:
        TemplateError: the template is damaged, refuses these messages (the sentence has its words), or writes more
            than MAX_TEXT characters.
    """
    try:
        parts: list[str] = []
        n = 0
        for part in _compiled(source).generate(dict(names)):
            n += len(part)
            if n > MAX_TEXT:
                raise TemplateError(f"the chat template writes more than {MAX_TEXT} characters")
            parts.append(part)
        return "".join(parts)
    except jinja2.TemplateSyntaxError as error:
        raise TemplateError(f"the chat template is damaged in line {error.lineno}: {error.message}") from None
    except jinja2.TemplateError as error:
        raise TemplateError(f"the chat template cannot be used with these messages: {error.message}") from None
    except RecursionError:
        raise TemplateError("the chat template nests or calls itself too deeply") from None
    except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
        if isinstance(error, TemplateError):
            raise
        raise TemplateError(f"the chat template fails with these messages: {error}") from None
