#!/usr/bin/env python3
"""The one build script: obtains, checks, unpacks and patches llama.cpp, and writes the cffi C source.

CMake calls it at configure time; it can also be run by hand:

    python build.py source --into build/llama.cpp      a patched llama.cpp tree
    python build.py cffi --out build/_lib.c             the C source of the extension module

Environment:
    PYCLOVER_LLAMA_CPP    folder with a llama.cpp tree to use (and patch a copy of) instead of the pinned one
    PYCLOVER_LLAMA_SDIST  local copy of the pinned source archive, for machines without a network
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent

# The sdist's vendor/llama.cpp is upstream commit 0c1e57098 of 2026-10-01.
SDIST_NAME = "llama-cpp-python"
SDIST_VERSION = "0.3.36"
SDIST_SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
SDIST_PREFIX = f"llama_cpp_python-{SDIST_VERSION}/vendor/llama.cpp/"
LLAMA_CPP_COMMIT = "0c1e57098"

# Not needed to build, and more than half of the tree.
LEFT_OUT = re.compile(
    r"(docs|media|tests|benches|ci|\.devops|\.github)/"
    r"|tools/ui/(?!CMakeLists\.txt$|ui\.cpp\.in$|ui\.h\.in$|sources\.cmake$)"
    r"|models/(?!templates/|ggml-vocab-qwen35)"
    r"|examples/(llama\.(android|swiftui)|model-conversion)/"
    r"|\.git$"
)

UNPACKED_BYTES = 150 << 20
BUILD_BYTES = 700 << 20

# Order in which the C headers are declared to cffi.
HEADERS = ("base", "log", "model", "sampler", "context", "imatrix", "spec", "chat", "info")


class BuildError(Exception):
    """One sentence for the person who builds."""


def patch_files() -> list[Path]:
    return sorted((ROOT / "patches").glob("*.patch"))


def patch_set_hash() -> str:
    h = hashlib.sha256()
    for path in patch_files():
        h.update(path.name.encode() + b"\0" + path.read_bytes())
    return h.hexdigest()


def file_sha256(path: Path) -> str:
    h = hashlib.sha256()
    with path.open("rb") as f:
        while chunk := f.read(1 << 20):
            h.update(chunk)
    return h.hexdigest()


def require_room(folder: Path, needed_bytes: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if free < needed_bytes:
        raise BuildError(
            f"not enough room in {folder}: the build needs about {needed_bytes >> 20} MiB, {free >> 20} are free; "
            "free some space or build from a checkout on another disk"
        )


def fetch_archive(into: Path) -> Path:
    """Path of the pinned source archive, checked."""
    given = os.environ.get("PYCLOVER_LLAMA_SDIST")
    if given:
        archive = Path(given)
        if not archive.is_file():
            raise BuildError(f"PYCLOVER_LLAMA_SDIST names {archive}, which is not a file")
    else:
        archive = download(into)
    found = file_sha256(archive)
    if found != SDIST_SHA256:
        raise BuildError(
            f"the llama.cpp source archive {archive} has SHA-256 {found} instead of {SDIST_SHA256}: "
            "delete it (and pip's cache: pip cache purge) and build again"
        )
    return archive


def download(into: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--no-binary", SDIST_NAME, "--dest", str(into), f"{SDIST_NAME}=={SDIST_VERSION}"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    archives = list(into.glob("*.tar.gz"))
    if done.returncode != 0 or len(archives) != 1:
        last = (done.stdout.strip().splitlines() or ["no output"])[-1]
        raise BuildError(
            f"pip could not download {SDIST_NAME}=={SDIST_VERSION} (the llama.cpp source): {last}; check the network, "
            "or name a local copy of the archive in PYCLOVER_LLAMA_SDIST, or a llama.cpp folder in PYCLOVER_LLAMA_CPP"
        )
    return archives[0]


def members(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    for member in archive:
        inner = member.name.removeprefix(SDIST_PREFIX)
        if inner == member.name or LEFT_OUT.match(inner):
            continue
        member.name = inner
        yield member


def unpack(archive: Path, into: Path) -> None:
    with tarfile.open(archive) as tar:
        # the filter exists from 3.10.12, 3.11.4 and 3.12 on; the archive's hash is checked anyway
        safe = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        tar.extractall(into, members=members(tar), **safe)  # type: ignore[arg-type]


def copy_tree(source: Path, into: Path) -> None:
    if not (source / "src" / "llama-arch.cpp").is_file():
        raise BuildError(
            f"PYCLOVER_LLAMA_CPP names {source}, which holds no llama.cpp source (src/llama-arch.cpp is missing)"
        )
    shutil.copytree(source, into, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".git", "build", "build-*"))


def patch_command(patch: Path) -> list[str]:
    if shutil.which("git"):
        return ["git", "apply", "--whitespace=nowarn", str(patch)]
    if shutil.which("patch"):
        return ["patch", "-p1", "--forward", "--batch", "--input", str(patch)]
    raise BuildError("neither git nor patch was found, one of which is needed to apply the Clover patches: install git")


def apply_patches(tree: Path) -> None:
    # git must not take the tree for a part of the checkout around it: it would apply nothing and say nothing
    env = {**os.environ, "GIT_CEILING_DIRECTORIES": str(tree.parent), "LC_ALL": "C"}
    for patch in patch_files():
        done = subprocess.run(
            patch_command(patch), cwd=tree, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        if done.returncode != 0:
            first = (done.stdout.strip().splitlines() or ["no output"])[0]
            raise BuildError(
                f"{patch.name} does not apply to the llama.cpp source ({first}): use the pinned source or renew it"
            )


def source_id() -> str:
    """What the tree is made of: another id means that it must be made again."""
    local = os.environ.get("PYCLOVER_LLAMA_CPP")
    origin = f"folder {Path(local).resolve()}" if local else f"sha256 {SDIST_SHA256}"
    return f"{origin}\npatches {patch_set_hash()}\n"


def prepare_source(into: Path) -> None:
    into = into.resolve()
    stamp = into / ".pyclover-stamp"
    if stamp.is_file() and stamp.read_text() == source_id():
        return
    into.parent.mkdir(parents=True, exist_ok=True)
    require_room(into.parent, UNPACKED_BYTES + BUILD_BYTES)
    local = os.environ.get("PYCLOVER_LLAMA_CPP")
    with tempfile.TemporaryDirectory(prefix=".llama-", dir=into.parent) as scratch:
        tree = Path(scratch) / "tree"
        tree.mkdir()
        if local:
            copy_tree(Path(local), tree)
        else:
            # files keep the archive's times, so that only patched ones are newer than a build that is already there
            unpack(fetch_archive(Path(scratch)), tree)
        apply_patches(tree)
        (tree / ".pyclover-stamp").write_text(source_id())
        if into.exists():
            shutil.rmtree(into)
        tree.rename(into)


def declarations() -> str:
    """What cffi reads: the marked parts of the C headers, in order."""
    parts = []
    for name in HEADERS:
        text = (ROOT / "csrc" / "pyclover" / f"{name}.h").read_text(encoding="utf-8")
        found = re.findall(r"/\* cffi: begin \*/\n(.*?)/\* cffi: end \*/", text, flags=re.DOTALL)
        if not found:
            raise BuildError(f"csrc/pyclover/{name}.h has no part marked for cffi")
        parts += found
    return "\n".join(parts)


CALLBACKS = """
extern "Python" int pyclover_poll(void * user);
extern "Python" int pyclover_progress(float fraction, void * user);
"""


def write_cffi_source(out: Path) -> None:
    from cffi import FFI

    ffi = FFI()
    ffi.cdef(declarations() + CALLBACKS)
    ffi.set_source("pyclover._native._lib", '#include "pyclover.h"', py_limited_api=True)
    out.parent.mkdir(parents=True, exist_ok=True)
    ffi.emit_c_code(str(out))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    source = commands.add_parser("source", help="make a patched llama.cpp tree")
    source.add_argument("--into", type=Path, default=ROOT / "build" / "llama.cpp")
    cffi = commands.add_parser("cffi", help="write the C source of the extension module")
    cffi.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    try:
        if args.command == "source":
            prepare_source(args.into)
        else:
            write_cffi_source(args.out)
    except BuildError as e:
        print(f"pyclover build: {e}", file=sys.stderr)
        return 1
    except OSError as e:
        where = f" ({e.filename})" if e.filename else ""
        print(
            f"pyclover build: {e.strerror or e}{where}: free some space or check the folder's permissions",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
