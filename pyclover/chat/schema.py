"""What an answer must look like: a JSON schema, given as one, as OpenAI's response_format, or as a class."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, is_dataclass
from typing import Any

from pyclover.errors import UsageError, shortened


@dataclass(frozen=True)
class AnswerSchema:
    """The schema, and what makes an object of the text.

    Attributes:
        schema: the JSON schema.
        convert: text -> object; raises ValueError for text that does not fit.
    """

    schema: Mapping[str, Any]
    convert: Callable[[str], Any]


def answer_schema(response_format: Any) -> AnswerSchema | None:
    """The schema that an answer has to follow; None when any text will do.

    Args:
        response_format: None, "text", "json_object", a JSON schema (dict or JSON text), OpenAI's form of it
            ({"type": "json_schema", "json_schema": {"schema": …}}), a pydantic model or a dataclass.

    Raises:
        UsageError: none of these.
    """
    if response_format is None or response_format == "text":
        return None
    if isinstance(response_format, type):
        return _of_class(response_format)
    if response_format == "json_object":
        return AnswerSchema({"type": "object"}, json.loads)
    if isinstance(response_format, str):
        try:
            response_format = json.loads(response_format)
        except (ValueError, RecursionError) as error:
            raise _wrong(f"is neither a known form nor JSON ({error})") from None
    if not isinstance(response_format, Mapping):
        raise _wrong(f"is {shortened(response_format)}")
    return _of_mapping(response_format)


def _wrong(what: str) -> UsageError:
    return UsageError(
        f'response_format {what}: give a JSON schema, "json_object", a pydantic model or a dataclass',
        option="response_format",
    )


def _of_mapping(given: Mapping[str, Any]) -> AnswerSchema | None:
    kind = given.get("type")
    if kind == "text":
        return None
    if kind == "json_object" and not isinstance(given.get("properties"), Mapping):
        inner = given.get("schema") or {"type": "object"}
    elif kind == "json_schema":
        wrapper = given.get("json_schema")
        inner = wrapper.get("schema") if isinstance(wrapper, Mapping) else None
        if inner is None:
            raise _wrong('is of the type "json_schema" but has no json_schema.schema')
    else:
        inner = given
    if not isinstance(inner, Mapping):
        raise _wrong(f"has a schema that is no object: {shortened(inner)}")
    return AnswerSchema(inner, json.loads)


def _of_class(cls: type) -> AnswerSchema:
    try:
        import pydantic
    except ImportError:
        raise UsageError(
            "classes as response_format need the package pydantic: pip install 'pyclover[chat]', or give a JSON schema",
            option="response_format",
        ) from None
    if not (issubclass(cls, pydantic.BaseModel) or is_dataclass(cls)):
        raise _wrong(f"is the class {cls.__name__}")
    try:
        adapter = pydantic.TypeAdapter(cls)
        schema = adapter.json_schema()
    except Exception as error:  # hints that JSON has no form for; pydantic's classes for it differ by version
        raise _wrong(f"is {cls.__name__}, which has no JSON schema ({error})") from None
    return AnswerSchema(schema, adapter.validate_json)  # its ValidationError is a ValueError
