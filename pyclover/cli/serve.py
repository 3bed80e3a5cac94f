"""`clover-run serve`: an OpenAI-compatible server and a page to chat with, until Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal

import click

from pyclover.cli import interrupt, options, profile_use
from pyclover.cli.generate import EMBEDDED_MODEL, fetched, model_keywords
from pyclover.cli.output import Output
from pyclover.cli.prompts import read_text
from pyclover.cli.values import on_off_auto, seed

if TYPE_CHECKING:
    from pyclover.engine.speculation import DraftSelf
    from pyclover.serve.server import Server
    from pyclover.serve.supervisor import Event
    from pyclover.serve.worker import Worker

SERVER = options.Options("Server")
SERVER.add("--host", name="host", metavar="HOST",
           help="Where to listen; others than this machine's own need a key. [default: 127.0.0.1]")  # fmt: skip
SERVER.add("--port", name="port", metavar="N", type=click.IntRange(0, 65535),
           help="Port; 0 = a free one. [default: 8080]")  # fmt: skip
SERVER.add("--api-key", name="api_key", metavar="KEY", envvar="LLAMA_API_KEY",
           help="Key that clients have to send, several with commas; better in the environment (LLAMA_API_KEY) or a "
           "file, for everybody here can read a command line. [default: none]")  # fmt: skip
SERVER.add("--api-key-file", name="api_key_file", metavar="FILE", help="File with keys, one a line.")
SERVER.add("--cors-origins", name="cors_origins", metavar="ORIGIN",
           help="Web pages of which origin may use it: localhost, *, or one such as https://example.org. [default: "
           "localhost]",
           )  # fmt: skip
SERVER.add("-np", "--parallel", name="n_slots", metavar="N", type=click.IntRange(1, 64),
           help="Requests computed at the same time; they share the context. [default: 1]")  # fmt: skip
SERVER.add("--metrics", name="metrics", is_flag=True, help="Prometheus metrics at /metrics.")
SERVER.add("--rpc", name="rpc", metavar="HOST:PORT,…",
           help="Workers (clover-run worker) that take the model's layers.")  # fmt: skip
SERVER.add("--stall", name="stall_s", metavar="SECONDS", type=click.FloatRange(min=0),
           help="A busy server without progress for so long is started anew; 0 = never. [default: 60]")  # fmt: skip
SERVER.add("--log-file", name="log_file", metavar="FILE", help="Append the server's own lines to a file.")

REQUESTS = options.Options("Requests (what they do not say themselves)")
REQUESTS.add("-n", "--predict", "--n-predict", name="max_tokens", metavar="N", type=click.IntRange(min=-1),
             help="Tokens of an answer; -1 = until the context is full. [default: -1]")  # fmt: skip
REQUESTS.add("-rea", "--reasoning", name="thinking", metavar="on|off|auto", type=on_off_auto,
             help="Whether the model thinks before it answers; auto: as its template has it. [default: auto]",
             )  # fmt: skip
REQUESTS.add("--think-budget", "--reasoning-budget", name="think_budget", metavar="N", type=click.IntRange(min=-1),
             help="Tokens that it may think; -1 = no limit. [default: -1]")  # fmt: skip
REQUESTS.add("--chat-template-file", name="template_file", metavar="FILE",
             type=click.Path(exists=True, dir_okay=False),
             help="Jinja template in place of the model's own.")  # fmt: skip
REQUESTS.add("--temp", "--temperature", name="temperature", metavar="X", type=float,
             help="Temperature; 0 = always the likeliest token. [default: 0.8]")  # fmt: skip
REQUESTS.add("--top-k", name="top_k", metavar="N", type=int, help="Keep the N likeliest tokens; 0 = all. [default: 40]")
REQUESTS.add("--top-p", name="top_p", metavar="P", type=float,
             help="Keep the likeliest tokens that have probability P together; 1 = all. [default: 0.95]")  # fmt: skip
REQUESTS.add("--min-p", name="min_p", metavar="P", type=float,
             help="Drop tokens less likely than P times the likeliest; 0 = none. [default: 0.05]")  # fmt: skip
REQUESTS.add("-s", "--seed", name="seed", metavar="N", type=seed, help="Seed; -1 = a new one each time. [default: -1]")

REQUEST_KEYWORDS = ("thinking", "think_budget", "max_tokens", "template", "defaults")  # what these become


@click.command(cls=options.SectionCommand, short_help="Serve a model: OpenAI API, and a page to chat with.")
@click.option(
    "-m", "--model", default=None, metavar="MODEL",
    help="GGUF file, owner/repo[:quant] on the hub, or auto: the best that fits. [default: tiny]",
)  # fmt: skip
@profile_use.profile_option
@click.option("-v", "--verbose", is_flag=True, help="Show the server's own lines too, on standard error.")
@options.json_option
@options.debug_option
@SERVER
@REQUESTS
@options.MODEL
@options.SPECULATION
def serve(*, model: str | None, profile: str, verbose: bool, as_json: bool, **values: Any) -> None:
    """Serve a model: OpenAI API, and a page to chat with.

    Runs until Ctrl-C; a second one ends it at once. Its address goes to standard output, with --json as one JSON
    object with all settings; everything else to standard error. A server that crashes or hangs is started anew.
    """
    speculation = drafting(options.SPECULATION.given(values))
    out = Output("json" if as_json else "table")
    if values["spec_type"] == "none" and len(options.SPECULATION.given(values)) > 1:
        out.warn("--spec-type none: the other options of drafting have no effect")
    keywords = server_keywords(values)
    with interrupt.at_once():
        from pyclover.serve.server import start_server as start

    with terminated() as ending:
        chosen = EMBEDDED_MODEL if model is None else model
        check_early(chosen, speculation, keywords)
        file = fetched(out, chosen, fit=keywords.get("fit", True) and "rpc" not in keywords)
        if "rpc" not in keywords:  # a profile is of this machine alone
            use = profile_use.for_run(out, profile, file, values, keywords)
            speculation = drafting(use.speculation)
            keywords |= use.load
            if use.params:
                keywords["block_params"] = use.params
        server = start(
            file, speculation=speculation, on_event=lambda event: tell(out, event),
            log=(lambda line: click.echo(line, err=True)) if verbose else None, **keywords,
        )  # fmt: skip
        ending.server = server
        try:
            announce(out, server, default=model is None)
            while not ending.asked.is_set() and not server.wait(0.2):
                pass
        finally:
            out.talk("stopping …")
            server.close()


def check_early(model: str, speculation: DraftSelf | Literal["auto"] | None, keywords: dict[str, Any]) -> None:
    """Finds what is wrong with the options before a model is looked for; a download may take an hour.

    Keys of a file are put among the other keywords: it may be a pipe, which is read once.

    Raises:
        UsageError, ServerError: as `pyclover.start_server`.
    """
    from pyclover.serve.launch import reachable
    from pyclover.serve.server import settings_from
    from pyclover.source import is_hub_name

    given = SERVER.given(keywords)
    given.pop("log_file", None)
    given |= {name: keywords[name] for name in REQUEST_KEYWORDS if name in keywords}
    settings = settings_from(speculation=speculation, **given)
    if keywords.pop("api_key_file", None) is not None:
        keywords["api_key"] = list(settings.api_keys)
    if is_hub_name(model):
        reachable(settings)


class Ending:
    """What signals have asked for: the first one to end, a second one at once."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.server: Server | Worker | None = None

    def on_signal(self, signum: int, frame: FrameType | None) -> None:
        if self.server is None:  # nothing runs yet that would have to be stopped in good order
            raise KeyboardInterrupt
        if self.asked.is_set():
            self.server.kill()
        self.asked.set()


@contextlib.contextmanager
def terminated() -> Iterator[Ending]:
    """While the block runs, Ctrl-C, and the signals that end a program, end the server."""
    ending = Ending()
    kinds = [signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if os.name == "posix" else [])]
    before = {kind: signal.getsignal(kind) for kind in kinds}
    try:
        for kind in kinds:
            if before[kind] != signal.SIG_IGN:  # nohup
                signal.signal(kind, ending.on_signal)
        yield ending
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)


def announce(out: Output, server: Server, *, default: bool) -> None:
    """Says that the server is up, and what it is."""
    for warning in server.warnings:
        out.warn(warning)
    if default:
        out.talk(
            "note: no -m given, so this is tiny, the small model in the package; docs/tiny.md says what it can do."
        )
    out.talk(
        f"{server.mode}: {server.model}, context {server.n_ctx}, {server.n_slots} slot{'s' * (server.n_slots != 1)}, "
        f"{server.n_threads} thread{'s' * (server.n_threads != 1)}"
    )
    out.talk(f"the page is at that address, the OpenAI API at {server.url}/v1; Ctrl-C stops the server")
    if out.mode == "json":
        out.json(server.to_dict())
    else:
        out.write(f"{server.url}\n")


def tell(out: Output, event: Event) -> None:
    """What happens to the server."""
    if event.kind == "fault":
        out.warn(event.text)
    else:
        out.talk(event.text + (" …" if event.kind == "loading" else ""))


def drafting(given: dict[str, Any]) -> DraftSelf | Literal["auto"] | None:
    """How all requests are drafted for.

    Raises:
        click.UsageError: options of drafting without --spec-type.
    """
    from pyclover.engine.speculation import DraftSelf

    kind = given.pop("spec_type", None)
    if given and kind is None:
        flag = options.flag_of([serve], next(iter(given)))
        raise click.UsageError(f"{flag} belongs to --spec-type draft-self.")
    if given and kind == "auto":
        flag = options.flag_of([serve], next(iter(given)))
        raise click.UsageError(f"{flag} belongs to --spec-type draft-self; auto chooses by itself.")
    return "auto" if kind == "auto" else DraftSelf(**given) if kind == "draft-self" else None


def server_keywords(values: dict[str, Any]) -> dict[str, Any]:
    """Keywords of `pyclover.start_server`."""
    keywords = {**SERVER.given(values), **model_keywords(values)}
    chosen = REQUESTS.given(values)
    for name in ("max_tokens", "think_budget", "thinking"):
        if name in chosen:
            value: int | bool | Literal["auto"] = chosen.pop(name)
            if value is True or value is False or value == "auto" or value >= 0:
                keywords[name] = value
    if "template_file" in chosen:
        keywords["template"] = read_text(chosen.pop("template_file"), "--chat-template-file")
    if "temperature" in chosen:
        chosen["temperature"] = max(chosen["temperature"], 0.0)
    return {**keywords, "defaults": chosen}
