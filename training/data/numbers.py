"""Arithmetic with a worked step, counting, sorting, comparing, units."""

from __future__ import annotations

from random import Random

from training.data.base import Sample, ask, polite, user

ADD = (
    "What is {a} + {b}?", "What is {a} plus {b}?", "{a} + {b}", "{a} + {b} = ?", "Calculate {a} + {b}.",
    "Add {a} and {b}.",
    "How much is {a} + {b}?", "How much is {a} plus {b}?", "Compute {a} + {b}.", "Work out {a} plus {b}.",
    "What's {a} + {b}?", "What is the sum of {a} and {b}?", "{a} plus {b}?", "What does {a} + {b} equal?",
    "I have {a} coins and get {b} more. How many coins do I have?", "Can you add {a} and {b}?", "Sum of {a} and {b}?",
)  # fmt: skip
SUB = (
    "What is {a} - {b}?", "What is {a} minus {b}?", "{a} - {b}", "{a} - {b} = ?", "Calculate {a} - {b}.",
    "Subtract {b} from {a}.", "How much is {a} - {b}?", "How much is {a} minus {b}?", "Compute {a} - {b}.",
    "Take {b} away from {a}.", "What's {a} - {b}?", "{a} minus {b}?", "Work out {a} minus {b}.",
    "What is the difference of {a} and {b}?", "I have {a} coins and give away {b}. How many coins are left?",
)  # fmt: skip
MUL = (
    "What is {a} * {b}?", "What is {a} times {b}?", "{a} * {b}", "{a} x {b} = ?", "Calculate {a} * {b}.",
    "Multiply {a} by {b}.", "How much is {a} times {b}?", "What's {a} x {b}?", "Compute {a} times {b}.",
    "{a} times {b}?",
    "What is {a} multiplied by {b}?", "What is the product of {a} and {b}?",
    "One box holds {a} pens. How many in {b} boxes?",
)  # fmt: skip


def add_work(a: int, b: int) -> str:
    """Ones, then carry and tens, results with two digits; for numbers below 100."""
    ones = a % 10 + b % 10
    return f"{a % 10}+{b % 10}={ones:02d}, {ones // 10}+{a // 10}+{b // 10}={ones // 10 + a // 10 + b // 10:02d}"


def sub_work(a: int, b: int) -> str:
    """Ones, with ten borrowed when needed, then tens; a >= b."""
    borrow = int(a % 10 < b % 10)
    tens = a // 10 - borrow - b // 10
    return f"{borrow}{a % 10}-{b % 10}={a % 10 + 10 * borrow - b % 10}, {a // 10}-{borrow}-{b // 10}={tens}"


def mul_work(a: int, b: int) -> str:
    """Two digits times one: ones, tens, then the carry digit by digit: each step is one that other numbers need too."""
    ones, tens = a % 10 * b, a // 10 * b
    low = tens % 10 + ones // 10
    return (
        f"{a % 10}*{b}={ones:02d}, {a // 10}*{b}={tens:02d}, "
        f"{tens % 10}+{ones // 10}={low:02d}, {tens // 10}+{low // 10}={tens // 10 + low // 10}"
    )


def sign(a: int, b: int) -> str:
    return "<" if a < b else ">" if a > b else "="


def compare_work(a: int, b: int) -> str:
    """Tens, and ones where the tens are equal; for different numbers below 100."""
    tens = f"{a // 10} {sign(a // 10, b // 10)} {b // 10}"
    return tens if a // 10 != b // 10 else f"{tens}, {a % 10} {sign(a % 10, b % 10)} {b % 10}"


def sort_work(numbers: list[int]) -> str:
    """One number after the other put into its place."""
    return "; ".join(" ".join(map(str, sorted(numbers[: i + 1]))) for i in range(len(numbers)))


def _operand(rng: Random) -> int:
    return rng.randrange(100) if rng.random() < 0.8 else rng.randrange(21)


def add(rng: Random) -> Sample:
    a, b = _operand(rng), _operand(rng)
    return Sample(
        f"add:{min(a, b)}:{max(a, b)}", user(polite(rng, ask(rng, ADD, a=a, b=b))), f"{a} + {b} = {a + b}",
        add_work(a, b), show_work=True,
    )  # fmt: skip


def sub(rng: Random) -> Sample:
    b, a = sorted((_operand(rng), _operand(rng)))
    return Sample(
        f"sub:{a}:{b}",
        user(polite(rng, ask(rng, SUB, a=a, b=b))),
        f"{a} - {b} = {a - b}",
        sub_work(a, b),
        show_work=True,
    )


def mul(rng: Random) -> Sample:
    a, b = rng.randrange(2, 100) if rng.random() < 0.75 else rng.randrange(2, 10), rng.randrange(2, 10)
    return Sample(
        f"mul:{a}:{b}",
        user(polite(rng, ask(rng, MUL, a=a, b=b))),
        f"{a} * {b} = {a * b}",
        mul_work(a, b),
        show_work=True,
    )


# A request to count down says so: to tell the direction from two numbers alone is another task.
COUNT = {
    "up": (
        "Count from {a} to {b}.", "Count up from {a} to {b}.", "Write the numbers from {a} to {b}.",
        "List all numbers from {a} to {b}.", "Start at {a} and count up to {b}.", "Say the numbers {a} to {b}.",
        "Can you count from {a} to {b}?", "Give me the numbers from {a} to {b}.",
    ),
    "down": (
        "Count down from {a} to {b}.", "Count backwards from {a} to {b}.", "Start at {a} and count down to {b}.",
        "Can you count down from {a} to {b}?",
    ),
}  # fmt: skip


def count(rng: Random) -> Sample:
    n = rng.randrange(3, 11)
    a = 1 if rng.random() < 0.2 else rng.randrange(101 - n)
    numbers = list(range(a, a + n))
    way = "up"
    if rng.random() < 0.25:
        numbers.reverse()
        way = "down"
    first, last = numbers[0], numbers[-1]
    text = polite(rng, ask(rng, COUNT[way], a=first, b=last))
    return Sample(f"count:{first}:{last}", user(text), ", ".join(map(str, numbers)), f"{way} from {first} to {last}")


SORT = (
    "Sort these numbers: {x}.", "Sort {x}.", "Put {x} in order.", "Order these numbers: {x}.",
    "Sort the numbers {x} from small to large.", "Arrange {x} from smallest to largest.", "Please sort this list: {x}",
    "Write these numbers in order: {x}.", "Can you sort {x}?",
)  # fmt: skip


def sort(rng: Random) -> Sample:
    numbers = rng.sample(range(1, 100), rng.randrange(3, 6))
    ordered = ", ".join(map(str, sorted(numbers)))
    text = ask(rng, SORT, x=", ".join(map(str, numbers)))
    key = "sort:" + ":".join(map(str, numbers))
    return Sample(key, user(text), ordered, sort_work(numbers), show_work=True)


COMPARE = {
    "larger": (
        "Which is larger, {a} or {b}?", "Which number is bigger, {a} or {b}?", "What is larger: {a} or {b}?",
        "Give me the larger of {a} and {b}.", "Is {a} or {b} the larger number?", "Which is greater, {a} or {b}?",
    ),
    "smaller": (
        "Which is smaller, {a} or {b}?", "Which number is smaller, {a} or {b}?", "What is less: {a} or {b}?",
        "Give me the smaller of {a} and {b}.", "Is {a} or {b} the smaller number?", "Which is lower, {a} or {b}?",
    ),
}  # fmt: skip


def larger(rng: Random) -> Sample:
    a, b = rng.sample(range(100), 2)
    which = rng.choice(("larger", "larger", "smaller"))
    best = max(a, b) if which == "larger" else min(a, b)
    text = polite(rng, ask(rng, COMPARE[which], a=a, b=b))
    work = f"{compare_work(a, b)}, {max(a, b)} > {min(a, b)}"
    return Sample(f"larger:{min(a, b)}:{max(a, b)}", user(text), f"{best} is {which}.", work, show_work=True)


# from, to, digit and zeros of the factor
UNITS = (
    ("weeks", "days", 7, 0), ("hours", "minutes", 6, 1), ("minutes", "seconds", 6, 1), ("centimeters",
    "millimeters", 1, 1),
    ("meters", "centimeters", 1, 2), ("kilometers", "meters", 1, 3), ("kilograms", "grams", 1, 3),
    ("liters", "milliliters", 1, 3), ("tons", "kilograms", 1, 3), ("decades", "years", 1, 1), ("centuries",
    "years", 1, 2),
    ("gallons", "quarts", 4, 0), ("yards", "feet", 3, 0),
)  # fmt: skip
CONVERT = (
    "How many {to} are {n} {of}?", "How many {to} are in {n} {of}?", "Convert {n} {of} to {to}.",
    "What is {n} {of} in {to}?",
    "{n} {of} in {to}?", "Turn {n} {of} into {to}.", "Express {n} {of} in {to}.", "How many {to} make {n} {of}?",
)  # fmt: skip


def unit(rng: Random) -> Sample:
    of, to, digit, zeros = rng.choice(UNITS)
    n = rng.randrange(2, 100) if rng.random() < 0.5 else rng.randrange(2, 13)
    rate = f"1 = {digit}{'0' * zeros}"
    if digit == 1:
        work = f"{rate}, {zeros} zeros after {n}"
    else:
        work = f"{rate}, {mul_work(n, digit)}" + (f", {zeros} zero after {n * digit}" if zeros else "")
    text = polite(rng, ask(rng, CONVERT, n=n, of=of, to=to))
    answer = f"{n} {of} are {n * digit * 10**zeros} {to}."
    also = (f"mul:{n}:{digit}",) if digit != 1 else ()
    return Sample(f"unit:{of}:{n}", user(text), answer, work, show_work=digit != 1, also=also)
