"""How the next token is chosen. Names and defaults are llama.cpp's."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from numbers import Real
from typing import Any

from pyclover import arguments
from pyclover.engine.grammar import check_grammar, schema_text
from pyclover.errors import UsageError, shortened

RANDOM_SEED = 0xFFFFFFFF
MAX_BIAS = 1e30
GREEDY_BELOW = 1e-30  # logits divided by less leave the range of 32-bit numbers


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Settings of the sampler chain.

    Attributes:
        temperature: 0 (or less than 1e-30) always takes the most probable token.
        top_k: the k most probable tokens, 0 for all. top_p, min_p, typical_p: 1, 0 and 1 turn them off.
        repeat_penalty (1 is off), frequency_penalty, presence_penalty: over the last repeat_last_n tokens (-1: all).
        dry_multiplier: 0 turns the DRY repetition penalty off.
        seed: None for a random one.
        grammar: GBNF text. json_schema: a schema as a dict or as JSON text. Not both.
        logit_bias: token id -> number added to its logit; -inf bans it.
        ignore_eos: end tokens are never chosen.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    typical_p: float = 1.0
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = 64
    seed: int | None = None
    grammar: str | None = None
    json_schema: str | Mapping[str, Any] | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        self._check_numbers()
        arguments.boolean("ignore_eos", self.ignore_eos)
        self._check_bias()
        if self.grammar is not None and self.json_schema is not None:
            raise UsageError("grammar and json_schema exclude each other: give one of them", option="json_schema")
        if self.grammar is not None:
            if not isinstance(self.grammar, str):
                raise UsageError(
                    f"grammar is of type {type(self.grammar).__name__}: it must be a str", option="grammar"
                )
            check_grammar(self.grammar)
        self.schema_text()

    def _check_numbers(self) -> None:
        bounds: dict[str, tuple[float, float]] = {
            "temperature": (-math.inf, 1e4), "top_p": (0, 1), "min_p": (0, 1), "typical_p": (0, 1),
            "repeat_penalty": (1e-3, 1e3), "frequency_penalty": (-100, 100), "presence_penalty": (-100, 100),
            "dry_multiplier": (0, 100), "dry_base": (0, 100),
            "top_k": (-(2**31), 2**31 - 1), "repeat_last_n": (-1, 2**31 - 1),
            "dry_allowed_length": (0, 2**31 - 1), "dry_penalty_last_n": (-1, 2**31 - 1),
        }  # fmt: skip
        for name, (low, high) in bounds.items():
            value = getattr(self, name)
            integer = name in ("top_k", "repeat_last_n", "dry_allowed_length", "dry_penalty_last_n")
            if isinstance(value, bool) or not isinstance(value, int if integer else (int, float)):
                raise UsageError(
                    f"{name} must be {'an integer' if integer else 'a number'}, not {shortened(value)}", option=name
                )
            if not low <= value <= high:
                limits = f"between {low} and {high}" if math.isfinite(low) else f"at most {high}"
                raise UsageError(f"{name} is {shortened(value)}: it must be {limits}", option=name)
        seed = self.seed
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int) or not -1 <= seed <= RANDOM_SEED):
            raise UsageError(
                f"seed is {shortened(seed)}: it must be an integer between 0 and {RANDOM_SEED - 1}, or -1 for a random "
                "one",
                option="seed",
            )

    def _check_bias(self) -> None:
        if not isinstance(self.logit_bias, Mapping):
            raise UsageError(
                f"logit_bias is {shortened(self.logit_bias)}: it must be a dict of token ids and numbers",
                option="logit_bias",
            )
        for token, bias in self.logit_bias.items():
            if isinstance(token, bool) or not hasattr(token, "__index__") or not 0 <= token <= 2**31 - 1:
                raise UsageError(
                    f"logit_bias has {shortened(token)} for a token: it must be a token id", option="logit_bias"
                )
            fine = isinstance(bias, Real) and not isinstance(bias, bool)
            if not fine or not (-MAX_BIAS <= bias <= MAX_BIAS or bias == -math.inf):
                raise UsageError(
                    f"logit_bias of token {token} is {shortened(bias)}: it must be a number between -1e30 and 1e30, or "
                    "-inf",
                    option="logit_bias",
                )

    def schema_text(self) -> str | None:
        """The JSON schema as text.

        Raises:
            GrammarError: it is not JSON, or asks for what cannot be honoured.
        """
        return None if self.json_schema is None else schema_text(self.json_schema)

    @property
    def greedy(self) -> bool:
        """The most probable token is always taken."""
        return self.temperature < GREEDY_BELOW

    def not_plain_argmax(self) -> str:
        """The first setting because of which the likeliest token need not be chosen, "" when there is none."""
        penalties = {"repeat_penalty": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0}
        found = {
            "temperature": not self.greedy,
            **{name: self.repeat_last_n != 0 and getattr(self, name) != off for name, off in penalties.items()},
            "dry_multiplier": self.dry_multiplier != 0,
            "logit_bias": bool(self.logit_bias),
            "ignore_eos": self.ignore_eos,
            "grammar": self.grammar is not None,
            "json_schema": self.json_schema is not None,
        }
        return next((name for name, set_ in found.items() if set_), "")

    @property
    def native_seed(self) -> int:
        return RANDOM_SEED if self.seed is None or self.seed < 0 else self.seed


@dataclass(frozen=True)
class ChatSampling:
    """What a chat template adds to the choice of tokens; made by pyclover.chat, not by users.

    Attributes:
        settings: JSON for pc_sampler_params.chat: triggers, thinking tags, the budget of a thought.
        grammar: GBNF of tool calls or of an answer's schema, None without one; llama.cpp made it.
        budget: tokens that a thought may have, -1 for any number.
    """

    settings: str
    grammar: str | None = None
    budget: int = -1


def sampling_from(options: Mapping[str, Any]) -> Sampling:
    """Settings from keyword arguments; an unknown name is an error that lists the known ones."""
    known = [f.name for f in fields(Sampling)]
    for name in options:
        if name not in known:
            raise UsageError(f"there is no sampling option {name!r}; there are: {', '.join(known)}", option=name)
    given = dict(options)
    if given.get("logit_bias", {}) is None:
        del given["logit_bias"]
    return Sampling(**given)
