"""Packed batches: what rows are about, what is masked and weighed; and the schedule of the run."""

from __future__ import annotations

import sys
from random import Random
from typing import Any

import pytest
from support import ROOT

for module in ("torch", "tokenizers", "jinja2"):
    pytest.importorskip(module, reason=f"training needs {module}")
sys.path.append(str(ROOT))

from training.config import TrainConfig  # noqa: E402
from training.data.mix import KINDS, document, draw, training_document  # noqa: E402
from training.packing import Packer, encode  # noqa: E402
from training.tokenizer import END_OF_TEXT, MASK, train_tokenizer  # noqa: E402
from training.train import rate_factor  # noqa: E402

CONFIG = TrainConfig(batch=3)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    rng = Random(2)
    documents = [training_document(rng, False) for _ in range(1500)]
    return train_tokenizer((d.prompt + d.answer for d in documents), 700)


def test_prompt_and_answer_cut_apart_give_the_tokens_of_the_whole(tokenizer: Any) -> None:
    for kind in KINDS:
        rng = Random(f"tokens/{kind}")
        documents = [document(kind, draw(kind, rng), thinking) for thinking in (True, False) for _ in range(10)]
        for d, tokens in zip(documents, encode(tokenizer, documents), strict=True):
            assert tokens.ids == tokenizer.encode(d.prompt + d.answer).ids
            assert tokenizer.decode(tokens.ids, skip_special_tokens=False) == d.prompt + d.answer


@pytest.mark.parametrize("progress", [0.0, 0.5, 0.9])
def test_noisy_rows_continue_their_document(tokenizer: Any, progress: float) -> None:
    b = Packer(tokenizer, CONFIG, 0).batch(7, progress)
    mask, after = tokenizer.token_to_id(MASK), tokenizer.token_to_id(END_OF_TEXT)
    assert b.c_ids.shape == (CONFIG.batch, CONFIG.length)
    assert b.x_ids.shape == (CONFIG.batch, CONFIG.noisy)
    assert not (b.c_ids == mask).any()
    assert ((b.x_weight > 0) == (b.x_ids == mask)).all()
    for s in range(CONFIG.batch):
        for r in range(CONFIG.noisy):
            # the clean row that the noisy row stands for; past the document's end only <|endoftext|> is to come
            at = int(b.x_start[s, r] + b.x_off[s, r])
            inside = at < CONFIG.length and b.c_doc[s, at] == b.x_doc[s, r]
            assert b.x_target[s, r] == (b.c_ids[s, at] if inside else after)
            assert b.x_ids[s, r] in (mask, b.x_target[s, r])
            if inside:
                assert b.c_pos[s, at] == b.x_pos[s, r]
        starts = (b.x_off[s] == 0).nonzero().flatten().tolist()
        for first, end in zip(starts, [*starts[1:], CONFIG.noisy], strict=True):
            assert b.x_after[s, first] == end - first - 1
            assert 1 <= end - first <= 32
            assert len(set(b.x_block[s, first:end].tolist())) == 1
            assert (b.x_ids[s, first:end] == mask).any()
        assert len(set(b.x_block[s].tolist())) == len(starts)


def test_clean_rows_predict_the_next_token(tokenizer: Any) -> None:
    b = Packer(tokenizer, CONFIG, 1).batch(3, 0.5)
    for s in range(CONFIG.batch):
        for i in range(CONFIG.length - 1):
            if b.c_weight[s, i] > 0 and b.c_doc[s, i] == b.c_doc[s, i + 1]:
                assert b.c_target[s, i] == b.c_ids[s, i + 1]
    assert 0.2 < float((b.c_weight == 1).float().mean()) < 0.8


def test_batches_depend_on_process_and_step_only(tokenizer: Any) -> None:
    one, same = (Packer(tokenizer, CONFIG, 0).batch(5, 0.2) for _ in range(2))
    assert all((x == y).all() for x, y in zip(one, same, strict=True))
    for process, step in ((1, 5), (0, 6)):
        other = Packer(tokenizer, CONFIG, process).batch(step, 0.2)
        assert not (one.c_ids == other.c_ids).all()


def test_rate_rises_stays_and_falls_to_zero() -> None:
    c = TrainConfig(warmup_steps=10, constant_share=0.5)
    assert rate_factor(4, 0.0, c) == pytest.approx(0.5)
    assert rate_factor(500, 0.49, c) == 1
    assert rate_factor(900, 0.75, c) == pytest.approx(0.5)
    assert rate_factor(999, 1.0, c) == 0
