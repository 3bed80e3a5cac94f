"""What tuning found, kept for later runs: one JSON file a profile, in the user's own folder.

A profile holds for the file, machine, build and settings that it was made with, and for nothing else.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import platformdirs

from pyclover.engine.blocks import BlockParams
from pyclover.errors import UsageError, shortened
from pyclover.files.gate import ValidatedModel
from pyclover.tuning import identity
from pyclover.tuning.candidate import Candidate
from pyclover.tuning.identity import Key, key_of

FORMAT = 1
MAX_BYTES = 1 << 20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
RESERVED = ("auto", "none")


@dataclass(frozen=True, kw_only=True)
class Profile:
    """Attributes:
    name: of the profile. key: what it holds for. model: path of the file. created: UTC, ISO 8601.
    machine, build: the facts behind the key, for people.
    candidate: what `tune` recommends; None before it ran.
    figures: its ratio to plain decoding and the reasons.
    block_params: what `tune --calibrate` chose, by name; {}: nothing but what the file says.
    calibration: how sure that is.
    n_bytes: of the files, to find quickly what cannot match.
    """

    name: str
    key: Key
    model: str
    n_bytes: int
    created: str
    machine: Mapping[str, Any] = field(default_factory=dict)
    build: Mapping[str, Any] = field(default_factory=dict)
    candidate: Candidate | None = None
    figures: Mapping[str, Any] = field(default_factory=dict)
    block_params: Mapping[str, Any] = field(default_factory=dict)
    calibration: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        candidate = None if self.candidate is None else self.candidate.to_dict()
        return {"format": FORMAT, **values, "key": self.key.to_dict(), "candidate": candidate}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Profile:
        """Raises KeyError, TypeError or ValueError for what is no profile of this format."""
        if values["format"] != FORMAT:
            raise ValueError(f"format {values['format']}")
        known = {f.name: values[f.name] for f in fields(cls)}
        candidate = known["candidate"]
        known["candidate"] = None if candidate is None else Candidate.from_dict(candidate)
        known["key"] = Key.from_dict(known["key"])
        for name in ("machine", "build", "figures", "block_params", "calibration"):
            if not isinstance(known[name], Mapping):
                raise TypeError(name)
        params_with(BlockParams(), known["block_params"])
        return cls(**known)


def params_with(params: BlockParams, changes: Mapping[str, Any]) -> BlockParams:
    """Block parameters with what a profile changes; raises TypeError for a name that there is not."""
    return replace(params, **changes)


def folder() -> Path:
    """Where profiles are kept."""
    return platformdirs.user_config_path("pyclover", appauthor=False) / "profiles"


def check_name(name: str) -> str:
    """Raises UsageError for what is no name of a profile."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name in RESERVED:
        raise UsageError(
            f"profile is {shortened(name)}: a name has letters, digits, dots, dashes and underscores, and is neither "
            "auto nor none", option="profile",
        )  # fmt: skip
    return name


def all_profiles() -> list[Profile]:
    """All that can be read, newest first."""
    return sorted(_readable(), key=lambda p: p.created, reverse=True)


def unreadable() -> list[Path]:
    """Files in the folder that are no profile of this version."""
    good = {p.name for p in _readable()}
    return [path for path in _files() if path.stem not in good]


def _files() -> list[Path]:
    return sorted(folder().glob("*.json"))


def _readable() -> Iterator[Profile]:
    for path in _files():
        try:
            if path.stat().st_size <= MAX_BYTES:
                profile = Profile.from_dict(json.loads(path.read_bytes()))
                if profile.name == path.stem:
                    yield profile
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            continue


def named(name: str) -> Profile:
    """The profile of that name.

    Raises:
        UsageError: there is none.
    """
    found = next((p for p in _readable() if p.name == name), None)
    if found is None:
        raise UsageError(
            f"there is no profile {shortened(name)}: `clover-run profile list` shows all", option="profile"
        )
    return found


def matching(model: ValidatedModel, settings: Mapping[str, Any]) -> Profile | None:
    """The newest profile that holds for a model with these settings, here; None when there is none.

    Raises:
        InvalidFileError: the model cannot be read any more.
    """
    n_bytes = sum(header.file_bytes for header in model.headers)
    near = [p for p in all_profiles() if p.n_bytes == n_bytes]
    if not near:
        return None
    key = key_of(model, settings)
    return next((p for p in near if p.key == key), None)


def save(
    model: ValidatedModel, settings: Mapping[str, Any], *, name: str | None = None, **content: Any
) -> tuple[Profile, Path]:
    """Keeps what was found for a model; what an earlier profile of the same key holds besides stays.

    Args:
        name: None: that of the earlier one, or the file's with a few digits of the key.
        content: attributes of `Profile`: candidate and figures, or block_params and calibration.

    Raises:
        UsageError: a name that cannot be. OSError: the file cannot be written.
    """
    key = key_of(model, settings)
    earlier = next((p for p in all_profiles() if p.key == key), None)
    if name is not None:
        check_name(name)
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", model.first_path.stem).strip(".-_")[:60] or "model"
    digits = hashlib.sha256(json.dumps(key.to_dict(), sort_keys=True).encode()).hexdigest()[:8]
    base = Profile(
        name=name or (earlier.name if earlier else f"{stem}-{digits}"), key=key, model=str(model.first_path.absolute()),
        n_bytes=sum(header.file_bytes for header in model.headers), created="", machine=identity.machine(),
        build=identity.build(),
    )  # fmt: skip
    kept: dict[str, Any] = {}
    if earlier is not None:
        names = ("candidate", "figures", "block_params", "calibration")
        kept = {n: getattr(earlier, n) for n in names}
    now = datetime.now(timezone.utc).isoformat(timespec="microseconds")
    changed = replace(base, **{**kept, **content}, created=now)
    profile = Profile.from_dict(json.loads(json.dumps(changed.to_dict())))  # as it will be read
    return profile, _write(profile)


def _write(profile: Profile) -> Path:
    path = folder() / f"{profile.name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{os.getpid()}-{os.urandom(8).hex()}.tmp")
    try:
        with draft.open("x", encoding="ascii") as file:
            json.dump(profile.to_dict(), file, indent=1)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    return path


def remove(name: str) -> None:
    """Deletes a profile, also one that cannot be read.

    Raises:
        UsageError: there is none of that name. OSError: it cannot be deleted.
    """
    path = folder() / f"{check_name(name)}.json"
    try:
        path.unlink()
    except FileNotFoundError:
        raise UsageError(
            f"there is no profile {shortened(name)}: `clover-run profile list` shows all", option="profile"
        ) from None


def figures_of(recommendation: Any) -> dict[str, Any]:
    """What a profile keeps of a recommendation."""
    ratio = recommendation.ratio
    return {"label": recommendation.label, "ratio": None if ratio is None else asdict(ratio),
            "reasons": list(recommendation.reasons)}  # fmt: skip
