"""What a clover_moe file holds, whether it can run, and what it can do."""

from __future__ import annotations

from collections.abc import Sequence

from pyclover.files.facts import CLOVER_ARCH, Capabilities, Capability, CloverFacts
from pyclover.files.header import Header, TensorInfo
from pyclover.files.hparams import MAX_BLOCK, Sizes, read_sizes
from pyclover.files.layout import check_tensors
from pyclover.files.meta import Meta
from pyclover.files.preview import find_preview
from pyclover.files.vocab import VocabFacts, check_vocab

_LISTED = 8  # unknown tensors named in the warning; the facts hold all


def check_clover(header: Header, tensors: Sequence[TensorInfo] | None = None) -> CloverFacts:
    """Check a clover_moe file's metadata and tensors. Never raises: what is wrong stands in `problems`.

    Args:
        header: of the file, or of the first shard.
        tensors: of all shards; the header's own when None.
    """
    tensors = header.tensors if tensors is None else tensors
    by_name = {t.name: t for t in tensors}
    meta = Meta(header)
    meta.text("general.name")
    s = read_sizes(meta, CLOVER_ARCH, frozenset(by_name))
    vocab = check_vocab(meta, CLOVER_ARCH, strict=True)
    unknown: tuple[TensorInfo, ...] = ()
    found: dict[str, str] = {}
    missing: tuple[str, ...] = ()
    if not meta.problems:  # sizes are whole only then; the shapes follow from them
        known = check_tensors(meta, s, vocab.n_vocab, by_name)
        strangers = [t for t in tensors if t.name not in known]
        matched, missing = find_preview(s, strangers)
        found = dict(matched)
        serving = set(found.values())
        unknown = tuple(t for t in strangers if t.name not in serving)
        if unknown:
            meta.warnings.append(_unknown_warning(unknown))
    n_params = sum(t.n_elements for t in tensors)
    return CloverFacts(
        architecture=CLOVER_ARCH,
        n_layer=s.n_layer,
        n_embd=s.n_embd,
        n_vocab=vocab.n_vocab,
        n_ctx_train=s.n_ctx_train,
        n_params=n_params,
        n_params_active=n_params - _idle(s, by_name),
        special_tokens=vocab.special,
        capabilities=_capabilities(meta, s, vocab, found, missing),
        warnings=tuple(meta.warnings),
        problems=tuple(meta.problems),
        unknown_tensors=unknown,
        layer_kinds=s.layer_kinds,
        n_head=s.n_head,
        n_head_kv=s.n_head_kv,
        head_dim=s.head_dim,
        n_rot=s.n_rot,
        rope_freq_base=s.rope_freq_base,
        rms_eps=s.rms_eps,
        ssm_conv_kernel=s.ssm_conv_kernel,
        ssm_state_size=s.ssm_state_size,
        ssm_group_count=s.ssm_group_count,
        ssm_time_step_rank=s.ssm_time_step_rank,
        n_expert=s.n_expert,
        n_expert_used=s.n_expert_used,
        n_ff_exp=s.n_ff_exp,
        n_ff_shexp=s.n_ff_shexp,
        n_expert_shared=s.n_expert_shared,
        expert_shared_count_missing=s.shared_count_missing,
        tied_output="output.weight" not in by_name,
        causal=s.causal,
        mask_token_id=vocab.special.get("mask"),
        block_length=s.block_length,
        shift_logits=s.shift_logits,
        expert_coreset=s.expert_coreset,
        preview_tensors=found,
        preview_missing=missing,
    )


def _unknown_warning(unknown: Sequence[TensorInfo]) -> str:
    listed = ", ".join(f"{t.name} {list(t.shape)}" for t in unknown[:_LISTED])
    more = f" and {len(unknown) - _LISTED} more" if len(unknown) > _LISTED else ""
    return f"{len(unknown)} tensors are not known for Clover and are skipped: {listed}{more}"


def _idle(s: Sizes, tensors: dict[str, TensorInfo]) -> int:
    """Weights of the routed experts that a token does not use, over all layers."""
    idle = 0
    for i, used in enumerate(s.n_expert_used):
        for part in ("gate", "up", "gate_up", "down"):
            tensor = tensors.get(f"blk.{i}.ffn_{part}_exps.weight")
            if tensor is not None and s.n_expert:
                idle += tensor.n_elements * (s.n_expert - used) // s.n_expert
    return idle


def _capabilities(
    meta: Meta, s: Sizes, vocab: VocabFacts, found: dict[str, str], missing: tuple[str, ...]
) -> Capabilities:
    if meta.problems:
        no = Capability(False, meta.problems[0].message)
        return Capabilities(no, no, no)
    reason = _no_preview(s, vocab, found, missing) or _wrong_words(meta)
    block = Capability(not reason, reason)
    return Capabilities(Capability(True), block, block)


# What the block pass understands; anything else leaves the file with plain decoding.
_WORDS = {"logit_scale_activation": ("none", "exp", "softplus"), "history_query": ("scaled", "unit")}


def _wrong_words(meta: Meta) -> str:
    """Which settings of the block pass have a value that is none of theirs, "" for none."""
    for name, known in _WORDS.items():
        key = f"{CLOVER_ARCH}.diffusion.{name}"
        value = meta.header.metadata.get(key, known[0])
        if value not in known:
            return f"{key} is {value!r:.40}, and must be {', '.join(known[:-1])} or {known[-1]}"
    share = meta.header.metadata.get(f"{CLOVER_ARCH}.diffusion.expert_coreset_share", 0.0)
    if not (isinstance(share, float) and 0 <= share <= 1):
        return f"{CLOVER_ARCH}.diffusion.expert_coreset_share is {share!r:.40}, and must be from 0 to 1"
    return ""


def _no_preview(s: Sizes, vocab: VocabFacts, found: dict[str, str], missing: tuple[str, ...]) -> str:
    """Why the preview pass cannot run, "" when it can."""
    if not found:
        return "no preview tensors: this file was converted without them"
    if missing:
        more = f" and {len(missing) - 1} others" if len(missing) > 1 else ""
        return f"preview tensors are incomplete: '{missing[0]}'{more} not found"
    if "mask" not in vocab.special:
        return "no mask token id (tokenizer.ggml.mask_token_id)"
    if not s.causal:
        return f"{CLOVER_ARCH}.attention.causal is false, so a draft cannot be checked in one pass"
    if not 1 <= s.block_length <= MAX_BLOCK:
        return f"{CLOVER_ARCH}.diffusion.block_length is {s.block_length}, and a block has 1 to {MAX_BLOCK} rows"
    if s.expert_coreset and not max(s.n_expert_used) <= s.expert_coreset <= s.n_expert:
        return (
            f"{CLOVER_ARCH}.diffusion.expert_coreset is {s.expert_coreset}, and must be 0 or from the "
            f"{max(s.n_expert_used)} experts used to the {s.n_expert} there are"
        )
    return ""
