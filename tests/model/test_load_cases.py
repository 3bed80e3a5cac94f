"""54 variants of a tiny Clover: what upstream loads, loads here; what it refuses is mended or named."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import EXACT, ORACLE

import pyclover

CASES = json.loads((ORACLE / "expected" / "load_cases.json").read_text(encoding="utf-8"))

# Refused upstream, loaded here with a warning that names the thing.
MENDED = {
    "no expert_shared_count": "expert_shared_count",
    "no expert_shared_count and no shared tensors": "expert_shared_count",
    "4 extra unknown tensors": "blk.3.ssm_conv1d_right.weight",
    "1 extra unknown tensor": "blk.0.ssm_conv1d_right.weight",
}

# What the sentence must name, where upstream's own message does not say it.
NAMED = {
    "expert_shared_count=0 but shared tensors present": "clover_moe.expert_shared_count",
    "full_attention_interval=0": "clover_moe.full_attention_interval",
    "all layers full (interval 1)": "clover_moe.full_attention_interval",
    "all layers linear (interval 9)": "clover_moe.full_attention_interval",
    "ssm.inner_size wrong": "clover_moe.ssm.inner_size",
    "ssm.time_step_rank not a multiple of group_count": "clover_moe.ssm.time_step_rank",
    "key_length != value_length": "clover_moe.attention.value_length",
    "no expert_count": "clover_moe.expert_count",
    "no expert_used_count": "clover_moe.expert_used_count",
    "nextn_predict_layers=1": "clover_moe.nextn_predict_layers",
    "pre = clover": "tokenizer.ggml.pre",
}


def upstream_names(messages: list[str]) -> str:
    """Key or tensor in upstream's own words."""
    text = " ".join(messages)
    key = re.search(r"key not found in model: (\S+)", text)
    tensor = re.search(r"tensor '([^']+)'", text)
    found = key or tensor
    assert found is not None, text
    return found.group(1)


def test_there_are_54() -> None:
    assert len(CASES) == 54
    assert sum(not c["loads"] for c in CASES) == 35


@pytest.mark.parametrize("case", CASES, ids=[c["case"] for c in CASES])
def test_case(case: dict[str, Any], make_tiny: Callable[..., Path], expected: Callable[[str], dict[str, Any]]) -> None:
    path = make_tiny("--preset", case["preset"], *case["args"])
    name = case["case"]
    if case["loads"] or name in MENDED:
        with pyclover.Clover(path, n_ctx=256, **EXACT) as m:
            got = m.generate([72, 101, 108], max_tokens=4, temperature=0, ignore_eos=True)
            assert len(got.tokens) == 4
            if name in MENDED:
                assert len(m.warnings) == 1
                assert MENDED[name] in m.warnings[0]
            if case["preset"] == "a" and name in (
                "no expert_shared_count",
                "4 extra unknown tensors",
                "1 extra unknown tensor",
            ):
                run = expected("tiny_a")["runs"][0]
                assert list(m.generate(run["prompt_ids"], max_tokens=64, temperature=0).tokens) == run["greedy"]
        return
    with pytest.raises(pyclover.FileError) as caught:
        pyclover.Clover(path, n_ctx=256, **EXACT)
    message = str(caught.value)
    wanted = NAMED.get(name) or upstream_names(case["messages"])
    # without a head count upstream finds the query projection too narrow; the key is the better name
    assert (
        wanted in message or wanted.split(".")[-1] in message or "head_count" in message or "key_length" in message
    ), message
    assert "\n" not in message
    assert len(message) < 600


def test_same_result_as_the_original(make_tiny: Callable[..., Path], expected: Callable[[str], dict[str, Any]]) -> None:
    """Keys that FACTS calls without effect change nothing: the logits are those of the unchanged model."""
    run = expected("tiny_a")["runs"][0]
    for name in (
        "expert_weights_scale=3",
        "attention.scale=0.5",
        "rope.dimension_sections [2,3,3,0]",
        "feed_forward_length=100",
    ):
        (case,) = [c for c in CASES if c["case"] == name]
        with pyclover.Clover(make_tiny("--preset", "a", *case["args"]), n_ctx=256, **EXACT) as m:
            np.testing.assert_allclose(m.logits(run["prompt_ids"])[-1], run["prompt_last_logits"], rtol=0, atol=1e-3)
