"""A native sampler chain."""

from __future__ import annotations

from collections.abc import Sequence

from pyclover._native import check, ffi, lib
from pyclover.engine.handle import Handle
from pyclover.engine.model import Model, as_tokens
from pyclover.engine.sampling import Sampling


class Sampler:
    """Chooses tokens for one generation. Freed with the object.

    Args:
        n_ctx: how far penalties look back that are set to the whole context (-1).

    Raises:
        UsageError, GrammarError: settings that llama.cpp refuses.
    """

    def __init__(self, model: Model, settings: Sampling, n_ctx: int) -> None:
        params = ffi.new("pc_sampler_params *")
        for name in (
            "temperature", "top_k", "top_p", "min_p", "typical_p", "repeat_penalty", "repeat_last_n",
            "frequency_penalty", "presence_penalty", "dry_multiplier", "dry_base", "dry_allowed_length",
            "dry_penalty_last_n", "ignore_eos",
        ):  # fmt: skip
            setattr(params, name, getattr(settings, name))
        for name in ("repeat_last_n", "dry_penalty_last_n"):
            if getattr(settings, name) < 0:
                setattr(params, name, n_ctx)
        params.seed = settings.native_seed
        schema = settings.schema_text()
        # C reads these during the call only; the names keep them alive until then
        grammar_c = ffi.new("char[]", settings.grammar.encode()) if settings.grammar is not None else ffi.NULL
        schema_c = ffi.new("char[]", schema.encode()) if schema is not None else ffi.NULL
        bias_tokens = as_tokens(list(settings.logit_bias))
        bias_values = ffi.new("float[]", list(settings.logit_bias.values()))
        params.grammar = grammar_c
        params.json_schema = schema_c
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
