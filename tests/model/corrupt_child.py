"""A process that opens damaged model files, one after another, so that a crash costs the parent nothing but a child.

Started as `python corrupt_child.py BASE FILE`. It reads cases from standard input and answers each on standard output,
both as length-prefixed pickles. A case is a list of splices (start, end, bytes), ascending, applied to the bytes of
BASE; the result is written to FILE and opened. An answer is a dict: `outcome` ("works" or the name of the error that
opening gave), `wrong` (traces of what must not happen), `cpu_s`, `wall_s`, `peak_bytes` (resident memory so far).
"""

from __future__ import annotations

import os
import pickle
import resource
import struct
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any, BinaryIO

# What the process may map beyond its start. Far more than a tiny model needs; the machine is safe from a mistake.
ADDRESS_SPACE_BYTES = 2 << 30
TEXT = "Hello, wörld 123 456! 你好 🙂\n\t  def f(x): return '<|im_end|><think>'\r\n e\u0301"


def read_message(stream: BinaryIO) -> Any:
    """The next message; EOFError when the other side is gone."""
    head = stream.read(8)
    if len(head) < 8:
        raise EOFError
    (size,) = struct.unpack("<Q", head)
    data = stream.read(size)
    if len(data) < size:
        raise EOFError
    return pickle.loads(data)


def write_message(stream: BinaryIO, value: Any) -> None:
    data = pickle.dumps(value)
    stream.write(struct.pack("<Q", len(data)) + data)
    stream.flush()


def spliced(base: bytes, splices: list[tuple[int, int, bytes]]) -> bytes:
    """`base` with each of the ranges replaced."""
    parts, at = [], 0
    for start, end, new in splices:
        parts += [base[at:start], new]
        at = end
    return b"".join([*parts, base[at:]])


def peak_bytes() -> int:
    """The largest resident memory that this process ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def use(m: Any) -> list[Callable[[], object]]:
    """What a program would do with a model that loaded."""
    return [
        lambda: m.generate([1, 2, 3], max_tokens=3, temperature=0),
        lambda: m.generate([1, 2, 3], max_tokens=3, seed=1),
        lambda: m.logits([1, 2]),
        lambda: m.detokenize(m.tokenize(TEXT)),
        lambda: m.detokenize(range(m.info.n_vocab)),
        lambda: m.warnings,
    ]


def try_file(path: str) -> tuple[str, list[str]]:
    """(what opening it gave, traces of exceptions that are not ours)."""
    import pyclover

    wrong: list[str] = []
    try:
        m = pyclover.Clover(path, n_ctx=64, n_batch=64, n_ubatch=16, n_threads=1)
    except pyclover.CloverError as e:
        if not str(e) or not str(e).isprintable():
            wrong.append(f"not one line of text: {str(e)!r}")
        return type(e).__name__, wrong
    except Exception:
        return "crash", [traceback.format_exc()]
    with m:
        for call in use(m):
            try:
                call()
            except pyclover.CloverError:
                pass
            except Exception:
                wrong.append(traceback.format_exc())
    return "works", wrong


def main() -> None:
    base_path, path = sys.argv[1:3]
    with open(base_path, "rb") as f:
        base = f.read()
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever native code prints must not mix with the answers
    try_file(base_path)  # loads every library before memory is measured
    if sys.platform == "linux":
        with open("/proc/self/statm", encoding="ascii") as statm:
            mapped = int(statm.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (mapped + ADDRESS_SPACE_BYTES,) * 2)
    write_message(answers, {"peak_bytes": peak_bytes()})
    while True:
        try:
            splices = read_message(sys.stdin.buffer)
        except EOFError:
            return
        with open(path, "wb") as f:
            f.write(spliced(base, splices))
        cpu, wall = time.process_time(), time.monotonic()
        outcome, wrong = try_file(path)
        write_message(
            answers,
            {
                "outcome": outcome,
                "wrong": wrong,
                "cpu_s": time.process_time() - cpu,
                "wall_s": time.monotonic() - wall,
                "peak_bytes": peak_bytes(),
            },
        )


if __name__ == "__main__":
    main()
