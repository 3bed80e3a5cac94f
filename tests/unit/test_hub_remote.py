"""Files read over byte ranges: the same bytes as on disk, and few of them."""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Iterator

import pytest
from fake_hub import FakeHub, Fault, fake_hub
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyclover.errors import ClosedError, DownloadError, ModelNotFoundError, UsageError
from pyclover.hub.patience import Retry
from pyclover.hub.remote import RemoteFile, open_remote

REPO = "owner/Clover-GGUF"
DATA = random.Random(3).randbytes(100_000)
QUICK = Retry(n_retries=2, wait_s=0)


@pytest.fixture(scope="module")
def hub() -> Iterator[FakeHub]:
    with fake_hub() as running:
        running.add(
            REPO, {"C-Q4_0.gguf": DATA, "C-Q8_0-00001-of-00002.gguf": b"one", "C-Q8_0-00002-of-00002.gguf": b"2"}
        )
        yield running


@pytest.fixture
def open_(hub: FakeHub, tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> Callable[..., RemoteFile]:
    monkeypatch.setenv("PYCLOVER_CACHE", str(tmp_path))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    hub.requests.clear()
    hub.faults.clear()
    return lambda name=f"{REPO}:Q4_0", **how: open_remote(
        name, **{"endpoint": hub.url, "token": False, "block_bytes": 4096, "retry": QUICK, **how}
    )


def test_few_bytes_are_fetched(open_: Callable[..., RemoteFile], hub: FakeHub) -> None:
    with open_() as file:
        assert (file.size, file.name) == (100_000, f"{REPO}/C-Q4_0.gguf")
        assert file.read(10) == DATA[:10]
        assert (file.bytes_fetched, file.n_requests) == (4096, 1)
        file.seek(-5, io.SEEK_END)
        assert file.read() == DATA[-5:]
        assert file.bytes_fetched == 4096 + 100_000 % 4096  # the last block is a short one
        file.seek(4000)
        assert file.read(20_000) == DATA[4000:24_000]
        assert file.n_requests == 3  # five blocks that lie together come at once
        assert file.bytes_fetched == 4096 + 1696 + 5 * 4096
        file.seek(0)
        file.read(24_000)
        assert file.n_requests == 3
        assert file.read(0) == b""
        assert file.seek(10, io.SEEK_CUR) == 24_010


def test_a_plain_address(open_: Callable[..., RemoteFile], hub: FakeHub) -> None:
    file = open_(f"{hub.cdn}/{REPO}/C-Q4_0.gguf?x=1")
    assert file.size == 100_000
    assert file.read() == DATA
    page = open_(f"{hub.url}/{REPO}/blob/main/C-Q4_0.gguf", token="hf_secret")
    assert page.read(9) == DATA[:9]
    elsewhere = open_(f"{hub.cdn}/{REPO}/C-Q4_0.gguf", token="hf_secret")
    assert elsewhere.read(3) == DATA[:3]
    assert {r.token for r in hub.content_requests()} == {""}


def test_shards(open_: Callable[..., RemoteFile]) -> None:
    assert open_(f"{REPO}:Q8_0").read() == b"one"
    assert open_(f"{REPO}:Q8_0", shard=1).read() == b"2"
    with pytest.raises(UsageError, match="has 2 files"):
        open_(f"{REPO}:Q8_0", shard=2)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 101_000), st.integers(0, 30_000)), max_size=5))
def test_reads_as_from_disk(hub: FakeHub, reads: list[tuple[int, int]]) -> None:
    hub.faults.clear()
    remote, disk = RemoteFileOf(hub), io.BytesIO(DATA)
    for at, n_bytes in reads:
        assert remote.seek(at) == disk.seek(at)
        assert remote.read(n_bytes) == disk.read(n_bytes)
        assert remote.tell() == disk.tell()
    assert remote.bytes_fetched <= 102_400


def RemoteFileOf(hub: FakeHub) -> RemoteFile:  # noqa: N802
    return open_remote(f"{hub.cdn}/{REPO}/C-Q4_0.gguf", block_bytes=4096, retry=QUICK, token=False)


def test_it_is_patient(open_: Callable[..., RemoteFile], hub: FakeHub) -> None:
    hub.faults = [Fault(status=503), Fault(drop_after=10), Fault(), Fault(end_after=5), Fault(shift=3)]
    file = open_()
    assert file.read(4096) == DATA[:4096]
    file.seek(50_000)
    assert file.read(100) == DATA[50_000:50_100]
    assert hub.faults == []


def test_what_cannot_be_read(open_: Callable[..., RemoteFile], hub: FakeHub) -> None:
    hub.faults = [Fault(ignore_range=True)]
    with pytest.raises(DownloadError, match="no parts of files"):
        open_()
    with pytest.raises(ModelNotFoundError):
        open_(f"{hub.url}/{REPO}/resolve/main/absent.gguf")
    with pytest.raises(UsageError, match="belong to a name"):
        open_(f"{hub.cdn}/{REPO}/C-Q4_0.gguf", quant="Q4_0")
    with pytest.raises(UsageError, match="block_bytes"):
        open_(block_bytes=1)
    file = open_()
    with pytest.raises(UsageError, match="position -1"):
        file.seek(-1)
    file.close()
    with pytest.raises(ClosedError):
        file.read(1)


def test_a_file_that_changes_under_way(open_: Callable[..., RemoteFile], hub: FakeHub) -> None:
    file = open_(f"{hub.cdn}/{REPO}/C-Q4_0.gguf")
    hub.faults = [Fault(flip=60_000)]  # the same length, another ETag
    file.seek(50_000)
    with pytest.raises(DownloadError, match="another file on the server"):
        file.read(10)
