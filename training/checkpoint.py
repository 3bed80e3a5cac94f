"""Saving and resuming a run: one file, replaced in one move, with the one before kept."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from training.config import ModelConfig, dump
from training.layers import Clover

NAME, BEFORE = "checkpoint.pt", "checkpoint.before.pt"


def save(out: Path, model: Clover, opts: list[torch.optim.Optimizer], step: int, elapsed_s: float) -> None:
    data = {
        "config": dump(model.c),
        "model": model.state_dict(),
        "optimizers": [o.state_dict() for o in opts],
        "step": step,
        "elapsed_s": elapsed_s,
    }
    new = out / (NAME + ".new")
    torch.save(data, new)
    if (out / NAME).is_file():
        os.replace(out / NAME, out / BEFORE)
    os.replace(new, out / NAME)


def load(out: Path) -> dict[str, Any] | None:
    """The last checkpoint that can be read; None when there is none."""
    for name in (NAME, BEFORE):
        if (out / name).is_file():
            try:
                data: dict[str, Any] = torch.load(out / name, weights_only=True)
            except Exception as e:
                print(f"{out / name} cannot be read ({e}); trying the one before")
                continue
            return data
    return None


def load_model(out: Path) -> Clover:
    data = load(out)
    if data is None:
        raise SystemExit(f"{out}: no checkpoint here; run `python -m training.train --out {out}` first")
    model = Clover(ModelConfig(**data["config"]))
    model.load_state_dict(data["model"])
    return model.eval()
