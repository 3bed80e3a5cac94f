"""Models whose way to compute block passes is known: the trained one rewritten, and random ones of the reference's.

The trained model computes the same when a parameter is changed and the weights behind it are changed to match: a stored
logit scale s stands for exp(log s), and a factor c of a read by q / sqrt(S) for c / sqrt(S) of one by q. So the file's
truth is what we choose, and its metadata say nothing of it.

A random model drafts nothing that its causal pass would say: its masks know nothing. Where its delta nets matter
little, though, row 0 of a block, the last token, sees what the causal pass sees, and so it is about the next position:
that is a model with shifted logits, and of its other parameters nothing can be told.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import gguf
import numpy as np
from support import ROOT

TRAINED = ROOT / "pyclover" / "data" / "tiny.gguf"
DAMPED = 0.02  # of the output of a random model's delta nets


def rewritten(path: Path, *, scale_activation: str = "none", history_query: str = "scaled") -> Path:
    """The trained model with other stored numbers that mean the same under these parameters."""
    reader = gguf.GGUFReader(TRAINED)
    size = reader.fields["clover_moe.ssm.state_size"].contents()
    writer = gguf.GGUFWriter(path, "clover_moe")
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            kind = field.types[0]
            add: Any = writer.add_array if kind is gguf.GGUFValueType.ARRAY else writer.add_key_value
            add(key, field.contents(), *([] if kind is gguf.GGUFValueType.ARRAY else [kind]))
    for t in reader.tensors:
        data = np.ascontiguousarray(t.data)
        if t.name.endswith("ssm_bd_logit_scale") and scale_activation == "exp":
            assert (data > 0).all()
            data = np.log(data)
        if t.name.endswith("ssm_bd_history_c") and history_query == "unit":
            data = (data / np.sqrt(np.float32(size))).astype(np.float32)
        writer.add_tensor(t.name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def random_model(path: Path, generator: ModuleType, seed: int) -> Path:
    """A random model of make_tiny_clover.py whose delta nets say little."""
    settings = {**generator.BASE, **generator.PRESETS["a"], "seed": seed, "preview": True}
    tensors = generator.tensors

    def damped(c: Any, n_vocab: int) -> Any:
        for name, data, f32 in tensors(c, n_vocab):
            yield name, data * np.float32(DAMPED) if name.endswith("ssm_out.weight") else data, f32

    generator.tensors = damped  # type: ignore[attr-defined]
    try:
        generator.write(str(path), settings)
    finally:
        generator.tensors = tensors  # type: ignore[attr-defined]
    return path
