"""The workers of a server: what --rpc names, and whether each is there."""

from __future__ import annotations

import re
import socket
import struct
from collections.abc import Iterable

from pyclover.errors import ServerError, UsageError, shortened
from pyclover.serve.address import Endpoint

MAX_WORKERS = 16  # GGML_RPC_MAX_SERVERS
ANSWER_S = 2.0
# The greeting of llama.cpp's RPC protocol: command, size, capabilities (none). The answer: size, version, capabilities.
_HELLO = struct.pack("<BQ24x", 14, 24)
_WELCOME = struct.Struct("<QBBBx24x")
_MAJOR = 7


def parse_workers(text: str | Iterable[str]) -> tuple[Endpoint, ...]:
    """The workers named by "host:port,host:port", or by a sequence of such texts.

    Raises:
        UsageError: a part is no host:port, is named twice, or there are more than llama.cpp takes.
    """
    if not isinstance(text, Iterable):
        raise UsageError(f"rpc is {shortened(text)}: it must be a str or a list of them", option="rpc")
    parts = [part for one in ([text] if isinstance(text, str) else text) for part in str(one).split(",")]
    found: list[Endpoint] = []
    for part in parts:
        hit = re.fullmatch(r"([A-Za-z0-9._-]+):(\d{1,5})", part.strip())
        if hit is None or not 1 <= int(hit[2]) <= 65535:
            raise UsageError(
                f"rpc: {shortened(part)} is no worker: give host:port (a name or an IPv4 address), several with commas",
                option="rpc",
            )
        endpoint = Endpoint(hit[1], int(hit[2]))
        if endpoint in found:
            raise UsageError(f"rpc: the worker {endpoint} is named twice", option="rpc")
        found.append(endpoint)
    if len(found) > MAX_WORKERS:
        raise UsageError(f"rpc: {len(found)} workers, and llama.cpp takes at most {MAX_WORKERS}", option="rpc")
    return tuple(found)


def wrong_with(endpoint: Endpoint, timeout_s: float = ANSWER_S) -> str:
    """Why a worker cannot be used, "" when it can."""
    try:
        with socket.create_connection((endpoint.host, endpoint.port), timeout=timeout_s) as s:
            s.sendall(_HELLO)
            try:
                answer = b""  # in parts: a socket with a timeout does not wait for all of it
                while len(answer) < _WELCOME.size and (part := s.recv(_WELCOME.size - len(answer))):
                    answer += part
            except TimeoutError:
                return "takes a connection but does not answer: it works for one server at a time, or hangs"
    except OSError as error:
        why = "no answer" if isinstance(error, TimeoutError) else error.strerror or str(error)
        return f"cannot be reached ({why})"
    if len(answer) < _WELCOME.size or answer[:8] != struct.pack("<Q", _WELCOME.size - 8):
        return "does not speak llama.cpp's RPC protocol"
    major = _WELCOME.unpack(answer)[1]
    return "" if major == _MAJOR else f"speaks version {major} of llama.cpp's RPC protocol, this build version {_MAJOR}"


def missing_worker(endpoints: Iterable[Endpoint]) -> tuple[Endpoint, str] | None:
    """The first worker that cannot be used, and why; None when all can."""
    for endpoint in endpoints:
        if wrong := wrong_with(endpoint):
            return endpoint, wrong
    return None


def check_workers(endpoints: Iterable[Endpoint]) -> None:
    """Raises ServerError that names a worker which cannot be used."""
    if missing := missing_worker(endpoints):
        endpoint, wrong = missing
        raise ServerError(
            f"the worker {endpoint} {wrong}; start it there with `clover-run worker --host {endpoint.host} "
            f"--port {endpoint.port}`, or take it out of --rpc",
            worker=str(endpoint),
        )
