"""pyclover runs Clover, a block-diffusion mixture-of-experts language model, on one machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyclover import errors
from pyclover.errors import (
    AnswerFormatError,
    BusyError,
    CancelledError,
    ClosedError,
    CloverError,
    ContextFullError,
    ConvertError,
    DoesNotFitError,
    DownloadError,
    FileError,
    GrammarError,
    IncompleteSetError,
    InvalidFileError,
    LoadError,
    ModelNotFoundError,
    NativeError,
    OutOfMemoryError,
    RepairError,
    ServerError,
    SpeculationUnavailableError,
    StateError,
    TemplateError,
    ToolArgumentsError,
    UnsupportedCPUError,
    UnsupportedModelError,
    UsageError,
)

__version__ = "0.1.0"

__all__ = [
    "AnswerFormatError",
    "Benchmark",
    "BlockDiffusion",
    "BlockParams",
    "BusyError",
    "Calibration",
    "CancelledError",
    "ChatPiece",
    "ChatReply",
    "ClosedError",
    "Clover",
    "CloverError",
    "Completion",
    "ContextFullError",
    "Conversion",
    "ConvertError",
    "DoesNotFitError",
    "Download",
    "DownloadError",
    "DraftSelf",
    "Evaluation",
    "FileError",
    "FileQuality",
    "FunctionTool",
    "FunctionsReply",
    "GrammarError",
    "Imatrix",
    "IncompleteSetError",
    "InvalidFileError",
    "LoadError",
    "MemoryUse",
    "ModelNotFoundError",
    "NativeError",
    "OutOfMemoryError",
    "Plan",
    "Quantization",
    "Repair",
    "RepairError",
    "Report",
    "Sampling",
    "Score",
    "Server",
    "ServerError",
    "Session",
    "SpeculationUnavailableError",
    "StateError",
    "Stats",
    "TemplateError",
    "TextPiece",
    "ToolArgumentsError",
    "ToolCall",
    "Tuning",
    "UnsupportedCPUError",
    "UnsupportedModelError",
    "UsageError",
    "__version__",
    "bench",
    "calibrate",
    "convert",
    "download",
    "errors",
    "evaluate",
    "fit",
    "imatrix",
    "inspect",
    "quantize",
    "repair",
    "start_server",
    "tune",
]

# Loaded on first use: `import pyclover` and `clover-run --help` must not wait for the native library.
_LAZY = {
    "Benchmark": "pyclover.tuning.bench",
    "BlockDiffusion": "pyclover.engine.speculation",
    "BlockParams": "pyclover.engine.blocks",
    "DraftSelf": "pyclover.engine.speculation",
    "Calibration": "pyclover.tuning.calibrate",
    "Clover": "pyclover.clover",
    "Completion": "pyclover.engine.results",
    "Conversion": "pyclover.checkpoint",
    "Download": "pyclover.hub.download",
    "Evaluation": "pyclover.tuning.quality.result",
    "FileQuality": "pyclover.tuning.quality.result",
    "MemoryUse": "pyclover.engine.results",
    "Plan": "pyclover.plan.result",
    "Imatrix": "pyclover.tuning.imatrix",
    "Quantization": "pyclover.tuning.quantize",
    "Repair": "pyclover.files.repair",
    "Report": "pyclover.files.report",
    "Sampling": "pyclover.engine.sampling",
    "Score": "pyclover.engine.results",
    "Stats": "pyclover.engine.results",
    "TextPiece": "pyclover.engine.results",
    "Tuning": "pyclover.tuning.tune",
    "bench": "pyclover.tuning.bench",
    "calibrate": "pyclover.tuning.calibration",
    "convert": "pyclover.checkpoint",
    "download": "pyclover.source",
    "evaluate": "pyclover.tuning.quality.evaluate",
    "fit": "pyclover.plan.fit",
    "inspect": "pyclover.remote",
    "imatrix": "pyclover.tuning.imatrix",
    "quantize": "pyclover.tuning.quantize",
    "repair": "pyclover.files.repair",
    "ChatPiece": "pyclover.chat.reply",
    "ChatReply": "pyclover.chat.reply",
    "FunctionsReply": "pyclover.conversation",
    "FunctionTool": "pyclover.chat.functions",
    "Server": "pyclover.serve.server",
    "Session": "pyclover.session",
    "start_server": "pyclover.serve.server",
    "ToolCall": "pyclover.chat.answer",
    "tune": "pyclover.tuning.tune",
}

if TYPE_CHECKING:
    from pyclover.chat.answer import ToolCall
    from pyclover.chat.functions import FunctionTool
    from pyclover.chat.reply import ChatPiece, ChatReply
    from pyclover.checkpoint import Conversion, convert
    from pyclover.clover import Clover
    from pyclover.conversation import FunctionsReply
    from pyclover.engine.blocks import BlockParams
    from pyclover.engine.results import Completion, MemoryUse, Score, Stats, TextPiece
    from pyclover.engine.sampling import Sampling
    from pyclover.engine.speculation import BlockDiffusion, DraftSelf
    from pyclover.files.repair import Repair, repair
    from pyclover.files.report import Report
    from pyclover.hub.download import Download
    from pyclover.plan.fit import fit
    from pyclover.plan.result import Plan
    from pyclover.remote import inspect
    from pyclover.serve.server import Server, start_server
    from pyclover.session import Session
    from pyclover.source import download
    from pyclover.tuning.bench import Benchmark, bench
    from pyclover.tuning.calibrate import Calibration
    from pyclover.tuning.calibration import calibrate
    from pyclover.tuning.imatrix import Imatrix, imatrix
    from pyclover.tuning.quality.evaluate import evaluate
    from pyclover.tuning.quality.result import Evaluation, FileQuality
    from pyclover.tuning.quantize import Quantization, quantize
    from pyclover.tuning.tune import Tuning, tune


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'pyclover' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
