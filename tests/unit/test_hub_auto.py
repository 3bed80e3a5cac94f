"""What "auto" chooses: sets that are here against sets that would have to be downloaded."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from pyclover.errors import DownloadError, ModelNotFoundError
from pyclover.hub import here, store
from pyclover.hub.auto import Auto, Judge
from pyclover.hub.client import Hub
from pyclover.hub.here import Found
from pyclover.hub.listing import HubFile, Listing, Offer

COMMIT, NEXT = "a" * 40, "b" * 40


class Listings(Hub):
    """A hub that only lists; sizes by repository and quantization."""

    def __init__(self, repos: dict[str, dict[str, int]], **how: Any) -> None:
        super().__init__(endpoint="http://127.0.0.1:1", token=False, **how)
        self.repos = repos
        self.commit = COMMIT
        self.fails = ""
        self.asked: list[str] = []

    def less_patient(self) -> Hub:
        return self

    def list(self, repo: str, revision: str) -> Listing:
        self.asked.append(repo)
        if self.fails:
            raise DownloadError("no answer", reason=self.fails)
        if repo not in self.repos:
            raise ModelNotFoundError(f"{repo} is not there")
        return Listing(repo, self.commit, tuple(file(quant, n) for quant, n in self.repos[repo].items()))


def file(quant: str, size: int) -> HubFile:
    return HubFile(f"C-{quant}.gguf", size, hashlib.sha256(f"{quant}{size}".encode()).hexdigest())


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> store.Store:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hf"))
    return store.Store(tmp_path / "cache")


def bring(place: store.Store, repo: str, quant: str, size: int, commit: str = COMMIT) -> Path:
    """A set as a download leaves it; its file has no content, only a size."""
    one = file(quant, size)
    offer = Offer(repo, quant, (one,))
    folder = place.folder(offer)
    folder.mkdir(parents=True)
    with (folder / one.name).open("wb") as out:
        out.truncate(size)
    record = store.seen(folder, offer, commit, "main", {})
    kept = store.Kept(one.name, one.name, size, one.sha256 or "", "", (folder / one.name).stat().st_mtime_ns)
    store.write_record(folder, store.Record(**{**vars(record), "kept": {one.name: kept}}))
    return folder / one.name


def limit(now: int, at_rest: int | None = None, *, first: Iterable[str] = ()) -> Judge:
    """What has at most so many bytes fits; some come first."""
    names = tuple(first)
    return Judge(
        lambda offer: offer.n_bytes <= now,
        lambda offer: offer.n_bytes <= (now if at_rest is None else at_rest),
        (lambda offer: offer.quant in names) if names else None,
    )


def choose(hub: Hub, place: store.Store, judge: Judge, *repos: str, **how: Any) -> Found:
    return Auto(hub, place, repos or ("o/one",), "main", judge, **how).choose()


SIZES = {"Q8_0": 3526, "Q4_K_M": 2142, "Q4_0": 1824, "Q2_K": 1200}  # as the official files' sizes, a million times less


def test_nothing_is_here(place: store.Store) -> None:
    hub = Listings({"o/one": SIZES})
    found = choose(hub, place, limit(2500))
    assert (found.offer.quant, found.online, found.why) == ("Q4_K_M", True, "it is the best that fits")
    with pytest.raises(ModelNotFoundError, match="nothing that fits this machine: Q8_0"):
        choose(hub, place, limit(1199))


@pytest.mark.parametrize(
    ("here_is", "now", "expected", "why"),
    [
        # 2142 is 1.17 times 1824: not worth another download, and said
        ("Q4_0", 2500, "Q4_0", "it is here and fits; o/one:Q4_K_M (2142 bytes) would fit, too, and is not much better"),
        ("Q4_K_M", 2500, "Q4_K_M", "it is here and fits"),
        # 3526 is 1.65 times 2142
        ("Q4_K_M", 4000, "Q8_0", "it is the best that fits, and clearly better than o/one:Q4_K_M"),
        ("Q2_K", 2500, "Q4_K_M", "it is the best that fits, and clearly better than o/one:Q2_K"),
    ],
)  # fmt: skip
def test_what_is_here_comes_first_unless_another_is_clearly_better(
    here_is: str, now: int, expected: str, why: str, place: store.Store
) -> None:
    bring(place, "o/one", here_is, SIZES[here_is])
    found = choose(Listings({"o/one": SIZES}), place, limit(now))
    assert (found.offer.quant, found.warnings) == (expected, ())
    assert found.why.startswith(why)
    assert found.online  # the hub still has it, so that it counts as seen now


def test_the_memory_of_the_moment_brings_no_second_download(place: store.Store) -> None:
    """22 of 28 GiB at rest hold Q4_K_M; with 19 free, Q4_0 would fit, and is not fetched for that."""
    bring(place, "o/one", "Q4_K_M", 2142)
    hub = Listings({"o/one": SIZES})
    for now, warns in ((2800, False), (1900, True), (2800, False), (100, True)):
        found = choose(hub, place, limit(now, 2800))
        assert found.offer.quant == "Q4_K_M"
        assert bool(found.warnings) is warns
    (warning,) = choose(hub, place, limit(1900, 2800)).warnings
    assert "not into the memory that is free now" in warning
    assert "o/one:Q4_0" in warning
    # what does not even fit at rest is nothing to wait for
    assert choose(hub, place, limit(1900, 2000)).offer.quant == "Q4_0"


def test_a_smaller_one_that_is_here_helps_in_a_busy_moment(place: store.Store) -> None:
    bring(place, "o/one", "Q4_K_M", 2142)
    bring(place, "o/one", "Q2_K", 1200)
    hub = Listings({"o/one": SIZES})
    assert choose(hub, place, limit(2800)).offer.quant == "Q4_K_M"
    assert choose(hub, place, limit(1500, 2800)).offer.quant == "Q2_K"


def test_another_repository_of_the_catalogue(place: store.Store) -> None:
    hub = Listings({"o/one": {"Q8_0": 3526}, "o/two": {"Q4_0": 1824}})
    bring(place, "o/two", "Q4_0", 1824)
    assert choose(hub, place, limit(2000), "o/one", "o/two").offer.repo == "o/two"
    assert choose(hub, place, limit(4000), "o/one", "o/two").offer.quant == "Q8_0"
    hub.repos["o/one"]["Q4_K_M"] = 2142
    found = choose(hub, place, limit(2500), "o/one", "o/two")
    assert (found.offer.repo, found.offer.quant) == ("o/two", "Q4_0")


def test_what_a_gpu_holds_as_a_whole(place: store.Store) -> None:
    hub = Listings({"o/one": SIZES, "o/two": {"Q1": 900}})
    # nothing here: the largest of those that come first, also of a later repository
    assert choose(hub, place, limit(4000, first=("Q4_0", "Q2_K"))).offer.quant == "Q4_0"
    assert choose(hub, place, limit(4000, first=("Q1",)), "o/one", "o/two").offer.quant == "Q1"
    bring(place, "o/one", "Q8_0", 3526)
    found = choose(hub, place, limit(4000, first=("Q4_0", "Q2_K")))
    assert (found.offer.quant, "clearly better" in found.why) == ("Q4_0", True)
    bring(place, "o/one", "Q4_0", 1824)
    assert choose(hub, place, limit(4000, first=("Q4_0", "Q2_K"))).why == "it is here and fits"
    # and never the other way round, be it ever so large
    assert choose(hub, place, limit(9000, first=("Q4_0",))).offer.quant == "Q4_0"


def test_another_version_on_the_hub_is_told_of(place: store.Store) -> None:
    path = bring(place, "o/one", "Q4_K_M", 2142)
    for now in (2500, 2145):  # also where that would not fit any more
        found = choose(Listings({"o/one": {"Q4_K_M": 2150, "Q2_K": 1200}}), place, limit(now))
        assert (found.folder, found.online) == (path.parent, False)
        assert found.why == "it is here and fits; the hub has another version of it now, o/one:Q4_K_M asks for that"


def test_a_repository_that_is_gone_does_not_hide_what_is_too_large(place: store.Store) -> None:
    hub = Listings({"o/one": SIZES})
    with pytest.raises(ModelNotFoundError, match=r"o/one offers nothing that fits this machine: Q8_0 \(3526 bytes\), "):
        choose(hub, place, limit(10), "o/gone", "o/one", "o/gone2")
    with pytest.raises(ModelNotFoundError, match="o/gone2"):
        choose(hub, place, limit(10), "o/gone", "o/gone2")


def test_a_set_that_was_touched_does_not_count_as_here(place: store.Store) -> None:
    bring(place, "o/one", "Q4_0", 1824).unlink()
    assert choose(Listings({"o/one": SIZES}), place, limit(2500)).offer.quant == "Q4_K_M"


def test_without_a_hub(place: store.Store) -> None:
    hub = Listings({"o/one": SIZES})
    hub.fails = "network"
    with pytest.raises(DownloadError, match="no answer"):
        choose(hub, place, limit(2500), "o/one", "o/two")
    bring(place, "o/two", "Q2_K", 1200)
    found = choose(hub, place, limit(2500), "o/one", "o/two")
    assert (found.offer.repo, found.online) == ("o/two", False)
    assert found.warnings == ("no answer; what was downloaded earlier is used",)
    hub.asked.clear()
    offline = Listings({}, offline=True)
    assert choose(offline, place, limit(2500), "o/one", "o/two").offer.repo == "o/two"
    assert offline.asked == []
    with pytest.raises(DownloadError, match="offline mode"):
        choose(offline, place, limit(1000), "o/one", "o/two")


def test_the_only_set_of_a_repository_is_meant_whether_it_fits_or_not(place: store.Store) -> None:
    hub = Listings({"o/one": {"Q8_0": 3526}})
    assert choose(hub, place, limit(10), only_one=True).offer.quant == "Q8_0"
    bring(place, "o/one", "Q8_0", 3526)
    found = choose(Listings({}, offline=True), place, limit(10), only_one=True)
    assert (found.offer.quant, found.warnings) == ("Q8_0", ())


def test_sets_that_are_here_by_any_revision(place: store.Store) -> None:
    """Of one branch, the set that was seen last is found by the branch, the earlier one by its commit."""
    bring(place, "o/one", "Q4_0", 1824)
    bring(place, "o/one", "Q4_0", 1825, NEXT)
    found = [(item.offer.n_bytes, revisions) for item, revisions in here.all_sets(place, "o/one")]
    assert found == [(1825, ("main",)), (1824, (COMMIT,))]
    assert here.repositories(place) == ["o/one"]
