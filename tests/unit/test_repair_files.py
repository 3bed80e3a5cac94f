"""`repair` on files: what it changes by itself and when asked, what it refuses, and what a kill leaves behind."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import signal
import stat
import sys
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
from model.gguf_parts import Entry, Parts, build, parse
from support import split_by_gguf_py

from pyclover.errors import InvalidFileError, RepairError, UsageError
from pyclover.files import inspect, read_header, repair_in_place, resolve
from pyclover.files.embedded import embedded_path
from pyclover.files.known_keys import read_setting
from pyclover.files.repair import Repair, repair
from pyclover.files.repair_plan import Change
from pyclover.files.write_new import NewFile

ORACLE = Path(__file__).parents[1] / "oracle"
TINY_A = ORACLE / "expected" / "tiny_a.gguf"
PREVIEW_A = ORACLE / "expected_preview" / "tiny_a_preview.gguf"  # has no shared count, as official files
SHARED_COUNT = "clover_moe.expert_shared_count"
MASK = "tokenizer.ggml.mask_token_id"
Edit = Callable[[Parts], None]


def edited(folder: Path, edit: Edit, source: Path = PREVIEW_A, name: str = "m.gguf") -> Path:
    """A copy with changed metadata and names, written by the format's description alone."""
    raw = source.read_bytes()
    parts = parse(raw)
    data = raw[parts.data_offset :]
    edit(parts)
    path = folder / name
    path.write_bytes(build(parts) + data)
    return path


def drop(*keys: str) -> Edit:
    def edit(parts: Parts) -> None:
        parts.entries = [e for e in parts.entries if e.key.decode() not in keys]

    return edit


def rename(change: Callable[[str], str]) -> Edit:
    def edit(parts: Parts) -> None:
        for t in parts.tensors:
            t.name = change(t.name.decode()).encode()

    return edit


def facts(path: Path) -> tuple[dict[str, Any], list[Any]]:
    """Metadata and tensors as gguf-py reads them, each tensor with the bytes of its data."""
    reader = gguf.GGUFReader(path)
    metadata = {
        key: (field.types, field.contents()) for key, field in reader.fields.items() if not key.startswith("GGUF.")
    }
    return metadata, [(t.name, list(t.shape), t.tensor_type, t.data.tobytes()) for t in reader.tensors]


def data_of(path: Path) -> bytes:
    """The data section up to the end of the last tensor, by gguf-py's account."""
    last = gguf.GGUFReader(path).tensors[-1]
    start = min(int(t.data_offset) for t in gguf.GGUFReader(path).tensors)
    return path.read_bytes()[start : int(last.data_offset) + int(last.n_bytes)]


def no_leftovers(folder: Path) -> bool:
    return not [p for p in folder.iterdir() if p.suffix in (".part", ".undo")]


# --- what it does by itself ---


def test_the_missing_count_is_added_and_nothing_else_changes(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    shutil.copy(PREVIEW_A, path)
    before = path.read_bytes()
    told: list[float] = []
    done = repair(path, progress=told.append)
    assert done.out == tmp_path / "m-repaired.gguf"
    assert done.changes == (Change("add", SHARED_COUNT, None, 1, "uint32"),)
    assert path.read_bytes() == before
    old, new = facts(path), facts(done.out)
    assert new[0].pop(SHARED_COUNT) == ([gguf.GGUFValueType.UINT32], 1)
    assert new == old
    assert list(new[0]) == list(old[0])
    assert (
        done.data_sha256 == hashlib.sha256(data_of(path)).hexdigest() == hashlib.sha256(data_of(done.out)).hexdigest()
    )
    assert done.n_bytes == done.out.stat().st_size
    assert told[-1] == pytest.approx(1.0, abs=0.1)
    assert no_leftovers(tmp_path)
    assert inspect(done.out).warnings == ()
    again = repair(done.out)
    assert (again.changes, again.out, again.written) == ((), None, False)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m-repaired.gguf", "m.gguf"]


def test_foreign_names_mask_token_and_block_length(tmp_path: Path) -> None:
    foreign = {"ssm_conv1d_right.weight": "linear_attn.conv_RIGHT", "ssm_bd_logit_scale": "attn.bd_softmax_logit_scale",
               "ssm_bd_history_bias": "bd_history_bias.weight", "ssm_bd_history_c": "x.history_c"}  # fmt: skip

    def edit(parts: Parts) -> None:
        rename(lambda n: f"blk.{n.split('.', 2)[1]}.{foreign[n.split('.', 2)[2]]}" if n[6:] in foreign else n)(parts)
        drop(MASK, "clover_moe.diffusion.block_length")(parts)

    path = edited(tmp_path, edit)
    report = inspect(path)
    assert not report.capabilities.draft_self
    assert "mask" in report.capabilities.draft_self.reason
    done = repair(path, tmp_path / "new.gguf")
    assert report.cures == done.changes
    metadata, tensors = facts(tmp_path / "new.gguf")
    assert [t[0] for t in tensors] == [t.name for t in gguf.GGUFReader(PREVIEW_A).tensors]
    assert [t[3] for t in tensors] == [t.data.tobytes() for t in gguf.GGUFReader(PREVIEW_A).tensors]
    assert metadata[MASK][1] == 357  # the oracle's model card
    assert metadata["clover_moe.diffusion.block_length"][1] == 32
    assert {c.kind for c in done.changes} == {"add", "rename"}
    assert done.capabilities.draft_self
    assert inspect(tmp_path / "new.gguf").preview_tensors.keys() == {
        t[0] for t in tensors if "_bd_" in t[0] or "right" in t[0]
    }


def test_a_key_of_the_wrong_type_is_stored_anew(tmp_path: Path) -> None:
    def edit(parts: Parts) -> None:
        for e in parts.entries:
            if e.key in (b"clover_moe.context_length", b"tokenizer.ggml.eos_token_id"):
                e.kind = 10  # uint64
            if e.key == b"clover_moe.rope.freq_base":
                e.kind = 12  # float64

    path = edited(tmp_path, edit)
    assert {p.key for p in inspect(path).problems} >= {"clover_moe.context_length", "tokenizer.ggml.eos_token_id"}
    done = repair(path)
    assert done.problems == ()
    assert done.out is not None
    wanted = facts(PREVIEW_A)[0] | {SHARED_COUNT: ([gguf.GGUFValueType.UINT32], 1)}
    assert facts(done.out)[0] == wanted
    assert done.capabilities.draft_self


def test_no_mask_is_guessed_where_there_are_two_or_none(tmp_path: Path) -> None:
    def edit(parts: Parts) -> None:
        drop(MASK)(parts)
        tokens = next(e for e in parts.entries if e.key == b"tokenizer.ggml.tokens").value[1]
        tokens[0] = b"[MASK]"

    assert MASK not in {c.key for c in repair(edited(tmp_path, edit), dry_run=True).changes}

    def edit_none(parts: Parts) -> None:
        edit(parts)
        tokens = next(e for e in parts.entries if e.key == b"tokenizer.ggml.tokens").value[1]
        tokens[0], tokens[357] = b"q1", b"q2"

    path = edited(tmp_path, edit_none)
    assert MASK not in {c.key for c in repair(path, dry_run=True).changes}
    done = repair(path, mask_token="q2")
    assert done.out is not None
    assert facts(done.out)[0][MASK][1] == 357


def test_a_block_length_that_no_program_takes(tmp_path: Path) -> None:
    def edit(parts: Parts) -> None:
        for e in parts.entries:
            if e.key == b"clover_moe.diffusion.block_length":
                e.value = 64

    done = repair(edited(tmp_path, edit), dry_run=True)
    assert ("clover_moe.diffusion.block_length", 64, 32) in [(c.key, c.old, c.new) for c in done.changes]
    assert done.capabilities.draft_self


def test_data_behind_the_model_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(PREVIEW_A.read_bytes() * 2)
    done = repair(path)
    assert done.out is not None
    assert done.out.stat().st_size < 1.1 * PREVIEW_A.stat().st_size
    assert inspect(done.out).warnings == ()


# --- what it is asked for ---


def test_everything_that_can_be_asked_for(tmp_path: Path) -> None:
    source = edited(tmp_path, rename(lambda n: n.replace("blk.", "layers.").replace("attn_q.weight", "q")), TINY_A)
    assert inspect(source).problems
    template = tmp_path / "t.jinja"
    template.write_text("{% for m in messages %}{{ m.content }}\n{% endfor %}ä", encoding="utf-8")
    out = tmp_path / "out"
    out.mkdir()
    done = repair(
        source,
        out,
        set_metadata={"general.name": "Neu", "my.list": ("uint8[]", [1, 2]), "my.flag": True,
                      "clover_moe.context_length": 512},
        map_tensors={r"re:layers\.(\d+)\.q": r"blk.\1.attn_q.weight", "layers.*": "blk.*"},
        mask_token=3,
        chat_template=template,
        block_length=16,
    )  # fmt: skip
    assert done.out == out / "m.gguf"
    assert done.problems == ()
    metadata, tensors = facts(done.out)
    old, old_tensors = facts(TINY_A)
    kinds = gguf.GGUFValueType
    assert metadata == old | {
        "general.name": ([kinds.STRING], "Neu"),
        "my.list": ([kinds.ARRAY, kinds.UINT8], [1, 2]),
        "my.flag": ([kinds.BOOL], True),
        "clover_moe.context_length": ([kinds.UINT32], 512),
        MASK: ([kinds.UINT32], 3),
        "tokenizer.chat_template": ([kinds.STRING], template.read_text(encoding="utf-8")),
        "clover_moe.diffusion.block_length": ([kinds.UINT32], 16),
    }
    assert tensors == old_tensors


def test_a_dry_run_says_the_same_and_writes_nothing(tmp_path: Path) -> None:
    path = edited(tmp_path, drop(MASK))
    dry = repair(path, dry_run=True, chat_template="{{ messages[0].content }}")
    assert [p.name for p in tmp_path.iterdir()] == ["m.gguf"]
    done = repair(path, chat_template="{{ messages[0].content }}")
    assert (dry.written, done.written) == (False, True)
    assert (dry.changes, dry.out, dry.n_bytes) == (done.changes, done.out, done.n_bytes)
    assert dry.data_sha256 == ""
    assert [c.key for c in dry.changes] == ["tokenizer.chat_template", SHARED_COUNT, MASK]


REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "unknown tensor": ({"map_tensors": {"nosuch": "x"}}, RepairError, "no tensor 'nosuch'"),
    "two on one name": (
        {"map_tensors": {"blk.*.attn_norm.weight": "norm"}},
        RepairError,
        "would both be called 'norm'",
    ),
    "onto another": ({"map_tensors": {"output.weight": "output_norm.weight"}}, RepairError, "would both be called"),
    "another architecture": (
        {"set_metadata": {"general.architecture": "llama"}},
        RepairError,
        "could not run any more: the metadata key 'llama.context_length' (uint32) is missing",
    ),
    "a needed tensor away": ({"map_tensors": {"token_embd.weight": "x"}}, RepairError, "could not run any more"),
    "wrong type": ({"set_metadata": {"clover_moe.block_count": "4"}}, UsageError, "must be a whole"),
    "wrong named type": ({"set_metadata": {"clover_moe.block_count": ("i32", 4)}}, UsageError, "must be uint32"),
    "a size that does not fit": ({"set_metadata": {"clover_moe.embedding_length": 32}}, RepairError, "could not run"),
    "alignment": ({"set_metadata": {"general.alignment": ("u32", 64)}}, RepairError, "cannot be set"),
    "split": ({"set_metadata": {"split.count": ("u16", 2)}}, RepairError, "cannot be set"),
    "count without tensors": ({"shared_count": 0}, RepairError, "could not run"),
    "count": ({"shared_count": 2}, UsageError, "from 0 to 1"),
    "mask number": ({"mask_token": 358}, RepairError, "has 358 tokens"),
    "an endless mask number": ({"mask_token": 10**5000}, RepairError, "has 358 tokens"),
    "an endless count": ({"shared_count": 10**5000}, UsageError, "from 0 to 1"),
    "dry_run": ({"dry_run": "no"}, UsageError, "dry_run is 'no'"),
    "in_place": ({"in_place": "no"}, UsageError, "in_place is 'no'"),
    "overwrite": ({"overwrite": 2}, UsageError, "overwrite is 2"),
    "keys": ({"set_metadata": []}, UsageError, "must map keys to values"),
    "names": ({"map_tensors": ()}, UsageError, "must map old names"),
    "mask text": ({"mask_token": "nosuch"}, RepairError, "no token of the vocabulary"),
    "mask type": ({"mask_token": 1.5}, UsageError, "mask_token"),
    "block length": ({"block_length": 33}, UsageError, "from 1 to 32"),
    "block length by its key": (
        {"set_metadata": {"clover_moe.diffusion.block_length": 64}},
        RepairError,
        "1 to 32 rows",
    ),
    "template file": ({"chat_template": "nosuch.jinja"}, UsageError, "cannot be read"),
    "template text": ({"chat_template": "{% for %}"}, UsageError, "line 1"),
    "out is the input": ({"out": "m.gguf", "overwrite": True}, RepairError, "is to be repaired"),
    "out exists": (
        {"out": "there.gguf"},
        RepairError,
        "there is a file of that name; give another name, or take its place with overwrite=True (--force)",
    ),
    "no folder": ({"out": "no/where.gguf"}, RepairError, "no such folder"),
    "in place with a name": ({"out": "x.gguf", "in_place": True}, UsageError, "leave out"),
    "in place without room": ({"in_place": True}, RepairError, "bytes too long"),
}


def special_files(folder: Path) -> list[Path]:
    """A pipe, a link to a device, and as root a device: each like those in /dev, and none of them."""
    made = [folder / "pipe", folder / "link"]
    os.mkfifo(made[0])
    made[1].symlink_to(os.devnull)
    if os.geteuid() == 0:
        try:
            os.mknod(folder / "device", 0o666 | stat.S_IFCHR, os.stat(os.devnull).st_rdev)
        except OSError:
            pass  # not in every container
        else:
            made.append(folder / "device")
    return made


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no such files")
@pytest.mark.timeout(60)
def test_nothing_but_a_file_is_replaced(tmp_path: Path) -> None:
    for path in special_files(tmp_path):
        before = os.lstat(path)
        for overwrite in (True, False):
            with pytest.raises(RepairError, match="this is no regular file"):
                repair(PREVIEW_A, path, overwrite=overwrite)
            with NewFile(path) as file, pytest.raises(RepairError, match="this is no regular file"):
                file.commit(overwrite=overwrite)  # also when it came after the first look
        assert os.path.samestat(os.lstat(path), before)
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options, kind, words = REFUSED[name]
    monkeypatch.chdir(tmp_path)
    shutil.copy(PREVIEW_A, "m.gguf")
    Path("there.gguf").write_bytes(b"something else")
    with pytest.raises(kind) as caught:
        repair("m.gguf", **options)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.gguf", "there.gguf"]
    assert Path("m.gguf").read_bytes() == PREVIEW_A.read_bytes()
    assert Path("there.gguf").read_bytes() == b"something else"


def test_force_takes_the_place_of_another_file(tmp_path: Path) -> None:
    (tmp_path / "there.gguf").write_bytes(b"something else")
    repair(PREVIEW_A, tmp_path / "there.gguf", overwrite=True)
    assert facts(tmp_path / "there.gguf")[1] == facts(PREVIEW_A)[1]
    link = tmp_path / "link.gguf"
    link.symlink_to("there.gguf")
    with pytest.raises(RepairError, match="is to be repaired"):
        repair(tmp_path / "there.gguf", link, set_metadata={"general.name": "x"}, overwrite=True)


def test_room_is_asked_for_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10, 9, 1_000_000))
    with pytest.raises(RepairError, match="make room") as caught:
        repair(PREVIEW_A, tmp_path / "x.gguf")
    assert caught.value.needed_bytes >= PREVIEW_A.stat().st_size
    assert caught.value.free_bytes == 1_000_000
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyclover.files import write_copy

    def full(*_: int) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(write_copy, "_ways", [full])
    with pytest.raises(RepairError, match="disk is full"):
        repair(PREVIEW_A, tmp_path / "x.gguf")
    assert list(tmp_path.iterdir()) == []


def test_damage_on_the_way_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyclover.files import write_copy

    def bad(source: int, target: int, at: int, to: int, n: int) -> int:
        data = bytearray(os.pread(source, n, at))
        data[-1] ^= 1
        return os.pwrite(target, data, to)

    monkeypatch.setattr(write_copy, "_ways", [bad])
    with pytest.raises(RepairError, match="is not that of"):
        repair(PREVIEW_A, tmp_path / "x.gguf")
    assert list(tmp_path.iterdir()) == []


# --- split sets ---


def split(folder: Path) -> list[Path]:
    """The preview model in three files by gguf-py, its preview tensors under foreign names."""
    return split_by_gguf_py(PREVIEW_A, folder, lambda name: name.replace("ssm_bd_history_c", "history_c.x"))


def test_a_split_set_is_repaired_as_a_whole(tmp_path: Path) -> None:
    paths = split(tmp_path)
    before = [p.read_bytes() for p in paths]
    done = repair(paths[1])
    assert [p.name for p in done.outs] == [f"m-repaired-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    assert {(c.kind, c.key) for c in done.changes} == {
        ("add", SHARED_COUNT), *(("rename", f"blk.{i}.history_c.x") for i in range(3)),
    }  # fmt: skip
    assert [p.read_bytes() for p in paths] == before
    new = [t for p in done.outs for t in facts(p)[1]]
    assert new == facts(PREVIEW_A)[1]
    assert facts(done.outs[0])[0][SHARED_COUNT][1] == 1
    assert SHARED_COUNT not in facts(done.outs[1])[0]
    assert done.data_sha256 == hashlib.sha256(b"".join(map(data_of, paths))).hexdigest()
    assert inspect(done.outs[2]).capabilities.draft_self
    # a name for all, another count in it, and force over a set that is there
    assert repair(paths[0], tmp_path / "x.gguf").outs[0].name == "x-00001-of-00003.gguf"
    with pytest.raises(RepairError, match="says 4 shards"):
        repair(paths[0], tmp_path / "y-00001-of-00004.gguf")
    with pytest.raises(RepairError, match="there is a file"):
        repair(paths[0], tmp_path / "x")
    again = repair(paths[0], tmp_path / "x-00001-of-00003.gguf", overwrite=True)
    assert again.data_sha256 == done.data_sha256
    assert no_leftovers(tmp_path)


def test_a_set_is_named_as_a_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = split(tmp_path)
    link = os.link

    def fail_at_the_second(source: Any, target: Any) -> None:
        if "00002" in str(target):
            raise FileExistsError(17, "appeared meanwhile")
        link(source, target)

    monkeypatch.setattr(os, "link", fail_at_the_second)
    with pytest.raises(RepairError, match="there is a file"):
        repair(paths[0])
    assert sorted(tmp_path.iterdir()) == paths


# --- in place ---


def test_in_place_where_it_fits(tmp_path: Path) -> None:
    path = edited(tmp_path, lambda p: p.entries.append(Entry(SHARED_COUNT.encode(), 4, 1)))
    old = path.read_bytes()
    os.chmod(path, 0o640)
    done = repair(path, set_metadata={"general.name": "TINY clover"}, mask_token=5, in_place=True)
    assert (done.out, done.data_sha256, done.n_bytes) == (path, "", len(old))
    new = path.read_bytes()
    assert len(new) == len(old)
    differ = [i for i in range(len(old)) if old[i] != new[i]]
    at = old.index(b"tiny clover")
    mask = old.index(MASK.encode()) + len(MASK) + 4
    assert differ == [*range(at, at + 4), mask, mask + 1] == [i for i in differ if i < read_header(path).header_end]
    assert facts(path)[0][MASK][1] == 5  # 357 is 0x165, in two bytes
    assert no_leftovers(tmp_path)
    assert path.stat().st_mode & 0o777 == 0o640
    with pytest.raises(RepairError, match="too short"):
        repair(path, set_metadata={"general.name": ""}, chat_template="{{ 1 }}", in_place=True)
    link = tmp_path / "link.gguf"
    link.symlink_to(path)
    with pytest.raises(RepairError, match="this is a link"):
        repair(link, mask_token=6, in_place=True)


def test_a_crash_in_the_middle_is_put_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = edited(tmp_path, lambda p: p.entries.append(Entry(SHARED_COUNT.encode(), 4, 1)))
    old = path.read_bytes()

    def half(target: Path, raw: bytes) -> None:
        with target.open("r+b") as file:
            file.write(raw[:100] + b"\xff" * 400)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(repair_in_place, "_overwrite", half)
        with pytest.raises(KeyboardInterrupt):
            repair(path, mask_token=5, in_place=True)
    assert path.read_bytes() != old
    with pytest.raises(InvalidFileError, match="in place was interrupted"):
        inspect(path)
    with pytest.raises(InvalidFileError, match="in place was interrupted"):
        repair(path, mask_token=5, dry_run=True)
    undo = tmp_path / "m.gguf.undo"
    saved = undo.read_bytes()
    undo.write_bytes(saved[:-1])
    with pytest.raises(RepairError, match="damaged"):
        repair(path)
    undo.write_bytes(saved)
    done = repair(path)  # nothing to do but to put it back
    assert (done.put_back, done.changes) == (True, ())
    assert path.read_bytes() == old
    assert no_leftovers(tmp_path)


def test_a_file_that_another_process_repairs(tmp_path: Path) -> None:
    fcntl = pytest.importorskip("fcntl")
    path = edited(tmp_path, lambda p: p.entries.append(Entry(SHARED_COUNT.encode(), 4, 1)))
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(RepairError, match="another process"):
            repair(path, mask_token=5, in_place=True)


def half_done(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A repair in place that dies while it writes the header."""

    def half(target: Path, raw: bytes) -> None:
        with target.open("r+b") as file:
            file.write(raw[:100] + b"\xff" * 400)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(repair_in_place, "_overwrite", half)
        with pytest.raises(KeyboardInterrupt):
            repair(path, mask_token=5, in_place=True)


def with_count(folder: Path, name: str = "m.gguf") -> Path:
    """A file of which a header of the same length can be made."""
    return edited(folder, lambda p: p.entries.append(Entry(SHARED_COUNT.encode(), 4, 1)), name=name)


@pytest.mark.parametrize("number", [1, 2])
def test_an_unsplit_file_that_is_called_like_a_shard(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its undo file is its own, and the other files of that pattern have nothing to do with it."""
    path = with_count(tmp_path, f"x-0000{number}-of-00003.gguf")
    other = with_count(tmp_path, f"x-0000{3 - number}-of-00003.gguf")
    old = path.read_bytes()
    half_done(path, monkeypatch)
    assert [p.name for p in tmp_path.glob("*.undo")] == [f"{path.name}.undo"]
    with pytest.raises(InvalidFileError, match="in place was interrupted"):
        inspect(path)
    assert inspect(other).problems == ()
    assert not repair(other, mask_token=6, in_place=True).put_back
    assert repair(path).put_back
    assert path.read_bytes() == old
    assert no_leftovers(tmp_path)


def test_a_split_set_is_put_back_by_any_of_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = with_count(tmp_path)
    folder = tmp_path / "set"
    folder.mkdir()
    paths = split_by_gguf_py(source, folder)
    before = [p.read_bytes() for p in paths]
    half_done(paths[1], monkeypatch)
    assert [p.name for p in folder.glob("*.undo")] == ["m-00001-of-00003.gguf.undo"]
    for path in paths:
        with pytest.raises(InvalidFileError, match="in place was interrupted"):
            inspect(path)
    saved = (folder / "m-00001-of-00003.gguf.undo").read_bytes()
    (folder / "m-00001-of-00003.gguf.undo").write_bytes(b"cut off")
    with pytest.raises(InvalidFileError, match="in place was interrupted"):  # it may be about this file
        inspect(paths[2])
    (folder / "m-00001-of-00003.gguf.undo").write_bytes(saved)
    assert repair(paths[2]).put_back
    assert [p.read_bytes() for p in paths] == before
    assert no_leftovers(folder)


def test_in_place_is_refused_where_others_count_on_the_file(tmp_path: Path) -> None:
    path = with_count(tmp_path)
    before = path.read_bytes()
    os.link(path, tmp_path / "other-name.gguf")
    with pytest.raises(RepairError, match=r"this file has 2 names \(hard links\)"):
        repair(path, mask_token=5, in_place=True)
    (tmp_path / "other-name.gguf").unlink()
    record = tmp_path / ".download.json"
    for text in ('{"names": ["q4/m.gguf"]}', "damaged"):
        record.write_text(text)
        with pytest.raises(RepairError, match="pyclover's cache keeps this file as it was downloaded"):
            repair(path, mask_token=5, in_place=True)
    blob = tmp_path / "hub" / "models--o--r" / "blobs" / ("a" * 64)
    blob.parent.mkdir(parents=True)
    blob.write_bytes(before)
    snapshot = tmp_path / "hub" / "models--o--r" / "snapshots" / ("b" * 40)
    snapshot.mkdir(parents=True)
    (snapshot / "m.gguf").symlink_to(blob)
    for kept in (blob, snapshot / "m.gguf"):
        with pytest.raises(RepairError, match="Hugging Face's cache keeps this file"):
            repair(kept, mask_token=5, in_place=True)
    assert path.read_bytes() == blob.read_bytes() == before
    assert not list(tmp_path.rglob("*.undo"))
    # another file beside a download is the user's own, and a new file may always be made of one
    record.write_text('{"names": ["q4/other.gguf"]}')
    repair(path, mask_token=5, in_place=True)
    assert repair(blob, tmp_path / "new.gguf", mask_token=5).written


# --- kill -9 ---


def killed_at(n: int, work: Callable[[], object]) -> int | None:
    """Runs `work` in a child that kills itself before its n-th call of the system or of C code; how many there were,
    None when it was killed."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        count = 0

        def trace(frame: Any, event: str, what: Any) -> None:
            nonlocal count
            if event == "c_call" and "pyclover" in frame.f_code.co_filename:
                count += 1
                if count == n:
                    os.kill(os.getpid(), signal.SIGKILL)

        code = 1
        try:
            sys.setprofile(trace)
            work()
            sys.setprofile(None)
            os.write(write_end, str(count).encode())
            code = 0
        finally:
            os._exit(code)
    os.close(write_end)
    _, status = os.waitpid(pid, 0)
    with os.fdopen(read_end) as pipe:
        said = pipe.read()
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return None
    assert os.waitstatus_to_exitcode(status) == 0
    return int(said)


fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


@fork
def test_kill_9_leaves_the_old_file_and_no_half_one(tmp_path: Path) -> None:
    paths = split(tmp_path)
    before = {p: p.read_bytes() for p in paths}
    make: Callable[[], Repair] = lambda: repair(paths[0], tmp_path / "new", overwrite=True)  # noqa: E731
    n_calls = killed_at(-1, make)
    assert n_calls is not None
    whole = {p.name: p.read_bytes() for p in tmp_path.glob("new-*")}
    assert len(whole) == 3
    rng = random.Random(20)
    # the last tenth of the calls: copying, comparing and naming; the rest is reading
    moments = [rng.randrange(1, n_calls) for _ in range(10)] + [
        rng.randrange(n_calls * 9 // 10, n_calls) for _ in range(10)
    ]
    n_left = 0
    for moment in moments:
        for p in tmp_path.glob("new-*.gguf"):
            p.unlink()
        assert killed_at(moment, make) is None
        assert {p: p.read_bytes() for p in paths} == before
        named = {p.name: p.read_bytes() for p in tmp_path.glob("new-*.gguf")}
        assert named.items() <= whole.items()  # each file is whole, and the first one comes last
        assert "new-00001-of-00003.gguf" not in named or len(named) == 3
        n_left += bool(list(tmp_path.glob("*.part")))
    assert n_left  # some moments were in the middle of writing
    repair(paths[0], tmp_path / "new", overwrite=True)
    assert {p.name: p.read_bytes() for p in tmp_path.glob("new-*")} == whole
    assert no_leftovers(tmp_path)


@fork
def test_kill_9_in_place_leaves_the_old_header_or_the_new_one(tmp_path: Path) -> None:
    path = edited(tmp_path, lambda p: p.entries.append(Entry(SHARED_COUNT.encode(), 4, 1)))
    old = path.read_bytes()
    make: Callable[[], Repair] = lambda: repair(path, mask_token=5, in_place=True)  # noqa: E731
    n_calls = killed_at(-1, make)
    assert n_calls is not None
    new = path.read_bytes()
    rng = random.Random(21)
    n_undone = 0
    # from the first byte written on there are few calls: about the last forty
    for moment in [rng.randrange(1, n_calls) for _ in range(5)] + [n_calls - i for i in range(40)]:
        path.write_bytes(old)
        assert killed_at(moment, make) is None
        if (tmp_path / "m.gguf.undo").exists():
            with pytest.raises(InvalidFileError, match="interrupted"):
                resolve(path)
            assert repair_in_place.put_back(path)
            assert path.read_bytes() == old
            n_undone += 1
        else:
            assert path.read_bytes() in (old, new)
            resolve(path)
    assert n_undone > 3
    repair(path, mask_token=5, in_place=True)
    assert path.read_bytes() == new
    assert no_leftovers(tmp_path)


def test_names_that_are_no_files(tmp_path: Path) -> None:
    from pyclover.errors import ModelNotFoundError

    with pytest.raises(ModelNotFoundError):
        repair(tmp_path / "nosuch.gguf")
    with pytest.raises(UsageError, match="model in the package"):
        repair("tiny", mask_token=1)


def test_the_source_may_not_be_where_the_new_file_is_made(tmp_path: Path) -> None:
    source = tmp_path / "m.gguf.repair.part"
    shutil.copyfile(embedded_path("tiny"), source)
    before = source.read_bytes()
    with pytest.raises(RepairError, match="written there first"):
        repair(source, tmp_path / "m.gguf", set_metadata={"general.name": "x"})
    assert source.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.gguf.repair.part"]


def test_a_template_without_an_end_is_refused() -> None:
    with pytest.raises(UsageError, match="larger than any chat template"):
        repair(embedded_path("tiny"), dry_run=True, chat_template=Path("/dev/zero"))


def test_a_setting_that_is_nested_too_deep() -> None:
    with pytest.raises(UsageError, match="cannot be read as uint32"):
        read_setting("x=uint32[]:" + "[" * 100_000)
