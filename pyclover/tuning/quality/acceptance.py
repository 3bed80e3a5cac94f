"""How many drafted tokens a file accepts: the same prompts, greedy, drafts of one fixed length."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pyclover.clover import Clover
from pyclover.engine.results import Stats
from pyclover.engine.speculation import DraftSelf
from pyclover.errors import FileError

N_MAX = 7
N_CTX = 1024  # that prompts and answers need
PROMPTS = (
    "What is 12 + 7?",
    "Why is the sky blue?",
    "Write a Python function that reverses a list.",
    "Name three large rivers and the seas into which they flow.",
    "Write a short story about a lighthouse keeper and a lost boat.",
    "Explain in two sentences what a hash table is.",
)


@dataclass(frozen=True)
class Acceptance:
    """Drafts and what became of them, over all prompts.

    Attributes:
        n_max: tokens of a draft. rounds: drafts that were made and checked. drafted, accepted: tokens.
        n_generated: tokens that came out.
    """

    n_max: int
    n_prompts: int
    n_generated: int
    rounds: int
    drafted: int
    accepted: int

    @property
    def accepted_per_round(self) -> float:
        """Mean number of accepted tokens of a draft, 0 to n_max."""
        return self.accepted / self.rounds if self.rounds else 0.0

    @property
    def share(self) -> float:
        """Accepted share of the drafted tokens, 0 to 1."""
        return self.accepted / self.drafted if self.drafted else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Counts and both rates."""
        return {**asdict(self), "accepted_per_round": self.accepted_per_round, "share": self.share}


def measure(model: Clover, prompts: Sequence[str], n_predict: int, after_each: Callable[[int], None]) -> Acceptance:
    """Lets a model that can draft answer the prompts, each as a user's turn of its chat template.

    Args:
        n_predict: tokens of an answer at most. after_each: is told how many prompts are done.
    """
    settings = DraftSelf(n_max=N_MAX, adaptive=False)
    all_stats: list[Stats] = []
    for i, prompt in enumerate(prompts):
        text = model.apply_chat_template([{"role": "user", "content": prompt}])
        done = model.generate(text, max_tokens=n_predict, temperature=0, speculation=settings)
        all_stats.append(done.stats)
        after_each(i + 1)
    return Acceptance(
        n_max=N_MAX,
        n_prompts=len(all_stats),
        n_generated=sum(s.n_generated for s in all_stats),
        rounds=sum(s.rounds for s in all_stats),
        drafted=sum(s.drafted for s in all_stats),
        accepted=sum(s.accepted for s in all_stats),
    )


def read(path: Path) -> Acceptance | None:
    """What an earlier run measured; None when it is not there."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return Acceptance(**{name: int(data[name]) for name in Acceptance.__dataclass_fields__})
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def write(path: Path, found: Acceptance) -> None:
    """Keeps what was measured.

    Raises:
        FileError: the disk cannot be written.
    """
    draft = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        draft.write_text(json.dumps(asdict(found)) + "\n", encoding="utf-8")
        os.replace(draft, path)
    except OSError as error:
        raise FileError(
            f"{path}: cannot be written: {error.strerror or error}; make room or choose another folder with cache_dir "
            "(PYCLOVER_CACHE)", path=path,
        ) from error  # fmt: skip
