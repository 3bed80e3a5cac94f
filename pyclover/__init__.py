"""pyclover runs Clover, a block-diffusion mixture-of-experts language model, on one machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyclover import errors
from pyclover.errors import (
    BusyError,
    CancelledError,
    ClosedError,
    CloverError,
    ContextFullError,
    FileError,
    GrammarError,
    IncompleteSetError,
    InvalidFileError,
    LoadError,
    ModelNotFoundError,
    NativeError,
    OutOfMemoryError,
    SpeculationUnavailableError,
    StateError,
    TemplateError,
    UnsupportedCPUError,
    UnsupportedModelError,
    UsageError,
)

__version__ = "0.1.0"

__all__ = [
    "BlockDiffusion",
    "BlockParams",
    "BusyError",
    "CancelledError",
    "ClosedError",
    "Clover",
    "CloverError",
    "Completion",
    "ContextFullError",
    "DraftSelf",
    "FileError",
    "GrammarError",
    "IncompleteSetError",
    "InvalidFileError",
    "LoadError",
    "MemoryUse",
    "ModelNotFoundError",
    "NativeError",
    "OutOfMemoryError",
    "Report",
    "Sampling",
    "Score",
    "SpeculationUnavailableError",
    "StateError",
    "Stats",
    "TemplateError",
    "TextPiece",
    "UnsupportedCPUError",
    "UnsupportedModelError",
    "UsageError",
    "__version__",
    "errors",
    "inspect",
]

# Loaded on first use: `import pyclover` and `clover-run --help` must not wait for the native library.
_LAZY = {
    "BlockDiffusion": "pyclover.engine.speculation",
    "BlockParams": "pyclover.engine.blocks",
    "DraftSelf": "pyclover.engine.speculation",
    "Clover": "pyclover.clover",
    "Completion": "pyclover.engine.results",
    "MemoryUse": "pyclover.engine.results",
    "Report": "pyclover.files.report",
    "Sampling": "pyclover.engine.sampling",
    "Score": "pyclover.engine.results",
    "Stats": "pyclover.engine.results",
    "TextPiece": "pyclover.engine.results",
    "inspect": "pyclover.engine.inspect",
}

if TYPE_CHECKING:
    from pyclover.clover import Clover
    from pyclover.engine.blocks import BlockParams
    from pyclover.engine.inspect import inspect
    from pyclover.engine.results import Completion, MemoryUse, Score, Stats, TextPiece
    from pyclover.engine.sampling import Sampling
    from pyclover.engine.speculation import BlockDiffusion, DraftSelf
    from pyclover.files.report import Report


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'pyclover' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
