"""A benchmark: every way to generate, with the same prompts in turns; and llama-bench's own figures."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import stdev
from typing import Any

from pyclover import arguments
from pyclover.engine.blocks import BlockParams
from pyclover.errors import PathLike
from pyclover.tuning import loading
from pyclover.tuning.candidate import Candidate
from pyclover.tuning.interleave import turning
from pyclover.tuning.journal import Journal
from pyclover.tuning.measure import Stand
from pyclover.tuning.prompts import Prompt
from pyclover.tuning.statistics import mean, median, median_interval
from pyclover.tuning.sweep import Sweep
from pyclover.tuning.table import Row
from pyclover.tuning.tune import ProgressFunction, prompts_of, run_race, settings_of

THRESHOLD = 0.95


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A figure as llama-bench has it: passes alone, random tokens, nothing in memory before.

    Attributes:
        test: "pp512": 512 tokens of a prompt; "tg128": 128 tokens, one after the other.
        label: settings of the context, "" for the default.
        tok_per_s: median of the repetitions. low, high: its 95 % interval or None. mean, stdev: as llama-bench.
    """

    test: str
    label: str
    n: int
    tok_per_s: float
    low: float | None
    high: float | None
    mean: float
    stdev: float


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """Attributes:
    model: the file. rows: one a candidate, plain decoding first. figures: llama-bench's.
    n_rounds: through all prompts. prompts: how many of each kind. warnings: one sentence each.
    """

    model: str
    rows: tuple[Row, ...]
    figures: tuple[Figure, ...]
    n_rounds: int
    prompts: Mapping[str, int]
    warnings: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)


def bench(
    model: PathLike = "tiny",
    *,
    prompts: Sequence[str | Prompt] | Mapping[str, Sequence[str]] | str = (),
    kinds: Sequence[str] = (),
    chat: bool = False,
    block_params: BlockParams | None = None,
    n_prompt: int = 512,
    n_gen: int = 128,
    options: Mapping[str, Any] | None = None,
    progress: ProgressFunction | None = None,
    **given: Any,
) -> Benchmark:
    """Measures plain decoding, the controller, drafts of several lengths and block diffusion, in turns.

    Args:
        prompts, kinds, chat, block_params, options, progress: as `pyclover.tune`; without prompts and kinds, one
            built-in prompt of each kind.
        n_prompt, n_gen: of llama-bench's tests, 0: none.
        given: as `pyclover.tune`; threshold is (0.95,) when it is not given, repetitions are run in full.

    Raises:
        as `pyclover.tune`.
    """
    arguments.integer("n_prompt", n_prompt, 0, 1 << 20)
    arguments.integer("n_gen", n_gen, 0, 1 << 20)
    sweep, how = settings_of({"threshold": (THRESHOLD,), **given}, None)
    texts = prompts_of(prompts, kinds, chat)
    if not prompts and not kinds:
        texts = tuple({p.kind: p for p in reversed(texts)}.values())[::-1]
    wanted = sweep.candidates()
    keywords = dict(options or {})
    room = max(n_prompt, n_gen + 1) + 1
    stand = loading.load(
        model, wanted, texts, max_tokens=max(how["max_tokens"], room), options=keywords, params=block_params,
        temperature=float(how["temperature"]), seed=how["seed"],
    )  # fmt: skip
    stand.max_tokens = how["max_tokens"]
    with stand.clover:
        candidates, left_out = loading.able(stand, wanted, asked=bool({"n_max", "threshold"} & set(given)))
        found = run_race(
            candidates, texts, stand, Journal(None, {}), repetitions=how["repetitions"], model=stand.clover.path,
            warm_up=stand.warm_up, progress=progress, drop=False,
        )  # fmt: skip
        figures = llama_figures(stand, sweep, n_prompt=n_prompt, n_gen=n_gen, repetitions=how["repetitions"])
    warnings = (*((left_out,) if left_out else ()), *stand.clover.warnings)
    return Benchmark(
        model=found.model, rows=found.rows, figures=figures, n_rounds=found.n_rounds, prompts=found.prompts,
        warnings=warnings,
    )  # fmt: skip


def llama_figures(stand: Stand, sweep: Sweep, *, n_prompt: int, n_gen: int, repetitions: int) -> tuple[Figure, ...]:
    """pp and tg of each setting of the context, in turns; each is warmed up first."""
    plain = [c for c in sweep.candidates() if c.mode == "plain"]
    tests: list[tuple[str, int, Callable[[Stand, Candidate, int], float]]] = []
    if n_prompt:
        tests.append((f"pp{n_prompt}", n_prompt, read_speed))
    if n_gen:
        tests.append((f"tg{n_gen}", n_gen, write_speed))
    jobs = [(test, candidate) for test in tests for candidate in plain]
    speeds: dict[int, list[float]] = {i: [] for i in range(len(jobs))}
    for turn in range(repetitions + 1):
        for i in turning(range(len(jobs)), turn):
            (_, n, speed), candidate = jobs[i]
            value = speed(stand, candidate, n)
            if turn:  # the first one warms up
                speeds[i].append(value)
    return tuple(_figure(jobs[i][0][0], jobs[i][1], jobs[i][0][1], speeds[i]) for i in range(len(jobs)))


def _figure(test: str, candidate: Candidate, n: int, speeds: Sequence[float]) -> Figure:
    interval = median_interval(speeds)
    return Figure(
        test=test, label=candidate.label.removeprefix("plain").strip(), n=n, tok_per_s=median(speeds),
        low=interval[0] if interval else None, high=interval[1] if interval else None, mean=mean(speeds),
        stdev=stdev(speeds) if len(speeds) > 1 else 0.0,
    )  # fmt: skip


def random_tokens(n_vocab: int, n: int) -> list[int]:
    """Always the same tokens, as of no text at all."""
    draw = random.Random(n)
    return [draw.randrange(n_vocab) for _ in range(n)]


def read_speed(stand: Stand, candidate: Candidate, n: int) -> float:
    """Prompt tokens a second, from an empty memory."""
    context = stand.context(candidate)
    with context.claim.held():
        context.arm()
        context.clear()
        context.prompt(random_tokens(stand.clover.info.n_vocab, n))
        stats = context.raw_stats()
        return float(stats.n_read / stats.prompt_s)


def write_speed(stand: Stand, candidate: Candidate, n: int) -> float:
    """Tokens a second of passes over one token each, from an almost empty memory; choosing them is not counted."""
    tokens = random_tokens(stand.clover.info.n_vocab, 1)
    run = stand.run(candidate, tokens, n + 1, ignore_eos=True)
    return run.n_decoded / run.passes_s
