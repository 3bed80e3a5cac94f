"""The built-in sample model."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import platformdirs
import pytest

from pyclover.errors import FileError, UsageError
from pyclover.files import CloverFacts, inspect, validate
from pyclover.files.sample import sample_path, write_sample
from pyclover.files.sample_text import CHAT_TEMPLATE, byte_letters, learn_merges


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sample") / "sample.gguf"
    write_sample(path)
    return path


def test_it_is_small_whole_and_can_do_everything(sample: Path) -> None:
    assert sample.stat().st_size < 2_000_000
    model = validate(sample)
    assert model.warnings == ()
    assert isinstance(model.facts, CloverFacts)
    assert model.facts.preview_complete
    assert model.facts.capabilities.draft_self
    report = inspect(sample)
    assert "random weights" in report.name
    assert report.has_chat_template
    assert list(sample.parent.iterdir()) == [sample]  # nothing left of the temporary file


def test_the_gguf_package_reads_it(sample: Path) -> None:
    reader = gguf.GGUFReader(sample)
    assert reader.fields["tokenizer.ggml.pre"].contents() == "qwen35"
    for t in reader.tensors:
        assert np.isfinite(np.asarray(t.data, np.float32)).all(), t.name
        if t.name.endswith(".ssm_a"):
            assert (t.data < 0).all()  # holds -exp(A_log)


def test_same_arguments_same_bytes(sample: Path, tmp_path: Path) -> None:
    write_sample(tmp_path / "a.gguf")
    write_sample(tmp_path / "b.gguf", seed=2)
    assert (tmp_path / "a.gguf").read_bytes() == sample.read_bytes()
    assert (tmp_path / "b.gguf").read_bytes() != sample.read_bytes()


def test_other_sizes(tmp_path: Path) -> None:
    write_sample(tmp_path / "m.gguf", n_layer=2, n_embd=32, n_merges=20, preview=False)
    report = inspect(tmp_path / "m.gguf")
    assert report.layers == {"linear": 1, "full": 1}
    assert (report.n_embd, report.n_vocab) == (32, 256 + 20 + 6)
    assert not report.capabilities.draft_self.available
    for option, value in (("n_layer", 1), ("n_embd", 33), ("seed", -1), ("n_merges", 0)):
        with pytest.raises(UsageError) as caught:
            write_sample(tmp_path / "no.gguf", **{option: value})  # type: ignore[arg-type]
        assert caught.value.option == option


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"old")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(gguf.GGUFWriter, "write_tensors_to_file", full)
    with pytest.raises(OSError, match="No space"):
        write_sample(path)
    assert [p.read_bytes() for p in tmp_path.iterdir()] == [b"old"]


def test_words_are_likelier_than_bytes(sample: Path) -> None:
    reader = gguf.GGUFReader(sample)
    tokens = reader.fields["tokenizer.ggml.tokens"].contents()
    head = next(t.data for t in reader.tensors if t.name == "output.weight").astype(np.float32)
    norms = dict(zip(tokens, np.linalg.norm(head, axis=1), strict=True))
    assert norms["Ġthe"] > 3 * norms["t"]
    assert norms["Ġthe"] > 3 * norms["<|im_end|>"]


def test_cached_in_the_users_folder(tmp_path: Path) -> None:
    """Two processes at once, as on a first `pytest -n 2`: both get a sound file, and nothing else stays behind."""
    code = "from pyclover.files.sample import sample_path; print(sample_path())"
    env = {"XDG_CACHE_HOME": str(tmp_path), "HOME": str(tmp_path), "PYTHONPATH": ":".join(p for p in sys.path if p)}
    running = [
        subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    answers = {p.communicate(timeout=60)[0].strip() for p in running}
    assert [p.returncode for p in running] == [0, 0]
    (path,) = answers
    assert Path(path).is_relative_to(tmp_path)
    assert list(Path(path).parent.iterdir()) == [Path(path)]
    validate(path)


def test_damaged_cache_is_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platformdirs, "user_cache_path", lambda _: tmp_path / "cache")
    path = sample_path()
    content = path.read_bytes()
    path.write_bytes(content[:1000])
    assert sample_path() == path
    assert path.read_bytes() == content
    monkeypatch.setattr(platformdirs, "user_cache_path", lambda _: path / "cache")  # below a file
    with pytest.raises(FileError, match="cannot be written"):
        sample_path()


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(28, "No space left on device"), "No space left on device; free some space, or"),
        (OSError("4096 requested and 512 written"), "the disk is full; free some space, or"),  # as numpy says it
        (OSError(13, "Permission denied"), "Permission denied; make the folder writable, or"),
    ],
)
def test_the_sample_cannot_be_written(
    error: OSError, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(platformdirs, "user_cache_path", lambda _: tmp_path)
    monkeypatch.setattr(gguf.GGUFWriter, "write_tensors_to_file", fails)
    with pytest.raises(FileError, match=said):
        sample_path()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_where_the_sample_should_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platformdirs, "user_cache_path", lambda _: tmp_path)
    path = sample_path()
    path.unlink()
    path.mkdir()
    with pytest.raises(FileError, match="it is a folder; remove it") as caught:
        sample_path()
    assert caught.value.path == str(path)


def test_byte_letters_are_those_of_gpt2() -> None:
    letters = byte_letters()
    assert len(set(letters)) == 256
    assert [letters[b] for b in b" \n\tA\x00\xad"] == ["Ġ", "Ċ", "ĉ", "A", "Ā", "Ń"]


def test_merges_by_hand() -> None:
    # "ab" 3 times, then "abc" twice; ties go to the pair that sorts first
    assert learn_merges(2, "abc abc ab") == [("a", "b"), ("ab", "c")]
    assert learn_merges(99, "abc abc ab") == [("a", "b"), ("ab", "c"), ("Ġ", "ab"), ("Ġ", "abc")]


def test_template() -> None:
    jinja2 = pytest.importorskip("jinja2")
    template = jinja2.Environment().from_string(CHAT_TEMPLATE)
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}]
    chatml = "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
    assert template.render(messages=messages) == chatml
    chatml += "<|im_start|>assistant\n"
    assert template.render(messages=messages, add_generation_prompt=True) == chatml
    assert template.render(messages=messages, add_generation_prompt=True, enable_thinking=True) == chatml
    assert (
        template.render(messages=messages, add_generation_prompt=True, enable_thinking=False)
        == chatml + "<think>\n\n</think>\n\n"
    )
