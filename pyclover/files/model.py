"""Check a model of any architecture: Clover's in full, others only for what would abort the process."""

from __future__ import annotations

from collections.abc import Sequence

from pyclover.files.clover import check_clover
from pyclover.files.facts import CLOVER_ARCH, Capabilities, Capability, ModelFacts
from pyclover.files.header import Header, TensorInfo
from pyclover.files.hparams import MAX_EXPERTS, MAX_LAYERS, check_common
from pyclover.files.meta import Meta
from pyclover.files.types import F32
from pyclover.files.values import Array
from pyclover.files.vocab import check_vocab

_NOT_MODELS = {
    "adapter": "a LoRA adapter, not a model",
    "imatrix": "an importance matrix, not a model",
    "mmproj": "a multimodal projector, not a model",
    "vocab": "a vocabulary without weights",
}


def check_model(header: Header, tensors: Sequence[TensorInfo] | None = None) -> ModelFacts:
    """Check a model file; CloverFacts for clover_moe, else ModelFacts. Never raises: see `problems`.

    A model of another architecture that llama.cpp can load has no problems here; its own loader judges the rest.

    Args:
        header: of the file, or of the first shard.
        tensors: of all shards; the header's own when None.
    """
    tensors = header.tensors if tensors is None else tensors
    kind = header.metadata.get("general.type")
    if header.architecture == CLOVER_ARCH and kind not in _NOT_MODELS:
        return check_clover(header, tensors)
    meta = Meta(header)
    arch = meta.text("general.architecture", required=True)
    n_vocab, special = 0, dict[str, int]()
    if isinstance(kind, str) and kind in _NOT_MODELS:
        meta.problem("general.type", f"this file is {_NOT_MODELS[kind]} (general.type); give the model's own file")
    elif not tensors:
        meta.problem(
            "general.architecture", "this file holds no tensors, so there is nothing to run; give the model's own file"
        )
    elif arch and arch != "clip":
        _check_sizes(meta, arch)
        _check_types(meta, tensors)
        vocab = check_vocab(meta, arch, strict=False)
        n_vocab, special = vocab.n_vocab, vocab.special
    problem = meta.problems[0].message if meta.problems else ""
    no_draft = problem or f"the architecture is '{arch}', and only {CLOVER_ARCH} drafts for itself"
    n_params = sum(t.n_elements for t in tensors)
    return ModelFacts(
        architecture=arch,
        n_layer=_number(header, f"{arch}.block_count"),
        n_embd=_number(header, f"{arch}.embedding_length"),
        n_vocab=n_vocab,
        n_ctx_train=_number(header, f"{arch}.context_length"),
        n_params=n_params,
        n_params_active=n_params - _idle(header, arch, tensors),
        special_tokens=special,
        capabilities=Capabilities(
            Capability(not problem, problem), Capability(False, no_draft), Capability(False, no_draft)
        ),
        warnings=tuple(meta.warnings),
        problems=tuple(meta.problems),
    )


def _check_sizes(meta: Meta, arch: str) -> None:
    """Assertions of llama.cpp's common loader, and the keys that it wants of every model; the rest is left to it."""
    meta.u32(f"{arch}.context_length", high=(1 << 32) - 1, required=True)
    meta.u32(f"{arch}.embedding_length", high=(1 << 32) - 1, required=True)
    n_layer = meta.u32(f"{arch}.block_count", low=1, high=MAX_LAYERS, required=True)
    meta.u32(f"{arch}.nextn_predict_layers", high=max(n_layer, 1))
    check_common(meta, arch)
    n_expert = meta.u32(f"{arch}.expert_count", high=MAX_EXPERTS)
    key = f"{arch}.expert_used_count"
    used = max(meta.per_layer(key, n_layer) or (), default=0) if meta.has(key) else 0
    # Hunyuan's loader drops a lone expert before it asserts
    if used > n_expert or (n_expert > int(arch.startswith("hunyuan")) and not used):
        meta.problem(key, f"the metadata key '{key}' is {used} for {n_expert} experts; convert the model again")
    heads, kv = (meta.header.metadata.get(f"{arch}.attention.{k}", 0) for k in ("head_count", "head_count_kv"))
    # 0 is legal: models without attention write it
    if isinstance(heads, int) and isinstance(kv, int) and heads > 0 and kv > 0 and heads % kv:
        key = f"{arch}.attention.head_count_kv"
        meta.problem(key, f"the metadata key '{key}' is {kv}, which does not divide the {heads} heads")


def _check_types(meta: Meta, tensors: Sequence[TensorInfo]) -> None:
    """Types for which ggml has no operation: it calls a null pointer, or a worker thread ends the process."""
    for t in tensors:
        if len(t.shape) > 1:
            # a table of expert numbers is the one matrix that is not multiplied
            if t.name.endswith(".weight") and not t.type.is_weight and "tid2eid" not in t.name:
                meta.problem(t.name, f"tensor '{t.name}' is of type {t.type.name}, which cannot hold weights")
        elif t.name.endswith(("norm.weight", ".bias")) and t.type is not F32:
            meta.problem(t.name, f"tensor '{t.name}' is of type {t.type.name} and must be F32; convert the model again")


def _number(header: Header, key: str) -> int:
    value = header.metadata.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _idle(header: Header, arch: str, tensors: Sequence[TensorInfo]) -> int:
    """Weights of routed experts that a token does not use (by the usual tensor names)."""
    used = header.metadata.get(f"{arch}.expert_used_count", 0)
    if isinstance(used, Array):
        used = max((x for x in used if isinstance(x, int)), default=0)
    n_expert = _number(header, f"{arch}.expert_count")
    if not isinstance(used, int) or not 0 < used <= n_expert:
        return 0
    routed = sum(t.n_elements for t in tensors if "_exps." in t.name)
    return routed * (n_expert - used) // n_expert
