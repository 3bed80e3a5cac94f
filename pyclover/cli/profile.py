"""`clover-run profile`: what tuning found and keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from pyclover.cli import options
from pyclover.cli.output import Output

if TYPE_CHECKING:
    from pyclover.tuning.profiles import Profile


@click.command(cls=options.SectionCommand, short_help="List, show and delete what tune has found.")
@click.argument("action", type=click.Choice(["list", "show", "clear"]), metavar="list|show|clear")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@options.model_option
@click.option("--all", "everything", is_flag=True, help="With clear: delete all profiles.")
@options.json_option
@options.debug_option
def profile(action: str, names: tuple[str, ...], model: str | None, everything: bool, as_json: bool) -> None:
    """List, show and delete what tune has found.

    list: all profiles. show: one or more with all they hold, and whether they hold for their file, this machine and
    this build; with -m instead of a name, that of a model. clear: delete those named, or with --all every one.
    """
    out = Output("json" if as_json else "table")
    if everything and (action != "clear" or names):
        raise click.UsageError("--all belongs to clear, without names.")
    if model is not None and (action != "show" or names):
        raise click.UsageError("-m belongs to show, without names.")
    if action == "list":
        if names:
            raise click.UsageError("list takes no names: show does.")
        show_list(out)
    elif action == "show":
        show_some(out, names, model)
    else:
        clear(out, names, everything)


def show_list(out: Output) -> None:
    from pyclover.tuning import profiles

    found = profiles.all_profiles()
    for path in profiles.unreadable():
        out.warn(f"{path} is no profile of this version")
    if out.mode == "json":
        out.json([p.to_dict() for p in found])
        return
    rows = [(p.name, told(p), p.created[:16].replace("T", " "), p.model) for p in found]
    if rows:
        out.table(("profile", "recommended", "made (UTC)", "file"), rows)
    else:
        out.talk(f"no profiles in {profiles.folder()}: clover-run tune makes one")


def told(profile: Profile) -> str:
    """What a profile recommends, in a few words."""
    words = []
    if profile.candidate is not None:
        ratio: Any = profile.figures.get("ratio") or {}
        total = f", {ratio['total']:.2f} times plain" if isinstance(ratio.get("total"), float) else ""
        words.append(profile.candidate.label + total)
    if profile.calibration:
        changed = ", ".join(f"{k}={v}" for k, v in profile.block_params.items() if k != "expert_coreset_share")
        words.append(f"calibrated ({changed or 'as the file says'})")
    return "; ".join(words) or "-"


def show_some(out: Output, names: tuple[str, ...], model: str | None) -> None:
    from pyclover.tuning import profiles

    found = [profiles.named(name) for name in names] if names else profiles.all_profiles()
    if model is not None:
        found = [p for p in found if of_model(p, model)]
    if not found:
        raise click.ClickException("there is no such profile: clover-run tune makes one.")
    if out.mode == "json":
        out.json([{**p.to_dict(), "holds": not why(p), "why_not": why(p)} for p in found])
        return
    for p in found:
        out.heading(p.name)
        out.pairs({
            "file": p.model, "made (UTC)": p.created[:16].replace("T", " "), "recommended": told(p),
            "settings": ", ".join(f"{k}={v}" for k, v in p.key.settings) or "defaults",
            "processor": p.machine.get("processor", ""), "build": p.build.get("llama_cpp_commit", ""),
            "holds": "yes" if not why(p) else f"no: {why(p)}",
        })  # fmt: skip
        for reason in p.figures.get("reasons", ()):
            out.write(f"  {reason}\n")
        for parameter, verdict in p.calibration.get("verdicts", {}).items():
            out.write(f"  {parameter}: {verdict}\n")
        out.write("\n")


def of_model(profile: Profile, model: str) -> bool:
    from pathlib import Path

    from pyclover.source import model_file

    return Path(profile.model) == Path(model_file(model).path).absolute()


def why(profile: Profile) -> str:
    """Why a profile does not hold here and now, "" when it does."""
    from pyclover.errors import CloverError
    from pyclover.files.gate import validate
    from pyclover.tuning.identity import key_of

    try:
        key = key_of(validate(profile.model), dict(profile.key.settings))
    except CloverError as error:
        return f"its file cannot be used: {error}"
    words = {"file": "the file is another one", "machine": "made on another machine", "build": "made by another build"}
    return "; ".join(words[part] for part in profile.key.differs_from(key) if part in words)


def clear(out: Output, names: tuple[str, ...], everything: bool) -> None:
    from pyclover.tuning import profiles

    if not names and not everything:
        raise click.UsageError("clear: name profiles, or give --all.")
    wanted = names or tuple(p.name for p in profiles.all_profiles())
    for name in wanted:
        profiles.remove(name)
    if out.mode == "json":
        out.json(list(wanted))
    else:
        out.talk(f"deleted {len(wanted)} profile{'s' * (len(wanted) != 1)}")
