"""build.py: what can go wrong is one sentence that says what to do."""

from __future__ import annotations

import importlib.util
import io
import os
import shutil
import subprocess
import sys
import tarfile
from collections import namedtuple
from pathlib import Path
from types import ModuleType

import pytest
from support import ROOT

Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    for name in ("PYCLOVER_LLAMA_CPP", "PYCLOVER_LLAMA_SDIST"):
        monkeypatch.delenv(name, raising=False)
    spec = importlib.util.spec_from_file_location("pyclover_build_script", ROOT / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def said(build: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], into: Path) -> str:
    monkeypatch.setattr(sys, "argv", ["build.py", "source", "--into", str(into)])
    assert build.main() == 1
    text = capsys.readouterr().err
    assert text.startswith("pyclover build: ")
    assert text.count("\n") == 1
    return text


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A folder that passes for a llama.cpp tree."""
    folder = tmp_path / "llama.cpp"
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "llama-arch.cpp").write_text("one\ntwo\nthree\n")
    return folder


PATCH = "Purpose: a test\n\n--- a/src/llama-arch.cpp\n+++ b/src/llama-arch.cpp\n@@ -1,2 +1,3 @@\n one\n+added\n two\n"


def one_patch(build: ModuleType, monkeypatch: pytest.MonkeyPatch, folder: Path, text: str) -> None:
    folder.mkdir()
    path = folder / "0001-test.patch"
    path.write_text(text)
    monkeypatch.setattr(build, "patch_files", lambda: [path])


@pytest.mark.parametrize("tool", ["git", "patch"])
def test_a_patch_is_applied(
    build: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tree: Path, tool: str
) -> None:
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed")
    monkeypatch.setenv("PYCLOVER_LLAMA_CPP", str(tree))
    only = shutil.which
    monkeypatch.setattr(build.shutil, "which", lambda name: only(name) if name == tool else None)
    one_patch(build, monkeypatch, tmp_path / "patches", PATCH)
    into = tmp_path / "out" / "llama.cpp"
    build.prepare_source(into)
    assert (into / "src" / "llama-arch.cpp").read_text() == "one\nadded\ntwo\nthree\n"
    assert (tree / "src" / "llama-arch.cpp").read_text() == "one\ntwo\nthree\n"


def test_inside_another_git_checkout(
    build: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tree: Path
) -> None:
    """git must not take the tree for a part of the checkout around it, where it would silently apply nothing."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / ".gitignore").write_text("/build/\n")
    monkeypatch.setenv("PYCLOVER_LLAMA_CPP", str(tree))
    one_patch(build, monkeypatch, tmp_path / "patches", PATCH)
    into = tmp_path / "build" / "llama.cpp"
    build.prepare_source(into)
    assert "added" in (into / "src" / "llama-arch.cpp").read_text()


def test_made_again_only_when_something_changed(
    build: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tree: Path
) -> None:
    monkeypatch.setenv("PYCLOVER_LLAMA_CPP", str(tree))
    one_patch(build, monkeypatch, tmp_path / "patches", PATCH)
    into = tmp_path / "out" / "llama.cpp"
    build.prepare_source(into)
    marker = into / "marker"
    marker.touch()
    build.prepare_source(into)
    assert marker.exists()
    (tmp_path / "patches" / "0001-test.patch").write_text(PATCH.replace("+added", "+changed"))
    build.prepare_source(into)
    assert not marker.exists()
    assert "changed" in (into / "src" / "llama-arch.cpp").read_text()


def test_patch_that_does_not_apply(
    build: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, tree: Path
) -> None:
    monkeypatch.setenv("PYCLOVER_LLAMA_CPP", str(tree))
    one_patch(build, monkeypatch, tmp_path / "patches", PATCH.replace(" one", " eins"))
    text = said(build, monkeypatch, capsys, tmp_path / "out" / "llama.cpp")
    assert "0001-test.patch does not apply" in text
    assert not (tmp_path / "out" / "llama.cpp").exists()


def test_neither_git_nor_patch(
    build: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, tree: Path
) -> None:
    monkeypatch.setenv("PYCLOVER_LLAMA_CPP", str(tree))
    monkeypatch.setattr(build.shutil, "which", lambda name: None)
    assert "install git" in said(build, monkeypatch, capsys, tmp_path / "out" / "llama.cpp")


def test_wrong_hash(
    build: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    archive = tmp_path / "source.tar.gz"
    archive.write_bytes(b"something else")
    monkeypatch.setenv("PYCLOVER_LLAMA_SDIST", str(archive))
    text = said(build, monkeypatch, capsys, tmp_path / "out" / "llama.cpp")
    # printf 'something else' | sha256sum
    assert "f41f3fa625ff120ddca7ef456bf66371ecea23c129f4e4c32367101edb516cf8" in text
    assert f"instead of {build.SDIST_SHA256}" in text
    assert "delete it" in text


def test_archive_that_is_not_there(
    build: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("PYCLOVER_LLAMA_SDIST", str(tmp_path / "none.tar.gz"))
    assert "PYCLOVER_LLAMA_SDIST names" in said(build, monkeypatch, capsys, tmp_path / "out" / "llama.cpp")


def test_folder_without_llama_cpp(
    build: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("PYCLOVER_LLAMA_CPP", str(tmp_path))
    assert "holds no llama.cpp source" in said(build, monkeypatch, capsys, tmp_path / "out" / "llama.cpp")


def test_no_room(
    build: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, tree: Path
) -> None:
    monkeypatch.setenv("PYCLOVER_LLAMA_CPP", str(tree))
    monkeypatch.setattr(build.shutil, "disk_usage", lambda folder: Usage(1 << 40, 1 << 40, 5 << 20))
    text = said(build, monkeypatch, capsys, tmp_path / "out" / "llama.cpp")
    assert "not enough room" in text
    assert "5 are free" in text


def test_download_that_fails(
    build: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def no_network(command: list[str], **kwargs: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 1, "WARNING: retrying\nERROR: No matching distribution found\n", "")

    monkeypatch.setattr(build.subprocess, "run", no_network)
    text = said(build, monkeypatch, capsys, tmp_path / "out" / "llama.cpp")
    assert "ERROR: No matching distribution found" in text
    assert "PYCLOVER_LLAMA_SDIST" in text


def test_folder_that_cannot_be_written(
    build: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, tree: Path
) -> None:
    monkeypatch.setenv("PYCLOVER_LLAMA_CPP", str(tree))
    (tmp_path / "file").touch()
    assert "file" in said(build, monkeypatch, capsys, tmp_path / "file" / "llama.cpp")


def test_what_is_unpacked(build: ModuleType, tmp_path: Path) -> None:
    """Only vendor/llama.cpp, without what the build does not need."""
    wanted = ["src/llama.cpp", "models/templates/x.jinja", "models/ggml-vocab-qwen35.gguf", "tools/ui/CMakeLists.txt"]
    unwanted = ["docs/a.md", "models/ggml-vocab-llama.gguf", "tools/ui/src/app.ts", "tests/test.cpp", ".git"]
    archive = tmp_path / "x.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for name in [build.SDIST_PREFIX + n for n in wanted + unwanted] + ["llama_cpp_python-0.3.36/setup.py"]:
            info = tarfile.TarInfo(name)
            info.size = 1
            tar.addfile(info, io.BytesIO(b"x"))
    build.unpack(archive, tmp_path / "out")
    found = sorted(str(p.relative_to(tmp_path / "out")) for p in (tmp_path / "out").rglob("*") if p.is_file())
    assert found == sorted(wanted)


def test_every_patch_has_a_header() -> None:
    patches = sorted((ROOT / "patches").glob("*.patch"))
    assert patches
    for patch in patches:
        head = patch.read_text().split("diff --git")[0]
        for line in ("Purpose: ", "Upstream: ", "Not needed when: "):
            assert f"\n{line}" in f"\n{head}", patch.name


def test_missing_compiler(tmp_path: Path) -> None:
    """CMake stops with a sentence that says what to install."""
    cmake = shutil.which("cmake")
    if cmake is None or shutil.which("ninja") is None:
        pytest.skip("cmake and ninja are needed to see what the build says")
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("ninja", "git"):
        if (found := shutil.which(name)) is not None:
            (tools / name).symlink_to(found)
    env = {k: v for k, v in os.environ.items() if k not in ("CC", "CXX")}
    done = subprocess.run(
        [cmake, "-S", str(ROOT), "-B", str(tmp_path / "b"), "-G", "Ninja", f"-DPython_EXECUTABLE={sys.executable}"],
        env={**env, "PATH": str(tools)}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode != 0
    message = " ".join(done.stderr.split())
    assert "no working C compiler was found" in message
    assert "apt-get install g++" in message
