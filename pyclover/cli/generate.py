"""`clover-run generate`: text from a prompt, shown as it comes."""

from __future__ import annotations

import contextlib
import json
import signal
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, Protocol

import click

from pyclover.cli import interrupt, options, profile_use
from pyclover.cli.download import progress_of
from pyclover.cli.options import flag_of
from pyclover.cli.output import Output, speed
from pyclover.cli.prompts import argument, read_prompt, read_text, unescape
from pyclover.cli.values import on_off_auto
from pyclover.errors import ClosedError

if TYPE_CHECKING:
    from types import FrameType

    from pyclover.clover import Clover
    from pyclover.engine.results import Stats
    from pyclover.engine.speculation import SpeculationLike

EMBEDDED_MODEL = "tiny"


@click.command(cls=options.SectionCommand, short_help="Generate text from a prompt.")
@options.model_option
@click.option("-p", "--prompt", default=None, metavar="TEXT", help="The prompt.")
@click.option(
    "-f",
    "--file",
    "prompt_file",
    default=None,
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True),
    help="File with the prompt; - for standard input. Without -p and -f, what is piped in is the prompt.",
)
@click.option(
    "-n",
    "--predict",
    "--n-predict",
    "max_tokens",
    type=click.IntRange(min=-2),
    default=-1,
    metavar="N",
    help="Tokens to generate at most; -1 or -2 = until the context is full. [default: -1]",
)
@click.option(
    "-r",
    "--stop",
    "--reverse-prompt",
    "stop",
    multiple=True,
    metavar="TEXT",
    help="End where this text comes up; it is not shown. May be repeated.",
)
@click.option(
    "-e",
    "--escape/--no-escape",
    "escape",
    default=True,
    help=r"Read \n, \t, \x41 and the like in -p and -r as the characters meant. [default: --escape]",
)
@click.option(
    "--chat",
    is_flag=True,
    help="The prompt is a question: put it into the model's chat template as the user's turn. The answer goes to "
    "standard output, the thought before it to standard error.",
)
@click.option(
    "-rea",
    "--reasoning",
    "thinking",
    default="auto",
    type=on_off_auto,
    metavar="on|off|auto",
    help="With --chat: whether the model thinks before it answers; auto: as its template has it. [default: auto]",
)
@click.option(
    "--display-prompt/--no-display-prompt",
    "display_prompt",
    default=False,
    help="Show the prompt before the text. [default: --no-display-prompt]",
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
    help="Colours; without a value: on. [default: auto]",
)
@click.option("-q", "--quiet", is_flag=True, help="The text alone: no speed line, no warnings.")
@profile_use.profile_option
@options.json_option
@options.debug_option
@options.MODEL
@options.SAMPLING
@options.SPECULATION
@options.DIFFUSION
def generate(
    *,
    model: str | None,
    prompt: str | None,
    prompt_file: str | None,
    max_tokens: int,
    stop: tuple[str, ...],
    escape: bool,
    chat: bool,
    thinking: bool | Literal["auto"],
    display_prompt: bool,
    color: bool | Literal["auto"],
    quiet: bool,
    profile: str,
    as_json: bool,
    **values: Any,
) -> None:
    """Generate text from a prompt.

    The text goes to standard output as it comes, the speed to standard error. The names of the options are
    llama.cpp's. Ctrl-C ends the run and keeps the text so far.
    """
    if quiet and as_json:
        raise click.UsageError("--quiet and --json exclude each other.")
    if values["show_blocks"] and (quiet or as_json):
        raise click.UsageError("--show-blocks shows the text as it comes: leave --json and --quiet out.")
    if thinking != "auto" and not chat:
        raise click.UsageError("--reasoning belongs to --chat.")
    speculation = speculation_from(options.SPECULATION.given(values), options.DIFFUSION.given(values))
    out = Output("json" if as_json else "quiet" if quiet else "table", color=None if color == "auto" else color)
    if values["spec_type"] == "none" and len(options.SPECULATION.given(values)) > 1:
        out.warn("--spec-type none: the other options of drafting have no effect")
    if "-" in (values["grammar_file"], values["json_schema_file"]) and prompt is None and prompt_file in (None, "-"):
        raise click.UsageError("standard input cannot be both prompt and grammar: give the prompt with -p or -f FILE.")
    text = read_prompt(prompt, prompt_file, escape=escape)
    if not text:
        raise click.UsageError("the prompt is empty: give some text with -p TEXT or -f FILE.")
    sampling = sampling_keywords(values)
    stops = [unescape(item, "-r") if escape else argument(item, "-r") for item in stop]
    if "" in stops:
        raise click.UsageError("-r: an empty text would end every answer at once.")

    with interrupt.at_once():
        from pyclover.cli.generate_chat import chat_request, question, write_answer, write_answer_json
        from pyclover.clover import Clover
        from pyclover.engine.speculation import DraftSelf

    check_sampling(sampling, speculation)
    with contextlib.ExitStack() as stack:
        keywords = model_keywords(values)
        chosen = EMBEDDED_MODEL if model is None else model
        file = fetched(out, chosen, fit=keywords.get("fit", True))
        use = profile_use.for_run(out, profile, file, values, keywords)
        speculation = speculation_from(use.speculation, options.DIFFUSION.given(values))
        keywords |= use.load
        if isinstance(speculation, DraftSelf):
            # the whole run drafts: its rejections should cost no further pass
            keywords["n_rs_seq"] = states_to_keep(speculation.n_max, keywords)
        with out.progress("loading") as progress:
            clover = stack.enter_context(Clover(file, progress=progress, **keywords))
        if use.params:
            clover.block_params = use.block_params(clover.block_params)
        if model is None:
            out.talk(
                "note: no -m given, so this is tiny, the small model in the package; docs/tiny.md says what it can do."
            )
        for warning in clover.warnings:
            out.warn(warning)
        request = dict(max_tokens=None if max_tokens < 0 else max_tokens, stop=tuple(stops), **sampling)
        if speculation is not None:
            request["speculation"] = speculation
        wished = None if thinking == "auto" else thinking
        show_blocks = bool(values["show_blocks"])
        prompt_text = text
        if chat and (display_prompt or "grammar" in request):
            prompt_text = clover.apply_chat_template(question(text), thinking=wished)
        if display_prompt and not as_json:
            out.write(out.styled(prompt_text, fg="yellow"))
        if chat and "grammar" not in request:  # a grammar is about all of the text, thought or not
            request = chat_request(request, thinking=wished)
            if as_json:
                finish_reason = write_answer_json(out, clover, chosen, text, request)
            else:
                finish_reason = write_answer(out, clover, text, request, show_blocks=show_blocks)
        elif as_json:
            finish_reason = write_json(out, clover, chosen, prompt_text, request)
        else:
            finish_reason = write_text(out, clover, prompt_text, request, show_blocks=show_blocks)
    if finish_reason == "cancelled":
        raise click.exceptions.Exit(interrupt.CANCELLED)


def fetched(out: Output, model: str, *, fit: bool) -> str:
    """The model's file; what is on the hub is downloaded first, with progress shown."""
    from pyclover.source import is_hub_name, model_file

    if not is_hub_name(model):
        return model
    with progress_of(out) as progress:
        source = model_file(model, fit=fit, progress=progress)
    if source.why:
        out.talk(source.why)
    for warning in source.warnings:
        out.warn(warning)
    return str(source.path)


class Cancels(Protocol):
    """What has a running call that can be stopped."""

    def cancel(self) -> None: ...


def ctrl_c_cancels(clover: Cancels) -> contextlib.AbstractContextManager[None]:
    """While the block runs, the first Ctrl-C ends the running call as cancel() does, with all that it has so far.

    The second one raises KeyboardInterrupt, as ever.
    """

    def cancel_again() -> None:
        with contextlib.suppress(ClosedError):
            clover.cancel()

    def on_interrupt(signum: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        clover.cancel()
        # a call forgets what was cancelled before it began, and this one may be about to begin
        again = threading.Timer(0.1, cancel_again)
        again.daemon = True
        again.start()

    return interrupt.handled_by(on_interrupt)


def write_text(out: Output, clover: Clover, prompt: str, request: Mapping[str, Any], *, show_blocks: bool) -> str:
    """Streams the text and ends its last line; returns why it ended."""
    last = None
    view = out.block_view() if show_blocks else None
    try:
        pieces = clover.stream(prompt, **request)
        with ctrl_c_cancels(clover):
            for piece in pieces:
                if view is not None and piece.block is not None:
                    view.show([None if token is None else clover.detokenize([token]) for token in piece.block])
                elif view is not None:
                    view.clear()
                out.write(piece.text)
                last = piece
    except KeyboardInterrupt:
        return "cancelled"
    finally:
        if view is not None:
            view.clear()
        out.end_line()
    if last is None or last.stats is None:
        return "cancelled"
    out.talk(speed_line(last.stats))
    return str(last.finish_reason)


def write_json(out: Output, clover: Clover, model: str, prompt: str, request: Mapping[str, Any]) -> str:
    """Writes the whole result as one object, also that of a cancelled run; returns why the text ended."""
    pieces = []
    with contextlib.suppress(KeyboardInterrupt):
        coming = clover.stream(prompt, **request)
        with ctrl_c_cancels(clover):
            for piece in coming:
                pieces.append(piece)  # one by one: an interrupt loses none
    last = pieces[-1] if pieces else None
    finish_reason = last.finish_reason if last is not None and last.finish_reason is not None else "cancelled"
    out.json(
        {
            "model": model,
            "text": "".join(piece.text for piece in pieces),
            "tokens": [token for piece in pieces for token in piece.tokens],
            "finish_reason": finish_reason,
            "stop": None if last is None else last.stop,
            "stats": None if last is None or last.stats is None else last.stats.to_dict(),
            "warnings": clover.warnings,
        }
    )
    return finish_reason


def speed_line(stats: Stats) -> str:
    """What was done and how fast; begins with the mode, as every speed of this program."""
    reused = f" ({stats.n_prompt_reused} reused)" if stats.n_prompt_reused else ""
    held = stats.n_prompt_reused + stats.n_prompt_read
    # the end of a prompt that fills no whole block is read with the first block of the answer
    whole = held == stats.n_prompt or stats.commits > 0
    read = f"{stats.n_prompt}" if whole else f"{held} of {stats.n_prompt}"
    line = (
        f"{stats.mode}: prompt {read} tokens{reused}, {speed(stats.prompt_tok_per_s)}; "
        f"generated {stats.n_generated} tokens, {speed(stats.decode_tok_per_s)}"
    )
    if stats.rounds:
        line += f"; accepted {stats.accepted} of {stats.drafted} drafted tokens in {stats.rounds} rounds"
    if stats.commits:
        line += f"; {stats.previews} + {stats.commits} passes, {stats.tokens_per_pass:.1f} tokens a pass"
    return line


def states_to_keep(n_max: int, keywords: Mapping[str, Any]) -> int:
    """States for taking back a draft, fewer where a batch is too small for more (it holds two tokens beside them)."""
    sizes: list[int] = [n for name in ("n_ubatch", "n_batch", "n_ctx") if (n := keywords.get(name))]
    return max(0, min([n_max, *(n - 2 for n in sizes)]))


def model_keywords(values: Mapping[str, Any]) -> dict[str, Any]:
    """Keywords of `Clover` from the options; a thread count that means "choose" is left out."""
    chosen = options.MODEL.given(values)
    for name in ("n_threads", "n_threads_batch"):
        if chosen.get(name, 1) <= 0:
            del chosen[name]
    return chosen


def sampling_keywords(values: Mapping[str, Any]) -> dict[str, Any]:
    """Keywords of `Clover.generate` from the options, files read.

    Raises:
        click.UsageError: two grammars, or a schema that is no JSON object.
    """
    chosen = options.SAMPLING.given(values)
    sources = [name for name in ("grammar", "grammar_file", "json_schema", "json_schema_file") if name in chosen]
    if len(sources) > 1:
        flags = " and ".join("--" + name.replace("_", "-") for name in sources)
        raise click.UsageError(f"{flags} exclude each other: one grammar or schema at a time.")
    if "grammar_file" in chosen:
        chosen["grammar"] = read_text(chosen.pop("grammar_file"), "--grammar-file")
    if "json_schema_file" in chosen:
        chosen["json_schema"] = read_text(chosen.pop("json_schema_file"), "--json-schema-file")
    if "grammar" in chosen:
        chosen["grammar"] = argument(chosen["grammar"], "--grammar")
    if "json_schema" in chosen:
        chosen["json_schema"] = parse_schema(argument(chosen["json_schema"], "--json-schema"))
    if "temperature" in chosen:
        chosen["temperature"] = max(chosen["temperature"], 0.0)
    biases: dict[int, float] = {}
    for token, bias in chosen.pop("logit_bias", ()):
        biases[token] = biases.get(token, 0.0) + bias
    if biases:
        chosen["logit_bias"] = biases
    return chosen


def check_sampling(keywords: Mapping[str, Any], speculation: SpeculationLike) -> None:
    """Checks what needs no model before one is loaded, which may take minutes.

    Raises:
        UsageError, GrammarError: settings that cannot be honoured.
    """
    from pyclover.engine.sampling import sampling_from
    from pyclover.engine.speculation import check_speculation

    settings = sampling_from(keywords)
    if speculation != "auto":
        check_speculation(speculation, settings, keywords)
    if settings.grammar is not None or settings.json_schema is not None:
        from pyclover.engine.sampler import grammar_of

        grammar_of(settings)


def parse_schema(text: str) -> dict[str, Any]:
    """The JSON schema in `text`."""
    try:
        schema = json.loads(text)
    except ValueError as error:
        raise click.UsageError(f"the JSON schema is not JSON: {error}.") from None
    except RecursionError:
        raise click.UsageError("the JSON schema is nested too deep.") from None
    if not isinstance(schema, dict):
        raise click.UsageError('the JSON schema is not an object; any JSON object would be {"type": "object"}.')
    return schema


def speculation_from(drafting: Mapping[str, Any], diffusion: Mapping[str, Any]) -> SpeculationLike:
    """How to generate, from the options.

    Raises:
        click.UsageError: options that do not belong together.
    """
    from pyclover.engine.speculation import BlockDiffusion, DraftSelf

    drafting, diffusion = dict(drafting), dict(diffusion)
    spec_type = drafting.pop("spec_type", None)
    wanted = diffusion.pop("diffusion", False)
    show_blocks = diffusion.pop("show_blocks", False)
    if drafting and spec_type is None:
        raise click.UsageError(f"{flag_of([generate], next(iter(drafting)))} belongs to --spec-type draft-self.")
    if (diffusion or show_blocks) and not wanted:
        name = next(iter(diffusion), "show_blocks")
        raise click.UsageError(f"{flag_of([generate], name)} belongs to --diffusion.")
    if drafting and spec_type == "auto":
        raise click.UsageError(
            f"{flag_of([generate], next(iter(drafting)))} belongs to --spec-type draft-self: auto chooses."
        )
    if wanted and spec_type in ("draft-self", "auto"):
        raise click.UsageError(f"--diffusion and --spec-type {spec_type} exclude each other.")
    if wanted:
        if "diffusion_block" in diffusion:
            diffusion["block"] = diffusion.pop("diffusion_block")
        return BlockDiffusion(**diffusion)
    if spec_type == "auto":
        return "auto"
    return DraftSelf(**drafting) if spec_type == "draft-self" else None
