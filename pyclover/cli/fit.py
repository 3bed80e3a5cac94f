"""`clover-run fit`: settings with which a model fits this machine, and the memory that they take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from pyclover.cli import options
from pyclover.cli.generate import EMBEDDED_MODEL
from pyclover.cli.output import Output, size
from pyclover.cli.values import count_or_all

if TYPE_CHECKING:
    from pyclover.engine.results import MemoryUse
    from pyclover.plan.result import Plan

UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def n_bytes(ctx: click.Context, param: click.Parameter, text: str | None) -> int | None:
    """ "2G", "512M", "1GiB" or plain bytes."""
    if text is None:
        return None
    word = text.strip().lower().removesuffix("b").removesuffix("i")
    unit = word[-1:] if word[-1:].isalpha() else ""
    try:
        value = float(word.removesuffix(unit)) * UNITS[unit]
    except (KeyError, ValueError):
        raise click.BadParameter(f"{text!r} is no size: give bytes, or as 512M, 2G.", ctx, param) from None
    if not 0 <= value < 2**63:
        raise click.BadParameter(f"{text!r} is out of range.", ctx, param)
    return int(value)


FIT = options.Options("Settings (what is given is kept, what is not is chosen)")
_count = click.IntRange(min=1)
FIT.add("-c", "--ctx-size", name="n_ctx", metavar="N", type=click.IntRange(min=0),
        help="Tokens that prompt and answer may have together; 0 = all that the model was trained for.")  # fmt: skip
FIT.add("-b", "--batch-size", name="n_batch", metavar="N", type=_count, help="Prompt tokens handed over at once.")
FIT.add("-ub", "--ubatch-size", name="n_ubatch", metavar="N", type=_count, help="Prompt tokens computed at once.")
FIT.add("-ngl", "--gpu-layers", "--n-gpu-layers", name="n_gpu_layers", metavar="N|all|auto", type=count_or_all,
        help="Layers kept on the GPU; all: every layer.")  # fmt: skip
FIT.add("-ncmoe", "--n-cpu-moe", name="n_cpu_moe", metavar="N", type=click.IntRange(min=-1),
        help="Layers, from the first, whose routed experts stay in main memory.")  # fmt: skip
FIT.add("-ctk", "--cache-type-k", name="cache_type_k", metavar="TYPE",
        type=click.Choice(options.CACHE_TYPES, case_sensitive=False),
        help="Type of the keys in the KV cache.")  # fmt: skip
FIT.add("-ctv", "--cache-type-v", name="cache_type_v", metavar="TYPE",
        type=click.Choice(options.CACHE_TYPES, case_sensitive=False),
        help="Type of the values in the KV cache.")  # fmt: skip
FIT.add("--spec-draft-n-max", "--draft-max", "--draft", name="n_max", metavar="N", type=click.IntRange(0, 31),
        help="Drafted tokens that can be taken back at no cost, 0 to 31.")  # fmt: skip
FIT.add("--reserve", name="reserve_bytes", metavar="SIZE", callback=n_bytes,
        help="What stays free of every memory, as 2G. [default: 5 % of the machine's, 10 % of a card's, at least "
        "512M]")  # fmt: skip
FIT.add("--mmap/--no-mmap", name="mmap", help="Map the file into memory, or read it. [default: --mmap]")


@click.command(cls=options.SectionCommand, short_help="Find settings with which a model fits this machine.")
@click.option(
    "-m", "--model", "models", multiple=True, metavar="FILE",
    help="GGUF file, any shard of a split one. Given several times: the best of them that fits. [default: tiny]",
)  # fmt: skip
@click.option("--prove", is_flag=True, help="Load the model with the settings and show what was measured.")
@options.json_option
@options.debug_option
@FIT
def fit(models: tuple[str, ...], prove: bool, as_json: bool, **values: Any) -> None:
    """Find settings with which a model fits this machine.

    Nothing is loaded, unless --prove asks for it. Exit code 1 if nothing fits; the error then names what would.
    """
    from pyclover.plan.fit import fit as plan_for

    out = Output("json" if as_json else "table")
    names = models or (EMBEDDED_MODEL,)
    given = FIT.given(values)
    plan = plan_for(names[0] if len(names) == 1 else list(names), **given)
    measured = measure(plan, given.get("mmap", True)) if prove else None
    if as_json:
        out.json({**plan.to_dict(), "measured": measured})
    else:
        show(out, plan, measured)
    for warning in plan.warnings:
        out.warn(warning)


def measure(plan: Plan, mmap: bool) -> tuple[MemoryUse, ...]:
    """What a load with the plan's settings allocates."""
    from pyclover.clover import Clover

    with Clover(plan.model, mmap=mmap, **plan.options()) as m:
        return m.memory()


def show(out: Output, plan: Plan, measured: tuple[MemoryUse, ...] | None) -> None:
    """The plan as tables."""
    out.heading(f"Settings for {plan.model}")
    out.table(
        ("setting", "value", "why"), [(c.name, "-" if c.value is None else str(c.value), c.why) for c in plan.choices]
    )
    out.write("\n")
    out.heading("Memory (estimated)")
    devices = list(dict.fromkeys(row.device for row in plan.estimate.rows))
    kinds = list(dict.fromkeys(row.kind for row in plan.estimate.rows))
    rows = [
        [kind, *(size(n) if (n := plan.estimate.of(kind=kind, device=d)) else "-" for d in devices)] for kind in kinds
    ]
    rows.append(["together", *(size(plan.estimate.of(device=d)) for d in devices)])
    out.table(("kind", *devices), rows, right=devices)
    out.write("\n")
    out.heading("Room")
    out.table(
        ("memory", "needed", "free", "in reserve"),
        [(p.name, size(p.needed_bytes), size(p.free_bytes), size(p.reserve_bytes)) for p in plan.pools],
        right=("needed", "free", "in reserve"),
    )
    if measured is not None:
        out.write("\n")
        out.heading("Estimated and measured (what llama.cpp counts)")
        out.table(("kind", "estimated", "measured", "difference"), compared(plan, measured),
                  right=("estimated", "measured", "difference"))  # fmt: skip


def compared(plan: Plan, measured: tuple[MemoryUse, ...]) -> list[tuple[str, str, str, str]]:
    """One line a kind that llama.cpp counts, and one for all of them."""
    rows = []
    expected = plan.estimate.measurable()
    found = {kind: sum(use.bytes for use in measured if use.kind == kind) for kind in expected}
    for kind, a, b in [*((k, expected[k], found[k]) for k in expected),
                       ("together", sum(expected.values()), sum(found.values()))]:  # fmt: skip
        rows.append((kind, size(a), size(b), f"{100 * (a - b) / b:+.1f} %" if b else "-"))
    return rows
