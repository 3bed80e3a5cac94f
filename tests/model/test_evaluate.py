"""Evaluations equal llama-perplexity of the same build; interrupted ones go on and give the same bytes."""

from __future__ import annotations

import json
import os
import random
import re
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pyclover
from pyclover.engine.build_info import programs
from pyclover.errors import CancelledError, UsageError
from pyclover.files.embedded import embedded_path
from pyclover.tuning.quality.logits_file import LogitsFile

N_CTX, N_CHUNKS = 128, 3
WORDS = "the lamp stood by a window and its light fell on twelve old books while rain ran down grey glass"
Evaluate = Callable[..., pyclover.Evaluation]


def some_text(n_words: int) -> str:
    chosen, words = random.Random(8), WORDS.split()
    return " ".join(chosen.choice(words) + chosen.choice(["", "", ",", ".", " 7 + 5 ="]) for _ in range(n_words))


def llama(*args: object) -> str:
    """What a program of llama.cpp says."""
    program = programs().get("llama")
    if program is None:
        pytest.skip("built without llama.cpp's programs")
    done = subprocess.run([str(program), *map(str, args)], capture_output=True, check=True, stdin=subprocess.DEVNULL)
    return (done.stdout + done.stderr).decode("utf-8", "replace")


def requantized(source: Path, folder: Path, kind: str) -> Path:
    path = folder / f"{source.stem}-{kind}.gguf"
    if not path.exists():
        llama("quantize", "--allow-requantize", source, path, kind, 1)
    return path


def base_of_program(model: Path, text: Path, out: Path, n_chunks: int = N_CHUNKS) -> Path:
    llama("perplexity", "-m", model, "-f", text, "-c", N_CTX, "--chunks", n_chunks, "-t", 1, "-b", N_CTX,
          "--kl-divergence-base", out)  # fmt: skip
    return out


NUMBER = r"(-?\d+\.\d+)"


def of_program(model: Path, base: Path) -> dict[str, tuple[float, ...]]:
    """Name -> value, or value and error, of `llama perplexity --kl-divergence`; per cent are made shares."""
    found: dict[str, tuple[float, ...]] = {}
    for _ in range(30):  # the program may end before all of its last lines are written
        said = llama("perplexity", "-m", model, "-c", N_CTX, "-t", 1, "-b", N_CTX, "--kl-divergence-base", base,
                     "--kl-divergence")  # fmt: skip
        for name, value, error, percent in re.findall(
            rf"^([^:\n]+?)\s*:\s*{NUMBER}(?: ±\s*{NUMBER})?[ ]*(%?)[ ]*$", said, re.MULTILINE
        ):
            factor = 0.01 if percent else 1.0
            found[re.sub(r"\s+", " ", name.strip())] = tuple(factor * float(x) for x in (value, error) if x)
        if len(found) == 6 + 12 + 16:
            return found
    raise AssertionError(said)


def of_ours(file: pyclover.FileQuality) -> dict[str, tuple[float, ...]]:
    d = file.divergence
    assert d is not None
    assert file.ppl is not None
    pairs = {
        "Mean PPL(Q)": file.ppl, "Mean PPL(base)": d.ppl_base, "Mean ln(PPL(Q)/PPL(base))": d.ln_ppl_ratio,
        "Mean PPL(Q)/PPL(base)": d.ppl_ratio, "Mean PPL(Q)-PPL(base)": d.ppl_difference, "Mean KLD": d.kld,
        "Mean Δp": d.p_diff, "RMS Δp": d.p_diff_rms, "Same top p": d.same_top,
    }  # fmt: skip
    out: dict[str, tuple[float, ...]] = {name: (e.value, e.error) for name, e in pairs.items()}
    out["Cor(ln(PPL(Q)), ln(PPL(base)))"] = (d.correlation,)
    for what, low, median, high, percentiles in (
        ("KLD", d.kld_min, d.kld_median, d.kld_max, d.kld_percentiles),
        ("Δp", d.p_diff_min, d.p_diff_median, d.p_diff_max, d.p_diff_percentiles),
    ):
        out |= {f"Minimum {what}": (low,), f"Median {what}": (median,), f"Maximum {what}": (high,)}
        out |= {f"{percent:.1f}% {what}": (value,) for percent, value in percentiles.items()}
    return out


def assert_equal(ours: dict[str, tuple[float, ...]], theirs: dict[str, tuple[float, ...]]) -> None:
    """To 4 digits, or to the last digit that the program shows."""
    assert ours.keys() == theirs.keys()
    for name, want in theirs.items():
        shown = 1.01e-5 if "Δp" in name or "top" in name else 1.01e-6
        if name.startswith("Cor"):
            shown = 1.01e-4
        assert ours[name] == pytest.approx(want, rel=1e-4, abs=shown), name


@pytest.fixture
def evaluate(tmp_path: Path) -> Evaluate:
    """pyclover.evaluate with a small text, one thread and a cache of its own."""
    (tmp_path / "text.txt").write_text(some_text(900) + "\n", encoding="utf-8")

    def run(*args: Any, **options: Any) -> pyclover.Evaluation:
        defaults: dict[str, Any] = {
            "text": tmp_path / "text.txt", "n_ctx": N_CTX, "n_chunks": N_CHUNKS, "n_threads": 1, "draft_prompts": (),
            "cache_dir": tmp_path / "cache",
        }  # fmt: skip
        return pyclover.evaluate(*args, **{**defaults, **options})

    return run


def test_tiny_equals_the_program(tmp_path: Path, evaluate: Evaluate) -> None:
    tiny = embedded_path("tiny")
    files = [requantized(tiny, tmp_path, kind) for kind in ("Q8_0", "Q4_0")]
    got = evaluate(files, reference="tiny", draft_prompts=["What is 12 + 7?", "What is 3 + 5?"], n_predict=24)
    assert (got.n_ctx, got.n_chunks, got.n_tokens) == (N_CTX, N_CHUNKS, N_CHUNKS * 63)
    base = base_of_program(tiny, tmp_path / "text.txt", tmp_path / "base.kld")
    for file in got.files:
        assert_equal(of_ours(file), of_program(file.path, base))
    # the files of logits are the same, but for the last digit of a scale; each reads the other's
    assert got.logits is not None
    ours, theirs = LogitsFile(got.logits), LogitsFile(base)
    assert ours.chunks.tokens.tolist() == theirs.chunks.tokens.tolist()
    for k in range(N_CHUNKS):
        steps = ours.rows(k)[:, 4:].astype(int) - theirs.rows(k)[:, 4:]
        assert np.abs(steps).max() <= 1
    assert_equal(of_ours(got.files[1]), of_program(got.files[1].path, got.logits))
    again = evaluate(files[1], text=None, n_ctx=None, logits=base)
    assert again.reference is None
    assert_equal(of_ours(again.files[0]), of_ours(got.files[1]))
    # drafts: counted as generate() counts them, the reference's too
    for file in (got.reference, *got.files):
        assert file is not None
        assert file.acceptance is not None
        with pyclover.Clover(file.path, n_ctx=1024, n_threads=1) as m:
            stats = [
                m.generate(
                    m.apply_chat_template([{"role": "user", "content": question}]), max_tokens=24, temperature=0,
                    speculation=pyclover.DraftSelf(n_max=7, adaptive=False),
                ).stats
                for question in ("What is 12 + 7?", "What is 3 + 5?")
            ]  # fmt: skip
        assert file.acceptance.rounds == sum(s.rounds for s in stats) > 0
        assert file.acceptance.drafted == sum(s.drafted for s in stats)
        assert file.acceptance.accepted == sum(s.accepted for s in stats)


@pytest.mark.timeout(900)  # on a machine that is busy
def test_a_real_model_equals_the_program(smollm2: Path, tmp_path: Path, evaluate: Evaluate) -> None:
    reference = requantized(smollm2, tmp_path, "F16")
    files = [requantized(reference, tmp_path, kind) for kind in ("Q8_0", "Q5_K_M", "Q2_K")]
    text = (Path(__file__).resolve().parents[2] / "docs" / "design.md").read_text(encoding="utf-8")
    (tmp_path / "text.txt").write_text(text, encoding="utf-8")
    got = evaluate(files, reference=reference, n_chunks=2)  # 126 tokens: below 100 the program gives no statistics
    base = base_of_program(reference, tmp_path / "text.txt", tmp_path / "base.kld", 2)
    for file in got.files:
        assert_equal(of_ours(file), of_program(file.path, base))
        assert file.acceptance is None
        assert "only clover_moe drafts for itself" in file.no_drafts
    relative = [got.relative_kld(file) or 0 for file in got.files]
    assert relative[0] == 1
    assert relative == sorted(relative)
    assert relative[2] > 4 * relative[1] > 8
    tops = [file.divergence.same_top.value for file in got.files if file.divergence is not None]
    assert tops == sorted(tops, reverse=True)
    sizes = [file.file_bytes for file in got.files]
    assert sizes == [path.stat().st_size for path in files] == sorted(sizes, reverse=True)


def test_perplexity_alone(tmp_path: Path, evaluate: Evaluate) -> None:
    got = evaluate("tiny")
    command = (
        "perplexity",
        "-m",
        embedded_path("tiny"),
        "-f",
        tmp_path / "text.txt",
        "-c",
        N_CTX,
        "--chunks",
        N_CHUNKS,
    )
    tries = (re.search(rf"Final estimate: PPL = {NUMBER} \+/- {NUMBER}", llama(*command, "-t", 1)) for _ in range(30))
    hit = next((found for found in tries if found), None)
    assert hit is not None
    assert got.files[0].ppl is not None
    assert (got.files[0].ppl.value, got.files[0].ppl.error) == pytest.approx((float(hit[1]), float(hit[2])), rel=1e-4)
    assert (got.files[0].divergence, got.reference, got.logits) == (None, None, None)


def test_what_was_computed_is_not_computed_twice(tmp_path: Path, evaluate: Evaluate) -> None:
    file = requantized(embedded_path("tiny"), tmp_path, "Q4_0")
    first = evaluate(file, reference="tiny")
    assert first.files[0].n_kept == 0
    seen: list[Any] = []
    second = evaluate(file, reference="tiny", progress=seen.append)
    assert [(p.stage, p.n_done) for p in seen] == [("scores", N_CHUNKS)]
    assert second.files[0].n_kept == N_CHUNKS
    assert second.files[0].divergence == first.files[0].divergence
    assert evaluate(file, reference="tiny", n_chunks=2).n_chunks == 2  # other settings: other numbers
    assert evaluate(file, reference="tiny", resume=False).files[0].n_kept == 0
    os.utime(file)  # touched: it may be another file now
    assert evaluate(file, reference="tiny").files[0].n_kept == 0


def test_stopped_after_each_chunk(tmp_path: Path, evaluate: Evaluate) -> None:
    """Each call does one chunk more; at the end all is as if it had been one call."""
    file = requantized(embedded_path("tiny"), tmp_path, "Q4_0")
    want = evaluate(file, reference="tiny", cache_dir=tmp_path / "other")
    n_calls = 0
    while True:
        n_told = 0

        def one_chunk(progress: Any) -> bool:
            nonlocal n_told
            n_told += 1
            return n_told < 2

        n_calls += 1
        try:
            got = evaluate(file, reference="tiny", progress=one_chunk)
            break
        except CancelledError:
            assert n_calls < 20
    assert n_calls > 2 * N_CHUNKS
    assert (got.files[0].divergence, got.files[0].ppl) == (want.files[0].divergence, want.files[0].ppl)
    assert files_of(tmp_path / "cache") == files_of(tmp_path / "other")


def files_of(cache: Path) -> dict[str, bytes]:
    """All that an evaluation keeps, but for its locks."""
    return {
        str(path.relative_to(cache)): path.read_bytes()
        for path in sorted(cache.rglob("*"))
        if path.is_file() and path.suffix != ".lock"
    }


def test_a_file_with_another_vocabulary(oracle: Path, evaluate: Evaluate) -> None:
    with pytest.raises(UsageError, match="has another vocabulary than the reference"):
        evaluate(oracle / "expected" / "tiny_a.gguf", reference="tiny")


def test_a_file_of_logits_made_of_something_else(tmp_path: Path, evaluate: Evaluate) -> None:
    where = tmp_path / "l.kld"
    evaluate("tiny", reference="tiny", logits=where)
    data = where.read_bytes()
    assert evaluate("tiny", reference="tiny", logits=where).files[0].n_kept == N_CHUNKS
    with pytest.raises(
        UsageError, match=r"is not known to be made of this reference and text \(other than wanted: text"
    ):
        evaluate("tiny", reference="tiny", logits=where, text=some_text(901))
    (tmp_path / "l.kld.json").unlink()
    with pytest.raises(UsageError, match=r"no l.kld.json beside it"):
        evaluate("tiny", reference="tiny", logits=where)
    assert where.read_bytes() == data
    with pytest.raises(UsageError, match="has chunks of 128 tokens, not 64"):
        evaluate("tiny", logits=where, n_ctx=64)
    with pytest.raises(UsageError, match="or the text is another one"):
        evaluate("tiny", logits=where, n_ctx=None, text="another text")


SERVER = """
import os, sys
import pyclover
for line in sys.stdin:
    folder, file, text = line.rstrip("\\n").split("\\t")
    child = os.fork()
    if child == 0:
        pyclover.evaluate(file, reference="tiny", text=text, n_ctx=64, n_chunks=24, n_threads=1, cache_dir=folder,
                          draft_prompts=["What is 12 + 7?"], n_predict=8)
        os._exit(0)
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.mark.skipif(os.name != "posix", reason="forks and signals as POSIX has them")
def test_killed_at_random_moments(tmp_path: Path) -> None:
    """No half file under a final name; the files that come out are those of a run that nobody disturbed."""
    file = requantized(embedded_path("tiny"), tmp_path, "Q4_0")
    server = subprocess.Popen([sys.executable, "-c", SERVER], cwd=tmp_path, stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, bufsize=0)  # fmt: skip
    assert server.stdin is not None
    assert server.stdout is not None
    pipe = server.stdout

    def attempt(cache: Path, patience_s: float | None) -> int:
        """Exit code; -9 when it was killed because it took longer."""
        assert server.stdin is not None
        server.stdin.write(f"{cache}\t{file}\t{some_text(900)}\n".encode())
        child = int(pipe.readline())
        if not select.select([pipe], [], [], patience_s)[0]:
            os.kill(child, signal.SIGKILL)
        return int(pipe.readline())

    try:
        assert attempt(tmp_path / "whole", None) == 0
        want = files_of(tmp_path / "whole")
        assert len(want) == 5  # logits and what of, scores, drafts of both
        chosen = random.Random(3)
        n_killed, n_done, patience_s = 0, 0, 1.0
        while n_killed < 20:
            cache = tmp_path / f"cache-{n_done}"
            code = attempt(cache, chosen.uniform(0, patience_s))
            assert code in (0, -signal.SIGKILL)
            there = files_of(cache)
            for name, data in there.items():
                if not name.endswith(".part"):
                    assert data == want[name], name
            n_killed += code != 0
            if code == 0:
                assert there == want
                n_done += 1
                patience_s *= 0.7  # of a fast machine: to be killed, it has to be less
        assert attempt(tmp_path / f"cache-{n_done}", None) == 0
        assert {k: v for k, v in files_of(tmp_path / f"cache-{n_done}").items() if ".part" not in k} == want
    finally:
        server.stdin.close()
        server.wait()


@pytest.mark.skipif(os.name != "posix", reason="signals as POSIX has them")
@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_on(kind: signal.Signals, tmp_path: Path) -> None:
    program = shutil.which("clover-run", path=Path(sys.executable).parent)
    assert program is not None
    (tmp_path / "text.txt").write_text(some_text(2_000), encoding="utf-8")
    command = [program, "evaluate", "tiny", "-f", "text.txt", "-c", "64", "-t", "1", "--no-acceptance", "--json"]
    environment = {**os.environ, "PYCLOVER_CACHE": str(tmp_path / "cache")}
    running = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    while not any(p.stat().st_size > 3000 for p in tmp_path.glob("cache/evaluate/scores/*.part")):
        assert running.poll() is None, running.communicate()
        select.select([], [], [], 0.01)
    running.send_signal(kind)
    out, err = running.communicate()
    assert (running.returncode, out) == (130, b"")
    assert err.endswith(b"warning: stopped: what is computed is kept, and the same command continues there\n")
    assert b"Traceback" not in err
    assert list(tmp_path.glob("cache/evaluate/scores/*.scores")) == []
    done = subprocess.run([*command, "--chunks", "-1"], cwd=tmp_path, env=environment, capture_output=True, check=True)
    (file,) = json.loads(done.stdout)["files"]
    assert 3000 // (31 * 21 + 4) <= file["n_kept"] < json.loads(done.stdout)["n_chunks"]
