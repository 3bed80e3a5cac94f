"""`clover-run repair`: complete a model file's metadata and mend its tensors' names."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pyclover.cli import options
from pyclover.cli.inspect import show_changes
from pyclover.cli.output import Output, size
from pyclover.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyclover.files.repair import Repair


@click.command(short_help="Complete a model file's metadata, mend its tensors' names.")
@click.argument("file", metavar="FILE", type=click.Path())
@click.argument("target", metavar="OUT", type=click.Path(), required=False)  # "out" would pass for a flag in errors
@click.option(
    "--set",
    "set_metadata",
    metavar="KEY=TYPE:VALUE",
    multiple=True,
    help="Set a metadata key, as in general.name=string:Clover or clover_moe.ssm.group_count=uint32:16; a list has [] "
    "behind its type and is written as JSON. May be repeated.",
)
@click.option(
    "--map-tensor",
    "map_tensors",
    metavar="OLD=NEW",
    multiple=True,
    help="Rename a tensor. * stands for any text, in NEW for the same text; re: before OLD makes it a regular "
    "expression, with its groups as \\1 in NEW. May be repeated.",
)
@click.option(
    "--shared-count", type=click.IntRange(0, 1), metavar="0|1", default=None, help="Set clover_moe.expert_shared_count."
)
@click.option(
    "--mask-token", metavar="ID|TEXT", default=None, help="Name the mask token, by its number or as it is written."
)
@click.option(
    "--block-length", type=click.IntRange(1, 32), metavar="N", default=None, help="Rows of a diffusion block, 1 to 32."
)
@click.option(
    "--chat-template", metavar="FILE", type=click.Path(), default=None, help="Use the chat template in this file."
)
@click.option(
    "--in-place",
    is_flag=True,
    help="Change the header in FILE itself; only where it stays as long as it is, and not in a cache of downloads.",
)
@click.option("--force", "overwrite", is_flag=True, help="OUT may take the place of another file.")
@click.option("--dry-run", is_flag=True, help="Only show what would be changed.")
@options.json_option
@options.debug_option
def repair(
    file: str,
    target: str | None,
    set_metadata: Sequence[str],
    map_tensors: Sequence[str],
    mask_token: str | None,
    chat_template: str | None,
    as_json: bool,
    **arguments: Any,
) -> None:
    """Complete a model file's metadata and mend its tensors' names, so that it can do all that its weights allow.

    FILE is a GGUF file, or any shard of a split one. Without options, what the file itself tells is mended: a missing
    shared-expert count, Clover's own tensors under other names, a mask token known by its text, keys of a wrong type.
    The result is a new file: OUT, or NAME-repaired.gguf beside FILE. It appears as a whole or not at all, after its
    weights were compared with those of FILE, which stays as it is.
    """
    if arguments["in_place"] and (target is not None or arguments["overwrite"]):
        raise click.UsageError("--in-place changes FILE itself: leave out OUT and --force.")
    from pyclover.files.known_keys import read_setting
    from pyclover.files.repair import repair as run

    settings = {key: (kind, value) for key, kind, value in map(read_setting, set_metadata)}
    if len(settings) < len(set_metadata):
        raise UsageError("a key is set twice: give it once", option="set_metadata")
    output = Output("json" if as_json else "table")
    with output.progress("repairing") as progress:
        result = run(
            file,
            target,
            set_metadata=settings,
            map_tensors=_rules(map_tensors),
            mask_token=_token(mask_token),
            chat_template=None if chat_template is None else Path(chat_template),
            progress=progress,
            **arguments,
        )
    if as_json:
        output.json(result.to_dict())
    else:
        show(output, result)


def show(out: Output, result: Repair) -> None:
    """What was changed, and what the model can do now."""
    if result.put_back:
        out.warn("an earlier repair in place had been interrupted: its changes were undone first")
    if not result.changes:
        out.talk(f"{result.path}: nothing to repair, nothing written.")
        return
    show_changes(out, result.changes)
    modes = result.capabilities
    able = [
        name
        for name, mode in (
            ("plain", modes.plain), ("draft-self", modes.draft_self), ("block diffusion", modes.block_diffusion)
        )
        if mode
    ]  # fmt: skip
    done = "written" if result.written else "not written, as this is a dry run"
    where = f"{result.out}" if len(result.outs) == 1 else f"{result.out} and {len(result.outs) - 1} more"
    out.talk(f"{where} ({size(result.n_bytes)}): {done}; it can: {', '.join(able) or 'nothing'}.")
    if result.data_sha256:
        out.talk(f"The weights are those of the old file: SHA-256 {result.data_sha256}.")
    for problem in result.problems[:1]:
        out.warn(f"the model still cannot run: {problem.message}")


def _token(text: str | None) -> int | str | None:
    """A number where it is one, else the token's text."""
    return int(text) if text and text.isascii() and text.isdigit() else text


def _rules(texts: Sequence[str]) -> dict[str, str]:
    """OLD=NEW; the last = divides, for a regular expression may have one."""
    rules: dict[str, str] = {}
    for text in texts:
        old, equals, new = text.rpartition("=")
        if not equals or not old or not new:
            raise UsageError(f"'{text}' is not OLD=NEW, as in blk.*.bd_c=blk.*.ssm_bd_history_c", option="map_tensors")
        if rules.get(old, new) != new:
            raise UsageError(f"'{old}' is mapped twice: give one new name", option="map_tensors")
        rules[old] = new
    return rules
