"""Importance matrices: the same sums as llama.cpp's own program, block passes counted too, faults named."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from click.testing import CliRunner
from support import ROOT

import pyclover
from pyclover.cli.main import cli
from pyclover.engine import blocks
from pyclover.engine.build_info import programs
from pyclover.engine.context import Context, ContextOptions
from pyclover.engine.imatrix import Collector, append
from pyclover.engine.model import Model
from pyclover.errors import FileError, NativeError, UsageError
from pyclover.tuning.imatrix import ImatrixProgress, describe
from pyclover.tuning.imatrix_file import read_imatrix
from pyclover.tuning.imatrix_text import cut
from pyclover.tuning.synthetic import conversations, documents

TINY = ROOT / "pyclover" / "data" / "tiny.gguf"
SMALL: dict[str, Any] = {"n_chunks": 12, "n_tokens": 64}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "calibration.txt"
    found = documents(7)
    path.write_text("\n\n".join(next(found) for _ in range(40)), encoding="utf-8")
    return path


def arrays(path: Path) -> dict[str, Any]:
    """As gguf-py reads them; a single matrix has no dimension of its own."""
    return {t.name: np.array(t.data).reshape(-1) for t in gguf.GGUFReader(path).tensors}


def upstream(folder: Path, text: Path, form: str = "gguf") -> Path:
    """What the program of llama.cpp makes of the text."""
    out = folder / f"upstream.{form}"
    command = [programs()["llama-imatrix"], "-m", TINY, "-f", text, "-o", out, "--output-format", form, "-c", "128",
               "-b", "128", "-ub", "128", "--chunks", "6", "--no-ppl", "-t", "1"]  # fmt: skip
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return out


def test_plain_passes_are_counted_as_by_the_program(text: Path, tmp_path: Path) -> None:
    ours = pyclover.imatrix(
        "tiny", tmp_path / "ours.gguf", text, n_chunks=6, n_tokens=128, chat_share=0, preview_share=0
    )  # fmt: skip
    found, wanted = arrays(ours.path), arrays(upstream(tmp_path, text))
    # the chunks come in another order, which a sum does not mind
    assert found.keys() == wanted.keys()
    assert len(found) == 2 * ours.n_weights == 204
    for name, value in wanted.items():
        if name.endswith(".counts"):
            np.testing.assert_array_equal(found[name], value)
        else:
            np.testing.assert_allclose(found[name], value, rtol=2e-3, atol=1e-4 * float(value.max()))
    assert (ours.n_causal, ours.n_preview, ours.n_chat) == (768, 0, 0)
    fields = gguf.GGUFReader(ours.path).fields
    assert fields["general.type"].contents() == "imatrix"
    assert fields["imatrix.datasets"].contents() == ["calibration.txt"]
    assert (fields["imatrix.chunk_count"].contents(), fields["imatrix.chunk_size"].contents()) == (6, 128)
    assert "general.architecture" not in fields


def test_the_rows_of_a_block_pass_are_counted() -> None:
    """The first layer's input is the normed embedding of each row: known without computing the model."""
    tensors = {t.name: t for t in gguf.GGUFReader(TINY).tensors}
    embedding = np.array(tensors["token_embd.weight"].data, dtype=np.float64)
    norm = np.array(tensors["blk.0.attn_norm.weight"].data, dtype=np.float64)

    def squares(tokens: list[int]) -> Any:
        x = embedding[tokens]
        x = x / np.sqrt((x**2).mean(axis=1, keepdims=True) + 1e-6) * norm
        return (x**2).sum(axis=0)

    tokens, rows = [5, 300, 77, 412, 9], [101, 1023, 1023, 204]
    collector = Collector()
    model = Model(TINY)
    context = Context(model, ContextOptions(n_ctx=64, n_threads=1), collector)
    append(context, tokens, 0)
    weights = {w.name: w for w in collector.weights()}
    before = collector.sums(weights["blk.0.attn_qkv.weight"])
    np.testing.assert_allclose(before[0][0], squares(tokens), rtol=1e-4)
    blocks.preview(context, rows, len(tokens))
    after = collector.sums(weights["blk.0.attn_qkv.weight"])
    np.testing.assert_allclose(after[0][0], squares(tokens + rows), rtol=1e-4)
    assert (before[1].tolist(), after[1].tolist()) == ([5], [9])
    # a block pass has no use for these, and the experts of all layers see every row
    assert collector.sums(weights["blk.0.ssm_alpha.weight"])[1].tolist() == [5]
    for layer in range(8):
        routed = collector.sums(weights[f"blk.{layer}.ffn_down_exps.weight"])[1]
        assert (routed.shape, int(routed.sum())) == ((8,), 2 * 9)
    collector.clear()
    assert collector.weights() == ()
    model.close()


def test_built_in_text_and_conversations(tmp_path: Path) -> None:
    result = pyclover.imatrix("tiny", tmp_path / "a.gguf", **SMALL)
    assert (result.n_chunks, result.n_chat, result.n_causal, result.n_weights) == (12, 4, 768, 102)
    assert result.n_preview == pytest.approx(result.n_causal, rel=0.05)
    assert dict(result.not_finite) == {}
    found = arrays(result.path)
    assert found["blk.0.attn_qkv.weight.counts"].tolist() == [result.n_causal + result.n_preview]
    assert found["blk.0.ssm_alpha.weight.counts"].tolist() == [result.n_causal]
    datasets = gguf.GGUFReader(result.path).fields["imatrix.datasets"].contents()
    assert datasets == ["built-in conversations", "built-in text"]
    assert [p.name for p in tmp_path.iterdir()] == ["a.gguf"]


def test_conversations_have_thoughts_and_tools() -> None:
    with pyclover.Clover("tiny") as m:
        prompts = []
        for i, messages in zip(range(3), conversations(), strict=False):
            from pyclover.tuning.synthetic import TOOLS

            tools: Any = TOOLS if i == 2 else None
            prompts.append(m.apply_chat_template(messages, tools=tools, add_generation_prompt=False))
    assert "<think>" in prompts[1]
    assert "Let me check" in prompts[1]
    assert "get_weather" in prompts[2]
    assert "rain_mm" in prompts[2]


def test_the_same_bytes_after_any_interruption(tmp_path: Path) -> None:
    whole = pyclover.imatrix("tiny", tmp_path / "whole.gguf", **SMALL).path.read_bytes()
    out = tmp_path / "out.gguf"
    rng = random.Random(3)
    for _ in range(20):
        stop_at, seen = rng.randint(1, 12), 0

        def stop(at: ImatrixProgress, stop_at: int = stop_at) -> None:
            nonlocal seen
            seen += 1
            if at.n_done >= stop_at:
                raise KeyboardInterrupt

        try:
            pyclover.imatrix("tiny", out, **SMALL, progress=stop)
        except KeyboardInterrupt:
            assert not out.exists()
    result = pyclover.imatrix("tiny", out, **SMALL)
    assert out.read_bytes() == whole
    assert result.n_chunks == 12
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.gguf", "whole.gguf"]


def test_work_goes_on_where_it_was(tmp_path: Path) -> None:
    def stop(at: ImatrixProgress) -> None:
        if at.n_done == 10:
            raise KeyboardInterrupt

    out = tmp_path / "out.gguf"
    with pytest.raises(KeyboardInterrupt):
        pyclover.imatrix("tiny", out, **SMALL, progress=stop)
    seen: list[int] = []
    pyclover.imatrix("tiny", out, **SMALL, progress=lambda at: seen.append(at.n_done))
    assert seen == [9, 10, 11, 12]
    with pytest.raises(FileError, match="there is a file of that name"):
        pyclover.imatrix("tiny", out, **SMALL)


def test_killed(tmp_path: Path) -> None:
    code = "import sys; from pyclover.cli.start import main; sys.argv[0] = 'clover-run'; main()"
    code = f"import pyclover.tuning.imatrix as m; m.SAVE_EVERY_S = 0.0; {code}"  # a state after each group of chunks
    command = [sys.executable, "-c", code, "imatrix", "-m", "tiny", "-o", "out.gguf", "--chunks", "20", "-c", "64"]
    started = time.monotonic()
    done = subprocess.run([*command, "--json"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["n_chunks"] == 20
    whole_s = time.monotonic() - started
    whole = (tmp_path / "out.gguf").read_bytes()
    (tmp_path / "out.gguf").unlink()
    rng = random.Random(5)
    beside = {f"out.gguf.imatrix.{end}" for end in ("part", "state", "state.new")}
    n_states = 0
    for _ in range(20):
        process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(rng.uniform(0.3, 1.0) * whole_s)
        process.kill()
        process.wait()
        there = {path.name for path in tmp_path.iterdir()}
        assert there <= {"out.gguf", *beside}
        n_states += "out.gguf.imatrix.state" in there
        if "out.gguf" in there:
            assert (tmp_path / "out.gguf").read_bytes() == whole
            (tmp_path / "out.gguf").unlink()
    assert n_states > 0  # some had something to go on with
    assert subprocess.run(command, cwd=tmp_path, capture_output=True, check=False).returncode == 0
    assert (tmp_path / "out.gguf").read_bytes() == whole
    assert [path.name for path in tmp_path.iterdir()] == ["out.gguf"]


@pytest.mark.parametrize(("flag", "told"), [("--resume", True), ("--no-resume", False)])
def test_ctrl_c_says_what_is_kept(flag: str, told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("pyclover.tuning.imatrix.imatrix", stop)
    done = CliRunner().invoke(cli, ["imatrix", "-m", "tiny", "-o", str(tmp_path / "out.gguf"), flag])
    assert (done.exit_code, done.stdout) == (130, "")
    assert ("stopped: what is counted is kept, and the same command continues there" in done.stderr) is told


def test_two_runs_for_one_file_exclude_each_other(tmp_path: Path) -> None:
    """The second is refused at once, not when both have counted."""
    out = tmp_path / "out.gguf"

    def second(_: ImatrixProgress) -> None:
        with pytest.raises(FileError, match="another process is writing this file"):
            pyclover.imatrix("tiny", out, **SMALL)

    pyclover.imatrix("tiny", out, **{**SMALL, "n_chunks": 1}, progress=second)
    assert [path.name for path in tmp_path.iterdir()] == ["out.gguf"]


def test_the_model_itself_is_not_overwritten(tmp_path: Path) -> None:
    model = tmp_path / "m.gguf"
    shutil.copyfile(TINY, model)
    for out in (model, tmp_path / "m.gguf.imatrix.part"):
        if out != model:
            model.rename(out)
        with pytest.raises(FileError, match="this file is to be read"):
            pyclover.imatrix(out, model, **SMALL, overwrite=True)
        assert out.read_bytes() == TINY.read_bytes()


def changed(folder: Path, name: str, change: Callable[[Any], None]) -> Path:
    """The model in the package with one F32 tensor changed."""
    raw = bytearray(TINY.read_bytes())
    reader = gguf.GGUFReader(TINY)
    (tensor,) = (t for t in reader.tensors if t.name == name)
    data = np.frombuffer(raw, dtype=np.float32, count=int(tensor.n_elements), offset=int(tensor.data_offset)).copy()
    data = data.reshape(np.array(tensor.data).shape)
    change(data)
    raw[tensor.data_offset : tensor.data_offset + data.nbytes] = data.tobytes()
    path = folder / "changed.gguf"
    path.write_bytes(raw)
    return path


def test_nan_is_reported_by_name(tmp_path: Path) -> None:
    def spoil(data: Any) -> None:
        data[3] = np.nan

    path = changed(tmp_path, "blk.6.attn_norm.weight", spoil)
    result = pyclover.imatrix(path, tmp_path / "a.gguf", **SMALL, preview_share=0)
    assert result.not_finite["blk.6.attn_qkv.weight"] == 768
    assert "blk.5.attn_qkv.weight" not in result.not_finite
    assert any("blk.6.attn_qkv.weight: 768 rows of activations were NaN" in line for line in describe(result))
    assert np.isfinite(arrays(result.path)["blk.6.attn_qkv.weight.in_sum2"]).all()
    with pytest.raises(NativeError, match=r"weights that met NaN or infinity: 'blk\.6\."):
        pyclover.imatrix(path, tmp_path / "b.gguf", **SMALL)
    assert not (tmp_path / "b.gguf").exists()


def test_experts_that_are_never_used_are_reported_by_name(tmp_path: Path) -> None:
    def shun(data: Any) -> None:
        # each token goes to two experts: of the pairs 0, 3 and 1, 4 one is always above its middle
        data[3], data[4], data[5] = data[0], data[1], (data[0] + data[1]) / 2

    path = changed(tmp_path, "blk.2.ffn_gate_inp.weight", shun)
    result = pyclover.imatrix(path, tmp_path / "a.gguf", n_chunks=1, n_tokens=64, chat_share=0, preview_share=0)
    for part in ("gate", "up", "down"):
        assert 5 in result.never_used[f"blk.2.ffn_{part}_exps.weight"]
        counts = arrays(result.path)[f"blk.2.ffn_{part}_exps.weight.counts"]
        assert tuple(np.flatnonzero(counts == 0)) == result.never_used[f"blk.2.ffn_{part}_exps.weight"]
    assert any("blk.2.ffn_up_exps.weight: no row went to" in line for line in describe(result))


@pytest.mark.parametrize("form", ["ours", "gguf", "dat"])
def test_quantizing_takes_it(form: str, text: Path, tmp_path: Path) -> None:
    if form == "ours":
        matrix = pyclover.imatrix("tiny", tmp_path / "ours.gguf", text, **SMALL).path
    else:
        matrix = upstream(tmp_path, text, form)
    plain = pyclover.quantize("tiny", "Q4_K_M", tmp_path / "plain.gguf").files[0]
    said = pyclover.quantize("tiny", "Q4_K_M", tmp_path / "with.gguf", imatrix=matrix, dry_run=True).files[0]
    done = pyclover.quantize("tiny", "Q4_K_M", tmp_path / "with.gguf", imatrix=matrix).files[0]
    assert said.predicted_bytes == done.n_bytes == done.path.stat().st_size
    assert done.types == plain.types
    old, new = gguf.GGUFReader(plain.path), gguf.GGUFReader(done.path)
    differ = {a.name for a, b in zip(old.tensors, new.tensors, strict=True) if not np.array_equal(a.data, b.data)}
    # the matrix weighs columns: every weight of few bits comes out otherwise, and nothing else does
    assert {name for name, kind in done.types.items() if kind == "Q5_0"} <= differ
    assert not {name for name, kind in done.types.items() if kind == "F32"} & differ
    assert new.fields["quantize.imatrix.file"].contents() == matrix.name
    assert new.fields["quantize.imatrix.entries_count"].contents() == 102
    with pyclover.Clover(done.path) as m:
        assert m.generate("Once upon a time", max_tokens=8, temperature=0).text


def test_a_matrix_of_another_model(text: Path, tmp_path: Path, make_tiny: Callable[..., Path]) -> None:
    matrix = pyclover.imatrix("tiny", tmp_path / "a.gguf", text, **SMALL).path
    other = make_tiny("--preset", "c")
    with pytest.raises(FileError, match="it was made for another model"):
        pyclover.quantize(other, "Q4_0", tmp_path / "b.gguf", imatrix=matrix, allow_requantize=True)


def test_reading_says_what_is_in_it(text: Path, tmp_path: Path) -> None:
    old, new = read_imatrix(upstream(tmp_path, text, "dat")), read_imatrix(upstream(tmp_path, text))
    assert old.n_values == new.n_values
    assert old.n_values["blk.0.ffn_down_exps.weight"] == 64 * 8
    assert (old.n_chunks, new.n_chunks) == (6, 6)
    assert [Path(name).name for name in (*old.datasets, *new.datasets)] == ["calibration.txt"] * 2
    damaged = tmp_path / "damaged.dat"
    damaged.write_bytes((tmp_path / "upstream.dat").read_bytes()[:1000])
    with pytest.raises(FileError, match="this is no importance matrix, or a damaged one"):
        read_imatrix(damaged)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"n_chunks": 0}, "n_chunks is 0"),
        ({"n_tokens": 63}, "n_tokens is 63"),
        ({"chat_share": 1.5}, r"chat_share is 1\.5: it must be a number from 0 to 1"),
        ({"preview_share": 0.95}, r"preview_share is 0\.95: it must be a number from 0 to 0\.9"),
        ({"preview_share": True}, "preview_share is True"),
        ({"texts": 5}, "texts must be a path, or a list of them"),
        ({"overwrite": "yes"}, "overwrite is 'yes'"),
        ({"progress": 5}, "progress must be a function or None"),
    ],
)
def test_wrong_arguments(settings: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=words):
        pyclover.imatrix("tiny", tmp_path / "a.gguf", **settings)


def test_names_that_no_file_can_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop").symlink_to("loop")
    for out, words in (
        (".", "this is a folder"),
        (tmp_path, "this is a folder"),
        ("loop", "no file can be made there: Too many levels"),
        ("x" * 300, "no file can be made there: File name too long"),
        (tmp_path / "none" / "a.gguf", "there is no such folder"),
    ):
        with pytest.raises(FileError, match=words):
            pyclover.imatrix("tiny", out, **SMALL, overwrite=True)
    assert [p.name for p in tmp_path.iterdir()] == ["loop"]


def test_texts_that_will_not_do(tmp_path: Path) -> None:
    short = tmp_path / "short.txt"
    short.write_text("Too short.")
    with pytest.raises(UsageError, match="the text gives no chunk of 64 tokens"):
        pyclover.imatrix("tiny", tmp_path / "a.gguf", short, **SMALL)
    short.write_bytes(b"abc\xff")
    with pytest.raises(FileError, match="byte 3 is not UTF-8"):
        pyclover.imatrix("tiny", tmp_path / "a.gguf", short, **SMALL)
    with pytest.raises(FileError, match=r"none\.txt: the text cannot be read"):
        pyclover.imatrix("tiny", tmp_path / "a.gguf", tmp_path / "none.txt", **SMALL)
    short.write_bytes(b"")
    with pytest.raises(UsageError, match="the text gives no chunk of 64 tokens"):
        pyclover.imatrix("tiny", tmp_path / "a.gguf", short, **SMALL)
    with pytest.raises(FileError, match="the text cannot be read: Is a directory"):
        pyclover.imatrix("tiny", tmp_path / "a.gguf", tmp_path, **SMALL)
    assert [p.name for p in tmp_path.iterdir()] == ["short.txt"]


def test_a_long_text_is_cut_as_it_comes() -> None:
    """Not copied for each chunk: that would take hours here."""
    tokens = list(range(4_000_000))
    found = list(cut(iter([tokens[:1_000_003], [], tokens[1_000_003:]]), 64, "t"))
    assert len(found) == 62_500
    assert all(chunk.tokens[0] == 64 * i and len(chunk.tokens) == 64 for i, chunk in enumerate(found))


def test_a_template_that_refuses_everything(tmp_path: Path) -> None:
    model = tmp_path / "m.gguf"
    pyclover.repair("tiny", model, chat_template="{{ raise_exception('never') }}")
    with pytest.raises(UsageError, match="there is nothing to count on: no conversations are counted: "):
        pyclover.imatrix(model, tmp_path / "a.gguf", n_chunks=2, n_tokens=64, chat_share=1)
    result = pyclover.imatrix(model, tmp_path / "a.gguf", n_chunks=2, n_tokens=64, preview_share=0)
    assert (result.n_chunks, result.n_chat) == (1, 0)
    assert any("no conversations are counted" in note for note in result.notes)
