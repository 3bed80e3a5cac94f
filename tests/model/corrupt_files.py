"""Ways to damage a GGUF file that know its structure."""

from __future__ import annotations

import random
from typing import Any

from model.gguf_parts import ARRAY, FORMATS, STRING, Entry, Parts, Tensor, build, parse, relay

Splices = list[tuple[int, int, bytes]]

INTEGERS = (
    0, 1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 32, 33, 47, 48, 49, 64, 96, 127, 128, 255, 256, 257, 511, 512, 513, 1023,
    1024, 1025, 4095, 4096, 32767, 32768, 65535, 65536, 2**20, 2**24, 2**31 - 1, 2**31, 2**31 + 1, 2**32 - 2, 2**32 - 1,
    2**32, 2**33, 2**40, 2**48, 2**61, 2**62, 2**63 - 1, 2**63, 2**64 - 32, 2**64 - 1, -1, -2, -32, -(2**31), -(2**63),
)  # fmt: skip
FLOATS = (
    0.0,
    -0.0,
    1.0,
    -1.0,
    1e-45,
    1e-38,
    1e-6,
    1e6,
    3.4e38,
    -3.4e38,
    1e308,
    float("inf"),
    float("-inf"),
    float("nan"),
)
STRINGS = (
    b"", b"a", b"\0", b"x\0y", b"\xff\xfe", b"\xf0\x9f\x99", b" ", b"\n", b"gpt2", b"llama", b"bert", b"rwkv", b"t5",
    b"none", b"no_vocab", b"qwen2", b"qwen35", b"clover", b"clover_moe", b"default", b"linear", b"yarn", b"longrope",
    b"mmproj", b"adapter", b"model", b"clip", b"%s%n%d", b"a" * 63, b"a" * 64, b"a" * 65, b"a" * 4096, b"[EMPTY_0]",
    b"\xc4\xa0", b"\xe2\x96\x81", b"<0x41>", b"{{ 1 }}", b"../../x", "é".encode(), "ä" .encode() * 100,
)  # fmt: skip
# keys that tiny files lack and that llama.cpp or the package reads
KEYS = (
    b"general.alignment", b"general.type", b"general.name", b"split.no", b"split.count", b"split.tensors.count",
    b"tokenizer.ggml.scores", b"tokenizer.ggml.bos_token_id", b"tokenizer.ggml.unknown_token_id",
    b"tokenizer.ggml.eot_token_id", b"tokenizer.ggml.eom_token_id", b"tokenizer.ggml.seperator_token_id",
    b"tokenizer.ggml.fim_pre_token_id", b"tokenizer.ggml.add_eos_token", b"tokenizer.ggml.add_sep_token",
    b"tokenizer.ggml.add_space_prefix", b"tokenizer.ggml.remove_extra_whitespaces",
    b"tokenizer.ggml.precompiled_charsmap", b"tokenizer.ggml.token_type_count", b"tokenizer.ggml.suppress_tokens",
    b"tokenizer.ggml.normalizer.lowercase", b"tokenizer.chat_templates", b"tokenizer.chat_template.tool_use",
    b"%A.vocab_size", b"%A.attention.recurrent_layers", b"%A.attention.sliding_window",
    b"%A.attention.sliding_window_pattern", b"%A.attention.causal", b"%A.attention.scale", b"%A.attention.clamp_kqv",
    b"%A.attention.layer_norm_epsilon", b"%A.attention.group_norm_groups", b"%A.attention.max_alibi_bias",
    b"%A.attention.shared_kv_layers", b"%A.attention.key_length_swa", b"%A.attention.value_length_swa",
    b"%A.attention.key_length_mla", b"%A.attention.value_length_mla", b"%A.attention.temperature_length",
    b"%A.attention.temperature_scale", b"%A.attention.output_scale", b"%A.attention.indexer.head_count",
    b"%A.feed_forward_length", b"%A.leading_dense_block_count", b"%A.expert_weights_scale", b"%A.expert_weights_norm",
    b"%A.expert_gating_func", b"%A.expert_group_count", b"%A.expert_group_used_count", b"%A.expert_group_scale",
    b"%A.experts_per_group", b"%A.nextn_predict_layers", b"%A.num_deepstack_layers", b"%A.pooling_type",
    b"%A.logit_scale", b"%A.residual_scale", b"%A.embedding_scale", b"%A.attn_logit_softcapping",
    b"%A.final_logit_softcapping", b"%A.rope.dimension_sections", b"%A.rope.scaling.type", b"%A.rope.scaling.factor",
    b"%A.rope.scaling.attn_factor", b"%A.rope.scaling.original_context_length", b"%A.rope.scaling.finetuned",
    b"%A.rope.scaling.yarn_log_multiplier", b"%A.rope.scaling.yarn_ext_factor", b"%A.rope.scale_linear",
    b"%A.rope.freq_base_swa", b"%A.rope.dimension_count_swa", b"%A.ssm.dt_b_c_rms", b"%A.embedding_length_out",
    b"%A.full_attention_interval", b"%A.classifier.output_labels", b"%A.tensor_data_layout",
    b"%A.swin_norm", b"%A.decoder_start_token_id", b"%A.decoder_block_count", b"%A.use_parallel_residual",
    b"%A.diffusion.block_length", b"%A.diffusion.shift_logits", b"%A.diffusion.expert_coreset",
    b"%A.diffusion.expert_coreset_share", b"%A.diffusion.expert_coreset_min", b"%A.kda.head_dim",
    b"%A.dense_2_feat_in", b"%A.dense_2_feat_out", b"%A.expert_latent_length", b"%A.moe_every_n_layers",
    b"%A.interleave_moe_layer_step", b"%A.altup.num_inputs", b"%A.wkv.head_size", b"%A.token_shift_count",
    b"diffusion.shift_logits", b"quantize.imatrix.file", b"adapter.type", b"training.type",
)  # fmt: skip


class Mutator:
    """Damages one file in reproducible ways: the case of a number is always the same."""

    def __init__(self, base: bytes, arch: bytes = b"clover_moe") -> None:
        self.base = base
        self.arch = arch
        self.parts = parse(base)
        self.rng = random.Random(0)

    def case(self, name: str) -> Splices:
        """Splices of the case `name`: one to four kinds of damage together."""
        self.rng = random.Random(name)
        r = self.rng
        p = self.parts.copy()
        data: Splices = []
        structural = (self.scalar, self.any_value, self.any_value, self.special, self.array, self.tokens, self.add_key,
                      self.add_key, self.drop, self.double, self.shape, self.kind, self.offset, self.count,
                      self.names, self.order)  # fmt: skip
        for _ in range(r.choice((1, 1, 1, 1, 2, 2, 3, 4))):
            if r.random() < 0.12:
                data.append(self.weights())
            elif r.random() < 0.06:
                return self.raw()
            else:
                r.choice(structural)(p)
        head = build(p)
        data = sorted(data)
        data = [s for i, s in enumerate(data) if i == 0 or s[0] >= data[i - 1][1]]
        tail: Splices = [] if r.random() > 0.04 else [(r.randrange(p.data_offset, len(self.base)), len(self.base), b"")]
        data = [s for s in data if not tail or s[1] <= tail[0][0]]
        return [(0, p.data_offset, head), *data, *tail]

    def integer(self) -> int:
        r = self.rng
        return r.choice(INTEGERS) if r.random() < 0.7 else r.choice(INTEGERS) + r.randint(-3, 3)

    def string(self) -> bytes:
        r = self.rng
        if r.random() < 0.6:
            return r.choice(STRINGS)
        return r.randbytes(r.randrange(0, 40))

    def near(self, value: Any) -> Any:
        """Another value of the same type: extreme, or close to the true one (these get past the first checks)."""
        r = self.rng
        if isinstance(value, bytes):
            choice = r.random()
            if choice < 0.5 or not value:
                return self.string()
            at = r.randrange(len(value))
            if choice < 0.75:
                return value[:at] + r.randbytes(1) + value[at + 1 :]
            return value[:at] + value[at:] * r.randrange(0, 3)
        if isinstance(value, float):
            return r.choice(FLOATS)
        if r.random() < 0.5:
            return self.integer()
        return r.choice((value + 1, value - 1, value * 2, value // 2, value * 3, value + 16, -value))

    def value_of(self, kind: int) -> Any:
        r = self.rng
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            element = r.choice((*FORMATS, STRING))
            n = r.choice((0, 1, 2, 3, 4, 5, 8, 358, 512, 1000))
            return element, [self.value_of(element) for _ in range(n)]
        if FORMATS[kind] in "fd":
            return r.choice(FLOATS)
        return r.randint(0, 1) if kind == 7 and r.random() < 0.9 else self.integer()

    # ---- kinds of damage ---------------------------------------------------------------------------------------------

    def scalar(self, p: Parts) -> None:
        entries = [e for e in p.entries if e.kind in FORMATS]
        e = self.rng.choice(entries)
        e.value = self.near(e.value)

    def any_value(self, p: Parts) -> None:
        e = self.rng.choice(p.entries)
        if self.rng.random() < 0.3:
            e.kind = self.rng.choice((*FORMATS, STRING, ARRAY, ARRAY))
            e.value = self.value_of(e.kind)
        elif e.kind == ARRAY:
            self.array(p)
        else:
            e.value = self.near(e.value)

    def special(self, p: Parts) -> None:
        """A number per layer as an array, or a type of the same size."""
        r = self.rng
        numbers = [e for e in p.entries if e.kind == 4 and e.key.startswith(self.arch)]
        if not numbers:
            return
        e = r.choice(numbers)
        if r.random() < 0.6:
            n_layer = next((x.value for x in p.entries if x.key.endswith(b".block_count") and x.kind == 4), 4)
            n = min(max(0, n_layer + r.choice((0, 0, 0, 0, 1, -1))), 600)
            items = [e.value if r.random() < 0.7 else self.near(e.value) for _ in range(n)]
            e.kind, e.value = ARRAY, (r.choice((4, 4, 5, 5, 7, 6, 2)), items)
        else:
            e.kind = r.choice((0, 2, 3, 5, 6, 7, 10, 11))
            e.value = e.value if r.random() < 0.5 else self.near(e.value)

    def array(self, p: Parts) -> None:
        r = self.rng
        arrays = [e for e in p.entries if e.kind == ARRAY]
        if not arrays:
            return
        e = r.choice(arrays)
        element, items = e.value
        what = r.randrange(8)
        if what == 0:
            e.n = self.integer()
        elif what == 1:
            e.value = (r.choice((*FORMATS, STRING, ARRAY, 13, 255)), items if element != STRING else [])
            if e.value[0] not in FORMATS:
                e.value = (e.value[0], [])
        elif what == 2 and items:
            del items[r.randrange(len(items)) :]
        elif what == 3 and items:
            items += [r.choice(items)] * r.choice((1, 2, 50))
        elif what == 4:
            e.value = (element, [])
        elif what == 5:
            r.shuffle(items)
        elif what == 6 and items:
            items[:] = [items[0]] * len(items)
        else:
            for _ in range(r.choice((1, 1, 3, 20))):
                if items:
                    i = r.randrange(len(items))
                    items[i] = self.near(items[i])

    def tokens(self, p: Parts) -> None:
        """The vocabulary, its types, its merges, its special ids."""
        r = self.rng
        by_key = {e.key: e for e in p.entries}
        tokens = by_key.get(b"tokenizer.ggml.tokens")
        merges = by_key.get(b"tokenizer.ggml.merges")
        types = by_key.get(b"tokenizer.ggml.token_type")
        what = r.randrange(8)
        if what == 0 and tokens is not None and tokens.kind == ARRAY and tokens.value[1]:
            tokens.value[1][r.randrange(len(tokens.value[1]))] = self.string()
        elif what == 1 and merges is not None and merges.kind == ARRAY:
            new = (
                b"",
                b" ",
                b"a",
                b"a b c",
                b"  ",
                b" a",
                b"a ",
                b"\xff \xfe",
                b"a\0b c",
                b"zz yy",
                b"a" * 5000 + b" b",
            )
            for _ in range(r.choice((1, 2, 10))):
                merges.value[1].insert(r.randrange(len(merges.value[1]) + 1), r.choice(new))
        elif what == 2 and types is not None and types.kind == ARRAY:
            kind = r.choice((0, 1, 2, 3, 4, 5, 6, 7, 99, -1, 2**31 - 1, -(2**31)))
            n = len(types.value[1])
            for i in range(n) if r.random() < 0.5 else [r.randrange(n)] if n else []:
                types.value[1][i] = kind
        elif what == 3:
            name = r.choice((b"eos", b"bos", b"unknown", b"padding", b"mask", b"eot", b"eom", b"seperator", b"fim_pre",
                             b"fim_suf", b"fim_mid", b"fim_pad", b"fim_rep", b"fim_sep"))  # fmt: skip
            key = b"tokenizer.ggml." + name + b"_token_id"
            p.entries = [e for e in p.entries if e.key != key]
            p.entries.append(Entry(key, r.choice((4, 4, 4, 5, 10)), r.choice((0, 357, 358, 359, 2**31, 2**32 - 1, -1))))
        elif what == 4 and b"tokenizer.ggml.model" in by_key:
            by_key[b"tokenizer.ggml.model"].value = r.choice(
                (b"gpt2", b"llama", b"bert", b"t5", b"rwkv", b"plamo2", b"gemma4", b"none", b"no_vocab", b"test",
                 b"hybriddna", b"whitespace")
            )  # fmt: skip
        elif what == 5 and b"tokenizer.ggml.pre" in by_key:
            by_key[b"tokenizer.ggml.pre"].value = r.choice(
                (b"default", b"llama-bpe", b"qwen2", b"gpt-2", b"tekken", b"deepseek-v3", b"kimi-k2", b"bloom",
                 b"gpt-4o", b"superbpe", b"whitespace", b"chameleon", b"gemma4", b"youtu", b"minicpm5", b"laguna",
                 b"olmo", b"viking")
            )  # fmt: skip
        elif what == 6 and tokens is not None and tokens.kind == ARRAY and tokens.value[1]:
            for i in r.sample(range(len(tokens.value[1])), min(20, len(tokens.value[1]))):
                tokens.value[1][i] = r.randbytes(r.randrange(1, 6))
        elif what == 7 and tokens is not None and tokens.kind == ARRAY:
            del tokens.value[1][r.choice((0, 1, 128, 255, 256, 300)) :]

    def add_key(self, p: Parts) -> None:
        r = self.rng
        key = r.choice(KEYS).replace(b"%A", self.arch)
        p.entries = [e for e in p.entries if e.key != key or r.random() < 0.05]
        kind = r.choice((4, 4, 4, 6, 7, STRING, ARRAY, 5, 2, 10))
        value = self.value_of(kind)
        if kind == 4 and r.random() < 0.5:
            value = r.randrange(0, 8)
        if kind == ARRAY and r.random() < 0.6:
            value = (r.choice((4, 5, 6, 7)), [r.randrange(0, 2) for _ in range(4)])
        p.entries.insert(r.randrange(len(p.entries) + 1), Entry(key, kind, value))

    def drop(self, p: Parts) -> None:
        r = self.rng
        if r.random() < 0.6 and p.entries:
            del p.entries[r.randrange(len(p.entries))]
        elif p.tensors:
            del p.tensors[r.randrange(len(p.tensors))]

    def double(self, p: Parts) -> None:
        r = self.rng
        if r.random() < 0.5:
            e = r.choice(p.entries)
            p.entries.append(Entry(e.key, e.kind, e.value))
        else:
            t = r.choice(p.tensors)
            p.tensors.append(Tensor(t.name, list(t.shape), t.kind, t.offset))

    def shape(self, p: Parts) -> None:
        r = self.rng
        t = r.choice(p.tensors)
        what = r.randrange(6)
        if what == 0 and t.shape:
            t.shape[r.randrange(len(t.shape))] = self.integer()
        elif what == 1:
            t.shape = t.shape[::-1]
        elif what == 2:
            t.shape.append(r.choice((1, 1, 1, 0, 2)))
        elif what == 3 and len(t.shape) > 1:
            a = t.shape.pop()
            t.shape[-1] *= a
        elif what == 4:
            t.n_dims = self.integer()
        elif t.shape:
            i = r.randrange(len(t.shape))
            t.shape[i] = max(0, t.shape[i] + r.choice((-1, 1, 32, -32)))

    def kind(self, p: Parts) -> None:
        """A tensor's type; sometimes the rest is moved so that offsets stay contiguous."""
        r = self.rng
        t = r.choice(p.tensors)
        t.kind = r.randrange(0, 45) if r.random() < 0.8 else self.integer()
        if r.random() < 0.7:
            relay(p)

    def offset(self, p: Parts) -> None:
        r = self.rng
        t = r.choice(p.tensors)
        t.offset = r.choice((self.integer(), t.offset + 32, t.offset - 32, t.offset + 1, p.tensors[0].offset))

    def count(self, p: Parts) -> None:
        r = self.rng
        what = r.randrange(3)
        if what == 0:
            p.n_tensors = r.choice((self.integer(), len(p.tensors) + 1, len(p.tensors) - 1))
        elif what == 1:
            p.n_entries = r.choice((self.integer(), len(p.entries) + 1, len(p.entries) - 1))
        else:
            p.version = r.choice((0, 1, 2, 3, 4, 99, 2**24 * 3, 2**32 - 1))

    def names(self, p: Parts) -> None:
        r = self.rng
        thing = r.choice((*p.entries, *p.tensors))
        if isinstance(thing, Entry):
            thing.key = self.near(thing.key)
        else:
            other = r.choice(p.tensors)
            if r.random() < 0.5:  # two tensors change places; offsets still fit
                thing.name, other.name = other.name, thing.name
            else:
                thing.name = self.near(thing.name)

    def order(self, p: Parts) -> None:
        self.rng.shuffle(p.entries if self.rng.random() < 0.5 else p.tensors)

    def weights(self) -> tuple[int, int, bytes]:
        r = self.rng
        at = r.randrange(self.parts.data_offset, len(self.base) - 4096) & ~3
        n = r.choice((1, 4, 64, 1024))
        special = r.choice((b"\0\0\xc0\x7f", b"\0\0\x80\x7f", b"\0\0\x80\xff", b"\0\x7e\0\x7e", b"\0\x7c\0\x7c",
                            b"\xff\xff\x7f\x7f", b"\xff\xff\xff\xff", r.randbytes(4)))  # fmt: skip
        return at, at + 4 * n, special * n

    def raw(self) -> Splices:
        """Bytes of the header cut out, doubled, overwritten, without regard for structure."""
        r = self.rng
        a = r.randrange(self.parts.data_offset)
        b = min(self.parts.data_offset, a + r.choice((0, 1, 4, 8, 32, 500)))
        return [(a, b, r.choice((b"", r.randbytes(r.randrange(20)), self.base[a:b] * 2, b"\xff" * 8, b"\0" * 8)))]
