"""docs/fit.md is what the planner says."""

from __future__ import annotations

import subprocess
import sys

from support import ROOT


def test_the_page_is_fresh() -> None:
    page = ROOT / "docs" / "fit.md"
    done = subprocess.run(
        [sys.executable, "-m", "cogapp", "--check", str(page)], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 0, f"run: cog -r docs/fit.md\n{done.stdout}{done.stderr}"
