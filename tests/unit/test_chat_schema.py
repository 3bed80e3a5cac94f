"""Forms that response_format may have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from pyclover.chat.schema import answer_schema
from pyclover.errors import UsageError

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


@pytest.mark.parametrize("given", [None, "text", {"type": "text"}])
def test_any_text(given: Any) -> None:
    assert answer_schema(given) is None


@pytest.mark.parametrize(
    "given",
    [
        SCHEMA,
        '{"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}',
        {"type": "json_schema", "json_schema": {"name": "place", "strict": True, "schema": SCHEMA}},
        {"type": "json_object", "schema": SCHEMA},
    ],
)
def test_a_schema_in_all_its_forms(given: Any) -> None:
    found = answer_schema(given)
    assert found is not None
    assert found.schema == SCHEMA
    assert found.convert('{"city": "Oslo"}') == {"city": "Oslo"}


@pytest.mark.parametrize("given", ["json_object", {"type": "json_object"}])
def test_any_object(given: Any) -> None:
    found = answer_schema(given)
    assert found is not None
    assert found.schema == {"type": "object"}


def test_classes() -> None:
    pydantic = pytest.importorskip("pydantic")

    class Place(pydantic.BaseModel):  # type: ignore[misc, name-defined]
        city: str

    @dataclass
    class Spot:
        city: str

    for cls in (Place, Spot):
        found = answer_schema(cls)
        assert found is not None
        assert found.schema["properties"]["city"]["type"] == "string"
        assert found.schema["required"] == ["city"]
        assert found.convert('{"city": "Oslo"}') == cls(city="Oslo")
        with pytest.raises(ValueError, match="city"):
            found.convert('{"town": "Oslo"}')


@pytest.mark.parametrize(
    "given", ["yaml", 3, ["a"], {"type": "json_schema"}, {"type": "json_schema", "json_schema": {"schema": 3}}, int]
)
def test_anything_else_is_refused(given: Any) -> None:
    with pytest.raises(UsageError) as caught:
        answer_schema(given)
    assert caught.value.option == "response_format"
