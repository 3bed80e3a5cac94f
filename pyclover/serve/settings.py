"""What a server is asked for, checked before anything is started."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from pyclover import arguments
from pyclover.engine.sampling import sampling_from
from pyclover.engine.speculation import AUTO, PLAIN, BlockDiffusion, DraftSelf, check_speculation, resolved
from pyclover.errors import UsageError, shortened
from pyclover.serve import keys
from pyclover.serve.address import Endpoint, check_host

MAX_SLOTS = 64
IDLE_S = 120  # a client that sends or takes nothing for so long in the middle of a request is given up
# Connections that are read and waited on at once. llama.cpp's own number is 4 more than slots; when more come at once
# it leaves the others, and every question after them, in a queue behind those that wait for a slot or for their client.
HTTP_THREADS = 256
# what a request may leave out; everything else of the sampler is the request's own business
DEFAULTS = ("temperature", "top_k", "top_p", "min_p", "seed")


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """Everything but the model and its memory.

    Attributes:
        host, port: where to listen; port 0: a free one.
        api_keys: of which a client has to send one; (): none is asked for.
        cors_origins: web pages of which origin may use it: "localhost", "*", or one such as "https://example.org".
        n_slots: requests that are computed at the same time.
        metrics: Prometheus metrics at /metrics.
        rpc: workers that take layers of the model.
        speculation: None, DraftSelf(...) or "auto", for all requests.
        thinking: whether the model thinks when a request does not say; "auto": as its template has it.
        think_budget: tokens that it may think, None for no limit.
        max_tokens: of an answer when the request does not say.
        template: Jinja text in place of the file's chat template.
        defaults: sampling settings of requests that do not give them, some of DEFAULTS.
        stall_s: seconds without progress after which a busy server is started anew, 0: never.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    cors_origins: str = "localhost"
    n_slots: int = 1
    metrics: bool = False
    rpc: tuple[Endpoint, ...] = ()
    speculation: DraftSelf | Literal["auto"] | None = None
    thinking: bool | Literal["auto"] = "auto"
    think_budget: int | None = None
    max_tokens: int | None = None
    template: str | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)
    stall_s: float = 60.0

    def __post_init__(self) -> None:
        check_host(self.host)
        arguments.integer("port", self.port, 0, 65535)
        keys.require(self.host, self.api_keys)
        arguments.integer("n_slots", self.n_slots, 1, MAX_SLOTS)
        arguments.boolean("metrics", self.metrics)
        if self.thinking != "auto":
            arguments.boolean("thinking", self.thinking)
        for name in ("think_budget", "max_tokens"):
            if getattr(self, name) is not None:
                arguments.integer(name, getattr(self, name), 0)
        _check_origin(arguments.text("cors_origins", self.cors_origins))
        if not isinstance(self.stall_s, (int, float)) or not 0 <= self.stall_s < math.inf:
            raise UsageError(f"stall_s is {shortened(self.stall_s)}: it must be seconds, 0 for never", option="stall_s")
        self._check_sampling()

    def _check_sampling(self) -> None:
        if not isinstance(self.defaults, Mapping):
            raise UsageError(f"defaults is {shortened(self.defaults)}: it must be a mapping", option="defaults")
        for name in self.defaults:
            if name not in DEFAULTS:
                raise UsageError(
                    f"{name} belongs to each request: a server has defaults for {', '.join(DEFAULTS)} alone",
                    option=name,
                )
        if isinstance(self.speculation, BlockDiffusion):
            raise UsageError(
                'block diffusion is asked for in each request (its field "diffusion"): take DraftSelf(...) or None',
                option="speculation",
            )
        if self.speculation != AUTO:
            check_speculation(self.speculation, sampling_from(dict(self.defaults)), self.defaults)  # type: ignore[arg-type]

    @property
    def mode(self) -> str:
        """What every speed of this server is called."""
        return self.speculation.mode if isinstance(self.speculation, DraftSelf) else PLAIN

    def resolved(self, *, can_draft: bool, n_rows: int) -> ServerSettings:
        """With speculation="auto" made what it comes to for a model, and for so many rows of a pass.

        Raises:
            UsageError: settings that it cannot be combined with.
        """
        if self.speculation != AUTO:
            return self
        found = resolved(AUTO, can_draft=can_draft, n_rows=n_rows // self.n_slots)
        return replace(self, speculation=found if isinstance(found, DraftSelf) else None)

    def arguments(self) -> list[str]:
        """As arguments of `llama serve`; keys are not among them, for everybody can read those."""
        out: list[str | int | float] = [
            "--host", self.host, "--jinja", "--offline", "-fit", "off", "-np", self.n_slots, "--kv-unified",
            "--cors-origins", self.cors_origins, "--timeout", IDLE_S, "--threads-http", HTTP_THREADS,
        ]  # fmt: skip
        out += ["--metrics"] if self.metrics else []
        out += ["--rpc", ",".join(map(str, self.rpc))] if self.rpc else []
        if self.thinking != "auto":
            out += ["--reasoning", "on" if self.thinking else "off"]
        if self.think_budget is not None:
            out += ["--reasoning-budget", self.think_budget]
        if self.max_tokens is not None:
            out += ["-n", self.max_tokens]
        flags = {"temperature": "--temp", "top_k": "--top-k", "top_p": "--top-p", "min_p": "--min-p", "seed": "--seed"}
        for name, value in self.defaults.items():
            if value is not None:
                out += [flags[name], value]
        out += _drafting(self.speculation)
        return [word if isinstance(word, str) else json.dumps(word) for word in out]

    def environment(self) -> dict[str, str]:
        """The server's: this process's, without what would turn on features or other settings behind our back."""
        foreign = ("LLAMA_ARG_", "LLAMA_API_KEY", "AIP_")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        if self.api_keys:
            kept["LLAMA_API_KEY"] = ",".join(self.api_keys)
        # the words of an abort say enough, and a debugger that looks at a large process takes its time
        return {**kept, "GGML_NO_BACKTRACE": "1"}


def _check_origin(text: str) -> None:
    """Raises UsageError for what no browser would find its page in: the server sends it as it is."""
    if text not in ("localhost", "*") and not re.fullmatch(r"[a-z][a-z0-9+.-]*://[A-Za-z0-9._:\[\]-]+", text):
        raise UsageError(
            f"cors_origins is {shortened(text)}: give localhost, *, or one origin without a path, such as "
            "https://example.org (browsers take no list)",
            option="cors_origins",
        )


def ignored_variables() -> tuple[str, ...]:
    """Variables of llama.cpp that are set and have no effect on our server."""
    return tuple(sorted(name for name in os.environ if name.startswith("LLAMA_ARG_")))


def _drafting(speculation: object) -> list[str | int | float]:
    if not isinstance(speculation, DraftSelf):
        return []
    out: list[str | int | float] = ["--spec-type", "draft-self", "--spec-draft-n-max", speculation.n_max]
    out += ["--spec-draft-steps", speculation.steps] if speculation.steps is not None else []
    out += ["--spec-draft-rows", speculation.block] if speculation.block is not None else []
    out += ["--spec-draft-p-min", speculation.p_min] if speculation.p_min else []
    out += ["--spec-draft-adaptive"] if speculation.adapts else []
    out += ["--spec-draft-start-plain"] if speculation.adapts and speculation.start_plain else []
    if speculation.ahead is not None:
        out += ["--spec-draft-ahead" if speculation.ahead else "--no-spec-draft-ahead"]
    if speculation.relaxed:
        out += ["--spec-accept-ratio", speculation.ratio, "--spec-accept-delta", speculation.delta]
    return out
