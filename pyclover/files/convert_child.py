"""Runs llama.cpp's converter for a conversion; started as a program in a Python that has what the converter needs.

It imports nothing of pyclover. The converter does the work; around it stand: where weights come from (the other process
brings a weight file when its first tensor is read), where they go to (a file that may hold a part already), and what is
kept in memory (nothing longer than it is needed). Both processes talk in lines of JSON, by what were standard input
and output; when the other one ends, so does this one.

usage: convert_child.py JOB.json
"""

from __future__ import annotations

import io
import json
import logging
import os
import queue
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

DIFFUSION = "clover_moe.diffusion."


class Line:
    """The other process."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w", encoding="utf-8")
        self._in = os.fdopen(os.dup(0), encoding="utf-8")
        os.dup2(2, 1)  # what libraries print is talk
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        self._lock = threading.Lock()
        self._replies: queue.Queue[dict[str, Any]] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in self._in:
            self._replies.put(json.loads(line))
        os._exit(3)

    def tell(self, event: str, **facts: Any) -> None:
        with self._lock:
            try:
                self._out.write(json.dumps({"event": event, **facts}) + "\n")
                self._out.flush()
            except OSError:
                os._exit(3)

    def ask(self, event: str, **facts: Any) -> dict[str, Any]:
        self.tell(event, **facts)
        return self._replies.get()


class Warnings(logging.Handler):
    """Passes the converter's warnings on."""

    def __init__(self, line: Line) -> None:
        super().__init__(logging.WARNING)
        self._line = line

    def emit(self, record: logging.LogRecord) -> None:
        self._line.tell("warning", text=record.getMessage())


def read_by_shard(gguf: Any, line: Line, uses: dict[str, int]) -> None:
    """A weight file is asked for when it is first read, and given back when all its tensors were.

    Args:
        uses: name of a file -> how many of its tensors are converted.
    """
    import numpy as np

    left, places = dict(uses), dict[str, str]()

    def mmap_bytes(tensor: Any) -> Any:
        place = tensor.data_range
        name = place.filename.name
        if name not in places:
            places[name] = line.ask("need", shard=name)["path"]
        data = np.memmap(places[name], mode="c", offset=place.offset, shape=place.size)
        left[name] = left.get(name, 0) - 1
        if left[name] == 0:
            line.tell("done", shard=name)
        return data

    gguf.utility.LocalTensor.mmap_bytes = mmap_bytes


def keep_little(gguf: Any) -> None:
    """A lazy tensor forgets what it was computed from as soon as it is computed."""
    base = gguf.LazyBase

    def to_eager(cls: Any, value: Any) -> Any:
        def one(lazy: Any) -> Any:
            if lazy._data is None:
                args = base._recurse_apply(lazy._args, one)
                data = lazy._func(*args, **lazy._kwargs)
                if data.dtype != lazy._meta.dtype or data.shape != lazy._meta.shape:
                    raise ValueError(f"a tensor came out as {data.dtype} {data.shape}, planned was {lazy._meta.shape}")
                lazy._data = data
                lazy._args, lazy._kwargs = (), {}
            return lazy._data

        return base._recurse_apply(value, one)

    base.to_eager = classmethod(to_eager)


def write_parts(gguf: Any, line: Line, job: dict[str, Any]) -> None:
    """The writer asks before it opens the file, keeps what is in it already, and says what is on the disk."""
    writer_class = gguf.GGUFWriter

    def open_output_file(writer: Any, path: Any = None) -> None:
        planned = [
            [name, [int(n) for n in reversed(info.shape)], info.dtype.name, int(info.nbytes)]
            for tensors in writer.tensors
            for name, info in tensors.items()
        ]
        keys = sorted(key for group in writer.kv_data for key in group)
        line.ask("ready", tensors=planned, keys=keys)
        writer.fout = [io.BytesIO()]
        writer.state = type(writer.state).EMPTY

    def write_tensors_to_file(writer: Any, *, progress: bool = False) -> None:
        writer.write_ti_data_to_file()
        head = writer.fout[0]
        writer.write_padding(head, head.tell())
        header = head.getvalue()
        # the descriptor holds the lock of the other process: nobody writes the file while we live
        with os.fdopen(os.dup(job["fd"]), "r+b") as out:
            writer.fout = [out]
            kept = min(job["kept"], os.fstat(out.fileno()).st_size)
            out.seek(0)
            if kept < len(header) or out.read(len(header)) != header:
                kept = 0
                out.seek(0)
                out.truncate()
                out.write(header)
                out.flush()
            body(writer, out, len(header), kept)
            writer.fout = None
        writer.state = type(writer.state).WEIGHTS

    def body(writer: Any, out: Any, start: int, kept: int) -> None:
        at, synced, synced_s, first = start, kept, time.monotonic(), True
        line.tell("begin", header=start, kept=kept)
        for tensors in writer.tensors:
            for name, info in tensors.items():
                end = at + writer.ggml_pad(info.nbytes, writer.data_alignment)
                if end > kept:
                    if first:  # a tensor that was half written is written again
                        out.seek(at)
                        out.truncate()
                        first = False
                    info.tensor.tofile(out)
                    if out.tell() != at + info.nbytes:
                        raise ValueError(f"{name}: {out.tell() - at} bytes were written, planned were {info.nbytes}")
                    writer.write_padding(out, info.nbytes)
                    out.flush()
                    if end - synced >= job["sync_bytes"] or time.monotonic() - synced_s >= job["sync_s"]:
                        os.fsync(out.fileno())
                        synced, synced_s = end, time.monotonic()
                        line.tell("synced", at=end)
                info.tensor = None
                at = end
                line.tell("wrote", name=name, at=end)
        out.seek(at)
        out.truncate()

    writer_class.open_output_file = open_output_file
    writer_class.write_tensors_to_file = write_tensors_to_file


def leave_out_block_pass() -> None:
    """The file gets neither the tensors of the block pass nor the keys about it, which upstream builds do not know."""
    from conversion import clover  # type: ignore[import-not-found]

    model = clover.CloverMoeModel
    endings = ("conv_right_weight", "bd_softmax_logit_scale", "bd_softmax_history_bias", "bd_softmax_history_c")
    filter_tensors, set_gguf_parameters = model.filter_tensors, model.set_gguf_parameters

    def filtered(cls: Any, item: Any) -> Any:
        return None if item[0].rpartition(".")[2] in endings else filter_tensors(item)

    def set_parameters(self: Any) -> None:
        set_gguf_parameters(self)
        for group in self.gguf_writer.kv_data:
            for key in [key for key in group if key.startswith(DIFFUSION)]:
                del group[key]

    model.filter_tensors = classmethod(filtered)
    model.set_gguf_parameters = set_parameters


def run(line: Line, job: dict[str, Any]) -> None:
    """The converter's own program, with the above around it."""
    os.environ.pop("NO_LOCAL_GGUF", None)
    sys.path.insert(0, job["converter"])
    logging.getLogger().addHandler(Warnings(line))
    import convert_hf_to_gguf as program  # type: ignore[import-not-found]

    logging.basicConfig(level=logging.INFO, force=True)
    logging.getLogger().addHandler(Warnings(line))
    gguf = program.gguf
    if Path(gguf.__file__).parents[2] != Path(job["converter"]):
        raise ImportError(f"another gguf was imported than the converter's own: {gguf.__file__}")
    read_by_shard(gguf, line, job["uses"])
    keep_little(gguf)
    write_parts(gguf, line, job)
    if job["plain"]:
        leave_out_block_pass()
    outfile = str(Path(job["folder"]).parent / "out.gguf")  # only a name: the file is open already
    sys.argv = ["convert_hf_to_gguf.py", job["folder"], "--outfile", outfile, "--outtype", job["outtype"]]
    program.main()


def main() -> None:
    line = Line()
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    try:
        run(line, job)
    except BaseException as e:
        traceback.print_exc()
        text = str(e) if not isinstance(e, SystemExit) else f"it ended with code {e.code}"
        line.tell("failed", kind=type(e).__name__, text=text)
        os._exit(1)
    line.tell("finished")


if __name__ == "__main__":
    main()
