"""Checks of arguments."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyclover import arguments
from pyclover.errors import UsageError, shortened


@pytest.mark.parametrize(
    ("check", "bad"),
    [
        (arguments.boolean, [2**31, 2, -1, "yes", None, 0.0, np.bool_(True), np.zeros(2)]),
        (lambda option, value: arguments.integer(option, value, -1), [True, 1.0, "1", None, -2, 2**31, np.zeros(2)]),
        (arguments.text, [None, 5, b"x", ["x"], "a\ud800"]),
        (arguments.path, [None, 5, b"x", ["x"], "", " ", "a\0", "\ud800"]),
    ],
)
def test_refused(check: Callable[[str, Any], Any], bad: list[Any]) -> None:
    for value in bad:
        with pytest.raises(UsageError, match="thing ") as caught:
            check("thing", value)
        assert caught.value.option == "thing"
        assert "\n" not in str(caught.value)


def test_a_broken_path() -> None:
    class Broken:
        def __fspath__(self) -> int:
            return 5

    with pytest.raises(UsageError, match="thing is no path: expected"):
        arguments.path("thing", Broken())


def test_taken() -> None:
    assert arguments.boolean("x", 1) is True
    assert arguments.boolean("x", False) is False
    assert arguments.integer("x", -1, -1) == -1
    assert arguments.text("x", "é") == "é"
    assert arguments.path("x", Path("a")) == arguments.path("x", "a") == Path("a")


def test_values_in_messages_are_short() -> None:
    class Broken:
        def __repr__(self) -> str:
            raise ValueError

    assert shortened("abc") == "'abc'"
    assert shortened("a" * 1000) == "'" + "a" * 78 + "…"
    assert shortened(10**10000) == "<int>"
    assert shortened(Broken()) == "<Broken>"
