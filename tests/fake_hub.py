"""A hub on 127.0.0.1: the part of the Hugging Face hub's protocol that downloads need, and it can be made to fail.

A large file is served as by the real hub: its address answers with a redirect to a content server, here a second server
on another port, so that a token that is passed on shows. `faults` are taken one by one, each by the next request for
content; `always` when there are none left. While `hold` is set up, an answer stops before its last byte. With `pace_s`
content comes in pieces of 64 KiB, with that many seconds before each.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import socket
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit


@dataclass(frozen=True)
class Fault:
    """What goes wrong with one request for content.

    Attributes:
        status: this status instead of an answer.
        drop_after: the connection is reset after so many bytes of the body.
        end_after: the body ends in good order after so many bytes, with no length announced.
        flip: the byte at this offset of the file is wrong.
        ignore_range: the whole file comes, whatever was asked for.
        shift: a partial answer begins so many bytes too early, and says so.
        extra: so many bytes too many come, with no length announced.
        retry_after: value of this header, with `status`.
    """

    status: int = 0
    drop_after: int | None = None
    end_after: int | None = None
    flip: int | None = None
    ignore_range: bool = False
    shift: int = 0
    extra: int = 0
    retry_after: str = ""


@dataclass
class Request:
    """A request that came."""

    server: str
    path: str
    range: str
    token: str


@dataclass
class Repo:
    """Files by name, at one commit; `wrong_sums` overrides what the listing says of a file's SHA-256."""

    files: dict[str, bytes]
    commit: str
    small: set[str] = field(default_factory=set)
    listed: dict[str, dict[str, Any]] = field(default_factory=dict)
    gated: bool = False


class FakeHub:
    """The hub; `url` is its endpoint, `requests` what was asked."""

    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.faults: list[Fault] = []
        self.always: Fault | None = None
        self.api_status: list[int] = []
        self.api_body: bytes | None = None
        self.requests: list[Request] = []
        self.token = ""
        self.closed = False
        self.hold: threading.Event | None = None
        self.held = threading.Event()
        self.pace_s = 0.0
        self.lock = threading.Lock()
        self._servers = [self._serve("hub"), self._serve("cdn")]
        self.url, self.cdn = (f"http://127.0.0.1:{server.server_address[1]}" for server in self._servers)

    def _serve(self, kind: str) -> ThreadingHTTPServer:
        hub = self

        class Handler(_Handler):
            owner, server_kind = hub, kind

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return server

    def close(self) -> None:
        """No answer any more, also not on connections that are open."""
        self.closed = True
        for server in self._servers:
            server.shutdown()
            server.server_close()

    def add(self, repo: str, files: dict[str, bytes], *, small: tuple[str, ...] = (), **more: Any) -> Repo:
        """A repository, or a new commit of it; the commit's hash follows from the files."""
        state = hashlib.sha1(b"".join(name.encode() + data for name, data in sorted(files.items()))).hexdigest()
        self.repos[repo] = Repo(dict(files), state, set(small), **more)
        return self.repos[repo]

    def content_requests(self) -> list[Request]:
        """Requests that reached a file's content."""
        return [r for r in self.requests if r.server == "cdn"]

    def take_fault(self) -> Fault:
        with self.lock:
            return self.faults.pop(0) if self.faults else self.always or Fault()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    owner: FakeHub
    server_kind: str

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        with contextlib.suppress(ConnectionError):
            if self.owner.closed:
                self.close_connection = True
            else:
                self._answer()

    def _answer(self) -> None:
        hub, path = self.owner, unquote(urlsplit(self.path).path)
        token = self.headers.get("Authorization", "")
        with hub.lock:
            hub.requests.append(Request(self.server_kind, path, self.headers.get("Range", ""), token))
        if self.server_kind == "cdn":
            _, repo_owner, repo, name = path.split("/", 3)
            return self._content(hub.repos[f"{repo_owner}/{repo}"].files[name])
        if hub.token and token != f"Bearer {hub.token}":
            return self._error(401, "RepoNotFound")
        if hit := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", path):
            return self._listing(hit[1], hit[2] or "main")
        if hit := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            return self._file(hit[1], hit[2], hit[3])
        return self._error(404, "")

    def _listing(self, name: str, revision: str) -> None:
        hub = self.owner
        if hub.api_status:
            return self._error(hub.api_status.pop(0), "")
        if hub.api_body is not None:
            return self._send(200, hub.api_body)
        repo = hub.repos.get(name)
        if repo is None:
            return self._error(404, "RepoNotFound")
        if repo.gated:
            return self._error(403, "GatedRepo")
        if revision not in ("main", repo.commit):
            return self._error(404, "RevisionNotFound")
        siblings = []
        for file, data in repo.files.items():
            git = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
            item: dict[str, Any] = {"rfilename": file, "size": len(data), "blobId": git}
            if file not in repo.small:
                item["blobId"] = "0" * 40  # of the pointer, not of the content
                item["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
            siblings.append({**item, **repo.listed.get(file, {})})
        data = {"id": name, "modelId": name, "sha": repo.commit, "siblings": siblings}
        return self._send(200, json.dumps(data).encode())

    def _file(self, name: str, revision: str, file: str) -> None:
        repo = self.owner.repos.get(name)
        if repo is None or revision not in ("main", repo.commit) or file not in repo.files:
            return self._error(404, "EntryNotFound")
        if file in repo.small:
            return self._send(200, repo.files[file])
        self.send_response(302)
        self.send_header("Location", f"{self.owner.cdn}/{name}/{file}?signature=1")
        self.send_header("Content-Length", "0")
        self.end_headers()
        return None

    def _content(self, data: bytes) -> None:
        hub, fault = self.owner, self.owner.take_fault()
        if fault.status:
            return self._error(fault.status, "", retry_after=fault.retry_after)
        if fault.flip is not None:
            data = data[: fault.flip] + bytes([data[fault.flip] ^ 1]) + data[fault.flip + 1 :]
        first, last, status = 0, len(data) - 1, 200
        hit = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if hit and not fault.ignore_range:
            first = int(hit[1])
            if first >= len(data):
                return self._error(416, "")
            last, status = min(int(hit[2] or last), last), 206
            first = max(first - fault.shift, 0)
        body = data[first : last + 1] + b"\0" * fault.extra
        self.send_response(status)
        if status == 206:
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(data)}")
        self.send_header("ETag", f'"{hashlib.sha256(data).hexdigest()}"')
        if fault.end_after is not None or fault.extra:
            self.send_header("Connection", "close")  # the end of the connection is the end of the body
            self.close_connection = True
        else:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        cut = fault.end_after if fault.end_after is not None else fault.drop_after
        rest = b""
        if cut is not None:
            body = body[:cut]
        elif hub.hold is not None:
            body, rest = body[:-1], body[-1:]
        step = 1 << 16 if hub.pace_s else max(len(body), 1)
        for at in range(0, len(body), step):
            time.sleep(hub.pace_s)
            self.wfile.write(body[at : at + step])
        self.wfile.flush()
        if hub.hold is not None:
            hub.held.set()
            hub.hold.wait(300)
        self.wfile.write(rest)
        if fault.drop_after is not None:
            # a reset, not an end in good order
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True
            self.connection.close()
        return None

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _error(self, status: int, code: str, *, retry_after: str = "") -> None:
        self.send_response(status)
        if code:
            self.send_header("X-Error-Code", code)
        if retry_after:
            self.send_header("Retry-After", retry_after)
        self.send_header("Content-Length", "0")
        self.end_headers()


@contextlib.contextmanager
def fake_hub() -> Iterator[FakeHub]:
    """A running hub."""
    hub = FakeHub()
    try:
        yield hub
    finally:
        hub.close()
