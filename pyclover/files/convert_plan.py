"""What a conversion will write: worked out from names, sizes and headers, before a byte is written."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyclover.errors import UsageError, shortened
from pyclover.files.convert_checkpoint import (
    CONFIG,
    MAX_SMALL_BYTES,
    SMALL_SUFFIXES,
    Checkpoint,
    Source,
    read_checkpoint,
    read_json,
)
from pyclover.files.convert_config import read_shape
from pyclover.files.convert_map import PREVIEW, OutTensor, has_preview, tensors_of
from pyclover.files.convert_tokenizer import TEMPLATE, TOKENIZER_CONFIG, read_tokenizer
from pyclover.files.header import DEFAULT_ALIGNMENT, padded_to
from pyclover.files.hparams import MAX_BLOCK
from pyclover.files.repair_template import read_template

OUTTYPES = ("bf16", "f16", "f32", "q8_0")
_KEY_BYTES = 8192  # metadata beside tokens, merges and template, with some to spare
_LEFT_OUT_SHOWN = 4


@dataclass(frozen=True)
class ConvertPlan:
    """A conversion that was found to be possible.

    Attributes:
        tensors: of the new file.
        n_bytes: expected size of the new file; the tensors are exact, the metadata is an estimate from above.
        left_out: tensors of the checkpoint that the new file will not have.
        small_files: what the converter is to find beside the weights, already as it must be.
        mask_token_id: None: the file will not be able to draft.
        key: stands for everything that decides on the new file's bytes; another key, another file.
    """

    checkpoint: Checkpoint
    outtype: str
    plain: bool
    tensors: tuple[OutTensor, ...]
    n_bytes: int
    left_out: tuple[str, ...]
    small_files: Mapping[str, bytes]
    mask_token_id: int | None
    block_length: int
    warnings: tuple[str, ...]
    key: str

    @property
    def data_bytes(self) -> int:
        """Tensors with the padding between them."""
        return sum(padded_to(tensor.n_bytes, DEFAULT_ALIGNMENT) for tensor in self.tensors)


def make_plan(
    source: Source,
    *,
    outtype: str = "bf16",
    plain: bool = False,
    mask_token: int | str | None = None,
    block_length: int | None = None,
    chat_template: str | None = None,
    converter: str = "",
) -> ConvertPlan:
    """Check a checkpoint and plan its conversion. Only headers and small files are read.

    Args:
        mask_token, block_length, chat_template: instead of what the checkpoint says; the template as a path or a text.
        converter: what tells this converter from another one, for `key`.

    Raises:
        UsageError: an argument that cannot be honoured.
        ModelNotFoundError, IncompleteSetError, InvalidFileError: files are missing or damaged.
        UnsupportedModelError: it is no Clover that this converter knows; `key` names what is at fault.
    """
    if outtype not in OUTTYPES:
        raise UsageError(f"outtype is {shortened(outtype)}: it must be {', '.join(OUTTYPES)}", option="outtype")
    if block_length is not None and (isinstance(block_length, bool) or not 1 <= block_length <= MAX_BLOCK):
        raise UsageError(f"block_length is {block_length}: it must be from 1 to {MAX_BLOCK}", option="block_length")
    template = None if chat_template is None else read_template(chat_template)
    checkpoint = read_checkpoint(source)
    shape = read_shape(checkpoint.config, checkpoint.title)
    tensors, left_out = tensors_of(checkpoint, shape, outtype, plain=plain)
    tokenizer = read_tokenizer(checkpoint, shape, mask_token)
    small = _small_files(source)
    config = read_json(source, CONFIG)
    # code that a checkpoint brings is never run; without this entry nobody is asked whether it may
    config.pop("auto_map", None)
    if tokenizer.mask_token_id is not None and not tokenizer.mask_is_given:
        config["mask_token_id"] = tokenizer.mask_token_id
    if block_length is not None:
        config["block_length"] = block_length
    small[CONFIG] = _json(config)
    small[TOKENIZER_CONFIG] = _json(_tokenizer_config(tokenizer.config, template, small.get(TEMPLATE)))
    text = sum(len(small.get(name, b"")) for name in (TOKENIZER_CONFIG, TEMPLATE, "README.md", "chat_template.json"))
    header = _KEY_BYTES + tokenizer.text_bytes + text + sum(80 + len(t.name) for t in tensors)
    data = sum(padded_to(t.n_bytes, DEFAULT_ALIGNMENT) for t in tensors)
    return ConvertPlan(
        checkpoint=checkpoint,
        outtype=outtype,
        plain=plain,
        tensors=tuple(tensors),
        n_bytes=header + data,
        left_out=tuple(left_out),
        small_files=small,
        mask_token_id=tokenizer.mask_token_id,
        block_length=shape.block_length if block_length is None else block_length,
        warnings=tuple(_warnings(checkpoint, left_out, plain, tokenizer.mask_token_id,
                                 tokenizer.template or template is not None)),
        key=_key(checkpoint, small, outtype, plain, converter),
    )  # fmt: skip


def _small_files(source: Source) -> dict[str, bytes]:
    """The files beside the weights."""
    names = [name for name in source.names if name.endswith(SMALL_SUFFIXES) and not name.startswith(".")]
    return {name: source.read(name) for name in names if source.size(name) <= MAX_SMALL_BYTES}


def _tokenizer_config(found: Mapping[str, Any], template: str | None, jinja: bytes | None) -> dict[str, Any]:
    config = {key: value for key, value in found.items() if key != "auto_map"}
    if template is not None:
        config["chat_template"] = template
    elif not config and jinja is not None:  # the converter takes the file only beside a configuration
        config["chat_template"] = jinja.decode("utf-8", "replace")
    return config


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, indent=1).encode("utf-8")


def _warnings(
    checkpoint: Checkpoint, left_out: list[str], plain: bool, mask: int | None, template: bool
) -> list[str]:  # fmt: skip
    out = []
    preview = has_preview(checkpoint)
    dropped = [name for name in left_out if name.rpartition(".")[2] not in PREVIEW]
    if dropped:
        more = f" and {len(dropped) - _LEFT_OUT_SHOWN} more" if len(dropped) > _LEFT_OUT_SHOWN else ""
        out.append(f"left out, as the architecture has no such parts: {', '.join(dropped[:_LEFT_OUT_SHOWN])}{more}")
    if not preview:
        out.append("the checkpoint has no tensors of the block pass: the file will decode one token at a time")
    elif mask is None and not plain:
        out.append("no mask token is named, so the file cannot draft: give it with mask_token (--mask-token)")
    if not template:
        out.append("the checkpoint has no chat template: give one with chat_template (--chat-template)")
    return out


def _key(checkpoint: Checkpoint, small: Mapping[str, bytes], outtype: str, plain: bool, converter: str) -> str:
    digest = hashlib.sha256(f"1\0{outtype}\0{plain}\0{converter}\0{checkpoint.source.model_name}".encode())
    for shard in checkpoint.shards:
        digest.update(f"\0{shard}\0{checkpoint.source.identity(shard)}\0".encode("utf-8", "surrogateescape"))
        digest.update(hashlib.sha256(checkpoint.headers[shard]).digest())
    for name, data in sorted(small.items()):
        digest.update(f"\0{name}\0".encode("utf-8", "surrogateescape") + hashlib.sha256(data).digest())
    return digest.hexdigest()
