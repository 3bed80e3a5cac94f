"""`clover-run chat` in a pipe, against a scripted model: exact text on both streams, exit codes, keywords passed on."""

from __future__ import annotations

import dataclasses
import json
import signal
import sys
from collections.abc import Iterator
from typing import Any

import fake_chat
import pytest
from click.testing import CliRunner, Result
from fake_chat import ChatPiece, FakeClover

from pyclover.chat import reply
from pyclover.cli.main import cli

SPEED = "plain: prompt 12 tokens, 120.0 tok/s; generated 4 tokens, 8.0 tok/s"


@pytest.fixture(autouse=True)
def model(monkeypatch: pytest.MonkeyPatch) -> type[FakeClover]:
    monkeypatch.setitem(sys.modules, "pyclover.clover", fake_chat.installed())
    monkeypatch.setattr(FakeClover, "opened", [])
    monkeypatch.setattr(FakeClover, "asked", [])
    monkeypatch.delenv("NO_COLOR", raising=False)
    return FakeClover


def test_the_script_has_the_shape_of_the_real_thing() -> None:
    for scripted, real in ((fake_chat.ChatPiece, reply.ChatPiece), (fake_chat.ChatReply, reply.ChatReply)):
        names = {field.name for field in dataclasses.fields(scripted)}
        assert names <= {field.name for field in dataclasses.fields(real)}
    assert isinstance(reply.ChatReply.message, property)


def run(*args: str, stdin: str | bytes = "") -> Result:
    return CliRunner().invoke(cli, ["chat", *args], input=stdin, prog_name="clover-run")


def settings(*args: str) -> dict[str, str]:
    result = run("-m", "x", *args, stdin="settings\n")
    assert result.exit_code == 0, result.stderr
    found: dict[str, str] = json.loads(result.stdout)
    return found


def test_every_line_is_a_message_of_one_conversation(model: type[FakeClover]) -> None:
    result = run("-m", "m.gguf", stdin="say hello ☘\r\n\n   \nthink\nsay a  b")
    assert (result.stdout, result.stderr, result.exit_code) == ("hello ☘\nthe answer\na  b\n", "", 0)
    assert model.opened == [("m.gguf", {})]
    assert model.asked[-1] == [
        {"role": "user", "content": "say hello ☘"},
        {"role": "assistant", "content": "hello ☘"},
        {"role": "user", "content": "think"},
        {"role": "assistant", "content": "the answer", "reasoning_content": "\nfirst second\nthird\n\n"},
        {"role": "user", "content": "say a  b"},
    ]


def test_a_line_like_a_command_is_a_message_in_a_pipe(model: type[FakeClover]) -> None:
    assert run("-m", "x", stdin="/quit\nsay on\n").stdout.endswith("on\n")
    assert model.asked[0] == [{"role": "user", "content": "/quit"}]


def test_single_takes_all_as_one_message(model: type[FakeClover]) -> None:
    assert run("-m", "x", "--single", stdin="say a\n\nb\n").stdout == "a\n\nb\n"
    assert model.asked == [[{"role": "user", "content": "say a\n\nb"}]]
    model.opened.clear()
    empty = run("-m", "x", "--single", stdin="\n")
    assert (empty.stdout, empty.exit_code) == ("", 2)
    assert empty.stderr.endswith("standard input is empty: pipe a message into it.\n")
    assert model.opened == []  # before a model is loaded


def test_no_message_is_no_failure() -> None:
    result = run("-m", "x", stdin="")
    assert (result.stdout, result.stderr, result.exit_code) == ("", "", 0)


def test_statistics_name_their_mode_and_come_only_when_asked_for() -> None:
    result = run("-m", "x", "-v", stdin="think\ncut\ndraft\n")
    assert result.stdout == "the answer\nshort\none two three four\n"
    assert result.stderr == (
        "plain: prompt 12 tokens, 120.0 tok/s; generated 9 tokens, 8.0 tok/s; thinking 7 tokens\n"
        f"{SPEED}; thinking 2 tokens (cut at the budget)\n"
        f"draft-self (lossless){SPEED.removeprefix('plain')}; accepted 3 of 4 drafted tokens in 2 rounds\n"
    )


def test_json_is_one_object_an_answer() -> None:
    result = run("-m", "x", "--json", stdin="cut\nnote\n")
    assert (result.stderr, result.exit_code) == ("", 0)
    first, second = map(json.loads, result.stdout.splitlines())
    assert {name: first[name] for name in ("content", "reasoning", "finish_reason", "n_reasoning", "budget_cut")} == {
        "content": "short", "reasoning": "so", "finish_reason": "stop", "n_reasoning": 2, "budget_cut": True,
    }  # fmt: skip
    assert (first["stats"]["mode"], first["stats"]["decode_tok_per_s"]) == ("plain", 8.0)
    assert second["notes"] == ["the template is odd"]


def test_notes_come_once() -> None:
    result = run("-m", "x", stdin="note\nnote\n")
    assert (result.stdout, result.stderr) == ("noted\nnoted\n", "note: the template is odd\n")


def test_an_answer_that_was_cut_says_why() -> None:
    full = run("-m", "x", stdin="length\n")
    assert (full.stdout, full.exit_code) == ("cut he\n", 0)
    assert full.stderr == (
        "note: the context of 100 tokens is full, so the answer was cut: a larger -c has room for more.\n"
    )
    assert run("-m", "x", "-n", "4", stdin="length\n").stderr == "note: the answer was cut after 4 tokens (-n).\n"


def test_a_thought_that_ate_the_answer_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(self: FakeClover, *_: Any) -> Iterator[Any]:
        yield ChatPiece(reasoning="hm")
        yield {"finish_reason": "length", "n_reasoning": 4}

    monkeypatch.setattr(FakeClover, "_muse", answer, raising=False)
    head = (
        "note: all 4 tokens went into thinking, and the answer has none left: --think-budget N ends the thought before"
    )
    assert run("-m", "x", "-n", "4", stdin="muse\n").stderr == f"{head} that, a larger -n has room for more.\n"
    assert run("-m", "x", stdin="muse\n").stderr == f"{head} that, a larger -c has room for more.\n"


def test_a_full_context_ends_a_pipe_with_a_sentence() -> None:
    result = run("-m", "x", stdin="say first\nfull\nsay never\n")
    assert (result.stdout, result.exit_code) == ("first\n", 1)
    assert result.stderr == "Error: the context is full (flag: -c 123 or more)\n"


def test_text_that_is_no_utf_8_is_named_by_its_line() -> None:
    result = run("-m", "x", stdin=b"say one\n\xff\n")
    assert (result.stdout, result.exit_code) == ("one\n", 2)
    assert result.stderr.endswith("standard input, line 2: not UTF-8 text (invalid start byte at byte 0).\n")


def test_without_a_model_a_hint_says_that_it_is_a_toy() -> None:
    result = run(stdin="say x\n")
    assert result.stdout == "x\n"
    assert result.stderr.startswith("note: no -m given, so this is tiny, the small model in the package: a toy ")
    assert result.stderr.count("\n") == 1
    assert FakeClover.opened == [("tiny", {})]
    assert run("--json", stdin="say x\n").stderr == ""


def test_colours_only_when_asked_for() -> None:
    assert "\x1b" not in run("-m", "x", "-v", stdin="draft\n").output


# ---- options


@pytest.mark.parametrize(
    ("args", "keywords"),
    [
        ((), {}),
        (("--reasoning", "off"), {"thinking": "False"}),
        (("-rea", "on", "--think-budget", "20"), {"thinking": "True", "think_budget": "20"}),
        (("--reasoning-budget", "0"), {"think_budget": "0"}),
        (("--think-budget", "-1", "-n", "-1"), {}),
        (("-n", "5", "-r", r"a\n", "-r", "b"), {"max_tokens": "5", "stop": r"('a\n', 'b')"}),
        (("--temp", "0", "-s", "3"), {"temperature": "0.0", "seed": "3"}),
        (("-j", '{"type": "object"}'), {"response_format": "{'type': 'object'}"}),
    ],
)
def test_keywords(args: tuple[str, ...], keywords: dict[str, str]) -> None:
    assert settings(*args) == keywords


def test_speculation() -> None:
    flags = ("--spec-type", "draft-self", "--spec-draft-n-max", "7", "--temp", "0")
    assert settings(*flags)["speculation"].startswith("DraftSelf(n_max=7,")
    assert FakeClover.opened[-1] == ("x", {"n_rs_seq": 7})
    assert settings("--spec-type", "auto", "--think-budget", "9") == {"speculation": "'auto'", "think_budget": "9"}
    assert settings("--diffusion")["speculation"].startswith("BlockDiffusion(")


def test_the_system_prompt_comes_first() -> None:
    answer = run("-m", "x", "--system", r"Be\tbrief.", stdin="recall\n").stdout
    assert json.loads(answer)[0] == {"role": "system", "content": "Be\tbrief."}
    as_it_is = run("-m", "x", "-sys", r"a\tb", "--no-escape", stdin="recall\n").stdout
    assert json.loads(as_it_is)[0]["content"] == r"a\tb"


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (("--reasoning", "off", "--think-budget", "5"), "--think-budget belongs to thinking"),
        (("--show-blocks", "--diffusion"), "--show-blocks is for a chat at a terminal."),
        (("-jf", "-"), "standard input is the chat: give the schema as a file."),
        (("--grammar", 'root ::= "a"'), "No such option"),
        (("--think-budget", "5", "--diffusion"), "--think-budget works token by token"),
        (("-r", ""), "-r: an empty text would end every answer at once."),
        (("--spec-draft-n-max", "7"), "--spec-draft-n-max belongs to --spec-type draft-self."),
        (("--think-budget", "-2"), "is not in the range"),
        (("--temp", "nan"), "temperature is nan"),
    ],
)
def test_wrong_usage(args: tuple[str, ...], sentence: str) -> None:
    result = run("-m", "x", *args, stdin="say x\n")
    assert (result.stdout, result.exit_code) == ("", 2)
    assert sentence in result.stderr
    assert FakeClover.opened == []  # before a model is loaded


# ---- Ctrl-C


def interrupting(monkeypatch: pytest.MonkeyPatch, *, times: int) -> None:
    def answer(self: FakeClover, *_: Any) -> Iterator[Any]:
        yield ChatPiece("begun ")
        for _ in range(times):
            signal.raise_signal(signal.SIGINT)
        assert self._cancelled.is_set()
        yield {"finish_reason": "cancelled"}

    monkeypatch.setattr(FakeClover, "_interrupt", answer, raising=False)


def test_ctrl_c_stops_the_answer_and_the_next_line_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    interrupting(monkeypatch, times=1)
    result = run("-m", "x", stdin="interrupt\nrecall\n")
    assert result.exit_code == 0
    first, second = result.stdout.splitlines()
    assert first == "begun "
    assert json.loads(second)[1] == {"role": "assistant", "content": "begun "}


def test_ctrl_c_in_the_last_answer_is_130(monkeypatch: pytest.MonkeyPatch) -> None:
    interrupting(monkeypatch, times=1)
    result = run("-m", "x", "--single", "--json", stdin="interrupt")
    assert result.exit_code == 130
    assert json.loads(result.stdout)["finish_reason"] == "cancelled"


def test_a_second_ctrl_c_ends_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    interrupting(monkeypatch, times=2)
    result = run("-m", "x", stdin="interrupt\nsay never\n")
    assert (result.stdout, result.exit_code) == ("begun \n", 130)
