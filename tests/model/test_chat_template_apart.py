"""The process that runs templates: hostile ones give one sentence in bounded time and memory; it ends well."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

import pyclover
from pyclover.chat import chatml
from pyclover.chat.apart import WALL_FACTOR, TemplateProcess
from pyclover.chat.prepared import Prepared, prepare
from pyclover.errors import ClosedError, TemplateError, UsageError

HELLO = [{"role": "user", "content": "hi"}]
SIMPLE = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[a]{% endif %}"
LIMIT_S = 3.0  # of processor time
LIMIT_BYTES = 256 << 20
SLACK_S = WALL_FACTOR * LIMIT_S + 30  # the machine may be busy; a template that is not stopped would run for hours

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def process() -> Iterator[TemplateProcess]:
    with TemplateProcess(time_limit_s=LIMIT_S, memory_limit_bytes=LIMIT_BYTES) as started:
        yield started


def rendered(process: TemplateProcess, template: str, messages: Any = HELLO, **more: Any) -> Prepared:
    return prepare(process, template, messages, **more)


class Peak(threading.Thread):
    """Watches the resident memory of the process."""

    def __init__(self, process: TemplateProcess) -> None:
        super().__init__(daemon=True)
        self._process, self._done = process, threading.Event()
        self._own = psutil.Process().cmdline()
        self.bytes = 0

    def run(self) -> None:
        while not self._done.wait(0.01):
            with contextlib.suppress(psutil.Error, TypeError):
                watched = psutil.Process(self._process.pid)
                size = watched.memory_info().rss
                if watched.cmdline() != self._own:  # a fork of the tests, about to become the new process
                    self.bytes = max(self.bytes, size)

    def stop(self) -> int:
        self._done.set()
        self.join()
        return self.bytes


DOUBLING = "{% set n = namespace(s='aaaaaaaa') %}{% for i in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}{{ n.s }}"
HOSTILE = {
    "attribute walk": ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "unsafe"),
    "format string": ("{{ '{0.__class__.__mro__}'.format('') }}", "unsafe|format"),
    "import": ("{% import 'os' as os %}{{ os.system('id') }}", "no loader|cannot be used"),
    "include": ("{% include '/etc/passwd' %}", "no loader|cannot be used"),
    "loops in loops": ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "more than"),
    "doubling": (DOUBLING, "more than"),
    "one huge string": ("{{ 'a' * 10**10 }}", "more than"),
    "huge range": ("{% for a in range(10**12) %}x{% endfor %}", "Range too big|more than"),
    "huge list": ("{{ [0] * 10**10 }}", "more than|fails"),
    "huge number": ("{{ 9**(10**10) }}", "more than|fails|cannot"),
    "much text": ("{% for a in range(99999) %}{{ 'a' * 9999 }}{% endfor %}", "more than"),
    "macro without end": ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "too deeply"),
    "nested source": ("{{ " + "(" * 100_000 + "1" + ")" * 100_000 + " }}", "too deeply|damaged|more than|cannot|fails"),
    "nested lists": ("{{ " + "[" * 50_000 + "]" * 50_000 + " }}", "too deeply|damaged|more than|cannot|fails"),
    "damaged": ("{% for %}", "damaged in line 1"),
    "half a character": (r"{{ '\ud800' }}", "half a character|cannot|fails"),
    "kills itself": ("{{ messages.clear() }}", "unsafe|not safely|cannot"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_template_is_one_sentence_in_bounded_time_and_memory(process: TemplateProcess, name: str) -> None:
    template, said = HOSTILE[name]
    rendered(process, SIMPLE)
    start_bytes = psutil.Process(process.pid).memory_info().rss
    peak = Peak(process)
    peak.start()
    began = time.monotonic()
    try:
        with pytest.raises(TemplateError, match=said) as caught:
            rendered(process, template)
    finally:
        took, most = time.monotonic() - began, peak.stop()
    assert took < LIMIT_S + SLACK_S
    assert most - start_bytes < LIMIT_BYTES * 3 // 2
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 2000
    assert rendered(process, SIMPLE).prompt == "[user]hi[a]"  # the next call works


@pytest.mark.parametrize(
    "template",
    ["{{ ''|attr('__class__')|attr('__mro__') }}", "{{ raise_exception.__globals__ }}", "{{ self.__dict__ }}"],
)
def test_walks_that_lead_nowhere(process: TemplateProcess, template: str) -> None:
    try:
        assert rendered(process, template).prompt == ""
    except TemplateError as error:
        assert "unsafe" in str(error) or "undefined" in str(error)  # noqa: PT017 - either is good


def test_a_template_that_is_well_behaved_for_a_while(process: TemplateProcess) -> None:
    # nothing that llama.cpp tries a template with has this word
    trap = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if 'boom' in messages[-1].content %}" + (
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}{% endif %}"
    )
    more = [*HELLO, {"role": "assistant", "content": "ho"}, {"role": "user", "content": "boom"}]
    assert rendered(process, trap).prompt == "[user]hi"
    assert rendered(process, trap, more[:2]).prompt == "[user]hi[assistant]ho"
    with pytest.raises(TemplateError, match=r"more than .* s and was stopped"):
        rendered(process, trap, more)
    assert rendered(process, trap).prompt == "[user]hi"


def test_one_process_serves_many_calls_and_a_dead_one_is_replaced(process: TemplateProcess) -> None:
    assert TemplateProcess().pid is None  # not started before it is needed
    rendered(process, SIMPLE)
    first = process.pid
    rendered(process, SIMPLE)
    assert first is not None
    assert process.pid == first
    os.kill(first, signal.SIGKILL)
    while psutil.Process(first).status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    assert rendered(process, SIMPLE).prompt == "[user]hi[a]"
    assert process.pid != first


def test_close_ends_the_process_and_leaves_no_zombie() -> None:
    process = TemplateProcess()
    rendered(process, SIMPLE)
    pid = process.pid
    assert pid is not None
    process.close()
    process.close()
    assert not psutil.pid_exists(pid)
    with pytest.raises(ClosedError):
        rendered(process, SIMPLE)


def test_threads_get_their_own_answers(process: TemplateProcess) -> None:
    got: dict[int, str] = {}

    def ask(i: int) -> None:
        got[i] = rendered(process, SIMPLE, [{"role": "user", "content": str(i)}]).prompt

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert got == {i: f"[user]{i}[a]" for i in range(8)}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_after_a_fork_each_has_its_own_process() -> None:
    script = f"""
import os
from pyclover.chat.apart import TemplateProcess
from pyclover.chat.prepared import prepare
p = TemplateProcess()
def ask():
    assert prepare(p, {SIMPLE!r}, {HELLO!r}).prompt == "[user]hi[a]"
    return p.pid
mine = ask()
child = os.fork()
if child == 0:
    assert p.pid is None
    assert ask() != mine
    raise SystemExit(7)  # ends as a program does: the parent's process must survive it
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert ask() == mine
print("good")
"""
    done = run(script)
    assert (done.returncode, done.stdout, done.stderr) == (0, "good\n", "")


ELSEWHERE = tempfile.gettempdir()  # in the checkout Python would find the source folder first


def run(script: str, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        **{"cwd": ELSEWHERE, **more},
    )


def test_nothing_is_left_and_nothing_is_said_when_the_program_ends(tmp_path: Any) -> None:
    script = f"""
from pyclover.chat.apart import TemplateProcess
from pyclover.chat.prepared import prepare
p = TemplateProcess()
prepare(p, {SIMPLE!r}, {HELLO!r})
print(p.pid)
"""
    done = run(script, cwd=tmp_path, env={**os.environ, "PYTHONWARNINGS": "always"})
    assert (done.returncode, done.stderr) == (0, "")
    assert not psutil.pid_exists(int(done.stdout))


def test_it_ends_when_the_program_is_killed_even_inside_a_loop() -> None:
    loop = HOSTILE["loops in loops"][0]
    script = f"""
import threading, time
from pyclover.chat.apart import TemplateProcess
from pyclover.chat.prepared import prepare
p = TemplateProcess(time_limit_s=1)
prepare(p, {SIMPLE!r}, {HELLO!r})
print(p.pid, flush=True)
prepare(p, {loop!r}, {HELLO!r})
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=ELSEWHERE) as program:
        assert program.stdout is not None
        worker = psutil.Process(int(program.stdout.readline()))
        time.sleep(0.3)
        program.kill()
    worker.wait(60)  # raises when it goes on


def test_ctrl_c_in_the_terminal_is_not_for_it(process: TemplateProcess) -> None:
    rendered(process, SIMPLE)
    assert process.pid is not None
    assert os.getpgid(process.pid) != os.getpgid(0)


def test_ctrl_c_during_a_render_does_not_mix_up_answers(process: TemplateProcess) -> None:
    rendered(process, SIMPLE)
    timer = threading.Timer(0.3, signal.raise_signal, [signal.SIGINT])
    timer.start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        rendered(process, HOSTILE["loops in loops"][0])
    assert time.monotonic() - began < SLACK_S
    assert rendered(process, SIMPLE).prompt == "[user]hi[a]"


def children() -> list[psutil.Process]:
    return psutil.Process().children()


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
def test_ctrl_c_while_it_starts_or_ends_loses_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    before = {child.pid for child in children()}
    real_start, real_kill = subprocess.Popen.__init__, subprocess.Popen.kill
    interrupted: list[str] = []

    def interrupt(where: str) -> None:
        if where not in interrupted:
            interrupted.append(where)
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0)  # a place where Python calls its handlers

    def start(self: Any, *args: Any, **more: Any) -> None:
        real_start(self, *args, **more)
        interrupt("start")

    def kill(self: Any) -> None:
        interrupt("kill")
        real_kill(self)

    monkeypatch.setattr(subprocess.Popen, "__init__", start)
    monkeypatch.setattr(subprocess.Popen, "kill", kill)
    process = TemplateProcess()
    with pytest.raises(KeyboardInterrupt):
        rendered(process, SIMPLE)
    assert interrupted == ["start", "kill"]
    assert {child.pid for child in children()} == before
    assert rendered(process, SIMPLE).prompt == "[user]hi[a]"
    interrupted.remove("kill")
    with pytest.raises(KeyboardInterrupt):
        process.close()
    assert {child.pid for child in children()} == before


def test_an_answer_that_nobody_took_is_not_that_of_the_next_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second Ctrl-C can come before the process of the first call has been ended."""
    with TemplateProcess() as process:
        assert rendered(process, SIMPLE).prompt == "[user]hi[a]"
        pid = process.pid
        with monkeypatch.context() as patch:
            patch.setattr(process, "_drop", lambda: None)
            patch.setattr("pyclover.chat.apart._frame_size", lambda got: 1 / 0)  # while it waits for the answer
            with pytest.raises(ZeroDivisionError):
                rendered(process, SIMPLE, [{"role": "user", "content": "old"}])
        assert process.pid == pid
        assert rendered(process, SIMPLE).prompt == "[user]hi[a]"
        assert process.pid != pid


def test_the_fallback_opens_a_thought_and_says_that_it_is_one(process: TemplateProcess) -> None:
    question, result = {"role": "user", "content": "q"}, {"role": "tool", "content": "r", "tool_call_id": "1"}
    old = {"role": "assistant", "content": "a", "reasoning_content": "old thought"}
    call = {"id": "1", "function": {"name": "f", "arguments": {"x": 1}}}
    calling = {"role": "assistant", "content": None, "reasoning_content": "new thought", "tool_calls": [call]}
    got = prepare(process, None, [question, old, question, calling, result], thinking=True)
    assert got.prompt == (
        "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\na<|im_end|>\n<|im_start|>user\nq<|im_end|>\n"
        '<|im_start|>assistant\n<think>\nnew thought\n</think>\n\n<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n'
        "</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\nr\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n<think>\n"
    )
    assert (got.thinking_open, got.thinking) == (True, True)
    assert len(got.notes) == 1
    assert "has no chat template" in got.notes[0]
    off = prepare(process, "", [question], thinking=False)
    assert off.prompt.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert (off.thinking_open, off.thinking) == (False, False)


FUNCTION = {
    "type": "function",
    "function": {
        "name": "f",
        "description": "d",
        "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]},
    },
}


@pytest.mark.parametrize("thinking", [True, False])
@pytest.mark.parametrize("tools", [None, [FUNCTION]])
def test_llama_cpp_reads_answers_in_the_fallbacks_form(process: TemplateProcess, thinking: bool, tools: Any) -> None:
    got = prepare(process, None, HELLO, thinking=thinking, tools=tools)
    thought = "I think.\n</think>\n\n" if thinking else ""
    call = '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>' if tools else ""
    message = parsed(got, f"{thought}Hello.{call}")
    assert message["content"].strip() == "Hello."
    assert message["reasoning_content"].strip() == ("I think." if thinking else "")
    assert [(c["name"], c["arguments"].replace(" ", "")) for c in message["tool_calls"]] == (
        [("f", '{"x":1}')] if tools else []
    )


def parsed(prepared: Prepared, text: str) -> Any:
    import json

    from pyclover._native import buffer, check, ffi, lib, taken

    out = ffi.new("pc_chat_parser **")
    check(lib.pc_chat_parser_create(json.dumps(dict(prepared.native)).encode(), out))
    try:
        with buffer() as message:
            data = text.encode()
            check(lib.pc_chat_parser_parse(out[0], data, len(data), 0, message))
            return json.loads(taken(message))
    finally:
        lib.pc_chat_parser_free(out[0])


def test_what_cannot_be_honoured_is_an_error(process: TemplateProcess) -> None:
    with pytest.raises(UsageError, match="thinking cannot be on: this model's chat template knows none"):
        rendered(process, SIMPLE, thinking=True)
    head, switch = chatml.TEMPLATE.split("    {%- if enable_thinking is defined", 1)
    always = head + "    {{- '<think>\\n' }}" + switch.split("{%- endif %}", 1)[1]
    assert rendered(process, always).thinking_open
    assert rendered(process, always, thinking=True).notes == ()
    with pytest.raises(UsageError, match="thinking cannot be off"):
        rendered(process, always, thinking=False)
    never = head + switch.split("{%- endif %}", 1)[1]  # the model opens its thought itself
    got = rendered(process, never, thinking=False)
    assert not got.thinking_open
    assert "has no switch for thinking" in got.notes[0]


def test_a_required_tool_by_name(process: TemplateProcess) -> None:
    other = {**FUNCTION, "function": {**FUNCTION["function"], "name": "other_tool"}}
    choice = {"type": "function", "function": {"name": "f"}}
    got = prepare(process, None, HELLO, tools=[FUNCTION, other], tool_choice=choice)
    assert "other_tool" in got.prompt  # the model knows both
    assert "other_tool" not in got.native["grammar"]  # and may call one
    assert not got.native["grammar_lazy"]
    free = prepare(process, None, HELLO, tools=[FUNCTION, other])
    assert "other_tool" in free.native["grammar"]
    assert free.native["grammar_lazy"]


def test_variables(process: TemplateProcess) -> None:
    template = "{{ messages[0].content }}{{ colour }}{{ enable_thinking }}"
    assert rendered(process, template, variables={"colour": "red"}).prompt.startswith("hired")
    for wrong, said in [
        ({"messages": []}, "cannot set 'messages'"),
        ({"x": {1}}, "no form in JSON"),
        ({1: 2}, "no form in JSON"),
        ("x", "must be a mapping"),
        ({"enable_thinking": "yes"}, "must be true or false"),
    ]:
        with pytest.raises(UsageError, match=said):
            rendered(process, template, variables=wrong)
    with pytest.raises(UsageError, match="give one"):
        rendered(process, template, variables={"enable_thinking": True}, thinking=False)


def test_tokens_that_the_tokenizer_adds_are_taken_off_the_ends(process: TemplateProcess) -> None:
    template = "{{ bos_token }}{{ messages[0].content }}{{ bos_token }}{{ eos_token }}"
    tokens = {"bos_token": "<s>", "eos_token": "</s>"}
    assert rendered(process, template, **tokens).prompt == "<s>hi<s></s>"
    assert rendered(process, template, **tokens, strip_bos=True).prompt == "hi<s></s>"
    assert rendered(process, template, **tokens, strip_bos=True, strip_eos=True).prompt == "hi<s>"


def test_the_models_own_template_in_the_package() -> None:
    with pyclover.Clover("tiny", n_ctx=256, n_threads=1) as m, TemplateProcess() as process:
        got = prepare(process, m.chat_template, HELLO)
    assert got.prompt == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<think>\n"
    assert (got.thinking_open, got.notes) == (True, ())
