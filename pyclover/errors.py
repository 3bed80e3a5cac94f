"""Every exception that pyclover raises on purpose: one sentence each, with the facts as attributes.

The message says what was wrong, where, and what to do; the attributes let a program react without parsing it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

PathLike = str | os.PathLike[str]


def _shown(message: str) -> str:
    """Text of a model file may stand in a message: it must neither break the line nor steer a terminal."""
    one_line = message.translate({ord(c): " " for c in "\n\r\t"})
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in one_line)


def shortened(value: object, n_max: int = 80) -> str:
    """A value in a message, cut when it is long."""
    try:
        shown = repr(value)
    except Exception:  # an integer of thousands of digits, a class with a broken __repr__
        shown = f"<{type(value).__name__}>"
    return shown if len(shown) <= n_max else f"{shown[: n_max - 1]}…"


class CloverError(Exception):
    """Base of all errors of this package; the message is one line."""

    def __init__(self, message: str = "") -> None:
        super().__init__(_shown(message))


class UsageError(CloverError, ValueError):
    """An argument or option has a value that cannot be honoured.

    Attributes:
        option: name of the argument or flag, "" when it is none in particular.
    """

    def __init__(self, message: str, *, option: str = "") -> None:
        super().__init__(message)
        self.option = option


class FileError(CloverError):
    """A model file cannot be used.

    Attributes:
        path: the file.
        key: metadata key or tensor name at fault, "" when it is neither.
    """

    def __init__(self, message: str, *, path: PathLike = "", key: str = "") -> None:
        super().__init__(message)
        self.path = os.fspath(path)
        self.key = key


class ModelNotFoundError(FileError, FileNotFoundError):
    """No file or model of that name."""


class InvalidFileError(FileError):
    """Not a GGUF file, or a damaged one: found before native code saw any of it."""


class IncompleteSetError(FileError):
    """Shards of a split file are missing.

    Attributes:
        missing: the paths that were looked for and not found.
    """

    def __init__(self, message: str, *, path: PathLike = "", missing: Sequence[str] = ()) -> None:
        super().__init__(message, path=path)
        self.missing = tuple(missing)


class DownloadError(FileError):
    """A model could not be fetched, or what was fetched is not what the hub announced.

    Attributes:
        path: the file or folder on this machine, "" when the fault lies elsewhere.
        repo: the repository, "" for a plain URL.
        reason: "offline", "network", "server" (it failed, or its answer is unusable), "access" (a token or consent is
            missing), "checksum", "no_room" or "disk".
        needed_bytes, free_bytes: with "no_room"; 0 when not known.
    """

    def __init__(
        self,
        message: str,
        *,
        path: PathLike = "",
        repo: str = "",
        reason: str = "",
        needed_bytes: int = 0,
        free_bytes: int = 0,
    ) -> None:
        super().__init__(message, path=path)
        self.repo = repo
        self.reason = reason
        self.needed_bytes = needed_bytes
        self.free_bytes = free_bytes


class UnsupportedModelError(FileError):
    """A sound GGUF file whose metadata or tensors do not make a model that can run."""


class RepairError(FileError):
    """A file cannot be repaired as asked, or the repaired one cannot be written; the old file is as it was.

    Attributes:
        needed_bytes, free_bytes: where the disk has no room for the new file; else 0.
    """

    def __init__(
        self, message: str, *, path: PathLike = "", key: str = "", needed_bytes: int = 0, free_bytes: int = 0
    ) -> None:
        super().__init__(message, path=path, key=key)
        self.needed_bytes = needed_bytes
        self.free_bytes = free_bytes


class LoadError(FileError):
    """llama.cpp refused the model; the message ends with its own words.

    Attributes:
        log: llama.cpp's last messages before it gave up.
    """

    def __init__(self, message: str, *, path: PathLike = "", key: str = "", log: Sequence[str] = ()) -> None:
        super().__init__(message, path=path, key=key)
        self.log = tuple(log)


class OutOfMemoryError(CloverError, MemoryError):
    """Not enough memory for weights, context or buffers.

    Attributes:
        needed_bytes, free_bytes: 0 when not known.
    """

    def __init__(self, message: str, *, needed_bytes: int = 0, free_bytes: int = 0) -> None:
        super().__init__(message)
        self.needed_bytes = needed_bytes
        self.free_bytes = free_bytes


class DoesNotFitError(OutOfMemoryError):
    """A model does not fit into this machine's memory with the settings asked for; nothing was loaded.

    Attributes:
        device: the memory that lacks most, "memory" for the machine's own.
        nearest: the plan (pyclover.Plan) that comes closest and fits, None when none does.
    """

    def __init__(
        self, message: str, *, needed_bytes: int = 0, free_bytes: int = 0, device: str = "", nearest: object = None
    ) -> None:
        super().__init__(message, needed_bytes=needed_bytes, free_bytes=free_bytes)
        self.device = device
        self.nearest = nearest


class ContextFullError(CloverError):
    """Prompt and answer need more tokens than the context holds.

    Attributes:
        n_ctx: tokens that the context holds.
        n_needed: tokens that were needed.
    """

    def __init__(self, message: str, *, n_ctx: int, n_needed: int) -> None:
        super().__init__(message)
        self.n_ctx = n_ctx
        self.n_needed = n_needed


class ClosedError(CloverError):
    """The model or context was used after close()."""


class BusyError(CloverError):
    """Another thread is using this context and the caller asked not to wait."""


class CancelledError(CloverError):
    """The running call was stopped by cancel()."""


class SpeculationUnavailableError(CloverError):
    """The model can neither draft nor generate by blocks; the message says what its file lacks."""


class ServerError(CloverError):
    """A server or worker did not start, or could not be kept alive; the message ends with its own words.

    Attributes:
        log: its last lines.
        worker: the unreachable RPC worker, "" when it is none.
    """

    def __init__(self, message: str, *, log: Sequence[str] = (), worker: str = "") -> None:
        super().__init__(message)
        self.log = tuple(log)
        self.worker = worker


class TemplateError(CloverError, ValueError):
    """A chat template that is missing or damaged, or that refuses the messages."""


class AnswerFormatError(CloverError, ValueError):
    """An answer is not what its response_format asks for, most often because it was cut.

    Attributes:
        content: the answer's text.
    """

    def __init__(self, message: str, *, content: str) -> None:
        super().__init__(message)
        self.content = content


class ToolArgumentsError(CloverError, ValueError):
    """A model wrote arguments of a call that are not a JSON object.

    Attributes:
        call: the pyclover.ToolCall.
    """

    def __init__(self, message: str, *, call: object) -> None:
        super().__init__(message)
        self.call = call


class ConvertError(FileError):
    """A checkpoint could not be converted although it is sound, or the new file cannot be written.

    Attributes:
        needed_bytes, free_bytes: where the disk has no room for the new file; else 0.
        log: the converter's last lines, when it was the converter that failed.
    """

    def __init__(
        self,
        message: str,
        *,
        path: PathLike = "",
        key: str = "",
        needed_bytes: int = 0,
        free_bytes: int = 0,
        log: Sequence[str] = (),
    ) -> None:
        super().__init__(message, path=path, key=key)
        self.needed_bytes = needed_bytes
        self.free_bytes = free_bytes
        self.log = tuple(log)


class GrammarError(CloverError, ValueError):
    """A grammar or JSON schema that cannot be used."""


class StateError(CloverError):
    """A saved state that is damaged or belongs to another model or context.

    Attributes:
        path: the file, "" when the state came from memory.
    """

    def __init__(self, message: str, *, path: PathLike = "") -> None:
        super().__init__(message)
        self.path = os.fspath(path)


class NativeError(CloverError):
    """llama.cpp failed in a way that has no class of its own; the message holds its words."""


class UnsupportedCPUError(CloverError, ImportError):
    """The processor lacks instructions that this build needs.

    Attributes:
        missing: names of the features, as /proc/cpuinfo spells them.
    """

    def __init__(self, message: str, *, missing: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.missing = tuple(missing)
