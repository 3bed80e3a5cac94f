"""The lines that were typed in earlier chats: a file that only its owner can read."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

import platformdirs
from prompt_toolkit.history import FileHistory, History, InMemoryHistory

NAME = "chat_history"
MAX_BYTES = 1 << 20  # then the older half goes


def history_path() -> Path:
    """Where the history is kept."""
    return platformdirs.user_state_path("pyclover", appauthor=False) / NAME


def open_history(path: Path | None, trouble: Callable[[str], None]) -> History:
    """The history in a file, mode 0600; in memory for None, and where the file cannot be used.

    Args:
        trouble: is told once why nothing is kept.
    """
    if path is None:
        return InMemoryHistory()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _make_private(path)
        _shorten(path)
        return _KeptHistory(path, trouble)
    except OSError as error:
        trouble(_sentence(path, error))
        return InMemoryHistory()


def _sentence(path: Path, error: OSError) -> str:
    return f"the lines typed here are not kept: {path}: {error.strerror or error} (--no-history leaves them out)"


def _make_private(path: Path) -> None:
    file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        if os.name != "nt" and os.fstat(file).st_mode & 0o077:
            os.chmod(path, 0o600)
    finally:
        os.close(file)


def _shorten(path: Path) -> None:
    data = path.read_bytes() if path.stat().st_size > MAX_BYTES else b""
    at = data.find(b"\n# ", len(data) // 2)  # an entry begins with a comment, its lines with a plus
    if at < 0:
        return
    draft = path.with_name(f".{os.getpid()}-{os.urandom(8).hex()}.tmp")
    file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(file, "wb") as f:
            f.write(data[at:])
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


class _KeptHistory(FileHistory):
    def __init__(self, path: Path, trouble: Callable[[str], None]) -> None:
        super().__init__(path)
        self._path = path
        self._trouble: Callable[[str], None] | None = trouble

    def load_history_strings(self) -> Iterable[str]:
        try:
            return super().load_history_strings()
        except OSError as error:
            self._tell(error)
            return []

    def store_string(self, string: str) -> None:
        try:
            _make_private(self._path)  # it may be gone by now
            super().store_string(string)
        except OSError as error:  # a full disk must not end the chat
            self._tell(error)

    def _tell(self, error: OSError) -> None:
        if self._trouble is not None:
            self._trouble(_sentence(self._path, error))
            self._trouble = None
