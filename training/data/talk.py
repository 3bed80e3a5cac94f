"""Simple logic, and conversations in which the last question needs what was said before."""

from __future__ import annotations

from random import Random

from training.data import letters, numbers
from training.data.base import Message, Sample, ask, polite, user
from training.data.words import ANIMALS, CITIES, COLORS, JOBS, NAMES, any_word

RELATIONS = (("taller", "tallest", "shortest"), ("older", "oldest", "youngest"), ("faster", "fastest", "slowest"))
KINDS = ("animals", "plants", "machines", "birds", "friends", "birds", "students")


def logic(rng: Random) -> Sample:
    return rng.choice((_order, _order, _parity, _belongs, _compare))(rng)


def _order(rng: Random) -> Sample:
    a, b, c = rng.sample(NAMES, 3)
    more, most, least = rng.choice(RELATIONS)
    facts = [f"{a} is {more} than {b}.", f"{b} is {more} than {c}."]
    if rng.random() < 0.5:
        facts.reverse()
    which, answer = rng.choice(((most, a), (least, c)))
    text = " ".join(facts) + " " + ask(rng, ("Who is the {x}?", "Who is {x}?", "Who of them is the {x}?"), x=which)
    work = f"{a} is {more} than {b}, {b} is {more} than {c}"  # both facts again, the first of all three in front
    return Sample(f"order:{a}:{b}:{c}:{which}", user(text), f"{answer} is the {which}.", work, show_work=True)


def _parity(rng: Random) -> Sample:
    n = rng.randrange(200)
    word = "odd" if n % 2 else "even"
    forms = ("Is {n} even or odd?", "Is {n} odd or even?", "Is the number {n} even or odd?", "Even or odd: {n}?")
    return Sample(
        f"parity:{n}", user(polite(rng, ask(rng, forms, n=n))), f"{n} is {word}.", f"the last digit is {n % 10}"
    )


def _belongs(rng: Random) -> Sample:
    thing = rng.choice(ANIMALS)
    kind, name = rng.choice(KINDS), rng.choice(NAMES)
    true = rng.random() < 0.5
    rule, ending = ("All", "") if true else ("No", " not")
    text = f"{rule} {thing}s are {kind}. {name} is a {thing}. Is {name} one of the {kind}?"
    return Sample(
        f"belongs:{thing}:{kind}:{name}:{true}", user(text),
        f"{'Yes' if true else 'No'}, {name} is{ending} one of the {kind}.", f"{rule.lower()} {thing}s",
    )  # fmt: skip


def _compare(rng: Random) -> Sample:
    a, b = rng.sample(range(100), 2)
    more = rng.random() < 0.5
    right = (a > b) == more
    word = "greater" if more else "less"
    text = ask(rng, ("Is {a} {w} than {b}?", "True or false: {a} is {w} than {b}?"), a=a, b=b, w=word)
    answer = "Yes" if right else "No"
    if text.startswith("True"):
        answer = "True" if right else "False"
    work = f"{word}? {numbers.compare_work(a, b)}, {a} is {'greater' if a > b else 'less'}"
    return Sample(f"larger:{min(a, b)}:{max(a, b)}", user(text), answer, work, show_work=True)


def _turns(first: Sample, question: str) -> list[Message]:
    return [*first.messages, {"role": "assistant", "content": first.answer}, *user(question)]


def follow(rng: Random) -> Sample:
    return rng.choice((_plus, _plus, _word, _word, _memory, _memory, _what_about))(rng)


def _plus(rng: Random) -> Sample:
    """The result of the first sum goes on."""
    a, b = rng.randrange(1, 50), rng.randrange(1, 40)
    first = Sample(
        f"add:{min(a, b)}:{max(a, b)}", user(ask(rng, numbers.ADD[:12], a=a, b=b)), f"{a} + {b} = {a + b}", ""
    )
    x, c = a + b, rng.randrange(1, 50)
    if rng.random() < 0.5 and c <= x:
        text = ask(rng, ("And minus {c}?", "Now subtract {c}.", "Take away {c}.", "Minus {c}?"), c=c)
        return Sample(
            f"sub:{x}:{c}", _turns(first, text), f"{x} - {c} = {x - c}", numbers.sub_work(x, c) if x < 100 else "",
            show_work=True, also=(first.key,),
        )  # fmt: skip
    text = ask(rng, ("And plus {c}?", "Now add {c}.", "Add {c} to that.", "Plus {c}?"), c=c)
    return Sample(
        f"add:{min(x, c)}:{max(x, c)}", _turns(first, text), f"{x} + {c} = {x + c}", numbers.add_work(x, c),
        show_work=True, also=(first.key,),
    )  # fmt: skip


def _word(rng: Random) -> Sample:
    word = any_word(rng)
    first = Sample(f"word:{word}", user(ask(rng, letters.SPELL, w=word)), letters.dashed(word), "")
    if rng.random() < 0.5:
        text = ask(rng, ("And backwards?", "Now backwards.", "Now reverse it.", "Now spell it backwards."))
        messages = _turns(first, text)
        return Sample(first.key, messages, letters.dashed(word[::-1]), letters.dashed(word), show_work=True)
    text = ask(
        rng, ("How many letters is that?", "How many letters has it?", "And how many letters?", "Count its letters.")
    )
    answer = f"{word} has {len(word)} letters."
    return Sample(first.key, _turns(first, text), answer, letters.length_work(word), show_work=True)


def _memory(rng: Random) -> Sample:
    name, city, color, job = rng.choice(NAMES), rng.choice(CITIES), rng.choice(COLORS), rng.choice(JOBS)
    facts = {
        "name": (f"My name is {name}.", f"Nice to meet you, {name}!", "What is my name?", f"Your name is {name}."),
        "city": (f"I live in {city}.", f"{city} is a nice place.", "Where do I live?", f"You live in {city}."),
        "color": (
            f"I like the color {color}.",
            f"{color} is a fine color.",
            "Which color do I like?",
            f"You like {color}.",
        ),
        "job": (f"I work as a {job}.", f"A {job} has a good job.", "What is my job?", f"You are a {job}."),
    }
    kind = rng.choice(sorted(facts))
    said, reply, question, answer = facts[kind]
    messages = [*user(said), {"role": "assistant", "content": reply}]
    if rng.random() < 0.3:
        other, other_reply, _, _ = facts[rng.choice([k for k in sorted(facts) if k != kind])]
        messages += [*user(other), {"role": "assistant", "content": other_reply}]
    messages += user(question)
    return Sample(f"memory:{said}:{len(messages)}", messages, answer, f"you said: {said}")


def meet(rng: Random) -> Sample:
    """The first half of such a conversation."""
    name = rng.choice(NAMES)
    text = ask(rng, ("My name is {n}.", "I am {n}.", "Hello, I am {n}.", "Hi, my name is {n}.", "I'm {n}."), n=name)
    return Sample(f"meet:{text}", user(text), f"Nice to meet you, {name}!", f"the name is {name}")


def _what_about(rng: Random) -> Sample:
    of, to, digit, zeros = rng.choice([u for u in numbers.UNITS if u[2] == 1])
    a, b = rng.sample(range(2, 100), 2)
    first = Sample(f"unit:{of}:{a}", user(f"How many {to} are {a} {of}?"), f"{a} {of} are {a * 10**zeros} {to}.", "")
    text = ask(rng, ("And {b} {of}?", "What about {b} {of}?", "And {b}?", "What about {b}?"), b=b, of=of)
    work = f"1 = {digit}{'0' * zeros}, {zeros} zeros after {b}"
    return Sample(f"unit:{of}:{b}", _turns(first, text), f"{b} {of} are {b * 10**zeros} {to}.", work, also=(first.key,))
