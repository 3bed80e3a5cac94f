"""The line editor of `clover-run chat`: history, several lines, pastes, completion of commands. On standard error."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.application import Application, get_app
from prompt_toolkit.completion import Completer
from prompt_toolkit.data_structures import Size
from prompt_toolkit.enums import DEFAULT_BUFFER
from prompt_toolkit.filters import Condition, has_focus
from prompt_toolkit.formatted_text import ANSI
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import ColorDepth, Output
from prompt_toolkit.shortcuts import CompleteStyle

from pyclover.cli.chat_history import open_history

FENCE = '"""'
_PASTES_MARKED, _PASTES_PLAIN = "\x1b[?2004h", "\x1b[?2004l"


def unfinished(text: str) -> bool:
    """Whether a line end belongs to the message: a fenced block is open."""
    text = text.strip()
    return text.startswith(FENCE) and (len(text) < 2 * len(FENCE) or not text.endswith(FENCE))


def message_of(text: str) -> str:
    """What was meant by what was typed: without fences, and without blank lines around it."""
    fenced = text.strip()
    if fenced.startswith(FENCE) and not unfinished(fenced):
        text = fenced[len(FENCE) : -len(FENCE)]
    # half a character, from a terminal that sends no UTF-8
    return text.strip("\n").encode("utf-8", errors="replace").decode()


class LineEditor:
    """Reads messages at a terminal.

    Args:
        history: file of the lines typed before; None: they are forgotten with the program.
        completer: what Tab offers.
        color: whether the prompt mark has a style.
        trouble: is told when the history cannot be kept.
    """

    def __init__(
        self, *, history: Path | None, completer: Completer, color: bool, trouble: Callable[[str], None]
    ) -> None:
        self._session: PromptSession[str] = PromptSession(
            ANSI("\x1b[1m> \x1b[0m" if color else "> "),
            multiline=True,  # the Enter of _keys() ends it all the same
            prompt_continuation="  ",
            history=open_history(history, trouble),
            completer=completer,
            complete_while_typing=False,
            complete_style=CompleteStyle.READLINE_LIKE,  # a menu would need room below the line
            reserve_space_for_menu=0,
            key_bindings=_keys(),
            enable_suspend=True,
            output=_output(),
            color_depth=None if color else ColorDepth.DEPTH_1_BIT,
        )

    def read(self) -> str:
        """The next message or command, "" when what was typed was given up with Ctrl-C.

        Raises:
            EOFError: Ctrl-D in an empty line, or the terminal is gone.
            KeyboardInterrupt: Ctrl-C in an empty line.
        """
        return message_of(self._session.prompt())

    @contextlib.contextmanager
    def typing_kept(self) -> Iterator[None]:
        """While the block runs, what is typed is not shown and waits for the next read(); Ctrl-C works."""
        if os.name == "nt":
            yield
            return
        import termios

        file = sys.stdin.fileno()
        try:
            before = termios.tcgetattr(file)
        except termios.error:  # no terminal any more
            yield
            return
        quiet = list(before)
        quiet[0] &= ~termios.ICRNL  # Enter arrives as the editor knows it
        quiet[3] &= ~(termios.ECHO | termios.ICANON)
        termios.tcsetattr(file, termios.TCSANOW, quiet)
        _tell_terminal(_PASTES_MARKED)
        try:
            yield
        finally:
            _tell_terminal(_PASTES_PLAIN)
            termios.tcsetattr(file, termios.TCSANOW, before)


def _tell_terminal(sequence: str) -> None:
    if os.environ.get("TERM", "") not in ("", "dumb"):
        sys.stderr.write(sequence)
        sys.stderr.flush()


def _keys() -> KeyBindings:
    keys = KeyBindings()
    in_message = has_focus(DEFAULT_BUFFER)  # and not in the search of Ctrl-R

    @keys.add("enter", filter=in_message)
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.document.is_cursor_at_the_end and buffer.text.endswith("\\"):
            buffer.delete_before_cursor()
            buffer.insert_text("\n")
        elif unfinished(buffer.text):
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter", filter=in_message)
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    # these end the editor without its style of ended lines, which would fill the line with blanks

    @keys.add("c-c", filter=in_message)
    @keys.add("<sigint>")
    def _(event: KeyPressEvent) -> None:
        app: Application[str] = event.app
        if event.current_buffer.text:
            app.exit(result="")
        else:
            app.exit(exception=KeyboardInterrupt())

    @keys.add("c-d", filter=in_message & Condition(lambda: not get_app().current_buffer.text))
    def _(event: KeyPressEvent) -> None:
        event.app.exit(exception=EOFError())

    return keys


def _output() -> Output:
    """Standard error as prompt_toolkit sees it."""
    if sys.platform == "win32":
        from prompt_toolkit.output import create_output

        return create_output(stdout=sys.stderr)
    from prompt_toolkit.output.vt100 import Vt100_Output

    def size() -> Size:
        try:
            columns, rows = os.get_terminal_size(sys.stderr.fileno())
        except OSError:
            columns, rows = 0, 0
        return Size(rows=rows or 24, columns=columns or 80)

    # asked where the cursor is, a terminal may answer when the editor is gone, and the answer would be a message
    return Vt100_Output(sys.stderr, size, term=os.environ.get("TERM"), enable_cpr=False)
