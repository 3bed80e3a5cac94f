"""Sweeps: combinations, files, and what is wrong with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyclover.errors import UsageError
from pyclover.tuning.candidate import Candidate
from pyclover.tuning.prompts import KINDS, Prompt, built_in, digest, own, read
from pyclover.tuning.sweep import Sweep, read_sweep
from pyclover.tuning.tune import settings_of


def labels(sweep: Sweep) -> list[str]:
    return [candidate.label for candidate in sweep.candidates()]


def test_default() -> None:
    assert labels(Sweep()) == [
        "plain", "auto", "draft-self n=1", "draft-self n=3", "draft-self n=7", "draft-self n=15",
    ]  # fmt: skip


def test_combinations_that_cannot_be_are_left_out() -> None:
    sweep = Sweep(n_max=(1, 3), steps=(1, 2), block=(2, 8), p_min=(0, 0.5), auto=False)
    assert labels(sweep) == [
        "plain", "draft-self n=1 rows=2", "draft-self n=1 rows=2 p-min=0.5", "draft-self n=1 rows=8",
        "draft-self n=1 rows=8 p-min=0.5", "draft-self n=3 rows=8", "draft-self n=3 rows=8 p-min=0.5",
        "draft-self n=3 steps=2 rows=8", "draft-self n=3 steps=2 rows=8 p-min=0.5",
    ]  # fmt: skip
    assert labels(Sweep(n_max=(3, 15), n_ubatch=(8, 64), auto=False)) == [
        "plain -ub 8", "draft-self n=3 -ub 8", "plain -ub 64", "draft-self n=3 -ub 64", "draft-self n=15 -ub 64",
    ]  # fmt: skip


def test_relaxed_rules_come_beside_the_lossless_one() -> None:
    assert labels(Sweep(n_max=7, accept_ratio=0.9, accept_delta=(0.1, 0.2), auto=False)) == [
        "plain", "draft-self n=7", "draft-self n=7 ratio=0.9 delta=0.1", "draft-self n=7 ratio=0.9 delta=0.2",
    ]  # fmt: skip
    candidates = Sweep(n_max=7, accept_ratio=(0.9,), threshold=0.9, auto=False).candidates()
    assert [c.lossless for c in candidates] == [True, True, False, False]


def test_drafts_made_ahead_have_one_pass() -> None:
    assert labels(Sweep(n_max=3, steps=(1, 2), ahead=(False, True), auto=False)) == [
        "plain", "draft-self n=3 not-ahead", "draft-self n=3 ahead", "draft-self n=3 steps=2 not-ahead",
    ]  # fmt: skip


def test_candidates_come_back_from_json() -> None:
    for candidate in Sweep(n_max=(3, 7), steps=(1, 2), accept_ratio=0.9, threshold=(0.9,), n_threads=(1, 2),
                           expert_coreset=(0, 4)).candidates():  # fmt: skip
        assert Candidate.from_dict(candidate.to_dict()) == candidate
    assert Candidate().to_dict() == {"mode": "plain"}


@pytest.mark.parametrize(
    ("values", "option"),
    [
        ({"n_max": 32}, "n_max"), ({"n_max": "3"}, "n_max"), ({"n_max": (3, 0)}, "n_max"), ({"steps": 0}, "steps"),
        ({"p_min": 1.5}, "p_min"), ({"adaptive": "on"}, "adaptive"), ({"n_threads": (0,)}, "n_threads"),
        ({"auto": "yes"}, "auto"), ({"threshold": -0.1}, "threshold"), ({"expert_coreset": -1}, "expert_coreset"),
        ({"n_max": tuple(range(1, 32)), "p_min": (0, 0.1, 0.2)}, "n_max"),
    ],
)  # fmt: skip
def test_wrong_values(values: dict[str, object], option: str) -> None:
    with pytest.raises(UsageError) as caught:
        Sweep(**values)  # type: ignore[arg-type]
    assert caught.value.option == option


def write(folder: Path, text: str) -> Path:
    path = folder / "sweep.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_file(tmp_path: Path) -> None:
    path = write(tmp_path, "spec-draft-n-max: [3, 7]\nthreads: 2\nkinds: [maths]\nrepetitions: 3\npredict: 32\n")
    sweep, how = settings_of({"n_threads": (1,)}, path)
    assert sweep == Sweep(n_max=(3, 7), n_threads=(1,))  # arguments win
    assert (how["repetitions"], how["max_tokens"], how["interval"], how["kinds"]) == (3, 32, 0.05, ["maths"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("spec-draft-nmax: [1]", ["there is no key 'spec-draft-nmax'", "did you mean spec-draft-n-max"]),
        ("zzz: 1", ["there is no key 'zzz'", "it may have", "threads"]),
        ("spec-draft-n-max: [1, 99]", ["spec-draft-n-max", "99", "between 1 and 31"]),
        ("diffusion-threshold: high", ["diffusion-threshold", "'high'", "between 0 and 1"]),
        ("threads: [[1]]", ["must be numbers"]),
        ("- 1\n- 2", ["must have flags"]),
        ("", ["must have flags"]),
        ("a: [1", ["not YAML"]),
        ("a: !!python/object:os.system x", ["not YAML"]),
    ],
)
def test_wrong_files(tmp_path: Path, text: str, words: list[str]) -> None:
    path = write(tmp_path, text)
    with pytest.raises(UsageError) as caught:
        read_sweep(path)
    assert str(caught.value).startswith(str(path))
    for word in words:
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        read_sweep(tmp_path / "none.yaml")


def test_how_it_is_measured_is_checked() -> None:
    for name, value in {"max_tokens": 1, "repetitions": 0, "interval": 2, "temperature": -1, "seed": -1}.items():
        with pytest.raises(UsageError) as caught:
            settings_of({name: value}, None)
        assert caught.value.option == name


def test_built_in_prompts() -> None:
    prompts = built_in()
    assert tuple(dict.fromkeys(p.kind for p in prompts)) == KINDS
    assert all(p.chat and p.thinking is (p.kind == "thinking") for p in prompts)
    assert len({p.text for p in prompts}) == len(prompts) == 20
    with pytest.raises(UsageError, match="no kind 'poem'"):
        built_in(["poem"])


def test_prompts_of_files(tmp_path: Path) -> None:
    lines = tmp_path / "p.txt"
    lines.write_text("One.\n\nTwo.\nOne.\n", encoding="utf-8")
    assert read(lines, chat=True) == (Prompt("One.", "own", True), Prompt("Two.", "own", True))
    by_kind = tmp_path / "p.yaml"
    by_kind.write_text("mail: [a, b]\nthink: {thinking: true, prompts: [c]}\n", encoding="utf-8")
    assert read(by_kind) == (Prompt("a", "mail"), Prompt("b", "mail"), Prompt("c", "think", True, True))
    for text, word in {"mail: 3": "a list of texts", "[1]": "must be kinds", "mail: ['']": "a list of texts",
                       "a: {thinking: 1, prompts: [b]}": "true or false"}.items():  # fmt: skip
        by_kind.write_text(text, encoding="utf-8")
        with pytest.raises(UsageError, match=word):
            read(by_kind)
    lines.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="not UTF-8"):
        read(lines)
    lines.write_text("\n", encoding="utf-8")
    with pytest.raises(UsageError, match="no prompts"):
        read(lines)


def test_own_prompts() -> None:
    assert own(["a", "b", "a"]) == (Prompt("a"), Prompt("b"))
    with pytest.raises(UsageError, match="empty"):
        own([" "])
    assert digest(own(["a"])) != digest(own(["a"], chat=True))
