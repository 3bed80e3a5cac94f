"""Names of models, files and quantizations: what a user may write, what a hub may answer.

Everything here is text in, text out. A file name that a hub sends is refused when it could lead out of the folder that
it is meant for, on any system.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pyclover import arguments
from pyclover.errors import DownloadError, UsageError, shortened
from pyclover.files.embedded import NAMES

AUTO = "auto"

# A tensor type as quantizers write it into file names, with what they put around it: UD-Q4_K_XL, i1-IQ2_XXS,
# Q3_K_M-hq. Text before it is the model's name.
_TYPE = r"(?:I?Q\d+(?:_[A-Z0-9]+)*|TQ\d_\d|BF16|F16|F32|FP16|FP8|MXFP4(?:_MOE)?|NVFP4)"
_QUANT = re.compile(rf"(?:^|[-._])((?:UD-|i\d-)?{_TYPE}(?![A-Za-z0-9]))", re.IGNORECASE)
_REPO = re.compile(r"[A-Za-z0-9](?:[\w.-]*[A-Za-z0-9_])?/[A-Za-z0-9_](?:[\w.-]*[A-Za-z0-9_])?", re.ASCII)
_MAX_REPO = 96
_REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]*")


@dataclass(frozen=True)
class ModelName:
    """What `owner/repo[:quant]` or `auto` says; repo is None for auto, quant is None when it is left open."""

    repo: str | None
    quant: str | None = None


def parse_name(name: str, *, quant: str | None = None) -> ModelName:
    """The parts of a model's name on the hub; `quant` given apart must not contradict it.

    Raises:
        UsageError: it is no such name.
    """
    text = arguments.text("name", name).strip()
    if quant is not None and not arguments.text("quant", quant).strip():
        raise UsageError("quant is empty: give a name such as Q4_K_M, or leave it out", option="quant")
    if text.lower() == AUTO:
        return ModelName(None, None if quant is None else quant.strip())
    if text.lower().startswith(("http://", "https://")):
        pieces = [piece for piece in text.partition("://")[2].partition("?")[0].split("/")[1:] if piece]
        example = "/".join(pieces[:2]) if len(pieces) > 1 else "owner/repo"
        raise UsageError(
            f"{shortened(text)} is an address: write the repository's name, such as {example}:Q4_K_M", option="name"
        )
    if text in NAMES:
        raise UsageError(f"{text} comes with the package: there is nothing to download", option="name")
    repo, colon, inside = text.partition(":")
    if colon and not inside:
        raise UsageError(f"{shortened(text)} ends in a colon: put the quantization behind it", option="name")
    if quant is not None and colon and inside.lower() != quant.strip().lower():
        raise UsageError(
            f"{shortened(text)} and quant={shortened(quant)} contradict each other: give one of them", option="quant"
        )
    check_repo(repo)
    return ModelName(repo, inside or (quant.strip() if quant is not None else None))


def check_repo(repo: str) -> str:
    """Raises UsageError unless `repo` is owner/repo as the hub allows it."""
    wrong = "--" in repo or ".." in repo or repo.endswith(".git") or len(repo) > _MAX_REPO
    if wrong or not _REPO.fullmatch(repo):
        raise UsageError(
            f'{shortened(repo)} is no name of a repository: write owner/repo, owner/repo:quant or "auto"', option="name"
        )
    return repo


def check_revision(revision: str | None) -> str:
    """The branch, tag or commit; "main" for None.

    Raises:
        UsageError: no revision is called that.
    """
    if revision is None:
        return "main"
    text = arguments.text("revision", revision)
    if not _REVISION.fullmatch(text) or ".." in text or "//" in text:
        raise UsageError(
            f"revision is {shortened(revision)}: it must be a branch, a tag or a commit of the repository",
            option="revision",
        )
    return text


def is_commit(revision: str) -> bool:
    """Whether this is a whole commit hash, which can never mean anything else later."""
    return re.fullmatch(r"[0-9a-f]{40}", revision) is not None


def check_file_name(name: object, repo: str) -> str:
    """A file name from a hub's answer, safe to be made into a path.

    Raises:
        DownloadError: it is none: absolute, with "..", a backslash, a drive, a control character, and the like.
    """
    parts = name.split("/") if isinstance(name, str) else []
    bad = (
        not isinstance(name, str)
        or any(part in ("", ".", "..") or part != part.strip() or len(part.encode(errors="replace")) > 250
               for part in parts)
        or any(char in '\\:*?"<>|' or not char.isprintable() for char in name)
    )  # fmt: skip
    if bad:
        raise DownloadError(
            f"{repo}: the hub lists a file by the name {shortened(name)}, which could lead out of its folder; nothing "
            "was downloaded, tell the owner of the repository", repo=repo, reason="server",
        )  # fmt: skip
    assert isinstance(name, str)
    return name


def quant_of(stem: str) -> str:
    """The quantization in a file's name without `.gguf` and shard number; the whole stem when it names none."""
    # The last type that stands alone counts, with all that follows it: a model's own name may hold one, too.
    starts = [hit.start(1) for hit in _QUANT.finditer(stem)]
    return stem[starts[-1] :] if starts else stem
