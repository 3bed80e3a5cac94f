"""A GGUF file in parts, read and written by the format's description alone: nothing of the package is used."""

from __future__ import annotations

import contextlib
import random
import struct
from dataclasses import dataclass, field
from typing import Any

# value type -> struct format; 8 is a string, 9 an array
FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9


@dataclass
class Entry:
    """A metadata entry; `value` is a number, bytes, or (element type, list)."""

    key: bytes
    kind: int
    value: Any
    n: int | None = None  # the count that is written for an array, None: the true one


@dataclass
class Tensor:
    name: bytes
    shape: list[int]
    kind: int
    offset: int
    n_dims: int | None = None  # as written; None: the true one


@dataclass
class Parts:
    """Everything before the data section. `marks` are the offsets at which something begins."""

    entries: list[Entry]
    tensors: list[Tensor]
    data_offset: int
    marks: list[int] = field(default_factory=list)
    version: int = 3
    n_tensors: int | None = None
    n_entries: int | None = None

    def copy(self) -> Parts:
        return Parts(
            [Entry(e.key, e.kind, (e.value[0], list(e.value[1])) if e.kind == ARRAY else e.value, e.n)
             for e in self.entries],
            [Tensor(t.name, list(t.shape), t.kind, t.offset, t.n_dims) for t in self.tensors],
            self.data_offset, [], self.version, self.n_tensors, self.n_entries,
        )  # fmt: skip


def parse(data: bytes) -> Parts:
    """Takes a sound file apart."""
    at = 0
    marks: list[int] = []

    def number(form: str) -> Any:
        nonlocal at
        marks.append(at)
        (value,) = struct.unpack_from("<" + form, data, at)
        at += struct.calcsize("<" + form)
        return value

    def string() -> bytes:
        nonlocal at
        n = number("Q")
        marks.append(at)
        at += n
        return data[at - n : at]

    def value(kind: int) -> Any:
        if kind == STRING:
            return string()
        if kind == ARRAY:
            element = number("I")
            return element, [value(element) for _ in range(number("Q"))]
        return number(FORMATS[kind])

    assert number("4s") == b"GGUF"
    version, n_tensors, n_entries = number("I"), number("Q"), number("Q")
    entries = []
    for _ in range(n_entries):
        key, kind = string(), number("I")
        entries.append(Entry(key, kind, value(kind)))
    tensors = []
    for _ in range(n_tensors):
        name = string()
        shape = [number("Q") for _ in range(number("I"))]
        tensors.append(Tensor(name, shape, number("I"), number("Q")))
    data_offset = -(-at // 32) * 32
    marks += [at, data_offset, *(data_offset + t.offset for t in tensors)]
    return Parts(entries, tensors, data_offset, marks, version)


def pack(form: str, value: Any) -> bytes:
    """Like struct.pack, but a number that does not fit is cut to the bits that do."""
    if form in "fd" and isinstance(value, int | float):
        with contextlib.suppress(OverflowError):
            return struct.pack("<" + form, value)
        return struct.pack("<" + form, float("inf"))
    size = struct.calcsize("<" + form)
    if not isinstance(value, int | float):
        value = len(value)  # another kind of damage changed the type
    if isinstance(value, float):
        value = int(value) if abs(value) < 1e19 else -1
    return (value & ((1 << 8 * size) - 1)).to_bytes(size, "little")


def build(p: Parts) -> bytes:
    """Puts the parts together, padded to where data may begin."""

    def string(raw: bytes) -> bytes:
        return struct.pack("<Q", len(raw)) + raw

    def value(kind: int, v: Any, n: int | None = None) -> bytes:
        if kind == STRING:
            return string(v)
        if kind == ARRAY:
            element, items = v
            body = b"".join(value(element, x) for x in items)
            return pack("I", element) + pack("Q", len(items) if n is None else n) + body
        return pack(FORMATS.get(kind, "I"), v)

    out = [b"GGUF", pack("I", p.version)]
    out.append(pack("Q", len(p.tensors) if p.n_tensors is None else p.n_tensors))
    out.append(pack("Q", len(p.entries) if p.n_entries is None else p.n_entries))
    out += [string(e.key) + pack("I", e.kind) + value(e.kind, e.value, e.n) for e in p.entries]
    for t in p.tensors:
        out.append(string(t.name) + pack("I", len(t.shape) if t.n_dims is None else t.n_dims))
        out += [pack("Q", d) for d in t.shape] + [pack("I", t.kind), pack("Q", t.offset)]
    raw = b"".join(out)
    return raw + bytes(-len(raw) % 32)


def llama_file(like: bytes, n_layer: int = 1) -> tuple[Parts, bytes]:
    """A small llama model of equal layers with the vocabulary of the file `like`: its parts and its data.

    Put together it is `build(parts) + data`; after a change of shapes or types, `relay` gives the offsets.
    """
    n_vocab, e, heads, kv, ff = 0, 32, 4, 2, 64
    entries = [Entry(b"general.architecture", STRING, b"llama")]
    numbers = {"block_count": n_layer, "context_length": 256, "embedding_length": e, "feed_forward_length": ff,
               "attention.head_count": heads, "attention.head_count_kv": kv, "rope.dimension_count": 8}  # fmt: skip
    entries += [Entry(f"llama.{name}".encode(), 4, value) for name, value in numbers.items()]
    entries.append(Entry(b"llama.attention.layer_norm_rms_epsilon", 6, 1e-6))
    for entry in parse(like).entries:
        if entry.key.startswith(b"tokenizer.ggml."):
            entries.append(entry)
            n_vocab = len(entry.value[1]) if entry.key.endswith(b".tokens") else n_vocab
    shapes = {"token_embd.weight": [e, n_vocab], "output_norm.weight": [e]}
    for i in range(n_layer):
        shapes |= {
            f"blk.{i}.{name}.weight": shape
            for name, shape in {
                "attn_norm": [e], "attn_q": [e, e], "attn_k": [e, e * kv // heads], "attn_v": [e, e * kv // heads],
                "attn_output": [e, e], "ffn_norm": [e], "ffn_gate": [e, ff], "ffn_up": [e, ff], "ffn_down": [ff, e],
            }.items()
        }  # fmt: skip
    parts = Parts(entries, [Tensor(name.encode(), shape, 0, 0) for name, shape in shapes.items()], 0)
    relay(parts)
    rng = random.Random(1)
    n = sum(-(-_n_elements(t.shape) // 8) * 8 for t in parts.tensors)
    data = struct.pack(f"<{n}f", *(rng.uniform(-0.2, 0.2) for _ in range(n)))
    parts.data_offset = len(build(parts))
    return parts, data


def _n_elements(shape: list[int]) -> int:
    n = 1
    for d in shape:
        n *= d
    return n


BLOCKS = {0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 9: (32, 36),
          20: (32, 18), 24: (1, 1), 25: (1, 2), 26: (1, 4), 27: (1, 8), 28: (1, 8), 30: (1, 2),
          39: (32, 17)}  # fmt: skip


def relay(p: Parts) -> None:
    """Gives every tensor the offset that its place demands."""
    end = 0
    for t in p.tensors:
        block, size = BLOCKS.get(t.kind, (1, 4))
        t.offset = end
        end = -(-(end + _n_elements(t.shape) // block * size) // 32) * 32
