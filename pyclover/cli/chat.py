"""`clover-run chat`: talk with a model, at a terminal or in a pipe."""

from __future__ import annotations

import contextlib
import sys
from typing import Any, Literal

import click

from pyclover.cli import chat_pipe, interrupt, options, profile_use
from pyclover.cli.chat_conversation import Conversation, Settings
from pyclover.cli.chat_view import AnswerView
from pyclover.cli.generate import (
    EMBEDDED_MODEL,
    check_sampling,
    fetched,
    model_keywords,
    sampling_keywords,
    speculation_from,
    states_to_keep,
)
from pyclover.cli.output import Output
from pyclover.cli.prompts import argument, unescape
from pyclover.cli.values import on_off_auto

TOY = (
    "note: no -m given, so this is tiny, the small model in the package: a toy that knows next to nothing "
    "(docs/tiny.md says what it can do); -m auto fetches the best Clover that fits this machine."
)


@click.command(cls=options.SectionCommand, short_help="Talk with the model.")
@options.model_option
@click.option(
    "-sys",
    "--system",
    "--system-prompt",
    "system",
    default="",
    metavar="TEXT",
    help="System prompt: what the model is told before everything else.",
)
@click.option(
    "-rea",
    "--reasoning",
    "thinking",
    default="auto",
    type=on_off_auto,
    metavar="on|off|auto",
    help="Whether the model thinks before it answers; auto: as its template has it. [default: auto]",
)
@click.option(
    "--think-budget",
    "--reasoning-budget",
    "think_budget",
    type=click.IntRange(min=-1),
    default=-1,
    metavar="N",
    help="Tokens that a thought may have at most; -1 = any number. [default: -1]",
)
@click.option("--hide-thinking", is_flag=True, help="At a terminal, one word in place of thoughts: thinking ...")
@click.option(
    "-n",
    "--predict",
    "--n-predict",
    "max_tokens",
    type=click.IntRange(min=-2),
    default=-1,
    metavar="N",
    help="Tokens of an answer at most, thinking included; -1 or -2 = until the model ends it. [default: -1]",
)
@click.option(
    "-r",
    "--stop",
    "--reverse-prompt",
    "stop",
    multiple=True,
    metavar="TEXT",
    help="End an answer where this text comes up; it is not shown. May be repeated.",
)
@click.option(
    "-e",
    "--escape/--no-escape",
    "escape",
    default=True,
    help=r"Read \n, \t, \x41 and the like in --system and -r as the characters meant. [default: --escape]",
)
@click.option(
    "--single",
    is_flag=True,
    help="All that is piped in is one message, answered once. Without it, every line is a message.",
)
@click.option(
    "--no-history", is_flag=True, help="Neither read nor keep the lines that are typed. They are kept for you alone."
)
@click.option(
    "-co",
    "--color",
    "color",
    is_flag=False,
    flag_value="on",
    default="auto",
    type=on_off_auto,
    metavar="on|off|auto",
    help="Colours; on, or without a value: drafted tokens that were accepted in green, too. [default: auto]",
)
@profile_use.profile_option
@click.option("-v", "--verbose", is_flag=True, help="In a pipe, write the speed of each answer to standard error.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object for each answer; messages come as in a pipe.")
@options.debug_option
@options.MODEL
@options.SAMPLING
@options.SPECULATION
@options.DIFFUSION
def chat(
    *,
    model: str | None,
    system: str,
    thinking: bool | Literal["auto"],
    think_budget: int,
    hide_thinking: bool,
    max_tokens: int,
    stop: tuple[str, ...],
    escape: bool,
    single: bool,
    no_history: bool,
    color: bool | Literal["auto"],
    profile: str,
    verbose: bool,
    as_json: bool,
    **values: Any,
) -> None:
    """Talk with the model.

    At a terminal: a line editor with history, commands (/help shows them), and Ctrl-C, which stops the answer and not
    the program. In a pipe: every line is a message, the answers go to standard output. Answers go to standard output,
    everything else to standard error. The names of the options are llama.cpp's.
    """
    at_terminal = not (single or as_json) and _both_terminals()
    if thinking is False and think_budget >= 0:
        raise click.UsageError("--think-budget belongs to thinking, which --reasoning off turns off: leave one out.")
    if values["show_blocks"] and not at_terminal:
        raise click.UsageError("--show-blocks is for a chat at a terminal.")
    if values["json_schema_file"] == "-":
        raise click.UsageError("standard input is the chat: give the schema as a file.")
    speculation = speculation_from(options.SPECULATION.given(values), options.DIFFUSION.given(values))
    # of the others, block diffusion has no such attribute
    lossless = speculation in (None, "auto") or not getattr(speculation, "relaxed", True)
    if think_budget >= 0 and not lossless:
        raise click.UsageError("--think-budget works token by token: not with --diffusion or relaxed acceptance.")
    out = Output("json" if as_json else "table", color=None if color == "auto" else color)
    if values["spec_type"] == "none" and len(options.SPECULATION.given(values)) > 1:
        out.warn("--spec-type none: the other options of drafting have no effect")
    sampling = sampling_keywords(values)
    system = unescape(system, "--system") if escape else argument(system, "--system")
    stops = [unescape(item, "-r") if escape else argument(item, "-r") for item in stop]
    if "" in stops:
        raise click.UsageError("-r: an empty text would end every answer at once.")

    with interrupt.at_once():
        from pyclover.clover import Clover
        from pyclover.engine.speculation import DraftSelf

        if at_terminal:
            import pyclover.cli.chat_editor  # noqa: F401  # Ctrl-C in the midst of it would leave it half imported

    check_sampling(sampling, speculation)
    request: dict[str, Any] = dict(sampling)
    if max_tokens >= 0:
        request["max_tokens"] = max_tokens
    if stops:
        request["stop"] = tuple(stops)
    if "json_schema" in request:  # the answer follows it, a thought before it does not
        request["response_format"] = request.pop("json_schema")
    settings = Settings(
        thinking=None if thinking == "auto" else thinking,
        think_budget=think_budget if think_budget >= 0 else None,
        speculation=speculation,
        request=request,
    )
    piped = chat_pipe.messages(single=single)
    if single:  # what is wrong with it is said before a model is loaded
        piped = iter(list(piped))
    with contextlib.ExitStack() as stack:
        keywords = model_keywords(values)
        chosen = EMBEDDED_MODEL if model is None else model
        file = fetched(out, chosen, fit=keywords.get("fit", True))
        use = profile_use.for_run(out, profile, file, values, keywords)
        settings.speculation = speculation_from(use.speculation, options.DIFFUSION.given(values))
        keywords |= use.load
        if isinstance(settings.speculation, DraftSelf):
            keywords["n_rs_seq"] = states_to_keep(settings.speculation.n_max, keywords)
        with out.progress("loading") as progress:
            clover = stack.enter_context(Clover(file, progress=progress, **keywords))
        if use.params:
            clover.block_params = use.block_params(clover.block_params)
        if model is None:
            out.talk(TOY)
        for warning in clover.warnings:
            out.warn(warning)
        conversation = Conversation(clover, settings, system=system)
        if at_terminal:
            view = AnswerView(
                out,
                hide_thinking=hide_thinking,
                color_drafts=color is True,
                tokens_shown=(lambda token: clover.detokenize([token])) if values["show_blocks"] else None,
            )
            code = _at_terminal(out, conversation, view, chosen, history=not no_history)
        else:
            code = chat_pipe.run(out, conversation, piped, verbose=verbose)
    if code:
        raise click.exceptions.Exit(code)


# a chat has a grammar of its own, which is made from the template and the schema
chat.params[:] = [param for param in chat.params if param.name not in ("grammar", "grammar_file")]


def _at_terminal(out: Output, conversation: Conversation, view: AnswerView, model: str, *, history: bool) -> int:
    from pyclover.cli.chat_answer import ctrl_c_lost, terminated_in_order
    from pyclover.cli.chat_complete import CommandCompleter
    from pyclover.cli.chat_editor import LineEditor
    from pyclover.cli.chat_history import history_path
    from pyclover.cli.chat_terminal import TerminalChat

    editor = LineEditor(
        history=history_path() if history else None,
        completer=CommandCompleter(),
        color=out.colors(sys.stderr),
        trouble=out.warn,
    )
    out.talk("/help shows the commands, Ctrl-D ends the chat.")
    with terminated_in_order(), ctrl_c_lost():
        return TerminalChat(out, conversation, editor, view, model=model).run()


def _both_terminals() -> bool:
    """Whether somebody types and sees the talk."""
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr))
