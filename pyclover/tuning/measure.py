"""One timed run: a candidate answers a prompt. All contexts are on one model, so the weights are there once."""

from __future__ import annotations

import difflib
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Protocol

from pyclover.engine import blocks, generate
from pyclover.engine.context import Context
from pyclover.engine.sampling import Sampling
from pyclover.engine.speculation import DraftSelf, resolved
from pyclover.tuning.candidate import Candidate
from pyclover.tuning.prompts import Prompt

if TYPE_CHECKING:
    from pyclover.clover import Clover
    from pyclover.engine.blocks import BlockParams
    from pyclover.engine.results import Stats

WARM_TOKENS = 16


@dataclass(frozen=True, kw_only=True)
class Run:
    """What one run gave; counts and times as in `Stats`.

    Attributes:
        n_read: prompt tokens computed in prompt_s; block diffusion reads whole blocks alone there.
        decode_s: seconds in passes after the prompt and choosing tokens, for n_decoded tokens.
        passes_s: of them in passes.
        first_s: seconds from the call to the first token.
        changed: share of tokens that are not plain decoding's, see `changed_share`; None where that was not compared.
        tokens: the answer; not kept in a journal.
    """

    n_prompt: int = 0
    n_read: int = 0
    prompt_s: float = 0.0
    first_s: float = 0.0
    n_decoded: int = 0
    decode_s: float = 0.0
    passes_s: float = 0.0
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    emitted: int = 0
    n_plain: int = 0
    previews: int = 0
    commits: int = 0
    preview_s: float = 0.0
    verify_s: float = 0.0
    rollback_s: float = 0.0
    changed: float | None = None
    tokens: tuple[int, ...] = field(default=(), compare=False, repr=False)

    @property
    def s_per_token(self) -> float:
        """Seconds a token after the prompt; 0 when nothing was decoded."""
        return self.decode_s / self.n_decoded if self.n_decoded else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON, without what is 0 or None."""
        values = {k: v for k, v in asdict(self).items() if k != "tokens"}
        return {k: v for k, v in values.items() if v or (k == "changed" and v is not None)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Run:
        known = {f.name for f in fields(cls)}
        return cls(**{name: value for name, value in values.items() if name in known})


class Measurer(Protocol):
    """What answers a prompt with a candidate and times it."""

    def __call__(self, candidate: Candidate, prompt: Prompt) -> Run: ...


def changed_share(tokens: Sequence[int], plain: Sequence[int]) -> float:
    """Share of tokens that do not belong to the common parts of an answer and that of plain decoding, in order."""
    n = max(len(tokens), len(plain))
    if n == 0:
        return 0.0
    same = difflib.SequenceMatcher(None, list(tokens), list(plain), autojunk=False).get_matching_blocks()
    return 1 - sum(part.size for part in same) / n


def run_of(stats: Stats, first_s: float, tokens: Sequence[int]) -> Run:
    """The run that statistics tell of."""
    same = ("n_prompt", "prompt_s", "n_decoded", "rounds", "drafted", "accepted", "emitted", "n_plain", "previews",
            "commits", "preview_s", "verify_s", "rollback_s")  # fmt: skip
    return Run(
        first_s=first_s, n_read=stats.n_prompt_read, decode_s=stats.decode_s + stats.sample_s,
        passes_s=stats.decode_s, tokens=tuple(tokens),
        **{name: getattr(stats, name) for name in same},
    )  # fmt: skip


class Stand:
    """Runs candidates on a loaded model, with a context for each setting of threads and batch.

    Args:
        max_tokens: of an answer. temperature, seed: 0: greedy; the seed makes sampled answers the same for all.
        params: how block passes compute; None: as the file says.
    """

    def __init__(
        self,
        clover: Clover,
        *,
        max_tokens: int,
        temperature: float = 0.0,
        seed: int = 1,
        params: BlockParams | None = None,
    ) -> None:
        self.clover = clover
        self.max_tokens = max_tokens
        self._sampling = Sampling(temperature=temperature, seed=seed)
        self._model, self._first = clover._model, clover._context
        self.missing = blocks.block_pass_missing(self._model)
        self.base = params or blocks.get_block_params(self._first)  # how block passes compute by default
        self._contexts: dict[tuple[tuple[str, int], ...], Context] = {(): self._first}
        self._set: dict[int, BlockParams] = {}
        self._tokens: dict[Prompt, list[int]] = {}

    def context(self, candidate: Candidate) -> Context:
        """The context that a candidate runs on, with its way to compute block passes set."""
        load = tuple(sorted(candidate.load.items()))
        found = self._contexts.get(load)
        if found is None:
            load_options: dict[str, Any] = {**candidate.load}
            found = Context(self._model, replace(self._first.options, n_ctx=self._first.n_ctx, **load_options))
            self._contexts[load] = found
        if not self.missing and candidate.mode != "plain":
            k = candidate.expert_coreset
            params = self.base if k is None else replace(self.base, expert_coreset=k, expert_coreset_share=0.0)
            if self._set.get(id(found)) != params:
                blocks.set_block_params(found, params)
                self._set[id(found)] = params
        return found

    def set_base(self, params: BlockParams) -> None:
        """How block passes compute where a candidate does not say otherwise."""
        self.base = params

    def __call__(self, candidate: Candidate, prompt: Prompt) -> Run:
        return self.run(candidate, self.prompt_tokens(prompt), self.max_tokens)

    def prompt_tokens(self, prompt: Prompt) -> list[int]:
        if prompt not in self._tokens:
            self._tokens[prompt] = prompt.tokens(self.clover)
        return self._tokens[prompt]

    def run(self, candidate: Candidate, tokens: Sequence[int], max_tokens: int, *, ignore_eos: bool = False) -> Run:
        """One answer, the prompt read from its start.

        Raises:
            ContextFullError, UsageError, SpeculationUnavailableError: as Clover.stream().
        """
        context = self.context(candidate)
        n_rows = min(context.n_batch, context.n_ubatch)
        speculation = resolved(candidate.speculation, can_draft=not self.missing, n_rows=n_rows)
        if speculation is not None:
            blocks.require_block_pass(self._model, speculation.mode.split(" (")[0])
        if isinstance(speculation, DraftSelf):
            blocks.check_rows(context, speculation.n_rows, f"a draft of {speculation.n_max} tokens")
        with context.claim.held():
            context.clear()
        sampling = replace(self._sampling, ignore_eos=ignore_eos)
        answer: list[int] = []
        first_s, stats = 0.0, None
        began = time.perf_counter()
        for piece in generate.stream(
            context, tokens, max_tokens=max_tokens, stop=(), sampling=sampling, speculation=speculation
        ):
            if piece.tokens and not answer:
                first_s = time.perf_counter() - began
            answer += piece.tokens
            stats = piece.stats
        assert stats is not None  # a stream ends with a piece that has them
        return run_of(stats, first_s, answer)

    def warm_up(self, candidates: Sequence[Candidate], prompt: Prompt) -> None:
        """A short run of each, so that the first one that counts finds the machine as all others do."""
        for candidate in candidates:
            self.run(candidate, self.prompt_tokens(prompt), WARM_TOKENS)

    def cancel(self) -> None:
        """Stops the running call, from any thread."""
        for context in list(self._contexts.values()):
            context.cancel()
