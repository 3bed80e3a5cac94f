"""The one door to a hub: endpoint, token, offline mode, requests with patience, and its errors in our words.

huggingface_hub does what it is good at: it finds the token, keeps the HTTP session (proxies and
certificates as the user has set them up for it) and lists repositories. Files are fetched by `transfer`, which says
why.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

from huggingface_hub import HfApi, constants, get_session, get_token, hf_hub_url, hf_raise_for_status
from huggingface_hub.errors import (
    DisabledRepoError,
    EntryNotFoundError,
    GatedRepoError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from pyclover import arguments
from pyclover.errors import CloverError, DownloadError, ModelNotFoundError, UsageError, shortened
from pyclover.hub import checksums, listing
from pyclover.hub.names import check_file_name
from pyclover.hub.patience import HTTP_ERROR, BrokenAnswerError, Patience, Retry, status_of

T = TypeVar("T")

PUBLIC = "https://huggingface.co"
_TRUE = ("1", "ON", "YES", "TRUE")


class Hub:
    """A hub that speaks the Hugging Face hub's protocol.

    Args:
        endpoint: its address; None: HF_ENDPOINT, else the public hub.
        token: of a user; None: HF_TOKEN, else the one that `hf auth login` left; False: none.
        offline: no request at all; None: as HF_HUB_OFFLINE says.

    Raises:
        UsageError: an address that is none.
    """

    def __init__(
        self,
        *,
        endpoint: str | None = None,
        token: str | bool | None = None,
        offline: bool | None = None,
        retry: Retry | None = None,
    ) -> None:
        if endpoint is not None:
            arguments.text("endpoint", endpoint)
        given = "endpoint" if endpoint else "HF_ENDPOINT"
        self.endpoint = check_url(given, endpoint or os.environ.get("HF_ENDPOINT") or constants.ENDPOINT or PUBLIC)
        self.offline = is_offline() if offline is None else arguments.boolean("offline", offline)
        if retry is not None and not isinstance(retry, Retry):
            raise UsageError(f"retry is {shortened(retry)}: it must be a Retry or None", option="retry")
        self.retry = retry or Retry()
        if token is None or token is True:  # to look for one may take a request: tokens of some logins expire
            token = None if self.offline else _stored_token()
        self._token = token
        if self._token is not False and self._token is not None:
            text = arguments.text("token", self._token)
            if not text.isprintable() or not text.isascii():
                raise UsageError("token has characters that no token has: copy it again", option="token")

    def less_patient(self) -> Hub:
        """The same hub, for a question that is not worth a long wait."""
        retry = replace(self.retry, n_retries=min(self.retry.n_retries, 1))
        return Hub(endpoint=self.endpoint, token=self._token or False, offline=self.offline, retry=retry)

    @property
    def host(self) -> str:
        return urlsplit(self.endpoint).netloc

    def headers(self, url: str) -> dict[str, str]:
        """Headers for a request; the token goes to this hub alone."""
        from pyclover import __version__

        mine, other = urlsplit(self.endpoint), urlsplit(url)
        # compressed bytes could neither be counted nor continued
        headers = {"User-Agent": f"pyclover/{__version__}", "Accept-Encoding": "identity"}
        if self._token and (mine.scheme, mine.netloc) == (other.scheme, other.netloc):
            headers["Authorization"] = f"Bearer {self._token}"
        return headers

    def url(self, repo: str, commit: str, name: str) -> str:
        """Where a file of a repository is fetched."""
        return hf_hub_url(repo, name, revision=commit, endpoint=self.endpoint)

    def list(self, repo: str, revision: str) -> listing.Listing:
        """What a repository holds.

        Raises:
            ModelNotFoundError: no such repository or revision.
            DownloadError: the hub cannot be reached, refuses, or answers nonsense.
        """
        api = HfApi(endpoint=self.endpoint, token=self._token or False)
        info = self.patiently(
            lambda: api.model_info(repo, revision=revision, files_metadata=True, timeout=self.retry.timeout_s),
            repo, revision=revision,
        )  # fmt: skip
        if not isinstance(info.sha, str) or not info.sha.isalnum():
            raise DownloadError(f"{self.host} names no commit for {repo}: try another endpoint", repo=repo,
                                reason="server")  # fmt: skip
        files = tuple(
            hub_file(repo, sibling)
            for sibling in info.siblings or ()
            if not isinstance(sibling.rfilename, str)
            or listing.is_wanted(sibling.rfilename)
            or sibling.rfilename.rsplit("/", 1)[-1] == checksums.SUMS_NAME
        )
        return listing.Listing(repo, info.sha, files)

    def read_small(self, repo: str, commit: str, file: listing.HubFile) -> bytes:
        """A small file whole, checked against the listing.

        Raises:
            DownloadError: as list(), or it is not what the listing says.
        """
        url = self.url(repo, commit, file.name)

        def fetch() -> bytes:
            parts, n_bytes = [], 0
            with self.stream(url) as response:
                for chunk in response.iter_bytes():
                    parts.append(chunk)
                    n_bytes += len(chunk)
                    if n_bytes > file.size:
                        break  # it shows below
            return b"".join(parts)

        data = self.patiently(fetch, repo)
        found = checksums.digest_bytes(data)
        if found.size != file.size or (file.sha256 or found.sha256, file.git_sha1 or found.git_sha1) != (
            found.sha256, found.git_sha1,
        ):  # fmt: skip
            raise DownloadError(
                f"{url}: what came is not what the hub announces; try again, or another endpoint", repo=repo,
                reason="checksum",
            )  # fmt: skip
        return data

    @contextlib.contextmanager
    def stream(self, url: str, *, first: int | None = None, last: int | None = None) -> Iterator[Any]:
        """An open answer, for the bytes from `first` to `last` (inclusive) when they are given.

        Raises:
            HTTP_ERROR, OSError: for `patiently` or `translated`.
        """
        if self.offline:
            raise OfflineModeIsEnabled(url)
        headers = self.headers(url)
        if first is not None:
            headers["Range"] = f"bytes={first}-{'' if last is None else last}"
        with get_session().stream(
            "GET", url, headers=headers, timeout=self.retry.timeout_s, follow_redirects=True
        ) as response:
            hf_raise_for_status(response)
            yield response

    def patiently(self, work: Callable[[], T], repo: str, *, revision: str = "", url: str = "") -> T:
        """The result of `work`, which may be repeated; its errors in our words. `url` is asked, else the hub.

        It must not write to a disk: an error of the system is taken to be one of the line.
        """
        patience = Patience(self.retry)
        while True:
            try:
                if self.offline:
                    raise OfflineModeIsEnabled(repo)
                return work()
            except CloverError:
                raise
            except Exception as error:
                if not patience.wait(error):
                    found = self.translated(error, repo, revision=revision, url=url)
                    if isinstance(found, OSError) and not isinstance(found, CloverError):
                        raise DownloadError(
                            f"{repo}: {urlsplit(url).netloc or self.host} cannot be asked "
                            f"({found.strerror or found}); check the settings of the network, such as a file of "
                            "certificates (SSL_CERT_FILE)", repo=repo, reason="network",
                        ) from error  # fmt: skip
                    raise found from error

    def translated(self, error: Exception, repo: str, *, revision: str = "", url: str = "") -> Exception:
        """An error of the hub or of the network as one of ours; any other one as it is."""
        what = repo or url
        where = urlsplit(url).netloc if url else self.host
        if isinstance(error, OfflineModeIsEnabled):
            return offline_error(what, repo)
        if isinstance(error, (GatedRepoError, DisabledRepoError)):
            return DownloadError(
                f"{what}: {where} gives access only to some users; ask for it on the repository's page, then log in "
                "with `hf auth login` or set HF_TOKEN", repo=repo, reason="access",
            )  # fmt: skip
        if isinstance(error, RevisionNotFoundError):
            return ModelNotFoundError(f"{what} has no revision {revision or 'of that name'} on {where}: check it",
                                      path=what)  # fmt: skip
        status = status_of(error)
        if isinstance(error, (RepositoryNotFoundError, EntryNotFoundError)) or status == 404:
            return ModelNotFoundError(
                f"{what} is not on {where}, or is private: check the spelling; for a private one, log in with `hf auth "
                "login` or set HF_TOKEN", path=what,
            )  # fmt: skip
        if status in (401, 403):
            return DownloadError(
                f"{what}: {where} refuses access (HTTP {status}); log in with `hf auth login` or set HF_TOKEN, and "
                "check that the token is still valid", repo=repo, reason="access",
            )  # fmt: skip
        if status:
            return DownloadError(f"{what}: {where} failed (HTTP {status}); try again later", repo=repo, reason="server")
        if isinstance(error, BrokenAnswerError):
            return DownloadError(f"{what}: {error}; try again, or another endpoint", repo=repo, reason="server")
        if isinstance(error, HTTP_ERROR):
            return DownloadError(
                f"{what}: no answer from {where} ({type(error).__name__}: {error}); check the network, then try "
                "again: it continues where it stopped", repo=repo, reason="network",
            )  # fmt: skip
        if isinstance(error, (KeyError, TypeError, ValueError, AttributeError)):
            return DownloadError(
                f"{what}: the answer of {where} is none that a model hub gives ({type(error).__name__}: {error}); "
                "check the endpoint", repo=repo, reason="server",
            )  # fmt: skip
        return error


def hub_file(repo: str, sibling: Any) -> listing.HubFile:
    """A file from the hub's listing, its name and size checked."""
    name = check_file_name(sibling.rfilename, repo)
    lfs: Mapping[str, Any] | None = sibling.lfs
    size = sibling.size if lfs is None else lfs["size"]
    sha256 = None if lfs is None else str(lfs["sha256"]).lower()
    if isinstance(size, bool) or not isinstance(size, int) or size < 0:
        raise DownloadError(
            f"{repo}: the hub gives no size for {name}; try another endpoint", repo=repo, reason="server"
        )
    # git's name of a large file is that of its pointer, not of its content
    git_sha1 = str(sibling.blob_id).lower() if lfs is None and sibling.blob_id else None
    return listing.HubFile(name, size, sha256, git_sha1)


def _stored_token() -> str | None:
    """HF_TOKEN, else the one that `hf auth login` left.

    Raises:
        DownloadError: its file cannot be read.
    """
    try:
        return get_token()
    except Exception as error:  # of the system, of the line, of a login service
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise DownloadError(
            f"no token can be had ({constants.HF_TOKEN_PATH}: {reason}); correct that or HF_HOME, set HF_TOKEN, or use "
            "none with token=False", path=constants.HF_TOKEN_PATH, reason="access",
        ) from error  # fmt: skip


def offline_error(what: str, repo: str = "") -> DownloadError:
    """What to say when something is not here and must not be fetched."""
    return DownloadError(
        f"{what} is not on this machine, and offline mode forbids to fetch it: unset HF_HUB_OFFLINE, or drop the "
        "option", repo=repo, reason="offline",
    )  # fmt: skip


def is_offline() -> bool:
    """Whether the usual variables forbid requests."""
    given = os.environ.get("HF_HUB_OFFLINE") or os.environ.get("TRANSFORMERS_OFFLINE") or ""
    return constants.HF_HUB_OFFLINE or given.upper() in _TRUE


def check_url(option: str, url: str) -> str:
    """An http or https address, without a slash at the end.

    Raises:
        UsageError: it is none.
    """
    text = arguments.text(option, url).strip().rstrip("/")
    try:
        parts = urlsplit(text)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        valid = False
    if not valid or any(c.isspace() or not c.isprintable() for c in text):
        raise UsageError(f"{option} is {shortened(url)}: it must be an http or https address", option=option)
    return quote(text, safe="%/:=&?~#+!$,;'@()*[]")
