"""The race: candidates take turns at prompts until one is shown to be best; goes on where it was interrupted."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import platformdirs

from pyclover import arguments
from pyclover.engine.blocks import BlockParams
from pyclover.errors import PathLike, UsageError, shortened
from pyclover.tuning import loading, profiles
from pyclover.tuning.candidate import Candidate
from pyclover.tuning.identity import SETTINGS, key_of
from pyclover.tuning.interleave import turning
from pyclover.tuning.journal import Journal
from pyclover.tuning.measure import Measurer, Run, changed_share
from pyclover.tuning.prompts import Prompt, built_in, digest, own
from pyclover.tuning.race import Race
from pyclover.tuning.recommend import Recommendation, recommend
from pyclover.tuning.sweep import Sweep, read_sweep
from pyclover.tuning.table import Row, Turn, rows_of

FEWEST_ROUNDS = 2
DEFAULTS: dict[str, Any] = {
    "max_tokens": 128, "repetitions": 5, "interval": 0.05, "temperature": 0.0, "seed": 1, "kinds": (), "prompts": (),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """What a tuning found.

    Attributes:
        model: the file. rows: one a candidate, plain decoding first.
        recommendation: what to use, and why.
        n_rounds: through all prompts. n_turns: prompts answered by everyone in the race.
        settled: the interval is as narrow as was asked for, or nothing but plain decoding is left.
        interval: half of its width as a share of the median, as asked for.
        prompts: how many of each kind.
        warnings: one sentence each.
        profile: name of the profile that keeps it, "" for none.
    """

    model: str
    rows: tuple[Row, ...]
    recommendation: Recommendation
    n_rounds: int
    n_turns: int
    settled: bool
    interval: float
    prompts: Mapping[str, int]
    warnings: tuple[str, ...] = ()
    profile: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Progress:
    """Attributes:
    turn: that begins, from 0. n_turns: at most. round: from 0. alive: labels of who is in the race.
    """

    turn: int
    n_turns: int
    round: int
    alive: tuple[str, ...]


ProgressFunction = Callable[[Progress], None]


def settled(turns: Sequence[Turn], candidates: Sequence[Candidate], prompts: Sequence[Prompt], race: Race,
            interval: float) -> bool:  # fmt: skip
    """Whether enough is known: everyone's ratio to plain is narrow, of those whose interval reaches above the best's
    lower end; the others are no candidates for the first place any more. True when plain is alone."""
    rows = rows_of([*candidates], prompts, turns)
    left = [r.ratio for i, r in enumerate(rows) if i in race.alive and i > 0 and r.ratio is not None]
    if not left:
        return True
    best = max(left, key=lambda ratio: ratio.total)
    if best.low is None:
        return False
    near = [r for r in left if r.high is None or r.high >= best.low]
    return all(r.spread is not None and r.spread <= interval for r in near)


def run_race(
    candidates: Sequence[Candidate],
    prompts: Sequence[Prompt],
    measure: Measurer,
    journal: Journal,
    *,
    repetitions: int = 5,
    interval: float = 0.05,
    model: str = "",
    warm_up: Callable[[Sequence[Candidate], Prompt], None] | None = None,
    progress: ProgressFunction | None = None,
    drop: bool = True,
) -> Tuning:
    """Runs the race, from where the journal is. What comes out is a function of the journal's turns alone.

    Args:
        repetitions: rounds through all prompts at most; at least 2 are run where as many are allowed.
        interval: half the width of the 95 % interval of a ratio, as a share of it, that is narrow enough to stop.
        drop: clear losers leave the race; False: all run all rounds.
    """
    race = Race(len(candidates))
    turns: list[Turn] = []

    def see(turn: Turn) -> None:
        turns.append(turn)
        if drop:
            race.see({i: run.s_per_token for i, run in turn.runs.items()})

    done = False
    kept = [Turn.from_dict(values) for values in journal.turns]
    warm = warm_up is None
    for round_ in range(repetitions):
        for at, prompt in enumerate(prompt_order(len(prompts), round_)):
            number = round_ * len(prompts) + at
            if number < len(kept):
                see(kept[number])
                continue
            if not warm and warm_up is not None:
                warm_up([candidates[i] for i in race.alive], prompts[prompt])
                warm = True
            if progress is not None:
                alive = tuple(candidates[i].label for i in race.alive)
                progress(Progress(number, repetitions * len(prompts), round_, alive))
            runs = {i: measure(candidates[i], prompts[prompt]) for i in turning(race.alive, number)}
            turn = Turn(round_, prompt, compared(runs))
            journal.append(turn.to_dict())
            see(Turn.from_dict(journal.turns[-1]))  # what a resumed run would see
        done = drop and settled(turns, candidates, prompts, race, interval)
        if done and round_ + 1 >= min(FEWEST_ROUNDS, repetitions):
            break
    rows = rows_of(candidates, prompts, turns, race.left_at)
    kinds: dict[str, int] = {}
    for p in prompts:
        kinds[p.kind] = kinds.get(p.kind, 0) + 1
    return Tuning(
        model=model, rows=rows, recommendation=recommend(candidates, rows, turns),
        n_rounds=max((turn.round for turn in turns), default=-1) + 1, n_turns=len(turns), settled=done,
        interval=interval, prompts=kinds,
    )  # fmt: skip


def prompt_order(n: int, round_: int) -> list[int]:
    """The prompts of a round in an order of its own, always the same."""
    order = list(range(n))
    random.Random(round_).shuffle(order)
    return order


def compared(runs: Mapping[int, Run]) -> dict[int, Run]:
    """The runs of a turn, each with the share of tokens that are not plain decoding's."""
    plain = runs[0].tokens
    return {i: replace(run, changed=changed_share(run.tokens, plain)) for i, run in runs.items()}


def settings_of(given: Mapping[str, Any], sweep: PathLike | None) -> tuple[Sweep, dict[str, Any]]:
    """What is swept, and how it is measured: arguments win over a sweep file, which wins over the defaults.

    Raises:
        UsageError: a value that cannot be.
    """
    values = {**(read_sweep(sweep) if sweep is not None else {}), **given}
    names = {field.name for field in fields(Sweep)}
    how = {**DEFAULTS, **{name: value for name, value in values.items() if name not in names}}
    arguments.integer("max_tokens", how["max_tokens"], 2)
    arguments.integer("repetitions", how["repetitions"], 1, 10_000)
    for name, low, high in (("interval", 0.0, 1.0), ("temperature", 0.0, 100.0)):
        value = how[name]
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
            raise UsageError(
                f"{name} is {shortened(value)}: it must be a number between {low:g} and {high:g}", option=name
            )
    arguments.integer("seed", how["seed"], 0, 2**32 - 2)
    return Sweep(**{name: value for name, value in values.items() if name in names}), how


def prompts_of(prompts: Any, kinds: Any, chat: bool = False) -> tuple[Prompt, ...]:
    """Prompts from what may stand for them: texts, `Prompt`s, a mapping from kinds to texts; built-in ones for none.

    Raises:
        UsageError: something else.
    """
    kinds = (kinds,) if isinstance(kinds, str) else tuple(kinds)
    if not prompts:
        return built_in(kinds) if kinds else built_in()
    if kinds:
        raise UsageError("kinds are those of the built-in prompts: leave prompts or kinds out", option="kinds")
    if isinstance(prompts, str):
        return own([prompts], chat=chat)
    if isinstance(prompts, Mapping):
        return tuple(p for kind, texts in prompts.items() for p in own(texts, chat=chat, kind=str(kind)))
    if not isinstance(prompts, Sequence):
        raise UsageError(f"prompts is {shortened(prompts)}: it must be a list of texts", option="prompts")
    return tuple(p for item in prompts for p in ([item] if isinstance(item, Prompt) else own([item], chat=chat)))


def journal_path(header: Mapping[str, Any]) -> Path:
    """Where the journal of a run is kept when nothing else is said: in the user's cache."""
    digits = hashlib.sha256(json.dumps(header, sort_keys=True).encode()).hexdigest()[:24]
    return platformdirs.user_cache_path("pyclover", appauthor=False) / "tune" / f"{digits}.jsonl"


def tune(
    model: PathLike = "tiny",
    *,
    prompts: Sequence[str | Prompt] | Mapping[str, Sequence[str]] | str = (),
    kinds: Sequence[str] = (),
    chat: bool = False,
    sweep: PathLike | None = None,
    block_params: BlockParams | None = None,
    journal: PathLike | None = None,
    resume: bool = False,
    save: bool = True,
    name: str | None = None,
    options: Mapping[str, Any] | None = None,
    progress: ProgressFunction | None = None,
    **given: Any,
) -> Tuning:
    """Finds how a model generates fastest on this machine: plainly, or with drafts of some length.

    All settings answer the same prompts in turns; clear losers leave (see `pyclover.tuning.race`); the race ends when
    the interval is narrow enough. What wins is kept as a profile, which `clover-run generate`, `chat` and `serve` use.

    Args:
        model: as for `Clover`.
        prompts: texts of your own, or kinds with texts; none: a built-in set. chat: they are questions, which the
            model's chat template frames.
        kinds: of the built-in prompts: code, prose, structured, maths, thinking; none: all.
        sweep: a YAML file with what is swept; arguments given here win.
        block_params: how block passes compute; None: as the file, or a calibration kept in a profile, says.
        journal: file that keeps each turn; None: in the user's cache. resume: go on with it.
        save: keep the recommendation as a profile. name: of the profile.
        options: keywords of `Clover`, such as n_gpu_layers.
        progress: called before each turn.
        given: attributes of `Sweep` (n_max, steps, block, p_min, …, n_threads, n_batch, n_ubatch); max_tokens of an
            answer (128); repetitions, rounds at most (5); interval, half its width as a share (0.05); temperature (0)
            and seed.

    Raises:
        UsageError: a value that cannot be, or nothing to resume.
        SpeculationUnavailableError: drafts were asked for, and the model cannot draft.
        what Clover() raises; OSError: journal or profile cannot be written.
    """
    _known(given)
    swept, how = settings_of({**given, **({"prompts": prompts} if prompts else {}),
                              **({"kinds": kinds} if kinds else {})}, sweep)  # fmt: skip
    texts = prompts_of(how["prompts"], how["kinds"], chat)
    options = dict(options or {})
    if name is not None:
        profiles.check_name(name)
    wanted = swept.candidates()
    stand = loading.load(
        model, wanted, texts, max_tokens=how["max_tokens"], options=options, params=block_params,
        temperature=float(how["temperature"]), seed=how["seed"],
    )  # fmt: skip
    with stand.clover:
        file = stand.clover._model.file
        if block_params is None and not stand.missing:
            kept = profiles.matching(file, options)
            if kept is not None and kept.block_params:
                stand.set_base(profiles.params_with(stand.base, kept.block_params))
        asked = bool({"n_max", "threshold"} & set(given))
        candidates, left_out = loading.able(stand, wanted, asked=asked)
        header = {
            "what": "tune", **key_of(file, options).to_dict(), "prompts": digest(texts),
            "candidates": [c.to_dict() for c in candidates],
            "measured": {n: how[n] for n in ("max_tokens", "temperature", "seed")},
            "options": {k: v for k, v in options.items() if k not in SETTINGS and isinstance(v, (int, float, str))},
            "block_params": {} if stand.missing else asdict(stand.base),
        }  # fmt: skip
        path = journal_path(header) if journal is None else arguments.path("journal", journal)
        with Journal(path, header, resume=resume) as book:
            found = run_race(
                candidates, texts, stand, book, repetitions=how["repetitions"], interval=float(how["interval"]),
                model=stand.clover.path, warm_up=stand.warm_up, progress=progress,
            )  # fmt: skip
    warnings = (left_out,) if left_out else ()
    found = replace(found, warnings=(*warnings, *stand.clover.warnings) if warnings else stand.clover.warnings)
    if save:
        profile, _ = profiles.save(
            file, options, name=name, candidate=found.recommendation.candidate,
            figures=profiles.figures_of(found.recommendation),
        )  # fmt: skip
        found = replace(found, profile=profile.name)
    return found


def _known(given: Mapping[str, Any]) -> None:
    known = {*DEFAULTS, *(field.name for field in fields(Sweep))}
    for word in given:
        if word not in known:
            raise UsageError(f"tune() has no argument {word}: it has {', '.join(sorted(known))}", option=word)
