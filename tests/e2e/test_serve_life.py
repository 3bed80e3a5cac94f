"""`clover-run serve` as a process, over the real server and the model in the package: start, failures, end."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from support import ORACLE

from pyclover.engine.build_info import programs
from pyclover.engine.speculation import DraftSelf
from pyclover.serve.address import bindable
from pyclover.serve.server import start_server

ELSEWHERE = tempfile.gettempdir()  # in the checkout Python would find the source folder first

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif("llama" not in programs(), reason="built without llama.cpp's programs"),
    pytest.mark.skipif(os.name != "posix", reason="signals"),
]


@contextlib.contextmanager
def command(*args: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """A running `clover-run serve --json` and what it says of itself."""
    line = [sys.executable, "-m", "pyclover.cli.main", "serve", "--json", *args]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ELSEWHERE)
    try:
        assert process.stdout is not None
        said = process.stdout.readline()
        assert said, process.communicate()
        yield process, json.loads(said)
    finally:
        process.kill()
        process.communicate()


def get(port: int, path: str, key: str = "") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {key}"} if key else {})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def fails(*args: str) -> str:
    """The one line of a `clover-run serve` that ends by itself."""
    line = [sys.executable, "-m", "pyclover.cli.main", "serve", *args]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, check=False, cwd=ELSEWHERE)
    assert done.returncode == 1, done
    assert "Traceback" not in done.stderr
    return done.stderr.splitlines()[-1]


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_ready_means_ready_and_a_signal_ends_it_cleanly(kind: signal.Signals) -> None:
    with command("--port", "0", "--metrics", "--spec-type", "draft-self") as (process, said):
        assert said["url"] == f"http://127.0.0.1:{said['port']}"
        assert said["mode"] == "draft-self (lossless)"
        assert said["plan"]["settings"]["n_max"] == 3
        assert get(said["port"], "/health")[0] == 200
        assert b"llamacpp:" in get(said["port"], "/metrics")[1]
        models = json.loads(get(said["port"], "/v1/models")[1])
        assert [m["id"] for m in models["data"]] == ["tiny"]
        process.send_signal(kind)
        _, stderr = process.communicate(timeout=30)
        assert process.returncode == 0, stderr
        assert "Traceback" not in stderr
        assert not psutil.pid_exists(said["pid"])


def test_a_second_ctrl_c_does_not_wait() -> None:
    """For a server that does not end, here because it is stopped, and that is given more time than this test has."""
    program = (
        "import sys; from pyclover.serve.supervisor import Patience; "
        "Patience.__init__.__kwdefaults__['stop_s'] = 10000.0; from pyclover.cli.main import main; main()"
    )
    line = [sys.executable, "-c", program, "serve", "--json", "--port", "0", "--stall", "0"]
    process = subprocess.Popen(
        line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ELSEWHERE, start_new_session=True
    )
    try:
        assert process.stdout is not None
        server = psutil.Process(json.loads(process.stdout.readline())["pid"])
        server.send_signal(signal.SIGSTOP)
        process.send_signal(signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(3)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
        assert process.returncode == 0, stderr
        assert "Traceback" not in stderr
        assert not server.is_running()
    finally:
        process.kill()
        process.communicate()


def test_a_killed_server_comes_back_at_the_same_address() -> None:
    with command("--port", "0") as (process, said):
        os.kill(said["pid"], signal.SIGKILL)
        assert process.stderr is not None
        lines = ""
        while "starting it again" not in lines and "started again" not in lines:
            lines += process.stderr.readline()
        assert "signal SIGKILL" in lines
        end = time.monotonic() + 60
        while True:
            with contextlib.suppress(OSError):
                if get(said["port"], "/health")[0] == 200:
                    break
            assert time.monotonic() < end
            time.sleep(0.2)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent has gone")
def test_a_killed_parent_leaves_no_server() -> None:
    with command("--port", "0") as (process, said):
        process.kill()
        process.wait()
        end = time.monotonic() + 10
        while psutil.pid_exists(said["pid"]) and psutil.Process(said["pid"]).status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < end
            time.sleep(0.05)


def test_failures_are_one_sentence_before_anything_listens(tmp_path: Path) -> None:
    with command("--port", "0") as (_, said):
        assert fails("--port", str(said["port"])).startswith(f"Error: 127.0.0.1:{said['port']} is taken")
    plain = str(ORACLE / "expected" / "tiny_a.gguf")
    assert "no preview tensors" in fails("--port", "0", "-m", plain, "--spec-type", "draft-self")
    port = bindable("127.0.0.1", 0)
    assert f"the worker 127.0.0.1:{port} cannot be reached" in fails("--port", "0", "--rpc", f"127.0.0.1:{port}")
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(Path(plain).read_bytes()[:200_000])
    assert "cut.gguf" in fails("--port", "0", "-m", str(cut))


def test_a_key_is_asked_for_everything_but_health_and_the_page() -> None:
    with start_server("tiny", port=0, api_key="sesame") as server:
        assert get(server.port, "/v1/models")[0] == 401
        assert get(server.port, "/slots", "wrong")[0] == 401
        assert get(server.port, "/v1/models", "sesame")[0] == 200
        assert get(server.port, "/health")[0] == 200
        status, page = get(server.port, "/")
        assert status == 200
        assert b"Content-Security-Policy" in page
        assert b"sesame" not in page
        process = psutil.Process(server.pid)
        assert "sesame" not in " ".join(process.cmdline())
    assert not server.ready


def test_a_burst_of_clients_that_never_finish_asking_keeps_nobody_out() -> None:
    half = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"
    with start_server("tiny", port=0, n_slots=1) as server, contextlib.ExitStack() as stack:
        waiting = [stack.enter_context(socket.create_connection(("127.0.0.1", server.port))) for _ in range(100)]
        for one in waiting:
            one.sendall(half)
        assert get(server.port, "/health")[0] == 200
        assert get(server.port, "/slots")[0] == 200  # which the watchdog asks for


def test_the_log_goes_where_it_is_told(tmp_path: Path) -> None:
    lines: list[str] = []
    log = tmp_path / "serve.log"
    with start_server(
        "tiny", port=0, speculation=DraftSelf(n_max=7, adaptive=False), log=lines.append, log_file=log
    ) as server:
        assert server.pid is not None
    assert any("model loaded" in line for line in lines)
    assert "model loaded" in log.read_text(encoding="utf-8")
    server.close()  # again: nothing happens
