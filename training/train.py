"""Trains the model: `python -m training.train --out build/tiny --minutes 75`. Started again, it goes on where it was.

Two processes with one thread each work on their own batches; gradients are averaged. The clock counts steps only, not
compilation, evaluation or a suspended machine, and is averaged over the processes too, so that both see the same rates.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import signal
import socket
import sys
import time
from dataclasses import replace
from pathlib import Path
from random import Random

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

from training import checkpoint
from training.config import ModelConfig, TrainConfig, dump, write_json
from training.data.mix import training_document
from training.layers import Clover
from training.optim import optimizers, set_rates
from training.packing import Packer
from training.step import Passes, losses
from training.tokenizer import MASK, load_tokenizer, token_id, train_tokenizer

_LOG_STEPS = 20
_SAVE_S = 180.0
_STALL_S = 20.0  # a step that took longer counts as this long
_TOKENIZER_DOCUMENTS = 20_000
# Words that are to be spelled shall not become tokens of their own: the fewer pieces, the fewer spellings to learn.
_NOT_FOR_TOKENIZER = ("spell", "reverse", "letters", "occur", "repeat", "count", "raw")


def make_tokenizer(path: Path, seed: int, n_vocab: int) -> None:
    rng = Random(f"{seed}/tokenizer")
    drawn = (training_document(rng, copy_heavy=False) for _ in range(_TOKENIZER_DOCUMENTS))
    few: dict[str, int] = {}
    texts = []
    for d in drawn:
        few[d.kind] = few.get(d.kind, 0) + 1
        if d.kind not in _NOT_FOR_TOKENIZER or few[d.kind] <= 100:
            texts.append(d.prompt + d.answer)
    train_tokenizer(texts, n_vocab).save(str(path))


def rate_factor(step: int, progress: float, c: TrainConfig) -> float:
    fall = 1.0 if progress < c.constant_share else max(0.0, (1 - progress) / (1 - c.constant_share))
    return min(1.0, (step + 1) / c.warmup_steps) * fall


class Run:
    """One process of a training run."""

    def __init__(self, rank: int, out: Path, c: TrainConfig, minutes: float, steps: int | None) -> None:
        self.rank, self.out, self.c = rank, out, c
        self.budget_s, self.budget_steps = minutes * 60, steps
        self.step, self.elapsed_s = 0, 0.0
        self.last_step_s = 0.0  # not in elapsed_s yet
        self.asked, self.stop = False, False  # a signal came here; a process was asked, all know it
        tokenizer = load_tokenizer(out / "tokenizer.json")
        torch.manual_seed(c.seed)
        self.model = Clover(ModelConfig(mask_token=token_id(tokenizer, MASK)))
        self.params = list(self.model.parameters())
        self.opts = optimizers(self.model, c)
        self.packer = Packer(tokenizer, c, rank)
        self.flat = torch.zeros(sum(p.numel() for p in self.params) + 5)
        saved = checkpoint.load(out)
        if saved:
            self.step, self.elapsed_s = saved["step"], saved["elapsed_s"]
            self.model.load_state_dict(saved["model"])
            for opt, state in zip(self.opts, saved["optimizers"], strict=True):
                opt.load_state_dict(state)
        self.say(
            f"{sum(p.numel() for p in self.params):,} parameters, step {self.step}, {self.elapsed_s / 60:.1f} min done"
        )
        self.passes = self._passes()

    def say(self, text: str) -> None:
        if self.rank == 0:
            print(text, flush=True)

    def progress(self) -> float:
        done = self.step / self.budget_steps if self.budget_steps else self.elapsed_s / self.budget_s
        return min(done, 1.0)

    def _passes(self) -> Passes:
        if not self.c.compile:
            return Passes()
        self.say("compiling (a minute or two the first time, seconds later) ...")
        passes = Passes(compiled=True)
        for turn in range(self.c.processes):  # one after the other: the later ones find the result in the cache
            if turn == self.rank:
                began = time.monotonic()
                try:
                    sum(losses(self.model, self.packer.batch(0, 0.0), passes)).backward()  # type: ignore[union-attr]
                except Exception as e:
                    print(f"process {self.rank}: not compiled, training will be slow: {e}", file=sys.stderr, flush=True)
                    passes = Passes()
                for p in self.params:
                    p.grad = None
                print(f"process {self.rank}: compiled in {time.monotonic() - began:.0f} s", flush=True)
            if self.c.processes > 1:
                dist.barrier()
        return passes

    def _one_step(self) -> tuple[float, ...]:
        """-> causal CE, block CE, balance, all averaged over the processes, and the norm of the gradient.

        Whatever decides when to stop comes out of the sum over the processes, so that all stop at the same step.
        """
        c = self.c
        progress = self.progress()
        set_rates(self.opts, c, rate_factor(self.step, progress, c))
        causal, block, balance = losses(self.model, self.packer.batch(self.step, progress), self.passes)
        (causal + c.block_weight * block + c.balance_weight * balance).backward()
        extra = torch.tensor(
            [causal.item(), block.item(), balance.item(), self.elapsed_s + self.last_step_s, float(self.asked)]
        )
        flat = self.flat
        torch.cat([*(p.grad.view(-1) for p in self.params if p.grad is not None), extra], out=flat)
        if c.processes > 1:
            dist.all_reduce(flat)
            flat /= c.processes
        values = flat[-5:].tolist()
        self.elapsed_s, self.stop = values[3], values[4] > 0
        norm = float(flat[:-5].norm())
        if norm == norm:  # a gradient that is not a number is left out
            flat[:-5] *= min(1.0, c.clip / (norm + 1e-6))
            at = 0
            for p in self.params:
                p.grad = flat[at : at + p.numel()].view_as(p)
                at += p.numel()
            for opt in self.opts:
                opt.step()
        for p in self.params:
            p.grad = None
        return values[0], values[1], values[2], norm

    def save(self) -> None:
        if self.rank == 0:
            checkpoint.save(self.out, self.model, self.opts, self.step, self.elapsed_s)

    def train(self) -> None:
        sums, n, since = [0.0] * 4, 0, time.monotonic()
        saved_at = time.monotonic()
        while self.progress() < 1 and not self.stop:
            began = time.monotonic()
            values = self._one_step()
            self.step += 1
            self.last_step_s = min(time.monotonic() - began, _STALL_S)
            sums = [a + b for a, b in zip(sums, values, strict=True)]
            n += 1
            if self.step % _LOG_STEPS == 0:
                self._log([a / n for a in sums], (time.monotonic() - since) / n)
                sums, n, since = [0.0] * 4, 0, time.monotonic()
            if time.monotonic() - saved_at > _SAVE_S:
                self.save()
                saved_at = time.monotonic()
        self.save()
        self.say("finished" if self.progress() >= 1 else "stopped; start it again to go on")

    def _log(self, means: list[float], step_s: float) -> None:
        if self.rank:
            return
        c, progress = self.c, self.progress()
        entry = {
            "step": self.step, "elapsed_s": round(self.elapsed_s, 1), "progress": round(progress, 4),
            "causal_ce": round(means[0], 4), "block_ce": round(means[1], 4), "balance": round(means[2], 4),
            "grad_norm": round(means[3], 3), "rate": round(rate_factor(self.step, progress, c), 4),
            "step_s": round(step_s, 3), "sequences": self.step * c.batch * c.processes,
        }  # fmt: skip
        with (self.out / "log.jsonl").open("a", encoding="utf-8") as f:
            f.write(json.dumps(entry) + "\n")
        left = self.elapsed_s * (1 / max(progress, 1e-6) - 1)
        self.say(
            f"step {self.step:5d}  {progress:6.1%}  causal {means[0]:.3f}  block {means[1]:.3f}  "
            f"{step_s:.2f} s/step  {left / 60:.0f} min left"
        )


def worker(rank: int, port: int, out: str, c: TrainConfig, minutes: float, steps: int | None) -> None:
    torch.set_num_threads(1)
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(Path(out).resolve() / "compiled"))
    if c.processes > 1:
        dist.init_process_group(
            "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=c.processes,
            timeout=datetime.timedelta(minutes=60),
        )  # fmt: skip
    run = Run(rank, Path(out), c, minutes, steps)

    def ask_to_stop(*_: object) -> None:
        run.asked = True

    signal.signal(signal.SIGINT, ask_to_stop)
    signal.signal(signal.SIGTERM, ask_to_stop)
    run.train()
    if c.processes > 1:
        dist.barrier()
        dist.destroy_process_group()


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the run; an unfinished run in it is resumed")
    parser.add_argument("--minutes", type=float, default=75, help="training time, compilation aside")
    parser.add_argument(
        "--steps", type=int, help="fixed number of steps instead: the same result however fast the machine"
    )
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seed", type=int, default=TrainConfig.seed)
    parser.add_argument("--no-compile", action="store_true")
    a = parser.parse_args(argv)
    c = replace(TrainConfig(), processes=a.processes, seed=a.seed, compile=not a.no_compile)
    a.out.mkdir(parents=True, exist_ok=True)
    if not (a.out / "tokenizer.json").is_file():
        make_tokenizer(a.out / "tokenizer.json", c.seed, ModelConfig.n_vocab)
    write_json(a.out / "train_config.json", {**dump(c), "minutes": a.minutes, "steps": a.steps})
    arguments = (free_port(), str(a.out), c, a.minutes, a.steps)
    if c.processes == 1:
        worker(0, *arguments)
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the workers save and end by themselves
    context = spawn(worker, args=arguments, nprocs=c.processes, join=False)
    signal.signal(signal.SIGTERM, lambda *_: [p.terminate() for p in context.processes])
    while not context.join():
        pass


if __name__ == "__main__":
    main()
