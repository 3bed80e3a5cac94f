"""`clover-run download` in real processes, and real full disks; the hub is on 127.0.0.1."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_hub import FakeHub, Fault, fake_hub
from support import small_file_system

import pyclover
from pyclover.hub.patience import Retry

pytestmark = pytest.mark.timeout(300)
posix = pytest.mark.skipif(os.name != "posix", reason="signals and limits as POSIX has them")

REPO = "owner/Clover-GGUF"
NAME = "C-Q4_K_M.gguf"
DATA = random.Random(5).randbytes(150_000)


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with fake_hub() as running:
        running.add(REPO, {NAME: DATA})
        yield running
        if running.hold is not None:
            running.hold.set()


class Cli:
    """Runs the program with a cache of its own."""

    def __init__(self, folder: Path, hub: FakeHub) -> None:
        self.cache = folder / "cache"
        self.env = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "PYCLOVER_"))}
        self.env |= {
            "PYCLOVER_CACHE": str(self.cache), "PYCLOVER_CONFIG": str(folder), "HF_HOME": str(folder / "hf"),
            "HF_ENDPOINT": hub.url, "NO_COLOR": "1", "PYTHONUTF8": "1",
            "HF_HUB_DOWNLOAD_TIMEOUT": "300",
        }  # fmt: skip

    def start(self, *args: object, **how: Any) -> subprocess.Popen[str]:
        found = shutil.which("clover-run", path=str(Path(sys.executable).parent))
        program = [found] if found else [sys.executable, "-m", "pyclover.cli.main"]
        return subprocess.Popen(
            [*program, "download", *map(str, args)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=self.env, **how,
        )  # fmt: skip

    def __call__(self, *args: object, **how: Any) -> tuple[int, str, str]:
        with self.start(*args, **how) as process:
            out, err = process.communicate(timeout=240)
        return process.returncode, out, err

    def models(self) -> list[Path]:
        return sorted(self.cache.rglob("*.gguf"))

    def parts(self) -> list[Path]:
        return sorted(self.cache.rglob("*.part"))


@pytest.fixture
def cli(tmp_path: Path, hub: FakeHub) -> Cli:
    return Cli(tmp_path, hub)


def test_paths_on_standard_output(cli: Cli, hub: FakeHub) -> None:
    code, out, err = cli(f"{REPO}:Q4_K_M")
    (path,) = cli.models()
    assert (code, out) == (0, f"{path}\n")
    assert path.read_bytes() == DATA
    assert f"downloading {NAME}: 0 B of 146.5 KiB" in err
    assert err.endswith("downloaded and checked\n")
    code, out, err = cli(REPO, "--json")
    assert (code, err) == (0, "")
    result = json.loads(out)
    assert result["paths"] == [str(path)]
    assert result["sha256"] == {NAME: hashlib.sha256(DATA).hexdigest()}
    assert (result["from_cache"], result["n_bytes"]) == (True, 150_000)
    assert cli(REPO, "-q", "--offline") == (0, f"{path}\n", "")


def test_lists(cli: Cli, hub: FakeHub) -> None:
    hub.add(REPO, {NAME: DATA, "C-Q8_0-00001-of-00002.gguf": b"x"})
    code, out, _ = cli(REPO, "--list")
    assert code == 0
    assert out.splitlines() == [
        "quant        size  files  on this machine",
        "Q4_K_M  146.5 KiB      1  -",
        "Q8_0          1 B      1  incomplete: 1 file is missing",
    ]
    code, out, _ = cli("--list")
    assert code == 0
    assert "Diffuspace/Clover-35B-A3B-Preview-GGUF" in out
    assert "21.4 GiB" in out


@pytest.mark.parametrize(
    ("args", "code", "text"),
    [
        ((), 2, "Give a NAME"),
        (("nonsense",), 2, "no name of a repository"),
        ((f"{REPO}:Q2_K",), 1, "offers no Q2_K"),
        ((f"{REPO}", "--offline"), 1, "offline mode"),
        ((f"{REPO}", "-q", "--json"), 2, "exclude"),
    ],
)
def test_sentences(args: tuple[str, ...], code: int, text: str, cli: Cli) -> None:
    got, out, err = cli(*args)
    assert (got, out) == (code, "")
    assert text in err
    assert err.splitlines()[-1].startswith("Error: ")


@pytest.mark.parametrize(
    ("variable", "value", "code", "text"),
    [
        ("HF_HUB_DOWNLOAD_TIMEOUT", "soon", 2, "'soon'): correct or unset HF_HUB_DOWNLOAD_TIMEOUT"),
        ("HF_HUB_DOWNLOAD_TIMEOUT", "0.5", 2, "correct or unset HF_HUB_DOWNLOAD_TIMEOUT"),
        ("HF_ENDPOINT", "hub.example", 2, "HF_ENDPOINT is 'hub.example': it must be an http or https address"),
        ("HF_HOME", "/dev/null", 1, "correct that or HF_HOME"),
        ("SSL_CERT_FILE", "/nowhere.pem", 1, "cannot be asked (No such file or directory)"),
        ("HTTP_PROXY", "http://127.0.0.1:1", 1, "no answer from 127.0.0.1"),
    ],
)
def test_variables_that_are_wrong(variable: str, value: str, code: int, text: str, cli: Cli) -> None:
    cli.env[variable] = value
    got, out, err = cli(REPO, "--retries", "0")
    assert (got, out) == (code, "")
    assert text in err
    assert err.count("\n") == 1  # one sentence


@pytest.mark.parametrize(
    "args", [("--retries", "-1"), ("--retry-wait", "-1"), ("--retry-wait", "nan"), ("--retry-wait", "inf")]
)
def test_patience_that_is_none(args: tuple[str, ...], cli: Cli) -> None:
    got, out, err = cli(REPO, *args)
    assert (got, out) == (2, "")
    assert args[0] in err


@posix
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_stopped_run_is_continued(number: signal.Signals, cli: Cli, hub: FakeHub) -> None:
    hub.hold = threading.Event()
    hub.faults = [Fault(end_after=70_000)]
    with cli.start(REPO) as process:
        assert hub.held.wait(120)
        while not cli.parts() or cli.parts()[0].stat().st_size < 70_000:
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(number)
        out, err = process.communicate(timeout=120)
    hub.hold.set()
    assert out == ""
    assert process.returncode == (130 if number == signal.SIGINT else -signal.SIGKILL)
    if number == signal.SIGINT:
        assert err.endswith("warning: stopped: what has come is kept, and the same command continues there\n")
    assert cli.models() == []
    hub.requests.clear()
    assert cli(REPO, "-q")[0] == 0
    assert cli.models()[0].read_bytes() == DATA
    assert [r.range for r in hub.content_requests()] == ["bytes=70000-149999"]


def test_two_processes_at_once(cli: Cli, hub: FakeHub) -> None:
    hub.hold = threading.Event()
    with contextlib.ExitStack() as stack:
        one = stack.enter_context(cli.start(REPO))
        assert hub.held.wait(120)
        two = stack.enter_context(cli.start(REPO))
        assert two.stderr is not None
        assert two.stderr.readline().startswith("waiting for another download")
        hub.hold.set()
        results = [process.communicate(timeout=240) for process in (one, two)]
    (path,) = cli.models()
    assert [(process.returncode, out) for process, (out, _) in zip((one, two), results, strict=True)] == [
        (0, f"{path}\n")
    ] * 2
    assert path.read_bytes() == DATA
    assert len(hub.content_requests()) == 1


@posix
def test_a_limit_on_file_sizes(cli: Cli, hub: FakeHub) -> None:
    import resource

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    code, out, err = cli(REPO, preexec_fn=limit)
    assert (code, out) == (1, "")
    assert "no file may be so large here" in err
    assert cli.models() == []
    assert cli(REPO, "-q")[0] == 0
    assert cli.models()[0].read_bytes() == DATA


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 512 KiB."""
    with small_file_system(tmp_path / "disk", "512k") as folder:
        yield folder


def test_a_full_disk(small_disk: Path, hub: FakeHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    how: dict[str, Any] = {
        "cache_dir": small_disk / "c", "endpoint": hub.url, "token": False, "retry": Retry(n_retries=0)
    }  # fmt: skip
    old = pyclover.download(REPO, **how)
    other = random.Random(6).randbytes(200_000)
    hub.add(REPO, {NAME: other})
    filler = small_disk / "filler"

    def fill(state: object) -> None:
        if not filler.exists():  # room is checked by now
            filler.write_bytes(b"x" * 250_000)

    with pytest.raises(pyclover.DownloadError, match="no room left") as caught:
        pyclover.download(REPO, progress=fill, **how)
    assert caught.value.reason == "no_room"
    assert old.path.read_bytes() == DATA
    assert [path.read_bytes() for path in small_disk.rglob("*.gguf")] == [DATA]
    # now it is known before anything comes
    n_requests = len(hub.content_requests())
    with pytest.raises(pyclover.DownloadError, match="are free; make room") as caught:
        pyclover.download(REPO, **how)
    assert caught.value.free_bytes < caught.value.needed_bytes <= 200_000
    assert len(hub.content_requests()) == n_requests
    filler.unlink()
    assert pyclover.download(REPO, **how).path.read_bytes() == other
    assert old.path.read_bytes() == DATA


def test_a_disk_that_cannot_be_written(small_disk: Path, hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    how: dict[str, Any] = {"cache_dir": small_disk, "endpoint": hub.url, "token": False}
    old = pyclover.download(REPO, **how)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    again = pyclover.download(REPO, **how)
    assert (again.from_cache, again.paths) == (True, old.paths)
    hub.add(REPO, {NAME: b"other"})
    with pytest.raises(pyclover.DownloadError, match="Read-only file system") as caught:
        pyclover.download(REPO, **how)
    assert caught.value.reason == "disk"
    assert old.path.read_bytes() == DATA
