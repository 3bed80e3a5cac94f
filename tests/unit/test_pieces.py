"""The iterator of stream(): used from inside itself, as another thread would."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pyclover.engine.pieces import Pieces
from pyclover.engine.results import TextPiece
from pyclover.errors import BusyError


def test_a_stream_has_one_reader() -> None:
    def pieces() -> Iterator[TextPiece]:
        for use in (lambda: next(stream), stream.close):
            with pytest.raises(BusyError, match="another call is reading this stream"):
                use()
        yield TextPiece("a", ())
        raise ValueError("of its own")

    stream = Pieces(pieces())
    assert next(stream).text == "a"
    with pytest.raises(ValueError, match="of its own"):
        next(stream)
    stream.close()
    assert list(stream) == []
