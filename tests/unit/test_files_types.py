"""The type table against the gguf package's own."""

from __future__ import annotations

import gguf
import pytest

from pyclover.files.types import GGML_TYPES, REMOVED_TYPES


@pytest.mark.parametrize("kind", list(gguf.GGMLQuantizationType), ids=lambda k: k.name)
def test_sizes_equal_those_of_the_gguf_package(kind: gguf.GGMLQuantizationType) -> None:
    block, size = gguf.GGML_QUANT_SIZES[kind]
    if kind.name == "Q8_1":  # the package has two floats a block, ggml-common.h two halves; no file holds this type
        size = 2 * 2 + 32
    ours = GGML_TYPES[kind.value]
    assert (ours.name, ours.block_size, ours.type_size) == (kind.name, block, size)


def test_types_newer_than_the_gguf_package() -> None:
    # ggml-common.h: a half scale and 64 two-bit numbers
    assert (GGML_TYPES[42].name, GGML_TYPES[42].block_size, GGML_TYPES[42].type_size) == ("Q2_0", 64, 2 + 64 // 4)
    # every number below GGML_TYPE_COUNT (43) is either a type or one that was removed
    assert set(GGML_TYPES) | set(REMOVED_TYPES) == set(range(43))
    assert not set(GGML_TYPES) & set(REMOVED_TYPES)


def test_bits_per_weight() -> None:
    # published figures of the formats
    assert GGML_TYPES[2].bits_per_weight == 4.5  # Q4_0
    assert GGML_TYPES[14].bits_per_weight == 6.5625  # Q6_K
