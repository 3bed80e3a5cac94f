"""The settings of a model and its context that decide how much memory they take."""

from __future__ import annotations

from dataclasses import dataclass

from pyclover.errors import UsageError, shortened
from pyclover.files.types import TYPES_BY_NAME, GgmlType

# llama.cpp's types of a KV cache; the ones after bf16 are blocks of quantized numbers.
CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
CELL_STEP = 256  # llama.cpp rounds the cells of a KV cache up to it
MAX_N_MAX = 31


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One combination to estimate; names as in `pyclover.Clover`.

    Attributes:
        n_max: drafted tokens that can be taken back without another pass (n_rs_seq of the context).
        rs_snapshots: by a snapshot of the recurrent state for each, as models other than Clover do in any case.
        n_gpu_layers: layers on GPUs counted from the last, the output as one more; n_layer + 1 is all.
        n_cpu_moe: layers counted from the first whose routed experts stay with the processor.
    """

    n_ctx: int
    n_batch: int = 2048
    n_ubatch: int = 512
    n_max: int = 0
    rs_snapshots: bool = False
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    flash_attn: bool = True
    n_gpu_layers: int = 0
    n_cpu_moe: int = 0
    mmap: bool = True

    @property
    def n_cells(self) -> int:
        return -(-self.n_ctx // CELL_STEP) * CELL_STEP

    @property
    def n_rows(self) -> int:
        """Prompt tokens that one pass computes."""
        return max(1, min(self.n_ubatch, self.n_batch, self.n_ctx))


def cache_type(option: str, name: object) -> GgmlType:
    """Raises UsageError for a type that no KV cache has."""
    if not isinstance(name, str) or name not in CACHE_TYPES:
        raise UsageError(f"{option} is {shortened(name)}: it must be one of {', '.join(CACHE_TYPES)}", option=option)
    return TYPES_BY_NAME[name.upper()]
