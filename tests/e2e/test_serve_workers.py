"""`clover-run worker` and `serve --rpc`: two workers on this machine, the same tokens; one that dies is named."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any

import psutil
import pytest

from pyclover.engine.build_info import programs
from pyclover.errors import ServerError, UsageError
from pyclover.serve import launch
from pyclover.serve.server import start_server
from pyclover.serve.supervisor import Event
from pyclover.serve.worker import Worker, work
from pyclover.serve.workers import check_workers, parse_workers

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif("rpc-server" not in programs(), reason="built without llama.cpp's rpc-server"),
]
ROUNDED_ALIKE: dict[str, Any] = {"n_threads": 1, "cache_type_k": "f32", "cache_type_v": "f32", "flash_attn": False}


def tokens(port: int, n: int = 24) -> list[int]:
    prompt = "<|im_start|>user\nWhat is 12 + 7?<|im_end|>\n<|im_start|>assistant\n"
    body = {"prompt": prompt, "n_predict": n, "temperature": 0, "return_tokens": True, "ignore_eos": True}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("POST", "/completion", json.dumps(body), {"Content-Type": "application/json"})
        found: list[int] = json.loads(connection.getresponse().read())["tokens"]
        return found
    finally:
        connection.close()


def test_two_workers_give_the_tokens_of_one_process() -> None:
    with start_server("tiny", port=0, n_ctx=512, **ROUNDED_ALIKE) as alone:
        expected = tokens(alone.port)
    assert len(expected) == 24
    lines: list[str] = []
    with work(port=0, n_threads=1) as a, work(port=0, n_threads=1) as b:
        rpc = [a.endpoint, b.endpoint]
        with start_server("tiny", port=0, n_ctx=512, rpc=rpc, log=lines.append, **ROUNDED_ALIKE) as server:
            assert server.plan is None
            assert any("workers" in warning for warning in server.warnings)
            assert tokens(server.port) == expected
            assert server.pid is not None
            ports = {c.raddr.port for c in psutil.Process(server.pid).net_connections() if c.raddr}
            assert {int(endpoint.split(":")[1]) for endpoint in rpc} <= ports
            with pytest.raises(ServerError, match="one server at a time"):
                check_workers(parse_workers(a.endpoint))


def test_a_worker_that_dies_is_named_and_waited_for() -> None:
    events: list[Event] = []
    with work(port=0, n_threads=1) as a, work(port=0, n_threads=1) as b:
        rpc = [a.endpoint, b.endpoint]
        with start_server("tiny", port=0, n_ctx=512, rpc=rpc, on_event=events.append, **ROUNDED_ALIKE) as server:
            expected = tokens(server.port)
            os.kill(b.pid, signal.SIGKILL)
            begin = time.monotonic()
            with pytest.raises((OSError, http.client.HTTPException, KeyError, ValueError)):
                tokens(server.port)
            until(lambda: any(event.kind == "fault" for event in events))
            assert time.monotonic() - begin < 60
            fault = next(event.text for event in events if event.kind == "fault")
            assert f"the worker {b.endpoint} cannot be reached" in fault
            time.sleep(2)
            assert server.n_restarts == 0  # not without the worker
            with work(port=int(b.endpoint.split(":")[1]), n_threads=1):
                until(lambda: server.n_restarts == 1)
                assert tokens(server.port) == expected


def until(what: Any, seconds: float = 90) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.05)


def test_the_command() -> None:
    line = [sys.executable, "-m", "pyclover.cli.main", "worker", "--port", "0", "--json", "--threads", "1"]
    elsewhere = tempfile.gettempdir()  # in the checkout Python would find the source folder first
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=elsewhere) as process:
        assert process.stdout is not None
        said = json.loads(process.stdout.readline())
        check_workers(parse_workers(said["endpoint"]))
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        assert not psutil.pid_exists(said["pid"])


def test_a_worker_that_others_can_reach_warns() -> None:
    with work(host="0.0.0.0", port=0, n_threads=1) as worker:
        assert isinstance(worker, Worker)
        [warning] = worker.warnings
        assert "neither keys nor encryption" in warning


def test_an_ipv6_address_is_refused_before_anything_starts() -> None:
    with pytest.raises(UsageError, match=r"host is ::1: llama\.cpp's workers listen on IPv4") as caught:
        work(host="::1", port=0)
    assert caught.value.option == "host"


def test_a_build_without_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "programs", dict)
    with pytest.raises(ServerError, match="has no program rpc-server"):
        work(port=0)
    with pytest.raises(ServerError, match="has no program llama"):
        start_server("tiny", port=0)
