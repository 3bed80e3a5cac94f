"""A conversation as a file: JSON with the messages in OpenAI's form, and the settings that commands can change."""

from __future__ import annotations

import dataclasses
import json
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyclover.chat.messages import checked_messages
from pyclover.cli.prompts import MAX_BYTES
from pyclover.engine.speculation import BlockDiffusion, DraftSelf
from pyclover.errors import FileError, UsageError

FORMAT = "pyclover chat 1"
_KINDS = {"draft-self": DraftSelf, "block diffusion": BlockDiffusion}


@dataclass(frozen=True)
class Saved:
    """A conversation that was saved.

    Attributes:
        system: the system prompt, "" for none.
        messages: all others.
        settings: of "thinking", "think_budget" and "speculation" those that the file has.
    """

    system: str
    messages: list[dict[str, Any]]
    settings: dict[str, Any]


def save(name: str, messages: list[dict[str, Any]], *, model: str, settings: dict[str, Any]) -> Path:
    """Writes a conversation and returns where; an earlier file is replaced when the new one is whole.

    Raises:
        FileError: it cannot be written.
    """
    path = _path(name)
    speculation = settings.get("speculation")
    if isinstance(speculation, (DraftSelf, BlockDiffusion)):
        kind = next(kind for kind, cls in _KINDS.items() if isinstance(speculation, cls))
        settings = {**settings, "speculation": {"type": kind, **dataclasses.asdict(speculation)}}
    data = {"format": FORMAT, "model": model, "settings": settings, "messages": messages}
    # half a character can come from a damaged terminal line; the file is UTF-8 all the same
    text = json.dumps(data, ensure_ascii=False, indent=1).encode("utf-8", errors="replace") + b"\n"
    draft = None
    try:
        target = Path(os.path.realpath(path))
        mode = target.stat().st_mode if target.exists() else None
        if mode is not None and not stat.S_ISREG(mode):
            what = "a folder" if stat.S_ISDIR(mode) else "no regular file"
            raise FileError(f"{path} is {what}: give the name of a file", path=path)
        draft = target.with_name(f".{os.getpid()}-{os.urandom(8).hex()}.tmp")
        with draft.open("xb") as file:  # a new file gets the mode that the umask leaves
            if mode is not None:
                os.chmod(draft, stat.S_IMODE(mode))
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, target)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise FileError(f"cannot save to {path}: {getattr(error, 'strerror', None) or error}", path=path) from None
    finally:
        if draft is not None:
            draft.unlink(missing_ok=True)
    return path


def load(name: str) -> Saved:
    """Reads what save() wrote, or a plain list of messages in OpenAI's form.

    Raises:
        FileError: it cannot be read, or holds something else.
    """
    path = _path(name)
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise FileError(f"cannot load {path}: {getattr(error, 'strerror', None) or error}", path=path) from None
    if len(data) > MAX_BYTES:
        raise FileError(f"{path} is longer than {MAX_BYTES >> 20} MiB, which is the limit", path=path)
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):  # UnicodeDecodeError is a ValueError
        raise _no_conversation(path, "it is not JSON") from None
    if isinstance(value, list):
        value = {"messages": value}
    if not isinstance(value, dict) or not isinstance(value.get("messages"), list):
        raise _no_conversation(path, 'it has no list "messages"')
    settings = value.get("settings") or {}
    if not isinstance(settings, dict):
        raise _no_conversation(path, '"settings" is no object')
    try:
        messages = checked_messages(value["messages"]) if value["messages"] else []
        return Saved(*_without_system(messages), settings=_settings(path, settings))
    except UsageError as error:
        raise FileError(f"{path}: {error}", path=path) from None


def _path(name: str) -> Path:
    try:
        return Path(name).expanduser()
    except RuntimeError:  # ~somebody, who is not known
        raise FileError(
            f"{name}: there is no such user, or no home folder; write ./{name} for a file", path=name
        ) from None


def _no_conversation(path: Path, why: str) -> FileError:
    return FileError(f"{path} is no saved conversation: {why}", path=path)


def _without_system(messages: list[dict[str, Any]]) -> tuple[str, list[dict[str, Any]]]:
    if not messages or messages[0]["role"] not in ("system", "developer"):
        return "", messages
    content = messages[0]["content"]
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content), messages[1:]


def _settings(path: Path, given: dict[str, Any]) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    if "thinking" in given:
        if given["thinking"] is not None and not isinstance(given["thinking"], bool):
            raise _no_conversation(path, '"thinking" is none of true, false, null')
        settings["thinking"] = given["thinking"]
    if "think_budget" in given:
        budget = given["think_budget"]
        if budget is not None and (type(budget) is not int or budget < 0):
            raise _no_conversation(path, '"think_budget" is neither a number of tokens nor null')
        settings["think_budget"] = budget
    if "speculation" in given:
        settings["speculation"] = _speculation(path, given["speculation"])
    return settings


def _speculation(path: Path, given: Any) -> Any:
    if given is None or given == "auto":
        return given
    fields = dict(given) if isinstance(given, dict) else {}
    cls = _KINDS.get(str(fields.pop("type", "")))
    try:
        if cls is None:
            raise TypeError
        return cls(**fields)
    except TypeError:  # a name that is no setting
        raise _no_conversation(path, '"speculation" is none that this version knows') from None
