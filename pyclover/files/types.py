"""The ggml tensor types a GGUF file may name: id, name, block size, bytes per block.

Facts from ggml's type table (ggml.h, ggml-common.h) of the llama.cpp commit that this package builds.
A row of a tensor is stored as whole blocks, so its length must be a multiple of the block size.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GgmlType:
    """One tensor type.

    Attributes:
        id: number in the file.
        name: upper-case name, as quantization tools print it.
        block_size: elements per block.
        type_size: bytes per block.
        is_weight: ggml can multiply by a matrix of this type. False for the integer types, for f64 and for the
            two types that only ever hold activations (Q8_1, Q8_K).
    """

    id: int
    name: str
    block_size: int
    type_size: int
    is_weight: bool = True

    @property
    def bits_per_weight(self) -> float:
        """Bits per element, scales included."""
        return 8.0 * self.type_size / self.block_size


_TABLE = (
    GgmlType(0, "F32", 1, 4),
    GgmlType(1, "F16", 1, 2),
    GgmlType(2, "Q4_0", 32, 18),
    GgmlType(3, "Q4_1", 32, 20),
    GgmlType(6, "Q5_0", 32, 22),
    GgmlType(7, "Q5_1", 32, 24),
    GgmlType(8, "Q8_0", 32, 34),
    GgmlType(9, "Q8_1", 32, 36, is_weight=False),
    GgmlType(10, "Q2_K", 256, 84),
    GgmlType(11, "Q3_K", 256, 110),
    GgmlType(12, "Q4_K", 256, 144),
    GgmlType(13, "Q5_K", 256, 176),
    GgmlType(14, "Q6_K", 256, 210),
    GgmlType(15, "Q8_K", 256, 292, is_weight=False),
    GgmlType(16, "IQ2_XXS", 256, 66),
    GgmlType(17, "IQ2_XS", 256, 74),
    GgmlType(18, "IQ3_XXS", 256, 98),
    GgmlType(19, "IQ1_S", 256, 50),
    GgmlType(20, "IQ4_NL", 32, 18),
    GgmlType(21, "IQ3_S", 256, 110),
    GgmlType(22, "IQ2_S", 256, 82),
    GgmlType(23, "IQ4_XS", 256, 136),
    GgmlType(24, "I8", 1, 1, is_weight=False),
    GgmlType(25, "I16", 1, 2, is_weight=False),
    GgmlType(26, "I32", 1, 4, is_weight=False),
    GgmlType(27, "I64", 1, 8, is_weight=False),
    GgmlType(28, "F64", 1, 8, is_weight=False),
    GgmlType(29, "IQ1_M", 256, 56),
    GgmlType(30, "BF16", 1, 2),
    GgmlType(34, "TQ1_0", 256, 54),
    GgmlType(35, "TQ2_0", 256, 66),
    GgmlType(39, "MXFP4", 32, 17),
    GgmlType(40, "NVFP4", 64, 36),
    GgmlType(41, "Q1_0", 128, 18),
    GgmlType(42, "Q2_0", 64, 18),
)

GGML_TYPES: dict[int, GgmlType] = {t.id: t for t in _TABLE}
TYPES_BY_NAME: dict[str, GgmlType] = {t.name: t for t in _TABLE}
F32 = GGML_TYPES[0]

# Numbers that once had a meaning: worth a better sentence than "unknown".
REMOVED_TYPES: dict[int, str] = {
    4: "Q4_2",
    5: "Q4_3",
    31: "Q4_0_4_4",
    32: "Q4_0_4_8",
    33: "Q4_0_8_8",
    36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
}

# general.file_type -> the name that quantization tools use for the mix (llama.h, enum llama_ftype).
FILE_TYPES: dict[int, str] = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S",
    12: "Q3_K_M", 13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K",
    19: "IQ2_XXS", 20: "IQ2_XS", 21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL",
    26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S", 29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16",
    36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4_MOE", 39: "NVFP4", 40: "Q1_0", 41: "Q2_0",
}  # fmt: skip
