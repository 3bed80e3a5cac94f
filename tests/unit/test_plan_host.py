"""Free memory as the system and control groups tell it."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyclover.plan import host
from pyclover.plan.machine import Device
from pyclover.plan.probe import device, features

MEMINFO = """MemTotal:       125571264 kB
MemFree:         4194304 kB
MemAvailable:   119537664 kB
HugePages_Total:       3
"""


def put(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


def test_meminfo_is_in_bytes(tmp_path: Path) -> None:
    path = tmp_path / "meminfo"
    path.write_text(MEMINFO)
    table = host.meminfo(path)
    assert table["MemTotal"] == 128_584_974_336  # 125,571,264 * 1024
    assert table["MemAvailable"] == 119_537_664 * 1024
    assert table["HugePages_Total"] == 3  # a count, not kB


def test_no_meminfo_is_an_empty_table(tmp_path: Path) -> None:
    assert host.meminfo(tmp_path / "missing") == {}


@settings(max_examples=50, deadline=None)
@given(st.binary(max_size=200))
def test_meminfo_of_any_bytes(data: bytes) -> None:
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        assert all(value >= 0 for value in host.meminfo(Path(file.name)).values())


def test_the_cache_of_a_group_is_free(tmp_path: Path) -> None:
    (tmp_path / "self").write_text("0::/job\n")
    put(tmp_path / "fs" / "job", memory__max="8589934592\n", memory__current="6000000000\n",
        memory__stat="anon 1000000000\ninactive_file 3000000000\nactive_file 1500000000\n")  # fmt: skip
    # 8,589,934,592 - (6,000,000,000 - 4,500,000,000)
    assert host.cgroup_free(tmp_path / "self", tmp_path / "fs") == 7_089_934_592
    assert host.cgroup_limit(tmp_path / "self", tmp_path / "fs") == 8_589_934_592


def test_the_tightest_group_counts(tmp_path: Path) -> None:
    (tmp_path / "self").write_text("0::/a/b\n")
    put(tmp_path / "fs" / "a" / "b", memory__max="max\n", memory__current="10\n")
    put(tmp_path / "fs" / "a", memory__max="1000\n", memory__high="800\n", memory__current="300\n")
    put(tmp_path / "fs", memory__max="5000\n", memory__current="4600\n")
    assert host.cgroup_free(tmp_path / "self", tmp_path / "fs") == 400  # 5000 - 4600, less than 800 - 300
    assert host.cgroup_limit(tmp_path / "self", tmp_path / "fs") == 800


def test_a_container_sees_its_group_as_the_root(tmp_path: Path) -> None:
    (tmp_path / "self").write_text("0::/system.slice/docker-1234.scope\n")
    put(tmp_path / "fs", memory__max="1000\n", memory__current="900\n")
    assert host.cgroup_free(tmp_path / "self", tmp_path / "fs") == 100


def test_version_1(tmp_path: Path) -> None:
    (tmp_path / "self").write_text("9:name=systemd:/\n4:cpu,memory:/docker/12\n0::/\n")
    group = tmp_path / "fs" / "memory" / "docker" / "12"
    put(group, memory__limit_in_bytes="2000\n", memory__usage_in_bytes="1500\n",
        memory__stat="active_file 1\ntotal_active_file 300\ntotal_inactive_file 200\n")  # fmt: skip
    # without a limit, version 1 says 2^63 rounded down to a page
    put(tmp_path / "fs" / "memory", memory__limit_in_bytes="9223372036854771712\n", memory__usage_in_bytes="7\n")
    assert host.cgroup_free(tmp_path / "self", tmp_path / "fs") == 1000
    assert host.cgroup_limit(tmp_path / "self", tmp_path / "fs") == 2000


@pytest.mark.parametrize("text", ["", "0::/\n", "nonsense\n", "3:cpu:/x\n"])
def test_no_limit_is_none_and_not_zero(tmp_path: Path, text: str) -> None:
    (tmp_path / "self").write_text(text)
    put(tmp_path / "fs", cpu__max="max 100000\n")
    assert host.cgroup_free(tmp_path / "self", tmp_path / "fs") is None
    assert host.cgroup_free(tmp_path / "missing", tmp_path / "fs") is None


def test_a_group_that_may_not_be_asked_for(tmp_path: Path) -> None:
    """/proc may be closed to a process; a container's own group is the root of the mount."""
    put(tmp_path / "two", memory__max="1000\n", memory__current="300\n")
    put(tmp_path / "one" / "memory", memory__limit_in_bytes="2000\n", memory__usage_in_bytes="500\n")
    assert host.cgroup_free(tmp_path / "missing", tmp_path / "two") == 700
    assert host.cgroup_free(tmp_path / "missing", tmp_path / "one") == 1500
    assert host.cgroup_limit(tmp_path / "missing", tmp_path / "one") == 2000


@pytest.mark.parametrize("text", ["-5\n", "\n", "", "9" * 40, "1e9", "0x10", "\xff", "12 34"])
def test_a_limit_that_is_no_number_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "self").write_text("0::/\n")
    put(tmp_path / "fs", memory__max=text, memory__current="5\n")
    assert host.cgroup_free(tmp_path / "self", tmp_path / "fs") is None


def test_a_full_group_has_nothing_left(tmp_path: Path) -> None:
    (tmp_path / "self").write_text("0::/\n")
    put(tmp_path / "fs", memory__max="1000\n", memory__current="2000\n")
    assert host.cgroup_free(tmp_path / "self", tmp_path / "fs") == 0


LINUX = {"platform": "linux", "machine": "x86_64"}


def test_a_card_keeps_its_own_memory() -> None:
    # whatever unified addressing is switched on, an RTX 5090 does not own the machine's memory
    found = device("CUDA0", "NVIDIA GeForce RTX 5090", "gpu", 34_190_000_000, 33_000_000_000, **LINUX)
    assert (found.unified, found.free_bytes, found.limit_bytes) == (False, 33_000_000_000, None)


def test_not_available_is_not_zero() -> None:
    found = device("CUDA0", "NVIDIA GB10", "igpu", 0, 0, platform="linux", machine="aarch64")
    assert (found.total_bytes, found.free_bytes, found.room_bytes) == (None, None, None)
    assert found.unified


def test_full_is_not_unknown() -> None:
    assert device("CUDA0", "", "gpu", 8_000_000_000, 0, **LINUX).room_bytes == 0
    assert Device(name="CUDA0", total_bytes=5).room_bytes == 5


def test_metal_is_unified_on_apples_own_processors_only() -> None:
    apple = device("Metal", "Apple M2", "gpu", 11_453_251_584, 11_453_251_584, platform="darwin", machine="arm64")
    assert (apple.unified, apple.limit_bytes, apple.pinned_host) == (True, 11_453_251_584, False)
    assert not device("Metal", "AMD Radeon", "gpu", 8 << 30, 8 << 30, platform="darwin", machine="x86_64").unified


def test_features_of_the_system_line() -> None:
    line = "CPU : SSE3 = 1 | AVX2 = 1 | AVX512 = 0 | LLAMAFILE = 1 | REPACK = 1 | \n"
    assert features(line) == {"SSE3", "AVX2", "LLAMAFILE", "REPACK"}
    assert features("") == frozenset()
