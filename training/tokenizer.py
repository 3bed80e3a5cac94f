"""Byte-level BPE with the split rule of Qwen3.5 and single digits, learned from the generators' own text."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
END_OF_TEXT, END_OF_TURN, MASK = "<|endoftext|>", "<|im_end|>", "<|mask|>"
# Control tokens never appear in shown text; the others are part of it.
CONTROL = (END_OF_TEXT, "<|im_start|>", END_OF_TURN, MASK)
MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")


def train_tokenizer(texts: Iterable[str], n_vocab: int) -> Tokenizer:
    """Learns n_vocab tokens, the special ones included, which come last."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated", invert=False),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    added = [AddedToken(t, special=True, normalized=False) for t in CONTROL]
    added += [AddedToken(t, special=False, normalized=False) for t in MARKS]
    trainer = trainers.BpeTrainer(
        vocab_size=n_vocab - len(added),
        min_frequency=2,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    special = re.compile("|".join(map(re.escape, (*CONTROL, *MARKS))))
    tokenizer.train_from_iterator((part for text in texts for part in special.split(text)), trainer)
    tokenizer.add_tokens(added[len(CONTROL) :])
    tokenizer.add_special_tokens(added[: len(CONTROL)])
    if tokenizer.get_vocab_size() != n_vocab:
        raise ValueError(f"the text gave {tokenizer.get_vocab_size()} tokens, not {n_vocab}: give more text")
    return tokenizer


def load_tokenizer(path: Path) -> Tokenizer:
    return Tokenizer.from_file(str(path))


def token_id(tokenizer: Tokenizer, token: str) -> int:
    found: int | None = tokenizer.token_to_id(token)
    if found is None:
        raise ValueError(f"the tokenizer has no token {token}")
    return found


def tokenizer_config(chat_template: str) -> dict[str, Any]:
    """tokenizer_config.json of the checkpoint."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "eos_token": END_OF_TURN,
        "pad_token": END_OF_TEXT,
        "mask_token": MASK,
        "chat_template": chat_template,
    }
