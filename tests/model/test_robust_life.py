"""Loading and closing again and again leaves nothing behind; a process that ends says nothing about it."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from support import ORACLE

TINY_A = ORACLE / "expected" / "tiny_a.gguf"
TINY_B = ORACLE / "expected" / "tiny_b.gguf"

linux = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc")
pytestmark = pytest.mark.timeout(600)

START = f"""
import gc, os, sys, threading, time
import pyclover
A, B = {str(TINY_A)!r}, {str(TINY_B)!r}
"""

MEASURE = """
import resource

def now():
    gc.collect()
    status = dict(line.split(":", 1) for line in open("/proc/self/status", encoding="ascii"))
    return int(status["VmRSS"].split()[0]), int(status["Threads"]), len(os.listdir("/proc/self/fd"))

def repeat(what):
    for _ in range(50):
        what()
    rss, threads, files = now()
    for _ in range(150):
        what()
    rss2, threads2, files2 = now()
    print(rss2 - rss, threads2 - threads, files2 - files, flush=True)
"""


def run(code: str, folder: Path, *, timeout: float = 300) -> subprocess.CompletedProcess[str]:
    """A process of its own for the code."""
    return subprocess.run(
        [sys.executable, "-c", START + textwrap.dedent(code)],
        cwd=folder, env=dict(os.environ), capture_output=True, text=True, timeout=timeout, check=False,
    )  # fmt: skip


# ---- again and again ------------------------------------------------------------------------------------------------


@linux
@pytest.mark.parametrize(
    ("what", "code"),
    [
        ("load and close", "pyclover.Clover(B, n_ctx=64, n_threads=2).close()"),
        ("load and forget", "pyclover.Clover(B, n_ctx=64, n_threads=2)"),
        (
            "generate",
            """
    with pyclover.Clover(B, n_ctx=64, n_threads=1) as m:
        m.generate([1, 2, 3], max_tokens=2, seed=1, grammar='root ::= "a"+')
        m.generate([1, 2, 3], max_tokens=2, temperature=0)
        next(m.stream([1, 2, 3, 4], temperature=0))
        m.logits([1, 2])""",
        ),
        (
            "contexts on one model",
            """
    c = Context(shared, ContextOptions(n_ctx=64, n_threads=1))
    with c.claim.held():
        c.prompt([1, 2, 3])
        c.step(Sampler(shared, Sampling(), 64))
    c.close()""",
        ),
        (
            "failed loads",
            """
    for path in (__file__ if "__file__" in globals() else "/dev/null", "absent", B + "x"):
        try:
            pyclover.Clover(path)
        except pyclover.CloverError:
            pass
    try:
        pyclover.Clover(B, n_ctx=64, progress=lambda f: False)
    except pyclover.CancelledError:
        pass""",
        ),
    ],
    ids=lambda x: x if "\n" not in x and "(" not in x else "",
)
def test_nothing_grows(what: str, code: str, tmp_path: Path) -> None:
    imports = """
from pyclover.engine.context import Context, ContextOptions
from pyclover.engine.model import Model
from pyclover.engine.sampler import Sampler
from pyclover.engine.sampling import Sampling
shared = Model(B)
"""
    body = code if "\n" in code else "\n    " + code
    done = run(MEASURE + imports + f"def once():{body}\nrepeat(once)\n", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    rss_kib, threads, files = map(int, done.stdout.split())
    # 150 cycles of a model of 450 KB: a leak of one per cycle would be 65 MiB
    assert rss_kib < 8 * 1024, what
    assert (threads, files) == (0, 0), what


# ---- the end of a process -------------------------------------------------------------------------------------------

M = "m = pyclover.Clover(B, n_ctx=256, n_threads=2)\n"
SILENT = {
    "open model": M,
    "open model, used": M + "m.generate([1, 2], max_tokens=3)",
    "two open models": M + "n = pyclover.Clover(A, n_ctx=64); n.generate([1], max_tokens=2)",
    "half read stream": M + "s = m.stream([1, 2, 3], ignore_eos=True); next(s); next(s)",
    "half read stream in a cycle": M + "s = m.stream([1, 2, 3]); next(s); x = [s, m]; x.append(x)",
    "unread stream": M + "s = m.stream([1, 2, 3])",
    "model deleted before its stream": M + "s = m.stream([1, 2], ignore_eos=True); next(s); del m; next(s)",
    "closed with an open stream": M + """
s = m.stream([1, 2], ignore_eos=True)
next(s)
m.close()
try:
    next(s)
except pyclover.ClosedError:
    print("closed")
""",
    "context outlives the facade": M + "c = m._context; del m; gc.collect(); print(c.closed)",
    "model deleted before its context": M + "c, k = m._context, m._model; k.close(); print(c.closed); del k, m; del c",
    "sampler outlives the model": M + """
from pyclover.engine.sampler import Sampler
from pyclover.engine.sampling import Sampling
s = Sampler(m._model, Sampling(), 64)
m.close()
del m
gc.collect()
""",
    "in modules": M + "sys.modules['holder'] = m; os.holder = m; threading.holder = m",
    "object without __init__": "m = pyclover.Clover.__new__(pyclover.Clover); del m",
    "failed load": """
try:
    pyclover.Clover("absent.gguf")
except pyclover.ModelNotFoundError as e:
    kept = e
""",
    "failed context": """
try:
    pyclover.Clover(B, n_ctx=64, cache_type_k="q8_0", flash_attn=False)
    pyclover.Clover(B, n_ctx=64, cache_type_v="q8_0", flash_attn=False)
except pyclover.CloverError as e:
    kept = e
""",
    "exit from a thread": M + """
def work():
    m.generate([1], max_tokens=2)
    sys.exit(3)
t = threading.Thread(target=work)
t.start()
t.join()
""",
    "model made in a thread": """
made = []
t = threading.Thread(target=lambda: made.append(pyclover.Clover(B, n_ctx=64)))
t.start()
t.join()
made[0].generate([1], max_tokens=2)
""",
    "atexit uses the model": """
import atexit
m = pyclover.Clover(B, n_ctx=64)
atexit.register(lambda: print(len(m.generate([1, 2], max_tokens=2, ignore_eos=True).tokens)))
""",
    "fork": M + """
m.generate([1], max_tokens=2)
pid = os.fork()
if pid:
    assert os.waitpid(pid, 0)[1] == 0
""",
}  # fmt: skip


@pytest.mark.parametrize("name", SILENT)
def test_silent_end(name: str, tmp_path: Path) -> None:
    if name == "fork" and not hasattr(os, "fork"):
        pytest.skip("no fork on this system")
    done = run(SILENT[name], tmp_path, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_end_while_a_daemon_thread_generates(tmp_path: Path) -> None:
    """The thread may be told that the model is closed; nothing is freed under it."""
    code = """
    m = pyclover.Clover(A, n_ctx=4096, n_threads=1)
    started = threading.Event()
    def work():
        try:
            while True:
                for p in m.stream([1], ignore_eos=True):
                    started.set()
        except pyclover.ClosedError:
            pass
    threading.Thread(target=work, daemon=True).start()
    started.wait()
    """
    for _ in range(5):
        done = run(code, tmp_path, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")


def test_the_callbacks_own_exception_arrives(tmp_path: Path) -> None:
    code = """
    class Mine(Exception):
        pass
    def progress(fraction):
        raise Mine("from the callback")
    for how in (1, 2):
        try:
            pyclover.Clover(B, progress=progress)
        except Mine as e:
            print(e)
    m = pyclover.Clover(B, n_ctx=64)
    print(len(m.generate([1], max_tokens=2, ignore_eos=True).tokens))
    """
    done = run(code, tmp_path)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "from the callback\n" * 2 + "2\n")


@pytest.mark.parametrize(
    ("code", "last"),
    [
        ('pyclover.Clover("absent.gguf")', "pyclover.errors.ModelNotFoundError: "),
        ("pyclover.Clover(B, progress=lambda f: 1 / 0)", "ZeroDivisionError: "),
        (M + "raise KeyError(1)", "KeyError: 1"),
        (M + "s = m.stream([1]); next(s); raise KeyError(1)", "KeyError: 1"),
        (M + 'next(m.stream([1], grammar="root ::= ("))', "pyclover.errors.GrammarError: "),
    ],
)
def test_the_only_traceback_is_the_programs_own(code: str, last: str, tmp_path: Path) -> None:
    """No second error from a finalizer hides the first."""
    done = run(code, tmp_path)
    assert done.returncode == 1
    assert done.stderr.count("Traceback") == 1
    assert done.stderr.splitlines()[-1].startswith(last)


def test_exit_codes_are_kept(tmp_path: Path) -> None:
    assert run(M + "sys.exit(7)", tmp_path).returncode == 7
    assert run(M + "s = m.stream([1]); next(s); os._exit(5)", tmp_path).returncode == 5
