"""`serve` as the official OpenAI client sees it."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from pyclover.engine.build_info import programs
from pyclover.engine.speculation import DraftSelf
from pyclover.serve.server import Server, start_server

openai = pytest.importorskip("openai", reason="needs the openai package")

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif("llama" not in programs(), reason="built without llama.cpp's programs"),
]

KEY = "sesame"
QUESTION: list[Any] = [{"role": "user", "content": "What is 12 + 7?"}]
# as the tiny model was trained: docs/tiny.md
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
N_CLIENTS, N_REQUESTS = 8, 3


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with start_server(
        "tiny", port=0, api_key=KEY, n_slots=4, speculation=DraftSelf(n_max=7, adaptive=False), fit=False
    ) as s:
        yield s


@pytest.fixture(scope="module")
def client(server: Server) -> Any:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0, timeout=60)


def ask(client: Any, messages: list[Any] = QUESTION, **more: Any) -> Any:
    return client.chat.completions.create(model="tiny", messages=messages, **{"temperature": 0, **more})


def written(answer: Any) -> str:
    """Thinking and answer."""
    message = answer.choices[0].message
    return f"{getattr(message, 'reasoning_content', '')}|{message.content}"


def slots(server: Server) -> list[dict[str, Any]]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection.request("GET", "/slots", headers={"Authorization": f"Bearer {KEY}"})
    found: list[dict[str, Any]] = json.loads(connection.getresponse().read())
    connection.close()
    return found


def test_chat_with_usage(client: Any) -> None:
    answer = ask(client)
    [choice] = answer.choices
    assert choice.finish_reason == "stop"
    assert "19" in choice.message.content
    assert "<think>" not in choice.message.content
    assert choice.message.reasoning_content
    usage = answer.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.completion_tokens > 0


def test_a_stream_is_the_same_text(client: Any) -> None:
    whole = ask(client)
    chunks = list(ask(client, stream=True, stream_options={"include_usage": True}))
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert "".join(d.content or "" for d in deltas) == whole.choices[0].message.content
    thought = "".join(getattr(d, "reasoning_content", None) or "" for d in deltas)
    assert thought.strip() == whole.choices[0].message.reasoning_content.strip()
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_drafts_do_not_change_the_text(client: Any) -> None:
    drafted = ask(client, max_tokens=60)
    assert drafted.timings["draft_n_accepted"] > 0
    with start_server("tiny", port=0, fit=False) as plain:
        other = openai.OpenAI(base_url=f"{plain.url}/v1", api_key="none", timeout=60)
        same = ask(other, max_tokens=60)
    assert "draft_n" not in same.timings
    assert same.choices[0].message.content == drafted.choices[0].message.content


def test_max_tokens_and_stop(client: Any) -> None:
    cut = ask(client, max_tokens=3)
    assert cut.choices[0].finish_reason == "length"
    assert cut.usage.completion_tokens == 3
    off = {"chat_template_kwargs": {"enable_thinking": False}}
    free = ask(client, extra_body=off).choices[0].message.content
    assert "=" in free
    stopped = ask(client, stop=["="], extra_body=off)
    assert stopped.choices[0].message.content == free[: free.index("=")]
    assert stopped.choices[0].finish_reason == "stop"


def test_a_seed_repeats_the_text(client: Any) -> None:
    wild = {"top_k": 0, "min_p": 0}  # the tiny model is sure of itself

    def text(seed: int) -> str:
        answer = ask(client, temperature=3, top_p=1, seed=seed, max_tokens=24, extra_body=wild)
        return written(answer)

    assert text(7) == text(7)
    assert len({text(seed) for seed in range(6)}) > 1


def check_logprobs(client: Any) -> list[tuple[str, float]]:
    answer = ask(client, logprobs=True, top_logprobs=3, max_tokens=12)
    content = answer.choices[0].logprobs.content
    assert len(content) == 12
    for token in content:
        assert token.logprob <= 0
        assert len(token.top_logprobs) == 3
        best = [t.logprob for t in token.top_logprobs]
        assert best == sorted(best, reverse=True)
        assert token.token == token.top_logprobs[0].token  # greedy
    return [(token.token, token.logprob) for token in content]


def test_logprobs(client: Any) -> None:
    """Of drafted tokens as of others: those of plain decoding."""
    drafted = check_logprobs(client)
    with start_server("tiny", port=0, fit=False) as plain:
        plainly = check_logprobs(openai.OpenAI(base_url=f"{plain.url}/v1", api_key="none", timeout=60))
    assert [token for token, _ in drafted] == [token for token, _ in plainly]
    assert [value for _, value in drafted] == pytest.approx([value for _, value in plainly], abs=1e-3)


def test_a_json_schema_is_kept(client: Any) -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    answer = ask(
        client,
        [{"role": "user", "content": "Write JSON with name Ada and age 36."}],
        response_format={"type": "json_schema", "json_schema": {"name": "person", "schema": schema}},
        max_tokens=200,
        extra_body={"chat_template_kwargs": {"enable_thinking": False}},
    )
    got = json.loads(answer.choices[0].message.content)
    assert set(got) == {"name", "age"}
    assert isinstance(got["age"], int)


def test_tools(client: Any) -> None:
    question: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]
    answer = ask(client, question, tools=[WEATHER], tool_choice="required", max_tokens=120)
    [call] = answer.choices[0].message.tool_calls
    assert answer.choices[0].finish_reason == "tool_calls"
    assert call.function.name == "get_weather"
    assert isinstance(json.loads(call.function.arguments)["city"], str)


def test_one_function_by_its_name(client: Any) -> None:
    clock = {"type": "function", "function": {"name": "get_time", "parameters": {"type": "object", "properties": {}}}}
    named = {"type": "function", "function": {"name": "get_time"}}
    question = [{"role": "user", "content": "What is the weather in Oslo?"}]
    answer = ask(client, question, tools=[WEATHER, clock], tool_choice=named, max_tokens=120)
    assert [call.function.name for call in answer.choices[0].message.tool_calls] == ["get_time"]
    with pytest.raises(openai.BadRequestError, match="'get_date', which is not among the tools"):
        ask(client, question, tools=[WEATHER], tool_choice={"type": "function", "function": {"name": "get_date"}})


def test_a_streamed_call_is_the_same_call(client: Any) -> None:
    question: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]
    asked: dict[str, Any] = {"tools": [WEATHER], "tool_choice": "required", "max_tokens": 120}
    [whole] = ask(client, question, **asked).choices[0].message.tool_calls
    choices = [chunk.choices[0] for chunk in ask(client, question, stream=True, **asked) if chunk.choices]
    parts = [call for choice in choices for call in choice.delta.tool_calls or ()]
    assert {part.index for part in parts} == {0}
    assert [part.function.name for part in parts if part.function.name] == [whole.function.name]
    assert [part.id for part in parts if part.id][:1] != [""]
    assert json.loads("".join(part.function.arguments or "" for part in parts)) == json.loads(whole.function.arguments)
    assert choices[-1].finish_reason == "tool_calls"


def test_a_class_of_pydantic_comes_back(client: Any) -> None:
    pydantic = pytest.importorskip("pydantic")
    person = pydantic.create_model("Person", name=(str, ...), age=(int, ...))
    answer = client.chat.completions.parse(
        model="tiny", messages=[{"role": "user", "content": "Write JSON with name Ada and age 36."}], temperature=0,
        response_format=person, max_tokens=200, extra_body={"chat_template_kwargs": {"enable_thinking": False}},
    )  # fmt: skip
    assert isinstance(answer.choices[0].message.parsed, person)


def test_completions_without_a_template(client: Any) -> None:
    """The older API: the prompt is the text itself."""
    prompt = "<|im_start|>user\nWhat is 12 + 7?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    asked: dict[str, Any] = {"model": "tiny", "prompt": prompt, "max_tokens": 64, "temperature": 0}
    whole = client.completions.create(**asked)
    assert "19" in whole.choices[0].text
    assert whole.choices[0].finish_reason == "stop"
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    parts = [chunk.choices[0].text for chunk in client.completions.create(stream=True, **asked) if chunk.choices]
    assert len(parts) > 1
    assert "".join(parts) == whole.choices[0].text


def test_what_the_client_sees_of_errors(server: Server, client: Any) -> None:
    wrong = openai.OpenAI(base_url=f"{server.url}/v1", api_key="wrong", max_retries=0)
    with pytest.raises(openai.AuthenticationError):
        ask(wrong)
    with pytest.raises(openai.BadRequestError, match="context"):
        ask(client, [{"role": "user", "content": "word " * 20_000}])
    with pytest.raises(openai.APIStatusError) as caught:
        client.embeddings.create(model="tiny", input="x")
    assert caught.value.status_code == 501
    assert "19" in ask(client).choices[0].message.content  # and goes on


def test_a_body_of_more_than_100_mib_is_refused(server: Server, client: Any) -> None:
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n"
    head += f"Content-Length: {101 << 20}\r\n\r\n"
    answer = b""
    # the server may hang up before all is sent
    with contextlib.suppress(ConnectionError), socket.create_connection(("127.0.0.1", server.port), timeout=60) as s:
        s.sendall(head.encode())
        for _ in range(101):
            s.sendall(b" " * (1 << 20))
        answer = s.recv(64)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 413")
    assert "19" in ask(client).choices[0].message.content


def test_a_client_that_leaves_stops_the_work(server: Server, client: Any) -> None:
    story: list[Any] = [{"role": "user", "content": "Tell me a story."}]
    stream = ask(client, story, stream=True, max_tokens=1500, extra_body={"ignore_eos": True})
    next(iter(stream))
    assert any(slot["is_processing"] for slot in slots(server))
    stream.close()
    end = time.monotonic() + 1
    while any(slot["is_processing"] for slot in slots(server)):
        assert time.monotonic() < end, "it goes on for nobody"
        time.sleep(0.02)


def test_many_clients_get_what_they_would_get_alone(client: Any) -> None:
    def question(i: int, j: int) -> list[Any]:
        return [{"role": "user", "content": f"What is {10 + 7 * i + j} + {3 + 5 * j + i}?"}]

    def text(i: int, j: int) -> str:
        return written(ask(client, question(i, j), max_tokens=32))

    alone = {(i, j): text(i, j) for i in range(N_CLIENTS) for j in range(N_REQUESTS)}
    together: dict[tuple[int, int], str] = {}

    def work(i: int) -> None:
        for j in range(N_REQUESTS):
            together[i, j] = text(i, j)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(N_CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(200)
        assert not thread.is_alive()
    assert together == alone
