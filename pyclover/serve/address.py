"""Hosts and ports: who can reach an address, and whether it is free."""

from __future__ import annotations

import errno
import ipaddress
import os
import re
import socket
from dataclasses import dataclass

from pyclover.errors import ServerError, UsageError, shortened


@dataclass(frozen=True)
class Endpoint:
    """A host and a TCP port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address; names other than localhost count as reachable."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_host(host: str) -> str:
    """Raises UsageError for what is no single host name or IP address."""
    if not isinstance(host, str) or not re.fullmatch(r"[A-Za-z0-9._:%-]+", host) or host.endswith(".sock"):
        raise UsageError(
            f"host is {shortened(host)}: give one IP address or host name, such as 127.0.0.1", option="host"
        )
    return host


def bindable(host: str, port: int) -> int:
    """A port on which a server can listen: `port`, or one that the system chooses when that is 0.

    Raises:
        ServerError: the port is taken, not allowed, or the address is none of this machine.
    """
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise ServerError(f"the host {host} is not known ({error.strerror or error}): check --host") from None
    with socket.socket(family, kind, protocol) as s:
        if os.name == "posix":  # as the server does: a port whose last user has just gone is free
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            s.bind(where)
            s.listen(1)
        except OSError as error:
            raise ServerError(_why_not(host, port, error)) from None
        return int(s.getsockname()[1])


def _why_not(host: str, port: int, error: OSError) -> str:
    at = Endpoint(host, port)
    if error.errno == errno.EADDRINUSE:
        return f"{at} is taken by another program: give another port, or --port 0 for a free one"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"the system does not let you listen on {at}: take a port above 1023"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{host} is no address of this machine: check --host"
    return f"nothing can listen on {at}: {error.strerror or error}"
