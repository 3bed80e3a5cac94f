"""`clover-run chat` in a terminal of its own, with a scripted model: keys, pastes, Ctrl-C, resizing, endings."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

if sys.platform == "win32":
    pytest.skip("pseudo-terminals are not to be had here", allow_module_level=True)

from pty_program import WAIT_S, PtyProgram, in_terminal
from support import ROOT

PROGRAM = [sys.executable, str(ROOT / "tests" / "fake_chat.py"), "chat", "-m", "x"]
SPEED = "plain: prompt 12 tokens, 120.0 tok/s; generated 4 tokens, 8.0 tok/s"
PASTE = "\x1b[200~{}\x1b[201~"
WIDE = "日本語😀é " * 30


def environment(folder: Path) -> dict[str, str]:
    env = {**os.environ, "TERM": "xterm-256color", "XDG_STATE_HOME": str(folder / "state"), "PYTHONUTF8": "1"}
    env.pop("NO_COLOR", None)
    return env


@pytest.fixture
def chat(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[PtyProgram]:
    flags = getattr(request, "param", ())
    with in_terminal([*PROGRAM, *flags], env=environment(tmp_path), cwd=tmp_path) as program:
        program.expect("/help shows the commands, Ctrl-D ends the chat.\n", timeout=200)
        program.prompt()
        yield program


def answered(program: PtyProgram, keys: str) -> str:
    """Types a line and reads up to the next prompt; returns what came behind the line, without the marks of pastes."""
    program.type(keys)
    program.expect("\x1b[?2004l")  # the editor is done
    return re.sub(r"\x1b\[\?2004[hl]", "", program.prompt().rpartition("\x1b[?2004h")[0])


def said(program: PtyProgram, command: str) -> str:
    """Gives a command; returns what it said."""
    return answered(program, command + "\r")


def recalled(program: PtyProgram) -> list[str]:
    """What the conversation holds when it is asked."""
    answer = answered(program, "recall\r").partition("\n")[0]
    return [message["content"] for message in json.loads(answer)][:-1]


def test_a_talk_with_every_command(chat: PtyProgram, tmp_path: Path) -> None:
    assert answered(chat, "say hello ☘ 日本\r") == f"hello ☘ 日本\n\x1b[2m{SPEED}\x1b[0m\n"
    assert answered(chat, PASTE.format("say one\r\n/quit\n three\n") + "\r").startswith("one\n/quit\n three\n\x1b[2m")
    assert answered(chat, "say a\\\rb\x1b\rc\r").startswith("a\nb\nc\n")
    assert answered(chat, "think\r").startswith("\x1b[2mfirst second\nthird\x1b[0m\nthe answer\n")
    assert recalled(chat) == [
        "say hello ☘ 日本", "hello ☘ 日本", "say one\n/quit\n three", "one\n/quit\n three", "say a\nb\nc", "a\nb\nc",
        "think", "the answer",
    ]  # fmt: skip

    assert "  /draft N|off|auto" in said(chat, "/help")
    assert said(chat, "/clear") == "the conversation begins anew.\n"
    assert said(chat, "/system Be brief.") == "system prompt: Be brief.\n"
    assert said(chat, "/think 20").startswith("thinking: auto, ")
    assert said(chat, "/draft 7") == "drafting: at most 7 tokens at a time, draft-self (lossless).\n"
    keywords = json.loads(answered(chat, "settings\r").partition("\n")[0])
    assert keywords["think_budget"] == "20"
    assert keywords["speculation"].startswith("DraftSelf(n_max=7,")
    assert said(chat, "/color on") == "accepted drafts in green: on.\n"
    assert answered(chat, "draft\r").startswith("one\x1b[32m two three\x1b[0m four\n\x1b[2mdraft-self (lossless): ")
    assert said(chat, "/save c.json") == "saved 4 messages to c.json.\n"
    assert said(chat, "/clear") == "the conversation begins anew.\n"
    assert said(chat, "/load c.json").startswith("loaded 4 messages; ")
    assert answered(chat, "/retry\r").startswith("one\x1b[32m two three\x1b[0m four\n")
    assert "all answers: 8," in said(chat, "/stats")
    assert (
        said(chat, "/ststs") == "\x1b[31mError:\x1b[0m no command /ststs: /stats is the nearest, and /help shows all\n"
    )
    chat.type("/qu\t")
    chat.expect("it")
    chat.type("\r")
    assert chat.finish() == 0
    assert chat.echoes()

    history = tmp_path / "state" / "pyclover" / "chat_history"
    if sys.platform == "linux":
        assert history.stat().st_mode & 0o777 == 0o600
        assert "\n+say one\n+/quit\n+ three\n" in history.read_text(encoding="utf-8")
    saved = json.loads((tmp_path / "c.json").read_text(encoding="utf-8"))
    assert [m["content"] for m in saved["messages"]][::3] == ["Be brief.", "draft"]


def test_ctrl_c_stops_the_answer_and_not_the_program(chat: PtyProgram) -> None:
    chat.type("endless\r")
    chat.expect("word 3 ")
    started = time.monotonic()
    chat.type("\x03")
    rest = chat.expect("\x1b[2mstopped.\x1b[0m\n")
    assert time.monotonic() - started < 20  # a second on a machine that is not busy
    assert "^C" not in rest
    assert SPEED in chat.prompt()
    chat.type("silent\r")
    chat.expect("\x1b[?2004h")
    chat.type("\x03\x03\x03")  # impatience ends nothing
    chat.expect("stopped.")
    chat.prompt()
    chat.settle()  # the terminal may send the last ones when the answer has ended already
    first, partial = recalled(chat)
    assert first == "endless"
    assert re.fullmatch(r"word 1 word 2 word 3 (word \d+ )*", partial)

    chat.type("half a line\x03")
    chat.expect("\x1b[?2004l")
    chat.prompt()
    chat.type("\x03")
    chat.expect("(Ctrl-C once more, or Ctrl-D, ends the chat)\n")
    chat.prompt()
    assert answered(chat, "say still here\r").startswith("still here\n")
    chat.type("\x03")
    chat.expect("ends the chat)\n")
    chat.prompt()
    chat.type("\x03")
    assert chat.finish() == 130
    assert chat.echoes()


def test_what_is_typed_during_an_answer_waits_for_its_end(chat: PtyProgram) -> None:
    chat.type("slow " + "x" * 60 + "\r")
    chat.expect("\x1b[?2004hx")
    chat.type("say la\x1b[D\x1b[Dter\x05\r" + PASTE.format("say two\nlines") + "\r")
    rest = chat.expect("\n")
    assert rest == "x" * 59 + "\n"
    chat.expect("terla\n")
    chat.expect("\x1b[?2004htwo\nlines\n")
    chat.prompt()
    assert recalled(chat)[2:] == ["say terla", "terla", "say two\nlines", "two\nlines"]


def test_the_window_may_change_during_an_answer(chat: PtyProgram) -> None:
    terminal = chat.watch(80, 24)
    chat.type(f"slow {WIDE}\r")
    chat.expect("\x1b[?2004h日本")
    for width, height in ((31, 10), (100, 30), (20, 6)):
        chat.resize(width, height)
        chat.expect("語")
    rest = chat.expect("\n")
    assert "\x1b" not in rest  # the terminal alone wraps
    chat.prompt()
    assert answered(chat, "say ok\r").startswith("ok\n")
    lines = terminal.scrollback + terminal.rows
    shown = "".join(cell.text for row in lines for cell in row.cells if cell is not None and cell.text != "right half")
    assert shown.count(WIDE.strip()) == 1  # the answer; the editor has indented the lines of the question
    assert max(len(row.cells) for row in lines) == 20


@pytest.mark.parametrize("chat", [("--no-history", "--color", "off", "--hide-thinking")], indirect=True)
def test_a_full_context_keeps_the_conversation_and_ctrl_d_ends_it(chat: PtyProgram, tmp_path: Path) -> None:
    answered(chat, "say one\r")
    assert answered(chat, "full\r") == (
        "Error: the conversation needs 123 tokens and the context holds 100: /clear begins a new one, clover-run chat "
        "-c 123 or more has room (/save keeps this one); nothing was lost.\n"
    )
    assert "note: the context of 100 tokens is full, so the answer was cut: /clear " in answered(chat, "length\r")
    assert recalled(chat) == ["say one", "one", "length", "cut he"]
    assert answered(chat, "think\r").startswith("thinking ...\nthe answer\n")
    first, second = answered(chat, "note\r"), answered(chat, "note\r")
    assert ("note: the template is odd\n" in first, "note: the template is odd" in second) == (True, False)
    chat.type("\x04")
    assert chat.finish() == 0
    assert not (tmp_path / "state").exists()
    assert "\x1b[2m" not in chat.seen
    assert "\x1b[31m" not in chat.seen


def test_being_ended_from_outside_leaves_the_terminal_in_order(chat: PtyProgram) -> None:
    chat.type("endless\r")
    chat.expect("word 2")
    assert not chat.echoes()
    chat.process.send_signal(signal.SIGTERM)
    assert chat.finish() in (143, -signal.SIGTERM)
    assert chat.echoes()
    assert chat.seen.rstrip().endswith("\x1b[?2004l")


def test_answers_can_go_to_a_file(tmp_path: Path) -> None:
    shell = ["/bin/sh", "-c", 'exec "$@" > answers.txt', "sh", *PROGRAM]
    with in_terminal(shell, env=environment(tmp_path), cwd=tmp_path) as chat:
        chat.prompt()
        assert answered(chat, "think\r") == (
            f"\x1b[2mfirst second\nthird\x1b[0m\n\x1b[2m{SPEED.replace(' 4 tok', ' 9 tok')}; thinking 7 tokens\x1b[0m\n"
        )
        chat.type("\x04")
        assert chat.finish() == 0
    assert (tmp_path / "answers.txt").read_text() == "the answer\n"


def test_the_model_in_the_package(tmp_path: Path) -> None:
    found = shutil.which("clover-run", path=str(Path(sys.executable).parent))
    program = [found] if found else [sys.executable, "-m", "pyclover.cli.main"]
    flags = ("--temp", "0", "--ignore-eos", "--spec-type", "draft-self", "--no-spec-draft-adaptive", "--no-history")
    with in_terminal([*program, "chat", *flags], env=environment(tmp_path), cwd=tmp_path) as chat:
        chat.expect("note: no -m given, so this is tiny, the small model in the package: a toy")
        chat.prompt()
        chat.type("/think off\r")
        chat.expect("thinking: off.\n")
        for question, answer in (("What is 12 + 7?", "19"), ("What is 5 + 3?", " ")):  # Ctrl-C reaches no helper of it
            chat.prompt()
            chat.type(f"{question}\r")
            chat.expect("\x1b[?2004h")
            chat.expect(answer)
            chat.type("\x03")
            chat.expect("stopped.")
            chat.expect("draft-self (lossless): prompt ")
        chat.prompt()
        chat.type("\x04")
        assert chat.finish() == 0


def test_in_a_terminal_multiplexer(tmp_path: Path) -> None:
    tmux = shutil.which("tmux")
    if tmux is None:
        pytest.skip("there is no tmux here")
    socket = str(tmp_path / "tmux")
    env = environment(tmp_path)
    env.pop("TMUX", None)

    def run(*args: str, stdin: str | None = None) -> str:
        done = subprocess.run(
            [tmux, "-f", "/dev/null", "-S", socket, *args], input=stdin, capture_output=True, text=True, env=env,
            cwd=tmp_path, check=True, timeout=60,
        )  # fmt: skip
        return done.stdout

    def wait_for(text: str, *, times: int = 1) -> str:
        end = time.monotonic() + WAIT_S
        while (shown := run("capture-pane", "-p", "-J", "-S", "-", "-t", "chat")).count(text) < times:
            assert time.monotonic() < end, shown
            time.sleep(0.2)
        return shown

    line = " ".join(PROGRAM) + "; echo ended with $?; sleep 60"
    run("new-session", "-d", "-s", "chat", "-x", "60", "-y", "15", line)
    try:
        wait_for("\n>")
        run("load-buffer", "-", stdin="say 日本語\n/quit\nlast line")
        run("paste-buffer", "-p", "-t", "chat")
        wait_for("last line")
        run("send-keys", "-t", "chat", "Enter")
        shown = wait_for("tok/s", times=2)
        assert shown.count("日本語\n/quit\nlast line\n") == 1  # the answer; the question has its lines indented
        assert "  /quit\n  last line\n" in shown
        run("send-keys", "-t", "chat", "endless", "Enter")
        wait_for("word 30 ")
        run("resize-window", "-t", "chat", "-x", "33", "-y", "9")
        shown = wait_for("word 60 ")
        run("send-keys", "-t", "chat", "C-c")
        shown = wait_for("stopped.")
        words = re.search(r"word 1 .*", shown)
        assert words is not None
        assert words[0].split()[1::2] == [str(n + 1) for n in range(len(words[0].split()) // 2)]
        run("send-keys", "-t", "chat", "C-d")
        assert ">\nended with 0\n" in wait_for("ended with")
    finally:
        run("kill-server")
