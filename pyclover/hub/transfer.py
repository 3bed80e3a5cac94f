"""One file from a hub into a part file: by byte ranges, continued wherever it stopped.

Why not huggingface_hub's own downloader (seen in 1.33 and 2.4): it writes into a file with a random name and deletes
that when it fails or is interrupted, so a stopped download of 20 GB begins anew; it holds back up to 10 MB at a time,
gives up on a reset connection, retries no 5xx, trusts that a partial answer begins where it was asked to, refuses more
than 50 GB over plain HTTP, and does not hash. Here its session and its error classes are used, and each of these is
done. The Xet protocol is not spoken: the plain address of a file serves the same bytes, also on mirrors.
"""

from __future__ import annotations

import io
import os
import re
from pathlib import Path
from typing import Any

from pyclover.errors import CloverError, DownloadError
from pyclover.hub.client import Hub
from pyclover.hub.patience import BrokenAnswerError, Patience, status_of
from pyclover.hub.progress import Meter

# Asked for at once. Content networks limit the size of one answer, not of a file.
SEGMENT_BYTES = 1 << 32

_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")


def fetch(hub: Hub, url: str, part: Path, size: int, meter: Meter, *, repo: str) -> None:
    """Brings a part file to its full size. What it holds already is kept; its content is not checked here.

    Raises:
        DownloadError, ModelNotFoundError: the hub failed for good; the part stays, for the next run.
        CancelledError: the meter's function asked for it.
        OSError: the part cannot be written.
    """
    patience = Patience(hub.retry)
    # unbuffered: what has come is in the file when the run is stopped, and a full disk shows where it happens
    with part.open("ab", buffering=0) as out:
        if out.tell() > size:
            out.truncate(size)  # longer than it can be: the checksum will find it wrong
        furthest = out.seek(0, os.SEEK_END)
        while (at := out.seek(0, os.SEEK_END)) < size:
            end = min(at + SEGMENT_BYTES, size)
            try:
                with hub.stream(url, first=at, last=end - 1) as response:
                    if _start(response, at, size, url) != at:
                        out.truncate(0)
                        meter.take_back(at)
                        at = 0
                    end = end if response.status_code == 206 else size
                    for chunk in response.iter_bytes():
                        if at + len(chunk) > end:
                            raise _wrong_size(url, "more bytes than it was asked for", size)
                        _write(out, chunk)
                        at += len(chunk)
                        meter.add(len(chunk))
                        if at > furthest:  # a server that begins anew each time must not look like progress
                            furthest = at
                            patience.progress()
                if at < end:
                    raise BrokenAnswerError(f"the answer ended after {at} of {size} bytes")
            except CloverError:
                raise
            except Exception as error:
                if status_of(error) == 416:
                    raise _wrong_size(url, f"less than {at + 1} bytes", size) from error
                if not patience.wait(error):
                    raise hub.translated(error, repo, url=url) from error
        os.fsync(out.fileno())


def content_range(response: Any) -> tuple[int, int | None]:
    """Where a partial answer begins, and how long the whole file is (None when the server does not say).

    Raises:
        BrokenAnswerError: it does not say where it begins, or it is compressed.
    """
    hit = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", "").strip())
    if hit is None or response.headers.get("Content-Encoding", "identity") != "identity":
        raise BrokenAnswerError("a partial answer does not say which bytes it holds")
    return int(hit[1]), None if hit[3] == "*" else int(hit[3])


def _start(response: Any, at: int, size: int, url: str) -> int:
    """Position of the answer's first byte: `at`, or 0 when the whole file comes."""
    if response.status_code == 206:
        start, total = content_range(response)
        if total is not None and total != size:
            raise _wrong_size(url, f"{total} bytes", size)
        if start != at:
            raise BrokenAnswerError(f"the answer begins at byte {start} instead of {at}")
        return at
    if response.status_code != 200:
        raise BrokenAnswerError(f"the answer has the status {response.status_code}")
    length = response.headers.get("Content-Length", "")
    plain = response.headers.get("Content-Encoding", "identity") == "identity"
    if plain and length.isdigit() and int(length) != size:
        raise _wrong_size(url, f"{length} bytes", size)
    return 0


def _write(out: io.RawIOBase, data: bytes) -> None:
    view = memoryview(data)
    while len(view):
        view = view[out.write(view) or 0 :]


def _wrong_size(url: str, what: str, size: int) -> DownloadError:
    return DownloadError(
        f"{url} holds {what}, but the hub's listing says {size}: try again, or another endpoint", reason="checksum"
    )
