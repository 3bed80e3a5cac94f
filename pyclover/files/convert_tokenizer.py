"""A checkpoint's tokenizer: whether llama.cpp splits text as it does, its mask token, its chat template."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyclover.errors import InvalidFileError, ModelNotFoundError, UnsupportedModelError, UsageError
from pyclover.files.convert_checkpoint import Checkpoint, read_json
from pyclover.files.convert_config import Shape
from pyclover.files.repair_plan import find_mask

TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
TEMPLATE = "chat_template.jinja"
TEMPLATE_JSON = "chat_template.json"

# What a tokenizer.json splits text by, and llama.cpp's name for that rule: Qwen3.5's published rule, and Qwen2's, which
# takes no combining marks into words. The converter has the same table (PRE_TOKENIZERS).
_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?LETTERS+|\p{N}| ?[^\s\p{L}MARKS\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
PRE_TOKENIZERS = {
    _SPLIT.replace("LETTERS", r"[\p{L}\p{M}]").replace("MARKS", r"\p{M}"): "qwen35",
    _SPLIT.replace("LETTERS", r"\p{L}").replace("MARKS", ""): "qwen2",
}


@dataclass(frozen=True)
class TokenizerFacts:
    """What was found.

    Attributes:
        pre: llama.cpp's name of the splitting rule.
        mask_token_id: None when nothing tells the mask token.
        mask_is_given: the converter finds it by itself; otherwise it must be told.
        config: tokenizer_config.json, {} when there is none.
        template: the chat template is there.
        text_bytes: what tokens and merges take in the new file, about.
    """

    pre: str
    mask_token_id: int | None
    mask_is_given: bool
    config: dict[str, Any]
    template: bool
    text_bytes: int


def read_tokenizer(checkpoint: Checkpoint, shape: Shape, mask_token: int | str | None = None) -> TokenizerFacts:
    """Read and check the tokenizer.

    Args:
        mask_token: its number or text, instead of what the checkpoint says.

    Raises:
        ModelNotFoundError: there is no tokenizer.json.
        InvalidFileError: it is damaged.
        UnsupportedModelError: llama.cpp would split text otherwise, or a token has no row in the embedding.
        UsageError: no token is `mask_token`.
    """
    source = checkpoint.source
    where = f"{source.title}/{TOKENIZER}"
    if TOKENIZER not in source.names:
        raise ModelNotFoundError(f"{source.title}: there is no {TOKENIZER}; download it", path=source.title)
    tokenizer = read_json(source, TOKENIZER)
    config = read_json(source, TOKENIZER_CONFIG) if TOKENIZER_CONFIG in source.names else {}
    try:
        pre = _rule(tokenizer)
        tokens = _tokens(tokenizer)
        merge_bytes = _merge_bytes(tokenizer)
    except (AttributeError, KeyError, TypeError, ValueError) as e:
        raise InvalidFileError(f"{where}: this is no tokenizer ({e}); download it again", path=where) from None
    if pre is None:
        raise UnsupportedModelError(
            f"{where}: its pre_tokenizer is not known: Clover's is byte-level BPE after the split rule of Qwen3.5, and "
            "another one would give other tokens than the model was trained with; take the model's own tokenizer",
            path=where, key="pre_tokenizer",
        )  # fmt: skip
    last = max(tokens, default=-1)
    if not 0 <= last < shape.n_vocab:
        raise UnsupportedModelError(
            f"{where}: the last token has the number {last}, and the model has {shape.n_vocab} tokens (vocab_size); "
            "take the tokenizer that belongs to these weights", path=where, key="vocab",
        )  # fmt: skip
    if "\0" in "".join(tokens.values()):
        raise InvalidFileError(f"{where}: a token has a zero byte; download it again", path=where, key="vocab")
    mask, given = _mask(tokens, shape, config, mask_token)
    template = bool(config.get("chat_template")) or TEMPLATE in source.names or TEMPLATE_JSON in source.names
    # a token has a length, a text and a type in the file; one that the tokenizer lacks is called [PADn]
    text = sum(len(t.encode("utf-8", "replace")) for t in tokens.values()) + 12 * shape.n_vocab
    text += 13 * (shape.n_vocab - len(tokens)) + merge_bytes
    return TokenizerFacts(pre, mask, given, config, template, text)


def _rule(tokenizer: Mapping[str, Any]) -> str | None:
    """llama.cpp's name of the rule; None when a step of the chain is another or has other options."""
    pre = tokenizer.get("pre_tokenizer") or {}
    steps = pre.get("pretokenizers") if pre.get("type") == "Sequence" else None
    if (tokenizer.get("model") or {}).get("type") != "BPE" or not steps or len(steps) != 2:
        return None
    split, byte_level = steps
    if (split.get("type"), byte_level.get("type")) != ("Split", "ByteLevel"):
        return None
    if split.get("behavior") != "Isolated" or split.get("invert"):
        return None
    # both are on when they are not written
    if byte_level.get("add_prefix_space", True) or byte_level.get("use_regex", True):
        return None
    pattern = split.get("pattern")
    return PRE_TOKENIZERS.get(pattern.get("Regex", "")) if isinstance(pattern, dict) else None


def _tokens(tokenizer: Mapping[str, Any]) -> dict[int, str]:
    tokens = {int(number): str(text) for text, number in tokenizer["model"]["vocab"].items()}
    return tokens | {int(added["id"]): str(added["content"]) for added in tokenizer.get("added_tokens") or ()}


def _merge_bytes(tokenizer: Mapping[str, Any]) -> int:
    merges = tokenizer["model"].get("merges") or ()
    return sum(9 + len((m if isinstance(m, str) else "".join(m)).encode("utf-8", "replace")) for m in merges)


def _mask(
    tokens: Mapping[int, str], shape: Shape, config: Mapping[str, Any], wanted: int | str | None
) -> tuple[int | None, bool]:
    """Number of the mask token, and whether the converter finds it without being told."""
    numbers = {text: number for number, text in tokens.items()}
    if isinstance(wanted, str):
        if wanted not in numbers:
            raise UsageError(
                f"no token is '{wanted}': give the mask token as it stands in {TOKENIZER}, or its number",
                option="mask_token",
            )
        return numbers[wanted], False
    if wanted is not None:
        if not 0 <= wanted < shape.n_vocab:
            raise UsageError(
                f"mask_token is {wanted}: the vocabulary has the numbers 0 to {shape.n_vocab - 1}", option="mask_token"
            )
        return wanted, False
    if shape.mask_token_id is not None:
        return shape.mask_token_id, True
    named = config.get("mask_token")
    text = named.get("content") if isinstance(named, dict) else named
    if isinstance(text, str) and text in numbers:
        return numbers[text], False
    known = find_mask([tokens.get(i, "").encode("utf-8", "replace") for i in range(shape.n_vocab)])
    return known, False
