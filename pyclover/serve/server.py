"""`start_server()`: a model behind an HTTP address, for as long as the `Server` is open."""

from __future__ import annotations

import contextlib
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TextIO

from pyclover import arguments
from pyclover.engine.context import FlashAttention
from pyclover.engine.speculation import DraftSelf
from pyclover.errors import PathLike, UsageError
from pyclover.serve import address, document, keys
from pyclover.serve.launch import Prepared, prepare
from pyclover.serve.probe import Probe
from pyclover.serve.process import Process, Sink
from pyclover.serve.settings import ServerSettings
from pyclover.serve.supervisor import Event, Listener, Patience, Supervisor
from pyclover.serve.workers import parse_workers

if TYPE_CHECKING:
    from pyclover.engine.blocks import BlockParams
    from pyclover.hub.progress import ProgressFunction


class Server:
    """A running server; made by `start_server()`. Use it as a context manager, or call close().

    Attributes:
        url: where the page is; the OpenAI API is at url + "/v1".
        port: on which it listens.
        model: as it was called. path: its file. plan: None when nothing was planned.
        mode: "plain", "draft-self (lossless)", …
        block_params: how block passes compute, where that is not as the file says.
        n_ctx: tokens that all requests share. n_slots: requests computed at the same time. n_threads: that generate.
        warnings: one sentence each.
    """

    def __init__(
        self,
        prepared: Prepared,
        *,
        on_event: Listener | None = None,
        log: Sink | None = None,
        log_file: PathLike | None = None,
        patience: Patience | None = None,
    ) -> None:
        self._prepared, self._on_event = prepared, on_event
        self._sink, self._file = log, _opened(log_file)
        settings = prepared.settings
        self.model, self.path, self.plan = prepared.model, str(prepared.path), prepared.plan
        self.mode, self.n_ctx, self.n_threads = settings.mode, prepared.n_ctx, prepared.n_threads
        self.block_params = prepared.block_params
        self.n_slots, self.port, self.warnings = settings.n_slots, settings.port, prepared.warnings
        name = prepared.command[prepared.command.index("--alias") + 1]
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)
        self.url = f"http://{address.Endpoint(host, self.port)}"
        self._lock = threading.Lock()
        self._folder = tempfile.TemporaryDirectory(prefix="clover-page-")
        self._supervisor = Supervisor(
            self._launch,
            Probe(host, self.port, settings.api_keys[0] if settings.api_keys else None),
            on_event=on_event,
            workers=settings.rpc,
            stall_s=settings.stall_s,
            patience=patience,
        )
        try:
            n_max = settings.speculation.n_max if isinstance(settings.speculation, DraftSelf) else 0
            facts = {"model": name, "mode": self.mode, "n_max": n_max, "blocks": prepared.can_draft}
            document.write_document(Path(self._folder.name), facts)
            if on_event is not None:
                on_event(Event("loading", f"loading {prepared.path.name}"))
            self._supervisor.start()
        except BaseException:
            self._supervisor.kill()
            self._clean_up()
            raise

    def _launch(self) -> Process:
        command = [*self._prepared.command, "--path", self._folder.name]
        return Process(command, self._prepared.settings.environment(), self._write)

    def _write(self, line: str) -> None:
        if self._file is not None:
            try:
                self._file.write(line + "\n")
            except OSError as error:  # a full disk stops no server
                self._close_log()
                if self._on_event is not None:
                    why = error.strerror or error
                    self._on_event(Event("fault", f"the log file cannot be written: {why}; it gets no more lines"))
        if self._sink is not None:
            self._sink(line)

    def _close_log(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):  # what it still holds has no room either
                file.close()

    @property
    def pid(self) -> int | None:
        """Of the server's process; None while it is not there."""
        process = self._supervisor.process
        return None if process is None else process.pid

    @property
    def ready(self) -> bool:
        """Whether it takes requests; False while it is started anew."""
        return self._supervisor.ready

    @property
    def n_restarts(self) -> int:
        """How often it was started anew."""
        return self._supervisor.n_restarts

    def wait(self, timeout_s: float | None = None) -> bool:
        """Waits until the server has ended for good, at most so long; whether it has.

        Raises:
            ServerError: it failed too often and was given up.
        """
        return self._supervisor.wait(timeout_s)

    def close(self) -> None:
        """Ends the server; requests under way are cut off. Closing twice does nothing."""
        with self._lock:
            self._supervisor.stop()
            self._clean_up()

    def kill(self) -> None:
        """Ends the server at once, also while close() waits; close() cleans up."""
        self._supervisor.kill()

    def _clean_up(self) -> None:
        with contextlib.suppress(OSError):
            self._folder.cleanup()
        self._close_log()

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "url": self.url, "api": f"{self.url}/v1", "port": self.port, "pid": self.pid, "model": self.model,
            "path": self.path, "mode": self.mode, "n_ctx": self.n_ctx,
            "block_params": dict(self.block_params), "n_slots": self.n_slots,
            "n_threads": self.n_threads, "plan": None if self.plan is None else self.plan.to_dict(),
            "warnings": list(self.warnings),
        }  # fmt: skip

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Server {self.url}, {self.model}, {self.mode}>"


def start_server(
    model: PathLike = "tiny",
    *,
    host: str = "127.0.0.1",
    port: int = 8080,
    api_key: str | Sequence[str] | None = None,
    api_key_file: PathLike | None = None,
    cors_origins: str = "localhost",
    n_slots: int = 1,
    metrics: bool = False,
    rpc: str | Sequence[str] = (),
    speculation: DraftSelf | Literal["auto"] | None = None,
    block_params: BlockParams | Mapping[str, Any] | None = None,
    thinking: bool | Literal["auto"] = "auto",
    think_budget: int | None = None,
    max_tokens: int | None = None,
    template: str | None = None,
    defaults: Mapping[str, Any] | None = None,
    n_ctx: int | None = None,
    n_batch: int | None = None,
    n_ubatch: int | None = None,
    n_threads: int | None = None,
    n_threads_batch: int | None = None,
    n_gpu_layers: int | None = None,
    n_cpu_moe: int | None = None,
    flash_attn: FlashAttention = "auto",
    cache_type_k: str | None = None,
    cache_type_v: str | None = None,
    fit: bool = True,
    mmap: bool = True,
    stall_s: float = 60.0,
    on_event: Listener | None = None,
    log: Sink | None = None,
    log_file: PathLike | None = None,
    download_progress: ProgressFunction | None = None,
) -> Server:
    """Starts a server for a model and returns when it takes requests.

    It ends with close(), with the `with` block, and on Linux at the latest with this process. When it crashes or hangs
    it is started anew, with growing pauses; after 5 faults in a row it is given up, which wait() raises.

    Args:
        model, n_ctx … mmap, download_progress: as for `Clover`; n_ctx is shared by all slots.
        host, port: where to listen; port 0: a free one. Other hosts than those of this machine need a key.
        api_key, api_key_file: keys of which a client has to send one; the file has one a line.
        cors_origins: web pages of which origin may use it: "localhost", "*", or one such as "https://example.org".
        n_slots: requests that are computed at the same time; others wait.
        metrics: Prometheus metrics at /metrics.
        rpc: workers ("host:port", several with commas) that take the model's layers; nothing is planned then.
        speculation: None, DraftSelf(…) or "auto", for all requests.
        block_params: how block passes compute, where that is not as the file says: BlockParams(…), or some of its
            values by name.
        thinking: whether the model thinks when a request does not say. think_budget: tokens that it may think.
        max_tokens: of an answer when the request does not say.
        template: Jinja text in place of the file's chat template.
        defaults: temperature, top_k, top_p, min_p, seed of requests that do not give them.
        stall_s: seconds without progress after which a busy server is started anew, 0: never.
        on_event: called with an Event (kind "loading", "fault" or "up", and a sentence), also from another thread.
        log, log_file: where the server's own lines go.

    Raises:
        ServerError: the port is taken, a worker cannot be reached, or the server ended before it was ready.
        UsageError: an option that cannot be honoured.
        TemplateError: the chat template takes more time or memory than a template may.
        FileError, DownloadError, DoesNotFitError: as `Clover`.
    """
    settings = settings_from(
        host=host, port=port, api_key=api_key, api_key_file=api_key_file, cors_origins=cors_origins, n_slots=n_slots,
        metrics=metrics, rpc=rpc, speculation=speculation, thinking=thinking, think_budget=think_budget,
        max_tokens=max_tokens, template=template, defaults=defaults or {}, stall_s=stall_s,
    )  # fmt: skip
    context = {
        "n_ctx": n_ctx, "n_batch": n_batch, "n_ubatch": n_ubatch, "n_threads": n_threads,
        "n_threads_batch": n_threads_batch, "n_gpu_layers": n_gpu_layers, "n_cpu_moe": n_cpu_moe,
        "flash_attn": flash_attn, "cache_type_k": cache_type_k, "cache_type_v": cache_type_v,
    }  # fmt: skip
    prepared = prepare(
        model, settings, context, block_params=block_params, fit=fit, mmap=mmap, progress=download_progress
    )
    return Server(prepared, on_event=on_event, log=log, log_file=log_file)


def settings_from(
    *,
    api_key: str | Sequence[str] | None = None,
    api_key_file: PathLike | None = None,
    rpc: str | Sequence[str] = (),
    **others: Any,
) -> ServerSettings:
    """Checks those arguments of start_server() that have to do with neither model nor memory.

    Raises:
        UsageError: an option that cannot be honoured.
    """
    return ServerSettings(api_keys=keys.collect(api_key, api_key_file), rpc=parse_workers(rpc), **others)


def _opened(path: PathLike | None) -> TextIO | None:
    if path is None:
        return None
    where = arguments.path("log_file", path).expanduser()
    try:
        return where.open("a", encoding="utf-8", buffering=1)
    except OSError as error:
        raise UsageError(f"the log file {where} cannot be written: {error.strerror}", option="log_file") from None
