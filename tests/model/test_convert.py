"""A checkpoint in Hugging Face's form, made by inverting the conversion, must convert back to the oracle's GGUF."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from convert_checkpoint import (
    ARCH,
    NORMS,
    QWEN2_SPLIT,
    QWEN35_SPLIT,
    Array,
    Oracle,
    checkpoint_tensors,
    config_of,
    write_checkpoint,
    write_tokenizer,
)

ROOT = Path(__file__).resolve().parents[2]
ORACLE = ROOT / "tests" / "oracle" / "expected_preview"
# Runs the script once for each line of arguments: importing torch takes longer than a conversion of this size.
DRIVER = """
import contextlib, io, json, logging, runpy, sys, traceback
script, replies = sys.argv[1], sys.stdout
sys.path.insert(0, script.rpartition("/")[0])
for line in sys.stdin:
    sys.argv = [script, *json.loads(line)]
    logging.root.handlers.clear()
    text, code = io.StringIO(), 0
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        try:
            runpy.run_path(script, run_name="__main__")
        except SystemExit as e:
            code = e.code or 0
        except BaseException:
            code = 1
            traceback.print_exc()
    print(json.dumps([code, text.getvalue()]), file=replies, flush=True)
"""


class Converter:
    """The patched tree's convert_hf_to_gguf.py in a child process."""

    def __init__(self, script: Path) -> None:
        self.child = subprocess.Popen(
            [sys.executable, "-c", DRIVER, script.as_posix()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        )

    def run(self, folder: Path, outtype: str = "f32") -> tuple[Path, int, str]:
        """Path of the result, exit code, and what the script said."""
        assert self.child.stdin is not None
        assert self.child.stdout is not None
        out = folder / "out.gguf"
        print(json.dumps([str(folder), "--outfile", str(out), "--outtype", outtype]), file=self.child.stdin, flush=True)
        reply = self.child.stdout.readline()
        assert reply, "the converter's process ended"
        code, text = json.loads(reply)
        return out, code, text


@pytest.fixture(scope="session")
def converter() -> Iterator[Converter]:
    for module in ("torch", "transformers"):
        pytest.importorskip(module, reason=f"llama.cpp's converter needs {module}")
    tree = Path(os.environ.get("PYCLOVER_LLAMA_SRC") or ROOT / "build" / "llama.cpp")
    script = tree / "convert_hf_to_gguf.py"
    for needed in (script, tree / "conversion" / "clover.py"):
        if not needed.is_file():
            pytest.skip(f"{needed} is missing: build first, or set PYCLOVER_LLAMA_SRC to a patched and configured tree")
    running = Converter(script)
    yield running
    running.child.communicate()


def assert_metadata(got: Oracle, want: Oracle) -> None:
    # the oracle's file a lacks expert_shared_count, as the official files do
    expected = {k: v for k, v in want.meta.items() if k.startswith((ARCH + ".", "tokenizer."))}
    expected |= {"general.architecture": ARCH, f"{ARCH}.expert_shared_count": 1}
    assert {k: got.meta.get(k) for k in expected} == expected
    assert not [k for k in got.meta if k.startswith(ARCH + ".") and k not in expected]


def test_fused_experts_and_grouped_heads(converter: Converter, tmp_path: Path) -> None:
    want = Oracle(ORACLE / "tiny_a_preview.gguf")
    assert want.key("ssm.time_step_rank") > want.key("ssm.group_count")  # else the order of heads is not tested
    write_tokenizer(tmp_path, want, QWEN35_SPLIT, mask_in_tokenizer=True)
    write_checkpoint(tmp_path, config_of(want), checkpoint_tensors(want, fused_experts=True))

    out, code, said = converter.run(tmp_path)

    assert code == 0, said[-3000:]
    got = Oracle(out)
    assert_metadata(got, want)
    assert got.tensors.keys() == want.tensors.keys()
    for name, a in want.tensors.items():
        assert got.types[name] == gguf.GGMLQuantizationType.F32, name
        assert got.tensors[name].shape == a.shape, name
        # adding one and exp(log()) round; everything else is moved, not computed
        rounds = name.endswith((*NORMS, "output_norm.weight", "ssm_a"))
        np.testing.assert_allclose(
            got.tensors[name], a, rtol=1e-6 if rounds else 0, atol=1e-6 if rounds else 0, err_msg=name
        )


def test_single_experts_f16_and_leftovers(converter: Converter, tmp_path: Path) -> None:
    """Experts one by one, mask token from config.json, one number for all heads, a dropped block, 16-bit output."""
    want = Oracle(ORACLE / "tiny_b_preview.gguf")
    write_tokenizer(tmp_path, want, QWEN35_SPLIT, mask_in_tokenizer=False)
    tensors = checkpoint_tensors(want, fused_experts=False)
    tensors["model.layers.0.linear_attn.bd_softmax_logit_scale"] = np.float32(3.5).reshape(())
    want.tensors["blk.0.ssm_bd_logit_scale"] = np.full(want.key("ssm.time_step_rank"), 3.5, np.float32)
    tensors["mtp.fc.weight"] = np.ones((2, 2), np.float32)
    config = config_of(want) | {"mask_token_id": want.meta["tokenizer.ggml.mask_token_id"]}
    write_checkpoint(tmp_path, config, tensors)

    out, code, said = converter.run(tmp_path, "f16")

    assert code == 0, said[-3000:]
    assert "mtp.fc.weight is left out" in said
    got = Oracle(out)
    assert_metadata(got, want)
    assert got.tensors.keys() == want.tensors.keys()
    for name, a in want.tensors.items():
        half = a.ndim > 1 and "ssm_conv1d" not in name and not name.endswith("ffn_gate_inp.weight")
        assert got.types[name] == getattr(gguf.GGMLQuantizationType, "F16" if half else "F32"), name
        if half:
            np.testing.assert_array_equal(got.tensors[name], a.astype(np.float16), err_msg=name)
        elif "ssm_conv1d" in name or "ssm_bd" in name:
            np.testing.assert_array_equal(got.tensors[name], a, err_msg=name)


def test_irregular_layers_without_block_pass(converter: Converter, tmp_path: Path) -> None:
    """No shared expert, no tensors of the block pass, no mask token, layer kinds that no interval describes."""
    want = Oracle(ORACLE / "tiny_b_preview.gguf")
    write_tokenizer(tmp_path, want, QWEN2_SPLIT, mask_in_tokenizer=False)
    # layers of b are linear, full, linear, full; without the second one no interval fits
    tensors = {
        name.replace("layers.2.", "layers.1.").replace("layers.3.", "layers.2."): a
        for name, a in checkpoint_tensors(want, fused_experts=True).items()
        if "layers.1." not in name and "shared_expert" not in name and "bd_" not in name and "right" not in name
    }
    tensors |= {k.replace("layers.2.", "layers.3."): a for k, a in tensors.items() if "layers.2." in k}
    config = config_of(want)
    config["layer_types"] = ["linear_attention", "linear_attention", "full_attention", "full_attention"]
    for key in ("shared_expert_intermediate_size", "block_length", "shift_logits", "expert_coreset"):
        del config[key]
    config["architectures"] = ["CloverMoeForCausalLM"]
    write_checkpoint(tmp_path, config, tensors)

    out, code, said = converter.run(tmp_path)

    assert code == 0, said[-3000:]
    assert "no tensors of the block pass" in said
    assert "no mask token" in said
    meta = Oracle(out).meta
    assert meta[f"{ARCH}.attention.recurrent_layers"] == [True, True, False, False]
    assert meta[f"{ARCH}.expert_shared_count"] == 0
    assert meta[f"{ARCH}.diffusion.block_length"] == 32
    assert meta["tokenizer.ggml.pre"] == "qwen2"
    absent = (
        "full_attention_interval",
        "expert_shared_feed_forward_length",
        "diffusion.shift_logits",
        "diffusion.expert_coreset",
    )
    assert not [k for k in absent if f"{ARCH}.{k}" in meta]
    assert "tokenizer.ggml.mask_token_id" not in meta


def bad_split(folder: Path, o: Oracle, config: dict[str, Any], tensors: dict[str, Array]) -> str:
    write_tokenizer(folder, o, r"\p{N}{1,3}|\p{L}+", mask_in_tokenizer=True)
    return "its pre_tokenizer is not known"


def lost_tensor(folder: Path, o: Oracle, config: dict[str, Any], tensors: dict[str, Array]) -> str:
    del tensors["model.layers.1.linear_attn.bd_softmax_history_c"]
    return "lacks some tensors of the block pass: blk.1.ssm_bd_history_c"


def odd_kernel(folder: Path, o: Oracle, config: dict[str, Any], tensors: dict[str, Array]) -> str:
    name = "model.layers.0.linear_attn.conv_right_weight"
    tensors[name] = tensors[name][:, :2]
    return f"{name}: shape [128, 2] is neither [128, 3]"


def wrong_layer(folder: Path, o: Oracle, config: dict[str, Any], tensors: dict[str, Array]) -> str:
    config["layer_types"] = ["full_attention", *["linear_attention"] * 3]
    return "layer 0 is a full attention layer by layer_types"


def long_block(folder: Path, o: Oracle, config: dict[str, Any], tensors: dict[str, Array]) -> str:
    config["block_length"] = 33
    return "the block length is 33, it must be 1 to 32"


@pytest.mark.parametrize("break_it", [bad_split, lost_tensor, odd_kernel, wrong_layer, long_block])
def test_a_bad_checkpoint_is_refused(
    converter: Converter,
    tmp_path: Path,
    break_it: Callable[[Path, Oracle, dict[str, Any], dict[str, Array]], str],
) -> None:
    o = Oracle(ORACLE / "tiny_a_preview.gguf")
    config, tensors = config_of(o), checkpoint_tensors(o, fused_experts=True)
    write_tokenizer(tmp_path, o, QWEN35_SPLIT, mask_in_tokenizer=True)
    sentence = break_it(tmp_path, o, config, tensors)
    write_checkpoint(tmp_path, config, tensors)

    out, code, said = converter.run(tmp_path)

    assert code != 0
    assert sentence in said.strip().splitlines()[-1]
    assert not out.exists()
