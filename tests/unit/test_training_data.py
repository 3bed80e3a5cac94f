"""The generators: answers right by another computation, the split kept, texts as the chat template renders them."""

from __future__ import annotations

import json
import operator
import re
import sys
from random import Random

import pytest
from support import ROOT

for module in ("tokenizers", "jinja2"):
    pytest.importorskip(module, reason=f"training needs {module}")
sys.path.append(str(ROOT))

from training.data import mix, structured, tools  # noqa: E402
from training.data.base import held_out  # noqa: E402
from training.template import render_jinja, split_chat  # noqa: E402

SIGNS_OF_ORDER = {"<": operator.lt, ">": operator.gt, "=": operator.eq}
SIGNS = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}
# What one of the larger unit is, from common knowledge, not from the generator's table.
FACTORS = {
    "weeks": 7, "hours": 60, "minutes": 60, "centimeters": 10, "meters": 100, "kilometers": 1000, "kilograms": 1000,
    "liters": 1000, "tons": 1000, "decades": 10, "centuries": 100, "gallons": 4, "yards": 3,
}  # fmt: skip


def samples(kind: str, n: int = 300) -> list[tuple[str, str, str]]:
    """(last question, thought, answer)"""
    rng = Random(f"test/{kind}")
    drawn = [mix.draw(kind, rng, evaluation=bool(i % 2)) for i in range(n)]
    return [(s.messages[-1]["content"], s.work, s.answer) for s in drawn]


def numbers(text: str) -> list[int]:
    return [int(x) for x in re.findall(r"\d+", text)]


@pytest.mark.parametrize("kind", ["add", "sub", "mul"])
def test_sums(kind: str) -> None:
    for question, work, answer in samples(kind):
        a, sign, b, value = re.fullmatch(r"(\d+) ([-+*]) (\d+) = (\d+)", answer).groups()  # type: ignore[union-attr]
        assert SIGNS[sign](int(a), int(b)) == int(value)
        assert sorted(numbers(question)) == sorted([int(a), int(b)])
        for step in work.split(", "):  # each equation of the thought holds
            left, right = step.split("=")
            assert _value(left) == int(right), work
        *_, high = work.split("=")  # the last digits of the equations are the result
        first, *others = work.split(", ")
        low = (others[1][-1] if kind == "mul" else "") + first[-1]
        assert int(high + low) == int(value), work


def _value(text: str) -> int:
    total = 0
    for sign, term in re.findall(r"([-+]?)([\d*]+)", text):
        product = 1
        for factor in term.split("*"):
            product *= int(factor)
        total += -product if sign == "-" else product
    return total


def test_words() -> None:
    for question, work, answer in samples("reverse"):
        assert answer.replace("-", "")[::-1] == work.replace("-", "")
        assert work.replace("-", "") in question
    for question, _, answer in samples("spell"):
        assert answer.replace("-", "") in question
        assert all(len(part) == 1 for part in answer.split("-"))
    for question, work, answer in samples("letters"):
        word, n = re.fullmatch(r"(\w+) has (\d+) letters\.", answer).groups()  # type: ignore[union-attr]
        assert len(word) == int(n)
        assert word in question
        assert [part[0] for part in work.split("-")] == list(word)
        assert numbers(work) == list(range(1, int(n) + 1))
    for _, work, answer in samples("occur"):
        letter, word, times = re.fullmatch(r"(\w) is in (\w+) (once|\d+ times)\.", answer).groups()  # type: ignore[union-attr]
        n = sum(1 for x in word if x == letter)
        assert times == ("once" if n == 1 else f"{n} times")
        assert [part[0] for part in work.split("-")] == list(word)
        assert [part[0] for part in work.split("-") if len(part) > 1] == [letter] * n  # the finds, numbered
        assert numbers(work) == list(range(1, n + 1))
    for question, _, answer in samples("repeat"):
        assert question.endswith(": " + answer)


def test_numbers_in_order() -> None:
    for question, work, answer in samples("sort"):
        given = numbers(question)
        assert numbers(answer) == sorted(given)
        steps = [numbers(step) for step in work.split("; ")]  # one number more in each, in order
        assert steps == [sorted(given[: i + 1]) for i in range(len(given))]
    for question, _, answer in samples("count"):
        first, last = numbers(question)
        step = 1 if last >= first else -1
        assert (step < 0) == ("down" in question or "backwards" in question)
        assert numbers(answer) == list(range(first, last + step, step))
    for question, work, answer in samples("larger"):
        pick = min if "smaller" in answer else max
        assert numbers(answer) == [pick(numbers(question))]
        assert all(SIGNS_OF_ORDER[sign](int(a), int(b)) for a, sign, b in map(str.split, work.split(", ")))
        assert numbers(work)[-2:] == sorted(numbers(question), reverse=True)
    for _, _, answer in samples("unit"):
        n, unit, value = re.match(r"(\d+) (\w+) are (\d+) ", answer).groups()  # type: ignore[union-attr]
        assert int(n) * FACTORS[unit] == int(value)


def test_logic_and_follow_up() -> None:
    for question, work, answer in samples("logic"):
        if found := re.fullmatch(r"(\d+) is (odd|even)\.", answer):
            assert int(found[1]) % 2 == (found[2] == "odd")
        elif "greater" in question or "less" in question:
            a, b = numbers(question)
            true = a > b if "greater" in question else a < b
            asked, tens, *ones, said = re.split(r"[?,] ", work)
            assert asked in question
            assert all(SIGNS_OF_ORDER[step[2]](int(step[0]), int(step[4])) for step in (tens, *ones))
            assert (tens[2] == "=") == bool(ones)
            assert said == f"{a} is {'greater' if a > b else 'less'}"
            assert answer == (
                ("True" if true else "False") if question.startswith("True") else ("Yes" if true else "No")
            )
        elif "Who" in question:
            pairs = re.findall(r"(\w+) is (?:taller|older|faster) than (\w+)\.", question)
            most = ({a for a, _ in pairs} - {b for _, b in pairs}).pop()
            least = ({b for _, b in pairs} - {a for a, _ in pairs}).pop()
            middle = ({a for a, _ in pairs} & {b for _, b in pairs}).pop()
            assert re.fullmatch(f"{most} is (\\w+) than {middle}, {middle} is \\1 than {least}", work)
            top = answer.rstrip(".").rsplit(" ", 1)[1] in ("tallest", "oldest", "fastest")
            assert answer.split(" ")[0] == (most if top else least)
    rng = Random(4)
    for _ in range(300):
        s = mix.draw("follow", rng)
        if found := re.fullmatch(r"(\d+) ([-+]) (\d+) = (\d+)", s.answer):
            assert SIGNS[found[2]](int(found[1]), int(found[3])) == int(found[4])
            assert s.messages[1]["content"].endswith(f"= {found[1]}")


def test_json_and_tools() -> None:
    rng = Random(6)
    for _ in range(200):
        s = structured.json_answer(rng)
        values = json.loads(s.answer)
        for value in values.values() if isinstance(values, dict) else values:
            assert str(value).lower() in s.messages[0]["content"].lower()
    for _ in range(200):
        s = tools.tool(rng)
        offered = {t["function"]["name"]: t["function"]["parameters"]["required"] for t in s.tools}
        for call in s.calls:
            f = call["function"]
            assert list(f["arguments"]) == offered[f["name"]]
            assert all(value in s.messages[0]["content"] for value in f["arguments"].values())
    for _ in range(200):
        s = tools.result(rng)
        found = json.loads(s.messages[-1]["content"])
        assert all(str(v) in s.answer or v is True for v in found.values())


@pytest.mark.parametrize("kind", list(mix.KINDS))
def test_held_out_prompts_are_never_trained_on(kind: str) -> None:
    rng = Random(f"split/{kind}")
    trained = {s.messages[-1]["content"] for s in (mix.draw(kind, rng) for _ in range(400)) if not s.tools}
    keys = [mix.draw(kind, rng, evaluation=True) for _ in range(100)]
    assert all(held_out(s.key) for s in keys)
    if kind in ("follow", "fact"):  # a follow-up question alone says nothing; a fact's may differ in a full stop only
        return
    assert not trained & {s.messages[-1]["content"] for s in keys if not s.tools}


def test_training_text_is_what_the_template_renders() -> None:
    """For every kind, with and without thinking and a system message: prompt, and prompt with answer."""
    for kind in mix.KINDS:
        rng = Random(f"template/{kind}")
        for i in range(24):
            s, thinking, system = mix.draw(kind, rng), bool(i % 2), i % 3 == 0
            chat = s.chat(thinking)
            if system:
                chat = [{"role": "system", "content": "Answer briefly."}, *chat]
            prompt, answer = split_chat(chat, s.tools, thinking)
            options = {"add_generation_prompt": True} | ({} if thinking else {"enable_thinking": False})
            assert render_jinja(chat[:-1], s.tools, **options) == prompt
            assert render_jinja(chat, s.tools) == prompt + answer + "\n"


def test_template_drops_old_thoughts_and_reads_them_in_contents() -> None:
    chat = [
        {"role": "user", "content": " a "},
        {"role": "assistant", "content": "<think>\nold\n</think>\n\nb"},
        {"role": "user", "content": "c"},
        {"role": "assistant", "content": "<think>\nnew\n</think>\n\nd"},
    ]
    assert render_jinja(chat) == (
        "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n"
        "<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n<think>\nnew\n</think>\n\nd<|im_end|>\n"
    )
    with pytest.raises(ValueError, match="must come first"):
        render_jinja([chat[0], {"role": "system", "content": "x"}])
    with pytest.raises(ValueError, match="empty"):
        render_jinja([])
