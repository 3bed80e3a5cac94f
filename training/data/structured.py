"""JSON answers."""

from __future__ import annotations

import json
from random import Random
from typing import Any

from training.data.base import Sample, user
from training.data.words import ANIMALS, CITIES, COLORS, JOBS, NAMES, any_word

REQUEST = (
    "Write JSON with {x}.", "Give me JSON with {x}.", "Make a JSON object with {x}.", "Answer as JSON: {x}.",
    "JSON please: {x}.", "Return JSON with {x}.", "Create JSON with {x}.", "Write this as JSON: {x}.",
    "Give me a JSON object with {x}.", "Output JSON with {x}.",
)  # fmt: skip
PERSON = (
    "{name} is {age} years old and lives in {city}. Write that as JSON.",
    "Turn this into JSON: {name} is {age} and lives in {city}.",
    "Make JSON of this: {name}, {age} years, from {city}.",
)  # fmt: skip


def _values(rng: Random) -> dict[str, Any]:
    return {
        "name": rng.choice(NAMES),
        "age": rng.randrange(1, 100),
        "city": rng.choice(CITIES),
        "color": rng.choice(COLORS),
        "animal": rng.choice(ANIMALS),
        "job": rng.choice(JOBS),
        "item": any_word(rng),
        "count": rng.randrange(1, 100),
        "price": rng.randrange(1, 100),
        "open": rng.random() < 0.5,
    }


def json_answer(rng: Random) -> Sample:
    values = _values(rng)
    roll = rng.random()
    if roll < 0.2:
        chosen: Any = {key: values[key] for key in ("name", "age", "city")}
        text = rng.choice(PERSON).format(**chosen)
    elif roll < 0.35:
        words = [any_word(rng) for _ in range(rng.randrange(2, 5))]
        chosen = words
        text = rng.choice(("Write a JSON list of {x}.", "Make a JSON array with {x}.", "JSON list: {x}.")).format(
            x=", ".join(words)
        )
    else:
        chosen = {key: values[key] for key in rng.sample(sorted(values), rng.randrange(2, 5))}
        parts = [
            f"{key} {'true' if value is True else 'false' if value is False else value}"
            for key, value in chosen.items()
        ]
        glue = rng.choice((", ", " and "))
        text = rng.choice(REQUEST).format(x=glue.join(parts) if len(parts) == 2 else ", ".join(parts))
    answer = json.dumps(chosen)
    return Sample(f"json:{answer}", user(text), answer, "a list" if isinstance(chosen, list) else "an object")
