"""Checks of arguments that several modules need: what is wrong becomes one sentence that names the argument."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pyclover.errors import UsageError, shortened


def boolean(option: str, value: Any) -> bool:
    """Raises UsageError unless `value` is True or False; 0 and 1 will do."""
    if isinstance(value, bool) or (isinstance(value, int) and value in (0, 1)):
        return bool(value)
    raise UsageError(f"{option} is {shortened(value)}: it must be True or False", option=option)


def integer(option: str, value: Any, low: int, high: int = 2**31 - 1) -> int:
    """Raises UsageError unless `value` is an int in the range."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise UsageError(
            f"{option} is {shortened(value)}: it must be an integer between {low} and {high}", option=option
        )
    return value


def text(option: str, value: Any) -> str:
    """Raises UsageError unless `value` is a str that has a UTF-8 form."""
    if not isinstance(value, str):
        raise UsageError(f"{option} is of type {type(value).__name__}: it must be a str", option=option)
    try:
        value.encode()
    except UnicodeEncodeError as e:
        raise UsageError(
            f"{option} has a lone surrogate at position {e.start}, which is no character: decode it properly first",
            option=option,
        ) from None
    return value


def path(option: str, value: Any) -> Path:
    """Raises UsageError unless `value` is a path that a system could have."""
    if not isinstance(value, (str, os.PathLike)):
        raise UsageError(f"{option} is of type {type(value).__name__}: it must be a path (str or Path)", option=option)
    try:
        name = os.fspath(value)
    except TypeError as e:
        raise UsageError(f"{option} is no path: {e}", option=option) from None
    if not isinstance(name, str):
        raise UsageError(f"{option} is a path of bytes: give it as str, see os.fsdecode()", option=option)
    if not name.strip():
        raise UsageError(f"{option} is an empty path: give that of a file", option=option)
    try:
        if b"\0" in os.fsencode(name):
            raise UsageError(f"{option} is a path with a zero byte, which no file has: check it", option=option)
    except UnicodeEncodeError:
        raise UsageError(f"{option} is a path with characters that no file name has: check it", option=option) from None
    return Path(name)
