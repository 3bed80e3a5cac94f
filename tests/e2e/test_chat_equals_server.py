"""chat() says what the package's own llama-server says to the same conversation."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pyclover
from pyclover.engine.build_info import programs
from pyclover.files.find import find_model

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif("llama" not in programs(), reason="built without llama.cpp's programs"),
]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather", "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}  # fmt: skip
PARIS = {"name": "get_weather", "arguments": '{"city":"Paris"}'}
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


QUESTIONS = (
    "What is 12 + 7?", "Spell the word planet backwards.", "Sort 7, 3, 12.", "How many letters are in house?",
    "How many minutes are 3 hours?", "Is 17 even or odd?", "Which is larger, 20 or 31?", "Repeat after me: tree cloud",
)  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    **{f"thinking: {text}": {"messages": [user(text)]} for text in QUESTIONS},
    **{f"no thinking: {text}": {"messages": [user(text)], "thinking": False} for text in QUESTIONS},
    "system": {"messages": [{"role": "system", "content": "Answer briefly."}, user("What is 30 - 4?")]},
    "second turn": {
        "messages": [user("My name is Anna."), {"role": "assistant", "content": "Hi!"}, user("What is my name?")]
    },
    "tool call": {"messages": [user("What is the weather in Paris?")], "tools": [WEATHER]},
    "tool call, no thinking": {
        "messages": [user("What is the weather in Oslo?")], "tools": [WEATHER], "thinking": False,
    },
    "tool call demanded": {"messages": [user("What is 2 + 2?")], "tools": [WEATHER], "tool_choice": "required"},
    "tool result": {
        "messages": [
            user("What is the weather in Paris?"),
            {
                "role": "assistant", "content": "",
                "tool_calls": [{"id": "a", "type": "function", "function": PARIS}],
            },
            {"role": "tool", "tool_call_id": "a", "content": '{"temperature": 21, "sky": "sunny"}'},
        ],
        "tools": [WEATHER],
    },
    "schema": {"messages": [user("Give me a JSON object with name Ben and age 7.")], "response_format": PERSON},
    "schema, no thinking": {
        "messages": [user("Give me a JSON object with name Ben and age 7.")], "response_format": PERSON,
        "thinking": False,
    },
    "cut in the thought": {"messages": [user("What is 12 + 7?")], "max_tokens": 6},
    "cut in the answer": {"messages": [user("What is 12 + 7?")], "max_tokens": 22},
}  # fmt: skip


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = int(s.getsockname()[1])
    log = Path(tmp_path_factory.mktemp("server") / "log")
    command = [str(programs()["llama"]), "serve", "-m", str(find_model("tiny")), "--host", "127.0.0.1"]
    command += ["--port", str(port), "--jinja", "-c", "2048", "-np", "1", "-t", "1", "--no-webui"]
    with log.open("w") as out, subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT) as process:
        try:
            for _ in range(600):
                with contextlib.suppress(OSError):
                    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
                    connection.request("GET", "/health")
                    if connection.getresponse().status == 200:
                        break
                assert process.poll() is None, log.read_text()[-2000:]
                time.sleep(0.1)
            yield port
        finally:
            process.kill()


@pytest.fixture(scope="module")
def tiny() -> Iterator[pyclover.Clover]:
    with pyclover.Clover("tiny", n_threads=1) as clover:
        yield clover


def asked(port: int, case: dict[str, Any]) -> dict[str, Any]:
    body = {k: v for k, v in case.items() if k in ("messages", "tools", "tool_choice")}
    body |= {"temperature": 0, "max_tokens": case.get("max_tokens", 200)}
    body["chat_template_kwargs"] = {"enable_thinking": case.get("thinking", True)}
    if "response_format" in case:
        body["response_format"] = {"type": "json_schema", "json_schema": {"schema": case["response_format"]}}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    got: dict[str, Any] = json.loads(answer.read())
    assert answer.status == 200, got
    choice: dict[str, Any] = got["choices"][0]
    return choice


@pytest.mark.parametrize("name", CASES)
def test_the_same_answer(name: str, port: int, tiny: pyclover.Clover) -> None:
    case = CASES[name]
    theirs = asked(port, case)
    options = {k: v for k, v in case.items() if k != "messages"}
    ours = tiny.chat(case["messages"], temperature=0, **({"max_tokens": 200} | options))
    message = theirs["message"]
    assert ours.content == (message.get("content") or "")
    assert ours.reasoning == (message.get("reasoning_content") or "")
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    assert [(call.name, call.arguments) for call in ours.tool_calls] == [(c["name"], c["arguments"]) for c in calls]
    assert ours.finish_reason == theirs["finish_reason"]
