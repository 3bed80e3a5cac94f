"""Tags in ordinary text: broken up for the parser, whole again behind it."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from pyclover.chat.guard import MARK, Guard, unmarked

TEXT = st.text(alphabet=f"ab<{MARK}é", max_size=30)
TAGS = st.lists(st.text(alphabet="ab<", min_size=1, max_size=4), max_size=4)
CUTS = st.lists(st.integers(0, 30), max_size=6)


def guarded(guard: Guard, text: str, cuts: list[int]) -> str:
    edges = [0, *sorted(min(at, len(text)) for at in cuts), len(text)]
    return "".join(guard.push(text[a:b]) for a, b in itertools.pairwise(edges)) + guard.flush()


@settings(deadline=None)
@given(TEXT, TAGS, CUTS)
def test_no_tag_is_left_and_the_way_back_is_unique(text: str, tags: list[str], cuts: list[int]) -> None:
    out = guarded(Guard(tags), text, cuts)
    assert not [tag for tag in tags if len(tag) > 1 and tag in out]
    assert unmarked(out) == text


@settings(deadline=None)
@given(TEXT, TAGS, CUTS)
def test_no_more_is_held_back_than_the_longest_beginning_of_a_tag(text: str, tags: list[str], cuts: list[int]) -> None:
    guard = Guard(tags)
    edges = [0, *sorted(min(at, len(text)) for at in cuts), len(text)]
    out = "".join(guard.push(text[a:b]) for a, b in itertools.pairwise(edges))
    partial = max((n for tag in tags for n in range(len(tag)) if text.endswith(tag[:n])), default=0)
    assert unmarked(out + "x") == text[: len(text) - partial] + "x"


@settings(deadline=None)
@given(TEXT, TAGS, st.integers(0, 60))
def test_every_beginning_goes_back_to_a_beginning(text: str, tags: list[str], n: int) -> None:
    out = guarded(Guard(tags), text, [])
    assert text.startswith(unmarked(out[:n]))


def test_tags_that_overlap_are_all_broken_up() -> None:
    out = guarded(Guard(["aba", "bab"]), "ababab", [])
    assert unmarked(out) == "ababab"
    assert "aba" not in out
    assert "bab" not in out


def test_what_cannot_become_a_tag_passes_at_once() -> None:
    guard = Guard(["</think>"])
    assert guard.push("a <") == "a "
    assert guard.push("/thin") == ""
    assert guard.push("g") == "</thing"
    assert guard.flush() == ""


def test_markers_of_the_text_stay() -> None:
    guard = Guard(["<x>"])
    out = guard.push(f"{MARK}<x>{MARK}{MARK}") + guard.flush()
    assert unmarked(out) == f"{MARK}<x>{MARK}{MARK}"
