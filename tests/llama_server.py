"""llama.cpp's server of the package, for tests: started with a small model on a free port, and asked."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import ORACLE

from pyclover.engine.build_info import programs

FOLDER = ORACLE / "expected_preview"
EXACT = ["-c", "1024", "-ctk", "f32", "-ctv", "f32", "-fa", "off", "-t", "1", "--temp", "0"]


def drafting(n_max: int, *more: str) -> list[str]:
    return ["--spec-type", "draft-self", "--spec-draft-n-max", str(n_max), *more]


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def ask(port: int, body: dict[str, Any], timeout: float = 60) -> dict[str, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        connection.request("POST", "/completion", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        got: dict[str, Any] = json.loads(answer.read())
        assert answer.status == 200, got
        return got
    finally:
        connection.close()


def request(ids: list[int], n_predict: int) -> dict[str, Any]:
    return {"prompt": ids, "n_predict": n_predict, "return_tokens": True, "cache_prompt": False, "temperature": 0}


@contextlib.contextmanager
def server(name: str | Path, *args: str) -> Iterator[int]:
    """Port of a running server. name: of an oracle's file, or any file."""
    port = free_port()
    file = name if isinstance(name, Path) else FOLDER / f"{name}.gguf"
    command = [str(programs()["llama"]), "serve", "-m", str(file), *EXACT, *args]
    command += ["--host", "127.0.0.1", "--port", str(port), "--no-webui"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(600):
            assert process.poll() is None, f"the server ended with {process.returncode}"
            with contextlib.suppress(OSError):
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
                connection.request("GET", "/health")
                if connection.getresponse().status == 200:
                    break
            time.sleep(0.1)
        else:
            pytest.fail("the server did not start")
        yield port
        assert process.poll() is None, "the server died"
    finally:
        process.terminate()
        process.wait(30)
