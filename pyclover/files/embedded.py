"""Models that the package ships."""

from __future__ import annotations

from pathlib import Path

NAMES = ("tiny",)


def embedded_path(name: str) -> Path:
    """The file of a model that the package ships, one of NAMES."""
    return Path(__file__).parents[1] / "data" / f"{name}.gguf"
