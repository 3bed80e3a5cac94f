"""How the server computes block passes: changes of the file's parameters, as llama.cpp takes changes of metadata."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from typing import TYPE_CHECKING, Any

from pyclover import arguments
from pyclover.engine.blocks import BlockParams, check_block_params
from pyclover.errors import UsageError, shortened

if TYPE_CHECKING:
    from pyclover.plan.geometry import Geometry

MAX_BLOCK = 32
# where the key is called otherwise than the parameter
_KEYS = {"scale_activation": "logit_scale_activation"}


def checked(params: BlockParams | Mapping[str, Any] | None, model: Geometry) -> dict[str, Any]:
    """The parameters that are to be others than the file's, by name.

    llama.cpp passes over a value that it cannot use, with a warning, and begins without block passes: so all is looked
    at here.

    Args:
        params: all of them, some by name, or None for the file's own.

    Raises:
        UsageError: a name that there is not, or a value that the model cannot compute with.
    """
    if isinstance(params, BlockParams):
        changes = asdict(params)
    elif params is None or isinstance(params, Mapping):
        changes = dict(params or {})
    else:
        raise UsageError(
            f"block_params is {shortened(params)}: it must be BlockParams(...), or some of its values by name",
            option="block_params",
        )
    names = [f.name for f in fields(BlockParams)]
    for name in changes:
        if name not in names:
            raise UsageError(
                f"block_params has no {shortened(name)}: there are {', '.join(names)}", option="block_params"
            )
    if not changes:
        return {}
    found = replace(BlockParams(), **changes)
    check_block_params(found)
    arguments.integer("block_length", found.block_length, 1, MAX_BLOCK)
    if found.expert_coreset and not model.n_expert_used <= found.expert_coreset <= model.n_expert:
        raise UsageError(
            f"expert_coreset is {found.expert_coreset}: it must be 0, or from the {model.n_expert_used} experts that a "
            f"token uses to the {model.n_expert} there are", option="expert_coreset",
        )  # fmt: skip
    return changes


def override_arguments(changes: Mapping[str, Any]) -> list[str]:
    """As arguments of `llama serve`; of a type that llama.cpp does not expect for a key it would say so, and go on."""
    if not changes:
        return []
    written = (f"clover_moe.diffusion.{_KEYS.get(name, name)}={_value(name, v)}" for name, v in changes.items())
    return ["--override-kv", ",".join(written)]


def _value(name: str, value: Any) -> str:
    if name == "shift_logits":
        return f"bool:{'true' if value else 'false'}"
    if name == "expert_coreset_share":
        return f"float:{float(value)!r}"
    return f"str:{value}" if isinstance(value, str) else f"int:{value}"
