"""Calibration text as chunks of tokens: two thirds plain text, one third conversations in the model's own template."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyclover import arguments
from pyclover.errors import CloverError, FileError, PathLike, TemplateError, UsageError
from pyclover.tuning.synthetic import TOOLS, conversations, documents

if TYPE_CHECKING:
    from pyclover.clover import Clover

BUILT_IN = "built-in text"
CHAT = "built-in conversations"
_MAX_TEXT_BYTES = 1 << 30


@dataclass(frozen=True)
class Chunk:
    """A piece of text that is computed from an empty memory.

    Attributes:
        source: name of the text, or CHAT.
    """

    tokens: tuple[int, ...]
    source: str


def make_chunks(
    clover: Clover, texts: Sequence[PathLike], n_chunks: int | None, n_tokens: int, chat_share: float
) -> tuple[tuple[Chunk, ...], tuple[str, ...]]:
    """The chunks in a mixed order that is always the same, and sentences about what could not be had.

    Args:
        texts: files of the user's; the built-in text where there are none.
        n_chunks: in all; None: 96 of the built-in text, or all that the files give.
        n_tokens: of a chunk.
        chat_share: part of the chunks that is conversations.
    """
    notes: list[str] = []
    n_chat = round((n_chunks or 96) * chat_share)
    plain = _own(clover, texts, n_tokens) if texts else cut(_built_in(clover), n_tokens, BUILT_IN)
    if n_chunks is None and texts:
        found = list(plain)
        n_chat = round(len(found) * chat_share / (1 - chat_share)) if chat_share < 1 else n_chat
    else:
        found = _first(plain, (n_chunks or 96) - n_chat)
    if texts and not found and chat_share < 1:
        raise UsageError(
            f"the text gives no chunk of {n_tokens} tokens: give more text, or a smaller n_tokens", option="texts"
        )
    if n_chunks is not None and len(found) < n_chunks - n_chat:
        notes.append(f"the text gives {len(found)} chunks of {n_tokens} tokens instead of {n_chunks - n_chat}")
    chat: list[Chunk] = []
    if n_chat:
        try:
            chat = _first(cut(_conversations(clover), n_tokens, CHAT), n_chat)
        except TemplateError as e:
            notes.append(f"no conversations are counted: {e}")
    chunks = [*found, *chat]
    if not chunks:
        raise UsageError(
            f"there is nothing to count on: {'; '.join(notes) or 'no text'}; give text, or a smaller chat_share",
            option="chat_share",
        )
    random.Random(0).shuffle(chunks)
    return tuple(chunks), tuple(notes)


def digest(chunks: Iterable[Chunk]) -> str:
    """Identifies the text: 64 hexadecimal digits."""
    out = hashlib.sha256()
    for chunk in chunks:
        out.update(repr(chunk.tokens).encode())
    return out.hexdigest()


def _first(chunks: Iterator[Chunk], n: int) -> list[Chunk]:
    return [chunk for _, chunk in zip(range(n), chunks, strict=False)]


def cut(parts: Iterator[Sequence[int]], n_tokens: int, source: str) -> Iterator[Chunk]:
    """Chunks of a stream of tokens; what is left at its end is dropped."""
    held: list[int] = []
    for part in parts:
        held += part
        n_whole = len(held) - len(held) % n_tokens
        for at in range(0, n_whole, n_tokens):
            yield Chunk(tuple(held[at : at + n_tokens]), source)
        del held[:n_whole]


def _own(clover: Clover, texts: Sequence[PathLike], n_tokens: int) -> Iterator[Chunk]:
    for text in texts:
        path = arguments.path("texts", text).expanduser()
        yield from cut(iter([clover.tokenize(_read(path), parse_special=False)]), n_tokens, path.name)


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_TEXT_BYTES + 1)
    except OSError as e:
        raise FileError(f"{path}: the text cannot be read: {e.strerror or e}", path=path) from None
    if len(data) > _MAX_TEXT_BYTES:
        raise FileError(f"{path}: the text has more than {_MAX_TEXT_BYTES} bytes; give less of it", path=path)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        raise FileError(f"{path}: byte {e.start} is not UTF-8; store the text as UTF-8", path=path) from None


def _built_in(clover: Clover) -> Iterator[Sequence[int]]:
    for document in documents():
        yield clover.tokenize(document + "\n\n", parse_special=False)


def _conversations(clover: Clover) -> Iterator[Sequence[int]]:
    """Rendered conversations; a kind that the template refuses is left out, and all of them are its error."""
    n_refused = 0
    for i, messages in enumerate(conversations()):
        tools: Any = TOOLS if i % 3 == 2 else None
        try:
            text = clover.apply_chat_template(messages, tools=tools, add_generation_prompt=False)
        except CloverError as e:
            n_refused += 1
            if n_refused > 30 and n_refused > i:
                raise TemplateError(f"the chat template refuses every conversation: {e}") from None
            continue
        yield clover.tokenize(text, add_special=False, parse_special=True)
