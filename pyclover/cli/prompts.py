"""Where the prompt comes from, and the escapes in it."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import click

_ESCAPE = re.compile(rb"""\\(x[0-9a-fA-F]{2}|[nrt'"\\])""")
_CHARS = {b"n": b"\n", b"r": b"\r", b"t": b"\t"}


def unescape(text: str, flag: str) -> str:
    r"""`text` with \n \r \t \' \" \\ and \xHH (one byte) replaced, as llama.cpp's `--escape` does.

    Raises:
        click.UsageError: the bytes that come out are not UTF-8; `flag` is named.
    """
    try:
        data = _ESCAPE.sub(lambda hit: _byte(hit[1]), text.encode())
        return data.decode()
    except (UnicodeEncodeError, UnicodeDecodeError) as error:
        raise click.UsageError(f"{flag}: not valid UTF-8 text ({error.reason}).") from None


def _byte(escape: bytes) -> bytes:
    if escape[:1] == b"x":
        return bytes([int(escape[1:], 16)])
    return _CHARS.get(escape, escape)


def read_prompt(text: str | None, path: str | None, *, escape: bool) -> str:
    """The prompt from `-p`, else from the file of `-f`, else from standard input when that is not a terminal.

    Escapes are only replaced in `-p`. One line end at the very end of a file is dropped, as llama.cpp does.

    Raises:
        click.UsageError: none or two of them are given, or the text is not UTF-8.
    """
    if text is not None and path is not None:
        raise click.UsageError("-p and -f both give a prompt: leave one out.")
    if text is not None:
        return unescape(text, "-p") if escape else _checked(text)
    if path is not None and path != "-":
        return _decoded(Path(path).read_bytes(), f"-f {path}")
    stdin = sys.stdin
    data = b"" if stdin is None or (path is None and stdin.isatty()) else stdin.buffer.read()
    if path is None and not data:
        raise click.UsageError("no prompt: give one with -p TEXT or -f FILE, or pipe it into standard input.")
    return _decoded(data, "standard input")


def read_text(path: str, flag: str) -> str:
    """All text of the file given with `flag`.

    Raises:
        click.UsageError: it is not UTF-8.
    """
    try:
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise click.UsageError(f"{flag} {path}: not UTF-8 text ({error.reason} at byte {error.start}).") from None


def _checked(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise click.UsageError("-p: not valid UTF-8 text.") from None
    return text


def _decoded(data: bytes, source: str) -> str:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise click.UsageError(f"{source}: not UTF-8 text ({error.reason} at byte {error.start}).") from None
    return text.removesuffix("\n").removesuffix("\r") if text.endswith("\n") else text
