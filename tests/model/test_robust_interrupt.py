"""Ctrl-C at any moment: back quickly, and the objects stay usable."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from support import ORACLE

TINY_A = ORACLE / "expected" / "tiny_a.gguf"

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.name != "posix", reason="signals as POSIX has them"),
]

START = f"""
import faulthandler, os, signal, sys, threading, time
import numpy as np
import pyclover
faulthandler.dump_traceback_later(100, exit=True)
A = {str(TINY_A)!r}
SHORT = [72, 101, 108]
"""


def run(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", START + textwrap.dedent(code)],
        cwd=folder, capture_output=True, text=True, timeout=150, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    "call",
    [
        "m.generate(LONG, max_tokens=1)",
        "m.generate(SHORT, temperature=0, ignore_eos=True)",
        "for p in m.stream(SHORT, temperature=0, ignore_eos=True): pass",
        "m.generate(SHORT, seed=1, ignore_eos=True, temperature=2, repeat_penalty=1.1, repeat_last_n=-1)",
        "m.logits(LONG)",
        "m.score(LONG)",
    ],
)
def test_a_signal_during_a_call(call: str, tmp_path: Path) -> None:
    code = f"""
    m = pyclover.Clover(A, n_ctx=60_000, n_threads=1, flash_attn=False)
    LONG = np.random.default_rng(1).integers(0, 340, 59_000).tolist()
    want = m.generate(SHORT, max_tokens=20, temperature=0, ignore_eos=True).tokens
    for after_s in (0.05, 0.4, 0.9):
        sent = []
        def interrupt():
            sent.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGINT)
        threading.Timer(after_s, interrupt).start()
        try:
            {call}
            print("not interrupted")
        except KeyboardInterrupt:
            print(f"{{time.monotonic() - sent[0]:.3f}}")
        assert m.generate(SHORT, max_tokens=20, temperature=0, ignore_eos=True).tokens == want
    m.close()
    """
    done = run(code, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    waited = [float(line) for line in done.stdout.split()]
    assert len(waited) == 3
    assert min(waited) < 1.0
    assert max(waited) < 3.0  # another program may have the processor


def test_a_signal_while_loading(tmp_path: Path) -> None:
    code = """
    def progress(fraction):
        os.kill(os.getpid(), signal.SIGINT)
    for _ in range(3):
        try:
            pyclover.Clover(A, progress=progress)
            print("not interrupted")
        except KeyboardInterrupt:
            print("interrupted")
    m = pyclover.Clover(A, n_ctx=64)
    print(len(m.generate(SHORT, max_tokens=2, ignore_eos=True).tokens))
    """
    done = run(code, tmp_path)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "interrupted\n" * 3 + "2\n")


# Python raises KeyboardInterrupt between two instructions, above all when a function begins. The trace function does
# the same at the n-th function that begins inside a call, for every n.
AT_EVERY_CALL = """
m = pyclover.Clover(A, n_ctx=64, n_threads=1)
want = m.generate(SHORT, max_tokens=3, temperature=0, ignore_eos=True).tokens
countdown = 0
def trace(frame, event, arg):
    global countdown
    if event == "call":
        countdown -= 1
        if countdown == 0:
            sys.settrace(None)
            raise KeyboardInterrupt
n = 0
while True:
    n += 1
    countdown = n
    sys.settrace(trace)
    try:
        CALL
        sys.settrace(None)
        break
    except KeyboardInterrupt:
        pass
    faulthandler.dump_traceback_later(20, exit=True)
    got = m.generate(SHORT, max_tokens=3, temperature=0, ignore_eos=True).tokens
    assert got == want, (n, got)
faulthandler.dump_traceback_later(20, exit=True)
m.close()
print(n)
"""


@pytest.mark.parametrize(
    "call",
    [
        "m.generate(SHORT, max_tokens=2, temperature=0, ignore_eos=True)",
        "list(m.stream(SHORT, max_tokens=2, temperature=0, ignore_eos=True))",
        "m.logits(SHORT)",
        "m.tokenize('a fox')",
    ],
)
def test_an_interrupt_at_any_instant_leaves_the_object_usable(call: str, tmp_path: Path) -> None:
    done = run(AT_EVERY_CALL.replace("CALL", call), tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout) > 5


def test_an_interrupt_at_any_instant_of_loading(tmp_path: Path) -> None:
    code = AT_EVERY_CALL.replace("CALL", "pyclover.Clover(A, n_ctx=64, n_threads=1).close()")
    done = run(code, tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout) > 50


def test_importing_installs_no_handler(tmp_path: Path) -> None:
    code = """
    print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)
    pyclover.Clover(A, n_ctx=64).close()
    print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)
    """
    assert run(code, tmp_path).stdout == "True\nTrue\n"
