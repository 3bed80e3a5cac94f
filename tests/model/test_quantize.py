"""Quantizing: types and sizes are those that were said before, files are whole or not there, and still answer."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from support import ROOT, small_file_system

import pyclover
from pyclover.engine.build_info import programs
from pyclover.errors import FileError, UnsupportedModelError, UsageError
from pyclover.tuning.quantize import QuantizeProgress
from pyclover.tuning.recipes import builtin_names

TINY = ROOT / "pyclover" / "data" / "tiny.gguf"
# What the recipes say, written down by hand: the first pattern that is found in the name counts. The model in the
# package has 8 layers, and its embedding is its output too.
_EXPERTS, _VALUES = r"ffn_\w+_exps", r"attn_(v|qkv)\.|ffn_down_(sh)?exp"
_MORE = rf"blk\.[0367]\.({_VALUES})"
SAYS: dict[str, tuple[tuple[str, str], ...]] = {
    "BF16": (("", "BF16"),),
    "Q8_0": (("", "Q8_0"),),
    "Q6_K": (("", "Q6_K"),),
    "Q5_K_M": (("token_embd", "Q6_K"), (_MORE, "Q6_K"), ("", "Q5_K")),
    "Q4_K_M": (("token_embd", "Q6_K"), (_MORE, "Q6_K"), ("", "Q4_K")),
    "Q4_K_M-hq": ((r"blk\.[0367]\.ffn_down_exps", "Q6_K"), (_EXPERTS, "Q4_K"), ("", "Q8_0")),
    "Q4_K_M-exps-Q3_K": ((_EXPERTS, "Q3_K"), ("token_embd", "Q6_K"), (_MORE, "Q6_K"), ("", "Q4_K")),
    "Q4_K_M-exps-Q2_K": ((_EXPERTS, "Q2_K"), ("token_embd", "Q6_K"), (_MORE, "Q6_K"), ("", "Q4_K")),
    "Q4_K_M-exps-IQ3_XXS": ((_EXPERTS, "IQ3_XXS"), ("token_embd", "Q6_K"), (_MORE, "Q6_K"), ("", "Q4_K")),
    "Q4_K_M-exps-IQ2_XXS": ((_EXPERTS, "IQ2_XXS"), ("token_embd", "Q6_K"), (_MORE, "Q6_K"), ("", "Q4_K")),
    "Q4_0": (("token_embd", "Q6_K"), ("", "Q4_0")),
    "IQ4_XS": (
        ("token_embd", "Q6_K"), (r"blk\.0\.ffn_down", "Q5_K"), (r"attn_(v|qkv)\.", "Q5_K"), ("", "IQ4_XS"),
    ),
    "Q3_K_M": (
        ("token_embd", "Q6_K"), (r"blk\.[01]\.attn_(v|qkv)\.", "Q5_K"), (rf"{_VALUES}|attn_output", "Q4_K"),
        ("", "Q3_K"),
    ),
    "Q3_K_M-hq": (("ffn_down_exps", "Q4_K"), (_EXPERTS, "Q3_K"), ("", "Q8_0")),
    "Q2_K": (
        ("token_embd", "Q6_K"), (r"attn_(v|qkv)\.", "Q4_K"), ("ffn_down|attn_output", "Q3_K"), ("", "Q2_K"),
    ),
    "Q2_K-hq": (("ffn_down_exps", "Q3_K"), (_EXPERTS, "Q2_K"), ("", "Q8_0")),
}  # fmt: skip
# what llama.cpp's quantizing program says that it takes for rows which 256 does not divide
INSTEAD = {"Q2_K": "Q4_0", "Q3_K": "Q4_0", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0", "IQ4_XS": "IQ4_NL",
           "IQ3_XXS": "IQ4_NL", "IQ2_XXS": "IQ4_NL"}  # fmt: skip
KEPT = re.compile(r"norm|ffn_gate_inp|ssm_conv1d|ssm_bd_|ssm_a$|\.bias$")


@pytest.fixture(scope="module")
def all_of_tiny(tmp_path_factory: pytest.TempPathFactory) -> pyclover.Quantization:
    """The model in the package by every recipe of the package."""
    return pyclover.quantize("tiny", builtin_names(), tmp_path_factory.mktemp("all"), n_threads=2)


def types_in(path: Path) -> dict[str, str]:
    """As gguf-py reads them."""
    return {t.name: t.tensor_type.name for t in gguf.GGUFReader(path).tensors}


def test_the_table_is_about_every_recipe() -> None:
    assert set(SAYS) == set(builtin_names())


@pytest.mark.parametrize("recipe", sorted(SAYS))
def test_types_are_those_of_the_recipe(recipe: str, all_of_tiny: pyclover.Quantization) -> None:
    (file,) = (f for f in all_of_tiny.files if f.recipe == recipe)
    found = types_in(file.path)
    for name, kind in found.items():
        if KEPT.search(name):
            assert (name, kind) == (name, "F32")
            continue
        wanted = next(t for pattern, t in SAYS[recipe] if re.search(pattern, name))
        assert (name, kind) == (name, INSTEAD.get(wanted, wanted))
    assert len(found) == 172
    assert found == file.types
    assert sum(map(len, file.fallbacks.values())) == sum(
        next(t for p, t in SAYS[recipe] if re.search(p, n)) in INSTEAD for n in found if not KEPT.search(n)
    )


def test_sizes_are_those_that_were_said(all_of_tiny: pyclover.Quantization) -> None:
    said = pyclover.quantize("tiny", builtin_names(), all_of_tiny.files[0].path.parent, dry_run=True)
    assert said.dry_run
    for before, after in zip(said.files, all_of_tiny.files, strict=True):
        size = after.path.stat().st_size
        assert before.predicted_bytes == after.predicted_bytes == after.n_bytes == size
        assert (before.types, before.written, after.written) == (after.types, False, True)
        weights = gguf.GGUFReader(after.path).tensors
        bits = 8 * sum(int(t.n_bytes) for t in weights) / sum(int(t.n_elements) for t in weights)
        assert after.bits_per_weight == pytest.approx(bits, rel=1e-12)
        assert sum(use.n_bytes for use in after.groups.values()) == sum(int(t.n_bytes) for t in weights)


@pytest.mark.parametrize("recipe", ["Q8_0", "Q4_K_M-hq", "Q2_K"])
def test_everything_else_stays(recipe: str, all_of_tiny: pyclover.Quantization) -> None:
    (file,) = (f for f in all_of_tiny.files if f.recipe == recipe)
    old, new = gguf.GGUFReader(TINY), gguf.GGUFReader(file.path)
    changed = {"general.file_type", "GGUF.kv_count"}
    assert {k: f.contents() for k, f in old.fields.items() if k not in changed} == {
        k: f.contents() for k, f in new.fields.items() if k not in changed
    }
    assert new.fields["general.file_type"].contents() == {"Q8_0": 7, "Q4_K_M-hq": 15, "Q2_K": 10}[recipe]
    tensors = {t.name: t for t in old.tensors}
    n_preview = 0
    for t in new.tensors:
        if t.tensor_type == gguf.GGMLQuantizationType.F32:
            np.testing.assert_array_equal(t.data, tensors[t.name].data)
            n_preview += "ssm_bd_" in t.name or "right" in t.name
        elif t.tensor_type == gguf.GGMLQuantizationType.Q8_0:  # gguf-py's own quantizer gives the same bytes
            ours = gguf.quants.quantize(tensors[t.name].data.astype(np.float32), t.tensor_type)
            np.testing.assert_array_equal(np.asarray(t.data).reshape(ours.shape), ours)
    assert n_preview == 24


@pytest.mark.parametrize("recipe", ["Q8_0", "Q4_K_M", "Q4_K_M-hq", "Q4_K_M-exps-Q3_K", "Q2_K"])
def test_the_results_answer_and_draft(recipe: str, all_of_tiny: pyclover.Quantization) -> None:
    (file,) = (f for f in all_of_tiny.files if f.recipe == recipe)
    report = pyclover.inspect(file.path)
    assert report.capabilities.draft_self
    assert not report.problems
    with pyclover.Clover(file.path) as m:
        reply = m.generate("Once upon a time", max_tokens=16, temperature=0)
        drafted = m.generate(
            "Once upon a time", max_tokens=16, temperature=0, speculation=pyclover.DraftSelf(adaptive=False)
        )
    assert reply.text
    assert drafted.text == reply.text
    assert drafted.stats.drafted > 0


def program_types(path: Path, mixture: str) -> dict[str, str]:
    """What the quantizing program itself would make of the file."""
    command = [programs()["llama"], "quantize", "--allow-requantize", "--dry-run", path, mixture]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = re.finditer(r"\] +(\S+) +- \[.*?type = +(\w+), size = .*?(?:\((\w+)\))?$", done.stdout + done.stderr, re.M)
    return {m[1]: (m[3] or m[2]).upper() for m in lines}


def test_mixtures_are_those_of_the_program(real_geometry: Path, tmp_path: Path) -> None:
    mixtures = [name for name in builtin_names() if "-" not in name]
    said = pyclover.quantize(real_geometry, mixtures, tmp_path, dry_run=True, allow_requantize=True)
    for file in said.files:
        assert file.types == program_types(real_geometry, file.recipe)
        assert not file.fallbacks
        assert len(file.types) == 853


def test_sizes_of_the_real_model(real_geometry: Path, tmp_path: Path) -> None:
    names = builtin_names()
    with pytest.raises(UsageError, match=r"stores 'blk\.0\.ffn_gate_exps\.weight' as IQ3_XXS, which is of no use with"):
        pyclover.quantize(real_geometry, "Q4_K_M-exps-IQ3_XXS", tmp_path, dry_run=True, allow_requantize=True)
    names = tuple(name for name in names if "exps-IQ" not in name)
    said = pyclover.quantize(real_geometry, names, tmp_path, dry_run=True, allow_requantize=True)
    size = {file.recipe: file.predicted_bytes for file in said.files}
    assert size["Q2_K"] < size["Q3_K_M"] < size["Q3_K_M-hq"] < size["Q4_K_M"] < size["Q4_K_M-hq"] < size["Q8_0"]
    for file in said.files:
        preview = [kind for name, kind in file.types.items() if "ssm_bd_" in name or "right" in name]
        assert preview == ["F32"] * 120
        if file.recipe.endswith("-hq"):
            beside = {k for n, k in file.types.items() if "_exps" not in n and not KEPT.search(n)}
            assert beside == {"Q8_0"}


@pytest.fixture(scope="module")
def real_geometry(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with the sizes of Clover-35B-A3B that occupies nothing."""
    path = tmp_path_factory.mktemp("geometry") / "clover.gguf"
    script = ROOT / "benchmarks" / "real_geometry.py"
    command = [sys.executable, str(script), str(path), "--holes", "--recipe", "q8_0"]
    subprocess.run(command, check=True, capture_output=True, cwd=path.parent)
    return path


@pytest.fixture(scope="module")
def real_rows(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A file with the real model's widths, but one layer of each kind, two experts and few tokens; and an importance
    matrix for it. Of each matrix (of each expert) the first 128 rows are numbers and the others zeros, which take no
    time."""
    spec = importlib.util.spec_from_file_location("real_geometry", ROOT / "benchmarks" / "real_geometry.py")
    assert spec is not None
    assert spec.loader is not None
    geometry: Any = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = geometry
    spec.loader.exec_module(geometry)
    geometry.INTERVAL, geometry.N_EXPERT, geometry.N_EXPERT_USED, geometry.N_VOCAB = 2, 2, 2, 1024
    geometry.RECIPES["f16"] = lambda name, layer, n_layer: "F16"
    path = tmp_path_factory.mktemp("rows") / "clover.gguf"
    geometry.write(path, 2, "f16")
    matrix = pyclover.imatrix(path, path.with_name("matrix.gguf"), n_chunks=2, n_tokens=64, chat_share=0)
    for tensor in gguf.GGUFReader(path, "r+").tensors:
        if tensor.tensor_type == gguf.GGMLQuantizationType.F16:
            assert np.any(tensor.data[..., :128, :])
            tensor.data[..., 128:, :] = 0
    return path, matrix.path


@pytest.mark.timeout(900)  # on a machine that is busy
def test_real_widths_by_every_recipe(real_rows: tuple[Path, Path], tmp_path: Path) -> None:
    """No row falls back to another type, and what is read back is what the recipe's name says."""
    path, matrix = real_rows
    mixtures: dict[str, dict[str, str]] = {}
    for recipe in sorted(builtin_names(), key=lambda name: "-" in name):
        needed = matrix if "exps-IQ" in recipe else None
        said = pyclover.quantize(path, recipe, tmp_path, imatrix=needed, dry_run=True).files[0]
        file = pyclover.quantize(path, recipe, tmp_path, imatrix=needed).files[0]
        base, _, variant = recipe.partition("-")
        found = types_in(file.path)
        if not variant:
            mixtures[base] = program_types(path, base)
        for name, kind in found.items():
            wanted = mixtures[base][name]
            if KEPT.search(name):
                wanted = "F32"
            elif variant == "hq" and "_exps." not in name:
                wanted = "Q8_0"
            elif variant.startswith("exps-") and "_exps." in name:
                wanted = variant.removeprefix("exps-")
            assert (recipe, name, kind) == (recipe, name, wanted)
        preview = [name for name in found if "ssm_bd_" in name or "right" in name]
        assert len(preview) == 4
        assert not file.fallbacks
        assert said.predicted_bytes == pytest.approx(file.path.stat().st_size, rel=0.005)
        assert said.predicted_bytes == file.n_bytes == file.path.stat().st_size
        file.path.unlink()


def run(folder: Path, *args: str, **more: Any) -> subprocess.CompletedProcess[str]:
    code = "import sys; from pyclover.cli.start import main; sys.argv[0] = 'clover-run'; main()"
    command = [sys.executable, "-c", code, "quantize", *args]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False, **more)


def test_killed_at_any_moment(tmp_path: Path) -> None:
    """A type that takes its time even for the smallest model."""
    recipe = tmp_path / "slow.yaml"
    recipe.write_text("default: Q8_0\ngroups: {gdn: IQ4_NL, shared_expert: IQ4_NL}\n")
    tmp_path = tmp_path / "out"
    tmp_path.mkdir()
    args = ("tiny", "out.gguf", "-r", str(recipe), "-t", "1", "--force")
    started = time.monotonic()
    assert run(tmp_path, *args).returncode == 0
    whole_s = time.monotonic() - started
    whole = (tmp_path / "out.gguf").read_bytes()
    (tmp_path / "out.gguf").unlink()
    rng = random.Random(8)
    code = "import sys; from pyclover.cli.start import main; sys.argv[0] = 'clover-run'; main()"
    n_part = 0
    for _ in range(20):
        process = subprocess.Popen([sys.executable, "-c", code, "quantize", *args], cwd=tmp_path,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
        time.sleep(rng.uniform(0.1, 1.0) * whole_s)
        process.kill()
        process.wait()
        names = {path.name for path in tmp_path.iterdir()}
        n_part += "out.gguf.quantize.part" in names
        assert names <= {"out.gguf", "out.gguf.quantize.part"}
        if "out.gguf" in names:
            assert (tmp_path / "out.gguf").read_bytes() == whole
            (tmp_path / "out.gguf").unlink()
    assert n_part > 0  # some were killed while they wrote
    time.sleep(0.5)  # for the last one's program to end
    assert run(tmp_path, *args).returncode == 0
    assert (tmp_path / "out.gguf").read_bytes() == whole
    assert [path.name for path in tmp_path.iterdir()] == ["out.gguf"]


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_leaves_nothing(kind: signal.Signals, tmp_path: Path) -> None:
    code = "import sys; from pyclover.cli.start import main; sys.argv[0] = 'clover-run'; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "quantize", "tiny", ".", "-r", "IQ4_XS", "-r", "Q4_K_M-exps-IQ3_XXS", "-t", "1"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    part = tmp_path / "tiny-IQ4_XS.gguf.quantize.part"
    until = time.monotonic() + 60
    while not (part.exists() and part.stat().st_size > 0) and time.monotonic() < until:
        time.sleep(0.01)
    process.send_signal(kind)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_stays_unless_it_is_asked_for(tmp_path: Path) -> None:
    first = pyclover.quantize("tiny", "Q8_0", tmp_path)
    path = first.files[0].path
    assert path.name == "tiny-Q8_0.gguf"
    with pytest.raises(FileError, match="there is a file of that name"):
        pyclover.quantize("tiny", "Q8_0", tmp_path)
    before = path.stat()
    again = pyclover.quantize("tiny", ["Q8_0", "Q4_0"], tmp_path, resume=True)
    assert [f.written for f in again.files] == [False, True]
    assert (path.stat().st_mtime_ns, again.files[0].n_bytes) == (before.st_mtime_ns, before.st_size)
    path.write_bytes(path.read_bytes()[:-40])  # not whole any more
    with pytest.raises(FileError, match="there is a file of that name"):
        pyclover.quantize("tiny", "Q8_0", tmp_path, resume=True)
    pyclover.quantize("tiny", "Q8_0", tmp_path, overwrite=True)
    assert path.stat().st_size == before.st_size


def test_progress_of_several_files(tmp_path: Path) -> None:
    seen: list[QuantizeProgress] = []
    pyclover.quantize("tiny", ["IQ4_XS", "Q8_0"], tmp_path, n_threads=1, progress=seen.append)
    assert [p.done for p in seen] == sorted(p.done for p in seen)
    assert seen[-1].done == 1.0
    assert {(p.i_file, p.file.name) for p in seen} >= {(0, "tiny-IQ4_XS.gguf"), (1, "tiny-Q8_0.gguf")}


def test_an_error_in_the_callback_ends_the_work(tmp_path: Path) -> None:
    def stop(_: QuantizeProgress) -> None:
        raise LookupError("enough")

    with pytest.raises(LookupError, match="enough"):
        pyclover.quantize("tiny", "IQ4_XS", tmp_path, n_threads=1, progress=stop)
    assert list(tmp_path.iterdir()) == []


def test_a_recipe_of_ones_own(tmp_path: Path) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(
        "default: Q8_0\ngroups: {embedding: F16, output: Q5_1, attention.q: Q4_1}\n"
        "layers:\n  - in: 1-2\n    routed_experts.down: Q5_0\n    gdn.out: F32\n"
    )
    found = types_in(pyclover.quantize("tiny", recipe, tmp_path).files[0].path)
    assert found["token_embd.weight"] == "Q5_1"  # it is the output too
    assert found["blk.3.attn_q.weight"] == "Q4_1"
    assert found["blk.3.attn_k.weight"] == "Q8_0"
    assert [found[f"blk.{i}.ffn_down_exps.weight"] for i in range(4)] == ["Q8_0", "Q5_0", "Q5_0", "Q8_0"]
    assert [found[f"blk.{i}.ssm_out.weight"] for i in (0, 1, 2)] == ["Q8_0", "F32", "F32"]


def test_shards_become_one_file(tmp_path: Path) -> None:
    from support import split_by_gguf_py

    shards = split_by_gguf_py(TINY, tmp_path)
    assert len(shards) > 2
    result = pyclover.quantize(shards[1], "Q5_K_M").files[0]
    assert result.path == tmp_path / "m-Q5_K_M.gguf"
    plain = pyclover.quantize("tiny", "Q5_K_M", tmp_path).files[0]
    assert types_in(result.path) == types_in(plain.path)
    assert "split.count" not in gguf.GGUFReader(result.path).fields


def test_tensors_under_other_names_stay_f32(tmp_path: Path) -> None:
    """Clover's own tensors as checkpoints call them: one of these names ends as weights do."""
    from model.gguf_parts import build, parse

    raw = TINY.read_bytes()
    parts = parse(raw)
    for t in parts.tensors:
        t.name = t.name.replace(b"ssm_conv1d_right.weight", b"Conv_right_weight")
    path = tmp_path / "named.gguf"
    path.write_bytes(build(parts) + raw[parse(raw).data_offset :])
    result = pyclover.quantize(path, "Q4_0").files[0]
    found = types_in(result.path)
    assert found["blk.0.Conv_right_weight"] == "F32"
    assert found["blk.0.attn_qkv.weight"] == "Q4_0"
    assert pyclover.inspect(result.path).capabilities.draft_self


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda p: pyclover.quantize("tiny", [], p), "no recipe is given"),
        (lambda p: pyclover.quantize("tiny", 5, p), "recipe must be a name or a path, or a list of them"),
        (lambda p: pyclover.quantize("tiny", "Q8_0", p, overwrite="yes"), "overwrite is 'yes'"),
        (lambda p: pyclover.quantize("tiny", "Q8_0", p, progress=5), "progress must be a function or None"),
        (lambda p: pyclover.quantize("tiny", ["Q8_0", "q8_0"], p), "two recipes are called Q8_0"),
        (lambda p: pyclover.quantize("tiny", ["Q8_0", "Q4_0"], p / "a.gguf"), "give a folder that is there"),
        (lambda p: pyclover.quantize("tiny", "Q8_0"), "'tiny' is the model in the package: say where"),
        (lambda p: pyclover.quantize("tiny", "Q8_0", p, n_threads=1000), "n_threads is 1000"),
        (lambda p: pyclover.quantize("tiny", p / "far.yaml", p), "layer 8 is named, and the last one of"),
    ],
)
def test_wrong_arguments(make: Callable[[Path], object], words: str, tmp_path: Path) -> None:
    (tmp_path / "far.yaml").write_text("default: Q8_0\nlayers: [{in: 0-8, gdn: F16}]\n")
    with pytest.raises(UsageError, match=words):
        make(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["far.yaml"]


def test_files_that_cannot_be_quantized(tmp_path: Path) -> None:
    small = pyclover.quantize("tiny", "Q8_0", tmp_path).files[0].path
    with pytest.raises(FileError, match=r"'[\w.]+' is quantized already \(Q8_0\)"):
        pyclover.quantize(small, "Q4_0")
    assert pyclover.quantize(small, "Q4_0", allow_requantize=True).files[0].path.name == "tiny-Q4_0.gguf"
    with pytest.raises(FileError, match="this file is to be read"):
        pyclover.quantize(small, "Q4_0", small, overwrite=True, allow_requantize=True)
    with pytest.raises(FileError, match="there is no such folder"):
        pyclover.quantize("tiny", "Q8_0", tmp_path / "none" / "a.gguf")
    with pytest.raises(FileError, match="no importance matrix, or a damaged one"):
        pyclover.quantize("tiny", "Q8_0", tmp_path / "b.gguf", imatrix=ROOT / "README.md")
    with pytest.raises(FileError, match=r"this is no importance matrix: the metadata key 'imatrix\.datasets' is"):
        pyclover.quantize("tiny", "Q8_0", tmp_path / "b.gguf", imatrix=TINY)
    from model.gguf_parts import build, parse

    raw = TINY.read_bytes()
    parts = parse(raw)
    parts.entries = [e for e in parts.entries if e.key != b"clover_moe.block_count"]
    (tmp_path / "cut.gguf").write_bytes(build(parts) + raw[parse(raw).data_offset :])
    with pytest.raises(UnsupportedModelError, match=r"clover_moe\.block_count"):
        pyclover.quantize(tmp_path / "cut.gguf", "Q8_0")


def test_a_disk_without_room(tmp_path: Path) -> None:
    with small_file_system(tmp_path / "disk", "1m") as disk:
        with pytest.raises(FileError, match=r"quantizing needs \d+ bytes, and \d+ are free; make room"):
            pyclover.quantize("tiny", "Q8_0", disk)
        assert list(disk.iterdir()) == []


def test_the_command_line(tmp_path: Path) -> None:
    done = run(tmp_path, "tiny", ".", "-r", "Q4_K_M", "-r", "Q8_0", "--dry-run", "--json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert [f["recipe"] for f in said["files"]] == ["Q4_K_M", "Q8_0"]
    assert list(tmp_path.iterdir()) == []
    done = run(tmp_path, "tiny", ".", "-r", "Q4_K_M", "-r", "Q8_0")
    assert done.returncode == 0, done.stderr
    assert {p.name: p.stat().st_size for p in tmp_path.iterdir()} == {
        Path(f["path"]).name: f["predicted_bytes"] for f in said["files"]
    }
    assert "13 tensors are Q8_0 instead of Q6_K" in done.stderr
    done = run(tmp_path, "tiny", "-r", "Q9")
    assert (done.returncode, done.stdout) == (2, "")
    assert "there is no recipe 'Q9'" in done.stderr
    assert "(flag: --recipe)" in done.stderr
    done = run(tmp_path, "--list")
    assert [line.split()[0] for line in done.stdout.splitlines()[1:]] == list(builtin_names())
    assert not os.environ.get("TERM") or done.stderr == ""
