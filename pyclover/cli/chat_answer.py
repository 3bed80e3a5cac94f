"""One answer while it comes: Ctrl-C stops the answer and not the program."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from types import FrameType
from typing import TYPE_CHECKING

from pyclover.cli.interrupt import handled_by
from pyclover.errors import CloverError, ContextFullError, UsageError

if TYPE_CHECKING:
    from pyclover.cli.chat_conversation import ChatModel, Conversation, Piece, Reply

_COMMANDS = {"thinking": "/think", "think_budget": "/think", "speculation": "/draft"}


def _lost(signum: int, frame: FrameType | None) -> None:
    """A Ctrl-C where there is nothing to stop: between the line editor, which reads it as a key, and an answer."""


def ctrl_c_lost() -> contextlib.AbstractContextManager[None]:
    """While the block runs, Ctrl-C as a signal does nothing, but in ctrl_c_stops()."""
    return handled_by(_lost)


@contextlib.contextmanager
def ctrl_c_stops(model: ChatModel) -> Iterator[None]:
    """While the block runs, Ctrl-C does what cancel() does until the block ends, and nothing else."""
    done = threading.Event()
    asked: SimpleQueue[bool] = SimpleQueue()  # a Ctrl-C may come in the middle of what another one does: put() bears it

    def cancel() -> None:
        if not asked.get():
            return
        # again and again: a call forgets what was cancelled before it began, and this one may be about to begin
        while not done.is_set():
            with contextlib.suppress(CloverError):
                model.cancel()
            done.wait(0.1)

    thread = threading.Thread(target=cancel, daemon=True)
    with handled_by(lambda signum, frame: asked.put(True), instead_of=_lost):
        thread.start()
        try:
            yield
        finally:
            done.set()
            asked.put(False)
            thread.join()  # the next answer is not meant


@contextlib.contextmanager
def terminated_in_order() -> Iterator[None]:
    """While the block runs, SIGTERM ends the program by SystemExit, so that the terminal is put back in order."""

    def on_terminate(signum: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, on_terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def last_of(pieces: Iterator[Piece], show: Callable[[Piece], None]) -> Reply | None:
    """Shows all pieces; returns the finished answer, None when there was none."""
    reply = None
    for piece in pieces:
        show(piece)
        reply = piece.reply
    return reply


def advice(error: CloverError) -> str:
    """A sentence about an answer that failed, with what helps in a chat."""
    if isinstance(error, ContextFullError):
        return (
            f"the conversation needs {error.n_needed} tokens and the context holds {error.n_ctx}: /clear begins a new "
            f"one, clover-run chat -c {error.n_needed} or more has room (/save keeps this one); nothing was lost."
        )
    command = _COMMANDS.get(error.option, "") if isinstance(error, UsageError) else ""
    return f"{error} ({command})" if command else str(error)


def cut_note(conversation: Conversation, reply: Reply, *, at_terminal: bool) -> str:
    """Why an answer ended before its end, and what helps; "" when it did not."""
    if reply.finish_reason != "length":
        return ""
    limit, n_ctx = conversation.settings.request.get("max_tokens"), conversation.model.n_ctx
    cut_by_limit = limit is not None and reply.stats.n_generated >= limit
    if reply.reasoning and not reply.content:
        room = "larger -n" if cut_by_limit else "larger -c"
        budget = "/think N" if at_terminal else "--think-budget N"
        return (
            f"all {reply.stats.n_generated} tokens went into thinking, and the answer has none left: {budget} ends the "
            f"thought before that, a {room} has room for more."
        )
    if cut_by_limit:
        return f"the answer was cut after {limit} tokens (-n)."
    ways_out = "/clear begins a new conversation, " if at_terminal else ""
    kept = "; this one is kept" if at_terminal else ""
    return (
        f"the context of {n_ctx} tokens is full, so the answer was cut: {ways_out}a larger -c has room for more{kept}."
    )
