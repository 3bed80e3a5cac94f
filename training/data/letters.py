"""Tasks on the letters of a word, and copying."""

from __future__ import annotations

from random import Random

from training.data.base import Sample, ask, polite, user
from training.data.words import any_word

SPELL = (
    "Spell the word {w}.", "Spell {w}.", "How do you spell {w}?", "Spell out {w}.", "Spell '{w}'.",
    "Can you spell {w}?",
    "Write {w} letter by letter.", "What are the letters of {w}?", "Split the word {w} into letters.",
    "How is {w} spelled?",
)  # fmt: skip
REVERSE = (
    "Spell the word {w} backwards.", "Spell {w} backwards.", "Reverse the word {w}.", "Reverse {w}.",
    "Write {w} backwards.",
    "What is {w} backwards?", "What is {w} spelled backwards?", "Reverse the letters of {w}.", "Say {w} in reverse.",
    "Can you spell {w} backwards?", "Spell '{w}' backwards.", "Turn the word {w} around.",
)  # fmt: skip
LENGTH = (
    "How many letters are in {w}?", "How many letters does {w} have?", "How many letters has the word {w}?",
    "Count the letters of {w}.", "Count the letters in the word {w}.", "How long is the word {w}?",
    "What is the number of letters in {w}?",
)  # fmt: skip
OCCUR = (
    "How many times is {x} in {w}?", "How often does the letter {x} occur in {w}?", "How many {x} are in {w}?",
    "How many times does {x} appear in the word {w}?", "How many letters {x} are in the word {w}?",
    "How many {x}'s are in {w}?", "Count the letter {x} in {w}.",
)  # fmt: skip
REPEAT = (
    "Repeat after me: {w}", "Repeat: {w}", "Say this again: {w}", "Copy these words: {w}", "Repeat these words: {w}",
    "Please say: {w}", "Write this: {w}", "Echo: {w}",
)  # fmt: skip


def dashed(word: str) -> str:
    return "-".join(word)


def length_work(word: str) -> str:
    return "-".join(f"{letter}{i}" for i, letter in enumerate(word, 1))


def occur_work(word: str, letter: str) -> str:
    """Letters in order, the finds numbered."""
    parts, found = [], 0
    for x in word:
        found += x == letter
        parts.append(f"{x}{found}" if x == letter else x)
    return "-".join(parts)


def spell(rng: Random) -> Sample:
    word = any_word(rng)
    return Sample(f"word:{word}", user(polite(rng, ask(rng, SPELL, w=word))), dashed(word), f"the letters of {word}")


def reverse(rng: Random) -> Sample:
    word = any_word(rng)
    text = polite(rng, ask(rng, REVERSE, w=word))
    return Sample(f"word:{word}", user(text), dashed(word[::-1]), dashed(word), show_work=True)


def letters(rng: Random) -> Sample:
    word = any_word(rng)
    text = polite(rng, ask(rng, LENGTH, w=word))
    return Sample(f"word:{word}", user(text), f"{word} has {len(word)} letters.", length_work(word), show_work=True)


def occur(rng: Random) -> Sample:
    word = any_word(rng)
    letter = rng.choice(word) if rng.random() < 0.9 else rng.choice("aeinorst")
    n = word.count(letter)
    times = "once" if n == 1 else f"{n} times"
    text = polite(rng, ask(rng, OCCUR, w=word, x=letter))
    answer = f"{letter} is in {word} {times}."
    return Sample(f"word:{word}", user(text), answer, occur_work(word, letter), show_work=True)


def repeat(rng: Random, longest: int = 6) -> Sample:
    words = " ".join(any_word(rng) for _ in range(rng.randrange(2, longest + 1)))
    return Sample(f"repeat:{words}", user(ask(rng, REPEAT, w=words)), words, "copy the words")


def repeat_long(rng: Random) -> Sample:
    """For the copy-heavy first part of training."""
    return repeat(rng, 10)
