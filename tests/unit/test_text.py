"""Stream assembly: whatever the cuts, the text is that of the whole; see the rules in pyclover/engine/text.py."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyclover.engine.text import TextAssembler


def whole(data: bytes, stops: Sequence[str]) -> tuple[str, str | None]:
    """The rule, word for word: decode all, then cut at the stop that starts first, the longest of those."""
    text = data.decode("utf-8", "replace")
    found = [(text.index(stop), -len(stop), stop) for stop in stops if stop in text]
    if not found:
        return text, None
    start, _, stop = min(found)
    return text[:start], stop


def chunks(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


def run(pieces: Sequence[bytes], stops: Sequence[str]) -> tuple[str, str | None]:
    assembler = TextAssembler(stops)
    emitted = [assembler.push(piece) for piece in pieces]
    emitted.append(assembler.finish())
    text = "".join(emitted)
    assert assembler.text == text
    return text, assembler.stopped


# A small alphabet makes partial and overlapping stops likely; the wide characters have 2, 3 and 4 bytes.
TEXT = st.text(alphabet="ab<é€😀", max_size=40)
STOPS = st.lists(st.text(alphabet="ab<é€😀", min_size=1, max_size=6), max_size=5)
CUTS = st.lists(st.integers(min_value=0), max_size=12)
# Bytes that begin, continue and break UTF-8 sequences of every length.
BROKEN = st.lists(
    st.sampled_from([b"a", b"b", b"\x80", b"\xbf", b"\xc3", b"\xe2\x82", b"\xed\xa0", b"\xf0\x9f\x98", b"\xff"])
)


@given(TEXT, STOPS, CUTS)
def test_any_cut_of_any_text_gives_the_text_of_the_whole(text: str, stops: list[str], cuts: list[int]) -> None:
    data = text.encode()
    assert run(chunks(data, cuts), stops) == whole(data, stops)


@given(st.one_of(st.binary(max_size=60), BROKEN.map(b"".join)), STOPS, CUTS)
def test_any_cut_of_any_bytes_gives_the_text_of_the_whole(data: bytes, stops: list[str], cuts: list[int]) -> None:
    assert run(chunks(data, cuts), stops) == whole(data, stops)


@given(TEXT, STOPS)
def test_byte_by_byte_equals_the_whole(text: str, stops: list[str]) -> None:
    data = text.encode()
    assert run([data[i : i + 1] for i in range(len(data))], stops) == whole(data, stops)


@given(st.text(), st.lists(st.text(min_size=1), max_size=4), CUTS)
def test_any_characters_as_text_and_stops(text: str, stops: list[str], cuts: list[int]) -> None:
    data = text.encode("utf-8", "surrogatepass")
    stops = [stop.encode("utf-8", "replace").decode() for stop in stops]
    assert run(chunks(data, cuts), stops) == whole(data, stops)


@given(TEXT, STOPS, CUTS)
def test_no_more_is_held_back_than_the_longest_beginning_of_a_stop(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    assembler = TextAssembler(stops)
    seen = b""
    for piece in chunks(text.encode(), cuts):
        assembler.push(piece)
        seen += piece
        if assembler.stopped is not None or whole(seen, stops)[1] is not None:
            break
        decoded = seen.decode("utf-8", "ignore")  # valid text: only an unfinished character at the end is missing
        partial = max((n for stop in stops for n in range(len(stop)) if decoded.endswith(stop[:n])), default=0)
        assert assembler.text == decoded[: len(decoded) - partial]


@pytest.mark.parametrize("text", ["é", "€", "😀", "a😀b€c"])
def test_a_character_is_never_split(text: str) -> None:
    data = text.encode()
    for cut in range(len(data) + 1):
        assembler = TextAssembler()
        first = assembler.push(data[:cut])
        assert "\ufffd" not in first
        assert text.startswith(first)
        assert first + assembler.push(data[cut:]) == text
        assert assembler.finish() == ""


@pytest.mark.parametrize(
    ("data", "text"),
    [  # Unicode 15, section 3.9, "U+FFFD substitution of maximal subparts", tables 3-8 to 3-11
        (b"\xc0\xaf\xe0\x80\xbf\xf0\x81\x82\x41", "\ufffd" * 8 + "A"),
        (b"\xed\xa0\x80\xed\xbf\xbf\xed\xaf\x41", "\ufffd" * 8 + "A"),
        (b"\xf4\x91\x92\x93\xff\x41\x80\xbf\x42", "\ufffd" * 5 + "A" + "\ufffd" * 2 + "B"),
        (b"\xe1\x80\xe2\xf0\x91\x92\xf1\xbf\x41", "\ufffd" * 4 + "A"),
    ],
)
def test_invalid_bytes_are_replaced_as_unicode_asks(data: bytes, text: str) -> None:
    assert run([bytes([byte]) for byte in data], []) == (text, None)


def test_an_unfinished_character_at_the_end_is_one_replacement() -> None:
    assembler = TextAssembler()
    assert assembler.push(b"ok\xf0\x9f\x98") == "ok"
    assert assembler.finish() == "\ufffd"


def test_partial_stop_is_held_and_released() -> None:
    assembler = TextAssembler(["<end>"])
    assert assembler.push(b"one <e") == "one "
    assert assembler.push(b"n") == ""
    assert assembler.push(b"joy") == "<enjoy"
    assert assembler.finish() == ""
    assert assembler.stopped is None


def test_stop_in_the_middle_of_one_push_drops_the_rest() -> None:
    assembler = TextAssembler(["\n\n"])
    assert assembler.push(b"answer\n\nmore") == "answer"
    assert assembler.stopped == "\n\n"
    assert assembler.push(b"even more") == ""
    assert assembler.finish() == ""
    assert assembler.text == "answer"


def test_a_stop_that_cannot_grow_ends_the_text_at_once() -> None:
    assembler = TextAssembler(["STOP", "TOPAZ"])
    assert assembler.push(b"a STO") == "a "
    assert assembler.push(b"P") == ""
    assert assembler.stopped == "STOP"


def test_of_stops_with_one_start_the_longest_wins() -> None:
    assembler = TextAssembler(["ab", "abcd"])
    assert assembler.push(b"xabc") == "x"
    assert assembler.stopped is None  # "abcd" may still come
    assert assembler.push(b"d") == ""
    assert assembler.stopped == "abcd"


def test_a_longer_stop_that_does_not_come_leaves_the_shorter() -> None:
    assembler = TextAssembler(["ab", "abcd"])
    assert assembler.push(b"xabc") == "x"
    assert assembler.push(b"e") == ""
    assert assembler.stopped == "ab"


def test_a_waiting_match_counts_at_the_end() -> None:
    assembler = TextAssembler(["ab", "abcd"])
    assembler.push(b"xabc")
    assert assembler.finish() == ""
    assert (assembler.text, assembler.stopped) == ("x", "ab")


def test_an_inner_match_waits_for_the_stop_that_began_before() -> None:
    assert run([b"xabc", b"!"], ["abcd", "b"]) == ("xa", "b")
    assert run([b"xabc", b"d"], ["abcd", "b"]) == ("x", "abcd")


def test_a_held_beginning_is_flushed_at_the_end() -> None:
    assembler = TextAssembler(["###"])
    assert assembler.push(b"a##") == "a"
    assert assembler.finish() == "##"
    assert assembler.finish() == ""


def test_one_string_is_one_stop() -> None:
    assert run([b"a cat"], "cat") == ("a ", "cat")


def test_an_empty_stop_is_refused() -> None:
    with pytest.raises(ValueError, match="a stop string is empty"):
        TextAssembler(["a", ""])


def test_push_after_finish_is_refused() -> None:
    assembler = TextAssembler()
    assembler.finish()
    with pytest.raises(ValueError, match="after finish"):
        assembler.push(b"a")


@pytest.mark.parametrize("piece", [1, 7])
def test_cost_is_linear_in_the_text_and_independent_of_the_stops(piece: int) -> None:
    """Worst case of a naive search: every character goes on with a long beginning of all stops.

    Not timed: the work is counted in steps of the automaton, so that a busy machine cannot fail it.
    """
    size = 20_000
    stops = ["a" * 5_000 + end for end in "wxyz"]
    assembler = TextAssembler(stops)
    matcher = assembler._matcher
    assert matcher is not None
    steps = 0
    fail = matcher._fail

    class Counting(list[int]):
        def __getitem__(self, index):  # type: ignore[no-untyped-def]
            nonlocal steps
            steps += 1
            return fail[index]

    matcher._fail = Counting(fail)
    data = b"a" * size
    for at in range(0, size, piece):
        assembler.push(data[at : at + piece])
    assert assembler.text == "a" * (size - 5_000)
    assert steps <= size  # one suffix link a character at most, over the whole text
