"""``surelane doctor``: find problems, and say what to do."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from surelane_operator.cli.output import show_json
from surelane_operator.cli.session import EXIT_FAILED, Database, run
from surelane_operator.doctor import Finding, Level, examine

_STYLES = {
    Level.OK: "green",
    Level.UNKNOWN: "bright_black",
    Level.WARNING: "yellow",
    Level.PROBLEM: "bold red",
}


def doctor(
    database: Database,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of lines.")] = False,
) -> None:
    """Check schema, roles, notifications, clocks, vacuum, indexes, workers and backlog; it exits with 1 on a problem.

    Every service's role may run it. It reports what the role may not see as unknown.
    """
    findings = run(database, lambda _, connection: examine(database, connection))
    healthy = all(finding.level is not Level.PROBLEM for finding in findings)
    if as_json:
        show_json({"healthy": healthy, "findings": [asdict(finding) for finding in findings]})
    else:
        _show(findings)
    if not healthy:
        raise typer.Exit(EXIT_FAILED)


def _show(findings: Sequence[Finding]) -> None:
    console = Console(soft_wrap=True, highlight=False)
    for finding in findings:
        console.print(
            Text(f"{finding.level:<8}", _STYLES[finding.level]),
            f"{finding.check}: {finding.found}",
            markup=False,
        )
        if finding.advice and finding.level is not Level.OK:
            console.print(f"         -> {finding.advice}", markup=False)
