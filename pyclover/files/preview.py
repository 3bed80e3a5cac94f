"""Clover's own tensors, which the preview pass needs: one table of names and shapes, and how to find them.

The names that official files use are not settled, so a tensor is found by its canonical name, or else by layer, a word
in its name, and its shape. Both stand in PREVIEW; nothing else in the package spells these names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pyclover.files.header import TensorInfo
from pyclover.files.hparams import Sizes
from pyclover.files.layout import padded
from pyclover.files.types import F32


@dataclass(frozen=True)
class PreviewTensor:
    """One of a linear layer's preview tensors.

    Attributes:
        name: what follows "blk.i." in the canonical name.
        keyword: lower-case word that an alias's name contains.
        per_head: [R], [1, R], [R, 1] or one number; else the right convolution, [C-1, channels].
    """

    name: str
    keyword: str
    per_head: bool = True


PREVIEW = (
    PreviewTensor("ssm_conv1d_right.weight", "right", per_head=False),
    PreviewTensor("ssm_bd_logit_scale", "logit_scale"),
    PreviewTensor("ssm_bd_history_bias", "history_bias"),
    PreviewTensor("ssm_bd_history_c", "history_c"),
)
_LAYER = re.compile(r"(?:^|\.)(?:blk|layers?)\.(\d+)\.")


def fits(kind: PreviewTensor, tensor: TensorInfo, s: Sizes) -> bool:
    """Whether the tensor can serve as `kind`: F32, and a shape that the preview pass can use."""
    if tensor.type is not F32:
        return False
    shape, rank = padded(tensor.shape), s.ssm_time_step_rank
    if kind.per_head:
        return shape in {padded((rank,)), padded((1, rank)), padded(())}
    return shape == padded((s.ssm_conv_kernel - 1, s.conv_channels))


def find_preview(s: Sizes, unknown: Iterable[TensorInfo]) -> tuple[Mapping[str, str], tuple[str, ...]]:
    """Match preview tensors among those that the loader does not know.

    Returns:
        (canonical name -> name in the file, canonical names that nothing serves).
    """
    by_layer: dict[int, list[TensorInfo]] = {}
    for tensor in unknown:
        match = _LAYER.search(tensor.name)
        if match and len(match[1]) <= 3:
            by_layer.setdefault(int(match[1]), []).append(tensor)
    found: dict[str, str] = {}
    taken: set[str] = set()
    missing: list[str] = []
    for i, layer_kind in enumerate(s.layer_kinds):
        if layer_kind != "linear":
            continue
        candidates = [(t, t.name.lower()) for t in by_layer.get(i, [])]
        for kind in PREVIEW:
            canonical = f"blk.{i}.{kind.name}"  # it has the keyword, too
            alike = [t.name for t, n in candidates if kind.keyword in n and t.name not in taken and fits(kind, t, s)]
            if alike:
                found[canonical] = canonical if canonical in alike else alike[0]
                taken.add(found[canonical])
            else:
                missing.append(canonical)
    return found, tuple(missing)
