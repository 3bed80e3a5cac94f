#!/usr/bin/env python3
"""Quantize files with the row lengths of Clover-35B-A3B by every recipe, and hold them against what was said before.

    python benchmarks/quantize_geometry.py FOLDER [--layers 4] [--experts 16] [--vocab 4096] [--recipe Q4_K_M …]

With --layers 40 --experts 256 --vocab 248320 the model is as large as the real one (37 GB and hours). Weights are
random; importance matrices, where a recipe needs one, are too. gguf-py reads the results.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import gguf
import numpy as np
import real_geometry

import pyclover
from pyclover.tuning.recipes import builtin_names


def write_matrix(model: Path, out: Path) -> Path:
    """An importance matrix of random numbers for every weight of the layers."""
    rng = np.random.default_rng(0)
    writer = gguf.GGUFWriter(out, "")
    writer.add_string("general.type", "imatrix")
    writer.add_array("imatrix.datasets", ["random"])
    writer.add_uint32("imatrix.chunk_count", 1)
    writer.add_uint32("imatrix.chunk_size", 512)
    for t in gguf.GGUFReader(model).tensors:
        if t.name.startswith("blk.") and len(t.shape) > 1 and t.name.endswith(".weight"):
            n_matrices = int(t.shape[2]) if len(t.shape) > 2 else 1
            sums = rng.uniform(0.1, 2.0, (n_matrices, int(t.shape[0]))).astype(np.float32)
            writer.add_tensor(t.name + ".in_sum2", sums)
            writer.add_tensor(t.name + ".counts", np.full((n_matrices, 1), 64, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--experts", type=int, default=16)
    parser.add_argument("--vocab", type=int, default=4096)
    parser.add_argument("--recipe", action="append", choices=builtin_names())
    args = parser.parse_args()
    real_geometry.N_EXPERT, real_geometry.N_VOCAB = args.experts, args.vocab
    source = args.folder / "geometry-Q8_0.gguf"
    real_geometry.write(source, args.layers, "q8_0")
    matrix = write_matrix(source, args.folder / "imatrix.gguf")
    print(f"{source.stat().st_size / 2**20:.0f} MiB in Q8_0, {args.layers} layers, {args.experts} experts")
    print(f"{'recipe':22}{'said':>12}{'is':>12}{'seconds':>9}  types")
    for recipe in args.recipe or builtin_names():
        out = args.folder / f"{recipe}.gguf"
        needed = matrix if "exps-IQ" in recipe else None
        said = pyclover.quantize(source, recipe, out, imatrix=needed, dry_run=True, allow_requantize=True).files[0]
        started = time.monotonic()
        pyclover.quantize(source, recipe, out, imatrix=needed, overwrite=True, allow_requantize=True)
        seconds = time.monotonic() - started
        found = {t.name: t.tensor_type.name for t in gguf.GGUFReader(out).tensors}
        assert found == dict(said.types), recipe
        assert all(kind == "F32" for name, kind in found.items() if "ssm_bd_" in name or "right" in name)
        assert out.stat().st_size == said.predicted_bytes, recipe
        assert not said.fallbacks
        with pyclover.Clover(out, n_ctx=64, fit=False) as m:
            reply = m.generate([0, 1, 2], max_tokens=2, temperature=0, speculation=pyclover.DraftSelf(adaptive=False))
        kinds = {kind: list(found.values()).count(kind) for kind in sorted(set(found.values()))}
        print(f"{recipe:22}{said.predicted_bytes:12}{out.stat().st_size:12}{seconds:9.1f}  {kinds} {reply.tokens}")
        out.unlink()


if __name__ == "__main__":
    main()
