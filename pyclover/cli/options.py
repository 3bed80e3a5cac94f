"""Options that commands share: names and meanings are llama.cpp's, parameter names are the Python API's keywords.

No default of the API is repeated here: an option that was not given is not passed on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from pyclover.cli import values

AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])

CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")


@dataclass
class State:
    """What belongs to one run of the program (`click.Context.obj`)."""

    debug: bool = False
    command: click.Command | None = None  # the one that runs


class SectionOption(click.Option):
    """An option that stands under its own title in the help."""

    def __init__(self, *args: Any, section: str = "", **attrs: Any) -> None:
        super().__init__(*args, **attrs)
        self.section = section


class SectionCommand(click.Command):
    """A command whose help shows its options in sections."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                sections.setdefault(getattr(param, "section", "") or "Options", []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records, col_max=34)


class Options:
    """A group of options under one title; decorates a command and picks its values from the command's arguments."""

    def __init__(self, section: str) -> None:
        self.section = section
        self._decorators: list[Callable[[Any], Any]] = []
        self._names: list[str] = []

    def add(self, *declarations: str, name: str, **attrs: Any) -> None:
        """One option more; `name` is the keyword of the API."""
        attrs.setdefault("default", None)
        self._decorators.append(click.option(name, *declarations, cls=SectionOption, section=self.section, **attrs))
        self._names.append(name)

    def __call__(self, function: AnyFunction) -> AnyFunction:
        for decorator in reversed(self._decorators):
            function = decorator(function)
        return function

    def given(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The keywords of this group that have a value."""
        return {name: arguments[name] for name in self._names if arguments.get(name) is not None}


def _set_debug(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value:
        ctx.ensure_object(State).debug = True


debug_option = click.option(
    "--debug",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_set_debug,
    help="On an error, show the Python traceback too.",
)
model_option = click.option(
    "-m",
    "--model",
    default=None,
    metavar="MODEL",
    help="GGUF file, any shard of a split one; or owner/repo[:quant] on the hub, or auto: the best that fits. "
    "[default: tiny, the small model in the package]",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Write one JSON object to standard output.")


def flag_of(commands: Sequence[click.Command], keyword: str) -> str:
    """The flag that sets a keyword of the API, "" when there is none: the one of its name, else the longest."""
    for command in commands:
        for param in command.params:
            if isinstance(param, click.Option) and param.name == keyword:
                own = "--" + keyword.replace("_", "-")
                return own if own in param.opts else max(param.opts, key=len)
    return ""


_count = click.IntRange(min=1)

MODEL = Options("Model")
MODEL.add(
    "-c",
    "--ctx-size",
    name="n_ctx",
    metavar="N",
    type=click.IntRange(min=0),
    help="Tokens that prompt and answer may have together; 0 = all that the model was trained for. "
    "[default: the same, but on a processor at most 8192, and what fits]",
)
MODEL.add(
    "-b",
    "--batch-size",
    name="n_batch",
    metavar="N",
    type=_count,
    help="Prompt tokens handed over at once. [default: 2048]",
)
MODEL.add(
    "-ub",
    "--ubatch-size",
    name="n_ubatch",
    metavar="N",
    type=_count,
    help="Prompt tokens computed at once. [default: 512]",
)
MODEL.add(
    "-ngl",
    "--gpu-layers",
    "--n-gpu-layers",
    name="n_gpu_layers",
    metavar="N|all|auto",
    type=values.count_or_all,
    help="Layers kept on the GPU, where the build has one; auto: as many as fit. [default: auto]",
)
MODEL.add(
    "-ncmoe",
    "--n-cpu-moe",
    name="n_cpu_moe",
    metavar="N|all|auto",
    type=values.count_or_all,
    help="Layers, from the first, whose routed experts stay in main memory; auto: as few as fit. [default: auto]",
)
MODEL.add(
    "-t",
    "--threads",
    name="n_threads",
    metavar="N",
    type=int,
    help="Threads that generate; 0 or less = as found best for this machine. [default: 0]",
)
MODEL.add(
    "-tb",
    "--threads-batch",
    name="n_threads_batch",
    metavar="N",
    type=int,
    help="Threads that read the prompt. [default: as --threads]",
)
MODEL.add(
    "-fa",
    "--flash-attn",
    name="flash_attn",
    metavar="on|off|auto",
    is_flag=False,
    flag_value="on",
    type=values.on_off_auto,
    help="Flash attention; without a value: on. [default: auto]",
)
MODEL.add(
    "-ctk",
    "--cache-type-k",
    name="cache_type_k",
    metavar="TYPE",
    type=click.Choice(CACHE_TYPES, case_sensitive=False),
    help="Type of the keys in the KV cache: " + ", ".join(CACHE_TYPES) + ". [default: f16]",
)
MODEL.add(
    "-ctv",
    "--cache-type-v",
    name="cache_type_v",
    metavar="TYPE",
    type=click.Choice(CACHE_TYPES, case_sensitive=False),
    help="Type of the values in the KV cache. [default: f16]",
)
MODEL.add(
    "--fit/--no-fit",
    name="fit",
    help="Choose what is not given so that the model fits this machine, and refuse what cannot; or try it as it is. "
    "[default: --fit]",
)
MODEL.add("--mmap/--no-mmap", name="mmap", help="Map the file into memory, or read it. [default: --mmap]")

SAMPLING = Options("Sampling")
SAMPLING.add(
    "--temp",
    "--temperature",
    name="temperature",
    metavar="X",
    type=float,
    help="Temperature; 0 or less = always the likeliest token. [default: 0.8]",
)
SAMPLING.add("--top-k", name="top_k", metavar="N", type=int, help="Keep the N likeliest tokens; 0 = all. [default: 40]")
SAMPLING.add(
    "--top-p",
    name="top_p",
    metavar="P",
    type=float,
    help="Keep the likeliest tokens that have probability P together; 1 = all. [default: 0.95]",
)
SAMPLING.add(
    "--min-p",
    name="min_p",
    metavar="P",
    type=float,
    help="Drop tokens less likely than P times the likeliest; 0 = none. [default: 0.05]",
)
SAMPLING.add(
    "--typical",
    "--typical-p",
    name="typical_p",
    metavar="P",
    type=float,
    help="Locally typical sampling; 1 = off. [default: 1.0]",
)
SAMPLING.add(
    "--repeat-penalty",
    name="repeat_penalty",
    metavar="X",
    type=float,
    help="Penalty for tokens seen lately; 1 = off. [default: 1.0]",
)
SAMPLING.add(
    "--repeat-last-n",
    name="repeat_last_n",
    metavar="N",
    type=click.IntRange(min=-1),
    help="Tokens that count as seen lately; 0 = off, -1 = the whole context. [default: 64]",
)
SAMPLING.add(
    "--frequency-penalty",
    name="frequency_penalty",
    metavar="X",
    type=float,
    help="Penalty per earlier occurrence; 0 = off. [default: 0.0]",
)
SAMPLING.add(
    "--presence-penalty",
    name="presence_penalty",
    metavar="X",
    type=float,
    help="Penalty for having occurred; 0 = off. [default: 0.0]",
)
SAMPLING.add(
    "--dry-multiplier",
    name="dry_multiplier",
    metavar="X",
    type=float,
    help="Strength of DRY (against repeated runs); 0 = off. [default: 0.0]",
)
SAMPLING.add(
    "--dry-base",
    name="dry_base",
    metavar="X",
    type=float,
    help="Growth of the DRY penalty with the run. [default: 1.75]",
)
SAMPLING.add(
    "--dry-allowed-length",
    name="dry_allowed_length",
    metavar="N",
    type=int,
    help="Longest run that DRY lets pass. [default: 2]",
)
SAMPLING.add(
    "--dry-penalty-last-n",
    name="dry_penalty_last_n",
    metavar="N",
    type=click.IntRange(min=-1),
    help="Tokens that DRY looks back on; 0 = off, -1 = the whole context. [default: 64]",
)
SAMPLING.add(
    "-s",
    "--seed",
    name="seed",
    metavar="N",
    type=values.seed,
    help="Seed of the random numbers; -1 = a new one each time. [default: -1]",
)
SAMPLING.add(
    "-l",
    "--logit-bias",
    name="logit_bias",
    metavar="ID(+/-)X",
    type=values.logit_bias,
    multiple=True,
    help="Add to a token's logit, as 15043+1 or 15043-inf. May be repeated.",
)
SAMPLING.add("--ignore-eos", name="ignore_eos", is_flag=True, help="Go on after the end token.")
SAMPLING.add("--grammar", name="grammar", metavar="GBNF", help="Grammar that the text has to follow.")
SAMPLING.add(
    "--grammar-file",
    name="grammar_file",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True),
    help="The grammar, from a file; - for standard input.",
)
SAMPLING.add(
    "-j", "--json-schema", name="json_schema", metavar="SCHEMA", help="JSON schema that the text has to follow."
)
SAMPLING.add(
    "-jf",
    "--json-schema-file",
    name="json_schema_file",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True),
    help="The JSON schema, from a file; - for standard input.",
)

SPECULATION = Options("Drafting (draft-self: the model drafts by itself)")
SPECULATION.add(
    "--spec-type",
    name="spec_type",
    metavar="TYPE",
    type=click.Choice(["none", "draft-self", "auto"]),
    help="none, draft-self, or auto: plain steps first, drafts once they are measured to be faster. [default: none]",
)
SPECULATION.add(
    "--spec-draft-n-max", "--draft-max", "--draft", name="n_max", type=click.IntRange(1, 31), metavar="N",
    help="Tokens of a draft, 1 to 31. [default: 3]",
)  # fmt: skip
SPECULATION.add(
    "--spec-accept-ratio", name="accept_ratio", type=click.FloatRange(0, 1), metavar="R",
    help="Relaxed acceptance: also take a drafted token with at least R times the best one's probability. Changes the "
    "text; needs --temp 0. [default: off]",
)  # fmt: skip
SPECULATION.add(
    "--spec-accept-delta", name="accept_delta", type=click.FloatRange(0, 1), metavar="D",
    help="Relaxed acceptance: also take one within D*(1-exp(-entropy)) of the best one's probability. Changes the "
    "text; needs --temp 0. [default: off]",
)  # fmt: skip
SPECULATION.add(
    "--spec-draft-p-min", "--draft-p-min", name="p_min", type=click.FloatRange(0, 1), metavar="P",
    help="A draft ends before a token that is less probable. [default: 0]",
)  # fmt: skip
SPECULATION.add(
    "--spec-draft-rows", name="block", type=click.IntRange(2, 32), metavar="N",
    help="Rows of a draft's block, at least one more than are drafted. [default: one more]",
)  # fmt: skip
SPECULATION.add(
    "--spec-draft-steps", name="steps", type=click.IntRange(1, 32), metavar="N",
    help="Block passes for a draft, at most as many as tokens are drafted. [default: 1, or as pays]",
)  # fmt: skip

SPECULATION.add(
    "--spec-draft-ahead/--no-spec-draft-ahead", name="ahead", default=None,
    help="Make the next draft in the pass that checks the last one: one pass a round instead of two when a draft is "
    "accepted whole. [default: as pays; no without --spec-draft-adaptive]",
)  # fmt: skip
MODEL.add(
    "--spec-rollback", name="rs_snapshots", type=values.rollback, metavar="rows|snapshots",
    help="How rejected tokens leave Clover's recurrent state: what each brought to it is kept and that of the others "
    "applied again, or a snapshot of the state is kept for each (63 MiB). [default: rows]",
)  # fmt: skip
SPECULATION.add(
    "--spec-draft-adaptive/--no-spec-draft-adaptive", name="adaptive", default=None,
    help="Draft only while it is measured to be faster than plain steps, and as many tokens as pay best. [default: "
    "yes, but no with relaxed acceptance]",
)  # fmt: skip

DIFFUSION = Options("Block diffusion (the model's native mode, greedy)")
DIFFUSION.add("--diffusion", name="diffusion", is_flag=True, help="Resolve whole blocks of masks in several passes.")
DIFFUSION.add(
    "--diffusion-threshold", name="threshold", type=click.FloatRange(0, 1), metavar="P",
    help="A pass fixes what is more probable than this, and at least one token. [default: 0.95]",
)  # fmt: skip
DIFFUSION.add(
    "--diffusion-block-length", name="diffusion_block", type=click.IntRange(1, 32), metavar="N",
    help="Tokens of a block. [default: as the model's file says]",
)  # fmt: skip
DIFFUSION.add(
    "--diffusion-steps", name="max_steps", type=click.IntRange(1, 32), metavar="N",
    help="Passes for a block at most. [default: as many as it takes]",
)  # fmt: skip
DIFFUSION.add(
    "--show-blocks",
    name="show_blocks",
    is_flag=True,
    help="On a terminal, show each block while it is resolved. Not with --json or -q.",
)
