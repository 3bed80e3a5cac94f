"""A worker: llama.cpp's rpc-server, which computes layers for a server elsewhere."""

from __future__ import annotations

import os
from collections.abc import Callable

from pyclover import arguments
from pyclover.engine.threads import usable_processors
from pyclover.errors import ServerError, UsageError, shortened
from pyclover.serve.address import Endpoint, bindable, check_host, is_loopback
from pyclover.serve.launch import program
from pyclover.serve.process import Process, Sink
from pyclover.serve.workers import wrong_with

DEFAULT_PORT = 50052
NO_KEY = (
    "the workers' protocol has neither keys nor encryption: whoever reaches {host} can use and crash this worker; keep "
    "it to a private network"
)


class Worker:
    """A running worker; use it as a context manager, or call close().

    Attributes:
        endpoint: host:port, for `rpc` of a server. warnings: one sentence each.
    """

    def __init__(self, command: list[str], endpoint: Endpoint, warnings: tuple[str, ...], log: Sink | None) -> None:
        self.endpoint, self.warnings = str(endpoint), warnings
        environment = {**os.environ, "GGML_NO_BACKTRACE": "1"}
        self._process = Process(command, environment, log)
        try:
            self._wait_until_it_listens(endpoint)
        except BaseException:
            self._process.kill()
            raise

    def _wait_until_it_listens(self, endpoint: Endpoint) -> None:
        while not self._process.ended():
            if not wrong_with(endpoint):
                return
            self.wait(0.05)
        raise ServerError(f"the worker did not start ({self._process.why()})", log=self._process.lines)

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait(self, timeout_s: float) -> bool:
        """Waits at most so long; whether it has ended."""
        return self._process.wait(timeout_s)

    def why(self) -> str:
        """How it ended."""
        return self._process.why()

    def kill(self) -> None:
        """Ends it at once."""
        self._process.kill()

    def close(self) -> None:
        """Ends it. Closing twice does nothing."""
        self._process.stop()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def work(
    *,
    host: str = "127.0.0.1",
    port: int = DEFAULT_PORT,
    n_threads: int | None = None,
    devices: str | None = None,
    cache: bool = False,
    log: Callable[[str], None] | None = None,
) -> Worker:
    """Starts a worker and returns when it takes connections. It ends with this process at the latest.

    Args:
        host, port: where to listen; port 0: a free one.
        n_threads: that compute; None: the processors that may be used.
        devices: names of the devices to compute on, with commas; None: the GPUs, or the processor where there is none.
        cache: keep the weights that a server sends in a folder of this machine, so that the next start is quicker.
        log: called with each of its lines, from another thread.

    Raises:
        ServerError: the port is taken, this build has no rpc-server, or it ended at once.
        UsageError: an option that cannot be honoured.
    """
    if ":" in check_host(host):
        raise UsageError(f"host is {host}: llama.cpp's workers listen on IPv4 addresses alone", option="host")
    arguments.integer("port", port, 0, 65535)
    if n_threads is not None:
        arguments.integer("n_threads", n_threads, 1, 4096)
    if devices is not None and not arguments.text("devices", devices).strip(", "):
        raise UsageError(
            f"devices is {shortened(devices)}: name devices with commas, or leave it out", option="devices"
        )
    path = program("rpc-server")
    endpoint = Endpoint(host, bindable(host, port))
    command = [path, "--host", host, "--port", str(endpoint.port), "--threads", str(n_threads or usable_processors())]
    command += [] if devices is None else ["--device", devices]
    command += ["--cache"] if cache else []
    warnings = () if is_loopback(host) else (NO_KEY.format(host=host),)
    reach = {"0.0.0.0": "127.0.0.1"}.get(host, host)
    return Worker(command, Endpoint(reach, endpoint.port), warnings, log)
