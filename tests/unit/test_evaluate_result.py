"""The table, Markdown, JSON and the picture of an evaluation; the command's own checks."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import pyclover
from pyclover.cli.main import cli
from pyclover.cli.output import Output
from pyclover.errors import UsageError
from pyclover.tuning.quality.acceptance import Acceptance
from pyclover.tuning.quality.result import Evaluation, FileQuality
from pyclover.tuning.quality.rows import SCORE
from pyclover.tuning.quality.statistics import Estimate, divergence


def file(name: str, kind: str, gib: float, kld: float | None) -> FileQuality:
    scores = np.zeros(4, dtype=SCORE)
    scores["nll"], scores["nll_base"], scores["same_top"] = [1, 2, 1, 2], [2, 1, 2, 2], [1, 1, 1, 0]
    if kld is not None:
        scores["kld"] = [0, kld, kld, 2 * kld]
    return FileQuality(
        path=Path(f"/m/{name}.gguf"), name=name, file_type=kind, file_bytes=int(gib * 2**30), bits_per_weight=8.5,
        ppl=Estimate(7.25, 0.5), divergence=None if kld is None else divergence(scores),
        acceptance=Acceptance(7, 2, 60, 20, 120, 50) if kld is not None else None,
    )  # fmt: skip


def result(*files: FileQuality) -> Evaluation:
    return Evaluation(files, file("ref", "BF16", 4, None), Path("/c/l.kld"), Estimate(7, 0.5), 512, 2, 510)


TWO = result(file("a|b", "Q8_0", 2, 0.01), file("c", "Q4_K_M", 1, 0.05))


def test_relative_to_q8_0() -> None:
    assert TWO.q8_0 is TWO.files[0]
    assert [TWO.relative_kld(f) for f in TWO.files] == [1, pytest.approx(5)]
    alone = result(TWO.files[1])
    assert alone.q8_0 is None
    assert alone.relative_kld(alone.files[0]) is None


def test_markdown() -> None:
    lines = TWO.markdown().splitlines()
    assert len(lines) == 5
    cells = [[cell.strip() for cell in line.replace("\\|", "/").strip("|").split("|")] for line in lines]
    assert len({len(row) for row in cells}) == 1
    assert cells[2][:5] == ["ref (reference)", "BF16", "4.000", "8.50", "7.2500 ± 0.5000"]
    assert cells[2][5:] == ["-"] * 6
    # KLD 0, 0.05, 0.05, 0.1: mean 0.05, standard deviation sqrt(0.005 / 3), over sqrt(4)
    assert cells[4][5:] == ["0.050000 ± 0.020412", "5.00", "0.098500", "75.000 ± 25.000", "2.50 of 7", "41.7"]
    assert cells[3][0] == "a/b"


def test_json_has_all_numbers() -> None:
    data = TWO.to_dict()
    assert json.loads(json.dumps(data)) == data
    assert data["files"][1]["relative_kld"] == pytest.approx(5)
    assert data["files"][1]["divergence"]["kld_percentiles"]["99"] == pytest.approx(0.0985)
    assert data["files"][1]["acceptance"]["accepted_per_round"] == 2.5
    assert data["reference"]["divergence"] is None


def test_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "p.png"
    TWO.plot(path)
    assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    TWO.plot(tmp_path / "p.svg")
    svg = (tmp_path / "p.svg").read_text(encoding="utf-8")
    assert "mean KL divergence" in svg
    assert sorted(p.name for p in tmp_path.iterdir()) == ["p.png", "p.svg"]
    with pytest.raises(UsageError, match=r"no KL divergence above zero"):
        result(file("x", "F16", 1, None)).plot(path)
    with pytest.raises(UsageError, match=r"must end in one of \.png"):
        TWO.plot(tmp_path / "p.txt")


def test_no_matplotlib(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"a plot needs matplotlib: install it, or pyclover\[plot\]"):
        TWO.plot(tmp_path / "p.png")
    done = run("tiny", "-f", "t.txt", "--plot", "p.png")
    assert done.exit_code == 2
    assert done.stderr.startswith("Error: a plot needs matplotlib")


def run(*args: str) -> Any:
    return CliRunner().invoke(cli, ["evaluate", *args])


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((), "Missing argument 'FILE'"),
        (("tiny",), "there is no text to judge by: give one (flag: --file)"),
        (("tiny", "-f", "nowhere.txt"), "nowhere.txt cannot be read: No such file or directory"),
        (("tiny", "-f", "t", "--chunks", "0"), "n_chunks is 0"),
        (("tiny", "-f", "t", "-c", "3"), "3 is not in the range"),
        (("tiny", "--json", "--markdown"), "leave out --markdown and --stats"),
        (("tiny", "--logits", "nowhere.kld"), "nowhere.kld is not there: give the reference"),
        (("tiny", "--logits", "nowhere.kld"), "(flag: --logits)"),  # not the other program's name for it
        (("tiny", "-f", "t", "--plot", "nowhere/a.png"), "nowhere is no folder: make it"),
        (("tiny", "-f", "t", "--plot", "a.txt"), "must end in one of .png, .svg, .pdf"),
    ],
)
def test_wrong_usage(args: tuple[str, ...], words: str) -> None:
    done = run(*args)
    assert done.exit_code == 2, done.output
    assert words in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"files": 5}, "files must be a path, or a list of them"),
        ({"files": []}, "there is no file to judge"),
        ({"progress": 5}, "progress must be a function or None"),
        ({"draft_prompts": 5}, "draft_prompts must be a sequence of str"),
        ({"draft_prompts": "x"}, "draft_prompts must be a sequence of str"),
        ({"resume": "no"}, "resume is 'no'"),
        ({"n_gpu": 1}, "n_gpu is no setting of an evaluation"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        pyclover.evaluate(**{"files": "tiny", "text": "t", **arguments})


def test_all_statistics_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    from pyclover.cli.evaluate import show_statistics

    show_statistics(Output("table"), TWO)
    lines = capsys.readouterr().out.splitlines()
    klds = [line.rsplit("KLD", 1)[1].split()[0] for line in lines[lines.index("c") :] if " KLD" in line][1:]
    assert len(klds) == 11
    assert klds == sorted(klds, reverse=True)
