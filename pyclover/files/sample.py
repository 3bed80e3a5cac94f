"""The built-in sample: a small Clover model with random weights, for trying things out without a download.

It has every tensor and key of the real one, so it loads, chats and drafts; what it writes is word salad.
"""

from __future__ import annotations

import errno
import os
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
import platformdirs

from pyclover.errors import FileError, PathLike, UsageError
from pyclover.files.facts import CLOVER_ARCH
from pyclover.files.gate import validate
from pyclover.files.sample_text import CHAT_TEMPLATE, byte_letters, learn_merges

_VERSION = 1  # part of the cached file's name: raise it when the contents change
_NORMAL, _CONTROL, _USER_DEFINED = 1, 3, 4
_SPECIALS = {
    "<|endoftext|>": _CONTROL,
    "<|im_start|>": _CONTROL,
    "<|im_end|>": _CONTROL,
    "<think>": _USER_DEFINED,
    "</think>": _USER_DEFINED,
    "<|mask|>": _CONTROL,
}

FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True)
class _Shape:
    """Sizes of the sample; letters as in the tensor tables (see layout.py)."""

    n_layer: int
    n_embd: int
    n_merges: int
    interval: int
    n_head: int = 4
    n_head_kv: int = 2
    head_dim: int = 32
    n_rot: int = 16
    conv: int = 4
    state: int = 16
    groups: int = 2
    rank: int = 4
    n_expert: int = 8
    n_used: int = 2
    n_ff: int = 32
    n_ctx: int = 4096
    block: int = 32

    @property
    def inner(self) -> int:
        return self.rank * self.state

    @property
    def channels(self) -> int:
        return 2 * self.groups * self.state + self.inner


def sample_path() -> Path:
    """Path of the sample model in the user's cache folder, written there on first use.

    Two processes may ask at once: each writes a file of its own and renames it into place.

    Raises:
        FileError: the cache folder cannot be written.
    """
    path = platformdirs.user_cache_path("pyclover") / f"sample-random-v{_VERSION}.gguf"
    with suppress(FileError):
        validate(path)
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_sample(path)
    except OSError as e:
        if not path.exists():  # Windows refuses to replace a file that another process has just put there and opened
            raise _cannot_write(path, e) from e
        if path.is_dir():
            raise FileError(f"{path}: this should be the sample model, and it is a folder; remove it", path=path) from e
    return path


def _cannot_write(path: Path, error: OSError) -> FileError:
    # numpy's writer has no error number to tell: it writes less than it should when the disk is full
    if error.errno is None or error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        why, advice = error.strerror or "the disk is full", "free some space"
    else:
        why, advice = error.strerror or str(error), "make the folder writable"
    return FileError(f"{path}: the sample model cannot be written: {why}; {advice}, or give a model with -m", path=path)


def write_sample(
    path: PathLike, *, seed: int = 1, n_layer: int = 4, n_embd: int = 64, n_merges: int = 440, preview: bool = True
) -> None:
    """Write the sample model, all at once or not at all; the same arguments give the same bytes.

    Args:
        seed: of the weights.
        n_layer: 2 or more; every fourth layer (the last, when there are fewer) is full attention.
        n_embd: a multiple of 32.
        n_merges: pairs that the tokenizer joins, of which the vocabulary has 262 tokens more.
        preview: with the tensors that drafting and block diffusion need.

    Raises:
        UsageError: a size that makes no model.
        OSError: the file cannot be written.
    """
    for option, value, fine in (
        ("seed", seed, seed >= 0),
        ("n_layer", n_layer, 2 <= n_layer <= 512),
        ("n_embd", n_embd, n_embd > 0 and n_embd % 32 == 0),
        ("n_merges", n_merges, n_merges > 0),
    ):
        if not fine:
            raise UsageError(f"write_sample: {option}={value} makes no model", option=option)
    shape = _Shape(n_layer=n_layer, n_embd=n_embd, n_merges=n_merges, interval=min(n_layer, 4))
    target = Path(path)
    # of this process and call alone, and beside the target, for only within one file system is a rename atomic
    draft = target.with_name(f".{target.name}.{os.getpid()}-{os.urandom(4).hex()}.tmp")
    try:
        _write(draft, shape, seed, preview)
        os.replace(draft, target)
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)


def _write(path: Path, s: _Shape, seed: int, preview: bool) -> None:
    merges = learn_merges(s.n_merges)
    tokens = [*byte_letters(), *(a + b for a, b in merges), *_SPECIALS]
    writer = gguf.GGUFWriter(path, CLOVER_ARCH)
    try:
        _add_metadata(writer, s, preview)
        _add_tokenizer(writer, tokens, merges)
        for name, values in _tensors(s, tokens, seed, preview):
            # vectors and convolutions stay F32, as in real files: llama.cpp has their operations for F32 only
            small = values.ndim == 1 or "conv1d" in name
            writer.add_tensor(name, values if small else values.astype(np.float16))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        for file in writer.fout or ():
            file.flush()
            os.fsync(file.fileno())
    finally:
        writer.close()


def _add_metadata(w: gguf.GGUFWriter, s: _Shape, preview: bool) -> None:
    w.add_string("general.name", "Clover sample (random weights)")
    w.add_string("general.description", "Random weights, for trying out the program: its text means nothing.")
    w.add_string("general.size_label", "sample")
    w.add_uint32("general.file_type", 1)
    numbers = {
        "block_count": s.n_layer,
        "context_length": s.n_ctx,
        "embedding_length": s.n_embd,
        "attention.head_count": s.n_head,
        "attention.head_count_kv": s.n_head_kv,
        "attention.key_length": s.head_dim,
        "attention.value_length": s.head_dim,
        "rope.dimension_count": s.n_rot,
        "expert_count": s.n_expert,
        "expert_used_count": s.n_used,
        "expert_feed_forward_length": s.n_ff,
        "expert_shared_count": 1,
        "expert_shared_feed_forward_length": s.n_ff,
        "ssm.conv_kernel": s.conv,
        "ssm.state_size": s.state,
        "ssm.group_count": s.groups,
        "ssm.time_step_rank": s.rank,
        "ssm.inner_size": s.inner,
        "full_attention_interval": s.interval,
    }
    if preview:
        numbers |= {"diffusion.block_length": s.block, "diffusion.expert_coreset": 0}
        w.add_bool(f"{CLOVER_ARCH}.diffusion.shift_logits", False)
    for key, value in numbers.items():
        w.add_uint32(f"{CLOVER_ARCH}.{key}", value)
    w.add_float32(f"{CLOVER_ARCH}.attention.layer_norm_rms_epsilon", 1e-6)
    w.add_float32(f"{CLOVER_ARCH}.rope.freq_base", 10000.0)


def _add_tokenizer(w: gguf.GGUFWriter, tokens: list[str], merges: list[tuple[str, str]]) -> None:
    first_special = len(tokens) - len(_SPECIALS)
    w.add_string("tokenizer.ggml.model", "gpt2")
    w.add_string("tokenizer.ggml.pre", "qwen35")
    w.add_array("tokenizer.ggml.tokens", tokens)
    w.add_array("tokenizer.ggml.token_type", [_NORMAL] * first_special + list(_SPECIALS.values()))
    w.add_array("tokenizer.ggml.merges", [f"{a} {b}" for a, b in merges])
    for role, text in (("eos", "<|im_end|>"), ("padding", "<|endoftext|>"), ("mask", "<|mask|>")):
        w.add_uint32(f"tokenizer.ggml.{role}_token_id", tokens.index(text))
    w.add_bool("tokenizer.ggml.add_bos_token", False)
    w.add_string("tokenizer.chat_template", CHAT_TEMPLATE)


def _tensors(s: _Shape, tokens: list[str], seed: int, preview: bool) -> Iterator[tuple[str, FloatArray]]:
    """(name, values in row-major order: the reverse of ggml's shape). Gains keep the residual stream lively."""

    def noise(name: str, *rows: int) -> FloatArray:
        return _noise(seed, name, rows)

    def matrix(name: str, n_in: int, *n_out: int, gain: float = 1.5) -> tuple[str, FloatArray]:
        return name, noise(name, *n_out, n_in) * np.float32(gain / n_in**0.5)

    def vector(name: str, n: int, mean: float = 1.0, spread: float = 0.1) -> tuple[str, FloatArray]:
        return name, np.float32(mean) + np.float32(spread) * noise(name, n)

    e, heads = s.n_embd, s.n_head * s.head_dim
    yield matrix("token_embd.weight", e, len(tokens), gain=e**0.5)
    yield vector("output_norm.weight", e)
    name, head = matrix("output.weight", e, len(tokens), gain=4.0)
    yield name, head * _wordiness(tokens)[:, None]
    for i in range(s.n_layer):
        p = f"blk.{i}."
        yield vector(p + "attn_norm.weight", e)
        yield vector(p + "post_attention_norm.weight", e)
        if (i + 1) % s.interval == 0:
            yield matrix(p + "attn_q.weight", e, 2 * heads)
            yield matrix(p + "attn_k.weight", e, s.n_head_kv * s.head_dim)
            yield matrix(p + "attn_v.weight", e, s.n_head_kv * s.head_dim)
            yield vector(p + "attn_q_norm.weight", s.head_dim, mean=1.5)
            yield vector(p + "attn_k_norm.weight", s.head_dim, mean=1.5)
            yield matrix(p + "attn_output.weight", heads, e)
        else:
            yield matrix(p + "attn_qkv.weight", e, s.channels)
            yield matrix(p + "attn_gate.weight", e, s.inner)
            yield matrix(p + "ssm_conv1d.weight", s.conv, s.channels)
            yield vector(p + "ssm_dt.bias", s.rank, mean=-1.0, spread=0.5)
            yield vector(p + "ssm_a", s.rank, mean=-0.6, spread=0.3)  # negative: minus the decay rate
            yield matrix(p + "ssm_alpha.weight", e, s.rank)
            yield matrix(p + "ssm_beta.weight", e, s.rank)
            yield vector(p + "ssm_norm.weight", s.state)
            yield matrix(p + "ssm_out.weight", s.inner, e)
            if preview:
                yield matrix(p + "ssm_conv1d_right.weight", s.conv - 1, s.channels, gain=0.5)
                yield vector(p + "ssm_bd_logit_scale", s.rank, mean=4.0)
                yield vector(p + "ssm_bd_history_bias", s.rank, mean=2.0)
                yield vector(p + "ssm_bd_history_c", s.rank, mean=2.0)
        yield matrix(p + "ffn_gate_inp.weight", e, s.n_expert, gain=2.0)
        yield matrix(p + "ffn_gate_exps.weight", e, s.n_expert, s.n_ff)
        yield matrix(p + "ffn_up_exps.weight", e, s.n_expert, s.n_ff)
        yield matrix(p + "ffn_down_exps.weight", s.n_ff, s.n_expert, e)
        yield vector(p + "ffn_gate_inp_shexp.weight", e, mean=0.0)
        yield matrix(p + "ffn_gate_shexp.weight", e, s.n_ff)
        yield matrix(p + "ffn_up_shexp.weight", e, s.n_ff)
        yield matrix(p + "ffn_down_shexp.weight", s.n_ff, e)


def _noise(seed: int, name: str, shape: tuple[int, ...]) -> FloatArray:
    """Uniform numbers of mean 0, variance 1, from the generator's raw bits, which numpy promises never to change."""
    raw = np.random.PCG64([seed, zlib.crc32(name.encode())]).random_raw(int(np.prod(shape)))
    unit = (np.asarray(raw, np.uint64) >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)
    out: FloatArray = ((unit - np.float32(0.5)) * np.float32(12**0.5)).reshape(shape)
    return out


def _wordiness(tokens: list[str]) -> FloatArray:
    """Factor for each token's row of the output head [n_vocab]: whole words likely, bytes and control tokens rare."""
    space = byte_letters()[ord(" ")]
    factors = []
    for i, token in enumerate(tokens):
        if token in _SPECIALS or i < 256:
            factors.append(0.1)
        else:
            factors.append(1.0 if token[0] == space and len(token) > 2 else 0.5)
    return np.array(factors, np.float32)
