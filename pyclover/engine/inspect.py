"""What can be said about a model file, also by native code, without loading the model."""

from __future__ import annotations

from dataclasses import replace

from pyclover.errors import CloverError, PathLike
from pyclover.files import report
from pyclover.files.facts import Capabilities, Capability, Problem
from pyclover.files.find import find_model
from pyclover.files.report import Report
from pyclover.files.shards import Opener


def inspect(path: PathLike) -> Report:
    """Report on a model: a GGUF file, any shard of a split one, or "tiny".

    A model that cannot run is reported with its `problems`.

    Raises:
        ModelNotFoundError, InvalidFileError, IncompleteSetError: there is no such file, or none that can be read.
        UnsupportedModelError: only where the header itself cannot be read (version 1, big-endian, a removed type).
    """
    return _with_architecture(report.inspect(find_model(path, option="path")))


def inspect_open(open_file: Opener) -> Report:
    """Report on a model that is not on this machine; only headers are read.

    Args:
        open_file: gives a binary file with `size` and `name`, as a context manager: for None the file asked for, for a
            file name that shard of its set.

    Raises:
        InvalidFileError, UnsupportedModelError: as inspect; and whatever `open_file` raises.
    """
    return _with_architecture(report.inspect_open(open_file))


def _with_architecture(found: Report) -> Report:
    """The report, with what this build of llama.cpp says of the architecture."""
    is_model = bool(found.architecture) and all(problem.key != "general.type" for problem in found.problems)
    if not is_model or knows_architecture(found.architecture) is not False:
        return found
    message = f"the architecture '{found.architecture}' is none that this build of llama.cpp runs; use another model"
    problems = (Problem("general.architecture", message), *found.problems)
    no = Capability(False, message)
    return replace(found, problems=problems, capabilities=Capabilities(no, no, no))


def knows_architecture(name: str) -> bool | None:
    """Whether llama.cpp runs models of an architecture; None where the native part does not load."""
    try:
        from pyclover._native import check, ffi, lib
    except (ImportError, CloverError):
        return None
    out = ffi.new("int32_t *")
    check(lib.pc_knows_architecture(ffi.new("char[]", name.encode()), out))
    return bool(out[0])
