"""The ``surelane`` command.

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 not found, 4 the database is away, too old, or refuses the role.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib.metadata import entry_points
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text
from typer import Argument, Option

from surelane import __version__
from surelane.codec import SETTING as KEYS
from surelane.errors import INSTALL
from surelane.trace_context import trace_id_of
from surelane_operator.audit import acting_as, this_user
from surelane_operator.cli import events, feedback
from surelane_operator.cli.erase import erase
from surelane_operator.cli.follow import logs, tail
from surelane_operator.cli.generated import add_commands
from surelane_operator.cli.output import say, show_json
from surelane_operator.cli.queue import enqueue
from surelane_operator.cli.session import DATABASES, Database, ExitCode, Json, failed, run
from surelane_operator.doctor import Finding, Level, examine, verify
from surelane_operator.doctor.invariants import ROWS
from surelane_operator.doctor.server import needs
from surelane_operator.reads.filters import natural_key
from surelane_operator.shards import SETTING
from surelane_service.common.secret_files import SecretFileError, take_secrets

_STYLES = {
    Level.OK: "green",
    Level.UNKNOWN: "bright_black",
    Level.WARNING: "yellow",
    Level.PROBLEM: "bold red",
}


def doctor(
    database: Database,
    as_json: Json = False,
    only_needs: Annotated[
        bool, Option("--needs", help="Show all that Surelane needs of a database, and nothing else.")
    ] = False,
) -> None:
    """Check schema, roles, notifications, clocks, vacuum, indexes, workers and backlog; it exits with 1 on a problem.

    Every service's role may run it. It reports what the role may not see as unknown.
    """
    looking = (lambda _, found: needs(found)) if only_needs else (lambda _, found: examine(database, found))
    _report(run(database, looking), as_json=as_json)


def _report(findings: Sequence[Finding], *, as_json: bool) -> None:
    """Print findings. A problem ends the command with 1."""
    healthy = all(finding.level is not Level.PROBLEM for finding in findings)
    if as_json:
        show_json({"healthy": healthy, "findings": [asdict(finding) for finding in findings]})
    console = Console(soft_wrap=True, highlight=False)
    for finding in () if as_json else findings:
        console.print(
            Text(f"{finding.level:<8}", _STYLES[finding.level]),
            f"{finding.check}: {finding.found}",
            markup=False,
        )
        if finding.advice and finding.level is not Level.OK:
            console.print(f"         -> {finding.advice}", markup=False)
    if not healthy:
        raise typer.Exit(ExitCode.FAILED)


app = typer.Typer(help="Operate a Surelane queue.", no_args_is_help=True, pretty_exceptions_enable=False)
GROUPS = {
    "events": events.app,
    "feedback": feedback.app,
    "kinds": typer.Typer(help="Pause and resume kinds.", no_args_is_help=True),
    "limits": typer.Typer(help="List, change and reset the limits of kinds.", no_args_is_help=True),
    "cron": typer.Typer(help="List, set and delete named schedules.", no_args_is_help=True),
}
add_commands(app, GROUPS)
for _name, _group in GROUPS.items():
    app.add_typer(_group, name=_name)
for _own in (logs, tail, enqueue, doctor, erase):
    app.command()(_own)
_options = dict[str, Callable[[str], int]]()
for _found in entry_points(group="surelane.commands"):  # of extensions and surelane-dev
    if isinstance(_command := _found.load(), typer.Typer):
        app.add_typer(_command, name=_found.name)
    elif _found.name.startswith("--"):
        _options[_found.name] = _command
    else:
        app.command(_found.name)(_command)


@app.callback(invoke_without_command=True)
def main(
    context: typer.Context,
    name: Annotated[
        str | None,
        Option(
            "--as", envvar="SURELANE_AS", help="The name to keep changes under. Default: your user and host."
        ),
    ] = None,
    shard: Annotated[
        str | None,
        Option(help=f"Run the command for these installations of {SETTING}, such as alpha,beta, or all."),
    ] = None,
    version: Annotated[bool, Option("--version", help="Show the version and exit.")] = False,
) -> None:
    """Operate a Surelane queue."""
    if version:
        typer.echo(f"surelane {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(ExitCode.USAGE)
    try:
        take_secrets((*DATABASES, KEYS, SETTING))
    except SecretFileError as error:
        raise failed(str(error), ExitCode.USAGE) from None
    if shard is not None:
        if "--shard" not in _options:
            told = f"--shard needs the package surelane-shards: {INSTALL} surelane-shards"
            raise failed(told, ExitCode.USAGE)
        raise typer.Exit(_options["--shard"](shard))
    context.with_resource(acting_as(name or this_user(), "command"))


@app.command()
def trace(
    key: Annotated[str, Argument(help="Slack's event_id, another natural key, or the event's id.")],
    url: Annotated[
        str | None, Option(envvar="SURELANE_TRACE_URL", help="A URL with {trace_id} in it, to print a link.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Print the id of an event's trace, computed from its key alone, and a link to it."""
    trace_id = trace_id_of(natural_key(key))
    link = url.replace("{trace_id}", trace_id) if url else None
    text = "\n".join(part for part in (trace_id, link) if part)
    say(text, {"trace_id": trace_id, "url": link}, as_json=as_json)


@app.command("verify")
def verify_queue(
    database: Database,
    rows: Annotated[int, Option(min=1, help="How many rows each check looks at, at most.")] = ROWS,
    as_json: Json = False,
) -> None:
    """Check in a live database what the queue's rules exclude; it exits with 1 if it finds some of that.

    It changes nothing and locks nothing. Each check takes ten seconds at most, and looks twice before it tells.
    """

    def progress(check: str) -> None:
        if sys.stderr.isatty():
            typer.echo(f"\r\x1b[K{check}", err=True, nl=False)

    found = run(database, lambda _, connection: verify(connection, rows, progress), within=None)
    progress("")
    _report(found, as_json=as_json)
