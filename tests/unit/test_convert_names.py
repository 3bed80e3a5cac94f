"""Names and shapes of the real checkpoint, as far as they are public: those of Qwen3.5-MoE in transformers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pyclover.errors import UnsupportedModelError
from pyclover.files.convert_checkpoint import Checkpoint, LocalSource
from pyclover.files.convert_config import read_shape
from pyclover.files.convert_map import tensors_of
from pyclover.files.convert_safetensors import Stored

# What `Qwen3_5MoeForCausalLM(config).state_dict()` of transformers 5.24 holds with the sizes of Clover-35B-A3B, of
# which Clover's are derived; of the layers one of each kind.
OUTSIDE = {
    "model.embed_tokens.weight": (248320, 2048), "model.norm.weight": (2048,), "lm_head.weight": (248320, 2048),
}  # fmt: skip
BOTH = {
    "mlp.gate.weight": (256, 2048), "mlp.experts.gate_up_proj": (256, 1024, 2048),
    "mlp.experts.down_proj": (256, 2048, 512), "mlp.shared_expert.gate_proj.weight": (512, 2048),
    "mlp.shared_expert.up_proj.weight": (512, 2048), "mlp.shared_expert.down_proj.weight": (2048, 512),
    "mlp.shared_expert_gate.weight": (1, 2048), "input_layernorm.weight": (2048,),
    "post_attention_layernorm.weight": (2048,),
}  # fmt: skip
LINEAR = {
    "linear_attn.dt_bias": (32,), "linear_attn.A_log": (32,), "linear_attn.conv1d.weight": (8192, 1, 4),
    "linear_attn.norm.weight": (128,), "linear_attn.out_proj.weight": (2048, 4096),
    "linear_attn.in_proj_qkv.weight": (8192, 2048), "linear_attn.in_proj_z.weight": (4096, 2048),
    "linear_attn.in_proj_b.weight": (32, 2048), "linear_attn.in_proj_a.weight": (32, 2048),
}  # fmt: skip
FULL = {
    "self_attn.q_proj.weight": (8192, 2048), "self_attn.k_proj.weight": (512, 2048),
    "self_attn.v_proj.weight": (512, 2048), "self_attn.o_proj.weight": (2048, 4096), "self_attn.q_norm.weight": (256,),
    "self_attn.k_norm.weight": (256,),
}  # fmt: skip
# the endings of Clover's own tensors are published, their place and shapes are not
OWN = {
    "linear_attn.conv_right_weight": (8192, 3), "linear_attn.bd_softmax_logit_scale": (32,),
    "linear_attn.bd_softmax_history_bias": (32,), "linear_attn.bd_softmax_history_c": (32,),
}  # fmt: skip
# the keys of that model's configuration
CONFIG: dict[str, Any] = {
    "architectures": ["CloverMoeModelLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": None,
    "eos_token_id": 248046, "head_dim": 256, "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02,
    "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 10, "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_value_head_dim": 128,
    "max_position_embeddings": 131072, "moe_intermediate_size": 512, "num_attention_heads": 16, "num_experts": 256,
    "num_experts_per_tok": 8, "num_hidden_layers": 40, "num_key_value_heads": 2, "output_router_logits": False,
    "pad_token_id": None, "rms_norm_eps": 1e-06, "router_aux_loss_coef": 0.001, "shared_expert_intermediate_size": 512,
    "rope_parameters": {"partial_rotary_factor": 0.25, "rope_theta": 1e7, "rope_type": "default"},
    "tie_word_embeddings": False, "use_cache": True, "vocab_size": 248320,
}  # fmt: skip


def real_names() -> Iterator[tuple[str, tuple[int, ...]]]:
    yield from OUTSIDE.items()
    for i in range(40):
        for name, shape in {**BOTH, **(FULL if i % 4 == 3 else {**LINEAR, **OWN})}.items():
            yield f"model.layers.{i}.{name}", shape


def checkpoint(folder: Path, tensors: dict[str, tuple[int, ...]]) -> Checkpoint:
    stored = {name: Stored("BF16", shape, 0, 0) for name, shape in tensors.items()}
    return Checkpoint(LocalSource(folder), CONFIG, ("s",), {}, stored, dict.fromkeys(stored, "s"))


def one_by_one(name: str, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """Experts as older versions of transformers save them."""
    if name.endswith("experts.gate_up_proj"):
        p, (x, f, e) = name.removesuffix("gate_up_proj"), shape
        return {f"{p}{i}.{part}_proj.weight": (f // 2, e) for i in range(x) for part in ("gate", "up")}
    if name.endswith("experts.down_proj"):
        p, (x, e, f) = name.removesuffix("down_proj"), shape
        return {f"{p}{i}.down_proj.weight": (e, f) for i in range(x)}
    return {name: shape}


FORMS: dict[str, Callable[[str, tuple[int, ...]], dict[str, tuple[int, ...]]]] = {
    "as it is": lambda name, shape: {name: shape},
    "experts one by one": one_by_one,
    "inside a model of text and pictures": lambda name, shape: {
        re.sub("^model[.]", "model.language_model.", name): shape
    },
    "own tensors elsewhere": lambda name, shape: {
        name.replace("linear_attn", "mixer") if "bd_" in name or "right" in name else name: shape
    },
}


@pytest.mark.parametrize("form", FORMS)
def test_the_real_names_are_known(form: str, tmp_path: Path) -> None:
    tensors = {k: v for name, shape in real_names() for k, v in FORMS[form](name, shape).items()}
    other = {"mtp.fc.weight": (2048, 4096), "model.visual.blocks.0.attn.qkv.weight": (3456, 1152)}
    out, left_out = tensors_of(checkpoint(tmp_path, tensors | other), read_shape(CONFIG, "c"), "bf16", plain=False)
    assert left_out == list(other)
    # FACTS: 853 tensors, of which the four own ones of 30 layers are the last 120
    assert len(out) == 853
    assert {t.type.name for t in out} == {"BF16", "F32"}
    shapes = {t.name: t.shape for t in out}
    assert shapes["blk.0.ffn_gate_exps.weight"] == (2048, 512, 256)
    assert shapes["blk.39.attn_q.weight"] == (2048, 8192)
    assert shapes["blk.38.ssm_conv1d_right.weight"] == (3, 8192)
    # 34.66 billion weights, and what is F32 beside
    assert sum(t.n_bytes for t in out) / 2**30 == pytest.approx(64.6, abs=0.1)


def test_each_of_them_is_missed(tmp_path: Path) -> None:
    tensors = dict(real_names())
    shape = read_shape(CONFIG, "c")
    for name in [
        *OUTSIDE,
        *(f"model.layers.0.{n}" for n in (*BOTH, *LINEAR, *OWN)),
        *(f"model.layers.3.{n}" for n in FULL),
    ]:
        rest = {k: v for k, v in tensors.items() if k != name}
        with pytest.raises(UnsupportedModelError, match=f"tensors are missing: {re.escape(name)};"):
            tensors_of(checkpoint(tmp_path, rest), shape, "bf16", plain=False)
