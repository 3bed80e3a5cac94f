"""Profiles: what they hold for, what a command takes from them, and what becomes of damaged ones."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support import ORACLE

from pyclover.cli import profile_use
from pyclover.cli.main import cli
from pyclover.engine.blocks import BlockParams
from pyclover.errors import UsageError
from pyclover.files.gate import ValidatedModel, validate
from pyclover.tuning import identity, profiles
from pyclover.tuning.candidate import Candidate
from pyclover.tuning.identity import file_id, key_of, processor

FILE = ORACLE / "expected_preview" / "tiny_a_preview.gguf"
BEST = Candidate(mode="draft-self", n_max=7, steps=2, n_threads=2)


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(profiles, "folder", lambda: tmp_path / "profiles")
    return tmp_path / "profiles"


@pytest.fixture
def model(tmp_path: Path) -> ValidatedModel:
    return validate(shutil.copy(FILE, tmp_path / "m.gguf"))


def test_found_again(model: ValidatedModel) -> None:
    saved, path = profiles.save(model, {}, candidate=BEST, figures={"label": BEST.label})
    assert path.parent == profiles.folder()
    assert profiles.matching(model, {}) == saved
    assert profiles.all_profiles() == [saved]
    assert saved.name.startswith("m-")
    assert profiles.named(saved.name).candidate == BEST


def test_what_it_does_not_hold_for(model: ValidatedModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    profiles.save(model, {"flash_attn": True}, candidate=BEST)
    assert profiles.matching(model, {}) is None
    assert profiles.matching(model, {"flash_attn": False}) is None
    assert profiles.matching(model, {"flash_attn": True, "n_ctx": 512, "n_threads": 9}) is not None
    moved = tmp_path / "elsewhere" / "other-name.gguf"
    moved.parent.mkdir()
    shutil.move(model.first_path, moved)
    assert profiles.matching(validate(moved), {"flash_attn": True}) is not None  # the same file under another name
    data = bytearray(moved.read_bytes())
    data[-1] ^= 1  # one weight
    moved.write_bytes(data)
    assert profiles.matching(validate(moved), {"flash_attn": True}) is None
    data[-1] ^= 1
    moved.write_bytes(data)
    for part in ("machine", "build"):
        with monkeypatch.context() as patch:
            patch.setattr(identity, part, lambda: {"another": 1})
            assert profiles.matching(validate(moved), {"flash_attn": True}) is None
    assert profiles.matching(validate(moved), {"flash_attn": True}) is not None


def test_keys_name_what_differs(model: ValidatedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    key = key_of(model, {})
    monkeypatch.setattr(identity, "build", lambda: {"another": 1})
    assert key.differs_from(key_of(model, {"n_gpu_layers": 3})) == ("build", "settings")
    assert identity.Key.from_dict(json.loads(json.dumps(key.to_dict()))) == key


def test_files_differ(make_tiny: Any, model: ValidatedModel) -> None:
    assert file_id(model) == file_id(validate(FILE))
    ids = {file_id(validate(make_tiny("--preview", "--seed", str(seed)))) for seed in (1, 2)}
    assert len({*ids, file_id(model)}) == 3


def test_a_second_run_replaces_the_first_and_keeps_the_rest(model: ValidatedModel) -> None:
    profiles.save(model, {}, name="mine", block_params={"history_query": "unit"}, calibration={"p": 0.001})
    first, _ = profiles.save(model, {}, candidate=Candidate(mode="auto"))
    second, _ = profiles.save(model, {}, candidate=BEST)
    assert profiles.all_profiles() == [second]
    assert (second.name, second.block_params) == ("mine", {"history_query": "unit"})
    assert second.created > first.created


def test_damaged_profiles_are_passed_over(model: ValidatedModel, folder: Path) -> None:
    saved, path = profiles.save(model, {}, candidate=BEST)
    good = json.loads(path.read_text())
    for i, change in enumerate([{"format": 9}, {"key": 3}, {"candidate": 3}, {"block_params": {"no_such": 1}},
                                {"name": "another"}]):  # fmt: skip
        (folder / f"bad{i}.json").write_text(json.dumps({**good, "name": f"bad{i}", **change}))
    (folder / "torn.json").write_bytes(path.read_bytes()[:100])
    (folder / "list.json").write_text("[]")
    assert profiles.all_profiles() == [saved]
    assert len(profiles.unreadable()) == 7
    profiles.remove("torn")
    assert len(profiles.unreadable()) == 6


@pytest.mark.parametrize("name", ["auto", "none", "", "a/b", "../x", "-x", "x" * 200])
def test_names(model: ValidatedModel, name: str) -> None:
    with pytest.raises(UsageError):
        profiles.save(model, {}, name=name)


def test_processor_names(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("processor\t: 0\nmodel name\t: A Processor 9000\n")
    assert processor(info) == "A Processor 9000"
    assert processor(tmp_path / "none")


# ---- what commands take from them ----


def profile(model: ValidatedModel, **content: Any) -> profiles.Profile:
    return profiles.save(model, {}, **content)[0]


def test_defaults_are_filled_and_what_is_given_stays(model: ValidatedModel) -> None:
    p = profile(model, candidate=BEST, block_params={"history_query": "unit"})
    use = profile_use.applied(p, {}, {})
    assert use.speculation == {"spec_type": "draft-self", "n_max": 7, "steps": 2, "p_min": 0.0, "adaptive": False}
    assert use.load == {"n_threads": 2}
    assert use.block_params(BlockParams()) == BlockParams(history_query="unit")
    assert use.line.startswith(f"profile {p.name}: draft-self n=7 steps=2 -t 2")
    given = profile_use.applied(p, {"spec_type": "draft-self", "n_max": 3}, {"n_threads": 1})
    assert given.speculation["n_max"] == 3
    assert given.speculation["steps"] == 2
    assert given.load == {}
    alone = profile_use.applied(p, {"spec_type": "draft-self", "n_max": 1}, {})  # two steps for one token cannot be
    assert alone.speculation == {"spec_type": "draft-self", "n_max": 1}
    for asked in ({"spec_type": "none"}, {"spec_type": "auto"}):
        assert profile_use.applied(p, asked, {}).speculation == asked
    assert profile_use.applied(p, {}, {}, diffusion=True).speculation == {}
    assert profile_use.applied(p, {}, {"n_ubatch": 4}).speculation == {}  # no room for its rows
    assert profile_use.applied(None, {}, {}) == profile_use.Applied({})


def test_plain_and_auto(model: ValidatedModel) -> None:
    plain = profile_use.applied(profile(model, candidate=Candidate(n_threads=2)), {}, {})
    assert (plain.speculation, plain.load) == ({}, {"n_threads": 2})
    assert "plain decoding" in plain.line
    auto = profile(model, candidate=Candidate(mode="auto"))
    assert profile_use.applied(auto, {}, {}).speculation == {"spec_type": "auto"}


def test_calibrated_block_passes_are_used_wherever_drafts_are(model: ValidatedModel) -> None:
    p = profile(model, candidate=BEST, block_params={"history_query": "unit"})
    use = profile_use.applied(p, {}, {})
    assert use.speculation == {"spec_type": "draft-self", "n_max": 7, "steps": 2, "p_min": 0.0, "adaptive": False}
    assert use.params == {"history_query": "unit"}
    assert "history_query=unit" in use.line


def test_which_profile(model: ValidatedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(model.first_path)
    assert profile_use.found("auto", path, {}) is None
    p = profile(model, candidate=BEST)
    assert profile_use.found("none", path, {}) is None
    assert profile_use.found("auto", path, {}) == p
    assert profile_use.found(p.name, path, {}) == p
    with pytest.raises(UsageError, match="no profile 'other'"):
        profile_use.found("other", path, {})
    with pytest.raises(UsageError, match="made with another file"):
        profile_use.found(p.name, "tiny", {})
    monkeypatch.setattr(identity, "build", lambda: {"another": 1})
    assert profile_use.found("auto", path, {}) is None
    with pytest.raises(UsageError, match="made with another build"):
        profile_use.found(p.name, path, {})


def run(*args: str) -> Any:
    return CliRunner().invoke(cli, ["profile", *args])


def test_commands(model: ValidatedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("list").exit_code == 0
    p = profile(model, candidate=BEST, figures={"ratio": {"total": 1.25}, "reasons": ["because"]})
    listed = run("list")
    assert listed.stdout.splitlines()[1].split()[0] == p.name
    assert "1.25 times plain" in listed.stdout
    shown = run("show", p.name)
    assert "because" in shown.stdout
    assert "holds" in shown.stdout
    assert json.loads(run("show", "--json").stdout)[0]["holds"] is True
    assert json.loads(run("show", "--json", "-m", str(model.first_path)).stdout)[0]["name"] == p.name
    with monkeypatch.context() as patch:
        patch.setattr(identity, "machine", lambda: {"another": 1})
        assert "no: made on another machine" in run("show", p.name).stdout
        assert json.loads(run("show", p.name, "--json").stdout)[0]["why_not"] == "made on another machine"
    assert run("show", "none-such").exit_code == 2
    assert run("clear").exit_code == 2
    assert run("clear", "--all", p.name).exit_code == 2
    assert run("list", p.name).exit_code == 2
    assert json.loads(run("clear", p.name, "--json").stdout) == [p.name]
    assert run("clear", p.name).exit_code == 2
    profile(model, candidate=BEST)
    assert run("clear", "--all").exit_code == 0
    assert profiles.all_profiles() == []
