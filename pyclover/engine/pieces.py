"""The iterator that stream() gives out."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TypeVar

from pyclover.errors import BusyError

Piece = TypeVar("Piece")


class Pieces(Iterator[Piece]):
    """Pieces of a text as they come. One thread at a time reads them; close() ends the generation early."""

    def __init__(self, pieces: Iterator[Piece]) -> None:
        assert isinstance(pieces, Generator)
        self._pieces: Generator[Piece, None, None] = pieces

    def __next__(self) -> Piece:
        try:
            return next(self._pieces)
        except ValueError as e:
            raise _told(e) from None

    def close(self) -> None:
        try:
            self._pieces.close()
        except ValueError as e:
            raise _told(e) from None


def _told(error: ValueError) -> ValueError | BusyError:
    """What to raise instead of the interpreter's own words about a generator that is in use."""
    if str(error) != "generator already executing":
        return error
    return BusyError("another call is reading this stream: let one thread read it, or give each its own stream")
