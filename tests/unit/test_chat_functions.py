"""Python functions as tools."""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass
from typing import Any, Literal

import pytest

pytest.importorskip("pydantic")

from pyclover.chat.functions import FunctionTool, function_tool, run_function
from pyclover.errors import UsageError


class Unit(enum.Enum):
    C = "celsius"
    F = "fahrenheit"


def weather(
    city: str, days: int = 1, unit: Unit = Unit.C, detail: Literal["short", "long"] = "short"
) -> dict[str, Any]:
    """The weather of a city,
    for some days.

    More that the model need not know.

    Args:
        city: name of the city,
            in English
        days (int): how many days

    Returns:
        nothing: of use
    """
    if city == "Atlantis":
        raise LookupError("no such city")
    return {"city": city, "days": days, "unit": unit, "detail": detail}


def test_the_description_has_name_summary_types_and_what_must_be_given() -> None:
    tool = function_tool(weather)
    described = tool.tool["function"]
    assert tool.tool["type"] == "function"
    assert described["name"] == "weather"
    assert described["description"] == "The weather of a city, for some days."
    parameters = described["parameters"]
    assert parameters["required"] == ["city"]
    assert parameters["properties"]["city"] == {
        "title": "City", "type": "string", "description": "name of the city, in English",
    }  # fmt: skip
    assert parameters["properties"]["days"]["type"] == "integer"
    assert parameters["properties"]["days"]["description"] == "how many days"
    assert parameters["properties"]["detail"]["enum"] == ["short", "long"]
    assert json.loads(json.dumps(tool.tool)) == tool.tool


def test_arguments_are_checked_and_converted() -> None:
    text, worked = run_function(function_tool(weather), '{"city": "Oslo", "days": "3", "unit": "fahrenheit"}')
    assert worked
    assert json.loads(text) == {"city": "Oslo", "days": 3, "unit": "fahrenheit", "detail": "short"}


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ('{"days": 1}', "city"),
        ('{"city": "Oslo", "days": "many"}', "days"),
        ('{"city": "Oslo", "planet": "Mars"}', "planet"),
        ('{"city": "Oslo"', "not JSON"),
        ('["Oslo"]', "JSON object"),
        ("[" * 100_000, "not JSON"),
        ('{"city": "Atlantis"}', "LookupError: no such city"),
    ],
)
def test_wrong_calls_become_text_for_the_model(arguments: str, word: str) -> None:
    text, worked = run_function(function_tool(weather), arguments)
    assert not worked
    assert word in json.loads(text)["error"]


def test_results_are_text_or_json() -> None:
    @dataclass
    class Point:
        x: int

    results: dict[str, tuple[Any, str]] = {
        "text": ("ü", "ü"), "number": (4.5, "4.5"), "none": (None, "null"), "object": (Point(3), '{"x":3}'),
    }  # fmt: skip

    def give(name: str) -> Any:
        return results[name][0]

    tool = function_tool(give)
    for name, (_, text) in results.items():
        assert run_function(tool, json.dumps({"name": name})) == (text, True)


def test_a_long_result_is_cut() -> None:
    def long() -> str:
        return "x" * 3_000_000

    text, worked = run_function(function_tool(long), "")
    assert worked
    assert len(text) < 1_100_000
    assert text.endswith("(cut)")


def _starred(*args: int) -> int:
    return 0


def _untyped(a) -> int:  # type: ignore[no-untyped-def]
    return 0


def _odd(a: "type[NoSuch]") -> int:  # type: ignore[name-defined]  # noqa: F821, UP037
    return 0


@pytest.mark.parametrize(
    ("function", "word"),
    [(_starred, "args"), (_untyped, "type hint"), (_odd, "_odd"), (3, "3"), (lambda a: a, "named")],
)
def test_functions_that_cannot_be_tools_are_refused(function: Any, word: str) -> None:
    with pytest.raises(UsageError, match=word) as caught:
        function_tool(function)
    assert caught.value.option == "functions"


def test_a_tool_is_taken_as_it_is() -> None:
    tool = function_tool(weather)
    assert isinstance(tool, FunctionTool)
    assert function_tool(tool) is tool
