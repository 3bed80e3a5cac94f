"""Options that `bench` and `tune` share: prompts, measuring, and settings as lists, as llama-bench has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from pyclover.cli import options
from pyclover.cli.prompts import argument, read_text, unescape
from pyclover.cli.values import on_off_auto

if TYPE_CHECKING:
    from pyclover.tuning.prompts import Prompt

KINDS = ("code", "prose", "structured", "maths", "thinking")
# swept as lists here; the single values of the other commands make way
LISTED = ("n_threads", "n_batch", "n_ubatch")


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]


def whole_numbers(text: str) -> tuple[int, ...]:
    """ "1,3,7"."""
    try:
        return tuple(int(part) for part in _parts(text))
    except ValueError:
        raise click.BadParameter(f"{text!r} is no list of whole numbers, as in 1,3,7.") from None


def numbers(text: str) -> tuple[float, ...]:
    """ "0.9,0.95"."""
    try:
        return tuple(float(part) for part in _parts(text))
    except ValueError:
        raise click.BadParameter(f"{text!r} is no list of numbers, as in 0.9,0.95.") from None


def kinds_list(text: str) -> tuple[str, ...]:
    """ "code,prose"."""
    found = tuple(_parts(text))
    wrong = [kind for kind in found if kind not in KINDS]
    if wrong:
        raise click.BadParameter(f"there is no kind {wrong[0]!r}: {', '.join(KINDS)}.")
    return found


def switches(text: str) -> tuple[bool, ...]:
    """ "on,off"."""
    found = tuple(on_off_auto(part) for part in _parts(text))
    if "auto" in found:
        raise click.BadParameter(f"{text!r} is no list of on and off.")
    return tuple(value is True for value in found)


PROMPTS = options.Options("Prompts (without any: a built-in set by kind)")
PROMPTS.add("-p", "--prompt", name="prompt", multiple=True, metavar="TEXT", help="A prompt. May be repeated.")
PROMPTS.add("-f", "--file", name="prompt_file", multiple=True, metavar="FILE",
            type=click.Path(exists=True, dir_okay=False, allow_dash=True),
            help="File that is a prompt; - for standard input. May be repeated.")  # fmt: skip
PROMPTS.add("--prompts", name="prompts", metavar="FILE", type=click.Path(exists=True, dir_okay=False),
            help="File with many: one a line, or YAML with texts by kind (.yaml).")  # fmt: skip
PROMPTS.add("--kinds", name="kinds", metavar="KIND,…", type=kinds_list,
            help=f"Of the built-in prompts: {', '.join(KINDS)}. [default: all]")  # fmt: skip
PROMPTS.add("--chat", name="chat", is_flag=True,
            help="Prompts are questions: put them into the model's chat template. The built-in ones always are.",
            )  # fmt: skip
PROMPTS.add("-e", "--escape/--no-escape", name="escape",
            help=r"Read \n, \t, \x41 and the like in -p as the characters meant. [default: --escape]")  # fmt: skip

MEASURED = options.Options("Measuring")
MEASURED.add("-n", "--predict", "--n-predict", name="max_tokens", metavar="N", type=click.IntRange(min=2),
             help="Tokens of an answer at most. [default: 128]")  # fmt: skip
MEASURED.add("--temp", "--temperature", name="temperature", metavar="X", type=float,
             help="Temperature; 0 = always the likeliest token. [default: 0]")  # fmt: skip
MEASURED.add("-s", "--seed", name="seed", metavar="N", type=click.IntRange(0, 2**32 - 2),
             help="Seed for temperatures above 0. [default: 1]")  # fmt: skip

SWEEP = options.Options("Settings to try (lists with commas; all combinations, and plain decoding always)")
SWEEP.add("--spec-draft-n-max", "--draft-max", "--draft", name="n_max", metavar="N,…", type=whole_numbers,
          help="Tokens of a draft. [default: 1,3,7,15]")  # fmt: skip
SWEEP.add("--spec-draft-steps", name="steps", metavar="N,…", type=whole_numbers,
          help="Block passes for a draft. [default: 1]")  # fmt: skip
SWEEP.add("--spec-draft-rows", name="block", metavar="N,…", type=whole_numbers,
          help="Rows of a draft's block. [default: one more than are drafted]")  # fmt: skip
SWEEP.add("--spec-draft-p-min", "--draft-p-min", name="p_min", metavar="P,…", type=numbers,
          help="A draft ends before a token that is less probable. [default: 0]")  # fmt: skip
SWEEP.add("--spec-draft-adaptive", name="adaptive", metavar="on|off,…", type=switches,
          help="Whether the controller decides, with the draft's length as its ceiling. [default: off]",
          )  # fmt: skip
SWEEP.add("--spec-draft-ahead", name="ahead", metavar="on|off,…", type=switches,
          help="Whether the next draft is made in the pass that checks the last one. [default: off, but with the "
          "controller as pays]")  # fmt: skip
SWEEP.add("--auto/--no-auto", name="auto", help="Let the controller alone take part as well. [default: --auto]")
SWEEP.add("--spec-accept-ratio", name="accept_ratio", metavar="R,…", type=numbers,
          help="Relaxed acceptance, which changes the text; never recommended. [default: none]")  # fmt: skip
SWEEP.add("--spec-accept-delta", name="accept_delta", metavar="D,…", type=numbers,
          help="Relaxed acceptance, which changes the text; never recommended. [default: none]")  # fmt: skip
SWEEP.add("--expert-coreset", name="expert_coreset", metavar="K,…", type=whole_numbers,
          help="Experts that a block pass may use, 0 = all; the text stays. [default: as the model's file says]",
          )  # fmt: skip
SWEEP.add("-t", "--threads", name="n_threads_list", metavar="N,…", type=whole_numbers,
          help="Threads that generate. [default: as found best for this machine]")  # fmt: skip
SWEEP.add("-b", "--batch-size", name="n_batch_list", metavar="N,…", type=whole_numbers,
          help="Prompt tokens handed over at once. [default: 2048]")  # fmt: skip
SWEEP.add("-ub", "--ubatch-size", name="n_ubatch_list", metavar="N,…", type=whole_numbers,
          help="Prompt tokens computed at once. [default: 512]")  # fmt: skip


def without_listed(command: click.Command) -> click.Command:
    """The command without the single values that lists have taken the place of."""
    command.params[:] = [param for param in command.params if param.name not in LISTED]
    return command


def swept(values: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes of `Sweep` and arguments of measuring that were given."""
    given = {**SWEEP.given(values), **MEASURED.given(values)}
    return {name.removesuffix("_list"): value for name, value in given.items()}


def prompts_given(values: Mapping[str, Any]) -> tuple[Prompt, ...]:
    """The user's own prompts, () for none.

    Raises:
        click.UsageError: prompts and kinds together, or a text that cannot be.
    """
    from pyclover.tuning.prompts import own, read

    chat = bool(values["chat"])
    escape = values["escape"] is not False
    texts = [unescape(text, "-p") if escape else argument(text, "-p") for text in values["prompt"] or ()]
    texts += [read_text(path, "-f") for path in values["prompt_file"] or ()]
    found: list[Prompt] = list(own(texts, chat=chat))
    if values["prompts"] is not None:
        found += read(values["prompts"], chat=chat)
    if found and values["kinds"]:
        raise click.UsageError("--kinds is about the built-in prompts: leave it or your own prompts out.")
    return tuple(found)
