"""Models by their names on a hub, from the command line and the API; the hub is on 127.0.0.1."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_hub import FakeHub, fake_hub

import pyclover
from pyclover.files.embedded import embedded_path
from pyclover.plan.machine import Machine
from pyclover.source import is_hub_name

REPO = "owner/Clover-tiny-GGUF"
QUESTION = ["--chat", "--reasoning", "off", "-p", "Hello!", "--temp", "0"]

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with fake_hub() as running:
        running.add(REPO, {"Clover-tiny-F16.gguf": embedded_path("tiny").read_bytes()})
        yield running


@pytest.fixture
def env(tmp_path: Path, hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    for name in list(os.environ):
        if name.startswith(("HF_", "PYCLOVER_")):
            monkeypatch.delenv(name)
    for name, value in {
        "PYCLOVER_CACHE": str(tmp_path / "cache"), "PYCLOVER_CONFIG": str(tmp_path), "HF_HOME": str(tmp_path / "hf"),
        "HF_ENDPOINT": hub.url, "NO_COLOR": "1", "PYTHONUTF8": "1",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    return dict(os.environ)


def run(env: dict[str, str], *args: str) -> subprocess.CompletedProcess[str]:
    found = shutil.which("clover-run", path=str(Path(sys.executable).parent))
    program = [found] if found else [sys.executable, "-m", "pyclover.cli.main"]
    return subprocess.run(
        [*program, *args], env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=240, check=False
    )


def test_generate_downloads_once_and_answers(env: dict[str, str], hub: FakeHub) -> None:
    local = run(env, "generate", "-m", "tiny", *QUESTION)
    first = run(env, "generate", "-m", f"{REPO}:F16", *QUESTION)
    assert (first.returncode, first.stdout) == (0, local.stdout), first.stderr
    assert "downloading Clover-tiny-F16.gguf" in first.stderr
    n_requests = len(hub.content_requests())
    again = run(env, "generate", "-m", f"{REPO}:F16", *QUESTION)
    assert (again.returncode, again.stdout) == (0, local.stdout)
    assert "downloading" not in again.stderr
    assert len(hub.content_requests()) == n_requests


def test_inspect_reads_the_header_alone(env: dict[str, str], hub: FakeHub) -> None:
    done = run(env, "inspect", "--json", f"{REPO}:F16")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["architecture"] == "clover_moe"
    assert report["n_params"] == pyclover.inspect("tiny").n_params
    assert not list(Path(env["PYCLOVER_CACHE"]).rglob("*.gguf"))


def test_inspect_of_what_is_here_needs_no_hub(
    env: dict[str, str], hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(pyclover.DownloadError, match=f"{REPO}:F16 is not on this machine") as caught:
        pyclover.inspect(f"{REPO}:F16")
    assert caught.value.reason == "offline"
    monkeypatch.delenv("HF_HUB_OFFLINE")
    path = pyclover.download(f"{REPO}:F16").path
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for name in (REPO, f"{REPO}:F16"):
        assert pyclover.inspect(name) == pyclover.inspect(path)
    monkeypatch.delenv("HF_HUB_OFFLINE")
    hub.close()
    assert pyclover.inspect(f"{REPO}:F16") == pyclover.inspect(path)
    with pytest.raises(pyclover.DownloadError, match=r"no answer from 127\.0\.0\.1:1 ") as caught:
        pyclover.inspect("http://127.0.0.1:1/x.gguf")  # the server that was asked is named, not the hub
    assert caught.value.reason == "network"


def test_what_is_not_there_is_said(env: dict[str, str]) -> None:
    done = run(env, "generate", "-m", "owner/nothing-here", *QUESTION)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1, done.stderr
    assert "owner/nothing-here" in done.stderr
    done = run(env, "generate", "-m", "https://hub.example/owner/repo/resolve/main/m.gguf", *QUESTION)
    assert (done.returncode, done.stdout) == (1, "")
    assert "is an address, and a model runs from a file: download it" in done.stderr
    wrong = run(env, "generate", "-m", f"{REPO}:Q4_K_M", *QUESTION)
    assert wrong.returncode == 1
    assert "F16" in wrong.stderr  # what there is instead


def test_the_api_takes_the_name(env: dict[str, str], hub: FakeHub) -> None:
    seen: list[int] = []
    with pyclover.Clover(f"{REPO}:F16", n_ctx=64, download_progress=lambda p: seen.append(p.done_bytes)) as m:
        assert m.path.startswith(env["PYCLOVER_CACHE"])
        assert m.generate("Hello", max_tokens=2, temperature=0).tokens
    assert seen[-1] == embedded_path("tiny").stat().st_size


def test_which_names_are_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "owner").mkdir()
    (tmp_path / "owner" / "here").write_bytes(b"")
    names = ["auto", "owner/repo", "owner/repo:Q4_0", "Diffuspace/Clover-35B-A3B-Preview-GGUF:Q8_0"]
    files = ["tiny", "m.gguf", "a/m.gguf", "owner/M.GGUF", "./a/b", "~/a", "/a/b", "a/b/c", "owner/here", "a/", "/"]
    assert [name for name in names if not is_hub_name(name)] == []
    assert [name for name in files if is_hub_name(name)] == []
    assert not is_hub_name(Path("owner/repo"))


def test_nothing_is_downloaded_in_vain(env: dict[str, str], hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add("owner/original", {"model.safetensors": bytes(5000), "config.json": b"{}"})
    done = run(env, "generate", "-m", "owner/original", *QUESTION)
    assert done.returncode == 1
    assert "original weights" in done.stderr
    small = Machine(host_total_bytes=4 << 20, host_free_bytes=3 << 20)  # tiny has 5 MB
    monkeypatch.setattr("pyclover.plan.probe.probe", lambda *_, **__: small)
    with pytest.raises(pyclover.DoesNotFitError, match="nothing was downloaded"):
        pyclover.Clover(f"{REPO}:F16")
    assert hub.content_requests() == []
    with pyclover.Clover(f"{REPO}:F16", fit=False, n_ctx=64) as m:
        assert m.n_ctx == 64
