"""Names of a split model's files, `PREFIX-00001-of-00003.gguf`: llama.cpp finds the others by the first one's."""

from __future__ import annotations

import re

_NAME = re.compile(r"(?P<prefix>.+)-(?P<no>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)


def shard_name(prefix: str, no: int, count: int) -> str:
    """File name of shard `no` (from 0) of `count`, as llama.cpp spells it."""
    return f"{prefix}-{no + 1:05d}-of-{count:05d}.gguf"


def parse_shard_name(name: str) -> tuple[str, int, int] | None:
    """(prefix, number from 0, count) of a shard's file name, or None when it is not one."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    no, count = int(match["no"]), int(match["count"])
    return (match["prefix"], no - 1, count) if 1 <= no <= count else None
