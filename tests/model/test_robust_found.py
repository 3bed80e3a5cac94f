"""One small file for each kind of fault that damaged files ever brought out."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from model.corrupt_run import quiet_core
from model.gguf_parts import ARRAY, STRING, Entry, Parts, build, llama_file, parse, relay
from support import ORACLE

import pyclover

TINY_B = ORACLE / "expected" / "tiny_b.gguf"
I8, I32, Q8_1, BF16 = 24, 26, 9, 30

# Opens a file with two threads, where a failed check of a worker cannot be caught, and uses it.
USE = """
import sys, pyclover
try:
    with pyclover.Clover(sys.argv[1], n_ctx=64, n_threads=2) as m:
        m.tokenize("a fox")
        m.generate([1, 2, 3], max_tokens=2, temperature=0)
        print("works")
except pyclover.CloverError as e:
    print(type(e).__name__, str(e))
"""


def opened(path: Path) -> str:
    """What a process of its own said about the file: "works", or the error."""
    quiet_core()
    done = subprocess.run(
        [sys.executable, "-c", USE, str(path)], cwd=path.parent, capture_output=True, text=True, timeout=20, check=False
    )
    assert done.returncode == 0, f"ended with {done.returncode}: {done.stderr[-500:]}"
    return done.stdout.strip()


def changed(path: Path, change: Any) -> Path:
    """tiny_b with another header."""
    data = TINY_B.read_bytes()
    parts = parse(data)
    change(parts)
    path.write_bytes(build(parts) + data[parts.data_offset :])
    return path


def entry(parts: Parts, key: str) -> Entry:
    return next(e for e in parts.entries if e.key == key.encode())


@pytest.mark.parametrize("name", ["a\u2028\u2463 b", "a\x859 b", "a\x0c\u0664 b", "a\x1c7", "a\r5 b", "\u2028"])
def test_line_separators_in_logged_text(name: str, tmp_path: Path) -> None:
    """llama.cpp logs the metadata. A name must not look like the start of another line of the log."""

    def change(p: Parts) -> None:
        entry(p, "general.name").value = name.encode()

    path = changed(tmp_path / "m.gguf", change)
    for _ in range(2):  # the log of the first is read by the second
        with pyclover.Clover(path, n_ctx=64, n_threads=1) as m:
            assert len(m.generate([1, 2, 3], max_tokens=2, temperature=0).tokens) == 2


@pytest.mark.parametrize("key", ["tokenizer.ggml.model", "tokenizer.ggml.pre"])
def test_control_characters_in_messages(key: str, tmp_path: Path) -> None:
    """Text of the file stands in the message, but must neither break the line nor steer a terminal."""

    def change(p: Parts) -> None:
        entry(p, key).value = b"gpt\n\x1b[2J"

    with pytest.raises(pyclover.UnsupportedModelError, match=key) as caught:
        pyclover.Clover(changed(tmp_path / "m.gguf", change))
    assert str(caught.value).isprintable()


def test_the_hand_made_llama_works(tmp_path: Path) -> None:
    parts, data = llama_file(TINY_B.read_bytes())
    (tmp_path / "m.gguf").write_bytes(build(parts) + data)
    assert opened(tmp_path / "m.gguf") == "works"


# ggml has no product for the first three and calls a null pointer; one of its threads aborts the process when a norm is
# not F32.
@pytest.mark.parametrize(
    ("tensor", "kind"),
    [(b"attn_q", kind) for kind in (I8, I32, Q8_1)] + [(b"attn_norm", kind) for kind in (1, 8, BF16)],
)
def test_weights_of_a_type_that_cannot_be_computed(tensor: bytes, kind: int, tmp_path: Path) -> None:
    parts, data = llama_file(TINY_B.read_bytes())
    name = b"blk.0." + tensor + b".weight"
    next(t for t in parts.tensors if t.name == name).kind = kind
    relay(parts)
    (tmp_path / "m.gguf").write_bytes(build(parts) + data)
    said = opened(tmp_path / "m.gguf")
    assert said.startswith("UnsupportedModelError")
    assert name.decode() in said


@pytest.mark.parametrize("architecture", ["llama", "clover_moe"])
def test_a_value_that_ggml_checks_while_it_computes(architecture: str, tmp_path: Path) -> None:
    """A negative epsilon: the failed check of a worker thread would end the process."""
    if architecture == "llama":
        parts, data = llama_file(TINY_B.read_bytes())
        entry(parts, "llama.attention.layer_norm_rms_epsilon").value = -1.0
        (tmp_path / "m.gguf").write_bytes(build(parts) + data)
    else:
        changed(
            tmp_path / "m.gguf",
            lambda parts: setattr(entry(parts, "clover_moe.attention.layer_norm_rms_epsilon"), "value", -1.0),
        )
    said = opened(tmp_path / "m.gguf")
    assert said != "works"
    assert "eps" in said


@pytest.mark.parametrize("model", ["test", "gpt2", "llama", "rwkv"])
def test_a_vocabulary_without_tokens(model: str, tmp_path: Path) -> None:
    """llama.cpp's "test" tokenizer divides by the number of tokens."""
    parts, data = llama_file(TINY_B.read_bytes())
    entry(parts, "tokenizer.ggml.model").value = model.encode()
    entry(parts, "tokenizer.ggml.tokens").value = (STRING, [])
    (tmp_path / "m.gguf").write_bytes(build(parts) + data)
    assert opened(tmp_path / "m.gguf").split()[0] in ("UnsupportedModelError", "LoadError")


def test_rwkv_vocabulary_with_a_first_byte_that_is_no_token(tmp_path: Path) -> None:
    """llama.cpp's rwkv tokenizer never ends when a token begins like the text but none is a prefix of it."""
    parts, data = llama_file(TINY_B.read_bytes())
    entry(parts, "tokenizer.ggml.model").value = b"rwkv"
    n = len(entry(parts, "tokenizer.ggml.tokens").value[1])
    entry(parts, "tokenizer.ggml.tokens").value = (STRING, [b"axyz%d" % i for i in range(n)])
    (tmp_path / "m.gguf").write_bytes(build(parts) + data)
    with contextlib.suppress(subprocess.TimeoutExpired):
        opened(tmp_path / "m.gguf")
        return
    pytest.fail("tokenizing did not end")


def test_parts_are_put_together_as_they_were() -> None:
    """The tests' own reader and writer of the format."""
    for path in sorted((ORACLE / "expected").glob("*.gguf")):
        data = path.read_bytes()
        parts = parse(data)
        assert build(parts) == data[: parts.data_offset]
        assert {e.kind for e in parts.entries} >= {4, STRING, ARRAY}


WHOLE_CONTEXT = """
import resource, sys, pyclover
resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
try:
    with pyclover.Clover(sys.argv[1], n_ctx=0, n_threads=1, fit=bool(int(sys.argv[2]))):
        print("works")
except pyclover.CloverError as e:
    print(type(e).__name__, str(e))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits as Linux has them")
@pytest.mark.parametrize("fit", ["0", "1"])
@pytest.mark.parametrize("n_ctx", [2**31 - 1, 2**32 - 1])
def test_a_context_length_that_no_machine_has_room_for(n_ctx: int, fit: str, tmp_path: Path) -> None:
    """n_ctx=0 is the file's word; std::bad_alloc went through C code that could not take it. A plan says it first."""
    changed(tmp_path / "m.gguf", lambda parts: setattr(entry(parts, "clover_moe.context_length"), "value", n_ctx))
    done = subprocess.run(
        [sys.executable, "-c", WHOLE_CONTEXT, str(tmp_path / "m.gguf"), fit],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, f"ended with {done.returncode}: {done.stderr[-500:]}"
    planned = ("DoesNotFitError",) if fit == "1" else ("OutOfMemoryError",)
    assert done.stdout.split()[0] in (*planned, "UnsupportedModelError", "UsageError"), done.stdout
    assert "n_ctx" in done.stdout or "context_length" in done.stdout
