"""Files that Hugging Face's own cache holds already: they are used where they lie, after one check.

Its layout: `models--owner--repo/snapshots/<commit>/<name>`, links to `blobs/<checksum>`, and `refs/<branch>` with a
commit.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

from huggingface_hub import constants

from pyclover.errors import CloverError
from pyclover.hub.listing import HubFile, Listing, Offer, is_wanted
from pyclover.hub.names import check_file_name, is_commit


def folder_of(repo: str) -> Path:
    """A repository's folder in that cache; it need not be there."""
    return Path(constants.HF_HUB_CACHE) / f"models--{repo.replace('/', '--')}"


def _snapshots(repo: str) -> Iterator[Path]:
    with contextlib.suppress(OSError):
        yield from sorted((folder_of(repo) / "snapshots").iterdir())


def find(offer: Offer) -> list[Path]:
    """The set's files, in order, from one snapshot, where all have the right size; [] when there is none."""
    for snapshot in _snapshots(offer.repo):
        paths = [snapshot.joinpath(*file.name.split("/")) for file in offer.files]
        with contextlib.suppress(OSError):
            if [path.stat().st_size for path in paths] == [file.size for file in offer.files]:
                return paths
    return []


def revisions(repo: str) -> list[str]:
    """Branches and tags that the cache knows of a repository, then the commits that none of them means."""
    refs = folder_of(repo) / "refs"
    named: dict[str, str] = {}
    with contextlib.suppress(OSError, ValueError):
        for path in sorted(refs.rglob("*")):
            if path.is_file():
                named[path.relative_to(refs).as_posix()] = path.read_text(encoding="ascii").strip()
    commits = [path.name for path in _snapshots(repo) if is_commit(path.name)]
    return [*named, *(commit for commit in commits if commit not in named.values())]


def listing(repo: str, revision: str) -> Listing | None:
    """What the cache holds of a revision, without asking the hub; the name of a blob is the checksum it must have.

    None when it knows no such revision.
    """
    commit = revision
    if not is_commit(revision):
        try:
            commit = (folder_of(repo) / "refs" / revision).read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            return None
    if not is_commit(commit):
        return None
    snapshot = folder_of(repo) / "snapshots" / commit
    files = []
    with contextlib.suppress(OSError):
        for path in sorted(snapshot.rglob("*")):
            name = path.relative_to(snapshot).as_posix()
            with contextlib.suppress(OSError, CloverError):
                blob = path.resolve(strict=True)
                if not blob.is_file() or not is_wanted(name):
                    continue
                sha256 = blob.name if re.fullmatch(r"[0-9a-f]{64}", blob.name) else None
                git_sha1 = blob.name if re.fullmatch(r"[0-9a-f]{40}", blob.name) else None
                if sha256 or git_sha1:
                    files.append(HubFile(check_file_name(name, repo), blob.stat().st_size, sha256, git_sha1))
    return Listing(repo, commit, tuple(files)) if files else None
