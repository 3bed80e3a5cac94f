"""The parent of the processes that open damaged files, and the verdict on what they did."""

from __future__ import annotations

import contextlib
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil
from model import corrupt_child
from model.corrupt_files import Splices

LIMIT_S = 2.0  # for one file
STUCK_S = 20.0  # of wall time: a busy machine is not a fault of the file
GROWTH_BYTES = 300 << 20
MAX_FAULTS = 12  # then the test gives up


@dataclass
class Result:
    """What became of many files.

    Attributes:
        faults: one line each: a signal, a hang, a foreign exception, too much memory. Must be empty.
        outcomes: how often each happened: "works", or the class of the error.
    """

    faults: list[str] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    slowest_s: float = 0.0
    growth_bytes: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        return (
            f"{sum(self.outcomes.values())} files in {self.seconds:.1f} s, slowest {self.slowest_s:.3f} s, memory grew "
            f"by {self.growth_bytes >> 20} MiB: {dict(self.outcomes.most_common())}"
        )


class Died(Exception):
    """The child is gone, or was ended because it did not answer."""


class Child:
    """One process at work; a new one is started after each death."""

    def __init__(self, base: Path, folder: Path) -> None:
        self.log_path = folder / "child.log"
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, corrupt_child.__file__, str(base), str(folder / "case.gguf")],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, cwd=folder,
            )  # fmt: skip
        self.ps = psutil.Process(self.process.pid)
        self.start_bytes = int(self.answer(STUCK_S * 3, cpu_s=STUCK_S * 3)["peak_bytes"])

    def cpu_s(self) -> float:
        try:
            times = self.ps.cpu_times()
        except psutil.Error:
            return 0.0
        return float(times.user + times.system)

    def answer(self, wall_s: float, cpu_s: float) -> dict[str, Any]:
        """Waits; a file that takes too much processor or wall time ends the child."""
        assert self.process.stdout is not None
        started, cpu = time.monotonic(), self.cpu_s()
        while not select.select([self.process.stdout], [], [], 0.5)[0]:
            if time.monotonic() - started > wall_s or self.cpu_s() - cpu > cpu_s:
                self.process.kill()
                self.process.wait()
                raise Died(f"no answer after {time.monotonic() - started:.1f} s")
        try:
            answer: dict[str, Any] = corrupt_child.read_message(self.process.stdout)
        except EOFError:
            code = self.process.wait()
            how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            raise Died(f"{how}; it said: {self.log()}") from None
        return answer

    def open(self, splices: Splices) -> dict[str, Any]:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            corrupt_child.write_message(self.process.stdin, splices)
        return self.answer(STUCK_S, LIMIT_S)

    def log(self) -> str:
        return self.log_path.read_text(encoding="utf-8", errors="replace")[-1500:]

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):
            assert self.process.stdin is not None
            self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


def open_all(base: Path, cases: Iterable[tuple[str, Splices]], folder: Path) -> Result:
    """Opens the file of every case in child processes. A file at fault is kept in `folder` under its case's name."""
    result = Result()
    content = base.read_bytes()
    started = time.monotonic()
    todo: Iterator[tuple[str, Splices]] = iter(cases)
    more = True
    while more and len(result.faults) < MAX_FAULTS:
        with Child(base, folder) as child:
            more = _work(child, todo, content, folder, result)
    result.seconds = time.monotonic() - started
    return result


def _work(child: Child, todo: Iterator[tuple[str, Splices]], content: bytes, folder: Path, result: Result) -> bool:
    """Returns True when a new child must go on."""
    for name, splices in todo:
        kept = folder / f"{name}.gguf"
        fault = ""
        try:
            answer = child.open(splices)
        except Died as e:
            kept.write_bytes(corrupt_child.spliced(content, splices))
            result.outcomes["death"] += 1
            result.faults.append(f"{kept}: {e}")
            return True
        result.outcomes[answer["outcome"]] += 1
        # the smaller of both times: a busy machine stretches one, several threads the other
        seconds = min(answer["cpu_s"], answer["wall_s"])
        grown = answer["peak_bytes"] - child.start_bytes
        result.slowest_s = max(result.slowest_s, seconds)
        result.growth_bytes = max(result.growth_bytes, grown)
        if answer["wrong"]:
            fault = "; ".join(answer["wrong"])
        elif seconds > LIMIT_S:
            fault = f"took {seconds:.1f} s"
        elif grown > GROWTH_BYTES:
            fault = f"memory grew by {grown >> 20} MiB"
        if fault:
            kept.write_bytes(corrupt_child.spliced(content, splices))
            result.faults.append(f"{kept}: {fault}")
            if grown > GROWTH_BYTES:
                return True
            if len(result.faults) >= MAX_FAULTS:
                return False
    return False


def quiet_core() -> None:
    """Crashes are expected to be none, but a core file of each would fill the disk."""
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
