"""A native sampler chain."""

from __future__ import annotations

import json
from collections.abc import Sequence

from pyclover._native import buffer, check, ffi, lib, taken
from pyclover.engine import grammar
from pyclover.engine.handle import Handle
from pyclover.engine.model import Model, as_tokens
from pyclover.engine.sampling import ChatSampling, Sampling
from pyclover.errors import GrammarError, UsageError, shortened


def schema_grammar(schema: str) -> str:
    """The GBNF grammar of a checked JSON schema.

    Raises:
        GrammarError: a schema or a pattern in it that cannot be one.
    """

    def converted(text: str) -> str:
        with buffer() as out:
            check(lib.pc_schema_to_grammar(ffi.new("char[]", text.encode()), out))
            return taken(out).decode("utf-8", "replace")

    for pattern in grammar.patterns(schema):
        # llama.cpp replaces what it cannot convert by any string, and goes on
        if "root ::= string\n" in converted(json.dumps({"type": "string", "pattern": pattern})):
            raise GrammarError(f"the pattern {shortened(pattern)} cannot be turned into a grammar: write it otherwise")
    return converted(schema)


def grammar_of(settings: Sampling) -> str | None:
    """The grammar that the text has to follow, checked as far as that goes without a model.

    Raises:
        GrammarError: it cannot be used.
    """
    schema = settings.schema_text()
    text = settings.grammar if schema is None else schema_grammar(schema)
    if text is None:
        return None
    what, nesting = ("the grammar", grammar.MAX_NESTING) if schema is None else ("the grammar of the JSON schema", 1024)
    if not grammar.check_grammar(text, what=what, max_nesting=nesting):
        check(lib.pc_grammar_check(ffi.new("char[]", text.encode())))
    return text


class Sampler:
    """Chooses tokens for one generation. Freed with the object.

    Args:
        n_ctx: how far penalties look back that are set to the whole context (-1).
        chat: of a chat, which then has the only grammar.

    Raises:
        UsageError, GrammarError: settings that llama.cpp refuses.
    """

    def __init__(self, model: Model, settings: Sampling, n_ctx: int, chat: ChatSampling | None = None) -> None:
        params = ffi.new("pc_sampler_params *")
        for name in (
            "temperature", "top_k", "top_p", "min_p", "typical_p", "repeat_penalty", "repeat_last_n",
            "frequency_penalty", "presence_penalty", "dry_multiplier", "dry_base", "dry_allowed_length",
            "dry_penalty_last_n", "ignore_eos",
        ):  # fmt: skip
            setattr(params, name, getattr(settings, name))
        if settings.greedy:
            params.temperature = 0.0
        for name in ("repeat_last_n", "dry_penalty_last_n"):
            if getattr(settings, name) < 0:
                setattr(params, name, n_ctx)
        params.seed = settings.native_seed
        for token in settings.logit_bias:
            if token >= model.info.n_vocab:
                raise UsageError(
                    f"logit_bias names token {token}, which is not in the vocabulary of {model.info.n_vocab}",
                    option="logit_bias",
                )
        text = grammar_of(settings) if chat is None else chat.grammar
        # C reads these during the call only; the names keep them alive until then
        grammar_c = ffi.new("char[]", text.encode()) if text is not None else ffi.NULL
        bias_tokens = as_tokens(list(settings.logit_bias))
        bias_values = ffi.new("float[]", [float(bias) for bias in settings.logit_bias.values()])
        chat_c = ffi.new("char[]", chat.settings.encode()) if chat is not None else ffi.NULL
        params.grammar, params.chat = grammar_c, chat_c
        params.bias_tokens, params.bias_values, params.n_bias = bias_tokens, bias_values, len(settings.logit_bias)
        out = ffi.new("pc_sampler **")
        with model.handle as native_model:
            check(lib.pc_sampler_create(native_model, params, out))
        # a chain refers to the vocabulary: it must not outlive the model
        self._model = model
        self.handle = Handle(self, out[0], lib.pc_sampler_free, "the sampler")
        self.token, self.is_end = ffi.new("int32_t *"), ffi.new("int32_t *")

    @property
    def seed(self) -> int:
        """The seed in use, also when a random one was asked for."""
        out = ffi.new("uint32_t *")
        with self.handle as sampler:
            check(lib.pc_sampler_seed(sampler, out))
        return int(out[0])

    def accept(self, tokens: Sequence[int]) -> None:
        """Tokens of the prompt, for the penalties."""
        ids = as_tokens(tokens)
        with self.handle as sampler:
            check(lib.pc_sampler_accept(sampler, ids, len(ids)))

    def close(self) -> None:
        self.handle.close()
