"""The ``surelane`` command.

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 not found, 4 the database is away, too old, or refuses the role.
"""

import sys
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import entry_points
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text
from typer import Argument, Option

from surelane import __version__
from surelane.calls import Connection
from surelane.codec import SETTING as KEYS
from surelane.trace_context import trace_id_of
from surelane_operator.audit import acting_as, this_user
from surelane_operator.changes import Changes
from surelane_operator.cli import events, feedback, queue
from surelane_operator.cli.erase import erase
from surelane_operator.cli.events import natural_key
from surelane_operator.cli.follow import logs, tail
from surelane_operator.cli.output import columns, say, show_json, show_table, watched
from surelane_operator.cli.queue import enqueue, orchestrate
from surelane_operator.cli.session import DATABASES, Database, ExitCode, Json, failed, run
from surelane_operator.cli.shards import run_each
from surelane_operator.doctor import Finding, Level, examine, verify
from surelane_operator.doctor.invariants import ROWS
from surelane_operator.doctor.server import connected, needs
from surelane_operator.moving import move
from surelane_operator.rehearsing import KIND, rehearse
from surelane_operator.shards import SETTING, known
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
app.add_typer(events.app, name="events")
app.add_typer(events.app, name="jobs", hidden=True)  # for scripts of 0.2.0
app.add_typer(feedback.app, name="feedback")
app.add_typer(queue.kinds, name="kinds")
app.add_typer(queue.limits, name="limits")
app.add_typer(queue.schedules, name="cron")
workspaces = typer.Typer(help="Move workspaces between installations.", no_args_is_help=True)
app.add_typer(workspaces, name="workspaces")
for _own in (logs, tail, enqueue, orchestrate, doctor, erase):
    app.command()(_own)
for _entry in entry_points(group="surelane.commands"):  # extensions bring some, and groups of them
    _command = _entry.load()
    if isinstance(_command, typer.Typer):
        app.add_typer(_command, name=_entry.name)
    else:
        app.command(_entry.name)(_command)

_KINDS = columns("kind", "paused", "pending", "scheduled", "running", "oldest_pending=oldest", cut={"kind"})
_WORKERS = columns(
    *("name=worker", "state", "version", "started_at=started", "seen_at=seen", "died_at=died"), cut={"name"}
)
_ACTIONS = columns(*("id", "at", "who", "via", "action", "target", "result"), cut={"who", "target", "result"})


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
        raise typer.Exit(run_each(shard))
    context.with_resource(acting_as(name or this_user(), "command"))


@app.command()
def stats(
    database: Database,
    as_json: Json = False,
    watch: Annotated[bool, Option(help="Print it again every two seconds.")] = False,
) -> None:
    """Count events by kind and state, and list the workers."""

    async def work(changes: Changes, _: Connection) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        return await changes.stats(), await changes.workers()

    def show() -> None:
        by_kind, workers = run(database, work)
        if as_json:
            show_json({"kinds": by_kind, "workers": workers})
            return
        show_table(_KINDS, by_kind, empty="no event was ever stored")
        typer.echo()
        show_table(_WORKERS, workers, empty="no worker is running", note="kinds")

    watched(show, watch=watch)


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


@app.command("rehearse")
def rehearse_faults(
    database: Database,
    staging: Annotated[str, Option(prompt="The staging database's name", help="The database's name.")],
    kind: Annotated[str, Option(help="A kind whose jobs do no harm.")] = KIND,
    as_json: Json = False,
) -> None:
    """Cut workers' connections in a staging database while jobs run, check the promises, and verify the database.

    It stores 900 jobs, and takes a minute at most for each of three scenes. It needs two workers.
    """

    async def work(changes: Changes, connection: Connection) -> list[Finding]:
        return await rehearse(changes, connection, staging, kind) + await verify(connection)

    _report(run(database, work, within=None), as_json=as_json)


@workspaces.command("move")
def move_workspace(
    database: Database,
    team: Annotated[str, Argument(help="The workspace's id, such as T012AB3CD.")],
    to: Annotated[
        str, Option(help="The other installation's libpq URI. Both URIs are for the schemas' owners.")
    ],
    as_json: Json = False,
) -> None:
    """Move a workspace's live events to another installation, with its tokens and what ended within the last hour.

    Before it, let the router answer the workspace's requests with 503. After it, let the router pass them to the other
    installation. It waits until nothing of the workspace runs. If it is interrupted, repeat it: nothing is lost. Both
    URIs are those of the schemas' owners.
    """

    async def work(_: Changes, source: Connection) -> dict[str, int]:
        async with connected(known().get(to, to)) as target:
            return await move(source, target, team, lambda waits: typer.echo(waits, err=True))

    moved = run(database, work, within=None)
    rows = ", ".join(f"{count} of {table}" for table, count in moved.items() if count)
    say(f"moved rows: {rows or 'none'}", {"moved": moved}, as_json=as_json)


@app.command("actions")
def list_actions(
    database: Database,
    target: Annotated[
        str | None, Option(help="Only actions on this, such as: event 7, kind chat, schedule daily.")
    ] = None,
    before: Annotated[int | None, Option(help="Only actions with a smaller id: the next page.")] = None,
    limit: Annotated[int, Option(min=1, max=1000, help="How many to list.")] = 50,
    as_json: Json = False,
) -> None:
    """List what operators did, newest first: who, when, what, and what came of it."""
    found = run(database, lambda changes, _: changes.audit.list_actions(limit, before=before, target=target))
    show_json(found) if as_json else show_table(_ACTIONS, found, empty="no operator has done anything yet")
