"""Keeps a server running: starts it, watches it, starts it anew with growing pauses, and at last gives up."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import psutil

from pyclover.errors import ServerError
from pyclover.serve.address import Endpoint
from pyclover.serve.probe import Probe
from pyclover.serve.process import STOP_S, Process
from pyclover.serve.watchdog import Watchdog
from pyclover.serve.workers import missing_worker

Launch = Callable[[], Process]
Kind = Literal["loading", "fault", "up"]


@dataclass(frozen=True)
class Event:
    """What happens to a server, as a sentence for a person."""

    kind: Kind
    text: str


Listener = Callable[[Event], None]


@dataclass(frozen=True, kw_only=True)
class Patience:
    """Seconds and counts of a supervisor; other values are for tests.

    Attributes:
        longest_pause_s: pauses before starts are 1, 2, 4, … seconds, at most this.
        healthy_s: after so long without a fault, earlier ones are forgotten.
        n_crashes: in a row, then it gives up.
        look_s: between two looks at a running server. poll_s: between two looks at a starting one.
    """

    first_pause_s: float = 1.0
    longest_pause_s: float = 30.0
    healthy_s: float = 60.0
    n_crashes: int = 5
    look_s: float = 2.0
    poll_s: float = 0.1
    stop_s: float = STOP_S

    def pause_s(self, n: int) -> float:
        """Before start number n + 1 after n faults in a row."""
        return min(self.longest_pause_s, self.first_pause_s * 2.0 ** (n - 1))


class Supervisor:
    """Runs one server in a thread of its own.

    Args:
        launch: starts the program; called in the thread that outlives it.
        probe: asks it.
        on_event: called from the thread.
        workers: without which it cannot run.
        stall_s: see Watchdog.
    """

    def __init__(
        self,
        launch: Launch,
        probe: Probe,
        *,
        on_event: Listener | None = None,
        workers: Sequence[Endpoint] = (),
        stall_s: float = 60.0,
        patience: Patience | None = None,
    ) -> None:
        self._launch, self._probe, self._on_event = launch, probe, on_event
        self._workers, self._stall_s = tuple(workers), stall_s
        self._patience = patience or Patience()
        self._process: Process | None = None
        self._n_crashes = 0
        self._n_restarts = 0
        self._error: Exception | None = None
        self._stop, self._ready, self._ended = threading.Event(), threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="clover-serve", daemon=True)

    # ---- from outside ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts the server and returns when it takes requests.

        Raises:
            ServerError: it ended before that.
        """
        self._thread.start()
        while not self._ready.wait(0.1):
            if self._ended.is_set():
                raise self._error or ServerError("the server was stopped before it was ready")

    @property
    def process(self) -> Process | None:
        """What runs now; None while a new start is due."""
        return self._process

    @property
    def n_restarts(self) -> int:
        return self._n_restarts

    @property
    def ready(self) -> bool:
        """Whether it takes requests, as far as is known."""
        return self._ready.is_set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Waits until it has ended for good, at most so long; whether it has.

        Raises:
            ServerError: it was given up.
        """
        if not self._ended.wait(timeout_s):
            return False
        if self._error is not None:
            raise self._error
        return True

    def stop(self) -> None:
        """Ends the server. A second call while the first still waits ends it at once."""
        again = self._stop.is_set()
        self._stop.set()
        process = self._process
        if again and process is not None:
            process.kill()
        if self._thread.is_alive():
            self._thread.join()

    def kill(self) -> None:
        """Ends it at once; safe in a signal handler."""
        self._stop.set()
        process = self._process
        if process is not None:
            process.kill()

    # ---- the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._keep_running()
        except Exception as error:
            self._error = error
        finally:
            process = self._process
            if process is not None and not process.ended():
                process.stop(self._patience.stop_s)
            self._process = None
            self._ready.clear()
            self._ended.set()

    def _keep_running(self) -> None:
        first = True
        while not self._stop.is_set():
            process = self._process = self._launch()
            wrong = self._start_up(process)
            if not wrong and not self._stop.is_set():
                self._ready.set()
                if not first:
                    self._n_restarts += 1
                    self._tell("up", "the server is up again")
                first = False
                wrong = self._watch(process)
                self._ready.clear()
            if self._stop.is_set():
                return
            if first:
                raise self._failure("the server did not start", process, wrong)
            self._n_crashes += 1
            if self._n_crashes >= self._patience.n_crashes:
                what = f"the server failed {self._n_crashes} times in a row and was given up"
                raise self._failure(what, process, wrong)
            self._process = None
            self._pause(wrong)

    def _start_up(self, process: Process) -> str:
        """Waits until it takes requests; what went wrong, "" when nothing did."""
        while not self._stop.is_set():
            if process.ended():
                return process.why()
            if self._probe.ready():
                return ""
            self._stop.wait(self._patience.poll_s)
        return ""

    def _watch(self, process: Process) -> str:
        """Looks at it until it fails or has to stop; what went wrong."""
        dog = Watchdog(self._stall_s)
        since_s = looked_s = time.monotonic()
        while not self._stop.wait(self._patience.poll_s):
            if process.ended():
                return process.why()
            now_s = time.monotonic()
            if now_s - looked_s < self._patience.look_s:
                continue
            if now_s - since_s >= self._patience.healthy_s:
                self._n_crashes = 0
            wrong = dog.look(now_s, self._probe.slots(), _cpu_s(process.pid))
            looked_s = time.monotonic()
            if wrong and not process.ended():
                process.stop(min(self._patience.stop_s, 2.0))  # it hangs: no use to wait for long
                return wrong
        return ""

    def _pause(self, wrong: str) -> None:
        """Waits as long as the faults so far call for, and until all workers are there."""
        pause_s = self._patience.pause_s(self._n_crashes)
        missing = missing_worker(self._workers)
        if missing is None:
            self._tell("fault", f"the server failed ({wrong}); it is started again in {pause_s:g} s")
        else:
            text = f"the worker {missing[0]} {missing[1]}; the server failed ({wrong}) and waits for the worker"
            self._tell("fault", text)
        while not self._stop.wait(pause_s):
            if missing is None:
                return
            missing = missing_worker(self._workers)
            pause_s = self._patience.look_s

    def _tell(self, kind: Kind, text: str) -> None:
        if self._on_event is not None:
            self._on_event(Event(kind, text))

    def _failure(self, what: str, process: Process, wrong: str) -> ServerError:
        missing = missing_worker(self._workers)
        text, worker = f"{what} ({wrong})", ""
        if missing is not None:
            worker = str(missing[0])
            text += f"; the worker {worker} {missing[1]}"
        return ServerError(text, log=process.lines, worker=worker)


def _cpu_s(pid: int) -> float:
    """Processor time that a process has used; 0 when it is gone."""
    with contextlib.suppress(psutil.Error):
        times = psutil.Process(pid).cpu_times()
        return float(times.user + times.system)
    return 0.0
