"""`inspect` against gguf-py, on files that are not local, and what it says about odd and curable ones."""

from __future__ import annotations

import io
import json
import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import gguf
import pytest
from click.testing import CliRunner, Result
from model.gguf_parts import ARRAY, STRING, Entry, Parts, build, llama_file, parse, relay
from support import split_by_gguf_py

from pyclover import remote
from pyclover.cli.main import cli
from pyclover.errors import IncompleteSetError, InvalidFileError, RepairError
from pyclover.files import inspect, read_header
from pyclover.files.header_read import read_open_header
from pyclover.files.report import Report, inspect_open
from pyclover.files.shards import resolve_open

ORACLE = Path(__file__).parents[1] / "oracle"
FILES = sorted(ORACLE.glob("expected*/*.gguf"))
TINY_A = ORACLE / "expected" / "tiny_a.gguf"
PREVIEW_A = ORACLE / "expected_preview" / "tiny_a_preview.gguf"
IO = Path("/proc/self/io")


def agrees(report: Report, paths: list[Path]) -> None:
    """Every field that gguf-py can give is the one that it gives."""
    readers = [gguf.GGUFReader(path) for path in paths]
    fields = readers[0].fields
    said = {key: field.contents() for key, field in fields.items()}
    arch = said["general.architecture"]
    assert report.architecture == arch
    assert report.gguf_version == said["GGUF.version"]
    assert report.name == said.get("general.name", "")
    if "general.file_type" in said:
        wanted = gguf.LlamaFileType(said["general.file_type"]).name
        assert report.file_type == re.sub("^(MOSTLY|ALL)_", "", wanted)
    assert report.n_ctx_train == said[f"{arch}.context_length"]
    assert report.n_layer == said[f"{arch}.block_count"]
    assert report.n_embd == said[f"{arch}.embedding_length"]
    assert report.n_vocab == len(said["tokenizer.ggml.tokens"])
    assert report.has_chat_template == bool(said.get("tokenizer.chat_template"))
    ids = {key: value for key, value in said.items() if key.endswith("_token_id")}
    assert {token.id for token in report.special_tokens.values()} == set(ids.values())
    for token in report.special_tokens.values():
        assert token.text == said["tokenizer.ggml.tokens"][token.id]
    tensors = [(t, i) for i, reader in enumerate(readers) for t in reader.tensors]
    assert [(t.name, list(t.shape), t.type, t.n_bytes, t.file) for t in report.tensors] == [
        (t.name, [int(d) for d in t.shape], t.tensor_type.name, int(t.n_bytes), i) for t, i in tensors
    ]
    assert report.n_params == sum(int(t.n_elements) for t, _ in tensors)
    assert report.n_bytes == sum(int(t.n_bytes) for t, _ in tensors)
    assert report.bits_per_weight == pytest.approx(8 * report.n_bytes / report.n_params)
    assert report.file_bytes == sum(path.stat().st_size for path in paths)
    for group, use in report.groups.items():
        assert use.n_bytes == sum(t.n_bytes for t in report.tensors if t.group == group)


def split(folder: Path) -> list[Path]:
    return split_by_gguf_py(TINY_A, folder)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_every_field_is_that_of_gguf_py(path: Path) -> None:
    agrees(inspect(path), [path])


def test_a_split_file(tmp_path: Path) -> None:
    paths = split(tmp_path)
    assert len(paths) == 3
    agrees(inspect(paths[2]), paths)


def test_a_real_model(smollm2: Path) -> None:
    before = n_read()
    report = inspect(smollm2)
    n_bytes = n_read() - before
    agrees(report, [smollm2])
    assert n_bytes < 2 * read_header(smollm2).data_offset + (1 << 19) < smollm2.stat().st_size / 4
    assert report.groups["ffn"].types["Q4_1"].n_tensors == 3 * report.n_layer
    assert report.doubts == ()
    assert report.cures == ()


def n_read() -> int:
    """Bytes that this process has read by system calls so far."""
    if not IO.exists():
        pytest.skip("the system does not count reads")
    return int(re.search(r"rchar: (\d+)", IO.read_text())[1])  # type: ignore[index]


def test_no_file_is_read_whole(tmp_path: Path) -> None:
    """A model of 64 MiB: only the header, in blocks of 256 KiB."""
    path = tmp_path / "big.gguf"
    raw = TINY_A.read_bytes()
    parts = parse(raw)
    parts.tensors[0].shape[1] = 1 << 18  # token_embd, as of a large vocabulary
    relay(parts)
    path.write_bytes(build(parts))
    with path.open("r+b") as file:
        file.truncate(80 << 20)
    header = read_header(path)
    assert header.data_end > 64 << 20
    inspect(path)  # whatever is imported late is there now
    before = n_read()
    inspect(path)
    assert n_read() - before < header.data_offset + (1 << 18) + 10_000


class Counted(io.BytesIO):
    """A file in memory that is named, sized, and counts what is read; like an unbuffered one it may give less."""

    def __init__(self, path: Path) -> None:
        super().__init__(path.read_bytes())
        self.name, self.size, self.n_read = f"far/{path.name}", path.stat().st_size, 0

    def read(self, n: int | None = -1, /) -> bytes:
        data = super().read(n if n is None or n < 0 else min(n, 50_001))
        self.n_read += len(data)
        return data


def test_an_open_file_is_read_like_one_here(tmp_path: Path) -> None:
    file = Counted(TINY_A)
    header = read_open_header(file, file.size, file.name)
    here = read_header(TINY_A)
    assert (header.metadata, header.tensors, header.data_offset) == (here.metadata, here.tensors, here.data_offset)
    assert header.name == "far/tiny_a.gguf"
    assert file.n_read <= 1 << 18
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(TINY_A.read_bytes()[:3000])
    with pytest.raises(InvalidFileError, match=r"^far/cut\.gguf: ") as caught:
        read_open_header(Counted(cut), 3000, "far/cut.gguf")
    assert caught.value.path == "far/cut.gguf"


def test_an_open_set_is_found_by_its_names(tmp_path: Path) -> None:
    paths = split(tmp_path)
    asked: list[str | None] = []

    @contextmanager
    def open_file(name: str | None) -> Iterator[Counted]:
        asked.append(name)
        yield Counted(paths[1] if name is None else tmp_path / name)

    report = inspect_open(open_file)
    assert asked == [None, paths[0].name, paths[2].name]
    assert report.paths == tuple(f"far/{p.name}" for p in paths)
    agrees(report, paths)
    shutil.copy(paths[0], paths[2])
    with pytest.raises(InvalidFileError, match=r"^far/m-00003-of-00003\.gguf: the file name says shard 3"):
        resolve_open(open_file)


# --- over HTTP ---


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, list[tuple[str, int]]]]:
    """Serves byte ranges of tmp_path on 127.0.0.1; lists what was sent."""
    sent: list[tuple[str, int]] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path = tmp_path / self.path.strip("/").split("?")[0]
            hit = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
            if not path.is_file() or hit is None:
                self.send_error(404 if not path.is_file() else 500)
                return
            data = path.read_bytes()
            first, last = int(hit[1]), min(int(hit[2]), len(data) - 1)
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(data)}")
            self.send_header("Content-Length", str(last + 1 - first))
            self.end_headers()
            self.wfile.write(data[first : last + 1])
            sent.append((path.name, last + 1 - first))

        def log_message(self, *_: object) -> None:
            pass

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{httpd.server_address[1]}", sent
    httpd.shutdown()
    httpd.server_close()


def run(*args: str) -> Result:
    return CliRunner().invoke(cli, ["inspect", *args], prog_name="clover-run")


def test_a_remote_file_and_set(server: tuple[str, list[tuple[str, int]]], tmp_path: Path) -> None:
    address, sent = server
    shutil.copy(PREVIEW_A, tmp_path / "far.gguf")
    done = run("--json", "--tensors", f"{address}/far.gguf?download=true")
    assert done.exit_code == 0, done.stderr
    far = json.loads(done.stdout)
    assert far.pop("paths") == [f"{address}/far.gguf?download=true"]
    here = json.loads(json.dumps(inspect(PREVIEW_A).to_dict(tensors=True)))
    here.pop("paths")
    assert far == here
    assert sum(n for _, n in sent) <= 2 << 18 < PREVIEW_A.stat().st_size / 2
    sent.clear()
    paths = split(tmp_path)
    done = run("--json", f"{address}/{paths[1].name}")
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["paths"] == [f"{address}/{p.name}" for p in paths]
    assert {name for name, _ in sent} == {p.name for p in paths}


def test_which_names_are_remote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("https://x.y/m.gguf", "HTTP://x/m", "owner/repo", "owner/repo:Q4_K_M"):
        assert remote.is_remote(name)
    for name in ("tiny", "m.gguf", "a/m.gguf", "./a/b", "~/a", "/a/b", "a/b/c", "a/", "/"):
        assert not remote.is_remote(name)
    Path("owner").mkdir()
    Path("owner/repo").write_bytes(b"")
    assert not remote.is_remote("owner/repo")
    assert remote.opener("m.gguf") is None
    assert remote._beside("http://h/a/m-1.gguf?x=1", "n.gguf") == "http://h/a/n.gguf?x=1"


# --- odd and curable ---


def changed(folder: Path, source: Path = PREVIEW_A, *, drop: tuple[str, ...] = (), **values: Any) -> Path:
    """A copy of the file; keys with _ for . and the values that they get."""
    raw = source.read_bytes()
    parts = parse(raw)
    data = raw[parts.data_offset :]
    for entry in list(parts.entries):
        key = entry.key.decode()
        if key in drop:
            parts.entries.remove(entry)
        for name, value in values.items():
            if key.replace(".", "_") == name:
                entry.value = value
    path = folder / "m.gguf"
    path.write_bytes(build(parts) + data)
    return path


def doubts(path: Path) -> dict[str, str]:
    return {doubt.key: doubt.message for doubt in inspect(path).doubts}


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_sound_files_raise_no_doubt(path: Path) -> None:
    assert inspect(path).doubts == ()


@pytest.mark.parametrize(
    ("change", "key", "words"),
    [
        ({"tokenizer_ggml_eos_token_id": 353}, "tokenizer.ggml.eos_token_id", "'<|im_start|>'"),
        ({"drop": ("tokenizer.ggml.eos_token_id",)}, "tokenizer.ggml.eos_token_id", "no end token"),
        ({"tokenizer_ggml_mask_token_id": 355}, "tokenizer.ggml.mask_token_id", "'<think>'"),
        ({"drop": ("tokenizer.ggml.mask_token_id",)}, "tokenizer.ggml.mask_token_id", "no mask token"),
        ({"drop": ("tokenizer.chat_template",)}, "tokenizer.chat_template", "no chat template"),
        ({"tokenizer_chat_template": b"{{ messages }}"}, "tokenizer.chat_template", "thinking"),
        ({"tokenizer_chat_template": b"<think>{% if %}"}, "tokenizer.chat_template", "cannot be read"),
        ({"tokenizer_ggml_pre": b"qwen2"}, "tokenizer.ggml.pre", "'qwen2'"),
        ({"tokenizer_ggml_add_bos_token": 1}, "tokenizer.ggml.add_bos_token", "no token for the beginning"),
        ({"clover_moe_diffusion_block_length": 64}, "clover_moe.diffusion.block_length", "1 to 32 rows"),
        ({"general_file_type": 15}, "general.file_type", "says Q4_K_M, and no weight is of the type Q4_K"),
        ({"general_file_type": 999}, "general.file_type", "no meaning"),
    ],
)
def test_doubtful_metadata(tmp_path: Path, change: dict[str, Any], key: str, words: str) -> None:
    found = doubts(changed(tmp_path, **change))
    assert list(found) == [key]
    assert words in found[key]


def test_the_published_model_is_known_by_its_size(tmp_path: Path) -> None:
    """Only metadata: the tensors do not go with it, and the numbers are named all the same."""
    right = {
        "clover_moe_block_count": 40, "clover_moe_embedding_length": 2048, "clover_moe_context_length": 131072,
        "clover_moe_rope_freq_base": 1e7, "clover_moe_rope_dimension_count": 64, "clover_moe_attention_head_count": 16,
        "clover_moe_attention_head_count_kv": 2, "clover_moe_expert_count": 256, "clover_moe_expert_used_count": 8,
        "clover_moe_diffusion_block_length": 32,
    }  # fmt: skip
    assert doubts(changed(tmp_path, **right)) == {}
    wrong = {"clover_moe_context_length": 262144, "clover_moe_rope_freq_base": 1e4,
             "clover_moe_diffusion_block_length": 16}  # fmt: skip
    found = doubts(changed(tmp_path, **(right | wrong)))
    assert list(found) == [
        "clover_moe.context_length", "clover_moe.rope.freq_base", "clover_moe.diffusion.block_length",
    ]  # fmt: skip
    assert "262144" in found["clover_moe.context_length"]
    assert "131072" in found["clover_moe.context_length"]


def edited(folder: Path, edit: Any, name: str = "m.gguf") -> Path:
    raw = PREVIEW_A.read_bytes()
    parts: Parts = parse(raw)
    edit(parts)
    path = folder / name
    path.write_bytes(build(parts) + raw[parse(raw).data_offset :])
    return path


def test_odd_keys_and_types(tmp_path: Path) -> None:
    def edit(parts: Parts) -> None:
        parts.entries.append(Entry(b"clover_moe.diffusion.blocklength", 4, 8))
        parts.entries.append(Entry(b"clover_moe.attention.causal", 7, 0))
        for t in parts.tensors:
            if t.name.endswith(b"ffn_gate_inp.weight"):
                t.kind = 8  # Q8_0: a router
            if t.name == b"blk.0.ssm_conv1d_right.weight":
                t.kind = 1  # F16
        relay(parts)

    found = doubts(edited(tmp_path, edit))
    assert set(found) == {
        "clover_moe.diffusion.blocklength", "clover_moe.attention.causal", "blk.0.ffn_gate_inp.weight",
        "blk.0.ssm_conv1d_right.weight",
    }  # fmt: skip
    assert "and 3 more is quantized to Q8_0" in found["blk.0.ffn_gate_inp.weight"]
    assert "F32" in found["blk.0.ssm_conv1d_right.weight"]


def test_shards_of_several_quantizations(tmp_path: Path) -> None:
    paths = split(tmp_path)
    assert "split.no" not in doubts(paths[0])
    raw = paths[1].read_bytes()
    parts = parse(raw)
    for t in parts.tensors:
        if len(t.shape) > 1:
            t.kind = 1  # F16 where the other shards have F32
    relay(parts)
    paths[1].write_bytes(build(parts) + raw[parse(raw).data_offset :])
    assert "several quantizations" in doubts(paths[0])["split.no"]


@pytest.mark.parametrize(
    ("arch", "words"),
    [("bert", "embeddings"), ("gemma-embedding", "embeddings"), ("t5encoder", "embeddings"), ("llada", "diffusion"),
     ("eagle3", "drafter"), ("wavtokenizer-dec", "speech")],
)  # fmt: skip
def test_what_writes_no_text_is_not_plain(tmp_path: Path, arch: str, words: str) -> None:
    """The architectures for which llama.cpp makes no cache, or that serve another model (llama-model.cpp)."""
    path = tmp_path / "m.gguf"
    parts, data = llama_file(TINY_A.read_bytes())
    for entry in parts.entries:
        entry.key = entry.key.replace(b"llama.", arch.encode() + b".")
        if entry.key == b"general.architecture":
            entry.value = arch.encode()
    path.write_bytes(build(parts) + data)
    plain = inspect(path).capabilities.plain
    assert not plain.available
    assert f"the architecture '{arch}' is" in plain.reason
    assert words in plain.reason


def test_a_model_for_embeddings_is_doubtful(tmp_path: Path) -> None:
    parts, data = llama_file(TINY_A.read_bytes())
    parts.entries.append(Entry(b"llama.pooling_type", 4, 3))
    path = tmp_path / "m.gguf"
    path.write_bytes(build(parts) + data)
    assert "is last: the model was made for embeddings" in doubts(path)["llama.pooling_type"]


def test_warnings_name_the_cure(tmp_path: Path) -> None:
    report = inspect(PREVIEW_A)
    assert [change.key for change in report.cures] == ["clover_moe.expert_shared_count"]
    (warning,) = report.warnings
    assert "clover-run repair" in warning
    text = run(str(PREVIEW_A)).stdout
    assert "What clover-run repair would change\nadd  clover_moe.expert_shared_count    ->  1  uint32\n" in text
    assert inspect(TINY_A).cures == ()


def test_the_full_list(tmp_path: Path) -> None:
    text = run("--tensors", str(TINY_A)).stdout
    lines = text[text.index("\nTensors\n") :].splitlines()[3:]
    assert len(lines) == len(gguf.GGUFReader(TINY_A).tensors)
    assert lines[0].split() == ["token_embd.weight", "64", "x", "358", "F32", "89.5", "KiB", "embedding"]
    assert "tensors" not in inspect(TINY_A).to_dict()
    paths = split(tmp_path)
    lines = run("--tensors", str(paths[0])).stdout.splitlines()
    assert lines[-1].split()[-1] == "3"


# --- the command ---


def repair(*args: str) -> Result:
    return CliRunner().invoke(cli, ["repair", *args], prog_name="clover-run")


def test_the_command(tmp_path: Path) -> None:
    path, out = tmp_path / "m.gguf", tmp_path / "out.gguf"
    shutil.copy(PREVIEW_A, path)
    template = tmp_path / "t.jinja"
    template.write_text("{{ messages[0].content }}")
    args = [str(path), str(out), "--set", "general.name=string:a=b", "--mask-token", "<think>", "--block-length", "8",
            "--chat-template", str(template), "--set", "my.list=float32[]:[0.5, 2]"]  # fmt: skip
    dry = repair(*args, "--dry-run")
    assert dry.exit_code == 0, dry.stderr
    assert "not written, as this is a dry run" in dry.stderr
    assert not out.exists()
    done = repair(*args, "--json")
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["path"], found["out"], found["outs"]) == (str(path), str(out), [str(out)])
    assert [(c["kind"], c["key"], c["old"], c["new"]) for c in found["changes"]] == [
        ("set", "general.name", "tiny clover", "a=b"),
        ("add", "my.list", None, [0.5, 2.0]),
        ("set", "clover_moe.diffusion.block_length", 16, 8),
        ("set", "tokenizer.ggml.mask_token_id", 357, 355),
        ("set", "tokenizer.chat_template", parse_value(path, b"tokenizer.chat_template"), "{{ messages[0].content }}"),
        ("add", "clover_moe.expert_shared_count", None, 1),
    ]
    assert gguf.GGUFReader(out).fields["general.name"].contents() == "a=b"
    again = repair(*args)
    assert (again.exit_code, again.stderr.count("\n")) == (1, 1)
    assert "there is a file of that name" in again.stderr
    assert "--force" in again.stderr
    assert repair(*args, "--force").exit_code == 0
    nothing = repair(str(TINY_A))
    assert (nothing.exit_code, nothing.stdout) == (0, "")
    assert "nothing to repair" in nothing.stderr


def parse_value(path: Path, key: bytes) -> str:
    (entry,) = [e for e in parse(path.read_bytes()).entries if e.key == key]
    assert entry.kind == STRING != ARRAY
    return str(entry.value, "utf-8")


@pytest.mark.parametrize(
    "args",
    [["--set", "x"], ["--set", "a=u8:1", "--set", "a=u8:2"], ["--map-tensor", "x"], ["--block-length", "33"],
     ["--shared-count", "2"], ["--map-tensor", "a=b", "--map-tensor", "a=c"], ["--chat-template", "nosuch"]],
)  # fmt: skip
def test_wrong_usage(args: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = repair(str(TINY_A), "out.gguf", *args)
    assert done.exit_code == 2
    assert done.stderr.startswith(("Error: ", "Usage: "))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["tiny"], "say where the repaired one shall be"),
        ([str(TINY_A), " "], "empty path"),
        ([str(TINY_A), "x.gguf", "--in-place"], "--in-place changes FILE itself: leave out OUT and --force."),
        ([str(TINY_A), "--in-place", "--force"], "--in-place changes FILE itself: leave out OUT and --force."),
    ],
)
def test_sentences_name_no_flag_that_is_none(args: list[str], words: str) -> None:
    """OUT is an argument: there is no flag called out."""
    done = repair(*args)
    assert done.exit_code == 2
    assert words in done.stderr
    assert "flag: out" not in done.stderr


def test_capitals_are_a_file_name_too() -> None:
    done = CliRunner().invoke(cli, ["inspect", "models/CLOVER.GGUF"], prog_name="clover-run")
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith("Error: there is no file models/CLOVER.GGUF: give the path of a GGUF file")


def test_errors_are_of_one_family() -> None:
    from pyclover.errors import FileError

    assert issubclass(RepairError, FileError)
    assert issubclass(IncompleteSetError, FileError)
