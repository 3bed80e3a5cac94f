"""Fixtures shared by all tests: oracle data, tiny models, loaded models."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import settings
from support import EXACT, ORACLE, ROOT

# no test depends on how fast the machine is
settings.register_profile("pyclover", deadline=None)
settings.load_profile("pyclover")

# `python -m pytest` puts the checkout first on the path, where the package lies without its compiled part.
sys.path[:] = [p for p in sys.path if Path(p or ".").resolve() != ROOT]


def pytest_report_header(config: pytest.Config) -> list[str]:
    try:
        from pyclover.engine.build_info import build_info

        info = build_info()
    except Exception as e:
        return [f"pyclover: native library not usable ({e})"]
    devices = ", ".join(d.name for d in info.devices)
    return [f"pyclover {info.version}, llama.cpp {info.llama_cpp_commit}, {info.compiler}, devices {devices}"]


def _module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def oracle() -> Path:
    """Folder of the reference data."""
    return ORACLE


@pytest.fixture(scope="session")
def expected() -> Callable[[str], dict[str, Any]]:
    """Reads what the reference build computed for a tiny model: expected("tiny_a")."""

    def read(name: str) -> dict[str, Any]:
        folder = "expected_preview" if name.endswith("_preview") else "expected"
        result: dict[str, Any] = json.loads((ORACLE / folder / f"{name}.json").read_text(encoding="utf-8"))
        return result

    return read


@pytest.fixture(scope="session")
def reference() -> ModuleType:
    """The independent numpy implementation."""
    return _module(ORACLE / "reference_numpy.py")


@pytest.fixture(scope="session")
def make_tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Writes a tiny Clover GGUF with arguments of make_tiny_clover.py: make_tiny("--preset", "c")."""
    generator = _module(ORACLE / "make_tiny_clover.py")
    folder = tmp_path_factory.mktemp("tiny")
    made: dict[tuple[str, ...], Path] = {}

    def make(*args: str) -> Path:
        if args not in made:
            path = folder / f"{len(made)}.gguf"
            saved = sys.argv
            sys.argv = ["make_tiny_clover.py", str(path), *args]
            try:
                generator.main()
            finally:
                sys.argv = saved
            made[args] = path
        return made[args]

    return make


@pytest.fixture
def tiny_a() -> Iterator[Any]:
    """A loaded tiny Clover with the oracle's settings."""
    import pyclover

    with pyclover.Clover(ORACLE / "expected" / "tiny_a.gguf", n_ctx=1024, **EXACT) as m:
        yield m


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """A real model that no one here made; fetched when the test extras are installed (see CONTRIBUTING.md)."""
    given = os.environ.get("PYCLOVER_SMOLLM2")
    candidates = [Path(given)] if given else sorted((ROOT / "build" / "models").glob("SmolLM2*.gguf"))
    for path in candidates:
        if path.is_file():
            return path
    pytest.skip("SmolLM2 is not there: python tests/fetch_models.py gets it")
