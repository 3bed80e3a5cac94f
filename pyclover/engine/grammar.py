"""Grammars and JSON schemas: what native code must not see, because it would not come back from it.

A grammar is only scanned here, for repetitions and size; the native check says what else is wrong with it. A schema is
looked at in full: what cannot be honoured is an error, never dropped.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from pyclover.errors import GrammarError, UsageError, shortened

MAX_BYTES = 1 << 20
MAX_NESTING = 128  # read by recursive code: deeper ones could exhaust the stack
MAX_REPETITIONS = 2000  # llama.cpp's own limit; it drops a larger upper bound
MAX_ELEMENTS = 200_000  # characters and names of a grammar with its repetitions written out
MAX_PROPERTIES = 256  # of one object: the time to convert them grows with the third power
MAX_NAME = 256  # characters of a property's name or a reference, which go through a recursive matcher
MAX_REFERENCES = 256
MAX_PATTERN = 1000

_SPACE = r"(?:[ \t\r\n]|\#[^\r\n]*)*"
_TOKEN = re.compile(
    rf"""
    (?P<space>(?:[ \t\r\n]|\#[^\r\n]*)+)
    | (?P<literal>"(?:[^"\\]|\\.)*" | \[(?:[^\]\\]|\\.)*\])
    | (?P<token>!?<[^>]*>)
    | (?P<name>[A-Za-z0-9-]+)
    | (?P<count>\{{{_SPACE}(?P<low>[0-9]+){_SPACE}(?:(?P<comma>,){_SPACE}(?P<high>[0-9]*){_SPACE})?\}})
    | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)


def _times(low: str, comma: str | None, high: str | None, what: str) -> int:
    """Copies that a repetition {low,high} makes."""
    if len(low) > 9 or len(high or "") > 9 or int(low) > MAX_REPETITIONS or int(high or 0) > MAX_REPETITIONS:
        raise GrammarError(f"{what} repeats something more than {MAX_REPETITIONS} times: ask for less")
    if comma and high and int(high) < int(low):
        raise GrammarError(f"{what} repeats something {{{low},{high}}} times: the first number must not be the larger")
    return max(int(low), int(high or 0), 2)


def check_grammar(grammar: str, *, what: str = "the grammar", max_nesting: int = MAX_NESTING) -> bool:
    """Refuses what llama.cpp's parser would loop or exhaust memory on.

    Returns:
        whether tokens of a vocabulary are named by their text, so that only a loaded model can tell more.

    Raises:
        GrammarError: empty, too large, nested too deep, or an impossible repetition.
    """
    try:
        n_bytes = len(grammar.encode())
    except UnicodeEncodeError as e:
        raise GrammarError(f"{what} has a lone surrogate at position {e.start}, which is no character") from None
    if "\0" in grammar:
        raise GrammarError(f"{what} has a zero byte at position {grammar.index(chr(0))}: leave it out")
    if not grammar.strip():
        raise GrammarError(f"{what} is empty")
    if n_bytes > MAX_BYTES:
        raise GrammarError(f"{what} is too large: it has {n_bytes} bytes, and {MAX_BYTES} is the limit")
    names_tokens = False
    depth = n_elements = last = 0
    for hit in _TOKEN.finditer(grammar):
        kind, text = hit.lastgroup, hit[0]
        if hit["count"] is not None:
            n_elements += last * _times(hit["low"], hit["comma"], hit["high"], what)
            last = 1
        elif kind == "literal":
            last = len(text) - 2
            n_elements += last
        elif kind in ("name", "token"):
            names_tokens = names_tokens or (kind == "token" and not text.lstrip("!").startswith("<["))
            last = 1
            n_elements += 1
        elif kind == "other":
            depth += (text == "(") - (text == ")")
            n_elements += 2 * last if text in "*+?" else 1
            last = 1
        if depth > max_nesting:
            raise GrammarError(f"{what} is nested too deep: at most {max_nesting} groups in one another")
        if n_elements > MAX_ELEMENTS:
            raise GrammarError(
                f"{what} is too large: with its repetitions written out it has more than {MAX_ELEMENTS} characters"
            )
    return names_tokens


# ---- JSON schemas ---------------------------------------------------------------------------------------------------

# Keywords that restrict, and that llama.cpp's conversion passes over.
_NOT_HONOURED = (
    "not", "if", "then", "else", "dependencies", "dependentRequired", "dependentSchemas", "patternProperties",
    "propertyNames", "minProperties", "maxProperties", "contains", "minContains", "maxContains", "uniqueItems",
    "multipleOf", "unevaluatedProperties", "unevaluatedItems",
)  # fmt: skip
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_VALUES = ("const", "enum", "default", "examples", "example")  # hold values, not schemas
_NAMED = ("properties", "$defs", "definitions")  # hold schemas by name


def schema_text(schema: object) -> str:
    """A JSON schema as text, checked.

    Raises:
        UsageError: neither a mapping nor a string.
        GrammarError: not JSON, too large, or it asks for what cannot be honoured.
    """
    if not isinstance(schema, (str, Mapping)):
        raise UsageError(
            f"json_schema is of type {type(schema).__name__}: it must be a dict or JSON text", option="json_schema"
        )
    try:
        # nested too deep: json's own reader and writer recurse too
        value = json.loads(schema) if isinstance(schema, str) else json.loads(json.dumps(dict(schema)))
        text = json.dumps(value)
    except RecursionError:
        raise GrammarError(f"the JSON schema is nested too deep: at most {MAX_NESTING} levels") from None
    except (ValueError, TypeError) as e:
        raise GrammarError(f"the JSON schema is not valid JSON: {e}") from None
    if not isinstance(value, dict):
        raise GrammarError('the JSON schema is not an object; any JSON object would be {"type": "object"}')
    if len(text) > MAX_BYTES:
        raise GrammarError(f"the JSON schema is too large: it has {len(text)} bytes, and {MAX_BYTES} is the limit")
    references = set()
    for where, node in _nodes(value):
        _check_node(where, node)
        if isinstance(node.get("$ref"), str):
            references.add(node["$ref"])
    if len(references) > MAX_REFERENCES:
        raise GrammarError(f"the JSON schema has {len(references)} different $ref, and {MAX_REFERENCES} is the limit")
    return text


def patterns(schema: str) -> set[str]:
    """The patterns of a checked schema."""
    return {node["pattern"] for _, node in _nodes(json.loads(schema)) if isinstance(node.get("pattern"), str)}


def _nodes(root: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema in a schema, and where it is, such as #/properties/name."""
    todo: list[tuple[str, Any, bool, int]] = [("#", root, True, 1)]
    while todo:
        where, value, is_schema, depth = todo.pop()
        if depth > MAX_NESTING:
            raise GrammarError(f"the JSON schema is nested too deep: at most {MAX_NESTING} levels")
        if isinstance(value, dict):
            if is_schema:
                yield where, value
            for key, item in value.items():
                if not is_schema or key not in _VALUES:
                    named = is_schema and key in _NAMED
                    todo.append((f"{where}/{key}", item, not named, depth + 1))
        elif isinstance(value, list):
            todo += [(f"{where}/{i}", item, True, depth + 1) for i, item in enumerate(value)]


def _check_node(where: str, node: dict[str, Any]) -> None:
    def fail(why: str) -> None:
        raise GrammarError(f"JSON schema at {shortened(where)[1:-1]}: {why}")

    for low, high in (("minItems", "maxItems"), ("minLength", "maxLength")):
        bounds = [node.get(key) for key in (low, high)]
        if all(isinstance(bound, int) for bound in bounds) and bounds[0] > bounds[1]:  # type: ignore[operator]
            fail(f"{low} is {bounds[0]} and {high} {bounds[1]}, so nothing fits; exchange them")
        for key, bound in zip((low, high), bounds, strict=True):
            if isinstance(bound, (int, float)) and bound > MAX_REPETITIONS:
                fail(f"{key} is {bound}, and {MAX_REPETITIONS} is the limit; make it smaller or leave it out")
    for key in _NOT_HONOURED:
        if node.get(key, False) is not False:
            fail(f"'{key}' cannot be turned into a grammar; leave it out and check the answer yourself")
    types = node.get("type")
    if types == "number" or (isinstance(types, list) and "number" in types):
        for key in _BOUNDS:
            if key in node:
                fail(f"'{key}' of a number cannot be turned into a grammar; use type integer, or leave it out")
    properties = node.get("properties")
    names = list(properties) if isinstance(properties, dict) else []
    if len(names) > MAX_PROPERTIES:
        fail(f"the object has {len(names)} properties, and {MAX_PROPERTIES} is the limit; split it into several")
    for name in [*names, node.get("$ref")]:
        if isinstance(name, str) and len(name) > MAX_NAME:
            fail(f"the name {shortened(name)} has {len(name)} characters, and {MAX_NAME} is the limit")
    if isinstance(node.get("pattern"), str):
        if "minLength" in node or "maxLength" in node:
            fail("a pattern and a length together cannot be turned into a grammar; put the length into the pattern")
        _check_pattern(node["pattern"], fail)


_PATTERN_PART = re.compile(
    r"""
    \\(?:[\^$.\[\]()|{}*+?trn\\"-] | x[0-9A-Fa-f]{2} | u[0-9A-Fa-f]{4} | U[0-9A-Fa-f]{8})
    | \[(?:[^\]\\] | \\(?:[trn\\"\[\]-] | x[0-9A-Fa-f]{2} | u[0-9A-Fa-f]{4} | U[0-9A-Fa-f]{8}))*\]
    | \{(?P<low>[0-9]*)(?P<comma>,)?(?P<high>[0-9]*)\}
    | \((?:\?:)?
    | [^\\\[\]{}^$]
    """,
    re.VERBOSE | re.DOTALL,
)


def _check_pattern(pattern: str, fail: Any) -> None:
    """Refuses a pattern that llama.cpp would replace by "any string", or that it takes too long for."""
    shown = f"the pattern {shortened(pattern)}"
    if len(pattern) > MAX_PATTERN:
        fail(f"the pattern has {len(pattern)} characters, and {MAX_PATTERN} is the limit")
    if len(pattern) < 2 or pattern[0] != "^" or pattern[-1] != "$":
        fail(f"{shown} is not about the whole text; begin it with ^ and end it with $")
    at, end = 1, len(pattern) - 1
    while at < end:
        hit = _PATTERN_PART.match(pattern, at, end)
        if hit is None or (hit[0] == "(" and pattern[hit.end()] == "?"):
            fail(f"{shown} has at character {at + 1} what cannot be turned into a grammar: {pattern[at : at + 2]!r}")
            return
        if hit["low"] is not None:
            if not hit["low"] and not hit["high"]:
                fail(f"{shown} has braces without a number at character {at + 1}")
            _times(hit["low"] or "0", hit["comma"], hit["high"], shown)
        at = hit.end()
