"""`tune --calibrate`: from a model to block parameters that suit it, kept in its profile."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pyclover import arguments
from pyclover.clover import Clover
from pyclover.engine import blocks
from pyclover.errors import PathLike, UsageError
from pyclover.files.gate import validate
from pyclover.plan.geometry import geometry_of
from pyclover.source import model_file
from pyclover.tuning import calibrate as calibration
from pyclover.tuning import loading, profiles
from pyclover.tuning.calibrate import Calibration, Setting, search, setting_of
from pyclover.tuning.identity import key_of
from pyclover.tuning.journal import Journal
from pyclover.tuning.places import Places, alternatives
from pyclover.tuning.prompts import Prompt, digest
from pyclover.tuning.tune import journal_path, prompts_of

__all__ = ["calibrate"]

N_MAX = 7
ProgressFunction = Callable[[str, float], None]


def calibrate(
    model: PathLike = "tiny",
    *,
    prompts: Sequence[str | Prompt] | Mapping[str, Sequence[str]] | str = (),
    kinds: Sequence[str] = (),
    chat: bool = False,
    n_max: int = N_MAX,
    max_tokens: int = 64,
    start: Setting | None = None,
    journal: PathLike | None = None,
    resume: bool = False,
    save: bool = True,
    name: str | None = None,
    options: Mapping[str, Any] | None = None,
    progress: ProgressFunction | None = None,
) -> Calibration:
    """Finds how block passes of a file are to be computed, by the drafted tokens that plain decoding accepts.

    What is chosen is kept in the file's profile. Nothing is chosen inside the noise. At least 10 prompts are needed.

    Args:
        n_max: tokens of a draft, 1 to 31. max_tokens: of each answer, at whose places drafts are begun.
        start: to begin with; None: what the file says.
        progress: called with what is measured and the share that is done.
        others: as `tune`.

    Raises:
        SpeculationUnavailableError: the model has no block pass.
        UsageError, OSError, what Clover() raises: as `tune`.
    """
    arguments.integer("n_max", n_max, 1, 31)
    arguments.integer("max_tokens", max_tokens, 2)
    texts = prompts_of(prompts, kinds, chat)
    if len(texts) < calibration.FEWEST_PROMPTS:
        raise UsageError(
            f"prompts has {len(texts)}: a calibration needs at least {calibration.FEWEST_PROMPTS}, for of fewer no "
            "difference is out of the noise", option="prompts",
        )  # fmt: skip
    if name is not None:
        profiles.check_name(name)
    keywords = dict(options or {})
    path = model_file(model, fit=bool(keywords.get("fit", True))).path
    geometry = geometry_of(validate(path))
    n_ctx = min(loading.room(texts, max_tokens), loading.N_CTX_MAX, geometry.n_ctx_train)
    what = ""

    def tell(share: float) -> None:
        if progress is not None:
            progress(what, share)

    def step(pass_: int, parameter: str) -> None:
        nonlocal what
        what = f"pass {pass_}, {parameter}"
        tell(0.0)

    with Clover(path, **{"n_ctx": n_ctx, **keywords}) as clover:
        file, context = clover._model.file, clover._context
        blocks.require_block_pass(clover._model, "calibration")
        blocks.check_rows(context, n_max + 1, f"a draft of {n_max} tokens")
        in_file = setting_of(clover.block_params, n_max + 1)
        begin = start or in_file
        values = alternatives(
            begin, n_expert=geometry.n_expert, n_expert_used=geometry.n_expert_used, n_max=n_max,
            n_rows=min(context.n_batch, context.n_ubatch),
        )  # fmt: skip
        header = {
            "what": "calibrate", **key_of(file, keywords).to_dict(), "prompts": digest(texts), "n_max": n_max,
            "max_tokens": max_tokens, "start": begin.to_dict(), "values": values,
        }  # fmt: skip
        where = journal_path(header) if journal is None else arguments.path("journal", journal)
        with Journal(where, header, resume=resume) as book:
            places = Places(clover, texts, max_tokens=max_tokens, n_max=n_max, journal=book, progress=tell)
            found = search(begin, values, places, progress=step)
            found = replace(found, model=clover.path, n_places=places.n_places, n_max=n_max)
    if save:
        profile, _ = profiles.save(file, keywords, name=name, **kept(found, in_file))
        found = replace(found, profile=profile.name)
    return found


def kept(found: Calibration, in_file: Setting) -> dict[str, Any]:
    """What a profile keeps of a calibration: the parameters that differ from the file's, and how sure they are."""
    said, chosen = in_file.to_dict(), found.chosen.to_dict()
    params = {name: chosen[name] for name in chosen if name != "rows" and chosen[name] != said[name]}
    if params.get("expert_coreset"):
        params["expert_coreset_share"] = 0.0
    names = ("accepted_before", "accepted", "p", "gain", "low", "high", "n_prompts", "n_places", "n_max")
    facts = {n: getattr(found, n) for n in names}
    return {
        "block_params": params,
        "calibration": {**facts, "verdicts": dict(found.verdicts), "rows": found.chosen.rows},
    }
