"""`clover-run serve`: from options to the keywords of `start_server()`, and what is refused before that."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pyclover.cli.main import cli
from pyclover.engine.speculation import DraftSelf
from pyclover.errors import UsageError
from pyclover.serve import server


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Arguments of the servers that would have been started."""
    calls: list[dict[str, Any]] = []

    def serve(model: str, **keywords: Any) -> None:
        calls.append({"model": model, **keywords})
        raise UsageError("not in this test")

    monkeypatch.setattr(server, "start_server", serve)
    return calls


def run(*args: str, env: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(cli, ["serve", *args], prog_name="clover-run", env=env)


def test_nothing_given_is_nothing_passed_on(asked: list[dict[str, Any]]) -> None:
    run()
    [call] = asked
    call.pop("on_event")
    assert call == {"model": "tiny", "speculation": None, "log": None, "defaults": {}}


def test_options_become_keywords(asked: list[dict[str, Any]], tmp_path: Path) -> None:
    template = tmp_path / "t.jinja"
    template.write_text("{{ messages }}", encoding="utf-8")
    line = (
        "-m tiny --host 127.0.0.2 --port 0 -np 3 --metrics --rpc a:1,b:2 --stall 5 -n 64 -rea off --reasoning-budget -1"
    )
    line += " --temp -1 --top-k 5 --seed 7 -c 512 -t 0 --spec-type draft-self --spec-draft-n-max 9 --no-fit"
    run(*line.split(), "--chat-template-file", str(template))
    [call] = asked
    call.pop("on_event")
    assert call == {
        "model": "tiny", "speculation": DraftSelf(n_max=9), "log": None, "host": "127.0.0.2", "port": 0, "n_slots": 3,
        "metrics": True, "rpc": "a:1,b:2", "stall_s": 5, "max_tokens": 64, "thinking": False, "n_ctx": 512,
        "fit": False, "template": "{{ messages }}", "defaults": {"temperature": 0.0, "top_k": 5, "seed": 7},
    }  # fmt: skip


def test_the_key_may_stand_in_the_environment(asked: list[dict[str, Any]]) -> None:
    run(env={"LLAMA_API_KEY": "sesame"})
    assert asked[0]["api_key"] == "sesame"


def test_a_file_of_keys_is_read_once(asked: list[dict[str, Any]], tmp_path: Path) -> None:
    """It may be a pipe, as of a password manager."""
    pipe = tmp_path / "keys"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=("sesame\n",), daemon=True)
    writer.start()
    run("--api-key-file", str(pipe), "--api-key", "first")
    writer.join(30)
    assert asked[0]["api_key"] == ["first", "sesame"]
    assert "api_key_file" not in asked[0]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--host", "0.0.0.0"], "add --api-key"),
        (["--rpc", ""], "rpc: '' is no worker"),
        (["--cors-origins", "a,b"], "--cors-origins"),
        (["--api-key-file", "nowhere"], "cannot be read"),
        (["--port", "TAKEN"], "is taken by another program"),
        (["--port", "0", "--rpc", "127.0.0.1:TAKEN"], "the worker 127.0.0.1:"),
    ],
)
def test_nothing_is_downloaded_for_options_that_are_wrong(
    monkeypatch: pytest.MonkeyPatch, args: list[str], said: str
) -> None:
    def fetched(*_: Any, **__: Any) -> str:
        raise AssertionError("it looks for the model")

    monkeypatch.setattr("pyclover.cli.serve.fetched", fetched)
    with socket.socket() as s:  # taken, and no worker
        s.bind(("127.0.0.1", 0))
        s.listen()
        port = str(s.getsockname()[1])
        done = run("-m", "owner/repo:Q4_K_M", *[arg.replace("TAKEN", port) for arg in args])
    assert done.exit_code in (1, 2)
    assert said in done.output
    assert "Traceback" not in done.output


@pytest.mark.parametrize("args", [["--spec-draft-n-max", "4"], ["--port", "65536"], ["-np", "0"], ["--stall", "-1"]])
def test_what_is_refused(asked: list[dict[str, Any]], args: list[str]) -> None:
    assert run(*args).exit_code == 2
    assert asked == []
