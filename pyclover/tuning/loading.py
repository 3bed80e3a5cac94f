"""From a model's name to a stand on which candidates run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyclover.clover import Clover
from pyclover.engine.blocks import BlockParams
from pyclover.errors import PathLike, SpeculationUnavailableError
from pyclover.files.gate import validate
from pyclover.plan.geometry import geometry_of
from pyclover.source import model_file
from pyclover.tuning.candidate import Candidate
from pyclover.tuning.measure import Stand
from pyclover.tuning.prompts import Prompt

TEMPLATE_TOKENS = 512  # of a chat template's own words, at most
AUTO_N_MAX = 15
N_CTX_MAX = 8192


def room(prompts: Sequence[Prompt], max_tokens: int) -> int:
    """Tokens that prompts and answers need at most; a token has at least a byte."""
    longest = max((len(prompt.text.encode()) for prompt in prompts), default=0)
    return -(-(longest + TEMPLATE_TOKENS + max_tokens + 64) // 256) * 256


def load(
    model: PathLike,
    candidates: Sequence[Candidate],
    prompts: Sequence[Prompt],
    *,
    max_tokens: int,
    options: Mapping[str, Any],
    params: BlockParams | None = None,
    **settings: Any,
) -> Stand:
    """Loads a model for candidates; the stand's `clover` is to be closed.

    Args:
        options: keywords of `Clover`.
        params: how block passes compute; None: as the file says.
        settings: of `Stand`.

    Raises:
        what Clover() raises.
    """
    path = model_file(model, fit=bool(options.get("fit", True)), progress=options.get("download_progress")).path
    keywords = {"n_ctx": min(room(prompts, max_tokens), N_CTX_MAX, geometry_of(validate(path)).n_ctx_train), **options}
    n_max = max((AUTO_N_MAX if c.mode == "auto" else c.n_max for c in candidates), default=0)
    sizes = [c.load.get(name) or keywords.get(name) for c in candidates for name in ("n_batch", "n_ubatch")]
    # rejected drafts should cost no further pass; a batch holds two tokens beside them
    keywords.setdefault("n_rs_seq", max(0, min([n_max, *(n - 2 for n in (*sizes, keywords["n_ctx"]) if n)])))
    clover = Clover(path, **keywords)
    try:
        return Stand(clover, max_tokens=max_tokens, params=params, **settings)
    except BaseException:
        clover.close()
        raise


def able(stand: Stand, candidates: Sequence[Candidate], *, asked: bool) -> tuple[tuple[Candidate, ...], str]:
    """The candidates that the model can run, and a sentence on those left out, "" for none.

    Raises:
        SpeculationUnavailableError: drafts or blocks were asked for.
    """
    if not stand.missing:
        return tuple(candidates), ""
    plain = tuple(c for c in candidates if c.mode == "plain")
    sentence = f"{stand.clover.path}: only plain decoding is possible: {stand.missing}"
    if asked:
        raise SpeculationUnavailableError(sentence)
    return plain, sentence
