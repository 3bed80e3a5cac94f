"""A repaired file gives the tokens that the oracle's own file gives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model.gguf_parts import build, parse
from support import EXACT, ORACLE, fixed_draft

import pyclover

Expected = Callable[[str], dict[str, Any]]
PREVIEW = {"ssm_conv1d_right.weight": "conv_right_weight", "ssm_bd_logit_scale": "bd_softmax_logit_scale",
           "ssm_bd_history_bias": "bd_softmax_history_bias", "ssm_bd_history_c": "bd_softmax_history_c"}  # fmt: skip


def damaged(folder: Path, name: str, rename: Callable[[str], str], drop: tuple[bytes, ...] = ()) -> Path:
    """An oracle's file with other tensor names and without some keys."""
    (source,) = ORACLE.glob(f"expected*/{name}.gguf")
    raw = source.read_bytes()
    parts = parse(raw)
    data = raw[parts.data_offset :]
    parts.entries = [e for e in parts.entries if e.key not in drop]
    for t in parts.tensors:
        t.name = rename(t.name.decode()).encode()
    path = folder / f"{name}.gguf"
    path.write_bytes(build(parts) + data)
    return path


def as_checkpoint(name: str) -> str:
    """Clover's own tensors under the names that checkpoints give them."""
    _, _, kind = name.partition(".")[2].partition(".")
    if kind in PREVIEW:
        return f"model.layers.{name.split('.')[1]}.linear_attn.{PREVIEW[kind]}"
    return name


def drafts(m: pyclover.Clover, want: dict[str, Any]) -> None:
    """Previews and drafts are those of the reference."""
    for case in want["previews"][:3]:
        got = m.preview(case["prefix_ids"], case["rows"])
        np.testing.assert_allclose(got, case["logits"], rtol=0, atol=1e-3)
    for case in want["draft_self"][:5]:
        settings = fixed_draft(
            n_max=case["n_max"], accept_ratio=case["ratio"], accept_delta=case["delta"], block=case["block"]
        )
        got = m.generate(case["prompt_ids"], max_tokens=case["n_predict"], temperature=0, speculation=settings)
        tokens = case["tokens"]
        assert list(got.tokens) == (tokens[: tokens.index(m.info.eos)] if m.info.eos in tokens else tokens)
        assert (got.stats.drafted, got.stats.accepted) == (case["drafted"], case["accepted"])


@pytest.mark.parametrize("name", ["tiny_a", "tiny_b"])
def test_without_the_count(name: str, tmp_path: Path, expected: Expected) -> None:
    path = damaged(tmp_path, name, lambda n: n, (b"clover_moe.expert_shared_count",))
    done = pyclover.repair(path)
    assert done.out is not None
    with pyclover.Clover(done.out, n_ctx=256, **EXACT) as m:
        assert m.warnings == ()
        for run in expected(name)["runs"]:
            assert list(m.generate(run["prompt_ids"], max_tokens=64, temperature=0).tokens) == run["greedy"]


@pytest.mark.parametrize("name", ["tiny_a_preview", "tiny_b_preview"])
def test_foreign_names_and_no_mask_token(name: str, tmp_path: Path, expected: Expected) -> None:
    path = damaged(tmp_path, name, as_checkpoint, (b"tokenizer.ggml.mask_token_id",))
    done = pyclover.repair(path, tmp_path / "out.gguf")
    want = expected(name)
    new = {change.key: change.new for change in done.changes}
    assert new["tokenizer.ggml.mask_token_id"] == want["model"]["mask_token_id"]
    assert len([change for change in done.changes if change.kind == "rename"]) == len(PREVIEW) * (
        3 if name == "tiny_a_preview" else 2  # linear layers
    )
    with pyclover.Clover(done.out or "", n_ctx=256, **EXACT) as m:
        assert m.warnings == ()
        drafts(m, want)


def test_names_that_only_the_user_knows(tmp_path: Path, expected: Expected) -> None:
    """Every tensor of the model is called otherwise, Clover's own without a word that tells them."""
    short = {
        "ssm_conv1d_right.weight": "r",
        "ssm_bd_logit_scale": "s",
        "ssm_bd_history_bias": "b",
        "ssm_bd_history_c": "c",
    }

    def rename(name: str) -> str:
        if not name.startswith("blk."):
            return name
        _, layer, kind = name.split(".", 2)
        return f"decoder/{layer}/{short.get(kind, kind)}"

    path = damaged(tmp_path, "tiny_a_preview", rename)
    with pytest.raises(pyclover.FileError):
        pyclover.Clover(path)
    rules = {f"decoder/*/{new}": f"blk.*.{old}" for old, new in short.items()} | {
        r"re:decoder/(\d+)/(.+)": r"blk.\1.\2"
    }
    done = pyclover.repair(path, map_tensors=rules)
    assert done.problems == ()
    with pyclover.Clover(done.out or "", n_ctx=256, **EXACT) as m:
        drafts(m, expected("tiny_a_preview"))


def test_in_place(tmp_path: Path, expected: Expected) -> None:
    """A mask token of another number takes the same room: only the header changes, and drafts are right again."""
    path = damaged(tmp_path, "tiny_a_preview", lambda n: n)
    fixed = pyclover.repair(path, mask_token=0)
    assert fixed.out is not None
    done = pyclover.repair(fixed.out, mask_token="<|mask|>", in_place=True)
    assert [(c.key, c.old, c.new) for c in done.changes] == [("tokenizer.ggml.mask_token_id", 0, 357)]
    with pyclover.Clover(fixed.out, n_ctx=256, **EXACT) as m:
        drafts(m, expected("tiny_a_preview"))
