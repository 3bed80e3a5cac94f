"""Documents as tokens, packed into the fixed shapes of a training batch, with the noisy blocks drawn.

The noisy rows of a sequence are blocks of random length without gaps. A draft block starts with one known token, as in
drafting; the others start anywhere around the answer, with the prompt's tail known, as in block diffusion. What follows
the end of an answer inside a block is <|endoftext|>.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer

from training.config import TrainConfig
from training.data.mix import Document, training_document
from training.step import Batch
from training.tokenizer import END_OF_TEXT, MASK, token_id

CLEAN = ("c_ids", "c_doc", "c_pos", "c_target", "c_weight")
NOISY = ("x_ids", "x_doc", "x_pos", "x_block", "x_off", "x_after", "x_start", "x_target", "x_weight")
_POOL = 48  # documents to choose from when a sequence is filled


@dataclass(frozen=True)
class Tokens:
    """ids of prompt and answer; the answer, its end token included, starts at `begin`."""

    ids: list[int]
    begin: int


def encode(tokenizer: Tokenizer, documents: list[Document]) -> list[Tokens]:
    """Prompt and answer are cut apart before they are cut into tokens; the template makes both ways equal."""
    prompts = tokenizer.encode_batch([d.prompt for d in documents], add_special_tokens=False)
    answers = tokenizer.encode_batch([d.answer for d in documents], add_special_tokens=False)
    return [Tokens(p.ids + a.ids, max(len(p.ids), 1)) for p, a in zip(prompts, answers, strict=True)]


class Packer:
    """Batches of one process. What a step gets depends on seed, process and step only; a resumed run goes on alike."""

    def __init__(self, tokenizer: Tokenizer, config: TrainConfig, process: int) -> None:
        self.tokenizer, self.config, self.process = tokenizer, config, process
        self.mask = token_id(tokenizer, MASK)
        self.after = token_id(tokenizer, END_OF_TEXT)

    def batch(self, step: int, progress: float) -> Batch:
        """progress: the done share of the run, 0 to 1, which decides mix and kinds of blocks."""
        c = self.config
        rng = Random(f"{c.seed}/{self.process}/{step}")
        pool = self._documents(rng, progress)
        arrays: dict[str, list[npt.NDArray[np.float64]]] = {name: [] for name in (*CLEAN, *NOISY)}
        for _ in range(c.batch):
            placed, clean = self._clean(rng, pool, progress)
            for name, values in (*clean.items(), *self._noisy(rng, placed, progress >= c.whole_share).items()):
                arrays[name].append(np.array(values, dtype=np.float64))
        tensors = (torch.from_numpy(np.stack(arrays[name])) for name in (*CLEAN, *NOISY))
        return Batch(
            *(t.float() if "weight" in n else t.long() for n, t in zip((*CLEAN, *NOISY), tensors, strict=True))
        )

    def _documents(self, rng: Random, progress: float) -> list[Tokens]:
        copy_heavy = progress < self.config.copy_share
        drawn = encode(self.tokenizer, [training_document(rng, copy_heavy) for _ in range(_POOL)])
        return [d for d in drawn if len(d.ids) < self.config.length]  # the few that no sequence holds are left out

    def _clean(
        self, rng: Random, pool: list[Tokens], progress: float
    ) -> tuple[list[tuple[Tokens, int]], dict[str, list[float]]]:
        """Takes documents out of the pool until none fits -> documents with their places, and the clean rows."""
        c = self.config
        rows: dict[str, list[float]] = {name: [] for name in CLEAN}
        placed: list[tuple[Tokens, int]] = []
        while room := c.length - len(rows["c_ids"]):
            at = next((i for i, d in enumerate(pool) if len(d.ids) + 1 <= room), None)
            if at is None:
                if len(pool) < _POOL // 2:
                    pool += self._documents(rng, progress)
                    continue
                break
            d = pool.pop(at)
            placed.append((d, len(rows["c_ids"])))
            tail = min(room - len(d.ids), 8 if rng.random() < 0.25 else 2)
            n = len(d.ids)
            rows["c_ids"] += [*d.ids, *[self.after] * tail]
            rows["c_target"] += [*d.ids[1:], *[self.after] * (tail + 1)]
            weights = [1.0 if i + 1 >= d.begin else c.prompt_weight for i in range(n - 1)]
            rows["c_weight"] += [*weights, *[c.after_end_weight] * (tail + 1)]
            rows["c_doc"] += [len(placed) - 1] * (n + tail)
            rows["c_pos"] += range(n + tail)
        pad = c.length - len(rows["c_ids"])
        for name, value in (("c_ids", self.after), ("c_target", self.after), ("c_weight", 0), ("c_doc", len(placed))):
            rows[name] += [value] * pad
        rows["c_pos"] += range(pad)
        return placed, rows

    def _noisy(self, rng: Random, placed: list[tuple[Tokens, int]], whole: bool) -> dict[str, list[float]]:
        c = self.config
        rows: dict[str, list[float]] = {name: [] for name in NOISY}
        lengths = [len(d.ids) - d.begin for d, _ in placed]
        number = 0
        while room := c.noisy - len(rows["x_ids"]):
            doc = rng.choices(range(len(placed)), lengths)[0]
            d, place = placed[doc]
            draft = rng.random() < (0.3 if whole else 0.6)
            size = min(room, self._size(rng, draft, whole))
            start, masked = self._block(rng, d, draft, size)
            for off in range(size):
                at = start + off
                token = d.ids[at] if at < len(d.ids) else self.after
                row = {
                    "x_ids": self.mask if masked[off] else token,
                    "x_doc": doc,
                    "x_pos": at,
                    "x_block": number,
                    "x_off": off,
                    "x_after": size - 1 - off,
                    "x_start": place + start,
                    "x_target": token,
                    "x_weight": masked[off] * (1.0 if at < len(d.ids) else c.after_end_weight),
                }
                for name, value in row.items():
                    rows[name].append(value)
            number += 1
        return rows

    def _size(self, rng: Random, draft: bool, whole: bool) -> int:
        if whole and not draft:
            return rng.choice((8, 8, 8, 16, 16, 32))
        roll = rng.random()
        return 8 if roll < (0.6 if whole else 0.4) else rng.randrange(2, 17) if roll < 0.92 else rng.randrange(17, 33)

    def _block(self, rng: Random, d: Tokens, draft: bool, size: int) -> tuple[int, list[bool]]:
        """Place of the block's first row in the document, and which rows are masked (at least one)."""
        n = len(d.ids)
        if draft and size > 1:
            start, known = rng.randrange(d.begin - 1, n - 1), 1
            ratio = 1.0 if rng.random() < 0.8 else rng.random()
        else:
            start = rng.randrange(max(0, d.begin - size + 1), n)
            known = max(0, d.begin - start)
            ratio = 1.0 if rng.random() < 0.4 else rng.random()
        masked = [off >= known and rng.random() < ratio for off in range(size)]
        if not any(masked):
            masked[rng.randrange(known, size)] = True
        return start, masked
