"""Grammars and schemas that cannot be used: one sentence, at once, and nothing on standard error."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

import pyclover


def chain(n: int, rest: str = "") -> str:
    rules = [f"r{i} ::= r{i + 1}{rest.format(i + 1)}" for i in range(n)]
    return "\n".join(["root ::= r0", f'r{n} ::= "a"', *rules])


@pytest.mark.parametrize(
    ("grammar", "why"),
    [
        ("# nothing", "no rule 'root'"),
        ('start ::= "a"', "no rule 'root'"),
        ("root ::= a b\na ::= [a]", "'b' is used and not defined"),
        ('root ::= root "a" | "b"', "'root' begins with itself"),
        ('root ::= a\na ::= b "x"\nb ::= c a\nc ::= d\nd ::= "y" |', "'a' begins with itself"),
        ('\n# one\nroot ::= "a" )', r"line 3: expecting newline or end before '\)'"),
        ("root = 3", "line 1: expecting ::= before '= 3'"),
        ('root ::= ("a"', r"line 1: expecting '\)' at the end"),
        ('root ::= "a', "line 1: unexpected end of input"),
        ('root ::= "\\q"', "unknown escape"),
        ("root ::= <nosuchtoken>", "invalid token"),
        (chain(20_000), "more than 2000 deep"),
        (chain(60, " | r{}"), "more than 4096 ways"),
        ("root ::= " + '("a"|"a" "a"?)? ' * 200, "'root' has too many optional parts"),
        ("root ::= " + '"a"? ' * 21, "begin with the same character; 20 are"),
        ("root ::= " + "[a-f]* [^g]* " * 11, "begin with the same character; 20 are"),
        ("root ::= " + " ".join(f"[{chr(0x4E00 + i)}]?" for i in range(127)), "parts in a row; 100 are"),
        ("root ::= " + '"a"? ' * 5000, "'root' can begin in more than 4096 ways"),
    ],
)
def test_refused(tiny_a: Any, capfd: pytest.CaptureFixture[str], grammar: str, why: str) -> None:
    with pytest.raises(pyclover.GrammarError, match=why) as caught:
        tiny_a.generate("Hello", max_tokens=1, grammar=grammar)
    assert len(str(caught.value)) < 200
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    "schema", [{"type": "nothing"}, {"pattern": "^*$"}, {"$ref": "#/no"}, {"allOf": []}, {"const": 10**400}]
)
def test_refused_schemas(tiny_a: Any, capfd: pytest.CaptureFixture[str], schema: dict[str, Any]) -> None:
    with pytest.raises(pyclover.GrammarError, match="JSON schema cannot be turned into a grammar") as caught:
        tiny_a.generate("Hello", max_tokens=1, json_schema=schema)
    assert len(str(caught.value)) < 400
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("grammar", ["root ::= [b-a]", "root ::= <[1000000]>", 'root ::= "a" [b-a]'])
def test_a_grammar_that_allows_nothing(tiny_a: Any, grammar: str) -> None:
    with pytest.raises(pyclover.GrammarError, match="allows none of the vocabulary's tokens"):
        tiny_a.generate("Hello", max_tokens=3, grammar=grammar)
    assert tiny_a.generate("Hello", max_tokens=3, ignore_eos=True).finish_reason == "length"


def test_large_ones_that_work(tiny_a: Any) -> None:
    def text(**constraint: Any) -> str:
        return str(tiny_a.generate("Hello", max_tokens=40, temperature=0, **constraint).text)

    assert text(grammar=chain(1900)) == "a"
    assert set(text(grammar="root ::= " + '"a"? ' * 20)) <= {"a"}
    different = [chr(0x4E00 + i) for i in range(100)]
    assert set(text(grammar="root ::= " + " ".join(f"[{c}]?" for c in different))) <= set(different)
    assert text(json_schema={"enum": ["x" * 3, *map(str, range(3000))]}).strip('"') in {"xxx", *map(str, range(3000))}
    properties = {f"p{i}": {"type": "null"} for i in range(256)}
    assert text(json_schema={"properties": properties}).startswith("{")
    links = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(255)}
    assert text(json_schema={"$defs": {**links, "d255": {"type": "null"}}, "$ref": "#/$defs/d0"}) == "null"


def test_patterns_are_followed(tiny_a: Any) -> None:
    possible = {f'"{a}{b}{e}-"' for a, b, e in itertools.product("xy", "xy", ("", "z"))}
    for seed in range(5):
        got = tiny_a.generate("Hello", max_tokens=20, seed=seed, json_schema={"pattern": r"^[xy]{2}(?:z)?\-$"})
        assert got.text in possible
