"""What `clover-run doctor` looks at: facts in, findings out. Nothing here prints."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pyclover.cli import probe
from pyclover.cli.output import size, speed
from pyclover.errors import CloverError, UnsupportedCPUError

if TYPE_CHECKING:
    from pyclover.engine.build_info import BuildInfo

Status = Literal["ok", "warn", "fail"]

CHILD_TIMEOUT_S = 60
REFERENCE_TEXT = "The quick brown fox jumps over the lazy dog. " * 12
LITTLE_MEMORY_BYTES = 1 << 30


@dataclass(frozen=True)
class Finding:
    """One thing looked at: what was found, and what to do about it if it is not well."""

    topic: str
    status: Status
    text: str
    advice: str = ""


def child_command() -> list[str]:
    """Loads the native part from where this process would: `-c` alone would look into the current folder first."""
    code = f"import sys; sys.path[:] = {sys.path!r}; from pyclover.engine.build_info import build_info; build_info()"
    return [sys.executable, "-c", code]


def check_native(command: Sequence[str] | None = None) -> Finding | None:
    """Loads the native part in a child process first: a crash there becomes a finding, not the end of the doctor."""
    try:
        child = subprocess.run(command or child_command(), capture_output=True, timeout=CHILD_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return Finding(
            "native part", "fail", f"does not load within {CHILD_TIMEOUT_S} s", "look for a stuck GPU driver"
        )
    code = child.returncode
    if code in (-signal.SIGILL, 0xC000001D):  # the second: what Windows calls it
        advice = "build it on this machine: pip install --force-reinstall --no-cache-dir --no-binary pyclover pyclover"
        return Finding("native part", "fail", "uses instructions that this processor lacks", advice)
    if code < 0 or code > 255:
        name = signal.Signals(-code).name if code < 0 else hex(code)
        return Finding(
            "native part", "fail", f"crashes while loading ({name})", "check the GPU driver, then build again"
        )
    return None  # an ordinary exception says more in this process


def check_build() -> tuple[BuildInfo | None, list[Finding]]:
    """What was built, None when it does not load."""
    finding = check_native()
    if finding is not None:
        return None, [finding]
    try:
        from pyclover.engine.build_info import build_info

        info = build_info()
    except UnsupportedCPUError as error:
        text = f"the processor lacks {', '.join(error.missing) or 'what this build needs'}"
        return None, [Finding("native part", "fail", text, str(error))]
    except (ImportError, CloverError) as error:
        text = f"does not load: {error}"
        return None, [Finding("native part", "fail", text, "install again; see docs/install.md")]
    build = f"{info.compiler}, {info.build_type}{', for this processor' if info.native else ''}"
    patches = f"{len(info.patches)} patch{'es' * (len(info.patches) != 1)}"
    text = f"pyclover {info.version}, llama.cpp {info.llama_cpp_version} ({info.llama_cpp_commit}), {patches}, {build}"
    return info, [Finding("native part", "ok", text)]


def check_python() -> Finding:
    """The interpreter."""
    version = ".".join(map(str, sys.version_info[:3]))
    return Finding("python", "ok", f"{version}, {sys.platform}, {sys.executable}")


def check_cpu(cpu: probe.Cpu, needed: Sequence[str]) -> Finding:
    """Whether the processor has what the build needs."""
    if not needed:
        return Finding("processor", "ok", f"{cpu.model}; the build needs no special instructions")
    names = " ".join(needed)
    if cpu.features is None:
        return Finding("processor", "ok", f"{cpu.model}; the build needs {names}, this system does not list features")
    missing = [name for name in needed if name not in cpu.features]
    if missing:
        advice = "build with the instructions that are there: CMAKE_ARGS=-DGGML_NATIVE=ON pip install …"
        return Finding("processor", "fail", f"{cpu.model} lacks {' '.join(missing)} (needed: {names})", advice)
    return Finding("processor", "ok", f"{cpu.model}; has all that the build needs: {names}")


def check_back_ends(info: BuildInfo, hints: dict[str, str]) -> list[Finding]:
    """Back ends built, against the GPUs that seem to be here; and the devices that they found."""
    built = ", ".join(info.backends) or "none"
    names = {name.lower() for name in info.backends}
    absent = {name: why for name, why in hints.items() if not names & {name.lower(), "vulkan"}}
    findings = [Finding("back ends", "ok", built)]
    if absent:
        name, why = next(iter(absent.items()))
        advice = f"to use it, build with CMAKE_ARGS=-DGGML_{name.upper()}=ON"
        findings = [Finding("back ends", "warn", f"{built}; but there seems to be a GPU for {name} ({why})", advice)]
    for device in info.devices:
        memory = f"{size(device.free_bytes or None)} free of {size(device.total_bytes or None)}"
        findings.append(Finding("device", "ok", f"{device.name}: {device.description} ({device.kind}), {memory}"))
    return findings


def check_memory(memory: probe.Memory) -> Finding:
    """Main memory: what is there, what is free, what the container allows."""
    text = f"{size(memory.available_bytes)} available of {size(memory.total_bytes)}"
    if memory.limit_bytes is not None:
        text += f", container limit {size(memory.limit_bytes)}"
    usable = min(memory.available_bytes, memory.limit_bytes or memory.available_bytes)
    if usable < LITTLE_MEMORY_BYTES:
        return Finding("memory", "warn", text, "close other programs: only very small models fit")
    return Finding("memory", "ok", text)


def check_threads(threads: probe.Threads) -> Finding:
    """Threads: cores, logical processors, limits."""
    text = f"{threads.physical or 'unknown'} cores, {threads.logical or 'unknown'} logical processors"
    if threads.allowed is not None and threads.allowed != threads.logical:
        text += f", {threads.allowed} allowed to this process"
    if threads.quota is not None:
        text += f", container limit {threads.quota:g}"
        if threads.logical is not None and threads.quota < threads.logical:
            return Finding("threads", "warn", text, f"never use more than -t {threads.usable}: more is much slower")
    return Finding("threads", "ok", text)


def check_programs(info: BuildInfo) -> Finding:
    """The llama.cpp programs that came with the package."""
    lost = [name for name, path in info.programs.items() if not os.access(path, os.X_OK)]
    if lost:
        return Finding("programs", "fail", f"missing or not executable: {', '.join(lost)}", "install the package again")
    if not info.programs:
        return Finding("programs", "warn", "none in this build", "clover-run tool will have nothing to run")
    return Finding("programs", "ok", ", ".join(info.programs))


def check_run(model: str) -> tuple[Finding, dict[str, Any] | None]:
    """About one second of plain generation; the speeds too, None when it fails."""
    from pyclover.clover import Clover

    options: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True}
    try:
        with Clover(model, n_ctx=512) as clover:
            prompt = clover.tokenize(REFERENCE_TEXT)[:128]
            first = clover.generate(prompt, max_tokens=8, **options).stats
            n_tokens = min(max(int(0.8 * (first.decode_tok_per_s or 0)), 8), 256)
            result = clover.generate(prompt, max_tokens=n_tokens, **options)
    except (CloverError, OSError) as error:
        text = str(error).rstrip(".")
        return Finding("reference run", "fail", text, "clover-run inspect tells more about a file"), None
    second = result.stats
    speeds = {
        "model": model,
        "mode": second.mode,
        "n_prompt": first.n_prompt,
        "prompt_tok_per_s": first.prompt_tok_per_s,
        "n_generated": second.n_generated,
        "decode_tok_per_s": second.decode_tok_per_s,
    }
    text = (
        f"{second.mode}: model {model}, prompt {first.n_prompt} tokens, {speed(first.prompt_tok_per_s)}; "
        f"generated {second.n_generated} tokens, {speed(second.decode_tok_per_s)}"
    )
    return Finding("reference run", "ok", text), speeds
