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
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from support import ORACLE

import pyclover
from pyclover.chat.apart import TemplateProcess
from pyclover.engine.build_info import programs
from pyclover.engine.speculation import DraftSelf
from pyclover.errors import TemplateError, UsageError
from pyclover.files.embedded import embedded_path
from pyclover.files.gate import validate
from pyclover.serve.address import bindable
from pyclover.serve.server import start_server
from pyclover.serve.supervisor import Event
from pyclover.serve.template import check_template

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


def test_ctrl_c_while_an_answer_is_streamed() -> None:
    """llama.cpp's own server would wait until its client hangs up."""
    body = {"messages": [{"role": "user", "content": "Hi"}], "stream": True, "max_tokens": 1900, "ignore_eos": True}
    with command("--port", "0") as (process, said):
        connection = http.client.HTTPConnection("127.0.0.1", said["port"], timeout=60)
        connection.request("POST", "/v1/chat/completions", json.dumps(body))
        answer = connection.getresponse()
        assert answer.read(20).startswith(b"data: {")
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)  # the client stays
        assert process.returncode == 0, stderr
        assert "Traceback" not in stderr
        assert not psutil.pid_exists(said["pid"])
        connection.close()


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


@pytest.mark.parametrize("option", ["n_ctx", "n_batch"])
def test_sizes_with_which_the_server_would_abort(option: str) -> None:
    with pytest.raises(UsageError, match=f"{option} is 1: a server needs at least 2"):
        start_server("tiny", port=0, **{option: 1})  # type: ignore[arg-type]


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


ENDLESS = "{% for a in range(99999) %}" * 3 + "{% endfor %}" * 3
DOUBLING = "{% set n = namespace(x='a') %}{% for a in range(60) %}{% set n.x = n.x + n.x %}{% endfor %}{{ n.x }}"


@pytest.mark.parametrize("source", [ENDLESS, DOUBLING], ids=["time", "memory"])
@pytest.mark.parametrize("where", ["option", "file"])
def test_a_hostile_template_is_refused_before_a_server_runs_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, source: str, where: str
) -> None:
    """llama.cpp's server would run it at its start, without limits."""

    def started(*_: Any) -> None:
        raise AssertionError("a server was started")

    monkeypatch.setattr("pyclover.serve.server.Process", started)
    limited = partial(TemplateProcess, time_limit_s=2.0, memory_limit_bytes=256 << 20)
    monkeypatch.setattr("pyclover.serve.template.TemplateProcess", limited)
    model, given = "tiny", source
    if where == "file":
        model, given = str(tmp_path / "hostile.gguf"), None
        pyclover.repair(embedded_path("tiny"), model, chat_template=source)
    with pytest.raises(TemplateError, match=r"takes more than .*--chat-template-file"):
        start_server(model, port=0, template=given)


def test_what_jinja2_alone_refuses_is_left_to_the_server() -> None:
    check_template("{{ nobody.gave.this }}{{ messages.append(1) }}", validate(embedded_path("tiny")))
    check_template(None, validate(embedded_path("tiny")))


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is full")
def test_a_full_disk_ends_the_log_and_not_the_server() -> None:
    events: list[Event] = []
    with start_server("tiny", port=0, log_file="/dev/full", on_event=events.append) as server:
        assert get(server.port, "/health")[0] == 200
    [fault] = [event.text for event in events if event.kind == "fault"]
    assert "the log file cannot be written: No space left on device" in fault
    assert server.n_restarts == 0


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
