"""Short stories and explanations put together at random: text that cannot be guessed far ahead."""

from __future__ import annotations

import re
from random import Random

from training.data.base import Sample, ask, user
from training.data.words import ANIMALS, NAMES

PLACES = (
    "forest",
    "river",
    "garden",
    "city",
    "mountain",
    "village",
    "lake",
    "island",
    "farm",
    "harbor",
    "castle",
    "valley",
)
THINGS = ("key", "lamp", "letter", "map", "boat", "bell", "book", "stone", "feather", "coin", "clock", "basket")
MOODS = ("small", "old", "young", "quiet", "clever", "happy", "tired", "brave", "hungry", "curious")
STORY = (
    "Tell me a story about a {a} and a {t}.", "Write a short story about a {a} in a {p}.",
    "Tell me a short story about a {a}.",
    "Write a story with a {a}, a {t} and a {p}.", "Can you tell me a story about a {a} in the {p}?",
    "A story about a {a}, please.",
)  # fmt: skip
TIMES = (
    "In the morning",
    "One day",
    "In the evening",
    "After the rain",
    "In winter",
    "On a warm day",
    "At night",
    "In spring",
)
ENDS = (
    "So they became friends.", "That was a good day.", "Then everyone went home.", "And the {p} was quiet again.",
    "From then on the {t} was never lost again.", "The {a} slept well that night.", "{n} never forgot it.",
)  # fmt: skip
MIDDLES = (
    "{w} it found a {t}.", "{w} the {a} walked to the {q}.", "{w} {n} came by and said hello.",
    "The {t} was {m} and {k}.",
    "{n} asked the {a} for help.", "The {a} looked at the {t} for a long time.", "They went to the {q} together.",
    "A {m} {b} saw them and laughed.", "{w} they lost the {t} near the {q}.", "The {b} wanted the {t} too.",
    "Nobody in the {p} knew why.", "The {a} was not afraid.", "{n} gave the {a} some bread.",
    "It was cold, but the {a} was {m}.",
)  # fmt: skip


def _story(rng: Random, values: dict[str, str], opening: str) -> str:
    out = [opening.format(**values)]
    for line in rng.sample(MIDDLES, rng.randrange(2, 5)):
        values |= {
            "w": rng.choice(TIMES),
            "m": rng.choice(MOODS),
            "k": rng.choice(("heavy", "bright", "broken", "new", "cold")),
        }
        out.append(line.format(**values))
    out.append(rng.choice(ENDS).format(**values))
    return re.sub(r"\b([Aa]) (?=[aeiou])", r"\1n ", " ".join(out))


def _values(rng: Random) -> dict[str, str]:
    (a, b), (p, q) = rng.sample(ANIMALS, 2), rng.sample(PLACES, 2)
    return {"a": a, "b": b, "p": p, "q": q, "t": rng.choice(THINGS), "n": rng.choice(NAMES), "m": rng.choice(MOODS)}


def story(rng: Random) -> Sample:
    values = _values(rng)
    text = ask(rng, STORY, **values)
    return Sample(
        f"story:{text}",
        user(text),
        _story(rng, values, "Once there was a {m} {a} in a {p}."),
        f"a story about a {values['a']}",
    )


OPENINGS = (
    "Once upon a time there was a {m} {a} in a {p}.",
    "Once there was a {m} {a}.",
    "There was a {a} in the {p}.",
)


def raw_story(rng: Random) -> str:
    """A story without a chat around it, for prompts that are plain text."""
    return _story(rng, _values(rng), rng.choice(OPENINGS))


HOW = (
    ("a garden", ("plants need water", "plants need light", "weeds take space", "good soil is dark",
    "worms help the soil")),
    ("the sea", ("water is salty", "waves come from wind", "the moon makes tides", "fish live there",
    "ships cross it")),
    ("winter", ("days are short", "water turns to ice", "many animals sleep", "snow can fall", "people wear coats")),
    ("bread", ("flour is made from wheat", "yeast makes it rise", "an oven bakes it", "salt gives it taste",
    "it smells good")),
    ("music", ("strings can sing", "drums keep time", "songs have words", "people dance to it",
    "it can be loud or soft")),
    ("a city", ("many people live there", "trains bring people", "streets have names", "shops sell things",
    "parks are green")),
    ("the moon", ("it goes around the earth", "it has no air", "it lights the night", "it makes tides",
    "people have walked on it")),
    ("a library", ("books stand on shelves", "people read there", "it is quiet", "you can borrow books",
    "it is free for all")),
)  # fmt: skip
TELL = ("Tell me about {x}.", "Write a few sentences about {x}.", "Explain {x} to a child.",
    "What can you say about {x}?",
        "Write about {x}.", "Describe {x} in a few sentences.")  # fmt: skip


def explain(rng: Random) -> Sample:
    topic, lines = rng.choice(HOW)
    chosen = rng.sample(lines, rng.randrange(2, 5))
    links = ("Also, ", "And ", "It is true that ", "", "Most of the time ")
    out = [chosen[0][0].upper() + chosen[0][1:] + "."]
    for line in chosen[1:]:
        link = rng.choice(links)
        out.append((link + line if link else line[0].upper() + line[1:]) + ".")
    text = ask(rng, TELL, x=topic)
    return Sample(f"explain:{text}", user(text), " ".join(out), f"some words about {topic}")
