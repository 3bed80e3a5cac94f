"""Values of options, read as llama.cpp reads them; each function is the `type` of a click option."""

from __future__ import annotations

import math
import re
from typing import Literal

import click

RANDOM_SEED = 2**32 - 1  # llama.cpp's value for "choose one"; -1 as an unsigned number


def on_off_auto(value: str) -> bool | Literal["auto"]:
    """on, off, auto, and the other words that llama.cpp takes for them."""
    word = value.lower()
    if word in ("on", "enabled", "true", "1"):
        return True
    if word in ("off", "disabled", "false", "0"):
        return False
    if word in ("auto", "-1"):
        return "auto"
    raise click.BadParameter(f"{value!r} is none of 'on', 'off', 'auto'.")


def count_or_all(value: str) -> int | None:
    """A number of layers; all is -1, auto is None: the plan chooses."""
    if value.lower() == "auto":
        return None
    if value.lower() == "all":
        return -1
    number = _whole(value, "a whole number, all or auto")
    if number < -1:
        raise click.BadParameter(f"{number} is less than -1 (all).")
    return number


def seed(value: str) -> int | None:
    """0 to 2**32 - 2; -1 and 2**32 - 1 mean a random one (None)."""
    number = _whole(value, "a whole number")
    if number in (-1, RANDOM_SEED):
        return None
    if not 0 <= number < RANDOM_SEED:
        raise click.BadParameter(f"{number} is not in the range 0 to {RANDOM_SEED - 1} (or -1 for a random one).")
    return number


def logit_bias(value: str) -> tuple[int, float]:
    """TOKEN_ID, a sign, and a bias: 15043+1, 15043-0.5, 15043-inf."""
    hit = re.fullmatch(r"\s*(\d+)\s*([+-])\s*(\S+)\s*", value)
    try:
        bias = float(hit[3]) if hit else math.nan
    except ValueError:
        bias = math.nan
    if hit is None or math.isnan(bias):
        raise click.BadParameter(f"{value!r} is not TOKEN_ID, + or -, and a number, as in 15043+1.")
    return int(hit[1]), -bias if hit[2] == "-" else bias


def _whole(value: str, what: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is not {what}.") from None


def rollback(value: str) -> bool:
    """How tokens leave the recurrent state: True for snapshots of it."""
    if value not in ("rows", "snapshots"):
        raise click.BadParameter(f"{value!r} is neither 'rows' nor 'snapshots'.")
    return value == "snapshots"
