"""What generation gives back."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

FinishReason = Literal["stop", "length", "cancelled"]


def _rate(n: int, seconds: float) -> float:
    return n / seconds if seconds > 0 else 0.0


@dataclass(frozen=True, kw_only=True)
class Stats:
    """Counts and times of one call, taken in native code.

    Attributes:
        mode: "plain" (one pass a token), "draft-self (lossless)", "draft-self (relaxed: changes the text)" or
            "block diffusion".
        n_prompt: tokens of the prompt; n_prompt_reused of them were still in memory, n_prompt_read were computed, all
            the others unless the call was cancelled before.
        prompt_s: time for the prompt.
        n_generated: tokens that came out, an end token not counted.
        n_decoded: tokens that passes after the prompt gave; in plain mode and with drafting the first token comes from
            the prompt's own pass, so it is one fewer than chosen.
        decode_s: time for these passes; sample_s: time for choosing tokens.
        rounds: times that a draft was made and checked; 0 without drafting, as the next ones.
        drafted: tokens that were drafted and checked. accepted: of them accepted, also when the text ended before them.
        emitted: tokens that rounds gave to the answer, one of its own in each.
        drafted_by_position, accepted_by_position: the same for the 1st, 2nd, … token of drafts.
        ahead: checks in whose pass the next draft was made. ahead_used: times that this draft was good for something.
        previews: block passes. commits: causal passes over finished blocks. fixed: rows of blocks that were decided;
            the last two are of block diffusion.
        preview_s, verify_s, rollback_s: parts of decode_s: block passes, passes over drafts and finished blocks, taking
            back what was not accepted.
        reread_from: position at which memory and prompt differed and could not be cut back, so that the whole prompt
            was computed again; None when that did not happen.
    """

    mode: str = "plain"
    n_prompt: int = 0
    n_prompt_reused: int = 0
    n_prompt_read: int = 0
    prompt_s: float = 0.0
    n_generated: int = 0
    n_decoded: int = 0
    decode_s: float = 0.0
    sample_s: float = 0.0
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    emitted: int = 0
    drafted_by_position: tuple[int, ...] = ()
    accepted_by_position: tuple[int, ...] = ()
    ahead: int = 0
    ahead_used: int = 0
    previews: int = 0
    commits: int = 0
    fixed: int = 0
    preview_s: float = 0.0
    verify_s: float = 0.0
    rollback_s: float = 0.0
    reread_from: int | None = None

    @property
    def prompt_tok_per_s(self) -> float:
        """Computed prompt tokens a second; 0 when none was computed."""
        return _rate(self.n_prompt_read, self.prompt_s)

    @property
    def decode_tok_per_s(self) -> float:
        """Tokens a second after the prompt, passes and choosing together."""
        return _rate(self.n_decoded, self.decode_s + self.sample_s)

    @property
    def acceptance(self) -> float:
        """Accepted share of the drafted tokens; 0 when none was drafted."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def n_plain(self) -> int:
        """Tokens after the first that plain steps gave; all of them in plain mode, none in block diffusion."""
        return 0 if self.commits else self.n_decoded - self.emitted

    @property
    def tokens_per_pass(self) -> float:
        """Of block diffusion: rows decided for each pass, previews and commits together; 0 in other modes."""
        return self.fixed / (self.previews + self.commits) if self.commits else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Fields and rates, ready for JSON."""
        return {
            **asdict(self),
            "drafted_by_position": list(self.drafted_by_position),
            "accepted_by_position": list(self.accepted_by_position),
            "acceptance": self.acceptance,
            "n_plain": self.n_plain,
            "tokens_per_pass": self.tokens_per_pass,
            "prompt_tok_per_s": self.prompt_tok_per_s,
            "decode_tok_per_s": self.decode_tok_per_s,
        }


@dataclass(frozen=True)
class Completion:
    """A finished generation.

    Attributes:
        text: without the stop string and without the end token.
        tokens: the chosen tokens, the end token left out; with a stop string, up to the token that completed it.
        finish_reason: "stop" (end token or stop string), "length" (max_tokens or a full context), "cancelled".
        stop: the stop string that ended the text, None when it was something else.
    """

    text: str
    tokens: tuple[int, ...]
    finish_reason: FinishReason
    stop: str | None
    stats: Stats


@dataclass(frozen=True)
class TextPiece:
    """A part of a streamed text. Only the last one has finish_reason, stop and stats.

    Attributes:
        text: may be empty while a character or a possible stop string is incomplete.
        tokens: chosen since the last piece.
        block: of block diffusion: the rows of the block in the making, None where they are not decided; such a piece
            has no text and no tokens.
        n_accepted: of drafting: so many of the tokens, from the first, were drafted and accepted.
    """

    text: str
    tokens: tuple[int, ...]
    finish_reason: FinishReason | None = None
    stop: str | None = None
    stats: Stats | None = None
    block: tuple[int | None, ...] | None = None
    n_accepted: int = 0


@dataclass(frozen=True)
class Score:
    """How probable a text is.

    Attributes:
        tokens: of the text.
        logprobs: natural logarithm of the probability of each token but the first, given those before it.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]

    @property
    def loglikelihood(self) -> float:
        """Sum of the logarithms, in nats."""
        return sum(self.logprobs)

    @property
    def perplexity(self) -> float:
        """exp of the mean negative logarithm."""
        import math

        return math.exp(-self.loglikelihood / len(self.logprobs))


@dataclass(frozen=True)
class MemoryUse:
    """Memory as allocated by llama.cpp.

    Attributes:
        device: kind of buffer, e.g. "CPU", "CPU_Mapped" (a mapped file), "CUDA0".
        kind: "weights", "context" (caches and states) or "compute" (intermediate results).
        bytes: size.
    """

    device: str
    kind: Literal["weights", "context", "compute"]
    bytes: int
