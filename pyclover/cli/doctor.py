"""`clover-run doctor`: is this installation sound, and how fast is it?"""

from __future__ import annotations

from typing import Any

import click

from pyclover.cli import checks, options, probe
from pyclover.cli.generate import EMBEDDED_MODEL
from pyclover.cli.output import Output

RANK = ("ok", "warn", "fail")


@click.command(short_help="Check this installation and machine.")
@click.option(
    "-m", "--model", default=EMBEDDED_MODEL, metavar="FILE", help="Model of the reference run. [default: tiny]"
)
@options.json_option
@options.debug_option
def doctor(model: str, as_json: bool) -> None:
    """Check this installation and machine.

    Looks at versions, processor, back ends, devices, memory, threads and programs, and generates for about a second.
    Exit code 1 if anything fails.
    """
    out = Output("json" if as_json else "table")
    facts: dict[str, Any] = {"cpu": probe.cpu(), "threads": probe.threads(), "memory": probe.memory()}
    info, findings = checks.check_build()
    findings.insert(0, checks.check_python())
    speeds = None
    if info is not None:
        findings.append(checks.check_cpu(facts["cpu"], info.cpu_needs))
        findings += checks.check_back_ends(info, probe.gpu_hints())
        findings.append(checks.check_programs(info))
    findings.append(checks.check_memory(facts["memory"]))
    findings.append(checks.check_threads(facts["threads"]))
    if info is not None:
        finding, speeds = checks.check_run(model)
        findings.append(finding)

    if as_json:
        out.json(
            {
                "status": max((finding.status for finding in findings), key=RANK.index),
                "findings": findings,
                "build": info,
                **facts,
                "reference_run": speeds,
            }
        )
    else:
        rows = []
        for finding in findings:
            text = f"{finding.text}: {finding.advice}" if finding.advice else finding.text
            rows.append((finding.status, finding.topic, text))
        out.table(("", "what", "found"), rows)
    n_failed = sum(finding.status == "fail" for finding in findings)
    if n_failed:
        out.talk(f"{n_failed} of {len(findings)} checks failed.")
        raise click.exceptions.Exit(1)
