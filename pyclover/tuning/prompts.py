"""What is generated from: the user's own prompts, or a built-in set by kind."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from pyclover import arguments
from pyclover.errors import PathLike, UsageError, shortened

if TYPE_CHECKING:
    from pyclover.clover import Clover

BUILT_IN = Path(__file__).parents[1] / "data" / "prompts.yaml"
KINDS = ("code", "prose", "structured", "maths", "thinking")
OWN = "own"
MAX_BYTES = 64 << 20


@dataclass(frozen=True)
class Prompt:
    """A text to answer.

    Attributes:
        kind: what it is reported under.
        chat: it is a question, put into the model's chat template; else it is continued as it is.
        thinking: with chat, whether the model thinks first; None: as its template has it.
    """

    text: str
    kind: str = OWN
    chat: bool = False
    thinking: bool | None = None

    def tokens(self, clover: Clover) -> list[int]:
        """Its token ids for a model.

        Raises:
            TemplateError, UsageError: as Clover.apply_chat_template().
        """
        if not self.chat:
            return clover.tokenize(self.text)
        message = [{"role": "user", "content": self.text}]
        try:
            text = clover.apply_chat_template(message, thinking=self.thinking)
        except UsageError as error:
            if self.thinking is None or error.option != "thinking":
                raise
            text = clover.apply_chat_template(message)  # of a model that does not think
        return clover.tokenize(text)


def built_in(kinds: Iterable[str] = KINDS) -> tuple[Prompt, ...]:
    """The built-in prompts of some kinds.

    Raises:
        UsageError: a kind that there is not.
    """
    return _by_kind(yaml.safe_load(BUILT_IN.read_text(encoding="utf-8")), kinds, "the built-in prompts")


def own(texts: Sequence[str], *, chat: bool = False, kind: str = OWN) -> tuple[Prompt, ...]:
    """The user's texts as prompts, each once.

    Raises:
        UsageError: something that is no text, or an empty one.
    """
    for text in texts:
        if not arguments.text("prompts", text).strip():
            raise UsageError("prompts has an empty text: give some words in each", option="prompts")
    return tuple(Prompt(text, kind, chat) for text in dict.fromkeys(texts))


def read(path: PathLike, *, chat: bool = False) -> tuple[Prompt, ...]:
    """Prompts of a file: YAML by kind (.yaml, .yml; as in pyclover/data/prompts.yaml), else one a line.

    In YAML a kind is a list of texts, or `prompts` with `thinking` beside it; with `thinking`, and with chat, they are
    questions for the chat template.

    Raises:
        UsageError: no text, no prompts, or not of that form.
    """
    file = arguments.path("prompts", path)
    try:
        data = file.read_bytes()
    except OSError as e:
        raise UsageError(f"{file}: {e.strerror or e}; check the path", option="prompts") from None
    if len(data) > MAX_BYTES:
        raise UsageError(f"{file}: longer than {MAX_BYTES >> 20} MiB, which is the limit", option="prompts")
    try:
        text = data.decode()
    except UnicodeDecodeError as e:
        raise UsageError(f"{file}: not UTF-8 text ({e.reason} at byte {e.start})", option="prompts") from None
    if file.suffix.lower() in (".yaml", ".yml"):
        try:
            found = yaml.safe_load(text)
        except (yaml.YAMLError, RecursionError) as e:
            raise UsageError(f"{file}: not YAML: {e}", option="prompts") from None
        prompts = _by_kind(found, None, str(file), chat=chat)
    else:
        prompts = own([line for line in text.splitlines() if line.strip()], chat=chat)
    if not prompts:
        raise UsageError(f"{file}: no prompts in it: one a line, or YAML by kind", option="prompts")
    return prompts


def _by_kind(found: Any, kinds: Iterable[str] | None, source: str, *, chat: bool = False) -> tuple[Prompt, ...]:
    if not isinstance(found, Mapping):
        raise UsageError(f"{source}: must be kinds with lists of texts, not {shortened(found)}", option="prompts")
    wanted = tuple(str(kind) for kind in (found if kinds is None else kinds))
    prompts: list[Prompt] = []
    for kind in wanted:
        if kind not in found:
            raise UsageError(f"{source} has no kind {shortened(kind)}: it has {', '.join(found)}", option="kinds")
        entry = found[kind]
        thinking, texts = (entry.get("thinking"), entry.get("prompts")) if isinstance(entry, Mapping) else (None, entry)
        if not isinstance(texts, list) or not all(isinstance(text, str) and text.strip() for text in texts):
            raise UsageError(f"{source}: {kind} must be a list of texts, not {shortened(texts)}", option="prompts")
        if thinking is not None and not isinstance(thinking, bool):
            raise UsageError(f"{source}: thinking of {kind} must be true or false", option="prompts")
        prompts += [Prompt(text, kind, chat or thinking is not None, thinking) for text in dict.fromkeys(texts)]
    return tuple(prompts)


def digest(prompts: Sequence[Prompt]) -> str:
    """Identifies a set of prompts: 64 hexadecimal digits."""
    words = [[p.text, p.kind, p.chat, p.thinking] for p in prompts]
    return hashlib.sha256(json.dumps(words).encode()).hexdigest()
