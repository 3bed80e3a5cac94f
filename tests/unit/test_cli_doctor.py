"""`clover-run doctor`: the facts of made-up machines, the findings they lead to, the command's table, JSON and code."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pyclover import errors
from pyclover.cli import checks, probe
from pyclover.cli.checks import Finding
from pyclover.cli.main import cli

X86 = """processor\t: 0
vendor_id\t: GenuineIntel
model name\t: Intel(R) Xeon(R) Processor @ 2.00GHz
flags\t\t: fpu sse4_2 avx avx2 fma f16c bmi2

processor\t: 1
model name\t: Intel(R) Xeon(R) Processor @ 2.00GHz
flags\t\t: fpu sse4_2 avx avx2 fma f16c bmi2
"""
ARM = "processor\t: 0\nBogoMIPS\t: 2000.00\nFeatures\t: fp asimd asimddp i8mm\nCPU implementer\t: 0x41\n"


def tree(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


def test_cpu_of_an_x86_machine(tmp_path: Path) -> None:
    cpu = probe.cpu(tree(tmp_path, {"cpuinfo": X86}))
    assert cpu.model == "Intel(R) Xeon(R) Processor @ 2.00GHz"
    assert cpu.features == frozenset({"fpu", "sse4_2", "avx", "avx2", "fma", "f16c", "bmi2"})


def test_cpu_of_an_arm_machine_has_features_without_a_name(tmp_path: Path) -> None:
    cpu = probe.cpu(tree(tmp_path, {"cpuinfo": ARM}))
    assert cpu.features == frozenset({"fp", "asimd", "asimddp", "i8mm"})
    assert cpu.model


def test_cpu_without_a_list_is_unknown_not_empty(tmp_path: Path) -> None:
    assert probe.cpu(tmp_path).features is None


@pytest.mark.parametrize(
    ("files", "quota", "limit"),
    [
        ({}, None, None),
        ({"cg/cpu.max": "max 100000\n", "cg/memory.max": "max\n"}, None, None),
        ({"cg/cpu.max": "150000 100000\n", "cg/memory.max": "1073741824\n"}, 1.5, 1 << 30),
        (  # a limit stands in the parent, a looser one in the group itself
            {
                "proc/self/cgroup": "0::/a/b\n",
                "cg/a/cpu.max": "50000 100000\n",
                "cg/a/b/cpu.max": "200000 100000\n",
                "cg/a/memory.max": "1000\n",
                "cg/a/b/memory.max": "2000\n",
            },
            0.5,
            1000,
        ),
        (  # version 1; the huge number means that there is no limit
            {
                "cg/cpu/cpu.cfs_quota_us": "200000\n",
                "cg/cpu/cpu.cfs_period_us": "100000\n",
                "cg/memory/memory.limit_in_bytes": "9223372036854771712\n",
            },
            2.0,
            None,
        ),
        ({"cg/cpu/cpu.cfs_quota_us": "-1\n", "cg/cpu/cpu.cfs_period_us": "100000\n"}, None, None),
    ],
)
def test_container_limits(tmp_path: Path, files: dict[str, str], quota: float | None, limit: int | None) -> None:
    tree(tmp_path, files)
    assert probe.cpu_quota(tmp_path / "proc", tmp_path / "cg") == quota
    assert probe.memory_limit(tmp_path / "proc", tmp_path / "cg") == limit


@pytest.mark.parametrize(
    ("threads", "usable"),
    [
        (probe.Threads(physical=8, logical=16, allowed=16, quota=None), 8),
        (probe.Threads(physical=8, logical=16, allowed=4, quota=None), 4),
        (probe.Threads(physical=8, logical=16, allowed=16, quota=2.5), 2),
        (probe.Threads(physical=8, logical=16, allowed=16, quota=0.5), 1),
        (probe.Threads(physical=None, logical=16, allowed=None, quota=None), 16),
        (probe.Threads(physical=None, logical=None, allowed=None, quota=None), None),
    ],
)
def test_usable_threads(threads: probe.Threads, usable: int | None) -> None:
    assert threads.usable == usable


def test_gpu_hints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    assert probe.gpu_hints(tmp_path) == {}
    tree(tmp_path, {"nvidiactl": "", "kfd": ""})
    assert probe.gpu_hints(tmp_path) == {"CUDA": f"{tmp_path}/nvidiactl", "HIP": f"{tmp_path}/kfd"}


@dataclass
class FakeDevice:
    name: str = "CPU"
    description: str = "Xeon"
    kind: str = "cpu"
    total_bytes: int = 8 << 30
    free_bytes: int = 4 << 30


@dataclass
class FakeInfo:
    version: str = "0.1.0"
    llama_cpp_commit: str = "0c1e57098"
    llama_cpp_version: str = "0.5.0-dev"
    compiler: str = "GNU 12.2.0"
    build_type: str = "Release"
    native: bool = False
    cpu_needs: tuple[str, ...] = ("avx2", "fma")
    backends: tuple[str, ...] = ("CPU",)
    devices: tuple[FakeDevice, ...] = (FakeDevice(),)
    programs: Mapping[str, Path] = field(default_factory=lambda: MappingProxyType({"llama": Path(sys.executable)}))
    patches: tuple[str, ...] = ("0001-names.patch",)


def test_cpu_that_lacks_an_instruction_fails_with_its_name() -> None:
    finding = checks.check_cpu(probe.Cpu("Old", frozenset({"avx"})), ["avx", "avx2", "fma"])
    assert (finding.status, finding.text) == ("fail", "Old lacks avx2 fma (needed: avx avx2 fma)")
    assert checks.check_cpu(probe.Cpu("New", frozenset({"avx", "avx2", "fma"})), ["avx2"]).status == "ok"
    assert checks.check_cpu(probe.Cpu("M4", None), ["neon"]).text.endswith("this system does not list features")


@pytest.mark.parametrize(
    ("backends", "hints", "status"),
    [
        (("CPU",), {}, "ok"),
        (("CPU",), {"CUDA": "/dev/nvidiactl"}, "warn"),
        (("CUDA", "CPU"), {"CUDA": "/dev/nvidiactl"}, "ok"),
        (("Vulkan", "CPU"), {"HIP": "/dev/kfd"}, "ok"),
    ],
)
def test_a_gpu_without_its_back_end_is_a_warning(backends: tuple[str, ...], hints: dict[str, str], status: str) -> None:
    finding = checks.check_back_ends(FakeInfo(backends=backends), hints)[0]  # type: ignore[arg-type]
    assert finding.status == status
    if status == "warn":
        assert finding.text == "CPU; but there seems to be a GPU for CUDA (/dev/nvidiactl)"
        assert finding.advice == "to use it, build with CMAKE_ARGS=-DGGML_CUDA=ON"


def test_a_device_that_does_not_tell_its_memory_is_unknown() -> None:
    info = FakeInfo(devices=(FakeDevice("CUDA0", "GB10", "gpu", 0, 0),))
    device = checks.check_back_ends(info, {})[1]  # type: ignore[arg-type]
    assert device.text == "CUDA0: GB10 (gpu), unknown free of unknown"


def test_memory_and_container_limit() -> None:
    text = "4.0 GiB available of 8.0 GiB, container limit 512.0 MiB"
    finding = checks.check_memory(probe.Memory(8 << 30, 4 << 30, 512 << 20))
    assert (finding.status, finding.text) == ("warn", text)
    assert checks.check_memory(probe.Memory(8 << 30, 4 << 30, None)).status == "ok"


def test_a_processor_limit_below_the_machine_is_a_warning() -> None:
    finding = checks.check_threads(probe.Threads(physical=8, logical=16, allowed=16, quota=1.5))
    assert finding.text == "8 cores, 16 logical processors, container limit 1.5"
    assert (finding.status, finding.advice) == ("warn", "never use more than -t 1: more is much slower")
    finding = checks.check_threads(probe.Threads(physical=None, logical=16, allowed=4, quota=None))
    assert (finding.status, finding.text) == (
        "ok",
        "unknown cores, 16 logical processors, 4 allowed to this process",
    )


def test_a_lost_program_fails(tmp_path: Path) -> None:
    info = FakeInfo(programs={"llama": Path(sys.executable), "llama-imatrix": tmp_path / "gone"})
    finding = checks.check_programs(info)  # type: ignore[arg-type]
    assert (finding.status, finding.text) == ("fail", "missing or not executable: llama-imatrix")


def child(code: str) -> Finding | None:
    return checks.check_native([sys.executable, "-c", code])


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_a_child_that_dies_is_a_finding() -> None:
    finding = child("import os, signal; os.kill(os.getpid(), signal.SIGILL)")
    assert finding is not None
    assert (finding.status, finding.text) == ("fail", "uses instructions that this processor lacks")
    finding = child("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    assert finding is not None
    assert finding.text == "crashes while loading (SIGSEGV)"


def test_a_child_that_ends_well_or_by_an_exception_is_none() -> None:
    assert child("pass") is None
    assert child("raise ImportError") is None


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.skipif(
    any("editable" in type(finder).__module__ for finder in sys.meta_path), reason="an editable install finds it first"
)
def test_the_child_looks_where_this_process_does(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    package = tmp_path / "there" / "pyclover" / "engine"
    package.mkdir(parents=True)
    for folder in (package.parent, package):
        (folder / "__init__.py").touch()
    (package / "build_info.py").write_text(
        "import os, signal\ndef build_info():\n    os.kill(os.getpid(), signal.SIGABRT)\n", encoding="utf-8"
    )
    monkeypatch.setattr(sys, "path", [str(tmp_path / "there"), *sys.path])
    finding = checks.check_native()
    assert finding is not None
    assert finding.text == "crashes while loading (SIGABRT)"


def test_a_child_that_hangs_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "CHILD_TIMEOUT_S", 0.2)
    finding = child("import threading; threading.Event().wait()")
    assert finding is not None
    assert finding.text == "does not load within 0.2 s"


@dataclass
class FakeStats:
    mode: str
    n_prompt: int
    n_generated: int
    prompt_tok_per_s: float
    decode_tok_per_s: float


class FakeClover:
    error: Exception | None = None

    def __init__(self, model: str, **options: Any) -> None:
        if self.error is not None:
            raise self.error
        assert options == {"n_ctx": 512}

    def __enter__(self) -> FakeClover:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def tokenize(self, text: str) -> list[int]:
        return list(range(len(text)))

    def generate(self, prompt: list[int], *, max_tokens: int, **options: Any) -> Any:
        assert options == {"temperature": 0.0, "ignore_eos": True}
        return types.SimpleNamespace(stats=FakeStats("plain", len(prompt), max_tokens, 500.0, 100.0))


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> FakeInfo:
    info = FakeInfo()
    build_info = types.ModuleType("pyclover.engine.build_info")
    build_info.build_info = lambda: info  # type: ignore[attr-defined]
    clover = types.ModuleType("pyclover.clover")
    clover.Clover = FakeClover  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pyclover.engine.build_info", build_info)
    monkeypatch.setitem(sys.modules, "pyclover.clover", clover)
    monkeypatch.setattr(FakeClover, "error", None)
    monkeypatch.setattr(checks, "check_native", lambda: None)
    monkeypatch.setattr(checks, "check_python", lambda: Finding("python", "ok", "3.11.7"))
    monkeypatch.setattr(probe, "cpu", lambda: probe.Cpu("Xeon", frozenset({"fma", "avx2", "sse"})))
    monkeypatch.setattr(probe, "threads", lambda: probe.Threads(2, 4, 4, None))
    monkeypatch.setattr(probe, "memory", lambda: probe.Memory(8 << 30, 4 << 30, None))
    monkeypatch.setattr(probe, "gpu_hints", dict)
    return info


def run(*args: str) -> Result:
    return CliRunner().invoke(cli, ["doctor", *args], prog_name="clover-run")


def test_a_sound_installation(machine: FakeInfo) -> None:
    result = run()
    assert (result.stderr, result.exit_code) == ("", 0)
    assert [line.split(None, 1)[0] for line in result.stdout.splitlines()] == ["what"] + ["ok"] * 9
    assert result.stdout.splitlines() == [
        "    what           found",
        "ok  python         3.11.7",
        "ok  native part    pyclover 0.1.0, llama.cpp 0.5.0-dev (0c1e57098), 1 patch, GNU 12.2.0, Release",
        "ok  processor      Xeon; has all that the build needs: avx2 fma",
        "ok  back ends      CPU",
        "ok  device         CPU: Xeon (cpu), 4.0 GiB free of 8.0 GiB",
        "ok  programs       llama",
        "ok  memory         4.0 GiB available of 8.0 GiB",
        "ok  threads        2 cores, 4 logical processors",
        "ok  reference run  plain: model tiny, prompt 128 tokens, 500.0 tok/s; generated 80 tokens, 100.0 tok/s",
    ]


def test_json_holds_facts_findings_and_speeds(machine: FakeInfo) -> None:
    result = run("--json", "-m", "m.gguf")
    assert (result.stderr, result.exit_code) == ("", 0)
    report = json.loads(result.stdout)
    assert report["status"] == "ok"
    assert {finding["topic"] for finding in report["findings"]} >= {"python", "processor", "memory", "threads"}
    assert report["cpu"] == {"model": "Xeon", "features": ["avx2", "fma", "sse"]}
    assert report["threads"] == {"physical": 2, "logical": 4, "allowed": 4, "quota": None}
    assert report["memory"] == {"total_bytes": 8 << 30, "available_bytes": 4 << 30, "limit_bytes": None}
    assert report["build"]["programs"] == {"llama": sys.executable}
    assert report["build"]["devices"][0]["total_bytes"] == 8 << 30
    assert report["reference_run"] == {
        "model": "m.gguf",
        "mode": "plain",
        "n_prompt": 128,
        "prompt_tok_per_s": 500.0,
        "n_generated": 80,
        "decode_tok_per_s": 100.0,
    }


def test_a_model_that_does_not_run_fails(machine: FakeInfo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeClover, "error", errors.InvalidFileError("m.gguf is no GGUF file."))
    result = run("-m", "m.gguf")
    assert result.stdout.splitlines()[-1] == (
        "fail  reference run  m.gguf is no GGUF file: clover-run inspect tells more about a file"
    )
    assert (result.stderr, result.exit_code) == ("1 of 9 checks failed.\n", 1)


def test_a_native_part_that_does_not_load_fails_and_the_rest_is_still_checked(
    machine: FakeInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyclover.engine.build_info", None)
    result = run("--json")
    assert (result.stderr, result.exit_code) == ("", 1)
    report = json.loads(result.stdout)
    assert report["status"] == "fail"
    assert report["build"] is None
    assert report["reference_run"] is None
    assert [(finding["topic"], finding["status"]) for finding in report["findings"]] == [
        ("python", "ok"),
        ("native part", "fail"),
        ("memory", "ok"),
        ("threads", "ok"),
    ]


def test_a_processor_that_is_too_old_is_named(machine: FakeInfo, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise errors.UnsupportedCPUError("build it here with GGML_NATIVE=ON", missing=["avx2", "fma"])

    sys.modules["pyclover.engine.build_info"].build_info = refuse  # type: ignore[attr-defined]
    report = json.loads(run("--json").stdout)
    assert report["findings"][1] == {
        "topic": "native part",
        "status": "fail",
        "text": "the processor lacks avx2, fma",
        "advice": "build it here with GGML_NATIVE=ON",
    }


def test_warnings_do_not_fail(machine: FakeInfo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "gpu_hints", lambda: {"CUDA": "/dev/nvidiactl"})
    result = run("--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["status"] == "warn"
