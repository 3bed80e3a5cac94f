"""Runs chat templates in a process of their own, with limits on time and memory.

A template is code of somebody else, and can loop for ever or take all memory. One process is started when it is first
needed and serves all calls; when a template breaks a limit, it is killed, and the next call starts another.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping
from typing import Any

import psutil

from pyclover.chat import frames
from pyclover.chat.held import ctrl_c_held_back
from pyclover.errors import ClosedError, GrammarError, TemplateError, UsageError

TIME_LIMIT_S = 10.0
TIME_PER_BYTE_S = 20e-6  # more for long conversations; a well-behaved template takes a tenth of it
WALL_FACTOR = 12  # of that: on a machine that is busy, a good template waits for the processor
MEMORY_LIMIT_BYTES = 1 << 30
START_LIMIT_S = 20.0
_POLL_S = 0.02
_CODE = "import sys; sys.path[:] = {path!r}; from pyclover.chat.worker import main; main({limit})"
# it computes nothing on a GPU, and must not take memory there
_NO_GPU = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "", "GGML_VK_VISIBLE_DEVICES": ""}


class TemplateLimitError(TemplateError):
    """A template breaks a limit: of time, memory, text or depth."""


class TemplateProcess:
    """The process, from the side of the one who asks. Safe to use from several threads, and after a fork.

    Args:
        time_limit_s: seconds of processor time that a render of a short conversation may take; it is stopped after
            WALL_FACTOR times as many seconds of wall time at the latest.
        memory_limit_bytes: that it may take above what the process has at its start.
    """

    def __init__(self, *, time_limit_s: float = TIME_LIMIT_S, memory_limit_bytes: int = MEMORY_LIMIT_BYTES) -> None:
        self._time_limit_s = time_limit_s
        self._memory_limit_bytes = memory_limit_bytes
        self._lock = threading.Lock()
        self._child: _Child | None = None
        self._closed = False
        _all.add(self)

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a request of chat/worker.py.

        Raises:
            TemplateError: the template breaks a limit, is damaged, or refuses the messages.
            UsageError: the messages cannot be rendered by any template of this kind.
            GrammarError: a schema of the tools cannot be used.
            ClosedError: after close().
        """
        try:
            size = len(frames.packed(request))
        except UnicodeEncodeError:  # the messages have been checked for it
            raise TemplateError("the chat template has half a character (a lone surrogate) in it") from None
        limit_s = self._time_limit_s + size * TIME_PER_BYTE_S
        frame = frames.packed({**request, "limit_s": limit_s})
        with self._lock:
            if self._closed:
                raise ClosedError("the process that runs chat templates has been closed")
            if self._child is not None and not self._child.usable():
                self._drop()
            used_before = self._child is not None
            try:
                answer = self._exchange(frame, limit_s)
            except _DiedError:
                if not used_before:
                    raise
                answer = self._exchange(frame, limit_s)  # it may have been ended from outside, before this call
        if "error" not in answer:
            return answer
        if answer["kind"] == "usage":
            raise UsageError(answer["error"], option=answer["option"])
        if answer["kind"] == "grammar":
            raise GrammarError(answer["error"])
        raise TemplateError(answer["error"])

    def _exchange(self, frame: bytes, limit_s: float) -> dict[str, Any]:
        if self._child is None:
            self._child = _Child(self._memory_limit_bytes)
        try:
            answer = self._child.exchange(frame, limit_s)
            if answer.get("kind") == "memory":
                raise _too_big(self._memory_limit_bytes)
        except BaseException:  # Ctrl-C too: the answer to this call must not become that of the next
            self._drop()
            raise
        return answer

    @property
    def pid(self) -> int | None:
        """The number of the running process, None when there is none now."""
        child = self._child
        return None if child is None else child.pid

    def close(self) -> None:
        """Ends the process; asking again raises ClosedError."""
        with self._lock:
            self._closed = True
            self._drop()

    def __enter__(self) -> TemplateProcess:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _drop(self) -> None:
        if self._child is not None:
            self._child.end()
            self._child = None

    def _forked(self) -> None:
        """In the child of a fork: the process belongs to the parent, and another thread may hold the lock."""
        self._lock = threading.Lock()
        if self._child is not None:
            self._child.leave()
            self._child = None


_all: weakref.WeakSet[TemplateProcess] = weakref.WeakSet()


def _after_fork() -> None:
    for process in list(_all):
        process._forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _too_big(limit_bytes: int) -> TemplateLimitError:
    return TemplateLimitError(f"the chat template takes more than {limit_bytes >> 20} MiB of memory")


class _DiedError(TemplateLimitError):
    """The process ended before it answered."""


class _Child:
    """One started process."""

    def __init__(self, memory_limit_bytes: int) -> None:
        self._limit_bytes = memory_limit_bytes
        self._asked = False
        self._start_bytes = 0
        self._finalizer: weakref.finalize[..., Any] | None = None
        try:
            with ctrl_c_held_back():  # started and not yet known, it would be nobody's
                self._popen = self._started()
                self._finalizer = weakref.finalize(self, _end, self._popen, os.getpid())
            self._begin()
        except BaseException as error:
            self.end()
            if isinstance(error, TemplateError):
                raise TemplateError(f"the process that runs chat templates does not start: {error}") from None
            raise

    def _started(self) -> subprocess.Popen[bytes]:
        try:
            return subprocess.Popen(
                [sys.executable, "-c", _CODE.format(path=sys.path, limit=self._limit_bytes)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                env={**os.environ, **_NO_GPU}, bufsize=0,
                start_new_session=True,  # Ctrl-C in the terminal is not for it
            )  # fmt: skip
        except OSError as error:
            raise TemplateError(str(error)) from None

    def _begin(self) -> None:
        self.pid = self._popen.pid
        self._process = psutil.Process(self.pid)
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        self._in, self._out = self._popen.stdin, self._popen.stdout
        os.set_blocking(self._in.fileno(), False)
        os.set_blocking(self._out.fileno(), False)
        self.exchange(b"", START_LIMIT_S)
        self._start_bytes = self._resident()

    def usable(self) -> bool:
        """Whether it runs, and owes no answer to an earlier call that was interrupted."""
        return self._popen.poll() is None and not self._asked

    def end(self) -> None:
        """Kills it and waits for its end."""
        with ctrl_c_held_back():
            if self._finalizer is not None:
                self._finalizer()

    def leave(self) -> None:
        """Lets go of it without ending it."""
        if self._finalizer is not None:
            self._finalizer.detach()
        _close_pipes(self._popen)
        self._popen.returncode = 0  # not ours to wait for

    def exchange(self, frame: bytes, limit_s: float) -> dict[str, Any]:
        """Writes a frame and reads the answer.

        Raises:
            TemplateError: it took too long, too much memory, wrote too much, or the process died.
        """
        self._asked = True
        began, cpu_began = time.monotonic(), self._cpu_s()
        to_write, got = memoryview(frame), bytearray()
        with selectors.DefaultSelector() as selector:
            selector.register(self._out, selectors.EVENT_READ)
            if to_write:
                selector.register(self._in, selectors.EVENT_WRITE)
            while (size := _frame_size(got)) is None or len(got) < size:
                ready = selector.select(_POLL_S)
                for key, _ in ready:
                    if key.fileobj is self._out:
                        self._read(got)
                    else:
                        to_write = to_write[self._write(to_write) :]
                        if not to_write:
                            selector.unregister(self._in)
                took = time.monotonic() - began
                if took > limit_s and (took > limit_s * WALL_FACTOR or self._cpu_s() - cpu_began > limit_s):
                    raise TemplateLimitError(f"the chat template takes more than {limit_s:.3g} s and was stopped")
                if self._start_bytes and self._resident() - self._start_bytes > self._limit_bytes * 5 // 4:
                    raise _too_big(self._limit_bytes)
        answer: dict[str, Any] = frames.unpacked(got[frames.HEADER.size :])
        self._asked = False
        return answer

    def _read(self, got: bytearray) -> None:
        with contextlib.suppress(BlockingIOError):
            piece = os.read(self._out.fileno(), 1 << 20)
            if not piece:
                raise self._died()
            got += piece
        size = _frame_size(got)
        if size is not None and size > frames.MAX_ANSWER:
            raise TemplateLimitError(f"the chat template writes more than {frames.MAX_ANSWER >> 20} MiB")

    def _write(self, data: memoryview) -> int:
        try:
            return os.write(self._in.fileno(), data[: 1 << 20])
        except BlockingIOError:
            return 0
        except BrokenPipeError:
            raise self._died() from None

    def _died(self) -> TemplateError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(5)
        code = self._popen.returncode
        how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        return _DiedError(f"the chat template ended the process that ran it ({how}): it nests or calls too deeply")

    def _cpu_s(self) -> float:
        try:
            times = self._process.cpu_times()
        except psutil.Error:
            return 0.0
        return float(times.user + times.system)

    def _resident(self) -> int:
        try:
            return int(self._process.memory_info().rss)
        except psutil.Error:
            return 0


def _frame_size(got: bytearray) -> int | None:
    """Bytes of the frame that begins here, None while they are not known."""
    if len(got) < frames.HEADER.size:
        return None
    return frames.HEADER.size + int(frames.HEADER.unpack_from(got)[0])


def _close_pipes(popen: subprocess.Popen[bytes]) -> None:
    for pipe in (popen.stdin, popen.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()


def _end(popen: subprocess.Popen[bytes], owner: int) -> None:
    if os.getpid() != owner:
        return
    with contextlib.suppress(OSError):
        popen.kill()
    _close_pipes(popen)
    with contextlib.suppress(subprocess.TimeoutExpired):
        popen.wait(5)
