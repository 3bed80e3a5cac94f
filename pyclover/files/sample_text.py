"""Text for the sample model: what its tokenizer is learned from, its chat template, and the learning itself."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise

# Plain prose; only how often words and letter pairs occur matters.
TEXT = """
A small boat left the harbour before the sun was up. The water was quiet, and the only sound came from the ropes as
they moved against the wood. Two people sat in the boat. One of them held the rudder and looked at the stars, because
that was the way her mother had taught her to find the north. The other one made tea and talked about the weather.
They wanted to reach the island by noon. On the island there was a house with a blue door, and in the house there was
a library that nobody had opened for many years. The books were old, but the shelves were dry, and the letters on the
pages could still be read. Some of the books were about plants, some were about machines, and a few were about people
who had lived there long before the house was built.
When the wind grew stronger, they took in the sail and waited. There is always time to wait, she said, if you know
what you are waiting for. He thought about that for a while. Then he asked whether the clover on the hill would be in
flower again this year. She did not know, but she hoped so. Every summer the bees came over the water to find it, and
every autumn the fields were full of seeds.
Good work takes patience. First you look at the whole problem, then you look at each part, and then you write down
what you have found. If one part does not fit, you start again with that part and leave the others alone. A good plan
is short. A good answer says what is known, what is not known, and how to find out more. It is better to measure a
thing once than to guess it ten times, and it is better to say that you are not sure than to be wrong with confidence.
In the evening the house was warm. They had lit a fire, and the light of it moved over the walls and the open books.
Outside, the rain began to fall on the roof and on the garden and on the sea. What should we read first, he asked. The
one about the machines, she said, and after that the one about the bees. So they read until the fire was low, and the
next morning they found that the sky was clear, that the boat was still there, and that the clover was in flower.
"""

# ChatML. Thinking is left to the model; enable_thinking=false closes an empty thought, as Qwen3 templates do.
CHAT_TEMPLATE = """\
{%- for message in messages -%}
{{- '<|im_start|>' ~ message.role ~ '\\n' ~ (message.content or '') ~ '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\\n' -}}
{%- if enable_thinking is defined and not enable_thinking -%}
{{- '<think>\\n\\n</think>\\n\\n' -}}
{%- endif -%}
{%- endif -%}
"""

_WORD = re.compile(r" ?[A-Za-z]+| ?[^\sA-Za-z]+|\s+")


def byte_letters() -> list[str]:
    """One printable letter for each of the 256 bytes, as byte-level BPE vocabularies spell them.

    Printable Latin-1 bytes stand for themselves; the others take the letters from U+0100 on, in order.
    """
    spare = iter(range(0x100, 0x200))
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    return [chr(b if b in printable else next(spare)) for b in range(256)]


def learn_merges(n_merges: int, text: str = TEXT) -> list[tuple[str, str]]:
    """Byte pair encoding: the pairs to join, most frequent first; ties go to the pair that sorts first.

    Returns:
        at most `n_merges` pairs, fewer when the text has no more. No two pairs give the same token.
    """
    letters = byte_letters()
    words = Counter(tuple(letters[b] for b in w.encode()) for w in _WORD.findall(" ".join(text.split())))
    merges: list[tuple[str, str]] = []
    made: set[str] = set()
    while len(merges) < n_merges:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, n in words.items():
            for pair in pairwise(word):
                if pair[0] + pair[1] not in made:
                    pairs[pair] += n
        if not pairs:
            break
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        made.add(best[0] + best[1])
        joined: Counter[tuple[str, ...]] = Counter()
        for word, n in words.items():
            joined[_join(word, best)] += n
        words = joined
    return merges


def _join(word: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    out: list[str] = []
    i = 0
    while i < len(word):
        if word[i : i + 2] == pair:
            out.append(word[i] + word[i + 1])
            i += 2
        else:
            out.append(word[i])
            i += 1
    return tuple(out)
