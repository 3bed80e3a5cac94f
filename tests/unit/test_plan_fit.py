"""Plans for made-up machines: what is chosen, in which order it is given up, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_machines import FILES, GB10, MACHINES, NEON, card, host
from support import ORACLE

import pyclover
from pyclover import source
from pyclover.errors import DoesNotFitError, OutOfMemoryError, UsageError
from pyclover.hub.auto import Auto
from pyclover.hub.client import Hub
from pyclover.hub.listing import HubFile, Listing
from pyclover.hub.store import Store
from pyclover.plan.fit import fit, plan
from pyclover.plan.machine import GIB, MIB, Device, Machine
from pyclover.plan.quants import choose_quant, clover_35b
from pyclover.plan.result import Plan
from pyclover.plan.room import short
from pyclover.plan.search import Wishes

Q4_0 = clover_35b("Q4_0.gguf", FILES["Q4_0"])
TINY = ORACLE / "expected_preview" / "tiny_a_preview.gguf"


def made(machine: Machine, geometry: Any = Q4_0, **wishes: Any) -> Plan:
    return plan("Q4_0.gguf", geometry, Wishes(**wishes), machine)


def why(found: Plan, name: str) -> str:
    return next(c.why for c in found.choices if c.name == name)


TOO_SMALL = ("Mac, 16 GB unified", "container with 8 GB")  # the smallest file has 11.7 GiB


@pytest.mark.parametrize("name", [name for name in MACHINES if name not in TOO_SMALL])
def test_a_plan_never_needs_more_than_there_is(name: str) -> None:
    found = choose_quant(FILES, MACHINES[name])
    for pool in found.pools:
        assert pool.free_bytes is not None
        assert pool.needed_bytes + pool.reserve_bytes <= pool.free_bytes
    assert sum(p.needed_bytes for p in found.pools) == found.estimate.total_bytes


@pytest.mark.parametrize("name", TOO_SMALL)
def test_what_cannot_fit_is_refused_with_its_numbers(name: str) -> None:
    with pytest.raises(DoesNotFitError, match=r"needs 12\.\d\d GiB") as caught:
        choose_quant(FILES, MACHINES[name])
    assert caught.value.needed_bytes > FILES["APEX-I-NanoPlus"]
    assert caught.value.free_bytes == MACHINES[name].host_free_bytes
    assert caught.value.nearest is None


def test_gb10_counts_the_machines_memory() -> None:
    # its own tool says "not available", and after a download the page cache fills what is free
    found = choose_quant(FILES, MACHINES["GB10, 128 GB unified"])
    assert found.model == "Q8_0"
    assert found.all_on_gpu
    assert found.settings.n_ctx == 131_072
    assert [p.name for p in found.pools] == ["memory"]
    # 35.26 GiB of weights, 2.5 GiB of cache
    assert found.pools[0].needed_bytes > 37.7 * GIB


def test_a_small_card_keeps_all_layers_and_gives_experts_away() -> None:
    found = choose_quant(FILES, MACHINES["RTX 4070 Laptop 8 GB, 32 GB"])
    assert found.model == "Q4_K_M"
    assert found.settings.n_gpu_layers == 41
    assert 0 < found.settings.n_cpu_moe < 40
    fewer = replace(found.settings, n_cpu_moe=found.settings.n_cpu_moe - 1)
    from pyclover.plan.estimate import Estimator
    from pyclover.plan.search import Search

    geometry = clover_35b("Q4_K_M", FILES["Q4_K_M"])
    search = Search(Estimator(geometry, found.machine), reserve_bytes=None)
    assert not search.try_settings(fewer).fits


def test_a_smaller_file_that_fits_the_card_beats_a_larger_one_that_does_not() -> None:
    found = choose_quant(FILES, MACHINES["RTX 4090 24 GB, 64 GB"])
    assert (found.model, found.all_on_gpu) == ("Q4_0", True)
    assert "largest" in why(found, "file")


def test_two_cards_together() -> None:
    found = choose_quant(FILES, MACHINES["RTX 4080 16 GB and RTX 3060 12 GB, 64 GB"])
    assert (found.model, found.all_on_gpu) == ("Q4_K_M", True)
    assert all(found.estimate.of(kind="weights", device=d) > 0 for d in ("CUDA0", "CUDA1"))


def test_the_limit_of_a_group_is_named() -> None:
    with pytest.raises(DoesNotFitError, match="control group") as caught:
        choose_quant(FILES, MACHINES["container with 8 GB"])
    assert caught.value.device == "memory"
    assert isinstance(caught.value, OutOfMemoryError)
    assert "file of at most" in str(caught.value)


def test_metal_may_not_have_all_of_a_macs_memory() -> None:
    mac = MACHINES["Mac, 16 GB unified"]
    roomy = replace(mac, host_total_bytes=64 * GIB, host_free_bytes=60 * GIB)
    with pytest.raises(DoesNotFitError) as caught:
        plan("x.gguf", clover_35b("x", 12_560_000_000), Wishes(n_gpu_layers=-1, n_cpu_moe=0), roomy)
    assert caught.value.device == "Metal"


def test_the_default_context_of_a_processor() -> None:
    found = made(MACHINES["no GPU, 32 GB"])
    assert found.settings.n_ctx == 8192
    assert found.settings.n_gpu_layers == 0
    assert (found.settings.cache_type_k, found.settings.n_max, found.settings.n_ubatch) == ("f16", 15, 512)


def tight(**wishes: Any) -> list[tuple[Any, ...]]:
    """What the plan becomes while the machine shrinks."""
    out: list[tuple[Any, ...]] = []
    for mib in range(22_400, 18_600, -10):
        machine = Machine(host_total_bytes=24 * GIB, host_free_bytes=mib * MIB)
        try:
            s = plan("Q4_0.gguf", Q4_0, Wishes(**wishes), machine, 0).settings
        except DoesNotFitError:
            break
        entry = (s.n_ctx, s.cache_type_k, s.n_ubatch, s.n_max)
        if not out or out[-1] != entry:
            out.append(entry)
    return out


def test_states_go_before_rows_and_rows_before_the_context() -> None:
    seen = tight()
    assert seen[0] == (8192, "f16", 512, 15)
    assert {n for n, *_ in seen} == {8192, 4096, 2048, 1024}
    assert {kind for _, kind, _, _ in seen} == {"f16"}  # a context that nobody asked for shrinks instead
    first = [entry for entry in seen if entry[0] == 8192]
    wide = [n for *_, n_ubatch, n in first if n_ubatch == 512]
    assert wide == sorted(wide, reverse=True)  # fewer drafted tokens first,
    assert len(wide) > 1
    assert [n_ubatch for *_, n_ubatch, _ in first] == sorted((u for *_, u, _ in first), reverse=True)  # then fewer rows


def test_an_asked_context_stays_and_its_cache_shrinks() -> None:
    seen = tight(n_ctx=65_536)
    assert {n for n, *_ in seen} == {65_536}
    kinds = [kind for _, kind, _, _ in seen]
    assert kinds == sorted(kinds)  # f16 first, then q8_0
    assert set(kinds) == {"f16", "q8_0"}


def test_what_was_asked_for_is_kept() -> None:
    asked = {"n_ctx": 4096, "n_max": 15, "cache_type_k": "q8_0", "cache_type_v": "q4_0", "n_batch": 256, "n_ubatch": 64}
    found = made(MACHINES["no GPU, 32 GB"], **asked)
    assert {name: getattr(found.settings, name) for name in asked} == asked
    assert {why(found, name) for name in asked} == {"asked for"}


def test_the_nearest_plan() -> None:
    machine = host(20.4, 20.2)  # about 19.2 GiB to plan with
    with pytest.raises(DoesNotFitError, match="what would fit: n_ctx=") as caught:
        made(machine, n_ctx=131_072, cache_type_k="f16", cache_type_v="f16", n_max=31)
    nearest = caught.value.nearest
    assert isinstance(nearest, Plan)
    assert short(nearest.pools) == 0
    s = nearest.settings
    assert s.n_ctx < 131_072
    assert (s.n_ctx % 256, s.cache_type_k) == (0, "q8_0")
    # one step more of context would not fit
    from pyclover.plan.estimate import Estimator
    from pyclover.plan.search import Search

    search = Search(Estimator(Q4_0, machine), reserve_bytes=None)
    assert not search.run(Wishes(n_ctx=s.n_ctx + 256)).fits


def test_unknown_memory_is_said_and_not_taken_for_none() -> None:
    blind = Machine(devices=(Device(name="CUDA0"),))
    found = made(blind)
    assert found.settings.n_gpu_layers == 0
    assert "not available" in why(found, "n_gpu_layers")
    asked = made(blind, n_gpu_layers=-1)
    assert asked.settings.n_gpu_layers == 41
    assert all(pool.free_bytes is None and not pool.short_bytes for pool in asked.pools)


def test_integrated_gpus_are_used_only_without_a_card() -> None:
    both = Machine(host_total_bytes=64 * GIB, host_free_bytes=60 * GIB, cpu_features=NEON,
                   devices=(GB10, card("RTX 4090", 24_564, 24_000, 1)))  # fmt: skip
    assert [d.name for d in both.used_devices] == ["CUDA1"]


def test_options_are_those_of_clover() -> None:
    import inspect

    found = made(MACHINES["RTX 4070 Laptop 8 GB, 32 GB"])
    known = set(inspect.signature(fit).parameters) | {"n_rs_seq"}
    assert set(found.options()) <= known
    assert found.options()["n_gpu_layers"] == -1  # all
    assert found.options()["n_cpu_moe"] == found.settings.n_cpu_moe
    assert found.options()["n_rs_seq"] == 15
    words = found.arguments()
    assert words[words.index("--n-cpu-moe") + 1] == str(found.settings.n_cpu_moe)
    assert words[words.index("-ngl") + 1] == "41"


def test_a_file() -> None:
    found = pyclover.fit(TINY, probe=MACHINES["no GPU, 32 GB"])
    assert found.model == str(TINY)
    assert found.settings.n_ctx == 4096  # what it was trained for
    assert found.to_dict()["estimate"]["total_bytes"] == found.estimate.total_bytes
    assert pyclover.fit(TINY, n_ctx=0, probe=MACHINES["no GPU, 32 GB"]).settings.n_ctx == 4096
    longer = pyclover.fit(TINY, n_ctx=8192, probe=MACHINES["no GPU, 32 GB"])
    assert any("trained for 4096" in w for w in longer.warnings)


def test_several_files() -> None:
    other = ORACLE / "expected" / "tiny_b.gguf"
    found = pyclover.fit([other, TINY], probe=MACHINES["no GPU, 32 GB"])
    assert found.model == str(max(other, TINY, key=lambda p: p.stat().st_size))
    assert found.choices[0].name == "file"


def test_a_file_without_a_block_pass_needs_no_states() -> None:
    found = pyclover.fit(ORACLE / "expected" / "tiny_a.gguf", probe=MACHINES["no GPU, 32 GB"])
    assert found.settings.n_max == 0
    assert "no block pass" in why(found, "n_max")


@pytest.mark.parametrize(
    ("option", "value"),
    [("n_ctx", -1), ("n_max", 32), ("n_gpu_layers", -2), ("n_cpu_moe", -2), ("n_ubatch", 0), ("cache_type_k", "f64"),
     ("reserve_bytes", -1), ("n_batch", True), ("flash_attn", "off"), ("mmap", 2), ("rs_snapshots", None)],
)  # fmt: skip
def test_wrong_arguments(option: str, value: Any) -> None:
    with pytest.raises(UsageError) as caught:
        fit(TINY, probe=Machine(), **{option: value})
    assert caught.value.option == option


def test_a_batch_must_hold_the_states() -> None:
    with pytest.raises(UsageError, match="at least 9"):
        fit(TINY, probe=Machine(), n_max=7, n_ubatch=8)


@settings(max_examples=25, deadline=None)
@given(
    ram=st.integers(1, 200), vram=st.lists(st.integers(0, 80), max_size=3), unified=st.booleans(),
    n_ctx=st.none() | st.integers(0, 131_072), n_max=st.none() | st.integers(0, 31),
)  # fmt: skip
def test_any_machine(ram: int, vram: list[int], unified: bool, n_ctx: int | None, n_max: int | None) -> None:
    devices = [GB10] if unified else [card("", gib * 1024, gib * 1024, i) for i, gib in enumerate(vram)]
    machine = host(ram, ram, *devices)
    try:
        found = made(machine, n_ctx=n_ctx, n_max=n_max)
    except DoesNotFitError as error:
        if not isinstance(error.nearest, Plan):
            return
        found = error.nearest
    else:
        assert n_ctx is None or found.settings.n_ctx == (n_ctx or 131_072)
        assert n_max is None or found.settings.n_max == n_max
    assert short(found.pools) == 0
    assert {row.device for row in found.estimate.rows} <= {"CPU", *(d.name for d in devices)}


def test_a_small_memory_is_not_all_reserve() -> None:
    """tiny runs in a container of 512 MiB."""
    found = fit("tiny", probe=host(0.5, 0.44, limit="control group"))
    assert found.pools[0].reserve_bytes == 64 * MIB
    assert found.pools[0].needed_bytes < 0.4 * GIB


@pytest.mark.parametrize("sizes", [{"n_batch": 4}, {"n_ctx": 3}, {"n_ubatch": 2}, {"n_ctx": 2, "n_batch": 1}])
def test_states_never_outgrow_a_batch(sizes: dict[str, int]) -> None:
    """llama.cpp wants two tokens more in a batch than states."""
    s = fit("tiny", probe=host(32, 30), **sizes).settings
    assert s.n_max == 0 or s.n_max + 2 <= min(s.n_ubatch, s.n_batch, s.n_ctx)


@pytest.mark.parametrize(
    ("wishes", "option"),
    [
        ({"n_max": 31, "n_batch": 8}, "n_batch"),
        ({"n_max": 31, "n_ctx": 16}, "n_ctx"),
        ({"cache_type_v": "q8_0", "flash_attn": False}, "cache_type_v"),
    ],
)
def test_wishes_that_no_context_honours(wishes: dict[str, Any], option: str) -> None:
    with pytest.raises(UsageError) as caught:
        fit("tiny", probe=host(32, 30), **wishes)
    assert caught.value.option == option


def test_layers_for_a_gpu_that_is_not_there() -> None:
    found = fit("tiny", n_gpu_layers=-1, n_cpu_moe=2, probe=host(32, 30))
    assert (found.settings.n_gpu_layers, found.settings.n_cpu_moe, found.all_on_gpu) == (0, 0, False)
    assert any("no effect" in text for text in found.warnings)
    assert fit("tiny", n_gpu_layers=0, probe=host(32, 30)).warnings == ()


class Listings(Hub):
    """A hub that offers the published files, in one repository."""

    def list(self, repo: str, revision: str) -> Listing:
        files = tuple(HubFile(f"C-{quant}.gguf", n, "0" * 64) for quant, n in FILES.items())
        return Listing(repo, "c" * 40, files)


@pytest.mark.parametrize("name", [name for name in MACHINES if name not in TOO_SMALL])
def test_auto_means_what_the_table_says(name: str, tmp_path: Path) -> None:
    """On a machine where nothing is here yet: what a GPU holds as a whole comes first, then what fits at all."""
    judge = source.planned(MACHINES[name])
    found = Auto(Listings(endpoint="http://127.0.0.1:1"), Store(tmp_path), ("o/r",), "main", judge).choose()
    wanted = choose_quant(FILES, MACHINES[name]).model
    assert found.offer.files[0].name == f"C-{wanted}.gguf"


def test_a_probe_that_is_none() -> None:
    with pytest.raises(UsageError, match="must be a pyclover") as caught:
        fit("tiny", probe={})  # type: ignore[arg-type]
    assert caught.value.option == "probe"


@pytest.mark.parametrize("model", [b"tiny", bytearray(b"tiny")])
def test_a_path_of_bytes_is_no_list_of_files(model: Any) -> None:
    with pytest.raises(UsageError, match=f"model is of type {type(model).__name__}: it must be a path"):
        fit(model, probe=host(32, 30))


def test_a_machine_at_rest() -> None:
    """Nine tenths of the memory, 93 % of a card's; never less than is free now, and what is not known stays so."""
    card = Device(name="CUDA0", total_bytes=1000, free_bytes=10)
    busy = Machine(host_total_bytes=1000, host_free_bytes=100, devices=(card, Device(name="CUDA1")))
    rest = busy.at_rest()
    assert (rest.host_free_bytes, [d.free_bytes for d in rest.devices]) == (900, [930, None])
    idle = Machine(host_total_bytes=1000, host_free_bytes=970)
    assert idle.at_rest() == idle
    assert Machine().at_rest() == Machine()
