"""Chat on a loaded model: conversation -> prompt -> tokens -> reasoning, content and tool calls."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyclover import arguments
from pyclover.chat.answer import ChatDelta, ToolCall
from pyclover.chat.apart import TemplateProcess
from pyclover.chat.functions import FunctionTool, function_tool, run_function
from pyclover.chat.messages import Message, checked_messages
from pyclover.chat.parser import AnswerParser, tag_candidates
from pyclover.chat.prepared import Prepared, prepare
from pyclover.chat.reply import ChatPiece, ChatReply, reply_of
from pyclover.chat.schema import AnswerSchema, answer_schema
from pyclover.engine.grammar import check_grammar, schema_text
from pyclover.engine.model import Model
from pyclover.engine.results import TextPiece
from pyclover.engine.sampler import schema_grammar
from pyclover.engine.sampling import ChatSampling
from pyclover.engine.speculation import BlockDiffusion, DraftSelf, Speculation
from pyclover.engine.text import TextAssembler, TokenText
from pyclover.errors import GrammarError, UsageError, shortened

_FORBIDDEN = ("grammar", "json_schema")


@dataclass(frozen=True)
class Turn:
    """All that the generation of one answer needs.

    Attributes:
        prompt: token ids; n_stable of them are the conversation so far, the others open the answer.
        prepared: how the answer is to be read. tags: special tokens that are tags, id -> text.
        sampling: for the sampler. schema: that the answer follows. stops: strings that end it.
    """

    prompt: tuple[int, ...]
    n_stable: int
    prepared: Prepared
    tags: Mapping[int, str]
    sampling: ChatSampling
    schema: AnswerSchema | None
    stops: tuple[str, ...]


class TemplateRunner:
    """Renders with a model's template; keeps the process that does it."""

    def __init__(self, model: Model, template: str | None) -> None:
        self._model = model
        self._template = template
        self._process = TemplateProcess()

    def close(self) -> None:
        self._process.close()

    def prepared(self, messages: Sequence[Message], **options: Any) -> Prepared:
        """See pyclover.chat.prepared.prepare()."""
        info = self._model.info
        return prepare(
            self._process, self._template, messages, bos_token=self._text(info.bos), eos_token=self._text(info.eos),
            strip_bos=info.add_bos, **options,
        )  # fmt: skip

    def _text(self, token: int) -> str:
        return "" if token < 0 else self._model.token_bytes(token, special=True).decode("utf-8", "replace")


class ChatText(TokenText):
    """Gives the tokens of an answer to its parser, and ends the answer at stop strings.

    Stop strings are looked for in what the user reads: not in thoughts, not in the blank lines behind them, not in
    calls. None reaches over a special token.

    Attributes:
        deltas: what each token gave, in order; taken by the reader of the stream.
    """

    def __init__(self, model: Model, parser: AnswerParser, tags: Mapping[int, str], stops: Sequence[str]) -> None:
        self._model, self._parser, self._tags, self._stops = model, parser, tags, stops
        self._assembler = TextAssembler(stops)
        self.deltas: list[ChatDelta] = []
        self.stop: str | None = None
        self._in_call = False
        self._behind_thought = False

    @property
    def stopped(self) -> str | None:
        return self.stop

    def push(self, token: int) -> str:
        n = len(self.deltas)
        self._push(token)
        self.deltas[n:] = [joined(self.deltas[n:])]  # one for each token
        return ""

    def _push(self, token: int) -> None:
        tag = self._tags.get(token)
        if tag is not None:
            self._flush()
            if self.stop is None:
                self._special(tag)
            return
        data = self._model.token_bytes(token)
        if self._parser.thinking or self._in_call:
            was_thinking = self._parser.thinking
            self.deltas.append(self._parser.push(data))
            if was_thinking and not self._parser.thinking:  # a tag of plain text ended in this token
                self._behind_thought = True
            return
        if self._behind_thought:
            rest = data.lstrip()
            self._behind_thought = not rest
            self.deltas.append(self._parser.push(data[: len(data) - len(rest)], n_tokens=0 if rest else 1))
            data = rest
            if not rest:
                return
        text = self._assembler.push(data)
        self.stop = self._assembler.stopped
        self.deltas.append(self._parser.push(text.encode()))

    def _special(self, tag: str) -> None:
        was_thinking = self._parser.thinking
        self.deltas.append(self._parser.push(tag.encode(), True))
        if was_thinking and not self._parser.thinking:
            self._behind_thought = True
        elif not was_thinking and not self._parser.thinking:
            self._in_call = not tag.startswith("</")

    def _flush(self) -> None:
        text = self._assembler.finish()
        self.stop = self.stop or self._assembler.stopped
        if text:
            self.deltas.append(self._parser.push(text.encode(), n_tokens=0))
        self._assembler = TextAssembler(self._stops)

    def finish(self) -> str:
        self._flush()
        self.deltas.append(self._parser.finish())
        return ""

    def taken(self, n: int | None = None) -> ChatDelta:
        """The first `n` deltas (None: all) as one; they are taken out."""
        deltas = self.deltas[:n]
        del self.deltas[:n]
        return joined(deltas)


def joined(deltas: Sequence[ChatDelta]) -> ChatDelta:
    """Several deltas as one."""
    return ChatDelta(
        content="".join(d.content for d in deltas), reasoning="".join(d.reasoning for d in deltas),
        tool_calls=tuple(part for d in deltas for part in d.tool_calls),
    )  # fmt: skip


def sampled(speculation: Speculation) -> bool:
    """Whether the sampler chooses each token."""
    return not isinstance(speculation, BlockDiffusion)


def relaxed(speculation: Speculation) -> bool:
    return isinstance(speculation, DraftSelf) and speculation.relaxed


def special_tags(model: Model, candidates: Sequence[str]) -> dict[int, str]:
    """Those texts that are one token of the vocabulary: id -> text."""
    tokens = {text: model.tokenize(text, add_special=False, parse_special=True) for text in candidates}
    return {ids[0]: text for text, ids in tokens.items() if len(ids) == 1}


def turn(
    runner: TemplateRunner,
    model: Model,
    messages: Sequence[Message],
    *,
    thinking: bool | None,
    think_budget: int | None,
    tools: Sequence[Mapping[str, Any]] | None,
    tool_choice: Any,
    parallel_tool_calls: bool | None,
    response_format: Any,
    variables: Mapping[str, Any] | None,
    stops: Sequence[str],
    sampling: Mapping[str, Any],
    speculation: Speculation,
) -> Turn:
    """Prepares an answer.

    Raises:
        UsageError, TemplateError, GrammarError: see Clover.chat().
    """
    for name in _FORBIDDEN:
        if name in sampling:
            raise UsageError(f"{name} is not for chats: give response_format", option=name)
    if think_budget is not None and (not sampled(speculation) or relaxed(speculation)):
        raise UsageError(
            "think_budget works token by token: not with block diffusion or relaxed acceptance", option="think_budget"
        )
    for name, value in (("thinking", thinking), ("parallel_tool_calls", parallel_tool_calls)):
        if value is not None:
            arguments.boolean(name, value)
    if think_budget is not None and thinking is False:
        raise UsageError("think_budget and thinking=False exclude each other: leave one out", option="think_budget")
    budget = -1 if think_budget is None else arguments.integer("think_budget", think_budget, 0)
    schema = answer_schema(response_format)
    if schema is not None:
        _check_schema(schema.schema)
        if tools:
            raise UsageError("response_format and tools exclude each other: give one", option="response_format")
    prepared = runner.prepared(
        messages, tools=tools, tool_choice="auto" if tool_choice is None else tool_choice,
        parallel_tool_calls=parallel_tool_calls, thinking=thinking,
        variables=variables, json_schema=None if schema is None else schema.schema,
    )  # fmt: skip
    if not prepared.native["caps"].get("supports_tools"):
        if tools:
            raise UsageError("tools: this model's chat template knows none; leave them out", option="tools")
        if any(message.get("tool_calls") or message.get("role") == "tool" for message in messages):
            raise UsageError(
                "messages has tool calls, and this model's chat template would leave them out: write them as text",
                option="messages",
            )
    if think_budget is not None and not prepared.native["thinking_ends"]:
        raise UsageError("think_budget: this model's chat template knows no thinking", option="think_budget")
    if not sampled(speculation) and prepared.native["grammar"] and not prepared.native["grammar_lazy"]:
        raise UsageError(
            "block diffusion cannot be held to a schema or to a call: use plain decoding or DraftSelf",
            option="speculation",
        )
    native = dict(prepared.native)
    grammar = native.pop("grammar") or None
    if grammar is not None:
        check_grammar(grammar, what="the grammar of tools or schema", max_nesting=1024)
    settings = {**native, "thinking_budget": budget + opened_tokens(model, prepared) if budget >= 0 else -1}
    prompt, n_stable = prompt_tokens(model, prepared)
    return Turn(
        prompt=prompt,
        n_stable=n_stable,
        prepared=prepared,
        tags=special_tags(model, tag_candidates(prepared.native)),
        sampling=ChatSampling(json.dumps(settings), grammar, budget),
        schema=schema,
        stops=tuple(dict.fromkeys((*stops, *prepared.stops))),
    )


def _check_schema(schema: Mapping[str, Any]) -> None:
    """Refuses what cannot be honoured, before a template sees it."""
    try:
        schema_grammar(schema_text(schema))
    except GrammarError as error:
        raise GrammarError(f"response_format: {error}") from None


def prompt_tokens(model: Model, prepared: Prepared) -> tuple[tuple[int, ...], int]:
    """Tokens of the prompt, and how many of them come before the opening of the answer (0 when that is not clear)."""
    tokens = tuple(model.tokenize(prepared.prompt, add_special=model.info.add_bos, parse_special=True))
    if not prepared.opening or not prepared.prompt.endswith(prepared.opening):
        return tokens, 0
    left, n = len(prepared.opening.encode()), len(tokens)
    while left > 0 and n > 0:  # from the end: the opening is short
        n -= 1
        left -= len(model.token_bytes(tokens[n], special=True))
    return tokens, n if left == 0 else 0


def opened_tokens(model: Model, prepared: Prepared) -> int:
    """Tokens of the prompt inside the thought that it opens: llama.cpp counts them against the budget."""
    if not prepared.thinking_open:
        return 0
    behind = prepared.opening.rpartition(prepared.native["thinking_start"])[2]
    return len(model.tokenize(behind, add_special=False, parse_special=True))


def pieces(model: Model, turn: Turn, generate: Callable[[ChatText], Iterator[TextPiece]]) -> Iterator[ChatPiece]:
    """The answer as it comes; `generate` runs the engine with the given text."""
    parser = AnswerParser(turn.prepared.native, tuple(turn.tags.values()), budget=turn.sampling.budget)
    text = ChatText(model, parser, turn.tags, turn.stops)
    tokens: list[int] = []
    stream = generate(text)
    try:
        for piece in stream:
            tokens += piece.tokens
            if piece.block is not None:
                yield ChatPiece(block=piece.block)
                continue
            if piece.n_accepted:
                n = min(piece.n_accepted, len(piece.tokens))
                yield _piece(text.taken(n), piece.tokens[:n], drafted=True)
                rest = piece.tokens[n:]
            else:
                rest = piece.tokens
            delta = text.taken()
            if piece.stats is None or piece.finish_reason is None:
                yield _piece(delta, rest)
                continue
            reply = reply_of(
                parser.answer, finish_reason=piece.finish_reason, stop=piece.stop, stats=piece.stats,
                tokens=tuple(tokens), notes=turn.prepared.notes,
                convert=None if turn.schema is None else turn.schema.convert,
            )  # fmt: skip
            yield _piece(delta, rest, reply=reply)
    finally:
        close = getattr(stream, "close", None)
        if close is not None:
            close()


def _piece(
    delta: ChatDelta, tokens: tuple[int, ...], *, drafted: bool = False, reply: ChatReply | None = None
) -> ChatPiece:
    return ChatPiece(
        content=delta.content, reasoning=delta.reasoning, tool_calls=delta.tool_calls, tokens=tokens, drafted=drafted,
        reply=reply,
    )  # fmt: skip


def whole(pieces: Iterator[ChatPiece]) -> ChatReply:
    """The reply at the end of a stream."""
    for piece in pieces:
        if piece.reply is not None:
            return piece.reply
    raise AssertionError("a chat ends with a piece that has the reply")


@dataclass(frozen=True)
class FunctionsReply:
    """The end of a chat with functions.

    Attributes:
        reply: the last answer.
        messages: all of the conversation, with calls, results and the last answer.
        n_rounds: answers that had calls.
    """

    reply: ChatReply
    messages: tuple[dict[str, Any], ...]
    n_rounds: int


def with_functions(
    chat: Callable[..., ChatReply],
    messages: Sequence[Message],
    functions: Sequence[Callable[..., Any]],
    *,
    max_rounds: int,
    options: Mapping[str, Any],
) -> FunctionsReply:
    """Answers and calls in turn until an answer has no calls; see Clover.chat_functions()."""
    arguments.integer("max_rounds", max_rounds, 1)
    for name in ("tools", "response_format"):
        if name in options:
            raise UsageError(f"{name} is not for chats with functions: use chat()", option=name)
    tools = tools_of(functions)
    if not tools:
        raise UsageError("functions is empty: give at least one, or use chat()", option="functions")
    described = [tool.tool for tool in tools.values()]
    done = checked_messages(messages)
    chosen = dict(options)
    for n_rounds in range(max_rounds + 1):
        if n_rounds == max_rounds:
            chosen["tool_choice"] = "none"
        reply = chat(done, tools=described, **chosen)
        done.append(reply.message)
        if not reply.tool_calls or reply.finish_reason != "tool_calls" or n_rounds == max_rounds:
            return FunctionsReply(reply, tuple(done), n_rounds)
        done += [result_of(tools, call) for call in reply.tool_calls]
        chosen["tool_choice"] = "auto"  # a call that was asked for has been made
    raise AssertionError("the last round returns")


def tools_of(functions: Iterable[Callable[..., Any]]) -> dict[str, FunctionTool]:
    """The tools that functions make, by name.

    Raises:
        UsageError: no sequence of functions, one that cannot be a tool, or two of one name.
    """
    if isinstance(functions, (str, bytes, Mapping)) or not isinstance(functions, Iterable):
        raise UsageError(f"functions is {shortened(functions)}: it must be a list of functions", option="functions")
    tools: dict[str, FunctionTool] = {}
    for tool in map(function_tool, functions):
        if tool.name in tools:
            raise UsageError(f"two functions have the name {tool.name}: rename one", option="functions")
        tools[tool.name] = tool
    return tools


def result_of(tools: Mapping[str, FunctionTool], call: ToolCall) -> dict[str, Any]:
    """Runs a call -> the message with its result."""
    tool = tools.get(call.name)
    if tool is None:
        text = json.dumps({"error": f"there is no function {call.name}; there are: {', '.join(tools)}"})
    else:
        text, _ = run_function(tool, call.arguments)
    return {"role": "tool", "tool_call_id": call.id, "name": call.name, "content": text}
