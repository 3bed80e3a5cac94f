"""Split files load from any shard; an incomplete set is refused by name."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
from support import EXACT, ORACLE

import pyclover


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """tiny_a, written again in parts of 30 tensors by the gguf package."""
    source = gguf.GGUFReader(ORACLE / "expected" / "tiny_a.gguf")
    folder = tmp_path_factory.mktemp("split")
    writer = gguf.GGUFWriter(folder / "tiny.gguf", "clover_moe", split_max_tensors=30)
    for name, f in source.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        sub = f.types[1] if f.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, f.contents(), f.types[0], sub)
    for t in source.tensors:
        writer.add_tensor(t.name, t.data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = sorted(folder.glob("*.gguf"))
    assert [p.name for p in found] == [f"tiny-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    return found


@pytest.mark.parametrize("i", [0, 1, 2])
def test_any_shard_loads_the_set(shards: list[Path], i: int, expected: Callable[[str], dict[str, Any]]) -> None:
    run = expected("tiny_a")["runs"][0]
    with pyclover.Clover(shards[i], n_ctx=256, **EXACT) as m:
        assert m.path == str(shards[0])
        assert list(m.generate(run["prompt_ids"], max_tokens=64, temperature=0).tokens) == run["greedy"]


def test_missing_shard_is_named(shards: list[Path], tmp_path: Path) -> None:
    for p in shards[:2]:
        shutil.copy(p, tmp_path)
    with pytest.raises(pyclover.IncompleteSetError, match=r"tiny-00003-of-00003[.]gguf") as caught:
        pyclover.Clover(tmp_path / shards[0].name)
    assert [Path(p).name for p in caught.value.missing] == ["tiny-00003-of-00003.gguf"]
