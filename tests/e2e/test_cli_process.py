"""The installed program in real processes: output, exit codes, sentences, signals, pipes."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support import ORACLE

TINY_A = ORACLE / "expected" / "tiny_a.gguf"
TINY_B = ORACLE / "expected" / "tiny_b.gguf"

pytestmark = pytest.mark.timeout(300)
posix = pytest.mark.skipif(os.name != "posix", reason="signals, pipes and permissions as POSIX has them")


def program() -> list[str]:
    """The script that pip installed beside this interpreter, else the module behind it."""
    found = shutil.which("clover-run", path=str(Path(sys.executable).parent))
    return [found] if found else [sys.executable, "-m", "pyclover.cli.main"]


class Cli:
    """Runs the program in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), "NO_COLOR": "1", "PYTHONUTF8": "1"}

    def start(self, *args: object, **how: Any) -> subprocess.Popen[Any]:
        how = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "encoding": "utf-8", **how}
        return subprocess.Popen([*program(), *map(str, args)], cwd=self.folder, env=self.env, **how)

    def __call__(
        self, *args: object, stdin: str | bytes = b"", timeout: float = 120
    ) -> subprocess.CompletedProcess[str]:
        data = stdin.encode() if isinstance(stdin, str) else stdin
        process = self.start(*args, stdin=subprocess.PIPE, text=False, encoding=None)
        try:
            out, err = process.communicate(data, timeout=timeout)
        finally:
            process.kill()
        return subprocess.CompletedProcess(list(args), process.returncode, out.decode(), err.decode())


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path)


@pytest.fixture
def oracle_run(expected: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    """A run of tiny_a whose prompt survives a file and a command line as it is."""
    runs = expected("tiny_a")["runs"]
    return next(r for r in runs if r["prompt"].isascii() and "\\" not in r["prompt"] and r["prompt"].isprintable())


EXACT = ("-m", TINY_A, "-c", 512, "-ctk", "f32", "-ctv", "f32", "--flash-attn", "off", "-t", 1, "--temp", 0)


def sentence(done: subprocess.CompletedProcess[str], code: int = 1) -> str:
    """The one sentence of a failure."""
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    lines = done.stderr.splitlines()
    if code == 1:
        assert len(lines) == 1, lines
    assert lines[-1].startswith("Error: ")
    return lines[-1]


# ---- generate -------------------------------------------------------------------------------------------------------


def test_prompt_from_everywhere(cli: Cli, oracle_run: dict[str, Any]) -> None:
    prompt, text = oracle_run["prompt"], oracle_run["server"]["text"]
    (cli.folder / "p.txt").write_bytes(prompt.encode() + b"\n")
    n = len(oracle_run["greedy"])
    for done in (
        cli("generate", *EXACT, "-n", n, "-p", prompt),
        cli("generate", *EXACT, "-n", n, "-f", "p.txt"),
        cli("generate", *EXACT, "-n", n, stdin=prompt),
        cli("generate", *EXACT, "-n", n, "-f", "-", stdin=prompt + "\n"),
    ):
        assert done.returncode == 0, done.stderr
        assert done.stdout == text + ("" if text.endswith("\n") else "\n")
        assert done.stderr.startswith("plain: prompt 12 tokens" if len(oracle_run["prompt_ids"]) == 12 else "plain: ")


def test_json(cli: Cli, oracle_run: dict[str, Any]) -> None:
    done = cli("generate", *EXACT, "-n", 64, "-p", oracle_run["prompt"], "--json")
    result = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (0, "")
    assert result["text"] == oracle_run["server"]["text"]
    assert result["tokens"] == oracle_run["greedy"]
    assert (result["finish_reason"], result["stop"]) == ("length", None)
    assert result["stats"]["n_prompt"] == len(oracle_run["prompt_ids"])
    assert result["stats"]["mode"] == "plain"


def test_stop_strings(cli: Cli, oracle_run: dict[str, Any]) -> None:
    text = oracle_run["server"]["text"]
    stop = text[20:25]
    done = cli("generate", *EXACT, "-n", 64, "-p", oracle_run["prompt"], "-r", stop, "-r", "never \\n this", "--json")
    result = json.loads(done.stdout)
    assert (result["text"], result["stop"], result["finish_reason"]) == (text[: text.index(stop)], stop, "stop")


def test_the_model_in_the_package_answers(cli: Cli) -> None:
    done = cli("generate", "--chat", "-p", "What is 12 + 7?", "--temp", 0)
    assert done.returncode == 0, done.stderr
    assert "12 + 7 = 19" in done.stdout.rpartition("</think>")[2]
    assert done.stderr.startswith("note: no -m given, so this is tiny")
    for flags in (("--spec-type", "draft-self", "--spec-draft-n-max", 7), ("--diffusion",)):
        again = cli(
            "generate", "--chat", "-p", "What is 12 + 7?", "-q", *(("--temp", 0) if len(flags) > 1 else ()), *flags
        )
        assert "12 + 7 = 19" in again.stdout, flags
    brief = cli("generate", "--chat", "--reasoning", "off", "-p", "What is 12 + 7?", "--temp", 0, "-q")
    assert "19" in brief.stdout
    assert "<think>" not in brief.stdout
    assert list(cli.folder.iterdir()) == []  # nothing is written anywhere


def test_two_at_once_use_the_model_in_the_package(cli: Cli) -> None:
    both = [cli.start("generate", "-p", "Hello", "-n", 8, "--temp", 0, "-t", 1, "--json") for _ in range(2)]
    results = [(p.communicate(timeout=120), p.returncode) for p in both]
    assert [code for _, code in results] == [0, 0], results
    assert len({json.loads(out)["text"] for (out, _), _ in results}) == 1


# ---- what goes wrong ------------------------------------------------------------------------------------------------


def test_missing_file(cli: Cli) -> None:
    for command in (("generate", "-m", "absent.gguf", "-p", "x"), ("inspect", "absent.gguf")):
        done = cli(*command)
        assert done.returncode in (1, 2), done.stderr
        assert "absent.gguf" in done.stderr.splitlines()[-1]
        assert "Traceback" not in done.stderr


def test_corrupt_file(cli: Cli) -> None:
    data = TINY_B.read_bytes()
    (cli.folder / "cut.gguf").write_bytes(data[: len(data) // 2])
    (cli.folder / "text.gguf").write_bytes(b"<!DOCTYPE html><html>404</html>")
    (cli.folder / "empty.gguf").write_bytes(b"")
    for name in ("cut.gguf", "text.gguf", "empty.gguf"):
        assert name in sentence(cli("generate", "-m", name, "-p", "x"))
        done = cli("inspect", name)
        assert done.returncode == 1, done.stdout
        assert name in done.stderr
        assert "Traceback" not in done.stderr


def test_a_folder(cli: Cli) -> None:
    (cli.folder / "sub").mkdir()
    assert "folder" in sentence(cli("generate", "-m", "sub", "-p", "x"))


@posix
def test_no_permission(cli: Cli) -> None:
    path = cli.folder / "m.gguf"
    shutil.copy(TINY_B, path)
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("this user may read everything")
    assert "m.gguf" in sentence(cli("generate", "-m", "m.gguf", "-p", "x"))


def test_prompt_too_long(cli: Cli) -> None:
    said = sentence(cli("generate", "-m", TINY_B, "-p", "a b c d e f g h i j k l m n o p", "-c", 8))
    assert "-c" in said


@pytest.mark.parametrize(
    "args",
    [
        ("generate",),
        ("generate", "-p", "a", "-f", "b"),
        ("generate", "-p", "a", "--temp", "hot"),
        ("generate", "-p", "a", "--no-such-flag"),
        ("generate", "-p", "a", "-r", ""),
        ("generate", "-m", TINY_B, "-p", "a", "--top-p", "2"),
        ("generate", "-m", TINY_B, "-p", "a", "-ctk", "q3"),
        ("no-such-command",),
    ],
)
def test_wrong_usage(cli: Cli, args: tuple[object, ...]) -> None:
    sentence(cli(*args), code=2)


def test_prompt_that_is_no_text(cli: Cli) -> None:
    assert "UTF-8" in sentence(cli("generate", "-m", TINY_B, stdin=b"\xff\xfe\x00"), code=2)


# ---- other commands -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["tiny_a", "tiny_b", "tiny_a_preview", "tiny_b_preview"])
def test_inspect_json(cli: Cli, name: str) -> None:
    path = next(ORACLE.glob(f"*/{name}.gguf"))
    done = cli("inspect", path, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    text = done.stdout
    report = json.loads(text)
    assert "clover_moe" in text
    assert report
    plain = cli("inspect", path)
    assert plain.returncode == 0
    assert "clover_moe" in plain.stdout
    drafts = "preview" in name
    # a file with the preview tensors can draft; the others say why not
    assert ("no preview tensors" in plain.stdout) is not drafts


def test_doctor_json(cli: Cli) -> None:
    done = cli("doctor", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert "reference run" in done.stdout or "reference_run" in done.stdout
    assert report


def test_version_and_help(cli: Cli) -> None:
    import pyclover

    assert cli("--version").stdout.split() == ["clover-run", pyclover.__version__]
    for command in ("generate", "inspect", "doctor", "tool"):
        done = cli(command, "--help")
        assert (done.returncode, done.stderr) == (0, "")
        assert "Usage: clover-run " + command in done.stdout


def test_tools(cli: Cli) -> None:
    listed = cli("tool", "--json")
    assert listed.returncode == 0, listed.stderr
    names = json.loads(listed.stdout)
    if "quantize" not in names:
        pytest.skip("this build has no programs")
    done = cli("tool", "quantize", "--help")
    assert "Q4_K_M" in done.stdout + done.stderr
    assert "usage" in (done.stdout + done.stderr).lower()
    said = sentence(cli("tool", "no-such-program"), code=2)
    assert "quantize" in said


# ---- pipes and signals ----------------------------------------------------------------------------------------------


@posix
@pytest.mark.parametrize("args", [("generate", *EXACT, "-p", "x", "-n", 400), ("inspect", TINY_A), ("tool",)])
def test_the_reader_goes_away(cli: Cli, args: tuple[object, ...]) -> None:
    """As in `clover-run … | head -c 10`."""
    process = cli.start(*args, stdin=subprocess.DEVNULL, text=False, encoding=None, bufsize=0)
    assert process.stdout is not None
    process.stdout.read(10)
    process.stdout.close()
    assert process.stderr is not None
    said = process.stderr.read().decode()
    process.wait(60)
    assert "Traceback" not in said
    assert "BrokenPipe" not in said
    assert "Exception ignored" not in said
    assert process.returncode in (0, 1)


@posix
def test_full_output_device(cli: Cli) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full here")
    with open("/dev/full", "wb") as full:
        process = cli.start("generate", *EXACT, "-p", "x", "-n", 5, stdin=subprocess.DEVNULL, stdout=full)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "Traceback" not in said
    assert "No space left" in said


@contextlib.contextmanager
def running(cli: Cli, *args: object) -> Iterator[tuple[subprocess.Popen[str], queue.Queue[str], queue.Queue[str]]]:
    """A process with its output and talk, character by character, as they come."""
    process = cli.start(*args, stdin=subprocess.DEVNULL, bufsize=1)
    queues: list[queue.Queue[str]] = []
    threads = []
    for stream in (process.stdout, process.stderr):
        q: queue.Queue[str] = queue.Queue()

        def pump(stream: Any = stream, q: queue.Queue[str] = q) -> None:
            while char := stream.read(1):
                q.put(char)
            q.put("")

        queues.append(q)
        threads.append(threading.Thread(target=pump, daemon=True))
        threads[-1].start()
    try:
        yield process, queues[0], queues[1]
    finally:
        process.kill()
        process.wait()
        for t in threads:
            t.join(10)


def rest(q: queue.Queue[str]) -> str:
    out = []
    while char := q.get(timeout=30):
        out.append(char)
    return "".join(out)


@pytest.fixture(scope="module")
def long_prompt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """More than 100,000 tokens: words that the vocabulary lacks, so most characters are tokens."""
    path = tmp_path_factory.mktemp("prompt") / "long.txt"
    path.write_text(" ".join(f"zq{i % 97:02d}xv" for i in range(20_000)), encoding="utf-8")
    return path


@posix
def test_ctrl_c_while_the_prompt_is_read(cli: Cli, long_prompt: Path) -> None:
    waited = []
    for wait_s in (0.1, 0.8, 2.0):
        args = ("generate", "-m", TINY_A, "-f", long_prompt, "-n", 2, "-c", 200_000, "-t", 1)
        with running(cli, *args) as (process, out, talk):
            said = ""
            while "\n" not in said:  # the warning about the long context comes when the model is loaded
                said += talk.get(timeout=60)
            assert "trained for 4096" in said
            threading.Event().wait(wait_s)  # somewhere in the prompt
            assert process.poll() is None
            started = time.monotonic()
            process.send_signal(signal.SIGINT)
            process.wait(30)
            waited.append(time.monotonic() - started)
            assert process.returncode == 130
            assert rest(out).strip() == ""
            said = rest(talk)
            assert re.fullmatch(r"plain: prompt \d+ of \d+ tokens, \S+ tok/s; generated 0 tokens, - tok/s\n", said)
    assert min(waited) < 1.0
    assert max(waited) < 3.0  # another program may have the processor


@posix
def test_ctrl_c_while_generating_keeps_the_text(cli: Cli, oracle_run: dict[str, Any]) -> None:
    text = oracle_run["server"]["text"]
    args = ("generate", *EXACT, "-c", 100_000, "-p", oracle_run["prompt"], "--ignore-eos")
    with running(cli, *args) as (process, out, talk):
        got = ""
        while len(got) < len(text):
            char = out.get(timeout=60)
            assert char != "", rest(talk)
            got += char
        started = time.monotonic()
        process.send_signal(signal.SIGINT)
        process.wait(30)
        took = time.monotonic() - started
        got += rest(out)
        assert process.returncode == 130
        assert took < 3.0
        assert got.startswith(text)
        assert got.endswith("\n")
        assert "Traceback" not in rest(talk)


@posix
def test_ctrl_c_while_generating_leaves_whole_json(cli: Cli, oracle_run: dict[str, Any]) -> None:
    args = ("generate", *EXACT, "-c", 100_000, "-p", oracle_run["prompt"], "--ignore-eos", "--json")
    with running(cli, *args) as (process, out, talk):
        said = ""
        while "\n" not in said:  # the warning about the long context comes when the model is loaded
            said += talk.get(timeout=60)
        threading.Event().wait(1.0)
        process.send_signal(signal.SIGINT)
        process.wait(30)
        assert process.returncode == 130
        got = json.loads(rest(out))
    assert got["finish_reason"] == "cancelled"
    assert got["text"].startswith(oracle_run["server"]["text"])
    assert got["tokens"][:64] == oracle_run["greedy"]
    assert got["stats"]["n_generated"] == len(got["tokens"])
    assert got["stats"]["n_decoded"] in (len(got["tokens"]) - 1, len(got["tokens"]))


@posix
def test_sigterm_ends_it(cli: Cli, long_prompt: Path) -> None:
    with running(cli, "generate", "-m", TINY_A, "-f", long_prompt, "-c", 200_000, "-t", 1) as (process, _, talk):
        talk.get(timeout=60)
        process.terminate()
        process.wait(30)
        assert process.returncode in (-signal.SIGTERM, 143)
        assert "Traceback" not in rest(talk)
