"""SIGTERM as Ctrl-C."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from pyclover.cli.terminate import as_ctrl_c

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals as POSIX has them")


@pytest.mark.parametrize("kind", ["SIGTERM", "SIGHUP"])
def test_it_interrupts_the_block_and_nothing_else(kind: str) -> None:
    number = getattr(signal, kind)
    before = signal.getsignal(number)

    def block() -> None:
        with as_ctrl_c():
            os.kill(os.getpid(), number)
            signal.sigtimedwait([], 5)

    with pytest.raises(KeyboardInterrupt):
        block()
    assert signal.getsignal(number) is before


def test_what_somebody_has_decided_stays() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        with as_ctrl_c():
            os.kill(os.getpid(), signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_other_threads_set_nothing() -> None:
    seen = []

    def work() -> None:
        with as_ctrl_c():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    before = signal.getsignal(signal.SIGTERM)
    thread.start()
    thread.join()
    assert seen == [before]
