"""Where drafts are begun to calibrate block passes: the same places of the same text for every setting.

The text is the model's own, plainly and greedily. At a place of it a round would draft n tokens from one preview and
keep those that agree with the text, up to the first that does not. So the text needs to be written once, and each
setting costs one preview a place: no checks, and nothing to take back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import numpy as np

from pyclover.engine import blocks, generate
from pyclover.engine.sampling import Sampling
from pyclover.tuning.calibrate import Setting
from pyclover.tuning.journal import Journal
from pyclover.tuning.prompts import Prompt

if TYPE_CHECKING:
    from pyclover.clover import Clover

STRIDE = 3  # tokens from one place to the next


class Places:
    """Scores settings on a model: the mean accepted tokens a round, by prompt.

    Args:
        max_tokens: of each answer. n_max: tokens of a draft.
        journal: keeps the scores of each setting; those that it holds are not measured again.
        progress: called with the share of the present measurement that is done.
    """

    def __init__(
        self,
        clover: Clover,
        prompts: Sequence[Prompt],
        *,
        max_tokens: int,
        n_max: int,
        journal: Journal,
        progress: Callable[[float], None] | None = None,
    ) -> None:
        self._clover, self._context = clover, clover._context
        self._base = blocks.get_block_params(self._context)
        self._n_max, self._journal, self._progress = n_max, journal, progress
        self._mask = clover.info.mask
        self._max_tokens = max_tokens
        self._prompts = prompts
        self._texts: list[tuple[list[int], list[int]]] = []

    @property
    def texts(self) -> list[tuple[list[int], list[int]]]:
        """Prompt and answer of each prompt whose answer has a place for a draft."""
        if not self._texts:
            greedy = Sampling(temperature=0.0)
            for prompt in self._prompts:
                tokens = prompt.tokens(self._clover)
                answer = generate.complete(
                    generate.stream(
                        self._context, tokens, max_tokens=self._max_tokens, stop=(), sampling=greedy, speculation=None
                    )
                ).tokens
                if len(answer) > 1:
                    self._texts.append((tokens, list(answer)))
        return self._texts

    @property
    def n_places(self) -> int:
        return sum(len(_places(answer)) for _, answer in self.texts)

    def __call__(self, settings: Sequence[Setting]) -> list[tuple[float, ...]]:
        known = {_name(turn["setting"]): tuple(turn["scores"]) for turn in self._journal.turns}
        new = [s for s in settings if _name(s.to_dict()) not in known]
        if new:
            for setting, scores in zip(new, self._measured(new), strict=True):
                self._journal.append({"setting": setting.to_dict(), "scores": scores})
                known[_name(setting.to_dict())] = scores
        return [known[_name(s.to_dict())] for s in settings]

    def _measured(self, settings: Sequence[Setting]) -> list[tuple[float, ...]]:
        sums = [[0.0] * len(self.texts) for _ in settings]
        done, n_places = 0, self.n_places
        try:
            for at, (tokens, answer) in enumerate(self.texts):
                places = _places(answer)
                for place in places:
                    # the memory ends before the last known token, as in a round
                    with self._context.claim.held():
                        self._context.arm()
                        self._context.prompt([*tokens, *answer[:place]])
                        for i, setting in enumerate(settings):
                            n = self._accepted(setting, len(tokens) + place, answer[place:])
                            sums[i][at] += n / len(places)
                    done += 1
                    if self._progress is not None:
                        self._progress(done / n_places)
        finally:
            with self._context.claim.held():
                blocks.set_block_params(self._context, self._base)
        return [tuple(values) for values in sums]

    def _accepted(self, setting: Setting, n_prefix: int, text: Sequence[int]) -> int:
        """Drafted tokens that agree with the text behind its first token, up to the first that does not."""
        wanted = text[1 : self._n_max + 1]
        blocks.set_block_params(self._context, setting.params(self._base))
        logits = blocks.preview(self._context, [text[0], *[self._mask] * (setting.rows - 1)], n_prefix)
        logits[:, self._mask] = -np.inf  # never chosen
        draft = logits[1 : len(wanted) + 1].argmax(-1)
        n = 0
        while n < len(wanted) and draft[n] == wanted[n]:
            n += 1
        return n


def _places(answer: Sequence[int]) -> range:
    return range(0, len(answer) - 1, STRIDE)


def _name(setting: dict[str, object]) -> str:
    return repr(sorted(setting.items()))


def alternatives(
    start: Setting, *, n_expert: int, n_expert_used: int, n_max: int, n_rows: int
) -> dict[str, list[object]]:
    """Values to try of each parameter.

    Args:
        n_expert, n_expert_used: of the model; coresets are all, and 2, 4 and 8 times as many as one token uses.
        n_max: tokens of a draft. n_rows: that the context computes at once, at most 32 are tried.
    """
    coresets = [0, *(k for m in (2, 4, 8) if (k := m * n_expert_used) < n_expert)] if n_expert_used else [0]
    rows = [r for r in (n_max + 1, 16, 32) if n_max < r <= n_rows]
    values: dict[str, list[object]] = {
        "shift_logits": [False, True], "history_query": ["scaled", "unit"],
        "scale_activation": ["none", "exp", "softplus"], "expert_coreset": list(coresets), "rows": list(rows),
    }  # fmt: skip
    return {name: list(dict.fromkeys([asdict(start)[name], *v])) for name, v in values.items()}
