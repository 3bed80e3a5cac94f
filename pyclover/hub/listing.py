"""What a repository offers: its model files grouped into sets, one set a quantization."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pyclover.errors import IncompleteSetError, ModelNotFoundError
from pyclover.files.shard_names import parse_shard_name, shard_name
from pyclover.hub.names import quant_of

SAFETENSORS = "safetensors"
MAX_SHARDS = 1000  # far above any set; the names of the missing ones cost memory, and the count is the hub's word
DEFAULT_QUANT = "Q4_K_M"  # what llama.cpp takes, too, when a name leaves it open

# Files of a Transformers checkpoint that its conversion reads.
_CHECKPOINT_SUFFIXES = (".safetensors", ".json", ".jinja", ".txt", ".model")
_WEIGHTS = re.compile(r"(.+)-\d{5}-of-(\d{5})\.safetensors")
# GGUF files that are no model by themselves.
_NO_MODELS = ("mmproj", "imatrix")


@dataclass(frozen=True)
class HubFile:
    """A file of a repository.

    Attributes:
        name: path inside the repository, with slashes.
        sha256, git_sha1: what its content must have, in hexadecimal; None when the hub does not say.
    """

    name: str
    size: int
    sha256: str | None = None
    git_sha1: str | None = None

    @property
    def base(self) -> str:
        """The name without folders: that of the file on disk."""
        return self.name.rsplit("/", 1)[-1]


@dataclass(frozen=True)
class Offer:
    """A set of files that belong together.

    Attributes:
        quant: how to ask for it, such as Q4_K_M.
        files: in order, the shards of a split file one after the other.
        missing: names of shards that the repository lacks.
    """

    repo: str
    quant: str
    files: tuple[HubFile, ...]
    missing: tuple[str, ...] = ()

    @property
    def n_bytes(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def key(self) -> str:
        """Name of the folder for exactly these files: another content has another key."""
        lines = "".join(
            f"{file.base}\0{file.size}\0{file.sha256 or file.git_sha1}\n" for file in sorted(self.files, key=_base)
        )
        readable = "".join(c if c.isalnum() or c in "._-" else "_" for c in self.quant)[:60].strip(".") or "files"
        return f"{readable}-{hashlib.sha256(lines.encode()).hexdigest()[:16]}"


@dataclass(frozen=True)
class Listing:
    """A repository at one commit."""

    repo: str
    commit: str
    files: tuple[HubFile, ...]

    def offers(self) -> tuple[Offer, ...]:
        """The sets, largest first."""
        return offers_of(self.repo, self.files)


def _base(file: HubFile) -> str:
    return file.base


def is_wanted(name: str) -> bool:
    """Whether a file can be part of a set, by its name alone."""
    hidden = name.rsplit("/", 1)[-1].startswith(".")  # such names are our own, beside the files
    return not hidden and name.lower().endswith((".gguf", *_CHECKPOINT_SUFFIXES))


def offers_of(repo: str, files: Iterable[HubFile]) -> tuple[Offer, ...]:
    """Groups files into sets, largest first; two sets with one quantization are told apart by their whole names."""
    files = tuple(files)
    sets: dict[tuple[str, int], dict[str, HubFile]] = {}  # by the name without number and suffix, and the shard count
    for file in files:
        if file.name.lower().endswith(".gguf") and not any(word in file.base.lower() for word in _NO_MODELS):
            shard = parse_shard_name(file.name)
            if shard is not None and shard[2] > MAX_SHARDS:
                continue
            key = (file.name[: -len(".gguf")], 0) if shard is None else (shard[0], shard[2])
            sets.setdefault(key, {})[file.name] = file
    stems = Counter(stem for stem, _ in sets)
    quants = Counter(quant_of(stem.rsplit("/", 1)[-1]).lower() for stem, _ in sets)
    result = []
    for (stem, count), present in sets.items():
        quant = quant_of(stem.rsplit("/", 1)[-1])
        if quants[quant.lower()] > 1:
            quant = stem if stems[stem] == 1 else f"{stem}-of-{count}"
        names = [shard_name(stem, i, count) for i in range(count)] if count else list(present)
        ordered = tuple(present[name] for name in names if name in present)
        result.append(Offer(repo, quant, ordered, tuple(name for name in names if name not in present)))
    checkpoint = tuple(f for f in files if "/" not in f.name and f.name.lower().endswith(_CHECKPOINT_SUFFIXES))
    if any(file.name.lower().endswith(".safetensors") for file in checkpoint):
        result.append(Offer(repo, SAFETENSORS, checkpoint, _missing_weights(checkpoint)))
    return tuple(sorted(result, key=lambda offer: (-offer.n_bytes, offer.quant)))


def _missing_weights(files: Iterable[HubFile]) -> tuple[str, ...]:
    """Weight files of a checkpoint that the others announce by their names."""
    names = {file.name for file in files}
    hits = [hit for hit in map(_WEIGHTS.fullmatch, names) if hit is not None and int(hit[2]) <= MAX_SHARDS]
    wanted = {f"{hit[1]}-{i:05d}-of-{hit[2]}.safetensors" for hit in hits for i in range(1, int(hit[2]) + 1)}
    return tuple(sorted(wanted - names))


def models_of(offers: Iterable[Offer]) -> list[Offer]:
    """What a model can be chosen from: GGUF files, original weights only where there is nothing else."""
    offers = list(offers)
    return [offer for offer in offers if offer.quant != SAFETENSORS] or offers


def shown(offers: Iterable[Offer]) -> str:
    """Names and sizes of sets for a message."""
    return ", ".join(f"{offer.quant} ({size(offer.n_bytes)})" for offer in offers)


def size(n_bytes: int) -> str:
    """A number of bytes in a message, in GiB, below a tenth of one in smaller units."""
    if n_bytes >= 2**30 // 10:
        return f"{n_bytes / 2**30:.2f} GiB"
    return f"{n_bytes / 2**20:.2f} MiB" if n_bytes >= 2**20 // 10 else f"{n_bytes} bytes"


def choose(repo: str, offers: Sequence[Offer], quant: str | None) -> Offer:
    """One of a repository's sets.

    Args:
        quant: its name; None: the only one, else Q4_K_M.

    Raises:
        ModelNotFoundError: it has no such set, or the choice must be made by the user.
        IncompleteSetError: the set is not whole.
    """
    if not offers:
        raise ModelNotFoundError(f"{repo} holds no GGUF file of a language model: choose another repository", path=repo)
    if quant is not None:
        named = [offer for offer in offers if offer.quant.lower() == quant.lower()]
        if not named:
            raise ModelNotFoundError(f"{repo} offers no {quant}; there are {shown(offers)}", path=repo)
        return _checked(named[0])
    models = models_of(offers)
    usual = [offer for offer in models if offer.quant.lower() == DEFAULT_QUANT.lower()]
    if len(models) > 1 and not usual:
        raise ModelNotFoundError(
            f"{repo} offers several files: say which, as in {repo}:{models[0].quant}; there are {shown(offers)}",
            path=repo,
        )
    return _checked(models[0] if len(models) == 1 else usual[0])


def _checked(offer: Offer) -> Offer:
    if offer.missing:
        count, are = len(offer.files) + len(offer.missing), "is" if len(offer.missing) == 1 else "are"
        names = ", ".join(offer.missing[:20]) + (", …" if len(offer.missing) > 20 else "")
        raise IncompleteSetError(
            f"{offer.repo}:{offer.quant}: {len(offer.missing)} of the set's {count} shards {are} missing from the "
            f"repository: {names}; nothing was downloaded, choose another one",
            path=offer.repo, missing=offer.missing,
        )  # fmt: skip
    return offer
