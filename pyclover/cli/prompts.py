"""Where the prompt comes from, and the escapes in it."""

from __future__ import annotations

import os
import re
import sys
from typing import BinaryIO

import click

MAX_BYTES = 64 << 20  # of a prompt, grammar or schema
_ESCAPE = re.compile(rb"""\\(x[0-9a-fA-F]{2}|[nrt'"\\])""")
_CHARS = {b"n": b"\n", b"r": b"\r", b"t": b"\t"}


def unescape(text: str, flag: str) -> str:
    r"""`text` with \n \r \t \' \" \\ and \xHH (one byte) replaced, as llama.cpp's `--escape` does.

    Raises:
        click.UsageError: the bytes that come out are not UTF-8; `flag` is named.
    """
    try:
        data = _ESCAPE.sub(lambda hit: _byte(hit[1]), argument(text, flag).encode())
        return data.decode()
    except UnicodeDecodeError as error:
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
        return unescape(text, "-p") if escape else argument(text, "-p")
    if path is not None and path != "-":
        with open(path, "rb") as file:
            return _decoded(_bytes(file, f"-f {path}"), f"-f {path}")
    stdin = sys.stdin
    data = b"" if stdin is None or (path is None and stdin.isatty()) else _bytes(stdin.buffer, "standard input")
    if path is None and not data:
        raise click.UsageError("no prompt: give one with -p TEXT or -f FILE, or pipe it into standard input.")
    return _decoded(data, "standard input")


def read_text(path: str, flag: str) -> str:
    """All text of the file given with `flag`; - for standard input.

    Raises:
        click.UsageError: it is not UTF-8, or longer than MAX_BYTES.
    """
    source = f"{flag} {path}"
    if path == "-":
        data = b"" if sys.stdin is None else _bytes(sys.stdin.buffer, source)
    else:
        with open(path, "rb") as file:
            data = _bytes(file, source)
    try:
        return data.decode().replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise click.UsageError(f"{source}: not UTF-8 text ({error.reason} at byte {error.start}).") from None


def argument(text: str, flag: str) -> str:
    """Text from the command line, which is UTF-8 whatever the locale says.

    Raises:
        click.UsageError: it is not; `flag` is named.
    """
    try:
        return os.fsencode(text).decode()
    except (UnicodeEncodeError, UnicodeDecodeError):
        raise click.UsageError(f"{flag}: not valid UTF-8 text.") from None


def _bytes(file: BinaryIO, source: str) -> bytes:
    data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise click.UsageError(f"{source}: longer than {MAX_BYTES >> 20} MiB, which is the limit.")
    return data


def _decoded(data: bytes, source: str) -> str:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise click.UsageError(f"{source}: not UTF-8 text ({error.reason} at byte {error.start}).") from None
    return text.removesuffix("\n").removesuffix("\r") if text.endswith("\n") else text
