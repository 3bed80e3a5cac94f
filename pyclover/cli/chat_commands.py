"""The commands of `clover-run chat`: /help, /system, /think, …"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pyclover.cli import chat_file
from pyclover.cli.chat_view import AnswerView, statistics
from pyclover.engine.speculation import BlockDiffusion, DraftSelf
from pyclover.errors import UsageError

if TYPE_CHECKING:
    from pyclover.cli.chat_conversation import Conversation
    from pyclover.cli.output import Output
    from pyclover.engine.speculation import SpeculationLike

Next = Literal["ask", "retry", "quit"]  # what to do after a command: read the next line, answer again, end

_COMMAND = re.compile(r"/([A-Za-z?]*)(?:\s+(.*))?\Z", re.DOTALL)  # "/etc/passwd is …" is a message


@dataclass(frozen=True)
class Command:
    """A command as /help and the completion show it.

    Attributes:
        argument: how its argument is written, "" for none.
        words: arguments that can be completed; "FILE" alone stands for paths.
    """

    argument: str
    what: str
    words: tuple[str, ...] = ()


COMMANDS = {
    "help": Command("", "show this"),
    "system": Command("TEXT", 'set the system prompt; "" removes it, nothing shows it'),
    "think": Command("on|off|auto|N", "think before answering, or not; N: for at most N tokens", ("on", "off", "auto")),
    "draft": Command("N|off|auto", "draft N tokens at a time, or not; auto: only while it pays", ("off", "auto")),
    "color": Command("on|off", "show drafted tokens that were accepted in green", ("on", "off")),
    "stats": Command("", "numbers of the last answer and of the conversation"),
    "save": Command("FILE", "write the conversation and its settings as JSON", ("FILE",)),
    "load": Command("FILE", "go on with a conversation from such a file", ("FILE",)),
    "retry": Command("", "make the last answer again"),
    "clear": Command("", "forget the conversation, keep the settings"),
    "quit": Command("", "end; Ctrl-D does, too"),
}

KEYS = (
    "Enter sends; Alt-Enter, or a backslash at the end, begins a new line; a paste of several lines is one message,",
    'and so is what stands between """ and """. Ctrl-C stops an answer; twice at an empty prompt it ends the chat.',
    "A message that begins like a command: put a second / in front.",
)


def parsed(line: str) -> tuple[str, str] | None:
    """Name and argument of a command; None for a message."""
    hit = _COMMAND.match(line.strip())
    return None if hit is None else (hit[1].lower(), (hit[2] or "").strip())


class Commands:
    """Carries out commands.

    Args:
        model: name of the model, for the files of /save.
    """

    def __init__(self, out: Output, conversation: Conversation, view: AnswerView, *, model: str) -> None:
        self._out = out
        self._chat = conversation
        self._view = view
        self._model = model

    def run(self, name: str, argument: str) -> Next:
        """Carries out one command.

        Raises:
            UsageError: no such command, or an argument that it cannot use.
            FileError: of /save and /load.
        """
        if name in ("?", "exit", "q"):
            name = {"?": "help"}.get(name, "quit")
        command = COMMANDS.get(name)
        if command is None:
            near = difflib.get_close_matches(name, COMMANDS, n=1, cutoff=0.4) or ["help"]
            raise UsageError(f"no command /{name}: /{near[0]} is the nearest, and /help shows all")
        if argument and not command.argument:
            raise UsageError(f"/{name} takes nothing behind it")
        if name in ("retry", "quit"):
            return "retry" if name == "retry" else "quit"
        run: Callable[[str], None] = getattr(self, f"_{name}")
        run(argument)
        return "ask"

    def _help(self, _argument: str) -> None:
        for name, command in COMMANDS.items():
            self._out.talk(f"  {f'/{name} {command.argument}':<22} {command.what}")
        for line in KEYS:
            self._out.talk(line)

    def _system(self, argument: str) -> None:
        if argument:
            self._chat.system = "" if argument in ('""', "''") else argument
        self._out.talk(f"system prompt: {self._chat.system}" if self._chat.system else "no system prompt.")

    def _think(self, argument: str) -> None:
        settings = self._chat.settings
        if argument in ("on", "off", "auto"):
            settings.thinking = None if argument == "auto" else argument == "on"
            settings.think_budget = None
        elif argument.isascii() and argument.isdecimal():
            settings.thinking = settings.thinking or None  # a budget for a thought that is off would be none
            settings.think_budget = _number(argument)
        elif argument:
            raise UsageError(f"/think takes on, off, auto or a number of tokens, not {argument!r}")
        self._out.talk(f"thinking: {self._thinking()}.")

    def _thinking(self) -> str:
        settings = self._chat.settings
        text = {None: "auto, as the model's template has it", True: "on", False: "off"}[settings.thinking]
        if settings.think_budget is None or settings.thinking is False:
            return text
        return f"{text}, at most {settings.think_budget} tokens"

    def _draft(self, argument: str) -> None:
        settings = self._chat.settings
        before = settings.speculation
        wish: SpeculationLike
        if argument == "off":
            wish = None
        elif argument == "auto":
            wish = "auto"
        elif argument.isascii() and argument.isdecimal():
            n_max = _number(argument)
            wish = dataclasses.replace(before, n_max=n_max) if isinstance(before, DraftSelf) else DraftSelf(n_max=n_max)
        elif argument:
            raise UsageError(f"/draft takes a number of tokens, off or auto, not {argument!r}")
        else:
            self._out.talk(f"drafting: {self._drafting()}.")
            return
        settings.speculation = wish
        self._out.talk(f"drafting: {self._drafting()}.")

    def _drafting(self) -> str:
        speculation = self._chat.settings.speculation
        if isinstance(speculation, DraftSelf):
            most = "at most " if speculation.adapts else ""
            return f"{most}{speculation.n_max} tokens at a time, {speculation.mode}"
        if isinstance(speculation, BlockDiffusion):
            return f"off, answers come by {speculation.mode}"
        return "auto, while it is measured to be faster" if speculation == "auto" else "off"

    def _color(self, argument: str) -> None:
        if argument not in ("", "on", "off"):
            raise UsageError(f"/color takes on or off, not {argument!r}")
        self._view.color_drafts = argument == "on" if argument else not self._view.color_drafts
        self._out.talk(f"accepted drafts in green: {'on' if self._view.color_drafts else 'off'}.")

    def _stats(self, _argument: str) -> None:
        chat, totals = self._chat, self._chat.totals
        if chat.last is None:
            self._out.talk("nothing was answered yet.")
            return
        stats = chat.last.stats
        self._out.talk(f"last answer: {statistics(chat.last)}")
        if stats.drafted:
            places = zip(stats.accepted_by_position, stats.drafted_by_position, strict=False)
            shares = " ".join(f"{accepted / drafted:.0%}" for accepted, drafted in places if drafted)
            self._out.talk(
                f"accepted up to and with place 1, 2, …: {shares}; {stats.acceptance:.0%} of all drafted tokens"
            )
        self._out.talk(
            f"all answers: {totals.answers}, {totals.generated} tokens, {totals.thinking} of them for thinking; "
            f"conversation: {len(chat.messages)} messages, the last answer ended at token "
            f"{stats.n_prompt + stats.n_generated} of {chat.model.n_ctx}"
        )
        self._out.talk(f"thinking: {self._thinking()}; drafting: {self._drafting()}.")

    def _save(self, argument: str) -> None:
        settings = self._chat.settings
        path = chat_file.save(
            _file("save", argument),
            self._chat.all_messages(),
            model=self._model,
            settings={name: getattr(settings, name) for name in ("thinking", "think_budget", "speculation")},
        )
        self._out.talk(f"saved {len(self._chat.messages)} messages to {path}.")

    def _load(self, argument: str) -> None:
        saved = chat_file.load(_file("load", argument))
        self._chat.replace(saved.messages, system=saved.system)
        for name, value in saved.settings.items():
            setattr(self._chat.settings, name, value)
        self._out.talk(
            f"loaded {len(saved.messages)} messages; thinking: {self._thinking()}; drafting: {self._drafting()}."
        )

    def _clear(self, _argument: str) -> None:
        self._chat.replace([], system=self._chat.system)
        self._out.talk("the conversation begins anew.")


def _number(digits: str) -> int:
    return int(digits[:9])  # far beyond all limits already


def _file(command: str, argument: str) -> str:
    if not argument:
        raise UsageError(f"/{command} needs the name of a file behind it")
    return argument
