"""Models that need not be on this machine: what can be said about them by their headers alone."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

from pyclover.engine import inspect as local
from pyclover.errors import DownloadError, PathLike
from pyclover.source import is_hub_name

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from pyclover.files.report import Report
    from pyclover.files.shards import Opener, OpenFile


def inspect(path: PathLike) -> Report:
    """Report on a model: a GGUF file, any shard of a split one, "tiny", or one that is not on this machine: the address
    of a file (https://…), or owner/repo[:quant] on the hub. Of these only the headers are fetched; where the hub cannot
    be asked, a model that was downloaded before is read here.

    A model that cannot run is reported with its `problems`.

    Raises:
        ModelNotFoundError, InvalidFileError, IncompleteSetError: there is no such file, or none that can be read.
        UnsupportedModelError: only where the header itself cannot be read (version 1, big-endian, a removed type).
        DownloadError: the hub or the server failed.
    """
    open_file = opener(path) if isinstance(path, str) else None
    if open_file is None:
        return local.inspect(path)
    try:
        return local.inspect_open(open_file)
    except DownloadError as error:
        assert isinstance(path, str)
        if is_address(path) or error.reason not in ("offline", "network", "server"):
            raise
        from pyclover.hub.download import download

        try:
            here = download(path, offline=True).path
        except DownloadError as offline:
            raise offline if error.reason == "offline" else error from None
        return local.inspect(here)


def is_address(name: str) -> bool:
    """Whether it is an http or https address."""
    return name.lower().startswith(("http://", "https://"))


def is_remote(name: str) -> bool:
    """Whether a name is an address, or a model on the hub; what is a file here is not."""
    return is_address(name) or (is_hub_name(name) and name != "auto")


def opener(name: str) -> Opener | None:
    """What opens the model and its shards for reading, None for one that is on this machine."""
    if not is_remote(name):
        return None

    def open_file(shard: str | None) -> AbstractContextManager[OpenFile]:
        from pyclover.files.shard_names import parse_shard_name
        from pyclover.hub.remote import open_remote

        if shard is None:
            return open_remote(name)
        if is_address(name):
            return open_remote(_beside(name, shard))
        named = parse_shard_name(shard)
        return open_remote(name, shard=named[1] if named else 0)

    return open_file


def _beside(address: str, file_name: str) -> str:
    """The address of another file in the same folder."""
    parts = urlsplit(address)
    return urlunsplit(parts._replace(path=parts.path.rpartition("/")[0] + "/" + file_name))
