"""All kinds, their weights, the split, and how a sample becomes tokens' text."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from training.data import facts, letters, numbers, prose, structured, talk, tools
from training.data.base import Generator, Sample, held_out
from training.template import split_chat
from training.tokenizer import END_OF_TEXT

# kind -> generator, weight in the normal mix, weight in the copy-heavy mix
KINDS: dict[str, tuple[Generator, float, float]] = {
    "add": (numbers.add, 8, 5),
    "sub": (numbers.sub, 8, 5),
    "mul": (numbers.mul, 7, 4),
    "count": (numbers.count, 9, 5),
    "sort": (numbers.sort, 11, 6),
    "larger": (numbers.larger, 6, 3),
    "unit": (numbers.unit, 5, 3),
    "spell": (letters.spell, 10, 10),
    "reverse": (letters.reverse, 10, 9),
    "letters": (letters.letters, 8, 6),
    "occur": (letters.occur, 11, 5),
    "repeat": (letters.repeat, 5, 22),
    "fact": (facts.fact, 11, 6),
    "json": (structured.json_answer, 6, 10),
    "tool": (tools.tool, 11, 14),
    "result": (tools.result, 3, 4),
    "logic": (talk.logic, 11, 5),
    "follow": (talk.follow, 8, 5),
    "meet": (talk.meet, 1, 3),
    "story": (prose.story, 2.5, 2),
    "explain": (prose.explain, 2, 1),
}
RAW_WEIGHT = 1.5  # stories without a chat
PROSE = ("story", "explain")  # several answers are right: no exactness, only acceptance
EXACT = tuple(k for k in KINDS if k not in PROSE)
SYSTEM = ("You are a helpful assistant.", "Answer briefly.", "You are tiny, a small Clover model.", "Be helpful.")
THINKING_SHARE = 0.6
_MAX_DRAWS = 10_000


@dataclass(frozen=True)
class Document:
    """Prompt and the text to be generated, its end token included; together as the template renders it."""

    kind: str
    prompt: str
    answer: str


def draw(kind: str, rng: Random, evaluation: bool = False) -> Sample:
    """A sample of a kind: in training none of its combinations is held out, in evaluation its own is."""
    generator = KINDS[kind][0]
    if kind == "repeat" and not evaluation and rng.random() < 0.3:
        generator = letters.repeat_long
    for _ in range(_MAX_DRAWS):
        sample = generator(rng)
        if evaluation:
            if held_out(sample.key):
                return sample
        elif not any(map(held_out, (sample.key, *sample.also))):
            return sample
    raise RuntimeError(f"the kind {kind} has no {'held-out' if evaluation else 'training'} samples")


def document(kind: str, sample: Sample, thinking: bool, system: str = "") -> Document:
    messages = sample.chat(thinking)
    if system:
        messages = [{"role": "system", "content": system}, *messages]
    return Document(kind, *split_chat(messages, sample.tools, thinking))


def training_document(rng: Random, copy_heavy: bool) -> Document:
    weights = [copying if copy_heavy else normal for _, normal, copying in KINDS.values()]
    kind = rng.choices([*KINDS, "raw"], [*weights, RAW_WEIGHT])[0]
    if kind == "raw":
        return Document(kind, "", prose.raw_story(rng) + END_OF_TEXT)
    sample = draw(kind, rng)
    system = rng.choice(SYSTEM) if rng.random() < 0.1 else ""
    return document(kind, sample, rng.random() < THINKING_SHARE, system)
