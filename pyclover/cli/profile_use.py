"""`--profile`: settings that tune found, for what the user left at its default."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import click

from pyclover.cli import options

if TYPE_CHECKING:
    from pyclover.cli.output import Output
    from pyclover.engine.blocks import BlockParams
    from pyclover.tuning.candidate import Candidate
    from pyclover.tuning.profiles import Profile

AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])
_DRAFT = ("n_max", "steps", "block", "p_min", "adaptive", "ahead")
_LOAD = {"n_threads": "-t", "n_batch": "-b", "n_ubatch": "-ub"}

profile_option = click.option(
    "--profile", "profile", default="auto", metavar="auto|none|NAME",
    help="Settings that clover-run tune found, for options that are not given here; auto: those of this file, machine "
    "and build, where there are any. [default: auto]",
)  # fmt: skip


@dataclass
class Applied:
    """What a profile gives: values for the options of drafting and of the model, and how block passes compute.

    Attributes:
        speculation: values of the group of drafting, those that were given included.
        load: keywords of `Clover`. params: changes of the file's block parameters.
        line: what to tell the user, "" for nothing.
    """

    speculation: dict[str, Any]
    load: dict[str, Any] = field(default_factory=dict)
    params: dict[str, Any] = field(default_factory=dict)
    line: str = ""

    def block_params(self, of_file: BlockParams) -> BlockParams:
        from pyclover.tuning.profiles import params_with

        return params_with(of_file, self.params)


def found(name: str, file: str, keywords: Mapping[str, Any]) -> Profile | None:
    """The profile to use for a model's file; None for "none", and for "auto" where none holds.

    Raises:
        UsageError: there is none of that name, or it does not hold here: another file, machine, build or settings.
    """
    if name == "none":
        return None
    from pyclover.tuning import profiles

    if name == "auto" and not profiles.folder().is_dir():
        return None
    from pyclover.errors import CloverError, UsageError
    from pyclover.files.find import find_model
    from pyclover.files.gate import validate
    from pyclover.tuning.identity import key_of

    if name == "auto":
        try:
            return profiles.matching(validate(find_model(file)), keywords)
        except CloverError:  # loading the model will say it better
            return None
    profile = profiles.named(name)
    differ = profile.key.differs_from(key_of(validate(find_model(file)), keywords))
    if differ:
        raise UsageError(
            f"profile {name} was made with another {' and another '.join(differ)}: clover-run profile show {name} says "
            "more; tune again, or leave --profile out", option="profile",
        )  # fmt: skip
    return profile


def for_run(out: Output, name: str, file: str, values: Mapping[str, Any], keywords: Mapping[str, Any]) -> Applied:
    """What the profile asked for changes in a run of a command with the options of drafting; tells the user."""
    use = applied(
        found(name, file, keywords), options.SPECULATION.given(values), keywords,
        diffusion=bool(values.get("diffusion")),
    )  # fmt: skip
    if use.line:
        out.talk(use.line)
    return use


def applied(
    profile: Profile | None,
    speculation: Mapping[str, Any],
    keywords: Mapping[str, Any],
    *,
    diffusion: bool = False,
) -> Applied:
    """What a profile changes.

    Args:
        speculation: options of drafting that were given. keywords: of `Clover` that were given.
        diffusion: block diffusion was asked for.
    """
    result = Applied(dict(speculation))
    if profile is None:
        return result
    words = []
    candidate = profile.candidate
    if candidate is not None:
        drafting = draft_options(candidate) if fits(candidate, keywords) else {}
        kind = speculation.get("spec_type")
        if not speculation and not diffusion and drafting:
            result.speculation = drafting
            words.append(candidate.label)
        elif kind == "draft-self" and drafting.get("spec_type") == "draft-self":
            missing = {k: v for k, v in drafting.items() if k not in speculation}
            if missing and consistent({**missing, **speculation}):
                result.speculation = {**missing, **speculation}
                words.append(", ".join(f"{k} {v}" for k, v in missing.items()))
        elif not speculation and not diffusion and candidate.mode == "plain":
            words.append("plain decoding")
        result.load = {k: v for k, v in candidate.load.items() if k not in keywords}
        words += [f"{_LOAD[k]} {v}" for k, v in result.load.items()]
    params = dict(profile.block_params)
    if candidate is not None and candidate.expert_coreset is not None:
        params |= {"expert_coreset": candidate.expert_coreset, "expert_coreset_share": 0.0}
    drafts = diffusion or result.speculation.get("spec_type") in ("draft-self", "auto")
    if params and drafts:
        result.params = params
        words.append("block passes: " + ", ".join(f"{k}={v}" for k, v in params.items() if k != "expert_coreset_share"))
    if words:
        result.line = f"profile {profile.name}: {'; '.join(words)} (--profile none leaves it out)"
    return result


def draft_options(candidate: Candidate) -> dict[str, Any]:
    """Options of drafting that stand for a candidate; {} for plain decoding, and for what changes the text."""
    if candidate.mode == "auto":
        return {"spec_type": "auto"}
    if candidate.mode != "draft-self" or candidate.relaxed:
        return {}
    values = {name: getattr(candidate, name) for name in _DRAFT}
    return {"spec_type": "draft-self"} | {k: v for k, v in values.items() if v is not None}


def fits(candidate: Candidate, keywords: Mapping[str, Any]) -> bool:
    """Whether the rows of its drafts go into one pass with the sizes that were given."""
    n_rows = candidate.block or candidate.n_max + 1
    return all(keywords.get(name, n_rows) >= n_rows for name in ("n_batch", "n_ubatch", "n_ctx"))


def consistent(values: Mapping[str, Any]) -> bool:
    """Whether options of drafting, some given and some from a profile, go together."""
    n_max = values.get("n_max", 3)
    return bool((values.get("steps") or 1) <= n_max < (values.get("block") or n_max + 1))
