"""``surelane jobs``: find events, and see why one waits."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any

import typer

from surelane_operator.cli.find import Key, Kinds, Statuses, filtered, find
from surelane_operator.cli.output import Column, middle, one_line, show_json, show_table, watched
from surelane_operator.cli.session import EXIT_NOT_FOUND, Database, Json, failed, run
from surelane_operator.cli.sheet import show_sheet

app = typer.Typer(help="Find events, and see why one waits.", no_args_is_help=True)

_COLUMNS = (
    Column("id"),
    Column("kind", cut=middle),
    Column("status"),
    Column("attempts", "tries"),
    Column("run_at", "runs"),
    Column("took"),
    Column("key", cut=middle),
)


@app.command("list")
def list_jobs(
    database: Database,
    status: Statuses = None,
    kind: Kinds = None,
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
    which = filtered(status, kind, key, since, until)

    def show() -> None:
        found = run(database, lambda operations, _: operations.list_jobs(which, limit))
        if as_json:
            show_json(found)
        else:
            show_jobs(found)

    watched(show, watch=watch)


@app.command("search")
def search(
    words: Annotated[
        list[str], typer.Argument(help="Words that people saw, or a link to a message in Slack.")
    ],
    database: Database,
    kind: Kinds = None,
    since: Annotated[datetime | None, typer.Option(help="Look no further back than this.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Show this many at most.")] = 20,
    as_json: Json = False,
) -> None:
    """Find events by what people saw: a command, a button, a text, a name, a channel, a message.

    Each word must be in the event, in any case. It looks at the newest 1,000 events.
    """
    which = filtered(None, kind, None, since, None)
    found = run(database, lambda operations, _: operations.search(" ".join(words), which, limit))
    if as_json:
        show_json(found)
    else:
        show_jobs(found)


@app.command("show")
def show_job(key: Key, database: Database, as_json: Json = False) -> None:
    """Show one event: its fields, payload, result and history. That you looked at its payload is kept."""
    job = find(database, key)
    run(database, lambda operations, _: operations.look(job["id"]))
    if as_json:
        show_json(job)
    else:
        show_sheet(job)


@app.command("why")
def why(key: Key, database: Database, as_json: Json = False) -> None:
    """Say why an event is not running."""
    identity = find(database, key)["id"]
    found = run(database, lambda operations, _: operations.why(identity))
    if found is None:
        raise failed(f"there is no event {key}", EXIT_NOT_FOUND)
    show_json({"reason": found[0], "detail": found[1]}) if as_json else typer.echo(f"{found[0]}: {found[1]}")


def show_jobs(found: Sequence[dict[str, Any]]) -> None:
    """Print events as a table, with the error or the reason of each."""
    rows = [job | {"key": key_of(job), "took": took_by(job), "why": why_of(job)} for job in found]
    show_table(_COLUMNS, rows, empty="no such events", note="why")


def key_of(job: dict[str, Any]) -> str:
    """Return the key under which people know an event: its own, or else its group's or its dedupe key."""
    return job["item_key"] or job["dedupe_key"] or job["group_key"] or ""


def took_by(job: dict[str, Any]) -> str:
    """Return how long the last attempt of an ended event took."""
    if job["finished_at"] is None or not job["attempts"] or job["run_at"] > job["finished_at"]:
        return ""
    return f"{(job['finished_at'] - job['run_at']).total_seconds():.2f} s"


def why_of(job: dict[str, Any]) -> str:
    """Return why an event ended as it did, or why it is tried again."""
    if job["status"] == "completed":
        return ""
    return one_line(": ".join(part for part in (job["reason"], job["error"]) if part))
