"""Headers written again, data copied by every way there is, files that come into being as a whole."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyclover.errors import RepairError
from pyclover.files import read_header, write_copy
from pyclover.files.header import TensorInfo
from pyclover.files.repair_write import read_old_header
from pyclover.files.types import F32
from pyclover.files.values import SIZES, ValueType
from pyclover.files.write import encode_entry, encode_header, make_array
from pyclover.files.write_copy import compare_ranges, copy_range
from pyclover.files.write_new import NewFile

ORACLE = Path(__file__).parents[1] / "oracle"
FILES = sorted(ORACLE.glob("expected*/*.gguf"))
QUIET = settings(
    max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_headers_that_gguf_py_wrote_come_out_the_same(path: Path) -> None:
    header = read_header(path)
    entries = [encode_entry(key, header.kinds[key], value) for key, value in header.metadata.items()]
    raw = encode_header(header.version, entries, header.tensors, header.alignment)
    assert raw == read_old_header(header) == path.read_bytes()[: header.data_offset]
    # the spans that a repair cuts by are those of the entries
    old = path.read_bytes()
    assert [old[start:end] for start, _, end in header.spans.values()] == entries
    assert header.spans["general.architecture"][1] == 24 + 8 + len("general.architecture")


def scalars(kind: ValueType) -> st.SearchStrategy[Any]:
    if kind is ValueType.STRING:
        return st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=9)
    if kind is ValueType.BOOL:
        return st.booleans()
    if kind in (ValueType.FLOAT32, ValueType.FLOAT64):
        return st.floats(width=32, allow_nan=False)
    bits = 8 * SIZES[kind]
    return (
        st.integers(-(1 << bits - 1), (1 << bits - 1) - 1) if "U" not in kind.name else st.integers(0, (1 << bits) - 1)
    )


PLAIN = [kind for kind in ValueType if kind is not ValueType.ARRAY]
VALUES = st.sampled_from(PLAIN).flatmap(lambda kind: st.tuples(st.just(kind), scalars(kind)))
ARRAYS = st.sampled_from(PLAIN).flatmap(
    lambda kind: st.tuples(st.just(kind), st.lists(scalars(kind), min_size=1, max_size=5))
)
NAMES = st.text("abc.xyz_09é", min_size=1, max_size=12)


@QUIET
@given(
    st.dictionaries(NAMES, st.one_of(VALUES, ARRAYS), max_size=5),
    st.dictionaries(NAMES, st.lists(st.integers(1, 5), min_size=1, max_size=4), max_size=4),
)
def test_gguf_py_reads_what_was_written(tmp_path: Path, metadata: dict[str, Any], shapes: dict[str, list[int]]) -> None:
    entries = []
    for key, (kind, value) in metadata.items():
        many = isinstance(value, list)
        entries.append(encode_entry(key, ValueType.ARRAY if many else kind, make_array(kind, value) if many else value))
    tensors, end = [], 0
    for name, shape in shapes.items():
        n_bytes = 4
        for d in shape:
            n_bytes *= d
        tensors.append(TensorInfo(name, tuple(shape), F32, end, n_bytes))
        end += -(-n_bytes // 32) * 32
    path = tmp_path / "m.gguf"
    path.write_bytes(encode_header(3, entries, tensors, 32) + bytes(end))
    reader = gguf.GGUFReader(path)
    found = {key: field for key, field in reader.fields.items() if not key.startswith("GGUF.")}
    assert list(found) == list(metadata)
    for key, (kind, value) in metadata.items():
        assert found[key].types[-1].value == kind
        assert found[key].contents() == value
    assert [(t.name, [int(d) for d in t.shape]) for t in reader.tensors] == list(shapes.items())
    ours = read_header(path)
    assert {key: list(v) if isinstance(v, list) else v for key, (_, v) in metadata.items()} == {
        key: list(v) if hasattr(v, "raw") else v for key, v in ours.metadata.items()
    }


@pytest.fixture
def pair(tmp_path: Path) -> Any:
    """A source of a few million bytes that repeat nowhere, and an empty target."""
    content = b"".join(hashlib.sha256(i.to_bytes(4, "little")).digest() for i in range(200_000))
    (tmp_path / "a").write_bytes(content)
    a, b = os.open(tmp_path / "a", os.O_RDONLY), os.open(tmp_path / "b", os.O_RDWR | os.O_CREAT)
    yield content, a, b
    os.close(a)
    os.close(b)


WAYS = {way.__name__: way for way in write_copy._ways}


def refuse(*_: int) -> int:
    raise OSError(22, "not for these files")


@pytest.mark.parametrize("name", [*WAYS, "all refuse but the last", "stops half way"])
def test_every_way_of_copying(name: str, pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    content, a, b = pair
    calls = 0

    def half(source: int, target: int, at: int, to: int, n: int) -> int:
        nonlocal calls
        calls += 1
        return refuse() if calls > 3 else WAYS["_read_and_write"](source, target, at, to, min(n, 1001))

    ways: dict[str, list[Callable[..., int]]] = {
        "all refuse but the last": [refuse, refuse, write_copy._read_and_write],
        "stops half way": [half, write_copy._read_and_write],
    }
    monkeypatch.setattr(write_copy, "_ways", ways.get(name) or [WAYS[name]])
    monkeypatch.setattr(write_copy, "_STEP", 1 << 20)
    told: list[int] = []
    copy_range(a, b, 1234, 77, len(content) - 1234, told.append)
    assert sum(told) == len(content) - 1234
    assert len(told) > 3
    assert os.pread(b, len(content), 77) == content[1234:]
    digest = hashlib.sha256()
    assert compare_ranges(a, b, 1234, 77, len(content) - 1234, digest.update)
    assert digest.digest() == hashlib.sha256(content[1234:]).digest()


def test_a_difference_is_found_wherever_it_is(pair: Any) -> None:
    content, a, b = pair
    copy_range(a, b, 0, 0, len(content))
    for at in (0, 4 << 20, len(content) - 1):
        os.pwrite(b, bytes([content[at] ^ 1]), at)
        assert not compare_ranges(a, b, 0, 0, len(content), hashlib.sha256().update)
        os.pwrite(b, content[at : at + 1], at)
    assert compare_ranges(a, b, 0, 0, len(content), hashlib.sha256().update)
    os.ftruncate(b, len(content) - 1)
    assert not compare_ranges(a, b, 0, 0, len(content), hashlib.sha256().update)
    with pytest.raises(EOFError, match="1 bytes early"):
        copy_range(a, b, 0, 0, len(content) + 1)


def test_a_new_file_is_there_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "m"
    with NewFile(path) as file:
        os.write(file.fd, b"half")
        assert not path.exists()
        assert file.part == tmp_path / "m.repair.part"
        with pytest.raises(RepairError, match="another process"):
            NewFile(path)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "m.repair.part").write_bytes(b"left behind by a killed writer, and longer")
    with NewFile(path) as file:
        os.write(file.fd, b"whole")
        file.sync()
        file.commit(overwrite=False)
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("m", b"whole")]
    with NewFile(path) as file, pytest.raises(RepairError, match="there is a file of that name"):
        file.commit(overwrite=False)
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("m", b"whole")]
    with NewFile(path) as file:
        file.commit(overwrite=True)
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("m", b"")]


def test_a_link_and_a_finished_file_under_the_parts_name_are_left_alone(tmp_path: Path) -> None:
    """What a killed writer leaves may be the other name of a file that is finished; a link may lead anywhere."""
    part, precious = tmp_path / "m.repair.part", tmp_path / "precious"
    precious.write_bytes(b"precious")
    part.symlink_to(precious)
    with pytest.raises(RepairError, match="no ordinary file"):
        NewFile(tmp_path / "m")
    part.unlink()
    os.link(precious, part)
    with NewFile(tmp_path / "m") as file:
        os.write(file.fd, b"new")
        file.sync()
        file.commit(overwrite=False)
    assert precious.read_bytes() == b"precious"
    assert (tmp_path / "m").read_bytes() == b"new"
    assert not part.exists()
