"""Wrong arguments: an error of the package that names the argument, whatever was given."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import ORACLE

import pyclover
from pyclover.engine.threads import usable_processors

TINY_A = str(ORACLE / "expected" / "tiny_a.gguf")
NO_TEXT: list[Any] = [None, 5, b"x", 1.5, object()]


def refused(option: str, call: Callable[[], object]) -> None:
    with pytest.raises(pyclover.UsageError) as caught:
        call()
    assert caught.value.option == option
    assert option in str(caught.value)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("value", [*NO_TEXT, ["x"], "a\ud800"])
def test_text(tiny_a: Any, value: Any) -> None:
    refused("text", lambda: tiny_a.tokenize(value))


@pytest.mark.parametrize("value", [*NO_TEXT, "hi", ["x"], [1.0], [2**31], np.zeros(3)])
def test_tokens(tiny_a: Any, value: Any) -> None:
    refused("tokens", lambda: tiny_a.detokenize(value))
    refused("tokens", lambda: tiny_a.logits(value))


@pytest.mark.parametrize("value", [*NO_TEXT, np.array(1)])
def test_prompts(tiny_a: Any, value: Any) -> None:
    for call in (tiny_a.generate, tiny_a.stream, tiny_a.score):
        with pytest.raises(pyclover.UsageError, match="prompt"):
            call(value)


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("stop", [5, b"x", "", [""], [5], ["a\ud800"], {"a": 1}]),
        ("max_tokens", [-1, 1.0, True, "1", np.zeros(2), -(10**5000)]),
        ("grammar", [5, [], b"x"]),
        ("json_schema", [5, [], b"{}"]),
        (
            "logit_bias",
            [
                [],
                5,
                "x",
                {5: 10**400},
                {5: "1"},
                {5: float("nan")},
                {5: True},
                {True: 1},
                {"5": 1},
                {-1: 1},
                {10**6: 1},
            ],
        ),
        ("ignore_eos", [2**31, "yes", np.zeros(2)]),
        ("seed", [0.5, np.float32(0.5), Fraction(1, 2), "1", -2, 2**32, True]),
        ("temperature", ["1", None, np.zeros(2), float("nan"), 10**5000]),
        ("top_k", [1.5, 2**31]),
    ],
)
def test_options_of_generate(tiny_a: Any, option: str, values: list[Any]) -> None:
    for value in values:
        refused(option, lambda value=value: tiny_a.generate("x", **{"max_tokens": 1, option: value}))


@pytest.mark.parametrize("value", [2**31, "yes", None, np.zeros(2)])
def test_switches(tiny_a: Any, value: Any) -> None:
    refused("add_special", lambda: tiny_a.tokenize("x", add_special=value))
    refused("parse_special", lambda: tiny_a.tokenize("x", parse_special=value))
    refused("special", lambda: tiny_a.detokenize([1], special=value))
    for option in ("fit", "mmap", "mlock", "check_tensors"):
        refused(option, lambda option=option: pyclover.Clover(TINY_A, **{option: value}))


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("n_gpu_layers", [2**31, -2, 1.0, np.zeros(2)]),
        ("n_cpu_moe", [2**31, -2, "all"]),
        ("n_ctx", [-1, 2**32, "5", np.zeros(2)]),
        ("n_threads", [0, 513, 2.0]),
        ("n_threads_batch", [600]),
        ("n_batch", [0, "512"]),
        ("n_rs_seq", [32, -1]),
        ("flash_attn", ["on", 2, None, np.zeros(2)]),
        ("cache_type_k", ["q9", 5, np.zeros(2)]),
        ("progress", [5]),
    ],
)
def test_options_of_clover(option: str, values: list[Any]) -> None:
    for value in values:
        refused(option, lambda value=value: pyclover.Clover(TINY_A, **{option: value}))


def test_a_quantized_cache_of_values_needs_flash_attention() -> None:
    refused("cache_type_v", lambda: pyclover.Clover(TINY_A, cache_type_v="q4_0", flash_attn=False))


@pytest.mark.parametrize("value", [None, 5, b"x", ["x"], "", " ", "a\0b", "\ud800"])
def test_paths_of_models(value: Any) -> None:
    refused("model", lambda: pyclover.Clover(value))
    refused("path", lambda: pyclover.inspect(value))


def test_models_that_are_not_there(tmp_path: Path) -> None:
    dangling, circle = tmp_path / "dangling.gguf", tmp_path / "circle.gguf"
    dangling.symlink_to(tmp_path / "gone.gguf")
    circle.symlink_to(circle)
    for path, why in (
        ("~nosuchuser/x.gguf", "no home folder of ~nosuchuser"),
        (tmp_path / "x.gguf", "there is no file"),
        (tmp_path / ("x" * 300), "too long"),
        (dangling, "is a link to .*gone.gguf, where nothing is"),
        (circle, "symbolic links"),
    ):
        with pytest.raises(pyclover.ModelNotFoundError, match=why) as caught:
            pyclover.Clover(path)
        assert caught.value.path == os.fspath(path)


def test_one_stream_in_several_threads(tiny_a: Any) -> None:
    stream = tiny_a.stream("Hello", max_tokens=500, ignore_eos=True)
    raised: list[Exception] = []

    def read() -> None:
        try:
            for _ in stream:
                pass
        except Exception as e:
            raised.append(e)

    threads = [threading.Thread(target=read) for _ in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert [type(e) for e in raised] == [pyclover.BusyError] * len(raised)


def test_tiny_temperatures_are_greedy(tiny_a: Any) -> None:
    greedy = tiny_a.generate("Hello", max_tokens=16, temperature=0).tokens
    for temperature in (1e-31, 1e-38, 1e-40, 1e-45, 1e-300):
        assert tiny_a.generate("Hello", max_tokens=16, temperature=temperature, seed=1).tokens == greedy


def test_more_threads_than_processors_are_a_warning() -> None:
    n = usable_processors()
    with pyclover.Clover(TINY_A, n_threads=1, n_threads_batch=n + 1) as m:
        assert [w for w in m.warnings if "threads" in w] == [
            f"{n + 1} threads were asked for, and {n} processors are usable here: it may be many times slower than "
            f"with n_threads={n} (-t)"
        ]
    with pyclover.Clover(TINY_A, n_threads=n) as m:
        assert not any("threads" in w for w in m.warnings)
