"""A process that may not have more memory: one error that says so, wherever the memory ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support import ORACLE

CHILD = """
import resource
import pyclover
with pyclover.Clover({model!r}, n_ctx=64, n_threads=1) as m:  # all modules and pools are there now
    m.generate("a", max_tokens=1)
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + {n_more_bytes}, -1))
try:
    with pyclover.Clover({model!r}, n_ctx=1024, n_threads=1) as m:
        m.generate("a", max_tokens=1)
    print("done")
except pyclover.OutOfMemoryError as e:
    print(str(e).split(":")[0])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("n_more", [0, 4, 8, 16, 24, 32, 48, 64, 96])
def test_the_memory_ends(n_more: int, tmp_path: Path) -> None:
    code = CHILD.format(model=str(ORACLE / "expected" / "tiny_a.gguf"), n_more_bytes=n_more << 20)
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=100)
    assert child.returncode == 0, child.stderr
    assert child.stdout in ("done\n", "not enough memory\n")
