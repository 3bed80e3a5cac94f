"""The converter as a separate program: started, supplied with weight files, watched, ended."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyclover.errors import CancelledError, ConvertError, UsageError
from pyclover.files.convert_output import Output
from pyclover.files.convert_plan import ConvertPlan
from pyclover.files.convert_progress import ConvertProgress, ProgressFunction, Rate

NEEDED = ("torch", "transformers", "safetensors", "sentencepiece")
# What is written is synced to the disk so often, and only that is kept when a run is stopped.
SYNC_BYTES = 256 << 20
SYNC_S = 5.0
_POLL_S = 0.2
_LOG_LINES = 20
# Runs the file given first; the folder of this package, where types.py lies, must not be on the path for that.
_START = (
    "import sys; path = sys.argv.pop(1); sys.path[:1] = []; "
    "exec(compile(open(path, encoding='utf-8').read(), path, 'exec'))"
)
_FIND = (
    "import importlib.util, json, sys; "
    "print(json.dumps([name for name in sys.argv[1:] if importlib.util.find_spec(name) is None]))"
)


def check_python(python: str) -> None:
    """Raises unless a Python has the packages that the converter needs.

    Raises:
        UsageError: it does not run.
        ConvertError: packages are missing; the message says what to install.
    """
    how = "name a Python that has them with python (--python) or PYCLOVER_CONVERT_PYTHON"
    try:
        done = subprocess.run(
            [python, "-c", _FIND, *NEEDED], capture_output=True, text=True, check=True, cwd=tempfile.gettempdir(),
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        missing = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.CalledProcessError) as e:
        raise UsageError(f"{python} does not run as a Python ({e}); {how}", option="python") from None
    if missing:
        raise ConvertError(
            f"converting needs {', '.join(missing)}, which {python} does not have: install them with pip install "
            f"'pyclover[convert]', or {how}"
        )


def run_converter(
    plan: ConvertPlan, out: Output, *, converter: Path, python: str, progress: ProgressFunction | None = None
) -> tuple[str, ...]:
    """Let the converter write the planned file into `out`; returns its warnings.

    Before it writes a byte, its own list of tensors is held against the plan.

    Args:
        converter: folder with convert_hf_to_gguf.py.
        progress: is told the state some times a second; returning False stops the conversion.

    Raises:
        ConvertError: the converter refused or failed.
        CancelledError: `progress` returned False.
        others: as of the source's fetch().
    """
    stage = out.path.with_name(out.path.name + ".convert.stage")
    shutil.rmtree(stage, ignore_errors=True)  # of a killed run; the lock is ours
    try:
        job = _staged(plan, out, stage, converter)
        with _started(python, job, out.fd, stage) as (child, log):
            return _Conversation(plan, out, child, log, progress).run()
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def _staged(plan: ConvertPlan, out: Output, stage: Path, converter: Path) -> Path:
    """The folder that the converter takes for the checkpoint: small files, and the headers of the weight files."""
    folder = stage / plan.checkpoint.source.model_name
    folder.mkdir(parents=True)
    for name, data in (*plan.small_files.items(), *plan.checkpoint.headers.items()):
        (folder / name).write_bytes(data)
    left_out = set(plan.left_out)
    uses = Counter(shard for name, shard in plan.checkpoint.shard_of.items() if name not in left_out)
    job = {
        "folder": str(folder.resolve()), "converter": str(converter), "outtype": plan.outtype, "plain": plan.plain,
        "fd": out.fd, "kept": out.kept_bytes, "uses": dict(uses), "sync_bytes": SYNC_BYTES, "sync_s": SYNC_S,
    }  # fmt: skip
    path = stage / "job.json"
    path.write_text(json.dumps(job), encoding="utf-8")
    return path


@contextlib.contextmanager
def _started(python: str, job: Path, fd: int, stage: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """The running child, and the file with what it says; it is ended with the block."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    env |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONUTF8": "1",
            "PYTHONDONTWRITEBYTECODE": "1"}  # fmt: skip
    script = Path(__file__).with_name("convert_child.py")
    log = stage / "log.txt"
    with log.open("wb") as errors:
        # a session of its own: Ctrl-C reaches us, and we end it
        child = subprocess.Popen(
            [python, "-c", _START, str(script), str(job.resolve())], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=errors, env=env, cwd=stage, pass_fds=(fd,), start_new_session=True,
        )  # fmt: skip
    try:
        yield child, log
    finally:
        child.kill()
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        child.wait()


class _Conversation:
    """What the child says, and what it is answered."""

    def __init__(
        self, plan: ConvertPlan, out: Output, child: subprocess.Popen[bytes], log: Path, tell: ProgressFunction | None
    ) -> None:
        self._plan, self._out, self._child, self._log, self._tell = plan, out, child, log, tell
        self._rate = Rate()
        self._begin = self._at = self._n_done = 0
        self._item = ""
        self._writing = self._finished = False
        self._warnings: list[str] = []
        self._to_release = {*plan.checkpoint.shards}

    def run(self) -> tuple[str, ...]:
        self._report()
        handlers: dict[str, Callable[[dict[str, Any]], None]] = {
            "ready": self._ready, "begin": self._begun, "need": self._need, "done": self._done, "wrote": self._wrote,
            "synced": lambda said: self._out.synced(said["at"]), "warning": self._warning, "failed": self._failed,
            "finished": self._finish,
        }  # fmt: skip
        for said in self._lines():
            if said is None:
                self._report()
            else:
                handlers[said["event"]](said)
        code = self._child.wait()
        if not self._finished:
            raise self._ended(code)
        for shard in sorted(self._to_release):
            self._plan.checkpoint.source.release(shard)
        return tuple(self._warnings)

    def _lines(self) -> Iterator[dict[str, Any] | None]:
        """What the child says; None when it is silent for a moment."""
        assert self._child.stdout is not None
        pipe, rest = self._child.stdout.fileno(), b""
        while True:
            if not select.select([pipe], [], [], _POLL_S)[0]:
                yield None
                continue
            data = os.read(pipe, 1 << 16)
            if not data:
                return
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                yield json.loads(line)

    def _answer(self, **facts: Any) -> None:
        assert self._child.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended; its last words come
            self._child.stdin.write(json.dumps(facts).encode() + b"\n")
            self._child.stdin.flush()

    def _ready(self, said: dict[str, Any]) -> None:
        """The converter knows what it would write: it must be what was planned."""
        planned = {t.name: (list(t.shape), t.type.name, t.n_bytes) for t in self._plan.tensors}
        its_own = {name: (shape, kind, n_bytes) for name, shape, kind, n_bytes in said["tensors"]}
        for name in sorted(planned.keys() | its_own.keys()):
            if planned.get(name) != its_own.get(name):
                raise ConvertError(
                    f"{self._plan.checkpoint.title}: the converter would write the tensor {name} as "
                    f"{its_own.get(name)}, planned was {planned.get(name)}; nothing was written, please report it",
                    path=self._plan.checkpoint.title, key=name,
                )  # fmt: skip
        self._answer(go=True)

    def _begun(self, said: dict[str, Any]) -> None:
        self._begin, self._at, self._writing = said["header"], max(said["kept"], said["header"]), True
        if said["kept"] != self._out.kept_bytes:  # what was there has another header
            self._out.kept_bytes = said["kept"]
            self._out.synced(said["kept"])
        self._rate.begin(self._at)
        self._report()

    def _need(self, said: dict[str, Any]) -> None:
        path = self._plan.checkpoint.source.fetch(said["shard"])
        self._rate.begin(self._at)
        self._answer(path=str(path))

    def _done(self, said: dict[str, Any]) -> None:
        self._to_release.discard(said["shard"])
        self._plan.checkpoint.source.release(said["shard"])

    def _wrote(self, said: dict[str, Any]) -> None:
        self._n_done += 1
        self._item, self._at = said["name"], max(said["at"], self._at)
        self._report()

    def _warning(self, said: dict[str, Any]) -> None:
        text = str(said["text"])
        # the plan has said these already, in its own words
        if text.startswith("clover:") and "no mask token" not in text and "block pass" not in text:
            self._warnings.append(text.removeprefix("clover:").strip())

    def _failed(self, said: dict[str, Any]) -> None:
        lines = self._last_lines()
        text = " ".join(str(said["text"]).split())
        if os.strerror(errno.ENOSPC) in text:
            path = self._out.path
            raise ConvertError(f"{path}: the disk is full; make room and convert again", path=path, log=lines)
        raise ConvertError(
            f"{self._plan.checkpoint.title}: llama.cpp's converter stopped: {said['kind']}: {text}",
            path=self._plan.checkpoint.title, log=lines,
        )  # fmt: skip

    def _finish(self, said: dict[str, Any]) -> None:
        self._finished = True

    def _ended(self, code: int) -> ConvertError:
        lines = self._last_lines()
        if code == -signal.SIGKILL:
            why = "it was killed, perhaps for lack of memory"
        else:
            why = f"it ended with code {code}" + (f": {lines[-1]}" if lines else "")
        title = self._plan.checkpoint.title
        return ConvertError(f"{title}: llama.cpp's converter stopped: {why}", path=title, log=lines)

    def _last_lines(self) -> list[str]:
        with contextlib.suppress(OSError):
            return self._log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LOG_LINES:]
        return []

    def _report(self) -> None:
        if self._tell is None:
            return
        total = self._plan.data_bytes
        if not self._writing:
            state = ConvertProgress("start", self._plan.checkpoint.title, 0, total, 0, len(self._plan.tensors))
        else:
            # a large tensor grows while it is written
            self._at = max(self._at, min(os.fstat(self._out.fd).st_size, self._begin + total))
            done = self._at - self._begin
            rate = self._rate.add(self._at)
            left = None if rate is None else (total - done) / rate
            state = ConvertProgress(
                "convert", self._item, done, total, self._n_done, len(self._plan.tensors), rate, left
            )
        if self._tell(state) is False:
            raise CancelledError("the conversion was stopped; the next run continues with what is written, if it may")
