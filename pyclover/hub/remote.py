"""A file on a server, read like one on disk, a few blocks at a time.

For headers: what a model file is can be said after some hundred KiB of its 20 GB.
"""

from __future__ import annotations

import io
from collections import OrderedDict
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from pyclover import arguments
from pyclover.errors import ClosedError, DownloadError, PathLike, UsageError
from pyclover.hub import resolve, store
from pyclover.hub.client import Hub, check_url
from pyclover.hub.listing import SAFETENSORS
from pyclover.hub.names import check_revision, parse_name
from pyclover.hub.patience import BrokenAnswerError, Retry
from pyclover.hub.transfer import content_range

BLOCK_BYTES = 1 << 18
MAX_BLOCKS = 128


class RemoteFile(io.RawIOBase):
    """A read-only file behind a URL; made by `open_remote`.

    Attributes:
        name: what it is called in messages.
        size: bytes of the whole file.
        bytes_fetched: bytes that were transferred so far.
        n_requests: requests so far.
    """

    def __init__(
        self, hub: Hub, url: str, *, name: str, repo: str = "", size: int | None = None, block_bytes: int = BLOCK_BYTES
    ) -> None:
        super().__init__()
        self._hub = hub
        self._url = url
        self._repo = repo
        self.name = name
        self._block_bytes = block_bytes
        self._blocks: OrderedDict[int, bytes] = OrderedDict()
        self._position = 0
        self._etag: str | None = None
        self._size: int | None = size
        self.bytes_fetched = 0
        self.n_requests = 0
        self._load(0, 1)  # also says how long the file is
        self.size: int = self._size or 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        self._check_open()
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """As of any file; beyond the end is allowed, and reads as the end."""
        self._check_open()
        if whence not in (io.SEEK_SET, io.SEEK_CUR, io.SEEK_END):
            raise UsageError(f"whence is {whence!r}: it must be 0, 1 or 2", option="whence")
        position = offset + (0, self._position, self.size)[whence]
        if position < 0:
            raise UsageError(f"{self.name}: there is no position {position} in a file", option="offset")
        self._position = position
        return position

    def readinto(self, buffer: Any) -> int:
        """Fills the buffer; fewer bytes only at the end of the file.

        Raises:
            DownloadError: the server failed, or the file was changed on it meanwhile.
        """
        self._check_open()
        view = memoryview(buffer).cast("B")
        n_wanted = max(min(len(view), self.size - self._position), 0)
        done = 0
        while done < n_wanted:
            at = self._position + done
            index, inside = divmod(at, self._block_bytes)
            if index not in self._blocks:
                last = (self._position + n_wanted - 1) // self._block_bytes
                self._load(index, self._n_absent(index, last))
            self._blocks.move_to_end(index)
            piece = self._blocks[index][inside : inside + n_wanted - done]
            view[done : done + len(piece)] = piece
            done += len(piece)
        self._position += done
        return done

    def _check_open(self) -> None:
        if self.closed:
            raise ClosedError(f"{self.name} is closed: open it again")

    def _n_absent(self, first: int, last: int) -> int:
        """Blocks in a row that are not here, of those that are wanted."""
        count = 1
        while count < MAX_BLOCKS // 2 and first + count <= last and first + count not in self._blocks:
            count += 1
        return count

    def _load(self, index: int, count: int) -> None:
        """Fetches some blocks in one request."""
        if self._size == 0:
            return
        data = self._hub.patiently(
            lambda: self._fetch(index * self._block_bytes, count * self._block_bytes), self.name, url=self._url
        )
        for at in range(0, len(data), self._block_bytes):
            self._blocks[index + at // self._block_bytes] = data[at : at + self._block_bytes]
        while len(self._blocks) > MAX_BLOCKS:
            self._blocks.popitem(last=False)

    def _fetch(self, first: int, n_bytes: int) -> bytes:
        last = first + n_bytes if self._size is None else min(first + n_bytes, self._size)
        self.n_requests += 1
        with self._hub.stream(self._url, first=first, last=last - 1) as response:
            if response.status_code != 206:
                raise DownloadError(
                    f"{self.name}: the server gives no parts of files (HTTP {response.status_code} to a byte range); "
                    "download it instead", repo=self._repo, reason="server",
                )  # fmt: skip
            start, total = content_range(response)
            if start != first or (total is None and self._size is None):
                raise BrokenAnswerError("the server answers with other bytes than were asked for")
            self._check_same(total, response.headers.get("ETag"))
            assert self._size is not None
            n_wanted = min(last, self._size) - first
            parts, n_read = [], 0
            for chunk in response.iter_bytes():
                self.bytes_fetched += len(chunk)
                n_read += len(chunk)
                parts.append(chunk)
                if n_read > n_wanted:
                    break
        if n_read != n_wanted:
            raise BrokenAnswerError(f"the answer has {n_read} bytes instead of {n_wanted}")
        return b"".join(parts)

    def _check_same(self, total: int | None, etag: str | None) -> None:
        same_size = total is None or self._size is None or total == self._size
        same_tag = etag is None or self._etag is None or etag == self._etag
        if not same_size or not same_tag:
            raise DownloadError(
                f"{self.name} is another file on the server than when it was opened: open it again", repo=self._repo,
                reason="server",
            )  # fmt: skip
        self._size = total if self._size is None else self._size
        self._etag = self._etag or etag


def open_remote(
    name: str,
    *,
    quant: str | None = None,
    shard: int = 0,
    revision: str | None = None,
    cache_dir: PathLike | None = None,
    token: str | bool | None = None,
    endpoint: str | None = None,
    block_bytes: int = BLOCK_BYTES,
    retry: Retry | None = None,
) -> RemoteFile:
    """Opens a file on a server for reading, without downloading it.

    Args:
        name: an http or https address, or owner/repo[:quant] on the hub.
        shard: which file of a split set, from 0; with a name on the hub.
        block_bytes: what is fetched at once at least, 4 KiB to 16 MiB.
        others: as of `download`.

    Raises:
        UsageError: an argument that cannot be honoured.
        ModelNotFoundError, IncompleteSetError: there is no such file.
        DownloadError: the server failed, or gives no parts of files.
    """
    arguments.integer("block_bytes", block_bytes, 1 << 12, 1 << 24)
    arguments.integer("shard", shard, 0)
    hub = Hub(endpoint=endpoint, token=token, retry=retry)
    text = arguments.text("name", name).strip()
    if text.lower().startswith(("http://", "https://")):
        if quant is not None or revision is not None or shard:
            raise UsageError("quant, revision and shard belong to a name on the hub, not to an address", option="name")
        url = _file_url(hub, check_url("name", text))
        return RemoteFile(hub, url, name=text, block_bytes=block_bytes)
    found = resolve.resolve(hub, store.Store(cache_dir), parse_name(text, quant=quant), check_revision(revision), None)
    files = [f for f in found.offer.files if found.offer.quant != SAFETENSORS or f.name.endswith(".safetensors")]
    if shard >= len(files):
        raise UsageError(f"shard is {shard}, but {text} has {len(files)} files, counted from 0", option="shard")
    file = files[shard]
    url = hub.url(found.offer.repo, found.commit, file.name)
    shown = f"{found.offer.repo}/{file.name}"
    return RemoteFile(hub, url, name=shown, repo=found.offer.repo, size=file.size, block_bytes=block_bytes)


def _file_url(hub: Hub, url: str) -> str:
    """The address of a file's content, from that of the page which shows it on the hub."""
    parts = urlsplit(url)
    pieces = parts.path.split("/")
    if parts.netloc == hub.host and len(pieces) > 5 and pieces[3] == "blob":
        pieces[3] = "resolve"
        return urlunsplit(parts._replace(path="/".join(pieces)))
    return url
