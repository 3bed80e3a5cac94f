"""The run of a converter: supplied, watched, stopped, killed, continued. The converter here is a small stand-in.

It has the form of llama.cpp's (a folder with convert_hf_to_gguf.py and gguf-py) and writes with gguf-py the tensors
of the oracle's file, so that these tests need no torch. tests/e2e/test_convert.py has the real one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import pytest
from convert_checkpoint import make_checkpoint
from support import ORACLE, ROOT

from pyclover.errors import CancelledError, ConvertError
from pyclover.files import convert_run
from pyclover.files.convert_checkpoint import LocalSource
from pyclover.files.convert_output import Output
from pyclover.files.convert_plan import ConvertPlan, make_plan
from pyclover.files.convert_progress import ConvertProgress

pytestmark = pytest.mark.skipif(os.name != "posix", reason="a child with an inherited file")

FILE = ORACLE / "expected_preview" / "tiny_b_preview.gguf"
STAND_IN = """
import argparse, json, logging, os, sys
from pathlib import Path
sys.path.insert(0, str(Path(__file__).parent / "gguf-py"))
import gguf
import numpy as np

class Tensor:
    def __init__(self, data, stored): self.data, self.stored = data, stored
    def tofile(self, file):
        for one in self.stored: one.mmap_bytes()  # a weight file must be here before its tensor is written
        self.data.tofile(file)
    dtype = property(lambda self: self.data.dtype)
    shape = property(lambda self: self.data.shape)
    nbytes = property(lambda self: self.data.nbytes)

def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--outfile", type=Path)
    parser.add_argument("--outtype")
    args = parser.parse_args()
    does = json.loads((Path(__file__).parent / "does.json").read_text())
    if does == "fail":
        raise ValueError("the checkpoint is odd\\nvery odd")
    if does == "fill":
        raise OSError(28, os.strerror(28))
    if does == "die":
        os.kill(os.getpid(), 9)
    logging.warning("clover: something to know")
    stored = []
    for shard in sorted(args.model.glob("*.safetensors")):
        stored += gguf.utility.SafetensorsLocal(shard).tensors.values()
    reader = gguf.GGUFReader(Path(__file__).parent / "answer.gguf")
    writer = gguf.GGUFWriter(None, "clover_moe")
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture": continue
        kind = field.types[0]
        add = writer.add_array if kind is gguf.GGUFValueType.ARRAY else writer.add_key_value
        add(key, field.contents(), *([] if kind is gguf.GGUFValueType.ARRAY else [kind]))
    n = len(reader.tensors)
    for i, t in enumerate(reader.tensors):
        if does == "lose" and i == 3: continue
        part = stored[i * len(stored) // n : (i + 1) * len(stored) // n]
        writer.add_tensor(t.name, Tensor(np.ascontiguousarray(t.data), part))
    writer.write_header_to_file(args.outfile)
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file(progress=True)
    writer.close()
"""


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> ConvertPlan:
    folder = tmp_path_factory.mktemp("source") / "Clover"
    make_checkpoint(folder, FILE)
    return make_plan(LocalSource(folder), outtype="f32")


@pytest.fixture(scope="module")
def converter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("converter")
    (folder / "convert_hf_to_gguf.py").write_text(STAND_IN)
    (folder / "gguf-py").mkdir()
    (folder / "gguf-py" / "gguf").symlink_to(Path(gguf.__file__).parent)
    (folder / "answer.gguf").write_bytes(FILE.read_bytes())
    does(folder, "work")
    return folder


def does(folder: Path, what: str) -> None:
    (folder / "does.json").write_text(json.dumps(what))


def convert(plan: ConvertPlan, converter: Path, path: Path, **how: Any) -> tuple[int, tuple[str, ...]]:
    """Bytes of an earlier run that were used, and warnings."""
    with Output(path, plan.key, resume=True) as out:
        warnings = convert_run.run_converter(plan, out, converter=converter, python=sys.executable, **how)
        out.commit(overwrite=False)
        return out.kept_bytes, warnings


@pytest.fixture(scope="module")
def whole(plan: ConvertPlan, converter: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("whole") / "x.gguf"
    assert convert(plan, converter, path) == (0, ("something to know",))
    assert list(path.parent.iterdir()) == [path]
    return path.read_bytes()


def test_the_file_is_what_the_converter_writes(whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(whole)
    got, want = gguf.GGUFReader(path), gguf.GGUFReader(FILE)
    assert [(t.name, t.data.tobytes()) for t in got.tensors] == [(t.name, t.data.tobytes()) for t in want.tensors]
    assert path.stat().st_size <= FILE.stat().st_size + 1024


def test_progress(plan: ConvertPlan, converter: Path, whole: bytes, tmp_path: Path) -> None:
    states: list[ConvertProgress] = []
    convert(plan, converter, tmp_path / "x.gguf", progress=states.append)
    assert (states[0].phase, states[-1].phase) == ("start", "convert")
    last = states[-1]
    assert (last.done_bytes, last.done_tensors) == (last.total_bytes, last.total_tensors)
    assert last.total_tensors == len(plan.tensors) == len(gguf.GGUFReader(FILE).tensors)
    done = [state.done_bytes for state in states]
    assert done == sorted(done)


@pytest.mark.parametrize("at", [1, 2, 3, 20, 50])
def test_stopped_and_continued(
    at: int, plan: ConvertPlan, converter: Path, whole: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convert_run, "SYNC_BYTES", 1)
    path, n_calls = tmp_path / "x.gguf", 0

    def stop(state: ConvertProgress) -> bool:
        nonlocal n_calls
        n_calls += state.phase == "convert"
        return n_calls < at

    with pytest.raises(CancelledError):
        convert(plan, converter, path, progress=stop)
    assert not path.exists()
    # whatever stands behind what is known to be on the disk must not count
    part = path.with_name("x.gguf.convert.part")
    if part.exists():
        with part.open("ab") as file:
            file.write(b"rubbish" * 1000)
    kept, _ = convert(plan, converter, path)
    assert kept > 0 or at < 20
    assert path.read_bytes() == whole
    assert list(tmp_path.iterdir()) == [path]


def test_a_part_with_another_header_is_written_anew(
    plan: ConvertPlan, converter: Path, whole: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "x.gguf"
    with Output(path, plan.key, resume=True) as out:
        os.write(out.fd, b"x" * len(whole))
        out.synced(len(whole) - 100)
    assert out.part.exists()
    assert convert(plan, converter, path)[0] == 0
    assert path.read_bytes() == whole


def test_ctrl_c_keeps_what_is_written(
    plan: ConvertPlan, converter: Path, whole: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convert_run, "SYNC_BYTES", 1)

    def interrupt(state: ConvertProgress) -> None:
        if state.done_tensors == 30:
            raise KeyboardInterrupt

    path = tmp_path / "x.gguf"
    with pytest.raises(KeyboardInterrupt):
        convert(plan, converter, path, progress=interrupt)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x.gguf.convert.json", "x.gguf.convert.part"]
    kept, _ = convert(plan, converter, path)
    assert kept > 0
    assert path.read_bytes() == whole


KILLED = """
import os, signal, sys
from pathlib import Path
from pyclover.files import convert_run
from pyclover.files.convert_checkpoint import LocalSource
from pyclover.files.convert_output import Output
from pyclover.files.convert_plan import make_plan
convert_run.SYNC_BYTES = 1
source, converter, path, at = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])
n_calls = 0
def kill(state):
    global n_calls
    n_calls += 1
    if n_calls == at:
        os.kill(os.getpid(), signal.SIGKILL)
plan = make_plan(LocalSource(source), outtype="f32")
with Output(path, plan.key, resume=True) as out:
    convert_run.run_converter(plan, out, converter=converter, python=sys.executable, progress=kill)
    out.commit(overwrite=False)
"""


@pytest.mark.parametrize("at", [1, 4, 9, 30, 60])
def test_killed_and_continued(at: int, plan: ConvertPlan, converter: Path, whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    source = plan.checkpoint.source
    assert isinstance(source, LocalSource)
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(source.folder), str(converter), str(path), str(at)],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, cwd=tmp_path, check=False,
    )  # fmt: skip
    assert done.returncode == -9
    assert not path.exists()
    kept, _ = convert(plan, converter, path)  # its child ends by itself; until then we wait
    assert kept > 0 or at < 30
    assert path.read_bytes() == whole
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("what", "words"),
    [("fail", "ValueError: the checkpoint is odd very odd"), ("die", "it was killed, perhaps for lack of memory"),
     ("fill", "x.gguf: the disk is full; make room"), ("lose", "the converter would write the tensor")],
)  # fmt: skip
def test_a_converter_that_fails(what: str, words: str, plan: ConvertPlan, converter: Path, tmp_path: Path) -> None:
    does(converter, what)
    try:
        with pytest.raises(ConvertError, match=words) as caught:
            convert(plan, converter, tmp_path / "x.gguf")
    finally:
        does(converter, "work")
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []
