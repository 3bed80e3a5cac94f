"""`clover-run convert` with llama.cpp's converter: what its files compute, the hub, Ctrl-C, kills.

A Python with torch and transformers is needed: this one, or the one that PYCLOVER_CONVERT_PYTHON names.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import gguf
import numpy as np
import pytest
from convert_checkpoint import Oracle, make_checkpoint
from fake_hub import FakeHub, fake_hub
from support import EXACT, ORACLE

import pyclover
from pyclover.files.convert_run import check_python

pytestmark = pytest.mark.timeout(600)

PREVIEW = ORACLE / "expected_preview"
PARTS = ("x.gguf.convert.json", "x.gguf.convert.part")
# name -> file that its checkpoint is made from, experts in one tensor
MODELS = {
    "tiny_a_preview": (PREVIEW / "tiny_a_preview.gguf", True),
    "tiny_b_preview": (PREVIEW / "tiny_b_preview.gguf", False),
    "tiny": (None, True),
}


@pytest.fixture(scope="module")
def python() -> str:
    found = os.environ.get("PYCLOVER_CONVERT_PYTHON") or sys.executable
    try:
        check_python(found)
    except pyclover.CloverError as e:
        pytest.skip(str(e))
    return found


class Cli:
    """Runs the program with a cache of its own."""

    def __init__(self, folder: Path, python: str) -> None:
        self.cache = folder / "cache"
        self.cwd = folder
        self.env = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "PYCLOVER_"))}
        self.env |= {
            "PYCLOVER_CACHE": str(self.cache), "PYCLOVER_CONFIG": str(folder), "HF_HOME": str(folder / "hf"),
            "NO_COLOR": "1", "PYTHONUTF8": "1", "PYCLOVER_CONVERT_PYTHON": python, "OMP_NUM_THREADS": "1",
        }  # fmt: skip

    def start(self, *args: object) -> subprocess.Popen[str]:
        found = shutil.which("clover-run", path=str(Path(sys.executable).parent))
        program = [found] if found else [sys.executable, "-m", "pyclover.cli.main"]
        return subprocess.Popen(
            [*program, "convert", *map(str, args)], cwd=self.cwd,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=self.env,
        )  # fmt: skip

    def __call__(self, *args: object) -> tuple[int, str, str]:
        with self.start(*args) as process:
            out, err = process.communicate(timeout=300)
        return process.returncode, out, err


@pytest.fixture
def cli(tmp_path: Path, python: str) -> Cli:
    return Cli(tmp_path, python)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folders of the checkpoints, all called Clover."""
    from pyclover.files.embedded import embedded_path

    out = {}
    for name, (file, fused) in MODELS.items():
        out[name] = tmp_path_factory.mktemp(name) / "Clover"
        make_checkpoint(out[name], file or embedded_path("tiny"), fused=fused)
    return out


@pytest.fixture(scope="module")
def converted(
    checkpoints: dict[str, Path], python: str, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., tuple[Path, pyclover.Conversion]]:
    """The checkpoint of a name as a GGUF file; each is made once."""
    folder = tmp_path_factory.mktemp("converted")
    made: dict[tuple[Any, ...], tuple[Path, pyclover.Conversion]] = {}

    def get(name: str, outtype: str = "f32", *, plain: bool = False) -> tuple[Path, pyclover.Conversion]:
        key = (name, outtype, plain)
        if key not in made:
            path = folder / f"{len(made)}.gguf"
            made[key] = path, pyclover.convert(checkpoints[name], path, outtype=outtype, plain=plain, python=python)
        return made[key]

    return get


def source_file(name: str) -> Path:
    from pyclover.files.embedded import embedded_path

    return MODELS[name][0] or embedded_path("tiny")


PROMPT = [5, 17, 60, 3, 9, 44, 21]


@pytest.mark.parametrize("plain", [False, True], ids=["whole", "plain"])
@pytest.mark.parametrize("name", MODELS)
def test_logits_are_the_references(
    name: str, plain: bool, converted: Callable[..., Any], reference: ModuleType
) -> None:
    """Value heads, norms less one, A_log and the rest come out as they went in: the reference has the old file."""
    path, done = converted(name, plain=plain)
    kv, tensors = reference.load(str(source_file(name)))
    with pyclover.Clover(path, n_ctx=256, **EXACT) as m:
        assert m.warnings == ()
        got = list(m.generate(PROMPT, max_tokens=24, temperature=0).tokens)
        np.testing.assert_allclose(
            m.logits(PROMPT + got), reference.forward(kv, tensors, PROMPT + got), rtol=0, atol=1e-3
        )
        if plain:
            assert not done.capabilities.draft_self
            with pytest.raises(pyclover.SpeculationUnavailableError):
                m.preview(PROMPT, [9, 9])
            return
        mask = kv["tokenizer.ggml.mask_token_id"]
        for rows in ([3, mask, mask, mask], [mask] * 7, [8, mask, 30, mask, mask]):
            cache = reference.Cache(kv, tensors)
            reference.prefill(cache, PROMPT)
            want = reference.preview(cache, rows, shift=kv.get("diffusion.shift_logits", False))
            np.testing.assert_allclose(m.preview(PROMPT, rows), want, rtol=0, atol=1e-3)
    assert done.capabilities.draft_self
    assert done.capabilities.block_diffusion


@pytest.mark.parametrize("name", ["tiny_a_preview", "tiny_b_preview"])
def test_previews_are_the_recorded_ones(
    name: str, converted: Callable[..., Any], expected: Callable[[str], dict[str, Any]]
) -> None:
    path, _ = converted(name)
    with pyclover.Clover(path, n_ctx=256, **EXACT) as m:
        for case in expected(name)["previews"]:
            np.testing.assert_allclose(m.preview(case["prefix_ids"], case["rows"]), case["logits"], rtol=0, atol=1e-3)


@pytest.mark.parametrize("name", MODELS)
def test_metadata(name: str, converted: Callable[..., Any]) -> None:
    path, done = converted(name)
    got, want = Oracle(path), Oracle(source_file(name))
    expected = {k: v for k, v in want.meta.items() if k.startswith(("clover_moe.", "tokenizer."))}
    expected |= {"general.architecture": "clover_moe", "clover_moe.expert_shared_count": 1}  # official files lack it
    assert {k: got.meta.get(k) for k in expected} == expected
    assert got.meta["general.name"] == "Clover"
    assert (done.mask_token_id, done.block_length) == (
        want.meta["tokenizer.ggml.mask_token_id"], want.key("diffusion.block_length"),
    )  # fmt: skip
    assert done.n_bytes == path.stat().st_size


@pytest.mark.parametrize("name", ["tiny_a_preview", "tiny_b_preview"])
def test_plain_has_only_what_upstream_knows(name: str, converted: Callable[..., Any]) -> None:
    """FACTS: upstream's loader counts tensors; the names of its own are those of the oracle's file without preview."""
    path, done = converted(name, plain=True)
    got, want = Oracle(path), Oracle(source_file(name))
    assert got.tensors.keys() == {n for n in want.tensors if "ssm_bd_" not in n and "ssm_conv1d_right" not in n}
    assert not [key for key in got.meta if "diffusion" in key]
    assert got.meta["clover_moe.expert_shared_count"] == 1
    assert len(done.left_out) == len(want.tensors) - len(got.tensors)


@pytest.mark.parametrize("outtype", ["bf16", "f16", "q8_0"])
def test_types_and_values(outtype: str, converted: Callable[..., Any], checkpoints: dict[str, Path]) -> None:
    path, _ = converted("tiny", outtype)
    want = Oracle(converted("tiny")[0]).tensors
    step = {"bf16": 2.0**-8, "f16": 2.0**-10}
    n_small = 0
    for t in gguf.GGUFReader(path).tensors:
        exact = t.name.endswith(("norm.weight", "ffn_gate_inp.weight", "ffn_gate_inp_shexp.weight", "ssm_a", ".bias"))
        exact |= "ssm_conv1d" in t.name or "ssm_bd_" in t.name
        assert t.tensor_type.name == ("F32" if exact else outtype.upper()), t.name
        n_small += not exact
        a = want[t.name]
        got = gguf.dequantize(t.data, t.tensor_type).reshape(a.shape)
        if exact:
            np.testing.assert_array_equal(got, a, err_msg=t.name)
        elif outtype == "q8_0":  # half a step of a block's scale, which is stored with 11 bits
            blocks = a.reshape(-1, 32)
            bound = np.abs(blocks).max(axis=1, keepdims=True) * (0.5 / 127 + 2.0**-11)
            assert (np.abs(got.reshape(-1, 32) - blocks) <= bound + 1e-12).all(), t.name
        else:
            assert (np.abs(got - a) <= np.abs(a) * step[outtype] + 6e-8).all(), t.name
    assert n_small == 87


def test_the_file_is_what_the_converter_alone_writes(
    python: str, checkpoints: dict[str, Path], converted: Callable[..., Any], tmp_path: Path
) -> None:
    from pyclover._native import generated

    script, alone = generated("pyclover", "converter") / "convert_hf_to_gguf.py", tmp_path / "alone.gguf"
    subprocess.run(
        [python, str(script), str(checkpoints["tiny_b_preview"]), "--outfile", str(alone), "--outtype", "f32"],
        capture_output=True, check=True, cwd=tmp_path, env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    assert converted("tiny_b_preview")[0].read_bytes() == alone.read_bytes()


def test_the_expected_size_is_near(checkpoints: dict[str, Path], converted: Callable[..., Any]) -> None:
    for name in MODELS:
        real = converted(name)[1].n_bytes
        planned = pyclover.convert(checkpoints[name], dry_run=True, outtype="f32").n_bytes
        assert real <= planned <= real * 1.02 + 20_000


def test_the_command(cli: Cli, checkpoints: dict[str, Path], converted: Callable[..., Any]) -> None:
    source = checkpoints["tiny_a_preview"]
    code, out, err = cli(source, "--dry-run", "--json")
    report = json.loads(out)
    assert (code, err, report["written"], set(report["types"])) == (0, "", False, {"BF16", "F32"})
    assert list(cli.cwd.glob("*.gguf*")) == []
    code, out, err = cli(source, "--outtype", "f32")
    assert (code, out) == (0, "Clover-F32.gguf\n"), err
    assert "it can: plain, draft-self, block diffusion" in err
    made = cli.cwd / "Clover-F32.gguf"
    assert made.read_bytes() == converted("tiny_a_preview")[0].read_bytes()
    made.write_bytes(b"mine")
    code, out, err = cli(source, "--outtype", "f32", "-o", made)
    assert (code, out, made.read_bytes()) == (1, "", b"mine")
    assert "--force" in err
    code, out, err = cli(source, "--outtype", "f32", "-o", made, "--force", "--json")
    assert (code, err, json.loads(out)["path"]) == (0, "", str(made))
    assert made.read_bytes() == converted("tiny_a_preview")[0].read_bytes()
    assert [p.name for p in cli.cwd.glob("*gguf*")] == ["Clover-F32.gguf"]


def test_a_bad_checkpoint_is_refused_in_one_sentence(cli: Cli, checkpoints: dict[str, Path]) -> None:
    folder = cli.cwd / "Bad"
    shutil.copytree(checkpoints["tiny_a_preview"], folder)
    shard = folder / "model-00002-of-00003.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1])
    code, out, err = cli(folder)
    assert (code, out) == (1, "")
    assert err.count("\n") == 1
    assert str(shard) in err
    assert list(cli.cwd.glob("*gguf*")) == []


@pytest.fixture
def hub(checkpoints: dict[str, Path]) -> Iterator[FakeHub]:
    files = {path.name: path.read_bytes() for path in checkpoints["tiny_a_preview"].iterdir()}
    with fake_hub() as running:
        running.add("owner/Clover", files, small=tuple(n for n in files if not n.endswith(".safetensors")))
        yield running


@pytest.mark.parametrize("keep", [True, False])
def test_from_the_hub(keep: bool, cli: Cli, hub: FakeHub, converted: Callable[..., Any]) -> None:
    cli.env["HF_ENDPOINT"] = hub.url
    code, out, err = cli("owner/Clover", "--outtype", "f32", *(() if keep else ("--no-keep-shards",)))
    assert (code, out) == (0, "Clover-F32.gguf\n"), err
    assert (cli.cwd / "Clover-F32.gguf").read_bytes() == converted("tiny_a_preview")[0].read_bytes()
    names = [f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)]
    assert [name for name in names if f"downloading {name}" in err] == names
    assert sorted(p.name for p in cli.cache.rglob("*.safetensors")) == (names if keep else [])


posix = pytest.mark.skipif(os.name != "posix", reason="signals as POSIX has them")


@posix
@pytest.mark.parametrize(
    ("resume", "kind"), [(True, signal.SIGINT), (False, signal.SIGINT), (True, signal.SIGTERM), (False, signal.SIGTERM)]
)
def test_ctrl_c(resume: bool, kind: signal.Signals, cli: Cli, checkpoints: dict[str, Path]) -> None:
    out_file = cli.cwd / "x.gguf"
    with cli.start(checkpoints["tiny_a_preview"], "-o", out_file, *(() if resume else ("--no-resume",))) as process:
        assert process.stderr is not None
        assert "starting the converter" in process.stderr.readline()
        time.sleep(random.random())
        process.send_signal(kind)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert ("the same command continues there" in err) == resume
    assert not out_file.exists()
    assert not list(cli.cwd.glob("*.stage"))
    assert resume or list(cli.cwd.glob("x.gguf*")) == []


KILLED = """
import os, signal, sys
import pyclover
from pyclover.files import convert_run
convert_run.SYNC_BYTES = 1
source, path, python, at = *sys.argv[1:4], int(sys.argv[4])
n_calls = 0
def kill(state):
    global n_calls
    n_calls += state.phase == "convert"
    if n_calls == at:
        os.kill(os.getpid(), signal.SIGKILL)
pyclover.convert(source, path, outtype="f32", python=python, progress=kill)
"""


@posix
def test_killed_at_random_moments(
    python: str, checkpoints: dict[str, Path], converted: Callable[..., Any], tmp_path: Path
) -> None:
    """20 kills, by the clock and in the middle of writing: nothing under the final name, then the same bytes."""
    rng = random.Random(8)
    path, whole = tmp_path / "x.gguf", converted("tiny")[0].read_bytes()
    n_tensors = len(gguf.GGUFReader(source_file("tiny")).tensors)
    args = [sys.executable, "-c", KILLED, str(checkpoints["tiny"]), str(path), python]
    sizes = []
    for i in range(20):
        at = rng.randrange(1, n_tensors) if i % 4 == 3 else 0
        with subprocess.Popen([*args, str(at)], cwd=tmp_path, stderr=subprocess.PIPE) as process:
            try:
                process.communicate(timeout=None if at else rng.uniform(0.0, 4.0))
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
        if process.returncode == 0:  # it was faster
            assert path.read_bytes() == whole
            path.unlink()
            continue
        assert process.returncode == -signal.SIGKILL
        assert not path.exists()
        part = tmp_path / PARTS[1]
        sizes.append(part.stat().st_size if part.exists() else 0)
    assert len(sizes) >= 5
    assert max(sizes) > 0
    done = pyclover.convert(checkpoints["tiny"], path, outtype="f32", python=python)
    assert done.resumed_bytes > 0
    assert path.read_bytes() == whole
    assert list(tmp_path.iterdir()) == [path]
