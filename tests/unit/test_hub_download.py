"""Downloads from a hub on 127.0.0.1 that fails in every way: a file is right or it is not there."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import random
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_hub import FakeHub, Fault, Repo, fake_hub
from huggingface_hub import constants

import pyclover
from pyclover.errors import CancelledError, DownloadError, IncompleteSetError, ModelNotFoundError, UsageError
from pyclover.hub import auto, transfer
from pyclover.hub.client import PUBLIC, Hub
from pyclover.hub.download import Download, download
from pyclover.hub.offers import list_offers
from pyclover.hub.patience import Retry
from pyclover.hub.progress import DownloadProgress

REPO = "owner/Clover-GGUF"
NAME = "C-Q4_K_M.gguf"
ONCE = Retry(n_retries=0, timeout_s=20)
QUICK = Retry(n_retries=3, wait_s=0, timeout_s=20)


def noise(n_bytes: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(n_bytes)


DATA = noise(200_000)


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the machine's own settings, tokens and caches."""
    for name in ("HF_TOKEN", "HF_ENDPOINT", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_OIDC_RESOURCE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYCLOVER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PYCLOVER_CONFIG", str(tmp_path / "config"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hf"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with fake_hub() as running:
        running.add(REPO, {NAME: DATA, "README.md": b"text"}, small=("README.md",))
        yield running


@pytest.fixture
def get(hub: FakeHub) -> Callable[..., Download]:
    def get(name: str = REPO, **how: Any) -> Download:
        return download(name, **{"endpoint": hub.url, "retry": QUICK, **how})

    return get


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def models(tmp_path: Path) -> list[Path]:
    """Files that look finished, anywhere in the cache."""
    return sorted((tmp_path / "cache").rglob("*.gguf"))


def parts(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache").rglob("*.part"))


# ---- the good case -----------------------------------------------------------------------------------------------


def test_fresh_and_then_from_the_cache(hub: FakeHub, get: Callable[..., Download], tmp_path: Path) -> None:
    states: list[DownloadProgress] = []
    done = get(progress=states.append)
    assert done.path.read_bytes() == DATA
    assert done.path.name == NAME
    assert done.path.is_relative_to(tmp_path / "cache" / "models" / "owner" / "Clover-GGUF")
    assert (done.repo, done.quant, done.n_bytes, done.from_cache) == (REPO, "Q4_K_M", 200_000, False)
    assert done.revision == hub.repos[REPO].commit
    assert done.sha256 == {NAME: sha256(DATA)}
    assert parts(tmp_path) == []
    last = [state for state in states if state.phase == "download"][-1]
    assert (last.file, last.done_bytes, last.total_bytes) == (NAME, 200_000, 200_000)
    assert [state.done_bytes for state in states if state.phase == "verify"][-1] == 200_000
    n_requests = len(hub.content_requests())
    states.clear()
    again = get(progress=states.append)
    assert again.from_cache
    assert again.paths == done.paths
    assert len(hub.content_requests()) == n_requests
    assert states == []  # what was checked once is not read again


def test_a_file_that_was_touched_is_checked_again(
    hub: FakeHub, get: Callable[..., Download], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = get().path
    os.utime(path, (1, 1))
    states: list[DownloadProgress] = []
    assert get(progress=states.append).from_cache
    assert {state.phase for state in states} == {"verify"}
    states.clear()
    assert get(progress=states.append).from_cache
    assert states == []
    path.write_bytes(DATA[:-1] + b"!")
    with pytest.raises(DownloadError, match="changed or damaged"):
        get(offline=True)
    again = get()
    assert not again.from_cache
    assert path.read_bytes() == DATA
    # what somebody made of it is not thrown away, and not silently either
    aside = path.with_name(f"{NAME}.changed")
    assert aside.read_bytes() == DATA[:-1] + b"!"
    assert again.warnings == (
        f"{path} had been changed since it was downloaded, so it was fetched again; the changed one is kept as "
        f"{aside}, delete it if nobody needs it",
    )
    path.write_bytes(b"short")
    get()
    assert path.with_name(f"{NAME}.changed2").read_bytes() == b"short"
    assert aside.read_bytes() == DATA[:-1] + b"!"


@pytest.mark.parametrize("name", [REPO, f"{REPO}:Q4_K_M"])
def test_a_whole_commit_is_asked_for_once(name: str, hub: FakeHub, get: Callable[..., Download]) -> None:
    """A commit never changes, and neither does what a name without a quantization means there."""
    hub.add(REPO, {NAME: DATA, "C-Q8_0.gguf": noise(10)})
    commit = hub.repos[REPO].commit
    get(f"{REPO}:Q8_0", revision=commit)
    done = get(name, revision=commit)
    hub.requests.clear()
    again = get(name, revision=commit)
    assert (again.paths, again.warnings, hub.requests) == (done.paths, (), [])
    if name == REPO:  # also where it was main that was asked for
        get(name)
        hub.requests.clear()
        assert get(name, revision=commit).paths == done.paths
        assert hub.requests == []
    # but what is not here any more must come again
    done.path.unlink()
    with pytest.raises(DownloadError, match=f"{NAME} is gone from this machine"):
        get(name, revision=commit, offline=True)
    assert get(name, revision=commit).path.read_bytes() == DATA


def test_another_quantization_of_a_commit_does_not_answer_for_the_name_alone(
    hub: FakeHub, get: Callable[..., Download]
) -> None:
    hub.add(REPO, {NAME: DATA, "C-Q8_0.gguf": noise(10)})
    commit = hub.repos[REPO].commit
    get(f"{REPO}:Q8_0", revision=commit)
    assert get(revision=commit).quant == "Q4_K_M"


def test_split_files_are_one_set(hub: FakeHub, get: Callable[..., Download]) -> None:
    names = [f"Q8_0/C-Q8_0-{i:05d}-of-00003.gguf" for i in (1, 2, 3)]
    shards = {name: noise(50_000 + i, i) for i, name in enumerate(names)}
    hub.add(REPO, {names[2]: shards[names[2]], names[0]: shards[names[0]], names[1]: shards[names[1]], NAME: DATA})
    totals: list[tuple[int, int]] = []
    done = get(f"{REPO}:Q8_0", progress=lambda s: totals.append((s.done_bytes, s.total_bytes)))
    assert [path.name for path in done.paths] == [name.split("/")[1] for name in names]
    assert [path.read_bytes() for path in done.paths] == list(shards.values())
    assert len({path.parent for path in done.paths}) == 1
    assert done.n_bytes == 150_003
    assert (150_003, 150_003) in totals


def test_an_incomplete_set_is_refused_before_anything_comes(hub: FakeHub, get: Callable[..., Download]) -> None:
    hub.add(REPO, {"C-Q8_0-00001-of-00002.gguf": DATA})
    with pytest.raises(IncompleteSetError, match="00002-of-00002"):
        get()
    assert hub.content_requests() == []


def test_small_files_are_checked_by_git(hub: FakeHub, get: Callable[..., Download]) -> None:
    files = {"model.safetensors": DATA, "config.json": b'{"a": 1}', "tokenizer.json": b"{}", "README.md": b"x"}
    hub.add(REPO, files, small=("config.json", "tokenizer.json", "README.md"))
    done = get()
    assert done.quant == "safetensors"
    assert {path.name: path.read_bytes() for path in done.paths} == {n: d for n, d in files.items() if n != "README.md"}
    hub.add(REPO, {**files, "config.json": b'{"a": 2}'}, small=("config.json", "tokenizer.json"))
    hub.repos[REPO].listed["config.json"] = {"blobId": "b6fc4c620b67d95f953a5c1c1230aaab5db5a1b0"}
    with pytest.raises(DownloadError, match=r"config\.json is wrong"):
        get()


def test_a_new_commit_with_the_same_file_costs_nothing(hub: FakeHub, get: Callable[..., Download]) -> None:
    first = get()
    hub.add(REPO, {NAME: DATA, "README.md": b"another text"}, small=("README.md",))
    second = get()
    assert second.from_cache
    assert second.paths == first.paths
    assert second.revision != first.revision


def test_other_content_leaves_the_old_file_alone(hub: FakeHub, get: Callable[..., Download]) -> None:
    old = get()
    hub.add(REPO, {NAME: noise(150_000, 7)})
    hub.always = Fault(flip=5)
    with pytest.raises(DownloadError):
        get()
    assert old.path.read_bytes() == DATA
    assert get(offline=True).paths == old.paths
    hub.always = None
    new = get()
    assert new.path != old.path
    assert new.path.read_bytes() == noise(150_000, 7)
    assert old.path.read_bytes() == DATA
    assert get(offline=True).paths == new.paths
    assert get(offline=True, revision=old.revision).paths == old.paths


# ---- what goes wrong on the line ---------------------------------------------------------------------------------


def test_resume_at_30_cuts(hub: FakeHub, get: Callable[..., Download], tmp_path: Path) -> None:
    cuts = [0, len(DATA) - 1, *random.Random(1).sample(range(1, len(DATA)), 28)]
    for i, cut in enumerate(cuts):
        cache = tmp_path / "cache" / str(i)
        hub.faults = [Fault(end_after=cut)]
        with pytest.raises(DownloadError, match=f"ended after {cut} of 200000 bytes"):
            get(cache_dir=cache, retry=ONCE)
        assert list(cache.rglob("*.gguf")) == []
        (part,) = cache.rglob("*.part")
        assert part.read_bytes() == DATA[:cut]
        hub.requests.clear()
        done = get(cache_dir=cache)
        assert done.path.read_bytes() == DATA
        assert [r.range for r in hub.content_requests()] == [f"bytes={cut}-199999"]
        assert list(cache.rglob("*.part")) == []


@pytest.mark.parametrize(
    "faults",
    [
        [Fault(status=500), Fault(status=503), Fault(status=429, retry_after="0")],
        [Fault(drop_after=0), Fault(drop_after=70_000), Fault(drop_after=1)],
        [Fault(end_after=30_000)] * 5,
        [Fault(drop_after=90_000), Fault(ignore_range=True)],
        [Fault(end_after=90_000), Fault(ignore_range=True, end_after=40_000), Fault(status=502)],
        [Fault(end_after=90_000), Fault(shift=10)],
    ],
    ids=["statuses", "resets", "truncated", "range ignored", "range ignored and cut", "another range"],
)
def test_faults_that_pass(faults: list[Fault], hub: FakeHub, get: Callable[..., Download], tmp_path: Path) -> None:
    hub.faults = list(faults)
    assert get().path.read_bytes() == DATA
    assert hub.faults == []
    assert parts(tmp_path) == []


@pytest.mark.parametrize(
    ("fault", "reason", "text"),
    [
        (Fault(status=500), "server", "HTTP 500"),
        (Fault(status=403), "access", "HTTP 403"),
        (Fault(drop_after=0), "network", "no answer"),
        (Fault(flip=123_456), "checksum", "thrown away"),
        (Fault(extra=1), "checksum", "more bytes than it was asked for"),
        (Fault(ignore_range=True, extra=1), "checksum", "more bytes"),
        (Fault(end_after=0), "server", "ended after 0"),
        (Fault(ignore_range=True, end_after=50_000), "server", "ended after 50000"),
    ],
)
def test_faults_that_stay(
    fault: Fault, reason: str, text: str, hub: FakeHub, get: Callable[..., Download], tmp_path: Path
) -> None:
    hub.always = fault
    with pytest.raises(DownloadError, match=text) as caught:
        get()
    assert caught.value.reason == reason
    assert caught.value.repo in (REPO, "")
    assert "\n" not in str(caught.value)
    assert models(tmp_path) == []
    hub.always = None
    assert get().path.read_bytes() == DATA


def test_a_server_that_holds_another_file(hub: FakeHub, get: Callable[..., Download], tmp_path: Path) -> None:
    right = {"sha256": sha256(DATA), "pointerSize": 134}
    for size in (len(DATA) + 7, len(DATA) - 7):
        hub.repos[REPO].listed[NAME] = {"size": size, "lfs": {**right, "size": size}}
        with pytest.raises(DownloadError, match=f"200000 bytes, but the hub's listing says {size}"):
            get()
    assert models(tmp_path) == []


def test_wrong_bytes_of_an_earlier_run_are_fetched_again(
    hub: FakeHub, get: Callable[..., Download], tmp_path: Path
) -> None:
    hub.faults = [Fault(end_after=100_000, flip=50)]
    with pytest.raises(DownloadError):
        get(retry=ONCE)
    assert get(retry=ONCE).path.read_bytes() == DATA
    assert [r.range for r in hub.content_requests()] == ["bytes=0-199999", "bytes=100000-199999", "bytes=0-199999"]


def test_a_part_that_is_too_long(hub: FakeHub, get: Callable[..., Download], tmp_path: Path) -> None:
    hub.faults = [Fault(end_after=10)]
    with pytest.raises(DownloadError):
        get(retry=ONCE)
    (part,) = parts(tmp_path)
    part.write_bytes(noise(300_000, 3))
    assert get().path.read_bytes() == DATA


def test_large_files_come_in_segments(
    hub: FakeHub, get: Callable[..., Download], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "SEGMENT_BYTES", 80_000)
    assert get().path.read_bytes() == DATA
    assert [r.range for r in hub.content_requests()] == ["bytes=0-79999", "bytes=80000-159999", "bytes=160000-199999"]


def test_100_of_100(hub: FakeHub, get: Callable[..., Download], tmp_path: Path) -> None:
    """Random files, random faults, random leftovers: right or absent, and right in the end; an old file stays."""
    n_failed = n_right = 0
    old = get()
    for seed in range(100):
        rng = random.Random(seed)
        count = rng.randint(1, 3)
        names = [f"C-Q8_0-{i + 1:05d}-of-{count:05d}.gguf" for i in range(count)]
        shards = {name: rng.randbytes(rng.randint(1, 60_000)) for name in names}
        hub.add("owner/random", shards)
        cache = tmp_path / "cache" / f"r{seed}"

        def fault(rng: random.Random = rng, smallest: int = min(map(len, shards.values()))) -> Fault:
            at = rng.randrange(smallest)
            return rng.choice([
                Fault(status=rng.choice([500, 502, 503, 504, 429])), Fault(drop_after=at), Fault(end_after=at),
                Fault(flip=at), Fault(ignore_range=True), Fault(ignore_range=True, end_after=at), Fault(shift=at),
                Fault(extra=rng.randint(1, 9)), Fault(status=403), Fault(flip=at, end_after=at + 1), Fault(),
            ])  # fmt: skip

        hub.faults = [fault() for _ in range(rng.randint(0, 8))]
        for attempt in range(4):
            try:
                done = get("owner/random", cache_dir=cache, retry=Retry(n_retries=1, wait_s=0))
            except DownloadError as error:
                n_failed += 1
                assert "\n" not in str(error), seed  # noqa: PT017
                for path in cache.rglob("*.gguf"):
                    assert path.read_bytes() == shards[path.name], (seed, attempt)
            else:
                n_right += 1
                assert [path.read_bytes() for path in done.paths] == list(shards.values()), seed
                break
        hub.faults = []
        done = get("owner/random", cache_dir=cache)
        assert [path.read_bytes() for path in done.paths] == list(shards.values()), seed
        assert old.path.read_bytes() == DATA
    assert n_failed > 20  # the faults were felt
    assert n_right > 20


def test_stopped_by_the_caller(hub: FakeHub, get: Callable[..., Download], tmp_path: Path) -> None:
    with pytest.raises(CancelledError):
        get(progress=lambda state: state.phase != "download" or state.done_bytes < 1)
    assert models(tmp_path) == []
    (part,) = parts(tmp_path)
    kept = part.stat().st_size
    assert part.read_bytes() == DATA[:kept]
    hub.requests.clear()
    assert get().path.read_bytes() == DATA
    assert [r.range for r in hub.content_requests()] == ([f"bytes={kept}-199999"] if kept < 200_000 else [])


def test_two_at_once(hub: FakeHub, get: Callable[..., Download]) -> None:
    hub.hold = threading.Event()
    states: list[DownloadProgress] = []
    waiting = threading.Event()
    results: list[Download] = []

    def second(state: DownloadProgress) -> None:
        states.append(state)
        waiting.set()

    one = threading.Thread(target=lambda: results.append(get(retry=Retry(timeout_s=300))))
    one.start()
    assert hub.held.wait(60)
    two = threading.Thread(target=lambda: results.append(get(progress=second)))
    two.start()
    assert waiting.wait(60)
    hub.hold.set()
    for thread in (one, two):
        thread.join(60)
    assert sorted(done.from_cache for done in results) == [False, True]
    assert all(done.path.read_bytes() == DATA for done in results)
    assert {state.phase for state in states} == {"wait"}
    assert len(hub.content_requests()) == 1


# ---- what the hub says -------------------------------------------------------------------------------------------


def test_a_token_goes_to_the_hub_alone(
    hub: FakeHub, get: Callable[..., Download], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.token = "hf_secret"
    with pytest.raises(ModelNotFoundError, match="or is private"):
        get()
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    hub.requests.clear()
    get()
    assert {(r.server, r.token) for r in hub.requests} == {("hub", "Bearer hf_secret"), ("cdn", "")}
    with pytest.raises(ModelNotFoundError):
        get(token=False, cache_dir=Path(os.environ["PYCLOVER_CACHE"]) / "other")
    assert get(token="hf_secret").from_cache


def test_the_mirror_of_the_usual_variable(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", hub.url + "/")
    assert pyclover.download(REPO, retry=QUICK).path.read_bytes() == DATA


@pytest.mark.parametrize("endpoint", ["ftp://x", "nonsense", "http://", "http://a b", "http://h:x"])
def test_endpoints_that_are_none(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="endpoint is"):
        pyclover.download(REPO, endpoint=endpoint)
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    with pytest.raises(UsageError, match="HF_ENDPOINT is"):  # says what is to be corrected
        pyclover.download(REPO)


def test_an_empty_endpoint_is_none_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "")
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "")  # as it has read the variable itself
    assert Hub(token=False).endpoint == PUBLIC


@pytest.mark.parametrize("token", ["a\nb", "tök", "a\x1b[2Jb", "", 5, b"x"])
def test_tokens_that_are_none(token: Any) -> None:
    if token == "":
        assert "Authorization" not in Hub(token=token).headers(Hub(token=False).endpoint)
        return
    with pytest.raises(UsageError, match="token") as caught:
        Hub(token=token)
    assert caught.value.option == "token"


def test_a_kept_token_that_cannot_be_read(
    hub: FakeHub, get: Callable[..., Download], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "token"
    path.mkdir()
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(path))
    with pytest.raises(DownloadError, match=r"no token can be had .*Is a directory.*HF_HOME") as caught:
        get(token=None)
    assert caught.value.reason == "access"
    done = get(token=False)
    assert get(token=None, offline=True).path == done.path  # nobody needs a token then


def test_patience_of_another_kind() -> None:
    with pytest.raises(UsageError, match="retry is 3"):
        Hub(retry=3)  # type: ignore[arg-type]


def test_names_that_are_not_there(hub: FakeHub, get: Callable[..., Download]) -> None:
    with pytest.raises(ModelNotFoundError, match="owner/other is not on 127"):
        get("owner/other")
    with pytest.raises(ModelNotFoundError, match="no revision v9"):
        get(revision="v9")
    with pytest.raises(ModelNotFoundError, match=r"no Q8_0; there are Q4_K_M"):
        get(f"{REPO}:Q8_0")
    hub.repos[REPO].gated = True
    with pytest.raises(DownloadError, match="gives access only") as caught:
        get()
    assert caught.value.reason == "access"


def test_the_listing_is_asked_for_again(hub: FakeHub, get: Callable[..., Download]) -> None:
    hub.api_status = [500, 502, 429]
    assert get().path.read_bytes() == DATA
    hub.api_status = [500] * 9
    with pytest.raises(DownloadError, match="HTTP 500"):
        get(cache_dir=Path(os.environ["PYCLOVER_CACHE"]) / "other")


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b"{}", b'{"id": 1, "siblings": [{}]}', b'{"id": "a/b"}'])
def test_answers_that_are_none(body: bytes, hub: FakeHub, get: Callable[..., Download]) -> None:
    hub.api_body = body
    with pytest.raises(DownloadError) as caught:
        get()
    assert caught.value.reason == "server"
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["../../evil.gguf", "/tmp/evil.gguf", "a\\..\\evil.gguf", "evil\0.gguf"])
def test_evil_file_names(name: str, hub: FakeHub, get: Callable[..., Download], tmp_path: Path) -> None:
    hub.add(REPO, {name: DATA})
    with pytest.raises(DownloadError, match="could lead out"):
        get()
    assert not any(path.name.startswith("evil") for path in tmp_path.rglob("*"))
    assert hub.content_requests() == []


def test_sums_of_the_repository(hub: FakeHub, get: Callable[..., Download]) -> None:
    sums = f"{sha256(DATA)}  {NAME}\n".encode()
    hub.add(REPO, {NAME: DATA, "SHA256SUMS": sums}, small=("SHA256SUMS",))
    assert get().path.read_bytes() == DATA
    hub.add("owner/wrong", {NAME: DATA, "SHA256SUMS": sums.replace(sums[:4], b"0000")}, small=("SHA256SUMS",))
    hub.requests.clear()
    with pytest.raises(DownloadError, match="SHA256SUMS says") as caught:
        get("owner/wrong")
    assert caught.value.reason == "checksum"
    assert hub.content_requests() == []


def test_without_any_checksum(hub: FakeHub, get: Callable[..., Download]) -> None:
    bare = {"lfs": None, "blobId": None}
    hub.add(REPO, {NAME: DATA}, listed={NAME: bare})
    with pytest.raises(DownloadError, match="no checksum"):
        get()
    hub.add(REPO, {NAME: DATA, "SHA256SUMS": f"{sha256(DATA)}  {NAME}".encode()}, small=("SHA256SUMS",),
            listed={NAME: bare})  # fmt: skip
    assert get().path.read_bytes() == DATA
    assert get().from_cache


# ---- without a hub -----------------------------------------------------------------------------------------------


def test_offline(hub: FakeHub, get: Callable[..., Download], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(DownloadError, match="offline mode") as caught:
        get()
    assert caught.value.reason == "offline"
    done = get(offline=False)
    hub.requests.clear()
    again = get()
    assert again.from_cache
    assert again.paths == done.paths
    assert get(revision=done.revision).paths == done.paths
    with pytest.raises(DownloadError, match="offline mode"):
        get(f"{REPO}:Q8_0")
    assert hub.requests == []


def test_a_hub_that_cannot_be_reached(hub: FakeHub, get: Callable[..., Download]) -> None:
    done = get()
    hub.close()
    again = get(retry=ONCE)
    assert again.paths == done.paths
    assert "no answer from 127.0.0.1" in again.warnings[0]
    assert "earlier" in again.warnings[0]
    # a commit never changes
    assert get(f"{REPO}:Q4_K_M", revision=done.revision, retry=ONCE).warnings == ()
    with pytest.raises(DownloadError, match="no answer") as caught:
        get("owner/other", retry=ONCE)
    assert caught.value.reason == "network"


def hf_cache(tmp_path: Path, repo: Repo, name: str, data: bytes, announced: bytes) -> Path:
    """A file as huggingface_hub's own cache holds it."""
    folder = tmp_path / "hf" / "models--owner--Clover-GGUF"
    snapshot = folder / "snapshots" / repo.commit
    for sub in (folder / "blobs", folder / "refs", snapshot):
        sub.mkdir(parents=True, exist_ok=True)
    (folder / "refs" / "main").write_text(repo.commit)
    blob = folder / "blobs" / sha256(announced)
    blob.write_bytes(data)
    (snapshot / name).symlink_to(blob)
    return snapshot / name


@pytest.mark.skipif(os.name != "posix", reason="links")
@pytest.mark.parametrize("offline", [False, True])
def test_the_hugging_face_cache_is_used(
    offline: bool, hub: FakeHub, get: Callable[..., Download], tmp_path: Path
) -> None:
    path = hf_cache(tmp_path, hub.repos[REPO], NAME, DATA, DATA)
    states: list[DownloadProgress] = []
    done = get(offline=offline, progress=states.append)
    assert done.paths == (path,)
    assert done.from_cache
    assert {state.phase for state in states} == {"verify"}
    states.clear()
    assert get(offline=offline, progress=states.append).paths == (path,)
    assert states == []
    assert hub.content_requests() == []
    assert models(tmp_path) == []


@pytest.mark.skipif(os.name != "posix", reason="links")
def test_a_damaged_file_in_the_hugging_face_cache(hub: FakeHub, get: Callable[..., Download], tmp_path: Path) -> None:
    path = hf_cache(tmp_path, hub.repos[REPO], NAME, DATA[:-1] + b"!", DATA)
    with pytest.raises(DownloadError):
        get(offline=True)
    done = get()
    assert done.path != path
    assert done.path.read_bytes() == DATA
    assert f"{path} is damaged" in done.warnings[0]


# ---- the disk ----------------------------------------------------------------------------------------------------


def test_room_is_checked_before_anything_comes(
    hub: FakeHub, get: Callable[..., Download], monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(".")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=199_999))
    with pytest.raises(DownloadError, match="are free; make room") as caught:
        get()
    assert (caught.value.reason, caught.value.needed_bytes, caught.value.free_bytes) == ("no_room", 200_000, 199_999)
    assert hub.content_requests() == []
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=200_000))
    assert get().path.read_bytes() == DATA


def test_a_part_needs_less_room(hub: FakeHub, get: Callable[..., Download], monkeypatch: pytest.MonkeyPatch) -> None:
    hub.faults = [Fault(end_after=150_000)]
    with pytest.raises(DownloadError):
        get(retry=ONCE)
    usage = shutil.disk_usage(".")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=50_000))
    assert get().path.read_bytes() == DATA


def test_a_cache_that_is_a_file(get: Callable[..., Download], tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DownloadError, match="choose another folder") as caught:
        get(cache_dir=tmp_path / "file")
    assert caught.value.reason == "disk"
    assert str(tmp_path / "file") in str(caught.value)


@pytest.mark.parametrize(
    ("code", "reason", "text"),
    [(errno.ENOSPC, "no_room", "no room left"), (errno.EDQUOT, "no_room", "no room left"),
     (errno.EACCES, "disk", "Permission denied"), (errno.EROFS, "disk", "Read-only"), (errno.EIO, "disk", "error")],
)  # fmt: skip
def test_errors_of_the_file_system(
    code: int, reason: str, text: str, get: Callable[..., Download], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(out: object, data: bytes) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(transfer, "_write", fail)
        with pytest.raises(DownloadError, match=text) as caught:
            get()
    assert caught.value.reason == reason
    assert models(tmp_path) == []
    assert get().path.read_bytes() == DATA


def test_what_cannot_be_remembered_is_checked_again(
    get: Callable[..., Download], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.replace

    def no_records(source: Any, target: Any) -> None:
        if str(target).endswith(".json"):
            raise OSError(errno.ENOSPC, "No space left on device")
        real(source, target)

    monkeypatch.setattr(os, "replace", no_records)
    path = get().path
    assert path.read_bytes() == DATA
    assert {p.name for p in path.parent.iterdir()} <= {NAME, ".lock"}
    states: list[DownloadProgress] = []
    assert get(progress=states.append).from_cache
    assert {state.phase for state in states} == {"verify"}


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 2}', '{"format": 1, "files": [{"name": 1}]}', "\x00"])
def test_a_damaged_record(text: str, hub: FakeHub, get: Callable[..., Download]) -> None:
    path = get().path
    (record,) = path.parent.glob("*.json")
    assert json.loads(record.read_text())["files"][0]["sha256"] == sha256(DATA)
    record.write_text(text)
    hub.requests.clear()
    assert get().path == path
    assert hub.content_requests() == []


# ---- the choice --------------------------------------------------------------------------------------------------


def test_auto(hub: FakeHub, get: Callable[..., Download], tmp_path: Path) -> None:
    sizes = {"Q8_0": 300, "Q4_K_M": 200, "Q4_0": 100}
    official, other = "Diffuspace/Clover-35B-A3B-Preview-GGUF", "AtomicChat/Clover-35B-A3B-Preview-GGUF"
    hub.add(official, {f"C-{quant}.gguf": noise(n) for quant, n in sizes.items()})
    hub.add(other, {"C-Q2_K.gguf": noise(50), "C-F16.gguf": noise(500)})
    asked: list[str] = []
    assert get("auto", fits=lambda o: asked.append(o.quant) or o.n_bytes < 250).quant == "Q4_K_M"
    assert sorted(asked) == sorted(sizes)
    assert (get("auto", fits=300).quant, get("auto", fits=300).repo) == ("Q8_0", official)
    assert (get("auto", fits=60).quant, get("auto", fits=60).repo) == ("Q2_K", other)
    with pytest.raises(ModelNotFoundError, match=f"auto finds no model that fits: {other} offers nothing that fits"):
        get("auto", fits=10)  # the repositories of the catalogue that this hub lacks are not what it is about
    with pytest.raises(ModelNotFoundError, match=f"auto finds no Q6_K: {official} offers no Q6_K; there are Q8_0"):
        get("auto", quant="Q6_K")
    assert get(f"{official}:auto", fits=100).quant == "Q4_0"
    assert get("auto", fits=300, offline=True).repo == official
    with pytest.raises(UsageError, match="fits"):
        get("auto", fits="much")


def test_auto_without_a_planner_goes_by_the_memory_that_is_free(
    hub: FakeHub, get: Callable[..., Download], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Memory:
        available = (2 << 30) + 250
        total = 2 << 30

    hub.add(REPO, {"C-Q8_0.gguf": noise(300), "C-Q4_0.gguf": noise(100)})
    monkeypatch.setattr(auto.psutil, "virtual_memory", Memory)
    assert get(f"{REPO}:auto").quant == "Q4_0"
    Memory.available += 50
    assert get(f"{REPO}:auto").quant == "Q8_0"


def test_the_list(hub: FakeHub, get: Callable[..., Download]) -> None:
    hub.add(REPO, {NAME: DATA, "C-Q8_0-00001-of-00002.gguf": noise(9)})
    get(f"{REPO}:Q4_K_M")
    commit, offers = list_offers(REPO, endpoint=hub.url)
    assert commit == hub.repos[REPO].commit
    assert [(o.offer.quant, o.is_here) for o in offers] == [("Q4_K_M", True), ("Q8_0", False)]
    assert [o.offer.missing for o in offers] == [(), ("C-Q8_0-00002-of-00002.gguf",)]
    _, here = list_offers(REPO, endpoint=hub.url, offline=True)
    assert [(o.offer.quant, o.is_here) for o in here] == [("Q4_K_M", True)]
    with pytest.raises(ModelNotFoundError, match="no Q2_K"):
        list_offers(f"{REPO}:Q2_K", endpoint=hub.url)
    with pytest.raises(DownloadError, match="offline"):
        list_offers("owner/other", endpoint=hub.url, offline=True)


def test_what_was_fetched_by_its_commit_is_found_offline(hub: FakeHub, get: Callable[..., Download]) -> None:
    commit = hub.repos[REPO].commit
    done = get(revision=commit)
    listed, offers = list_offers(REPO, offline=True)
    assert listed == commit
    assert [(o.offer.quant, o.is_here, o.revisions) for o in offers] == [("Q4_K_M", True, (commit,))]
    assert list_offers(REPO, offline=True, revision=commit)[1][0].is_here
    with pytest.raises(DownloadError, match="offline"):
        list_offers(REPO, offline=True, revision="v1")
    # nothing says that main is that commit; the sentence says how to ask
    with pytest.raises(DownloadError, match=f"Q4_K_M is here, but at {commit}, not at main: .*--revision") as caught:
        get(offline=True)
    assert caught.value.reason == "offline"
    assert get(offline=True, revision=commit).paths == done.paths
