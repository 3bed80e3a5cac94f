"""The commands of `clover-run chat`, one by one, without a terminal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fake_chat import FakeClover
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document

from pyclover.cli.chat_commands import COMMANDS, Commands, parsed
from pyclover.cli.chat_complete import CommandCompleter
from pyclover.cli.chat_conversation import Conversation, Settings
from pyclover.cli.chat_view import AnswerView
from pyclover.cli.output import Output
from pyclover.engine.speculation import BlockDiffusion, DraftSelf
from pyclover.errors import FileError, UsageError

HI: list[dict[str, Any]] = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]


class Desk:
    """A conversation and its commands; what they say is read from standard error."""

    def __init__(self, capsys: pytest.CaptureFixture[str], **settings: Any) -> None:
        self._capsys = capsys
        out = Output("table", color=False)
        self.chat = Conversation(FakeClover(), Settings(**settings))  # type: ignore[arg-type]
        self.view = AnswerView(out)
        self.commands = Commands(out, self.chat, self.view, model="m.gguf")
        self.after = ""

    def __call__(self, line: str) -> str:
        command = parsed(line)
        assert command is not None
        self.after = self.commands.run(*command)
        said = self._capsys.readouterr()
        assert said.out == ""
        return said.err

    def ask(self, text: str) -> None:
        for _ in self.chat.ask(text):
            pass


@pytest.fixture
def desk(capsys: pytest.CaptureFixture[str]) -> Desk:
    return Desk(capsys)


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("/help", ("help", "")),
        ("  /Think  ON ", ("think", "ON")),
        ("/system two\nlines ", ("system", "two\nlines")),
        ("/", ("", "")),
        ("/?", ("?", "")),
        ("/etc/passwd: what is it?", None),
        ("/usr/bin", None),
        ("//help", None),
        ("/2 is a half", None),
        ("what is /help?", None),
        ("", None),
    ],
)
def test_what_is_a_command(line: str, meant: tuple[str, str] | None) -> None:
    assert parsed(line) == meant


def test_help_names_every_command_of_the_design(desk: Desk) -> None:
    said = desk("/help")
    names = ["help", "system", "think", "draft", "stats", "save", "load", "retry", "clear", "quit", "color"]
    assert all(f"  /{name}" in said for name in names)
    assert sorted(names) == sorted(COMMANDS)
    assert "Alt-Enter" in said
    assert desk("/?") == said


@pytest.mark.parametrize(
    ("typed", "near"),
    [("/hlep", "help"), ("/sytem x", "system"), ("/lod f", "load"), ("/stat", "stats"), ("/", "help")],
)
def test_an_unknown_command_names_the_nearest(desk: Desk, typed: str, near: str) -> None:
    with pytest.raises(
        UsageError, match=f"^no command {typed.split()[0]}: /{near} is the nearest, and /help shows all$"
    ):
        desk(typed)


def test_ends_and_retries(desk: Desk) -> None:
    for line in ("/quit", "/exit", "/q"):
        desk(line)
        assert desk.after == "quit"
    desk("/retry")
    assert desk.after == "retry"
    desk("/stats")
    assert desk.after == "ask"
    for line in ("/quit now", "/clear all", "/retry 3"):
        with pytest.raises(UsageError, match="takes nothing behind it"):
            desk(line)


def test_system(desk: Desk) -> None:
    assert desk("/system") == "no system prompt.\n"
    assert desk("/system Be brief.\nReally.") == "system prompt: Be brief.\\nReally.\n"
    assert desk.chat.all_messages() == [{"role": "system", "content": "Be brief.\nReally."}]
    desk("/clear")
    assert desk.chat.system == "Be brief.\nReally."
    assert desk('/system ""') == "no system prompt.\n"
    assert desk.chat.all_messages() == []


def test_think(desk: Desk) -> None:
    settings = desk.chat.settings
    assert desk("/think") == "thinking: auto, as the model's template has it.\n"
    assert desk("/think on") == "thinking: on.\n"
    assert settings.keywords() == {"thinking": True}
    assert desk("/think 20") == "thinking: on, at most 20 tokens.\n"
    assert settings.keywords() == {"thinking": True, "think_budget": 20}
    assert desk("/think off") == "thinking: off.\n"
    assert settings.keywords() == {"thinking": False}
    assert desk("/think 0") == "thinking: auto, as the model's template has it, at most 0 tokens.\n"
    assert settings.keywords() == {"think_budget": 0}
    assert desk("/think auto") == "thinking: auto, as the model's template has it.\n"
    assert settings.keywords() == {}
    for wrong in ("-1", "²", "yes", "1.5"):
        with pytest.raises(UsageError, match="/think takes on, off, auto or a number"):
            desk(f"/think {wrong}")
    assert settings.keywords() == {}


def test_draft(desk: Desk) -> None:
    settings = desk.chat.settings
    assert desk("/draft") == "drafting: off.\n"
    assert desk("/draft 7") == "drafting: at most 7 tokens at a time, draft-self (lossless).\n"
    assert settings.speculation == DraftSelf(n_max=7)
    with pytest.raises(UsageError, match="n_max is 99"):
        desk("/draft 99")
    with pytest.raises(UsageError, match="n_max is 999999999"):
        desk("/draft " + "9" * 5000)
    with pytest.raises(UsageError, match="/draft takes a number of tokens, off or auto"):
        desk("/draft on")
    assert settings.speculation == DraftSelf(n_max=7)
    assert desk("/draft auto") == "drafting: auto, while it is measured to be faster.\n"
    assert settings.keywords() == {"speculation": "auto"}
    assert desk("/draft off") == "drafting: off.\n"
    assert settings.speculation is None


def test_draft_keeps_the_other_settings_of_drafts(capsys: pytest.CaptureFixture[str]) -> None:
    desk = Desk(capsys, speculation=DraftSelf(n_max=3, accept_ratio=0.9))
    assert desk("/draft 5") == "drafting: 5 tokens at a time, draft-self (relaxed: changes the text).\n"
    assert desk.chat.settings.speculation == DraftSelf(n_max=5, accept_ratio=0.9)
    desk.chat.settings.speculation = BlockDiffusion()
    assert desk("/draft") == "drafting: off, answers come by block diffusion.\n"


def test_color(desk: Desk) -> None:
    assert desk("/color") == "accepted drafts in green: on.\n"
    assert desk.view.color_drafts
    assert desk("/color off") == desk("/color off") == "accepted drafts in green: off.\n"
    with pytest.raises(UsageError, match="/color takes on or off, not 'red'"):
        desk("/color red")


def test_stats(desk: Desk) -> None:
    assert desk("/stats") == "nothing was answered yet.\n"
    desk.ask("think")
    desk.ask("draft")
    assert desk("/stats").splitlines() == [
        "last answer: draft-self (lossless): prompt 12 tokens, 120.0 tok/s; generated 4 tokens, 8.0 tok/s; accepted 3 "
        "of 4 drafted tokens in 2 rounds",
        "accepted up to and with place 1, 2, …: 100% 50%; 75% of all drafted tokens",
        "all answers: 2, 13 tokens, 7 of them for thinking; conversation: 4 messages, the last answer ended at token "
        "16 of 100",
        "thinking: auto, as the model's template has it; drafting: off.",
    ]


def test_save_and_load(desk: Desk, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a b.json"
    desk("/system Be brief.")
    desk("/think 9")
    desk("/draft 3")
    desk.ask("say one")
    assert desk(f"/save {path}") == f"saved 2 messages to {path}.\n"
    assert json.loads(path.read_text())["messages"][0] == {"role": "system", "content": "Be brief."}
    other = Desk(capsys)
    other.chat.replace(list(HI), system="x")
    said = other(f"/load {path}")
    assert said == (
        "loaded 2 messages; thinking: auto, as the model's template has it, at most 9 tokens; drafting: at most 3 "
        "tokens at a time, draft-self (lossless).\n"
    )
    assert other.chat.all_messages() == desk.chat.all_messages()
    assert other.chat.settings == desk.chat.settings
    path.write_text("{}")
    with pytest.raises(FileError, match="no saved conversation"):
        other(f"/load {path}")
    assert other.chat.all_messages() == desk.chat.all_messages()
    for line in ("/save", "/load"):
        with pytest.raises(UsageError, match=f"^{line} needs the name of a file behind it$"):
            other(line)


def test_clear(desk: Desk) -> None:
    desk.ask("say one")
    assert desk("/clear") == "the conversation begins anew.\n"
    assert desk.chat.messages == []
    with pytest.raises(UsageError, match="no answer yet"):
        desk.chat.retry()


# ---- completion


def offered(text: str) -> list[str]:
    found = CommandCompleter().get_completions(Document(text), CompleteEvent())
    return [text[: len(text) + c.start_position] + c.text for c in found]


def test_commands_and_their_words_are_completed(tmp_path: Path) -> None:
    assert offered("/s") == ["/system", "/stats", "/save"]
    assert offered("/TH") == ["/think"]
    assert offered("/think o") == ["/think on", "/think off"]
    assert offered("/draft ") == ["/draft off", "/draft auto"]
    (tmp_path / "talk.json").touch()
    assert offered(f"/load {tmp_path}/ta") == [f"/load {tmp_path}/talk.json"]
    for text in ("hello /", "", "/nothing x", "a\n/s", "/s\n/s", "/quit "):
        assert offered(text) == []
