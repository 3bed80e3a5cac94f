"""The supervisor of `serve`, over a stand-in for the server: starts, restarts, gives up, stops, leaves nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from pyclover.errors import ServerError
from pyclover.serve.address import Endpoint, bindable
from pyclover.serve.probe import Probe
from pyclover.serve.process import Process, is_fault, plain
from pyclover.serve.supervisor import Event, Patience, Supervisor

STUB = Path(__file__).with_name("serve_stub.py")
QUICK = Patience(first_pause_s=0.05, longest_pause_s=0.2, look_s=0.1, poll_s=0.02, stop_s=1.0)

pytestmark = [pytest.mark.skipif(os.name != "posix", reason="signals"), pytest.mark.timeout(60)]


class Bench:
    """A supervisor and the file that tells its stand-in what to do."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.events: list[Event] = []
        self.port = bindable("127.0.0.1", 0)
        self.behave("good")

    def behave(self, how: str) -> None:
        new = self.folder / "new"
        new.write_text(how, encoding="utf-8")
        new.replace(self.folder / "behave")

    def starts(self) -> list[int]:
        path = self.folder / "starts"
        return [int(line) for line in path.read_text(encoding="utf-8").split()] if path.exists() else []

    def supervisor(
        self, *, patience: Patience = QUICK, stall_s: float = 60, workers: tuple[Endpoint, ...] = ()
    ) -> Supervisor:
        command = [sys.executable, str(STUB), str(self.port), str(self.folder)]
        return Supervisor(
            lambda: Process(command), Probe("127.0.0.1", self.port, timeout_s=0.3), on_event=self.events.append,
            patience=patience, stall_s=stall_s, workers=workers,
        )  # fmt: skip


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def until(what: Callable[[], bool], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.02)


def test_starts_and_stops(bench: Bench) -> None:
    s = bench.supervisor()
    s.start()
    assert s.ready
    [pid] = bench.starts()
    assert s.process is not None
    assert s.process.pid == pid  # the guard has become the program
    assert not s.wait(0.05)
    s.stop()
    assert s.wait(0)
    assert not psutil.pid_exists(pid)
    assert bench.events == []


def test_a_server_that_ends_at_once_is_not_started_again(bench: Bench) -> None:
    bench.behave("exit 1 failed to load model '/m.gguf'")
    with pytest.raises(ServerError) as caught:
        bench.supervisor().start()
    assert str(caught.value) == "the server did not start (exit code 1: failed to load model '/m.gguf')"
    assert any("all is well" in line for line in caught.value.log)
    assert len(bench.starts()) == 1


def test_a_crash_is_told_and_mended(bench: Bench) -> None:
    s = bench.supervisor()
    s.start()
    bench.behave("crash")
    until(lambda: len(bench.events) >= 1)
    bench.behave("good")
    until(lambda: s.n_restarts == 1)
    assert s.ready
    kinds = [event.kind for event in bench.events]
    assert (kinds[0], kinds[-1]) == ("fault", "up")
    assert "signal SIGABRT: GGML_ASSERT(n > 0) failed" in bench.events[0].text
    s.stop()
    assert not any(psutil.pid_exists(pid) for pid in bench.starts())


def test_it_gives_up_after_five_crashes_in_a_row(bench: Bench) -> None:
    s = bench.supervisor()
    s.start()
    bench.behave("crash hard")
    with pytest.raises(ServerError, match=r"failed 5 times in a row and was given up \(signal SIGKILL"):
        s.wait(30)
    assert len(bench.starts()) == 5
    assert len(bench.events) == 4
    assert not s.ready


def test_pauses_grow() -> None:
    assert [Patience().pause_s(n) for n in range(1, 8)] == [1, 2, 4, 8, 16, 30, 30]


def test_health_makes_earlier_crashes_forgotten(bench: Bench) -> None:
    s = bench.supervisor(patience=Patience(first_pause_s=0.05, look_s=0.05, poll_s=0.02, healthy_s=0.3, n_crashes=2))
    s.start()
    for n in (1, 2, 3):
        time.sleep(0.6)
        bench.behave("crash")
        until(lambda n=n: len([e for e in bench.events if e.kind == "fault"]) == n)  # type: ignore[misc]
        bench.behave("good")
        until(lambda n=n: s.n_restarts == n)  # type: ignore[misc]
    s.stop()


def test_a_busy_server_without_tokens_is_started_anew(bench: Bench) -> None:
    s = bench.supervisor(stall_s=0.5)
    s.start()
    bench.behave("stall")
    until(lambda: len(bench.events) >= 1)
    bench.behave("good")
    until(lambda: s.n_restarts == 1)
    assert "made no token" in bench.events[0].text
    s.stop()


def test_a_frozen_server_is_started_anew(bench: Bench) -> None:
    s = bench.supervisor(stall_s=1.0)
    s.start()
    os.kill(bench.starts()[0], signal.SIGSTOP)
    until(lambda: s.n_restarts == 1)
    assert "has not answered" in bench.events[0].text
    assert "computes nothing" in bench.events[0].text
    s.stop()


def test_one_that_will_not_end_is_ended(bench: Bench) -> None:
    bench.behave("deaf")
    s = bench.supervisor()
    s.start()
    begin = time.monotonic()
    s.stop()
    assert time.monotonic() - begin < 5
    assert not psutil.pid_exists(bench.starts()[0])


def test_it_waits_for_a_missing_worker(bench: Bench) -> None:
    port = bindable("127.0.0.1", 0)
    s = bench.supervisor(workers=(Endpoint("127.0.0.1", port),))
    s.start()
    bench.behave("crash")
    until(lambda: len(bench.events) >= 1)
    bench.behave("good")
    time.sleep(1)
    assert len(bench.starts()) == 1
    assert f"the worker 127.0.0.1:{port} cannot be reached" in bench.events[0].text
    s.stop()
    assert s.wait(0)


PARENT = """
import sys, time
from pyclover.serve.process import Process
p = Process([sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"])
print(p.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent has gone")
def test_the_server_does_not_outlive_us() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True, cwd=tempfile.gettempdir()
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    until(lambda: "guard.py" not in " ".join(psutil.Process(pid).cmdline()))
    parent.kill()
    parent.wait()
    parent.stdout.close()
    until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE, 5)


@pytest.mark.parametrize(
    ("line", "fault", "text"),
    [
        ("0.00.129.614 I srv    load_model: loading model 'x'", False, "loading model 'x'"),
        ("0.00.129.614 E srv    load_model: failed to load model, 'x'.", True, "failed to load model, 'x'"),
        ("0.00.335.618 W clover_moe.key is missing", False, "clover_moe.key is missing"),
        ("error: invalid argument: --foo", True, "invalid argument: --foo"),
        ("/a/b/ggml-rpc.cpp:566: Remote RPC server crashed", True, "Remote RPC server crashed"),
        ("/a/b.cpp:12: GGML_ASSERT(x) failed", True, "GGML_ASSERT(x) failed"),
    ],
)
def test_lines_of_the_log(line: str, fault: bool, text: str) -> None:
    assert is_fault(line) == fault
    assert plain(line) == text
