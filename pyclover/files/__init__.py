"""Model files: the gate in front of native code, inspection, and the model in the package."""

from __future__ import annotations

from pyclover.files.clover import check_clover
from pyclover.files.facts import CLOVER_ARCH, Capabilities, Capability, CloverFacts, ModelFacts, Problem
from pyclover.files.gate import ValidatedModel, validate
from pyclover.files.header import Header, SplitInfo, TensorInfo
from pyclover.files.header_read import read_header
from pyclover.files.model import check_model
from pyclover.files.report import Report, inspect
from pyclover.files.shards import ShardSet, resolve
from pyclover.files.types import GGML_TYPES, GgmlType
from pyclover.files.values import Array, MetaValue, ValueType

__all__ = [
    "CLOVER_ARCH",
    "GGML_TYPES",
    "Array",
    "Capabilities",
    "Capability",
    "CloverFacts",
    "GgmlType",
    "Header",
    "MetaValue",
    "ModelFacts",
    "Problem",
    "Report",
    "ShardSet",
    "SplitInfo",
    "TensorInfo",
    "ValidatedModel",
    "ValueType",
    "check_clover",
    "check_model",
    "inspect",
    "read_header",
    "resolve",
    "validate",
]
