"""What Tab offers in `clover-run chat`: commands, their words, and files."""

from __future__ import annotations

from collections.abc import Iterable

from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document

from pyclover.cli.chat_commands import COMMANDS


class CommandCompleter(Completer):
    """Completes commands; in messages Tab offers nothing."""

    def __init__(self) -> None:
        self._paths = PathCompleter(expanduser=True)

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        line = document.text_before_cursor
        if not line.startswith("/") or "\n" in line:
            return
        name, space, argument = line[1:].partition(" ")
        if not space:
            for known in COMMANDS:
                if known.startswith(name.lower()):
                    yield Completion(f"/{known}", start_position=-len(line))
            return
        words = COMMANDS[name].words if name in COMMANDS else ()
        if words == ("FILE",):
            yield from self._paths.get_completions(Document(argument), complete_event)
        else:
            for word in words:
                if word.startswith(argument):
                    yield Completion(word, start_position=-len(argument))
