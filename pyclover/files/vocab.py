"""Checks of the tokenizer's metadata: what llama.cpp refuses, and what would abort the process there.

Names are those of llama-vocab.cpp in the pinned llama.cpp; when that moves, the lists move with it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pyclover.files.meta import Meta
from pyclover.files.values import Array, ValueType

TOKENIZERS = frozenset(
    "no_vocab none llama bert gpt2 hybriddna whitespace t5 rwkv test plamo2 gemma4".split()  # noqa: SIM905
)  # fmt: skip
WITHOUT_VOCAB = frozenset({"no_vocab", "none"})
BYTE_PAIR = frozenset({"gpt2", "hybriddna", "whitespace", "gemma4"})
PRE_TOKENIZERS = frozenset(
    """a.x-4.0 afmoe bailingmoe bailingmoe2 bloom chameleon chatglm-bpe codeshell cohere2moe command-r dbrx
    deepseek-coder deepseek-llm deepseek-r1-qwen deepseek-v3 default exaone exaone-moe exaone4 f2llmv2 falcon falcon-h1
    falcon3 gemma4 gigachat glm4 glm5 gpt-2 gpt-4o gpt3-finnish granite-docling granite-embed-multi-311m
    granite-embed-multi-97m grok-2 hunyuan hunyuan-dense hy_v4 jais jais-2 jina-de jina-es jina-v1-en jina-v2-code
    jina-v2-de jina-v2-es jina-v5-nano joyai-llm kanana2 kimi-k2 kormo laguna lfm2 llada-moe llama-bpe llama-v3 llama3
    llama4 megrez mellum mellum2 midm-2.0 minerva-7b minicpm5 minimax-m2 modern-bert mpt olmo phi-2 pixtral poro-chat
    qwen2 qwen35 refact roberta-bpe sarvam-moe seed-coder smaug-bpe smollm solar-open spark2_5 stablelm2 starcoder
    superbpe talkie tekken tiny_aya trillion ufakzeka viking whitespace youtu""".split()  # noqa: SIM905
)  # fmt: skip

# name in reports -> metadata key ("seperator" is how the format spells it)
SPECIAL_TOKENS = {
    name: f"tokenizer.ggml.{key}_token_id"
    for name, key in {
        "bos": "bos", "eos": "eos", "eot": "eot", "eom": "eom", "unknown": "unknown", "separator": "seperator",
        "padding": "padding", "mask": "mask", "fim_pre": "fim_pre", "fim_suf": "fim_suf", "fim_mid": "fim_mid",
        "fim_pad": "fim_pad", "fim_rep": "fim_rep", "fim_sep": "fim_sep",
    }.items()
}  # fmt: skip
_FLAGS = ("add_bos_token", "add_eos_token", "add_sep_token", "add_space_prefix", "remove_extra_whitespaces")


@dataclass(frozen=True)
class VocabFacts:
    """n_vocab is 0 when the file has no vocabulary; `special` holds only ids inside it."""

    n_vocab: int
    special: dict[str, int]


def check_vocab(meta: Meta, arch: str, *, strict: bool) -> VocabFacts:
    """Check the tokenizer keys, adding to meta.problems and meta.warnings.

    Args:
        strict: a special token outside the vocabulary is a problem; else a warning, for llama.cpp then silently uses a
            default.
    """
    model = meta.text("tokenizer.ggml.model", required=True)
    if model and model not in TOKENIZERS:
        meta.problem(
            "tokenizer.ggml.model", f"the tokenizer '{model}' (tokenizer.ggml.model) is not one that llama.cpp knows"
        )
    pre = meta.text("tokenizer.ggml.pre")
    if model in WITHOUT_VOCAB:
        return VocabFacts(meta.u32(f"{arch}.vocab_size"), {})
    if model in BYTE_PAIR and model != "gemma4":
        _check_pre(meta, pre)
    if model in BYTE_PAIR and pre != "kimi-k2":
        meta.array("tokenizer.ggml.merges", (ValueType.STRING,), required=True)
    tokens = meta.array("tokenizer.ggml.tokens", (ValueType.STRING,), required=True)
    n_vocab = 0 if tokens is None else len(tokens)
    meta.array("tokenizer.ggml.scores", (ValueType.FLOAT32, ValueType.INT32), n_vocab)
    meta.array("tokenizer.ggml.token_type", (ValueType.INT32,), n_vocab)
    meta.array("tokenizer.ggml.suppress_tokens", (ValueType.INT32,))
    for name in _FLAGS:
        meta.flag(f"tokenizer.ggml.{name}", False)
    if tokens is None:
        return VocabFacts(0, {})
    if n_vocab == 0:
        key = "tokenizer.ggml.tokens"
        meta.problem(key, f"the metadata key '{key}' is an empty list: there is no vocabulary; convert again")
    _check_unique(meta, tokens)
    if model == "rwkv":
        _check_rwkv(meta, tokens)
    return VocabFacts(n_vocab, _special_ids(meta, n_vocab, strict=strict))


def _check_pre(meta: Meta, pre: str) -> None:
    key = "tokenizer.ggml.pre"
    if pre and pre not in PRE_TOKENIZERS:
        meta.problem(
            key,
            f"the pre-tokenizer '{pre}' ({key}) is not one that llama.cpp knows; for Clover it is 'qwen35'",
        )
    elif not pre and not meta.problems:
        meta.warnings.append(
            f"the metadata key '{key}' is missing: text is split by the default rule, which lowers quality"
        )


def _special_ids(meta: Meta, n_vocab: int, *, strict: bool) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, key in SPECIAL_TOKENS.items():
        value = meta.typed(key, ValueType.UINT32)
        if not isinstance(value, int):
            continue
        if value < n_vocab:
            found[name] = value
            continue
        text = f"the metadata key '{key}' is {value}, outside the vocabulary of {n_vocab} tokens"
        if strict:
            meta.problem(key, f"{text}; convert the model again, or get another file of it")
        else:
            meta.warnings.append(f"{text}; it is ignored")
    return found


def _check_unique(meta: Meta, tokens: Array) -> None:
    """llama.cpp aborts the process when two tokens have the same text, as it sees it: up to a zero byte, and an empty
    text under a made-up name."""
    texts = tokens.raw_strings()
    unique = set(texts)
    if len(unique) != len(texts) or b"" in unique or b"\0" in b"".join(texts):
        seen: dict[bytes, int] = {}
        for i, text in enumerate(_as_native(texts)):
            if text in seen:
                shown = text.decode("utf-8", "backslashreplace")
                meta.problem(
                    "tokenizer.ggml.tokens",
                    f"tokens {seen[text]} and {i} of tokenizer.ggml.tokens have the same text {shown!r}; convert again",
                )
                return
            seen[text] = i


def _check_rwkv(meta: Meta, tokens: Array) -> None:
    """llama.cpp's rwkv tokenizer never ends at a text whose first byte begins tokens but is none itself."""
    texts = {_unescaped_start(text) for text in tokens.raw_strings() if text}
    lone = {start for start, whole in texts if whole}
    for start, _ in sorted(texts):
        if start not in lone:
            key = "tokenizer.ggml.tokens"
            meta.problem(key, f"byte {start:#04x} begins tokens of {key} but is none itself; convert again")
            return


def _unescaped_start(text: bytes) -> tuple[int, bool]:
    """First byte of a token of an rwkv vocabulary (escapes as in Python), and whether it is the whole token."""
    if not text.startswith(b"\\") or len(text) == 1:
        return text[0], len(text) == 1
    if text[1:2] == b"x":
        try:
            return int(text[2:4], 16), len(text) == 4
        except ValueError:
            return 0, len(text) == 4
    return {b"t": 9, b"n": 10, b"r": 13}.get(text[1:2], text[1]), len(text) == 2


def _as_native(texts: Iterable[bytes]) -> Iterable[bytes]:
    for i, text in enumerate(texts):
        yield text.split(b"\0", 1)[0] or f"[EMPTY_{i}]".encode()
