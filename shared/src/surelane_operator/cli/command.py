"""The ``surelane`` command.

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 not found, 4 the database is away, too old, or refuses the role.
"""

import json
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime
from importlib.metadata import entry_points
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console

from surelane import Queue, __version__
from surelane.calls import Connection
from surelane_operator.cli import cron, kinds, limits
from surelane_operator.cli.doctor import doctor
from surelane_operator.cli.enqueue import enqueue, orchestrate
from surelane_operator.cli.output import show_json, show_table
from surelane_operator.cli.session import EXIT_FAILED, EXIT_NOT_FOUND, EXIT_USAGE, Database, Json, failed, run
from surelane_operator.operations import STATUSES, Filter, Operations
from surelane_operator.timeline import story_of, trace_of
from surelane_service.telemetry.spans import trace_id_of

app = typer.Typer(help="Operate a Surelane queue.", no_args_is_help=True, pretty_exceptions_enable=False)
jobs = typer.Typer(help="Find events, and see why one waits.", no_args_is_help=True)
events = typer.Typer(help="Show one event's history; requeue and cancel events.", no_args_is_help=True)
app.add_typer(jobs, name="jobs")
app.add_typer(events, name="events")
app.add_typer(kinds.app, name="kinds")
app.add_typer(limits.app, name="limits")
app.add_typer(cron.app, name="cron")
app.command()(enqueue)
app.command()(orchestrate)
app.command()(doctor)
for _command in entry_points(group="surelane.commands"):  # surelane-dev brings some
    app.command(_command.name)(_command.load())

Key = Annotated[str, typer.Argument(help="An event's id or natural key, such as Slack's event_id.")]
Result = TypeVar("Result")

_COLUMNS = ("id", "kind", "status", "attempts", "run_at", "enqueued_at", "finished_at", "item_key", "error")


@app.callback(invoke_without_command=True)
def main(
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    """Operate a Surelane queue."""
    if version:
        typer.echo(f"surelane {__version__}")
        raise typer.Exit


@jobs.command("list")
def list_jobs(
    database: Database,
    status: Annotated[
        list[str] | None,
        typer.Option(help=f"Only events that are {', '.join(STATUSES[:-1])} or {STATUSES[-1]}; repeatable."),
    ] = None,
    kind: Annotated[list[str] | None, typer.Option(help="Only this kind; repeatable.")] = None,
    key: Annotated[
        str | None, typer.Option(help="Only events with this item key, group key or dedupe key.")
    ] = None,
    since: Annotated[
        datetime | None, typer.Option(help="Only events that were enqueued, or ended, at or after this.")
    ] = None,
    until: Annotated[
        datetime | None, typer.Option(help="Only events that were enqueued, or ended, before this.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Show this many at most.")] = 20,
    as_json: Json = False,
    watch: Annotated[bool, typer.Option(help="Print it again every two seconds.")] = False,
) -> None:
    """List events, newest first: live ones, then ended ones."""
    which = _filter(status, kind, key, since, until)

    def show() -> None:
        found = run(database, lambda operations, _: operations.list_jobs(which, limit))
        if as_json:
            show_json(found)
        else:
            show_table(_COLUMNS, found, empty="no such events")

    _show(show, watch=watch)


@jobs.command("show")
def show_job(key: Key, database: Database) -> None:
    """Show all fields of one event, as JSON."""
    show_json(_find(database, key))


@jobs.command("why")
def why(key: Key, database: Database, as_json: Json = False) -> None:
    """Say why an event is not running."""
    identity = _find(database, key)["id"]
    found = run(database, lambda operations, _: operations.why(identity))
    if found is None:
        raise failed(f"there is no event {key}", EXIT_NOT_FOUND)
    show_json({"reason": found[0], "detail": found[1]}) if as_json else typer.echo(f"{found[0]}: {found[1]}")


@events.command("history")
def history(key: Key, database: Database, as_json: Json = False) -> None:
    """Show the history of one event: when it came, each claim, failure and change, and how it ended."""
    job = _find(database, key)
    steps = [asdict(step) for step in story_of(job)]
    if as_json:
        show_json(
            {
                "id": job["id"],
                "kind": job["kind"],
                "status": job["status"],
                "trace": trace_of(job),
                "steps": steps,
            }
        )
        return
    typer.echo(f"event {job['id']}  {job['kind']}  {job['status']}  trace {trace_of(job)}")
    show_table(("at", "what", "by", "detail"), steps, empty="nothing happened")


@events.command("requeue")
def requeue(
    database: Database,
    keys: Annotated[list[str] | None, typer.Argument(help="Ids or natural keys.")] = None,
    status: Annotated[
        list[str] | None, typer.Option(help="Instead of keys: all events that ended with this status.")
    ] = None,
    kind: Annotated[list[str] | None, typer.Option(help="With --status: only this kind; repeatable.")] = None,
    since: Annotated[
        datetime | None, typer.Option(help="With --status: only events that ended at or after this.")
    ] = None,
    until: Annotated[
        datetime | None, typer.Option(help="With --status: only events that ended before this.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="With --status: change this many at most.")] = 100,
) -> None:
    """Move ended events back into the queue, with all their attempts again."""
    if bool(keys) == bool(status):
        raise failed("give events, or --status to requeue all events that ended with it", EXIT_USAGE)
    ids = [_find(database, key)["id"] for key in keys or ()]
    which = _filter(status, kind, None, since, until)

    async def work(operations: Operations, _: Connection) -> list[int]:
        return await (operations.requeue(ids) if ids else operations.requeue_all(which, limit))

    moved = run(database, work, within=None)
    typer.echo(
        f"requeued {len(moved)}" + (f": {', '.join(map(str, moved))}" if 0 < len(moved) <= 100 else "")
    )
    if not moved and ids:
        raise failed("the events have not ended, or their keys are live again", EXIT_FAILED)


@events.command("cancel")
def cancel(
    database: Database,
    key: Annotated[str | None, typer.Argument(help="An id or a natural key.")] = None,
    status: Annotated[
        list[str] | None, typer.Option(help="Instead of a key: all events with this status, such as pending.")
    ] = None,
    kind: Annotated[list[str] | None, typer.Option(help="With --status: only this kind; repeatable.")] = None,
    since: Annotated[
        datetime | None, typer.Option(help="With --status: only events that were enqueued at or after this.")
    ] = None,
    until: Annotated[
        datetime | None, typer.Option(help="With --status: only events that were enqueued before this.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="With --status: change this many at most.")] = 100,
    reason: Annotated[str | None, typer.Option(help="Why; it is kept in history.")] = None,
    children: Annotated[
        bool, typer.Option("--children", help="With a key: also the children that the event waits for.")
    ] = False,
) -> None:
    """Cancel events. The handler of a running event is stopped, and it gets no other attempt."""
    if (key is None) == (not status):
        raise failed("give an event, or --status to cancel all events that have it", EXIT_USAGE)
    if key is None:
        which = _filter(status, kind, None, since, until)
        answers = run(
            database, lambda operations, _: operations.cancel_all(which, limit, reason), within=None
        )
        count = Counter(answers.values())
        typer.echo(", ".join(f"{answer} {count[answer]}" for answer in ("cancelled", "running", "busy")))
        return
    job = _find(database, key)
    answer = run(
        database, lambda operations, _: operations.cancel(job["id"], reason=reason, children=children)
    )
    if answer is None:
        raise failed(f"event {job['id']} has ended as {job['status']}", EXIT_FAILED)
    if answer == "busy":
        raise failed("another transaction has the event locked; try again", EXIT_FAILED)
    typer.echo(
        "cancelled" if answer == "cancelled" else "running: its handler is stopped, no other attempt follows"
    )


@events.command("signal")
def signal(
    key: Key,
    name: Annotated[str, typer.Argument(help="The name that the event's handler waits for.")],
    database: Database,
    value: Annotated[str, typer.Argument(help="The value as JSON.")] = "null",
) -> None:
    """Send a value to an event whose handler waits for it, now or later."""
    try:
        parsed = json.loads(value)
    except ValueError:
        raise failed(f"{value} is not JSON; quote a text twice: '\"yes\"'", EXIT_USAGE) from None
    job = _find(database, key)
    answer = run(database, lambda _, connection: Queue(connection).signal_id(job["id"], name, parsed))
    if answer is None:
        raise failed(f"event {job['id']} has ended as {job['status']}", EXIT_FAILED)
    typer.echo("sent")


@app.command()
def stats(
    database: Database,
    as_json: Json = False,
    watch: Annotated[bool, typer.Option(help="Print it again every two seconds.")] = False,
) -> None:
    """Count events by kind and state, and list the workers."""

    async def work(
        operations: Operations, _: Connection
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        return await operations.stats(), await operations.workers()

    def show() -> None:
        by_kind, workers = run(database, work)
        if as_json:
            show_json({"kinds": by_kind, "workers": workers})
            return
        columns = ("kind", "paused", "pending", "scheduled", "running", "oldest_pending")
        show_table(columns, by_kind, empty="no event was ever stored")
        typer.echo()
        show_table(
            ("name", "state", "version", "started_at", "seen_at", "died_at", "kinds"),
            workers,
            empty="no worker is running",
        )

    _show(show, watch=watch)


@app.command()
def trace(
    key: Annotated[str, typer.Argument(help="Slack's event_id, another natural key, or the event's id.")],
    url: Annotated[
        str | None,
        typer.Option(envvar="SURELANE_TRACE_URL", help="A URL with {trace_id} in it, to print a link."),
    ] = None,
) -> None:
    """Print the id of an event's trace, computed from its key alone, and a link to it."""
    trace_id = f"{trace_id_of(key):032x}"
    typer.echo(trace_id)
    if url:
        typer.echo(url.replace("{trace_id}", trace_id))


def _show(show: Callable[[], None], *, watch: bool) -> None:
    show()
    while watch:
        time.sleep(2)
        Console().clear()
        show()


def _find(database: str, key: str) -> dict[str, Any]:
    async def work(operations: Operations, _: Connection) -> dict[str, Any] | None:
        ids = await operations.find(key)
        return await operations.get(ids[0]) if ids else None

    found = run(database, work)
    if found is None:
        raise failed(f"there is no event {key}", EXIT_NOT_FOUND)
    return found


def _filter(
    statuses: list[str] | None,
    kinds: list[str] | None,
    key: str | None,
    since: datetime | None,
    until: datetime | None,
) -> Filter:
    for status in statuses or ():
        if status not in STATUSES:
            raise failed(f"{status} is not a status; write one of {', '.join(STATUSES)}", EXIT_USAGE)
    return Filter(statuses or None, kinds or None, key, _aware(since), _aware(until))


def _aware(moment: datetime | None) -> datetime | None:
    return None if moment is None else moment.astimezone()
