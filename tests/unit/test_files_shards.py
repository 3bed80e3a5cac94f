"""Split sets, made by the gguf package's own splitter."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from pyclover.errors import FileError, IncompleteSetError, InvalidFileError, ModelNotFoundError
from pyclover.files import resolve, validate
from pyclover.files.shard_names import parse_shard_name, shard_name

TINY_A = Path(__file__).parents[1] / "oracle" / "expected" / "tiny_a.gguf"


def split(
    folder: Path, name: str = "m", *, per_shard: int = 30, first_empty: bool = False, scale: float = 1.0
) -> list[Path]:
    reader = gguf.GGUFReader(TINY_A)
    writer = gguf.GGUFWriter(
        folder / f"{name}.gguf", "clover_moe", split_max_tensors=per_shard, small_first_shard=first_empty
    )
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            kind = field.types[0]
            add: Any = writer.add_array if kind is gguf.GGUFValueType.ARRAY else writer.add_key_value
            add(key, field.contents(), *([] if kind is gguf.GGUFValueType.ARRAY else [kind]))
    for t in reader.tensors:
        writer.add_tensor(t.name, np.ascontiguousarray(t.data) * np.float32(scale))
    writer.write_header_to_file(folder / f"{name}.gguf")
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return sorted(folder.glob(f"{name}-*.gguf"))


@pytest.mark.parametrize("first_empty", [False, True])
def test_the_set_from_any_shard(tmp_path: Path, first_empty: bool) -> None:
    paths = split(tmp_path, first_empty=first_empty)
    assert len(paths) == 3 + first_empty
    for path in paths:
        found = resolve(path)
        assert list(found.paths) == paths
        assert found.first_path == paths[0]
        assert [t.name for t in found.tensors] == [t.name for t in gguf.GGUFReader(TINY_A).tensors]
        assert found.file_bytes == sum(p.stat().st_size for p in paths)
    model = validate(paths[-1])
    assert model.first_path == paths[0]
    assert model.facts.n_params == validate(TINY_A).facts.n_params


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
@pytest.mark.timeout(60)
def test_a_shard_that_is_no_file_is_said_at_once(tmp_path: Path) -> None:
    """Nothing waits for somebody to write into a pipe, also not one that is called like an undo file."""
    paths = split(tmp_path)
    paths[1].unlink()
    os.mkfifo(paths[1])
    with pytest.raises(InvalidFileError, match=f"{paths[1].name}: this shard is a folder, a pipe or a device"):
        resolve(paths[0])
    paths[1].unlink()
    paths[1].mkdir()
    with pytest.raises(InvalidFileError, match="this shard is a folder"):
        resolve(paths[2])
    os.mkfifo(tmp_path / f"{paths[0].name}.undo")
    with pytest.raises(InvalidFileError, match="in place was interrupted"):
        resolve(paths[2])


def test_an_unsplit_file_is_a_set_of_one(tmp_path: Path) -> None:
    assert resolve(TINY_A).paths == (TINY_A,)
    # the metadata decide, not the name: llama.cpp opens this file as it is
    named = tmp_path / "m-00002-of-00005.gguf"
    shutil.copy(TINY_A, named)
    assert resolve(named).paths == (named,)


def test_missing_shards_are_named(tmp_path: Path) -> None:
    paths = split(tmp_path, per_shard=20)
    assert len(paths) == 4
    paths[0].unlink()
    paths[2].unlink()
    for start in paths:  # also from one that is not there
        with pytest.raises(IncompleteSetError) as caught:
            resolve(start)
        assert caught.value.missing == (str(paths[0]), str(paths[2]))
        assert paths[0].name in str(caught.value)
        assert paths[2].name in str(caught.value)


def test_a_set_that_is_not_there_at_all(tmp_path: Path) -> None:
    with pytest.raises(IncompleteSetError, match=r"3 of the set's 3 shards"):
        resolve(tmp_path / "m-00001-of-00003.gguf")
    with pytest.raises(ModelNotFoundError):
        resolve(tmp_path / "m-00004-of-00003.gguf")
    with pytest.raises(IncompleteSetError, match="and 950 more"):
        resolve(tmp_path / "m-00001-of-01000.gguf")


def test_renamed_to_another_number(tmp_path: Path) -> None:
    paths = split(tmp_path)
    shutil.copy(paths[0], paths[1])
    with pytest.raises(InvalidFileError, match=r"says shard 2.*\(split.no\) says 1") as caught:
        resolve(paths[0])
    assert (caught.value.path, caught.value.key) == (str(paths[1]), "split.no")


def test_renamed_to_another_count(tmp_path: Path) -> None:
    paths = split(tmp_path)
    renamed = paths[0].rename(tmp_path / "m-00001-of-00002.gguf")
    paths[1].rename(tmp_path / "m-00002-of-00002.gguf")
    with pytest.raises(InvalidFileError, match=r"says 2 shards.*says 3") as caught:
        resolve(renamed)
    assert caught.value.key == "split.count"


def test_a_shard_without_its_name(tmp_path: Path) -> None:
    renamed = split(tmp_path)[1].rename(tmp_path / "model.gguf")
    with pytest.raises(InvalidFileError, match=r"shard 2 of 3.*model-00002-of-00003\.gguf"):
        resolve(renamed)


def test_shards_of_two_sets(tmp_path: Path) -> None:
    paths = split(tmp_path)
    # sets of 3 that cut elsewhere: tensors twice, or the wrong total
    (tmp_path / "b").mkdir()
    (tmp_path / "c").mkdir()
    shutil.copy(split(tmp_path / "b", per_shard=35)[0], paths[0])
    with pytest.raises(InvalidFileError, match="is also in m-00001-of-00003"):
        resolve(paths[1])
    shutil.copy(split(tmp_path / "c", per_shard=26)[0], paths[0])
    with pytest.raises(InvalidFileError, match=r"announces 76 tensors.*hold 72") as caught:
        resolve(paths[1])
    assert caught.value.key == "split.tensors.count"


def test_a_whole_model_in_the_place_of_a_shard(tmp_path: Path) -> None:
    paths = split(tmp_path)
    shutil.copy(TINY_A, paths[2])
    with pytest.raises(InvalidFileError, match=r"split\.count"):
        resolve(paths[0])


def test_a_damaged_shard(tmp_path: Path) -> None:
    paths = split(tmp_path)
    paths[2].write_bytes(paths[2].read_bytes()[:-3000])
    with pytest.raises(InvalidFileError, match="bytes early") as caught:
        resolve(paths[0])
    assert caught.value.path == str(paths[2])


@pytest.mark.parametrize("name", ["model.gguf", "m-00001-of-00003.gguf"])
def test_shards_joined_with_cat(tmp_path: Path, name: str) -> None:
    paths = split(tmp_path)
    joined = tmp_path / name
    joined.write_bytes(b"".join(p.read_bytes() for p in paths))
    with pytest.raises(InvalidFileError, match="joined with cat"):
        resolve(joined)


def test_a_later_shard_joined_with_cat(tmp_path: Path) -> None:
    paths = split(tmp_path)
    paths[1].write_bytes(paths[1].read_bytes() + paths[2].read_bytes())
    with pytest.raises(InvalidFileError, match="joined with cat") as caught:
        resolve(paths[0])
    assert caught.value.path == str(paths[1])


def test_two_whole_models_joined_only_warn(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(TINY_A.read_bytes() * 2)
    assert "another GGUF file" in validate(path).warnings[0]


def test_names() -> None:
    # llama.cpp: "%s-%05d-of-%05d.gguf", counted from 1
    assert shard_name("a-b", 0, 12) == "a-b-00001-of-00012.gguf"
    assert parse_shard_name("a-b-00001-of-00012.gguf") == ("a-b", 0, 12)
    for name in ("a-1-of-3.gguf", "a-00000-of-00003.gguf", "a-00004-of-00003.gguf", "-00001-of-00003.gguf", "a.gguf"):
        assert parse_shard_name(name) is None


def test_every_error_is_a_file_error(tmp_path: Path) -> None:
    with pytest.raises(FileError):
        resolve(tmp_path)
