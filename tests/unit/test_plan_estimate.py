"""Estimates: arithmetic by hand, llama.cpp's placement rules, and sizes that llama.cpp itself reported."""

from __future__ import annotations

import pytest
from plan_machines import AVX2, NEON, card, host
from support import ORACLE

from pyclover.files.gate import validate
from pyclover.plan.estimate import estimate
from pyclover.plan.geometry import OUTPUT, Weight, geometry_of
from pyclover.plan.machine import GIB, HOST, MIB, Machine
from pyclover.plan.place import mapped_span, place, repacks, split_points
from pyclover.plan.quants import clover_35b
from pyclover.plan.settings import Settings

CPU = host(31.2, 28.0)
FULL = clover_35b("Q4_0", int(18.24 * GIB), type_name="Q4_0")


def test_kv_cache_by_hand() -> None:
    # 10 full layers, 2 heads of 256, keys and values, 2 bytes: 20,480 bytes a token
    assert estimate(FULL, Settings(n_ctx=8192), CPU).of(kind="KV cache") == 8192 * 20_480
    # q8_0: 34 bytes for 32 numbers
    small = Settings(n_ctx=8192, cache_type_k="q8_0", cache_type_v="f16")
    assert estimate(FULL, small, CPU).of(kind="KV cache") == 8192 * 10 * (512 * 34 // 32 + 512 * 2)


def test_cells_come_in_steps_of_256() -> None:
    assert estimate(FULL, Settings(n_ctx=300), CPU).of(kind="KV cache") == 512 * 20_480


def test_recurrent_states_by_hand() -> None:
    # 30 layers: 128 x 4,096 of state and 3 x 8,192 of convolution, 4 bytes each; 63 MB, as published
    state = 30 * 4 * (128 * 4096 + 3 * 8192)
    assert state == 65_863_680
    found = estimate(FULL, Settings(n_ctx=4096, n_max=7), CPU)
    assert found.of(kind="recurrent state") == state
    assert found.of(kind="saved states") == 3 * state
    # the rows of 7 drafted tokens and the one before them: 8,192 inputs of the convolution, decay and beta of 32 heads
    assert found.of(kind="rollback") == 8 * 30 * 4 * (8192 + 2 * 32) < 0.05 * 7 * state
    assert estimate(FULL, Settings(n_ctx=4096), CPU).of(kind="rollback") == 0
    snapshots = estimate(FULL, Settings(n_ctx=4096, n_max=7, rs_snapshots=True), CPU)
    assert snapshots.of(kind="rollback") == 7 * state


def test_rows_of_logits_stay_below_64_mib() -> None:
    # 67 rows of 248,320 numbers are the most that fit into 64 MiB
    assert estimate(FULL, Settings(n_ctx=4096), CPU).of(kind="output rows") == 67 * 248_320 * 4
    assert estimate(FULL, Settings(n_ctx=4096, n_batch=1), CPU).of(kind="output rows") == 248_320 * 4


# What llama.cpp allocated for compute, MiB, on a file with Clover's sizes and 4 layers (real_geometry.py), CPU only.
MEASURED = [
    ({"n_ctx": 4096}, 104.325),
    ({"n_ctx": 8192}, 108.075),
    ({"n_ctx": 32768}, 132.075),
    ({"n_ctx": 131072}, 228.075),
    ({"n_ctx": 131072, "cache_type_k": "q8_0", "cache_type_v": "q8_0"}, 228.340),
    ({"n_ctx": 4096, "n_max": 7}, 146.248),
    ({"n_ctx": 131072, "n_max": 15}, 278.137),
    ({"n_ctx": 4096, "n_max": 7, "rs_snapshots": True}, 158.655),
    ({"n_ctx": 4096, "n_max": 15, "rs_snapshots": True}, 182.483),
    ({"n_ctx": 131072, "n_max": 15, "rs_snapshots": True}, 310.607),
    ({"n_ctx": 4096, "n_ubatch": 64}, 93.940),
    ({"n_ctx": 4096, "n_ubatch": 128}, 97.830),
    ({"n_ctx": 4096, "n_ubatch": 256}, 97.828),
    ({"n_ctx": 4096, "n_ubatch": 1024}, 177.337),
    ({"n_ctx": 32768, "n_ubatch": 2048}, 435.110),
    ({"n_ctx": 4096, "n_batch": 1}, 6.399),
    ({"n_ctx": 131072, "n_batch": 32}, 62.125),
    ({"n_ctx": 32768, "flash_attn": False}, 1200.634),
]


@pytest.mark.parametrize(("settings", "mib"), MEASURED)
def test_compute_buffers_as_llama_cpp_reported_them(settings: dict[str, object], mib: float) -> None:
    found = estimate(FULL, Settings(**settings), CPU)  # type: ignore[arg-type]
    assert found.of(kind="compute buffers") / MIB == pytest.approx(mib, rel=0.02)


def test_weights_are_the_files_own_bytes() -> None:
    # of a mixture of experts all of them count, not the active ones
    assert sum(w.n_bytes for w in FULL.weights) == pytest.approx(18.24 * GIB, rel=1e-6)
    assert estimate(FULL, Settings(n_ctx=4096), CPU).of(kind="weights") == FULL.weights_bytes


def test_tensors_of_a_file_that_nobody_loads_do_not_count() -> None:
    file = validate(ORACLE / "expected" / "tiny_a.gguf")
    geometry = geometry_of(file)
    unknown = {t.name for t in file.facts.unknown_tensors}
    loaded = [t for t in file.headers[0].tensors if t.name not in unknown]
    assert geometry.weights_bytes == sum(t.n_bytes for t in loaded)
    assert (geometry.n_layer, sum(map(bool, geometry.k_width)), geometry.n_recurrent) == (4, 1, 3)
    assert geometry.k_width[3] == 2 * 32  # 2 KV heads of 32
    assert geometry.state_size == 16 * 16 * 4
    assert geometry.conv_size == 3 * (2 * 2 * 16 + 4 * 16)


def test_a_tied_output_takes_memory_of_its_own_only_on_another_device() -> None:
    file = validate(ORACLE / "expected" / "tiny_b.gguf")
    geometry = geometry_of(file)
    embedding = next(t.n_bytes for t in file.headers[0].tensors if t.name == "token_embd.weight")
    total = sum(t.n_bytes for t in file.headers[0].tensors)
    on_cpu = estimate(geometry, Settings(n_ctx=256), Machine())
    assert on_cpu.of(kind="weights", device=HOST) == total
    gpu = host(31.2, 28.0, card("", 24_576, 24_000))
    on_gpu = estimate(geometry, Settings(n_ctx=256, n_gpu_layers=99), gpu)
    assert on_gpu.of(kind="weights", device="CUDA0") == total
    assert on_gpu.of(kind="weights", device=HOST) == embedding


# ---- placement ------------------------------------------------------------------------------------------------------


def test_the_last_layers_go_to_the_gpu_and_the_output_is_one_of_them() -> None:
    gpu = host(31.2, 28.0, card("", 24_576, 24_000))
    found = place(FULL, Settings(n_ctx=256, n_gpu_layers=3), gpu)
    assert found.layers == (HOST,) * 38 + ("CUDA0",) * 2
    assert found.output == "CUDA0"
    none = place(FULL, Settings(n_ctx=256, n_gpu_layers=0), gpu)
    assert set(none.layers) == {HOST}
    assert none.output == HOST


def test_two_cards_share_by_their_free_memory() -> None:
    # 3 : 1 of 41; layer i goes to the second card from i / 41 >= 0.75 on, so from 31
    cards = host(62, 57, card("", 24_576, 18_000), card("", 8192, 6000, 1))
    found = place(FULL, Settings(n_ctx=256, n_gpu_layers=41), cards)
    assert found.layers.count("CUDA0") == 31
    assert found.layers.count("CUDA1") == 9
    assert found.output == "CUDA1"
    assert split_points([18_000, 6000]) == [0.75, 1.0]


def test_experts_of_the_first_layers_stay() -> None:
    gpu = host(31.2, 28.0, card("", 24_576, 24_000))
    found = estimate(FULL, Settings(n_ctx=256, n_gpu_layers=41, n_cpu_moe=10), gpu)
    experts = sum(w.n_bytes for w in FULL.weights if w.routed and w.layer < 10)
    embedding = next(w.n_bytes for w in FULL.weights if w.name == "token_embd.weight")
    assert found.of(kind="weights", device=HOST) == experts + embedding
    assert found.of(kind="weights", device="CUDA0") == FULL.weights_bytes - experts - embedding


def test_only_what_is_read_and_not_mapped_is_pinned() -> None:
    gpu = host(31.2, 28.0, card("", 24_576, 24_000))
    for mmap in (True, False):
        rows = estimate(FULL, Settings(n_ctx=256, n_gpu_layers=41, n_cpu_moe=10, mmap=mmap), gpu).rows
        pinned = {row.kind for row in rows if row.pinned}
        assert ("weights" in pinned) is not mmap
        assert {"output rows", "compute buffers"} <= pinned


def weight(kind: str, n_out: int = 64, layer: int = 0, first: int = 0, n_bytes: int = 100, file: int = 0) -> Weight:
    return Weight("w", kind, n_bytes, layer, False, True, n_out, file, first, first + n_bytes)


@pytest.mark.parametrize(
    ("kind", "features", "n_out", "copied"),
    [
        ("Q4_K", AVX2, 64, True),
        ("Q4_K", AVX2, 63, False),  # groups of 8 rows
        ("Q4_K", frozenset({"AVX2"}), 64, False),  # a build without it
        ("Q6_K", AVX2, 64, False),
        ("Q8_0", AVX2, 64, False),
        ("Q2_K", AVX2, 64, False),
        ("Q2_K", AVX2 | {"AVX512"}, 64, True),
        ("Q6_K", NEON, 64, True),
        ("Q8_0", NEON, 60, True),  # groups of 4
        ("F16", NEON, 64, False),
    ],
)
def test_what_the_processor_copies(kind: str, features: frozenset[str], n_out: int, copied: bool) -> None:
    assert repacks(Machine(cpu_features=features), weight(kind, n_out)) is copied


def test_pinned_host_memory_comes_before_copies() -> None:
    gpu = Machine(cpu_features=AVX2, devices=(card("", 8192, 8000),))
    assert not repacks(gpu, weight("Q4_K"))
    assert not repacks(Machine(cpu_features=AVX2), Weight("e", "Q4_K", 1, OUTPUT, False, False, 64, 0, 0, 1))


def test_a_mapping_spans_from_the_first_to_the_last_weight_of_each_file() -> None:
    some = [weight("F32", first=1000), weight("F32", first=5000), weight("F32", first=10, file=1)]
    assert mapped_span(some) == 4100 + 100
    assert mapped_span([]) == 0


def test_copies_leave_the_mapped_file_idle() -> None:
    found = estimate(FULL, Settings(n_ctx=256), CPU)
    # all but the embedding is Q4_0, which this processor copies; the embedding is first and alone in its mapping
    assert found.idle_mapped_bytes == 0
    assert found.measurable()["weights"] == FULL.weights_bytes
    assert found.of(kind="weights") == FULL.weights_bytes
