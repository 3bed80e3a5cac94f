"""Old sets of the cache: which are named, what goes, what stays."""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from fake_hub import FakeHub, Fault, fake_hub
from filelock import FileLock
from huggingface_hub import constants

from pyclover.cli import download_list
from pyclover.cli.main import cli
from pyclover.errors import DownloadError, UsageError
from pyclover.hub.download import Download, download
from pyclover.hub.patience import Retry
from pyclover.hub.prune import find_old, remove

REPO = "owner/Clover-GGUF"
NAME = "C-Q4_K_M.gguf"
OLD, NEW = (random.Random(seed).randbytes(5000 + seed) for seed in (1, 2))


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_TOKEN", "HF_ENDPOINT", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYCLOVER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PYCLOVER_CONFIG", str(tmp_path / "config"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hf"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with fake_hub() as running:
        running.add(REPO, {NAME: OLD, "C-Q8_0.gguf": b"eight"})
        yield running


@pytest.fixture
def get(hub: FakeHub) -> Callable[..., Download]:
    def get(name: str = f"{REPO}:Q4_K_M", **how: Any) -> Download:
        return download(name, endpoint=hub.url, token=False, retry=Retry(n_retries=0), **how)

    return get


@pytest.fixture
def two(hub: FakeHub, get: Callable[..., Download]) -> tuple[Download, Download]:
    """Two versions of the same file, one after the other on main."""
    old = get()
    hub.add(REPO, {NAME: NEW, "C-Q8_0.gguf": b"eight"})
    return old, get()


def run(*args: object) -> Any:
    return CliRunner().invoke(cli, ["download", "--prune", *map(str, args)])


def test_the_older_of_two_goes(two: tuple[Download, Download], get: Callable[..., Download]) -> None:
    old, new = two
    get(f"{REPO}:Q8_0")  # another quantization has nothing to do with it
    (one,) = find_old()
    assert (one.repo, one.quant, one.folder) == (REPO, "Q4_K_M", old.path.parent)
    assert (one.files, one.stays, one.n_bytes, one.in_use) == ((old.path,), (), len(OLD), "")
    assert old.path.exists()  # so far it was only named
    assert remove([one]) == (len(OLD), ())
    assert not old.path.parent.exists()
    assert new.path.read_bytes() == NEW
    assert find_old() == ()
    assert get(offline=True).paths == new.paths


def test_nothing_goes_while_the_newer_one_is_not_whole(
    hub: FakeHub, get: Callable[..., Download], two: tuple[Download, Download]
) -> None:
    old, new = two
    new.path.write_bytes(b"changed")
    assert find_old() == ()
    new.path.unlink()
    assert find_old() == ()
    hub.faults = [Fault(end_after=10)]
    with pytest.raises(DownloadError):
        get()
    assert find_old() == ()
    assert get().path.read_bytes() == NEW
    assert [one.folder for one in find_old()] == [old.path.parent]


def test_a_set_that_another_branch_or_a_commit_alone_leads_to_stays(hub: FakeHub, get: Callable[..., Download]) -> None:
    commit = hub.repos[REPO].commit
    pinned = get(revision=commit)
    hub.add(REPO, {NAME: NEW})
    get()
    assert find_old() == ()
    assert get(revision=commit, offline=True).paths == pinned.paths


def test_a_stopped_download_of_an_older_version(hub: FakeHub, get: Callable[..., Download], tmp_path: Path) -> None:
    hub.faults = [Fault(end_after=1000)]
    with pytest.raises(DownloadError):
        get()
    (part,) = (tmp_path / "cache").rglob("*.part")
    assert find_old() == ()  # it may be continued
    hub.add(REPO, {NAME: NEW})
    new = get()
    for path in (part, part.parent, *part.parent.iterdir()):
        os.utime(path, (1, 1))
    (one,) = find_old()
    assert (one.folder, one.quant, one.files, one.n_bytes) == (part.parent, "Q4_K_M", (part,), 1000)
    assert remove([one]) == (1000, ())
    assert not part.parent.exists()
    assert new.path.read_bytes() == NEW


def test_what_others_put_there_or_changed_stays(two: tuple[Download, Download]) -> None:
    old, _ = two
    mine = old.path.with_name("C-Q4_K_M-repaired.gguf")
    mine.write_bytes(b"mine")
    (one,) = find_old()
    assert (one.files, one.stays) == ((old.path,), (mine,))
    old.path.write_bytes(OLD[:-1] + b"!")
    (one,) = find_old()
    assert (one.files, set(one.stays)) == ((), {mine, old.path})
    assert remove([one]) == (0, ())
    assert find_old() == ()  # what is left is not for us to name again and again
    assert mine.read_bytes() == b"mine"
    assert old.path.read_bytes() == OLD[:-1] + b"!"


def test_a_set_that_is_in_use_stays(two: tuple[Download, Download]) -> None:
    old, _ = two
    with old.path.open("rb"):
        (one,) = find_old()
        assert one.in_use == f"{NAME} is open in a running program"
        assert remove([one]) == (0, ())
    with FileLock(old.path.parent / ".lock"):
        (one,) = find_old()
        assert one.in_use == "a download is writing there"
        assert remove([one]) == (0, ())
    assert old.path.read_bytes() == OLD


def test_what_happens_between_the_question_and_the_answer(two: tuple[Download, Download]) -> None:
    old, _ = two
    named = find_old()
    with old.path.open("rb"):
        freed, (sentence,) = remove(named)
    assert (freed, old.path.read_bytes()) == (0, OLD)
    assert sentence == f"{old.path.parent}: not removed as a whole: {NAME} is open in a running program"
    old.path.write_bytes(OLD[:-1] + b"!")
    assert remove(named) == (0, ())
    assert old.path.read_bytes() == OLD[:-1] + b"!"


@pytest.mark.skipif(sys.platform != "linux", reason="maps of processes")
def test_a_file_that_is_mapped_is_in_use(two: tuple[Download, Download]) -> None:
    import mmap

    old, _ = two
    with old.path.open("rb") as file:
        view = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    assert find_old()[0].in_use
    view.close()
    assert not find_old()[0].in_use


def test_names(two: tuple[Download, Download]) -> None:
    assert len(find_old(REPO)) == len(find_old(f"{REPO}:q4_k_m")) == 1
    assert find_old(f"{REPO}:Q8_0") == find_old("owner/other") == ()
    with pytest.raises(UsageError, match="auto is a choice"):
        find_old("auto")


def test_files_of_hugging_faces_cache_are_never_touched(
    hub: FakeHub, get: Callable[..., Download], tmp_path: Path
) -> None:
    import hashlib

    folder = tmp_path / "hf" / "models--owner--Clover-GGUF"
    commit = hub.repos[REPO].commit
    (folder / "snapshots" / commit).mkdir(parents=True)
    (folder / "blobs").mkdir()
    blob = folder / "blobs" / hashlib.sha256(OLD).hexdigest()
    blob.write_bytes(OLD)
    (folder / "snapshots" / commit / NAME).symlink_to(blob)
    get()
    hub.add(REPO, {NAME: NEW})
    get()
    (one,) = find_old()
    assert (one.files, one.n_bytes) == ((), 0)
    remove([one])
    assert blob.read_bytes() == OLD
    assert not one.folder.exists()


# ---- the command -------------------------------------------------------------------------------------------------


def test_without_yes_nothing_goes(two: tuple[Download, Download]) -> None:
    old, _ = two
    done = run()
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[0].split() == ["repository", "quant", "size", "folder"]
    assert done.stdout.splitlines()[1].split() == [REPO, "Q4_K_M", "4.9", "KiB", str(old.path.parent)]
    assert done.stderr == "nothing was removed; --yes removes it\n"
    assert json.loads(run("--json").stdout)["removed"] is False
    assert old.path.exists()
    with old.path.open("rb"):
        assert "stays: C-Q4_K_M.gguf is open in a running program" in run("--yes").stdout
    assert old.path.exists()


def test_yes_removes(two: tuple[Download, Download]) -> None:
    old, new = two
    done = run(REPO, "--yes")
    assert (done.exit_code, done.stderr) == (0, "removed: 4.9 KiB are free again\n")
    assert not old.path.exists()
    assert new.path.exists()
    done = run("--yes", "--json")
    assert json.loads(done.stdout) == {"old": [], "removed": False, "freed_bytes": 0}
    assert run().stderr == "nothing to remove: no set has a newer one in its place.\n"


@pytest.mark.parametrize(("answer", "gone"), [("y\n", True), ("n\n", False), ("\n", False)])
def test_the_question(answer: str, gone: bool, two: tuple[Download, Download], monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal:
        @staticmethod
        def isatty() -> bool:
            return True

    class Sys:
        stdin = Terminal

    monkeypatch.setattr(download_list, "sys", Sys)
    done = CliRunner().invoke(cli, ["download", "--prune"], input=answer)
    assert "Remove 1 old set, 4.9 KiB? [y/N]" in done.stderr
    assert done.exit_code == 0
    assert two[0].path.exists() is not gone


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--prune", "--list"), "exclude each other"),
        (("--yes", REPO), "--yes belongs to --prune"),
        (("--prune", "--revision", "v1"), "--revision has no meaning with --prune"),
        (("--prune", "--offline"), "--offline has no meaning with --prune"),
        (("--list", "--cache-dir", "x"), "--cache-dir has no meaning with --list without NAME"),
        (("--list", "--retries", "3"), "--retries has no meaning with --list without NAME"),
        (("--list", "--offline", "--quant", "Q4_0"), "--quant has no meaning with --list --offline without NAME"),
    ],
)
def test_flags_that_mean_nothing_are_refused(args: tuple[str, ...], words: str) -> None:
    done = CliRunner().invoke(cli, ["download", *args])
    assert (done.exit_code, done.stdout) == (2, "")
    assert words in done.stderr


# ---- what is here ------------------------------------------------------------------------------------------------


def test_the_list_of_what_is_here(
    hub: FakeHub, get: Callable[..., Download], two: tuple[Download, Download], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of all repositories, with the revision by which each set is found offline."""
    old, new = two
    hub.add("owner/Another", {"D-Q8_0.gguf": b"d"})
    get("owner/Another", revision=hub.repos["owner/Another"].commit)
    done = CliRunner().invoke(cli, ["download", "--list", "--offline"])
    assert done.exit_code == 0, done.output
    rows = [line.split() for line in done.stdout.splitlines()]
    assert rows[0] == ["repository", "quant", "size", "files", "revision", "on", "this", "machine"]
    assert rows[1:] == [
        ["owner/Another", "Q8_0", "1", "B", "1", hub.repos["owner/Another"].commit, "here"],
        [REPO, "Q4_K_M", "4.9", "KiB", "1", "main", "here"],
        [REPO, "Q4_K_M", "4.9", "KiB", "1", old.revision, "here"],
    ]
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert CliRunner().invoke(cli, ["download", "--list"]).stdout == done.stdout
    here = json.loads(CliRunner().invoke(cli, ["download", "--list", "--json"]).stdout)["repositories"]
    assert [offer["revisions"] for offer in here[REPO]] == [["main"], [old.revision]]
    new.path.unlink()
    assert "changed or gone" in CliRunner().invoke(cli, ["download", "--list"]).stdout


def test_nothing_is_here(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["download", "--list", "--offline", "--cache-dir", str(tmp_path / "none")])
    assert (done.exit_code, done.stdout) == (0, "")
    assert done.stderr == "nothing was downloaded to this machine yet.\n"
