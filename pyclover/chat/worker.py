"""The process that runs chat templates: reads requests from its standard input, writes answers to its standard output.

A template is code of somebody else, and llama.cpp's engine sets no limits to it. Here it may take too long, too much
memory, or overflow the stack: only this process ends, and chat/apart.py, which started it, starts another.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyclover.chat import families, frames
from pyclover.chat.native import check_schemas, prepare_natively
from pyclover.chat.normalise import UNKNOWN_CAPS, template_names
from pyclover.chat.template import render_names
from pyclover.errors import CloverError, GrammarError, OutOfMemoryError, TemplateError, UsageError

GRACE_S = 5.0  # the parent ends this process at the limit; the alarm does so later where it does not


def answer(request: Mapping[str, Any]) -> dict[str, Any]:
    """What one request gives.

    Args:
        request: "template", "bos_token", "eos_token", "strip_bos", "strip_eos", "messages" and "tools" (checked),
            "callable_tools" (those of which the parser may find calls), "tool_choice", "parallel_tool_calls" (None:
            what the template can), "thinking" (None: on, where the template knows it), "variables", "json_schema",
            "add_generation_prompt".

    Returns:
        "prompt"; "opening", the end of it that add_generation_prompt added; "thinking"; "native", what
        pc_chat_prepare() gave without its prompt, or None with the reason in "native_error".

    Raises:
        TemplateError, UsageError: see chat/template.py and chat/normalise.py.
        GrammarError: a schema of the tools cannot be used.
    """
    native: dict[str, Any] | None = None
    native_error = ""
    thinking = request["thinking"] is not False
    try:
        native = prepare_natively(request, thinking=thinking)
        if request["thinking"] is None and not native["supports_thinking"]:
            thinking = False
            if "enable_thinking" in request["template"]:
                native = prepare_natively(request, thinking=False)
    except TemplateError as error:
        check_schemas(request["callable_tools"])  # the fault may be theirs
        native, native_error = None, str(error)
    caps = native["caps"] if native is not None else UNKNOWN_CAPS
    prompt = _rendered(request, caps, thinking, add_generation_prompt=request["add_generation_prompt"])
    if native is not None:
        del native["prompt"]  # jinja2's is the one; it may be long
    out: dict[str, Any] = {"prompt": prompt, "opening": "", "thinking": thinking}
    out["native"], out["native_error"] = native, native_error
    if request["add_generation_prompt"]:
        expected = native["generation_prompt"] if native is not None else ""
        out["opening"] = (
            expected if expected and prompt.endswith(expected) else _opening(request, caps, thinking, prompt)
        )
    return out


def _rendered(request: Mapping[str, Any], caps: Mapping[str, bool], thinking: bool, **changes: Any) -> str:
    request = {**request, **changes}
    prompt = render_names(request["template"], template_names(request, caps, thinking=thinking))
    with_end = families.finished(request["template"], prompt, add_generation_prompt=request["add_generation_prompt"])
    return _without_ends(request, with_end)


def _without_ends(request: Mapping[str, Any], prompt: str) -> str:
    """Without the tokens that the tokenizer adds by itself."""
    if request["strip_bos"]:
        prompt = prompt.removeprefix(request["bos_token"])
    if request["strip_eos"]:
        prompt = prompt.removesuffix(request["eos_token"])
    return prompt


def _opening(request: Mapping[str, Any], caps: Mapping[str, bool], thinking: bool, prompt: str) -> str:
    """What the template writes more when it is to open an answer."""
    try:
        closed = _rendered(request, caps, thinking, add_generation_prompt=False)
    except TemplateError:
        return ""
    common = next((i for i, (a, b) in enumerate(zip(closed, prompt, strict=False)) if a != b), len(closed))
    return prompt[common:]


def guarded_answer(request: Mapping[str, Any]) -> dict[str, Any]:
    """answer(), or {"error", "kind"}: "template", "usage", "grammar" or "memory"."""
    try:
        return answer(request)
    except (MemoryError, OutOfMemoryError):
        return {"error": "", "kind": "memory"}
    except UsageError as error:
        return {"error": str(error), "kind": "usage", "option": error.option}
    except GrammarError as error:
        return {"error": str(error), "kind": "grammar"}
    except CloverError as error:
        return {"error": str(error), "kind": "template"}
    except Exception as error:  # jinja2's sandbox lets templates reach much of Python's own behaviour
        return {"error": f"the chat template cannot be run: {type(error).__name__}: {error}", "kind": "template"}


def _limit_memory(limit_bytes: int) -> None:
    """At most that much data more than now. Not all of the address space: GPU back ends reserve terabytes of it."""
    try:
        import resource
    except ImportError:
        return
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(ValueError, OSError):
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[5])
        limit = pages * os.sysconf("SC_PAGE_SIZE") + limit_bytes
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def _end_with_the_parent() -> None:
    """Ends this process, also in the middle of a render, when nobody can ask any more."""

    def watch() -> None:
        watched = select.poll()
        watched.register(0, 0)  # only that the other end was closed
        watched.poll()
        os._exit(1)

    if hasattr(select, "poll"):
        threading.Thread(target=watch, daemon=True).start()


def _alarm(seconds: float) -> None:
    """Ends this process when it has computed for so long, should the thread that watches not run; 0 takes it back."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, seconds)


def main(limit_bytes: int) -> None:
    """Serves until its standard input ends."""
    requests = sys.stdin.buffer
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # whatever else writes there would garble the answers
    _end_with_the_parent()
    _limit_memory(limit_bytes)
    with contextlib.suppress(OSError, KeyboardInterrupt):
        answers.write(frames.packed({"ready": True}))
        answers.flush()
        while (request := frames.read_frame(requests)) is not None:
            _alarm(request["limit_s"] + GRACE_S)
            answers.write(_framed(guarded_answer(request)))
            answers.flush()
            _alarm(0)


def _framed(given: dict[str, Any]) -> bytes:
    try:
        return frames.packed(given)
    except UnicodeEncodeError:
        return frames.packed({"error": "the chat template writes half a character", "kind": "template"})
    except MemoryError:
        return frames.packed({"error": "", "kind": "memory"})
