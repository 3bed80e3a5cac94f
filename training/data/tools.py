"""Tool calls and what is said after the result. Tools have several names, so that the list has to be read."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

from training.data.base import Message, Sample, ask, user
from training.data.facts import FACTS
from training.data.words import CITIES, NAMES, any_word

Call = tuple[str, dict[str, Any], str, dict[str, Any], str]  # question, arguments in a fixed order, key, result, reply

WEATHER = (
    "What is the weather in {c}?", "How is the weather in {c}?", "Weather in {c}?", "Tell me the weather in {c}.",
    "What's the weather like in {c}?", "Is it warm in {c}?", "Check the weather in {c}.", "Do I need a coat in {c}?",
)  # fmt: skip
SUMS = (
    "What is {x}? Use the tool.", "Calculate {x} with the calculator.", "Use the calculator: {x}",
    "Compute {x} with a tool.",
    "Please calculate {x}.", "Work out {x} with the calculator.", "Use a tool to get {x}.",
)  # fmt: skip
TIME = (
    "What time is it in {c}?", "Tell me the time in {c}.", "How late is it in {c}?", "Time in {c}?",
    "What's the time in {c}?", "Do you know the time in {c}?",
)  # fmt: skip
MAIL = (
    "Send {n} the message: {w}", "Write to {n}: {w}", "Tell {n}: {w}", "Message {n}: {w}",
    "Please send this to {n}: {w}",
)  # fmt: skip
SEARCH = (
    "Search for {w}.", "Look up {w}.", "Find pages about {w}.", "Search the web for {w}.", "Please look up {w}.",
)  # fmt: skip


def _weather(rng: Random) -> Call:
    c, degrees, sky = (
        rng.choice(CITIES),
        rng.randrange(-9, 36),
        rng.choice(("sunny", "cloudy", "rainy", "windy", "snowy")),
    )
    reply = f"It is {degrees} degrees and {sky} in {c}."
    return ask(rng, WEATHER, c=c), {"where": c}, f"weather:{c}", {"degrees": degrees, "sky": sky}, reply


def _sums(rng: Random) -> Call:
    a, b, sign = rng.randrange(2, 1000), rng.randrange(2, 1000), rng.choice("+-*")
    value = {"+": a + b, "-": a - b, "*": a * b}[sign]
    x = f"{a} {sign} {b}"
    return ask(rng, SUMS, x=x), {"what": x}, f"sums:{x}", {"result": value}, f"{x} = {value}"


def _time(rng: Random) -> Call:
    c, at = rng.choice(CITIES), f"{rng.randrange(24):02d}:{rng.randrange(60):02d}"
    return ask(rng, TIME, c=c), {"where": c}, f"time:{c}", {"time": at}, f"It is {at} in {c}."


def _mail(rng: Random) -> Call:
    name, text = rng.choice(NAMES), " ".join(any_word(rng) for _ in range(rng.randrange(1, 4)))
    reply = f"I sent the message to {name}."
    return ask(rng, MAIL, n=name, w=text), {"who": name, "text": text}, f"mail:{name}:{text}", {"sent": True}, reply


def _search(rng: Random) -> Call:
    words = " ".join(any_word(rng) for _ in range(rng.randrange(1, 3)))
    found = rng.randrange(1, 100)
    return (
        ask(rng, SEARCH, w=words),
        {"what": words},
        f"search:{words}",
        {"found": found},
        f"I found {found} pages about {words}.",
    )


# make, names of the tool, names of its parameters, description
FAMILIES: tuple[tuple[Callable[[Random], Call], tuple[str, ...], tuple[tuple[str, ...], ...], str], ...] = (
    (_weather, ("get_weather", "weather", "current_weather"), (("city",), ("location",),
    ("place",)), "Weather in a city."),
    (_sums, ("calculator", "calculate", "compute"), (("expression",), ("formula",)), "Work out an expression."),
    (_time, ("get_time", "clock", "current_time"), (("city",), ("location",)), "Time in a city."),
    (_mail, ("send_message", "message", "send_mail"), (("name", "text"), ("to", "text")), "Send a message."),
    (_search, ("search", "web_search", "find"), (("query",), ("words",)), "Search the web."),
)  # fmt: skip


def _tool(name: str, parameters: tuple[str, ...], description: str) -> Message:
    properties = {p: {"type": "string"} for p in parameters}
    schema = {"type": "object", "properties": properties, "required": list(parameters)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


def _usually_first(rng: Random, choices: tuple[tuple[str, ...], ...]) -> tuple[str, ...]:
    return choices[0] if rng.random() < 0.6 else rng.choice(choices)


def _scene(rng: Random) -> tuple[list[Message], Call, str, tuple[str, ...]]:
    """Tools on offer, one question that needs one of them, its name and its parameters' names."""
    chosen = rng.sample(range(len(FAMILIES)), rng.choice((1, 2, 2, 3)))
    built = []
    for i in chosen:
        _, names, choices, description = FAMILIES[i]
        built.append((i, rng.choice(names), _usually_first(rng, choices), description))
    i, name, parameters, _ = built[0]
    rng.shuffle(built)
    return [_tool(n, p, d) for _, n, p, d in built], FAMILIES[i][0](rng), name, parameters


def _work(name: str, parameters: tuple[str, ...]) -> str:
    """The thought copies the signature out of the list, so that the call can be copied out of the thought."""
    return f"I call {name}({', '.join(parameters)})"


def _call(call: Call, name: str, parameters: tuple[str, ...]) -> Message:
    arguments = dict(zip(parameters, call[1].values(), strict=True))
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def tool(rng: Random) -> Sample:
    """The model should call a tool; one time in eight none fits and it should just answer."""
    tools, call, name, parameters = _scene(rng)
    if rng.random() < 0.125:
        topic, question, answer = rng.choice(FACTS)
        return Sample(f"fact:{question}", user(question), answer, f"a question: {topic.rstrip('?!.')}", tools=tools)
    key = f"{call[2]}:{len(tools)}:{name}"
    return Sample(key, user(call[0]), "", _work(name, parameters), calls=[_call(call, name, parameters)], tools=tools)


def result(rng: Random) -> Sample:
    """The result of a call has come; the model says what it is."""
    tools, call, name, parameters = _scene(rng)
    question, _, key, found, reply = call
    called: Message = {"role": "assistant", "content": "", "tool_calls": [_call(call, name, parameters)]}
    called["reasoning_content"] = _work(name, parameters)
    messages = [*user(question), called, {"role": "tool", "content": json.dumps(found)}]
    return Sample(f"result:{key}:{reply}", messages, reply, "say the result", tools=tools)
