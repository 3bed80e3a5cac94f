"""llama.cpp's own messages, which native code keeps in a ring of 2,000 lines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pyclover._native import buffer, check, ffi, lib, taken

Level = Literal["debug", "info", "warn", "error"]
LEVELS: tuple[Level, ...] = ("debug", "info", "warn", "error")


@dataclass(frozen=True)
class LogLine:
    level: Level
    text: str


def set_level(level: Level) -> None:
    """Drops lines below `level`."""
    check(lib.pc_log_set_level(LEVELS.index(level) + 1))


def drain() -> tuple[list[LogLine], int]:
    """Lines since the last call, oldest first, and how many fell out of the ring unread."""
    n_lost = ffi.new("uint64_t *")
    with buffer() as out:
        check(lib.pc_log_drain(out, n_lost))
        text = taken(out).decode("utf-8", "replace")
    # only "\n" ends a line: model files bring text with other separators and digits
    lines = [LogLine(LEVELS["1234".index(line[0])], line[2:]) for line in text.split("\n") if line[:1] in tuple("1234")]
    return lines, int(n_lost[0])
