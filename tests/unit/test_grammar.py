"""What of a grammar or a JSON schema is refused before native code sees it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pyclover.engine.grammar import MAX_BYTES, check_grammar, patterns, schema_text
from pyclover.engine.sampling import Sampling
from pyclover.errors import GrammarError, UsageError


@pytest.mark.parametrize(
    "grammar",
    [
        'root ::= "a"{2,5}',
        'root ::= "a"{0,} [{5,2}] "{5,2}" # {5,2}',
        'root ::= "' + "(" * 400 + '"',
        'root ::= "\\"{5,2}"',
        'root ::= "a"{2000}',
        "root ::= <[3]> !<[4]>",
    ],
)
def test_sound_grammars(grammar: str) -> None:
    assert check_grammar(grammar) is False


def test_tokens_named_by_text_need_the_model() -> None:
    assert check_grammar("root ::= !<think>")
    assert not check_grammar('root ::= "<think>"')


@pytest.mark.parametrize(
    ("grammar", "why"),
    [
        ("", "is empty"),
        (" \n", "is empty"),
        ('root ::= "a"{5,2}', r"\{5,2\} times: the first number must not be the larger"),
        ('root ::= "a"{ # why\n 5 , # not\n 2 }', r"\{5,2\} times"),
        ('root ::= ("a" | "b"{5,2})', r"\{5,2\} times"),
        ('root ::= "a"{2001}', "more than 2000 times"),
        ('root ::= "a"{0,2001}', "more than 2000 times"),
        ('root ::= "a"{' + "9" * 5000 + "}", "more than 2000 times"),
        ('root ::= "\ud800"', "lone surrogate at position 10"),
        ('root ::= "\0"', "zero byte at position 10"),
        ("root ::= " + "(" * 129, "128 groups"),
        ("root ::= " + '"a" ' * (MAX_BYTES // 4), "1048576 is the limit"),
        ("root ::= " + '"abcdefghij"{2000} ' * 11, "more than 200000 characters"),
    ],
)
def test_refused_grammars(grammar: str, why: str) -> None:
    with pytest.raises(GrammarError, match=why):
        check_grammar(grammar)
    with pytest.raises(GrammarError, match=why):
        Sampling(grammar=grammar)


def nested(n: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "null"}
    for _ in range(n):
        schema = {"type": "array", "items": schema}
    return schema


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "minItems": 2, "maxItems": 5, "items": {"type": "integer", "minimum": 1}},
        {"type": "string", "pattern": r"^[a-c\]]{2,3}(x|(?:y)+)?\.\-\x41.*$"},
        {"properties": {"not": {"type": "null"}, "if": {"const": {"minItems": 5, "maxItems": 2}}}},
        {"$defs": {"contains": {"enum": [{"not": 1}]}}, "$ref": "#/$defs/contains"},
        {"type": "object", "uniqueItems": False, "title": "t", "description": "d", "default": {"not": 1}},
        nested(100),
    ],
)
def test_sound_schemas(schema: dict[str, Any]) -> None:
    assert json.loads(schema_text(schema)) == json.loads(schema_text(json.dumps(schema))) == schema


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"items": {"type": "array", "minItems": 5, "maxItems": 2}}, "#/items: minItems is 5 and maxItems 2"),
        ({"anyOf": [{}, {"minLength": 5, "maxLength": 2}]}, "#/anyOf/1: minLength is 5 and maxLength 2"),
        ({"maxLength": 5000}, "maxLength is 5000, and 2000 is the limit"),
        ({"minItems": 10**20}, "and 2000 is the limit"),
        ({"pattern": "^a{5,2}$"}, r"\{5,2\} times"),
        ({"pattern": "^a{5000}$"}, "more than 2000 times"),
        ({"pattern": "a"}, r"begin it with \^"),
        ({"pattern": r"^\d$"}, "at character 2"),
        ({"pattern": "^a(?!b)$"}, "at character 3"),
        ({"pattern": "^a^$"}, "at character 3"),
        ({"pattern": "^[a$"}, "at character 2"),
        ({"pattern": "^}$"}, "at character 2"),
        ({"pattern": "^a{}$"}, "without a number"),
        ({"pattern": "^" + "a" * 1000 + "$"}, "1002 characters, and 1000 is the limit"),
        ({"pattern": "^a$", "maxLength": 3}, "a pattern and a length"),
        ({"properties": {"a": {"not": {}}}}, "#/properties/a: 'not' cannot"),
        ({"uniqueItems": True}, "'uniqueItems' cannot"),
        ({"type": "number", "minimum": 1}, "'minimum' of a number"),
        ({"type": ["null", "number"], "maximum": 1}, "'maximum' of a number"),
        ({"properties": {f"p{i}": {} for i in range(257)}}, "257 properties, and 256 is the limit"),
        ({"properties": {"x" * 257: {}}}, "257 characters, and 256 is the limit"),
        ({"anyOf": [{"$ref": f"#/$defs/{i}"} for i in range(257)]}, "257 different"),
        (nested(200), "128 levels"),
        ("[" * 100_000, "128 levels"),
        ("[1]", "not an object"),
        ("{", "not valid JSON"),
        ({"a": {1}}, "not valid JSON"),
    ],
)
def test_refused_schemas(schema: Any, why: str) -> None:
    with pytest.raises(GrammarError, match=why):
        schema_text(schema)


@pytest.mark.parametrize("schema", [5, [], b"{}", True])
def test_no_schemas(schema: Any) -> None:
    with pytest.raises(UsageError, match="json_schema is of type") as caught:
        Sampling(json_schema=schema)
    assert caught.value.option == "json_schema"


def test_patterns_of_a_schema() -> None:
    schema = {
        "properties": {"pattern": {"pattern": "^a$"}, "b": {"items": {"pattern": "^b$"}}},
        "const": {"pattern": "c"},
    }
    assert patterns(schema_text(schema)) == {"^a$", "^b$"}
