"""`clover-run worker`: how it ends."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pyclover.cli.main import cli

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="POSIX signals")


class Running:
    """A worker of which it is told how often Ctrl-C comes before it has ended."""

    endpoint, pid, warnings = "127.0.0.1:1", 1, ()

    def __init__(self, n_interrupts: int) -> None:
        self._n_interrupts = n_interrupts
        self.killed = self.closed = False

    def wait(self, _timeout_s: float) -> bool:
        for _ in range(self._n_interrupts):
            signal.raise_signal(signal.SIGINT)
        return self._n_interrupts != 1

    def why(self) -> str:
        return "signal SIGKILL"

    def kill(self) -> None:
        self.killed = True

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        self.closed = True


def run(monkeypatch: pytest.MonkeyPatch, running: Running) -> Result:
    def work(**_: Any) -> Running:
        return running

    monkeypatch.setattr("pyclover.serve.worker.work", work)
    return CliRunner().invoke(cli, ["worker"], prog_name="clover-run")


@pytest.mark.parametrize("n", [1, 2, 3])
def test_ctrl_c_ends_it_and_is_no_fault(monkeypatch: pytest.MonkeyPatch, n: int) -> None:
    running = Running(n)
    done = run(monkeypatch, running)
    assert (done.exit_code, done.output) == (0, "127.0.0.1:1\n")
    assert running.killed == (n > 1)
    assert running.closed


def test_one_that_ends_by_itself_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    done = run(monkeypatch, Running(0))
    assert done.exit_code == 1
    assert "Error: the worker ended (signal SIGKILL)" in done.output
