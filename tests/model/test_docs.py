"""Examples in the documents that load the model in the package."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```python model\n(.*?)^```$", re.MULTILINE | re.DOTALL)
EXAMPLES = {
    f"{page.name}:{number}": code
    for page in PAGES
    for number, code in enumerate(BLOCK.findall(page.read_text(encoding="utf-8")), start=1)
}


@pytest.mark.parametrize("code", EXAMPLES.values(), ids=EXAMPLES)
def test_examples_with_the_sample_model(code: str, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


def test_the_readme_has_its_example() -> None:
    assert "README.md:1" in EXAMPLES
