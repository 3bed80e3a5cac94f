"""How the next token is chosen. Names and defaults are llama.cpp's."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from pyclover.errors import GrammarError, UsageError

RANDOM_SEED = 0xFFFFFFFF
MAX_GRAMMAR_BYTES = 1 << 20
# Grammar and schema are read by recursive code: deeper ones could exhaust the stack.
MAX_NESTING = 128


def _nesting(text: str, opening: str, closing: str) -> int:
    depth = deepest = 0
    for c in text:
        if c in opening:
            depth += 1
            deepest = max(deepest, depth)
        elif c in closing:
            depth -= 1
    return deepest


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Settings of the sampler chain.

    Attributes:
        temperature: 0 (or less) always takes the most probable token.
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
        self._check_grammar()
        for token, bias in self.logit_bias.items():
            if math.isnan(bias) or bias == math.inf:
                raise UsageError(
                    f"logit_bias of token {token} is {bias}: use a finite number or -inf", option="logit_bias"
                )

    def _check_numbers(self) -> None:
        bounds: dict[str, tuple[float, float]] = {
            "temperature": (-math.inf, 1e4), "top_p": (0, 1), "min_p": (0, 1), "typical_p": (0, 1),
            "frequency_penalty": (-100, 100), "presence_penalty": (-100, 100),
            "dry_multiplier": (0, 100), "dry_base": (0, 100),
            "top_k": (-(2**31), 2**31 - 1), "repeat_last_n": (-1, 2**31 - 1),
            "dry_allowed_length": (0, 2**31 - 1), "dry_penalty_last_n": (-1, 2**31 - 1),
        }  # fmt: skip
        for name, (low, high) in bounds.items():
            value = getattr(self, name)
            integer = name in ("top_k", "repeat_last_n", "dry_allowed_length", "dry_penalty_last_n")
            if isinstance(value, bool) or not isinstance(value, int if integer else (int, float)):
                raise UsageError(
                    f"{name} must be {'an integer' if integer else 'a number'}, not {value!r}", option=name
                )
            if not low <= value <= high:
                limits = f"between {low:g} and {high:g}" if math.isfinite(low) else f"at most {high:g}"
                raise UsageError(f"{name} is {value}: it must be {limits}", option=name)
        if not 1e-3 <= self.repeat_penalty <= 1e3:
            raise UsageError(
                f"repeat_penalty is {self.repeat_penalty}: it must be between 0.001 and 1000", option="repeat_penalty"
            )
        if self.seed is not None and not -1 <= self.seed <= RANDOM_SEED:
            raise UsageError(
                f"seed is {self.seed}: it must be between 0 and {RANDOM_SEED - 1}, or -1 for a random one",
                option="seed",
            )

    def _check_grammar(self) -> None:
        if self.grammar is not None and self.json_schema is not None:
            raise UsageError("grammar and json_schema exclude each other: give one of them", option="json_schema")
        if self.grammar is not None:
            if not self.grammar.strip():
                raise GrammarError("the grammar is empty")
            if len(self.grammar) > MAX_GRAMMAR_BYTES or _nesting(self.grammar, "(", ")") > MAX_NESTING:
                raise GrammarError(
                    f"the grammar is too large: at most {MAX_GRAMMAR_BYTES} characters and {MAX_NESTING} nested groups"
                )
        schema = self.schema_text()
        if schema is not None and (len(schema) > MAX_GRAMMAR_BYTES or _nesting(schema, "{[", "}]") > MAX_NESTING):
            raise GrammarError(
                f"the JSON schema is too large: at most {MAX_GRAMMAR_BYTES} characters and {MAX_NESTING} levels"
            )

    def schema_text(self) -> str | None:
        """The JSON schema as text.

        Raises:
            GrammarError: it is not JSON.
        """
        if self.json_schema is None:
            return None
        try:
            if isinstance(self.json_schema, str):
                json.loads(self.json_schema)
                return self.json_schema
            return json.dumps(self.json_schema)
        except (ValueError, TypeError, RecursionError) as e:
            raise GrammarError(f"the JSON schema is not valid JSON: {e}") from None

    @property
    def native_seed(self) -> int:
        return RANDOM_SEED if self.seed is None or self.seed < 0 else self.seed


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
