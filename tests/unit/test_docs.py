"""The documents: examples that need no model run, the page of the command line is fresh, links lead somewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```python ?(.*?)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(mark: str) -> list[Any]:
    """Python examples that carry the mark, named by page and line."""
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for hit in BLOCK.finditer(text):
            if hit[1] == mark:
                line = text.count("\n", 0, hit.start()) + 1
                found.append(pytest.param(hit[2], id=f"{page.name}:{line}"))
    return found


@pytest.mark.parametrize("code", blocks("runnable"))
def test_examples_without_a_model(code: str, tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}  # nothing has to be installed for these
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, env=env, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


def test_every_python_block_is_marked() -> None:
    marks = {hit[1] for page in PAGES for hit in BLOCK.finditer(page.read_text(encoding="utf-8"))}
    assert marks == {"runnable", "model"}


def test_the_page_of_the_command_line_is_fresh() -> None:
    page = ROOT / "docs" / "cli.md"
    done = subprocess.run(
        [sys.executable, "-m", "cogapp", "--check", str(page)], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 0, f"run: cog -r docs/cli.md\n{done.stdout}{done.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_the_readme_names_only_flags_that_exist() -> None:
    from pyclover.cli.generate import generate

    known = {name for param in generate.params for name in (*param.opts, *param.secondary_opts)}
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    table = text[text.index("| flag of `generate` |") : text.index("Where llama.cpp has a flag")]
    used = {word for cell in re.findall(r"`([^`]+)`", table) for word in cell.split() if word.startswith("-")}
    assert used - {"-1"} <= known
    assert len(used) > 20
