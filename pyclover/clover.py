"""The facade: name or path -> file -> engine -> text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pyclover import arguments
from pyclover.engine import blocks, generate, state
from pyclover.engine.blocks import BlockParams
from pyclover.engine.context import Context, ContextOptions, FlashAttention
from pyclover.engine.model import Model, ModelInfo, Progress
from pyclover.engine.pieces import Pieces
from pyclover.engine.results import Completion, MemoryUse, Score, TextPiece
from pyclover.engine.sampling import Sampling, sampling_from
from pyclover.engine.speculation import (
    AUTO,
    BlockDiffusion,
    DraftSelf,
    Speculation,
    SpeculationLike,
    check_speculation,
    resolved,
)
from pyclover.engine.text import TokenText
from pyclover.engine.threads import usable_processors
from pyclover.errors import PathLike, UsageError, shortened
from pyclover.files.gate import validate
from pyclover.source import model_file

if TYPE_CHECKING:
    from pyclover.chat.reply import ChatPiece, ChatReply
    from pyclover.conversation import FunctionsReply, TemplateRunner
    from pyclover.hub.progress import ProgressFunction as DownloadProgressFunction
    from pyclover.plan.result import Plan
    from pyclover.session import Session

Prompt = str | Sequence[int]


def check_stops(stop: str | Sequence[str] | None) -> tuple[str, ...]:
    """The stop strings, none for None; raises UsageError for what is none."""
    if stop is None:
        return ()
    if not isinstance(stop, (str, list, tuple, set, frozenset)):
        raise UsageError(f"stop is {shortened(stop)}: it must be a str or a sequence of them", option="stop")
    stops = (stop,) if isinstance(stop, str) else tuple(stop)
    for text in stops:
        if not arguments.text("stop", text):
            raise UsageError("stop has an empty str, which would end every text at once: leave it out", option="stop")
    return stops


class Clover:
    """A model ready to generate.

    Args:
        model: path of a GGUF file (any shard of a split one); "tiny", the small model in the package, which answers
            questions of the kinds that docs/tiny.md lists; or a name on the hub, owner/repo[:quant], or "auto", the
            best Clover that fits this machine, which are downloaded when they are not here yet.
        n_ctx: tokens that prompt and answer share. None: what the model was trained for, on a processor at most 8,192,
            less where that does not fit; 0: what the model was trained for.
        n_batch, n_ubatch: prompt tokens handed over, and computed, at once.
        n_threads, n_threads_batch: for single tokens and for prompts; None: the physical cores, or 1 for a model of
            less than 32 MiB.
        n_gpu_layers: layers to keep on GPUs, -1 for all.
        n_cpu_moe: layers, from the first, whose routed experts stay in main memory, -1 for all.
        flash_attn: True, False or "auto".
        cache_type_k, cache_type_v: type of the KV cache: "f32", "f16", "bf16", "q8_0", …
        fit: let a plan choose what is None, so that the model fits this machine, and refuse what cannot; False: take
            llama.cpp's defaults and try. See `pyclover.fit`.
        n_rs_seq: drafted tokens that can be taken back from Clover's recurrent memory, 0 to 31: with as many as a draft
            has, a check that rejects some of them costs no further pass. 1 MiB each for Clover-35B-A3B. None: 15 where
            the file can draft and the batch has room, else 0 (also with fit=False).
        rs_snapshots: take them back by snapshots of the state, 63 MiB each, instead of applying the others again.
        mmap: map the file instead of reading it. mlock: keep it from being swapped out.
        check_tensors: look at every weight for invalid values while loading.
        progress: called with 0 to 1 while weights load; returning False stops the load.
        download_progress: called while a model is downloaded, see `pyclover.download`.

    Raises:
        DoesNotFitError: no settings that honour the arguments fit into memory; `nearest` is a plan that does.
        DownloadError: a model on the hub could not be fetched.
        FileError: and its kinds, when the file cannot be used.
        OutOfMemoryError: no room for weights, caches or buffers.
        UsageError: an option that cannot be honoured.

    It may be used from several threads: calls wait for each other, except cancel(), which stops the running one.
    Use it as a context manager, or call close(): afterwards every use raises ClosedError.
    """

    def __init__(
        self,
        model: PathLike = "tiny",
        *,
        n_ctx: int | None = None,
        n_batch: int | None = None,
        n_ubatch: int | None = None,
        n_threads: int | None = None,
        n_threads_batch: int | None = None,
        n_gpu_layers: int | None = None,
        n_cpu_moe: int | None = None,
        flash_attn: FlashAttention = "auto",
        cache_type_k: str | None = None,
        cache_type_v: str | None = None,
        n_rs_seq: int | None = None,
        rs_snapshots: bool = False,
        fit: bool = True,
        mmap: bool = True,
        mlock: bool = False,
        check_tensors: bool = False,
        progress: Progress | None = None,
        download_progress: DownloadProgressFunction | None = None,
    ) -> None:
        # options first: a wrong one should not cost the time of loading
        given: dict[str, Any] = {
            "n_ctx": n_ctx, "n_batch": n_batch, "n_ubatch": n_ubatch, "cache_type_k": cache_type_k,
            "cache_type_v": cache_type_v, "n_rs_seq": n_rs_seq,
        }  # fmt: skip
        options = ContextOptions(
            **{name: value for name, value in given.items() if value is not None},
            n_threads=n_threads, n_threads_batch=n_threads_batch, flash_attn=flash_attn, rs_snapshots=rs_snapshots,
        )  # fmt: skip
        placed: dict[str, Any] = {"n_gpu_layers": n_gpu_layers, "n_cpu_moe": n_cpu_moe}
        placed = {name: value for name, value in placed.items() if value is not None}
        fit, mmap = arguments.boolean("fit", fit), arguments.boolean("mmap", mmap)
        source = model_file(model, fit=fit, progress=download_progress)
        self._notes = list(source.warnings)
        self._runner: TemplateRunner | None = None
        file = validate(source.path)
        self._plan: Plan | None = None
        if fit:
            from pyclover.plan.fit import NO_GPU
            from pyclover.plan.fit import fit as plan_for

            wished = {name: value for name, value in given.items() if name != "n_rs_seq"}
            self._plan = plan_for(
                file, **wished, **placed, n_max=n_rs_seq, flash_attn=flash_attn is not False, mmap=mmap,
                rs_snapshots=rs_snapshots,
            )  # fmt: skip
            if NO_GPU in self._plan.warnings:  # the others are about the estimate
                self._notes.append(NO_GPU)
            chosen = self._plan.options()
            placed = {name: chosen.pop(name) for name in ("n_gpu_layers", "n_cpu_moe")}
            options = replace(options, **chosen)
        self._model = Model(file, **placed, mmap=mmap, mlock=mlock, check_tensors=check_tensors, progress=progress)
        try:
            self._context = Context(self._model, options)
        except BaseException:
            self._model.close()
            raise

    # ---- facts ----------------------------------------------------------------------------------------------------

    @property
    def path(self) -> str:
        """The file that was loaded, the first one of a split set."""
        return self._model.path

    @property
    def info(self) -> ModelInfo:
        """Sizes and special tokens."""
        return self._model.info

    @property
    def plan(self) -> Plan | None:
        """The settings that were chosen, with reasons and the memory estimated; None with fit=False."""
        return self._plan

    @property
    def n_ctx(self) -> int:
        """Tokens that prompt and answer share."""
        return self._context.n_ctx

    @property
    def n_threads(self) -> int:
        """Threads that compute single tokens."""
        return self._context.n_threads

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is odd about the file and the settings, one sentence each."""
        warnings = [*self._notes, *self._model.file.warnings]
        n_train = self.info.n_ctx_train
        if self.n_ctx > n_train:
            warnings.append(
                f"n_ctx is {self.n_ctx}, but the model was trained for {n_train} tokens: text beyond may be poor"
            )
        n_threads, n_usable = max(self._context.n_threads, self._context.n_threads_batch), usable_processors()
        if n_threads > n_usable:
            warnings.append(
                f"{n_threads} threads were asked for, and {n_usable} processors are usable here: it may be many times "
                f"slower than with n_threads={n_usable} (-t)"
            )
        return tuple(warnings)

    # ---- text -----------------------------------------------------------------------------------------------------

    def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        """Token ids of a text.

        Args:
            add_special: add the tokens that the model wants at the start and end.
            parse_special: turn the text of special tokens, such as <|im_end|>, into these tokens.
        """
        return self._model.tokenize(text, add_special=add_special, parse_special=parse_special)

    def detokenize(self, tokens: Sequence[int], *, special: bool = True) -> str:
        """Text of tokens, with that of control tokens unless `special` is False; invalid UTF-8 becomes U+FFFD."""
        return self._model.detokenize(tokens, special=special)

    def _prompt_tokens(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, (bytes, bytearray)) or not isinstance(prompt, Iterable):
            raise UsageError(
                f"the prompt is of type {type(prompt).__name__}: it must be a str or token ids", option="prompt"
            )
        try:
            tokens = self.tokenize(prompt) if isinstance(prompt, str) else list(prompt)
        except TypeError as e:  # an array without dimensions says that it can be iterated over
            raise UsageError(f"the prompt must be a str or token ids: {e}", option="prompt") from None
        if not tokens:
            raise UsageError("the prompt is empty: give some text or tokens", option="prompt")
        return tokens

    def stream(
        self,
        prompt: Prompt,
        *,
        max_tokens: int | None = None,
        stop: str | Sequence[str] = (),
        speculation: SpeculationLike = None,
        **sampling: Any,
    ) -> Iterator[TextPiece]:
        """Generates text and gives it out as it comes.

        Args:
            prompt: text, or token ids.
            max_tokens: at most so many tokens; None: until the model ends or the context is full.
            stop: strings that end the text; they are not part of it.
            speculation: None: plainly, token by token; DraftSelf(…) or BlockDiffusion(…); "auto": plainly at first, and
                with drafts once they are measured to be faster here (plainly with a model that cannot draft).
            sampling: see `Sampling`: temperature, top_k, top_p, min_p, seed, grammar, json_schema, …

        Yields:
            TextPiece: pieces; the last one has finish_reason and stats. Close the iterator to stop early.

        Raises:
            UsageError: an option that cannot be honoured.
            ContextFullError: the prompt is longer than the context.
            GrammarError: a grammar or schema that cannot be used.
            SpeculationUnavailableError: the model has no block pass.
            BusyError: another thread is reading from the iterator.
        """
        settings, stops, chosen = self._checked(max_tokens, stop, speculation, sampling)
        tokens = self._prompt_tokens(prompt)
        return Pieces(
            generate.stream(
                self._context, tokens, max_tokens=max_tokens, stop=stops, sampling=settings, speculation=chosen
            )
        )

    def _checked(
        self,
        max_tokens: int | None,
        stop: str | Sequence[str],
        speculation: SpeculationLike,
        sampling: Mapping[str, Any],
    ) -> tuple[Sampling, tuple[str, ...], Speculation]:
        """What stream() and chat_stream() check alike -> how tokens are chosen, stop strings, what "auto" comes to."""
        if max_tokens is not None and (
            isinstance(max_tokens, bool) or not isinstance(max_tokens, int) or max_tokens < 0
        ):
            raise UsageError(
                f"max_tokens is {shortened(max_tokens)}: it must be an integer of at least 0, or None",
                option="max_tokens",
            )
        stops = check_stops(stop)
        settings = sampling_from(sampling)
        speculation = resolved(
            speculation, can_draft=speculation == AUTO and not blocks.block_pass_missing(self._model),
            n_rows=min(self._context.n_batch, self._context.n_ubatch),
        )  # fmt: skip
        check_speculation(speculation, settings, sampling)
        if speculation is not None:
            blocks.require_block_pass(self._model, speculation.mode.split(" (")[0])
        if isinstance(speculation, DraftSelf):
            blocks.check_rows(self._context, speculation.n_rows, f"a draft of {speculation.n_max} tokens")
        elif isinstance(speculation, BlockDiffusion):
            n_rows = speculation.block or blocks.get_block_params(self._context).block_length
            blocks.check_rows(self._context, min(n_rows, self.n_ctx), "block diffusion")
        return settings, stops, speculation

    def generate(
        self,
        prompt: Prompt,
        *,
        max_tokens: int | None = None,
        stop: str | Sequence[str] = (),
        speculation: SpeculationLike = None,
        **sampling: Any,
    ) -> Completion:
        """Generates text and gives it out when it is complete. Arguments and errors as in stream()."""
        return generate.complete(
            self.stream(prompt, max_tokens=max_tokens, stop=stop, speculation=speculation, **sampling)
        )

    def cancel(self) -> None:
        """Stops the running call, from any thread: generate() and stream() end with finish_reason "cancelled".

        A call that begins afterwards is not stopped.
        """
        self._context.cancel()

    @property
    def chat_template(self) -> str | None:
        """The Jinja text of the file's chat template; None when it has none."""
        template = self._model.file.headers[0].metadata.get("tokenizer.chat_template")
        return template if isinstance(template, str) else None

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        thinking: bool | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """The prompt of a conversation, as the model's chat template writes it.

        Args:
            messages: {"role": "system" | "user" | "assistant" | "tool", "content": …}.
            tools: functions that the model may call, described as in OpenAI's API.
            thinking: whether the model shall think before it answers; None: as the template has it.
            add_generation_prompt: end with the opening of the answer.

        A file without a template gets the built-in one: ChatML, with thinking.

        Raises:
            UsageError: wrong messages. TemplateError: a template that is damaged, refuses them, or breaks a limit.
        """
        arguments.boolean("add_generation_prompt", add_generation_prompt)
        if thinking is not None:
            arguments.boolean("thinking", thinking)
        prepared = self._templates().prepared(
            messages, tools=tools, thinking=thinking, add_generation_prompt=add_generation_prompt
        )
        return prepared.prompt

    def _templates(self) -> TemplateRunner:
        from pyclover.conversation import TemplateRunner

        if self._runner is None:
            self._runner = TemplateRunner(self._model, self.chat_template)
        return self._runner

    def chat_stream(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        thinking: bool | None = None,
        think_budget: int | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: str | Mapping[str, Any] = "auto",
        parallel_tool_calls: bool | None = None,
        response_format: Any = None,
        variables: Mapping[str, Any] | None = None,
        max_tokens: int | None = None,
        stop: str | Sequence[str] = (),
        speculation: SpeculationLike = None,
        **sampling: Any,
    ) -> Iterator[ChatPiece]:
        """Answers a conversation, and gives the answer out as it comes.

        Args:
            messages: {"role": "system" | "user" | "assistant" | "tool", "content": text}, as in OpenAI's API; the
                reasoning of earlier answers goes in "reasoning_content". Images and audio are refused.
            thinking: whether the model thinks before it answers; None: as its template has it.
            think_budget: tokens that a thought may have; then it is ended, and the answer follows.
            tools: functions that the model may call, described as in OpenAI's API; see also `chat_functions`.
            tool_choice: "auto", "none", "required", or {"type": "function", "function": {"name": …}}.
            parallel_tool_calls: several calls in one answer; None: where the template knows them.
            response_format: a JSON schema, "json_object", OpenAI's form of either, a pydantic model or a dataclass: the
                answer follows it, and the reply's `parsed` is the object.
            variables: further names for the template.
            max_tokens: of thought and answer together; None: until the model ends or the context is full.
            stop: strings that end the answer; they are not looked for in thoughts.
            speculation, sampling: as in stream(), but for grammar and json_schema.

        Yields:
            ChatPiece: the last one has the whole reply. Close the iterator to stop early.

        Raises:
            TemplateError: the model's chat template is damaged, refuses the messages, or breaks a limit.
            UsageError, ContextFullError, GrammarError, SpeculationUnavailableError, BusyError: as stream().
        """
        from pyclover import conversation

        settings, stops, chosen = self._checked(max_tokens, stop, speculation, sampling)
        turn = conversation.turn(
            self._templates(), self._model, messages, thinking=thinking, think_budget=think_budget, tools=tools,
            tool_choice=tool_choice, parallel_tool_calls=parallel_tool_calls, response_format=response_format,
            variables=variables, stops=stops, sampling=sampling, speculation=chosen,
        )  # fmt: skip

        def generated(text: TokenText) -> Iterator[TextPiece]:
            return generate.stream(
                self._context, turn.prompt, max_tokens=max_tokens, stop=(), sampling=settings, speculation=chosen,
                chat=turn.sampling, text=text, n_stable=turn.n_stable,
            )  # fmt: skip

        return Pieces(conversation.pieces(self._model, turn, generated))

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        thinking: bool | None = None,
        think_budget: int | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: str | Mapping[str, Any] = "auto",
        parallel_tool_calls: bool | None = None,
        response_format: Any = None,
        variables: Mapping[str, Any] | None = None,
        max_tokens: int | None = None,
        stop: str | Sequence[str] = (),
        speculation: SpeculationLike = None,
        **sampling: Any,
    ) -> ChatReply:
        """Answers a conversation. Arguments and errors as in chat_stream()."""
        from pyclover import conversation

        return conversation.whole(
            self.chat_stream(
                messages, thinking=thinking, think_budget=think_budget, tools=tools, tool_choice=tool_choice,
                parallel_tool_calls=parallel_tool_calls, response_format=response_format, variables=variables,
                max_tokens=max_tokens, stop=stop, speculation=speculation, **sampling,
            )
        )  # fmt: skip

    def chat_functions(
        self,
        messages: Sequence[Mapping[str, Any]],
        functions: Sequence[Callable[..., Any]],
        *,
        max_rounds: int = 8,
        **options: Any,
    ) -> FunctionsReply:
        """Answers a conversation, and runs the Python functions that the model calls on the way.

        Args:
            functions: with type hints and a docstring, from which their description is made; or FunctionTool.
            max_rounds: answers with calls, after which it gives up calling and answers without tools.
            options: as in chat_stream(), but for tools and response_format.

        Returns:
            FunctionsReply: the last reply, and all messages with calls and results.

        Raises:
            UsageError: a function that cannot be a tool.
        """
        from pyclover import conversation

        return conversation.with_functions(self.chat, messages, functions, max_rounds=max_rounds, options=options)

    def session(self, *, system: str = "", functions: Sequence[Callable[..., Any]] = (), **options: Any) -> Session:
        """A conversation that remembers its messages; only what is new is read in each turn.

        Args:
            system: the system message. functions: see chat_functions(). options: see chat_stream(), for all turns.
        """
        from pyclover.session import Session

        return Session(self, system=system, functions=functions, **options)

    # ---- numbers --------------------------------------------------------------------------------------------------

    def logits(self, tokens: Sequence[int]) -> npt.NDArray[np.float32]:
        """Logits after each token, read from the start: float32 [n_tokens, n_vocab].

        Raises:
            ContextFullError: more tokens than the context holds.
            CancelledError: stopped by cancel().
        """
        with self._context.claim.held():
            self._context.arm()
            return self._context.logits(tokens)

    def score(self, text: Prompt) -> Score:
        """How probable a text is, token by token.

        Raises:
            UsageError: fewer than 2 tokens.
            ContextFullError, CancelledError: as logits().
        """
        tokens = self._prompt_tokens(text)
        with self._context.claim.held():
            self._context.arm()
            return Score(tuple(tokens), self._context.score(tokens))

    def preview(self, prefix: Prompt, rows: Sequence[int]) -> npt.NDArray[np.float32]:
        """Logits of a block after a prefix: float32 [n_rows, n_vocab]. The memory holds the prefix afterwards, no more.

        Args:
            prefix: text or token ids that are committed.
            rows: 1 to 32 token ids; those to be predicted are the mask token, `info.mask`. Row t of the result is about
                the position of row t.

        Raises:
            SpeculationUnavailableError: the model has no block pass.
            ContextFullError, CancelledError: as logits().
        """
        blocks.require_block_pass(self._model, "a preview")
        tokens = self._prompt_tokens(prefix)
        with self._context.claim.held():
            self._context.arm()
            self._context.prompt(tokens)
            return blocks.preview(self._context, rows, len(tokens))

    @property
    def block_params(self) -> BlockParams:
        """How block passes compute; at first as the file says. May be set."""
        return blocks.get_block_params(self._context)

    @block_params.setter
    def block_params(self, params: BlockParams) -> None:
        with self._context.claim.held():
            blocks.set_block_params(self._context, params)

    def memory(self) -> tuple[MemoryUse, ...]:
        """Memory as allocated, by device and kind."""
        return self._context.memory()

    # ---- state ----------------------------------------------------------------------------------------------------

    def save_state(self, path: PathLike) -> None:
        """Saves what the memory holds, so that load_state() spares reading it again.

        Raises:
            StateError: the file cannot be written; an earlier one is left as it was.
        """
        with self._context.claim.held():
            self._context.arm()
            state.save(self._context, path)

    def load_state(self, path: PathLike) -> int:
        """Restores what save_state() saved; returns the number of tokens in memory.

        Raises:
            StateError: damaged, or saved with another model or other cache settings.
        """
        with self._context.claim.held():
            self._context.arm()
            return state.load(self._context, path)

    def clear(self) -> None:
        """Empties the memory: the next prompt is read from its start."""
        with self._context.claim.held():
            self._context.clear()

    # ---- life -----------------------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        return self._model.closed

    def close(self) -> None:
        """Stops a running call and frees everything. Closing twice does nothing."""
        if self._runner is not None:
            self._runner.close()
        self._model.close()

    def __enter__(self) -> Clover:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Clover {self.path}, n_ctx={self.n_ctx}{', closed' if self.closed else ''}>"
