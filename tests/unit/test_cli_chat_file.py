"""Conversations as files, and what happens to a conversation when an answer fails."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest
from fake_chat import FakeClover

from pyclover.cli import chat_file
from pyclover.cli.chat_conversation import Conversation, Settings
from pyclover.engine.speculation import BlockDiffusion, DraftSelf
from pyclover.errors import ContextFullError, FileError, UsageError

HI: list[dict[str, Any]] = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello ☘"}]
SYSTEM: dict[str, Any] = {"role": "system", "content": "Be brief."}


@pytest.mark.parametrize(
    ("speculation", "written"),
    [
        (None, None),
        ("auto", "auto"),
        (
            DraftSelf(n_max=7, accept_ratio=0.9),
            {"type": "draft-self", "accept_delta": None, "block": None, "steps": 1, "p_min": 0.0, "adaptive": None,
             **{f.name: f.default for f in dataclasses.fields(DraftSelf)}, "n_max": 7, "accept_ratio": 0.9},
        ),
        (BlockDiffusion(), {"type": "block diffusion", "threshold": 0.95, "block": None, "max_steps": None}),
    ],
)  # fmt: skip
def test_what_is_saved_comes_back(tmp_path: Path, speculation: Any, written: Any) -> None:
    given = {"thinking": True, "think_budget": 20, "speculation": speculation}
    path = chat_file.save(str(tmp_path / "c.json"), [SYSTEM, *HI], model="m.gguf", settings=given)
    assert json.loads(path.read_text(encoding="utf-8")) == {
        "format": "pyclover chat 1",
        "model": "m.gguf",
        "settings": {"thinking": True, "think_budget": 20, "speculation": written},
        "messages": [SYSTEM, *HI],
    }
    saved = chat_file.load(str(path))
    assert (saved.system, saved.messages, saved.settings) == ("Be brief.", HI, given)
    assert os.listdir(tmp_path) == ["c.json"]


def test_a_file_that_is_there_keeps_its_mode_and_survives_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "c.json"
    path.write_text("old")
    path.chmod(0o640)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        with pytest.raises(FileError, match=r"cannot save to .*c\.json: No space left on device"):
            chat_file.save(str(path), HI, model="m", settings={})
    assert (path.read_text(), os.listdir(tmp_path)) == ("old", ["c.json"])
    chat_file.save(str(path), HI, model="m", settings={})
    assert path.stat().st_mode & 0o777 == 0o640
    assert json.loads(path.read_text(encoding="utf-8"))["messages"] == HI


def test_names_that_cannot_be_written(tmp_path: Path) -> None:
    for name in (str(tmp_path), str(tmp_path / "no" / "c.json"), "a\0b"):
        with pytest.raises(FileError):
            chat_file.save(name, HI, model="m", settings={})


def test_home_is_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert chat_file.save("~/c.json", HI, model="m", settings={}) == tmp_path / "c.json"
    assert chat_file.load("~/c.json").messages == HI


def test_the_home_of_somebody_unknown() -> None:
    for use in (
        lambda: chat_file.load("~no-such-user/c"),
        lambda: chat_file.save("~no-such-user/c", HI, model="", settings={}),
    ):
        with pytest.raises(FileError, match="there is no such user") as caught:
            use()
        assert caught.value.path == "~no-such-user/c"


def test_a_plain_list_of_messages_is_a_conversation(tmp_path: Path) -> None:
    path = tmp_path / "list.json"
    parts = {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
    path.write_text(json.dumps([parts, *HI]))
    saved = chat_file.load(str(path))
    assert (saved.system, saved.messages, saved.settings) == ("a\nb", HI, {})


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "is no saved conversation: it is not JSON"),
        ("\udcff", "is no saved conversation: it is not JSON"),
        ("[" * 100_000, "is no saved conversation: it is not JSON"),
        ("3", 'is no saved conversation: it has no list "messages"'),
        ('{"messages": {}}', 'is no saved conversation: it has no list "messages"'),
        ('{"messages": [], "settings": [1]}', 'is no saved conversation: "settings" is no object'),
        ('{"messages": [], "settings": {"thinking": "yes"}}', '"thinking" is none of true, false, null'),
        ('{"messages": [], "settings": {"thinking": 1}}', '"thinking" is none of true, false, null'),
        ('{"messages": [], "settings": {"think_budget": -1}}', '"think_budget" is neither a number'),
        ('{"messages": [], "settings": {"think_budget": true}}', '"think_budget" is neither a number'),
        ('{"messages": [], "settings": {"speculation": {"type": "magic"}}}', '"speculation" is none that this version'),
        ('{"messages": [], "settings": {"speculation": {"type": "draft-self", "x": 1}}}', '"speculation" is none that'),
        ('{"messages": [], "settings": {"speculation": {"type": "draft-self", "n_max": 99}}}', "n_max is 99"),
        ('[{"role": "boss", "content": "x"}]', "messages[0] has the role 'boss'"),
        ('[{"role": "user"}]', "messages[0].content is missing"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "c.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(FileError) as caught:
        chat_file.load(str(path))
    assert sentence in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"cannot load .*: No such file or directory"):
        chat_file.load(str(tmp_path / "absent.json"))


# ---- the conversation itself


def conversation() -> Conversation:
    return Conversation(FakeClover(), Settings(), system="Be brief.")  # type: ignore[arg-type]


def answer(chat: Conversation, text: str | None) -> str:
    return "".join(piece.content for piece in (chat.retry() if text is None else chat.ask(text)))


def test_a_failed_answer_leaves_the_conversation_as_it_was_and_can_be_retried() -> None:
    chat = conversation()
    answer(chat, "say one")
    before = list(chat.messages)
    with pytest.raises(ContextFullError):
        answer(chat, "full")
    assert chat.messages == before
    with pytest.raises(ContextFullError):
        answer(chat, None)  # the one that failed, not the one before
    assert answer(chat, "say two") == "two"
    assert [message["content"] for message in chat.messages] == ["say one", "one", "say two", "two"]


def test_an_answer_stopped_before_its_first_word_leaves_no_trace() -> None:
    chat = conversation()
    pieces = chat.ask("silent")
    next(pieces)
    chat.model.cancel()
    assert [piece.reply.finish_reason for piece in pieces if piece.reply] == ["cancelled"]
    assert chat.messages == []


def test_retry_replaces_the_last_answer_and_keeps_it_when_it_fails() -> None:
    chat = conversation()
    with pytest.raises(UsageError, match="no answer yet"):
        chat.retry()
    answer(chat, "say one")
    answer(chat, "recall")
    assert json.loads(answer(chat, None)) == [
        SYSTEM,
        {"role": "user", "content": "say one"},
        {"role": "assistant", "content": "one"},
        {"role": "user", "content": "recall"},
    ]
    assert len(chat.messages) == 4
    chat.replace([{"role": "user", "content": "full"}, *HI[1:]], system="")
    with pytest.raises(ContextFullError):
        answer(chat, None)
    assert chat.messages == [{"role": "user", "content": "full"}, *HI[1:]]


def test_a_budget_is_not_passed_on_when_thinking_is_off() -> None:
    assert Settings(thinking=False, think_budget=5).keywords() == {"thinking": False}
    assert Settings(think_budget=0).keywords() == {"think_budget": 0}
