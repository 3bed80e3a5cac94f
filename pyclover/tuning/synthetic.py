"""Text for calibration that needs no file: many kinds, each made from parts by chance, the same for the same seed.

What counts for an importance matrix is that every kind of text is there, in every layer and expert, not that it is true
or beautiful.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator

_NAMES = ("Ada", "Bruno", "Chidi", "Dana", "Elif", "Farid", "Greta", "Hana", "Ivo", "Jun", "Kamala", "Lars", "Mei",
          "Nadia", "Omar", "Pilar", "Quentin", "Rosa", "Sven", "Tomas")  # fmt: skip
_PLACES = ("Lisbon", "the harbour", "Kyoto", "a small village", "the old library", "Nairobi", "the mountain hut",
           "Oslo", "the laboratory", "a train to Vienna", "the market", "Lima")  # fmt: skip
_THINGS = ("lantern", "notebook", "bicycle", "telescope", "kettle", "map", "clock", "violin", "ladder", "compass",
           "photograph", "umbrella", "microscope", "parcel")  # fmt: skip
_ADJECTIVES = ("quiet", "old", "careful", "bright", "narrow", "heavy", "sudden", "gentle", "broken", "patient",
               "unusual", "distant")  # fmt: skip
_VERBS = ("found", "repaired", "carried", "sold", "forgot", "painted", "measured", "borrowed", "opened", "described")
_TOPICS = ("photosynthesis", "the tides", "compound interest", "plate tectonics", "public-key cryptography",
           "the French Revolution", "vaccination", "relational databases", "the water cycle", "jazz harmony",
           "supply and demand", "black holes", "fermentation", "garbage collection", "constitutional courts",
           "antibiotic resistance", "probability", "electric motors")  # fmt: skip
_LINKS = ("In other words,", "For example,", "However,", "As a result,", "By contrast,", "Historically,",
          "In practice,", "More precisely,")  # fmt: skip
_TAILS = ("depends on several conditions at once", "was understood only in the nineteenth century",
          "can be described by a simple equation", "is still a matter of debate", "explains most of what is observed",
          "costs more than it first appears to", "follows from the conservation of energy",
          "has consequences for everyday life", "is often confused with its opposite")  # fmt: skip
_FOREIGN = (
    "Der Zug nach {p} hat heute leider {n} Minuten Verspätung, weil eine Weiche gestört ist.",
    "Wenn du morgen Zeit hast, könnten wir gemeinsam über die nächsten Schritte sprechen.",
    "Le conseil municipal a voté {n} mesures pour réduire la circulation au centre-ville.",
    "Je voudrais réserver une chambre pour deux personnes, du {n} au {m} mai, si possible.",
    "La biblioteca abre a las {n} y cierra a las {m}; los domingos permanece cerrada.",
    "Il mercato chiude alle {m}, ma il panettiere all'angolo resta aperto fino a tardi.",
    "今天的会议改到下午{n}点，请提前准备好上个月的报告。",
    "昨日は{n}人の学生が図書館で勉強していました。静かで涼しかったです。",
    "Завтра в {n} часов начнётся лекция о том, как работает рынок ценных бумаг.",
    "A reunião foi adiada para as {n} horas porque o relatório ainda não está pronto.",
)


def documents(seed: int = 0) -> Iterator[str]:
    """Documents without end, all kinds in turn."""
    rng = random.Random(f"pyclover calibration {seed}")
    kinds: tuple[Callable[[random.Random], str], ...] = (
        _story, _article, _python, _json, _table, _arithmetic, _markdown, _foreign, _log, _letter, _c_code, _questions,
    )  # fmt: skip
    while True:
        for kind in kinds:
            yield kind(rng)


def conversations(seed: int = 0) -> Iterator[list[dict[str, object]]]:
    """Conversations without end, as messages of OpenAI's API: plain ones, with thinking, with a tool's round trip."""
    rng = random.Random(f"pyclover conversations {seed}")
    while True:
        yield _plain_chat(rng)
        yield _thinking_chat(rng)
        yield _tool_chat(rng)


TOOLS: tuple[dict[str, object], ...] = (
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather at a place.",
            "parameters": {
                "type": "object",
                "properties": {"place": {"type": "string"}, "days": {"type": "integer"}},
                "required": ["place"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "calculate",
            "description": "Evaluate an arithmetic expression.",
            "parameters": {
                "type": "object",
                "properties": {"expression": {"type": "string"}},
                "required": ["expression"],
            },
        },
    },
)


def _story(rng: random.Random) -> str:
    a, b = rng.sample(_NAMES, 2)
    lines = [f"One {rng.choice(_ADJECTIVES)} morning {a} {rng.choice(_VERBS)} a {rng.choice(_THINGS)} near "
             f"{rng.choice(_PLACES)}."]  # fmt: skip
    for _ in range(rng.randint(4, 9)):
        who = rng.choice((a, b))
        lines.append(
            rng.choice(
                (
                    f'"I have never seen such a {rng.choice(_ADJECTIVES)} {rng.choice(_THINGS)}," said {who}.',
                    f"{who} {rng.choice(_VERBS)} the {rng.choice(_THINGS)} and waited {rng.randint(2, 50)} hours.",
                    f"The {rng.choice(_ADJECTIVES)} road led them from {rng.choice(_PLACES)} to {rng.choice(_PLACES)}.",
                    f"Nobody knew why the {rng.choice(_THINGS)} had been left there, least of all {who}.",
                )
            )
        )
    return " ".join(lines)


def _article(rng: random.Random) -> str:
    topic = rng.choice(_TOPICS)
    lines = [f"The study of {topic} {rng.choice(_TAILS)}."]
    for _ in range(rng.randint(4, 8)):
        lines.append(f"{rng.choice(_LINKS)} {rng.choice((topic, 'this', 'the effect'))} {rng.choice(_TAILS)} "
                     f"({rng.randint(1700, 2025)}).")  # fmt: skip
    return " ".join(lines)


def _python(rng: random.Random) -> str:
    name, item = rng.choice(("total", "merge", "parse", "group", "filter")), rng.choice(_THINGS)
    n = rng.randint(2, 99)
    return (
        f"def {name}_{item}s(items: list[dict[str, float]], limit: int = {n}) -> dict[str, float]:\n"
        f'    """Sum the prices of every {item} below the limit."""\n    out: dict[str, float] = {{}}\n'
        f'    for i, entry in enumerate(items):\n        if entry["price"] > limit or i % {rng.randint(2, 7)} == 0:\n'
        f'            continue\n        key = f"{item}-{{i:03d}}"\n'
        f'        out[key] = out.get(key, 0.0) + entry["price"] * {rng.uniform(0.5, 2):.2f}\n'
        "    return dict(sorted(out.items(), key=lambda pair: -pair[1]))\n"
    )


def _c_code(rng: random.Random) -> str:
    n = rng.choice((8, 16, 32, 64))
    return (
        "#include <stdint.h>\n#include <stdio.h>\n\nstatic uint32_t mix(uint32_t x) {\n"
        f"    x ^= x >> {rng.randint(9, 17)};\n    x *= 0x{rng.getrandbits(32):08x}u;\n"
        f"    return x ^ (x >> {rng.randint(9, 17)});\n}}\n\nint main(void) {{\n    for (int i = 0; i < {n}; i++) {{\n"
        '        printf("%d: %u\\n", i, mix((uint32_t) i));\n    }\n    return 0;\n}\n'
    )


def _json(rng: random.Random) -> str:
    rows = [
        {"id": rng.randint(1000, 9999), "name": rng.choice(_NAMES), "city": rng.choice(_PLACES),
         "score": round(rng.uniform(0, 100), 2), "active": rng.random() < 0.5, "tags": rng.sample(_THINGS, 2)}
        for _ in range(rng.randint(2, 4))
    ]  # fmt: skip
    return json.dumps({"page": rng.randint(1, 40), "results": rows, "next": None}, indent=rng.choice((None, 2)))


def _table(rng: random.Random) -> str:
    lines = ["| item | quantity | price |", "|---|---:|---:|"]
    for _ in range(rng.randint(3, 7)):
        lines.append(f"| {rng.choice(_THINGS)} | {rng.randint(1, 400)} | {rng.uniform(1, 900):.2f} |")
    return "\n".join(lines)


def _arithmetic(rng: random.Random) -> str:
    lines = []
    for _ in range(rng.randint(4, 8)):
        a, b = rng.randint(2, 999), rng.randint(2, 999)
        lines.append(rng.choice((f"{a} + {b} = {a + b}", f"{a} * {b} = {a * b}", f"{a + b} - {b} = {a}",
                                 f"Divide {a * b} by {a}: the quotient is {b}.")))  # fmt: skip
    return "\n".join(lines)


def _markdown(rng: random.Random) -> str:
    thing = rng.choice(_THINGS)
    verbs = rng.sample(("Check", "Remove", "Clean", "Tighten", "Replace", "Test"), 4)
    steps = "\n".join(f"{i}. {verb} the {rng.choice(_ADJECTIVES)} part." for i, verb in enumerate(verbs, 1))
    return (
        f"# How to mend a {thing}\n\n"
        f"You need **{rng.randint(1, 6)} screws**, `glue-{rng.randint(1, 9)}` and patience.\n\n"
        f"{steps}\n\n> Note: never do this near {rng.choice(_PLACES)}.\n"
    )


def _foreign(rng: random.Random) -> str:
    return " ".join(
        text.format(p=rng.choice(("Wien", "Bern", "Köln")), n=rng.randint(7, 11), m=rng.randint(17, 23))
        for text in rng.sample(_FOREIGN, 4)
    )


def _log(rng: random.Random) -> str:
    lines = []
    for i in range(rng.randint(4, 8)):
        level = rng.choice(("INFO", "WARN", "ERROR", "DEBUG"))
        day, hour = f"2025-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}", rng.randint(0, 23)
        path = f"/api/v{rng.randint(1, 3)}/{rng.choice(_THINGS)}"
        lines.append(f"{day}T{hour:02d}:{i:02d}:07Z {level} worker-{rng.randint(1, 16)} request {path} took "
                     f"{rng.randint(2, 900)} ms (status {rng.choice((200, 201, 304, 404, 500))})")  # fmt: skip
    return "\n".join(lines)


def _letter(rng: random.Random) -> str:
    a, b = rng.sample(_NAMES, 2)
    return (
        f"Dear {a},\n\nthank you for the {rng.choice(_ADJECTIVES)} {rng.choice(_THINGS)} that you sent from "
        f"{rng.choice(_PLACES)}. I shall be in {rng.choice(_PLACES)} on the {rng.randint(4, 19)}th "
        f"and would be glad to talk about {rng.choice(_TOPICS)}.\n\nKind regards,\n{b}\n"
    )


def _questions(rng: random.Random) -> str:
    topic = rng.choice(_TOPICS)
    return (
        f"Q: Which statement about {topic} is correct?\nA) It {rng.choice(_TAILS)}.\nB) It {rng.choice(_TAILS)}.\n"
        f"C) None of these.\nAnswer: {rng.choice('ABC')}\n"
    )


def _ask(rng: random.Random) -> str:
    topic = rng.choice(_TOPICS)
    return rng.choice((f"Explain {topic} to a child.", f"What is the most common mistake about {topic}?",
                       f"Write three sentences about {topic}.", f"How would you test what I know about {topic}?",
                       "Write a Python function for this.", f"Sell me a {rng.choice(_THINGS)}."))  # fmt: skip


def _plain_chat(rng: random.Random) -> list[dict[str, object]]:
    messages: list[dict[str, object]] = [{"role": "system", "content": "You are a helpful assistant."}]
    for _ in range(rng.randint(1, 3)):
        answer = rng.choice((_article, _story, _python, _markdown, _table))(rng)
        messages += [{"role": "user", "content": _ask(rng)}, {"role": "assistant", "content": answer}]
    return messages


def _thinking_chat(rng: random.Random) -> list[dict[str, object]]:
    a, b, c = rng.randint(11, 99), rng.randint(11, 99), rng.randint(2, 9)
    thought = (
        f"I need ({a} + {b}) * {c}. First {a} + {b} = {a + b}. Then {a + b} * {c} = {(a + b) * c}. "
        f"Let me check: {a} * {c} = {a * c} and {b} * {c} = {b * c}, together {(a + b) * c}. That agrees."
    )
    question = f"{rng.choice(_NAMES)} packs {c} boxes with {a} red and {b} green {rng.choice(_THINGS)}s each. How many?"
    return [
        {"role": "user", "content": question},
        {"role": "assistant", "reasoning_content": thought, "content": f"There are {(a + b) * c} in all."},
    ]


def _tool_chat(rng: random.Random) -> list[dict[str, object]]:
    place, days = rng.choice(("Lisbon", "Kyoto", "Nairobi", "Oslo", "Lima")), rng.randint(1, 5)
    degrees, number = rng.randint(-10, 35), f"call_{rng.getrandbits(24):06x}"
    call = {
        "id": number, "type": "function",
        "function": {"name": "get_weather", "arguments": json.dumps({"place": place, "days": days})},
    }  # fmt: skip
    return [
        {"role": "user", "content": f"Will it rain in {place} in the next {days} days?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {
            "role": "tool", "tool_call_id": number,
            "content": json.dumps({"place": place, "rain_mm": rng.randint(0, 30), "degrees": degrees}),
        },
        {"role": "assistant", "content": f"In {place} it will be about {degrees} degrees; take an umbrella along."},
    ]  # fmt: skip
