"""``surelane cron``: named schedules."""

import json
from typing import Annotated, Any, cast

import typer

from surelane.jobs import Priority
from surelane_operator.cli.output import show_json, show_table
from surelane_operator.cli.session import (
    EXIT_NOT_FOUND,
    EXIT_USAGE,
    Database,
    Json,
    PriorityOption,
    failed,
    run,
)
from surelane_service.cron import CatchUp, Cron

app = typer.Typer(help="List, set and delete named schedules.", no_args_is_help=True)


@app.command("list")
def list_cron(database: Database, as_json: Json = False) -> None:
    """List the named schedules."""
    found = run(database, lambda operations, _: operations.list_cron())
    columns = ("name", "kind", "schedule", "time_zone", "catch_up", "paused", "next_at", "last_at")
    show_json(found) if as_json else show_table(columns, found, empty="there are no schedules")


@app.command("set")
def set_cron(
    name: str,
    kind: Annotated[str, typer.Argument(help="The kind of the jobs that it enqueues.")],
    schedule: Annotated[str, typer.Argument(help="Five cron fields in quotes: '*/5 * * * *'.")],
    database: Database,
    payload: Annotated[str, typer.Option(help="The jobs' payload, a JSON object.")] = "{}",
    time_zone: Annotated[
        str, typer.Option(help="The time zone of the fields, such as Europe/Berlin.")
    ] = "UTC",
    catch_up: Annotated[
        str, typer.Option(help="Times to fire of those that were missed: none, one (the last) or all.")
    ] = "one",
    paused: Annotated[
        bool, typer.Option(help="Fire nothing until it is set again without --paused.")
    ] = False,
    priority: PriorityOption = 1,
) -> None:
    """Create or change a schedule."""
    if catch_up not in {"none", "one", "all"}:
        raise failed(f"{catch_up} is not a catch-up rule; write none, one or all", EXIT_USAGE)
    fields = _object(payload)
    try:
        cron = Cron(schedule, time_zone)
    except ValueError as error:
        raise failed(str(error), EXIT_USAGE) from None
    following = run(
        database,
        lambda operations, _: operations.set_cron(
            name,
            cron,
            kind=kind,
            payload=fields,
            catch_up=cast("CatchUp", catch_up),
            paused=paused,
            priority=cast("Priority", priority),
        ),
    )
    typer.echo(f"{name} fires next at {following:%Y-%m-%d %H:%M} UTC" if not paused else f"{name} is paused")


@app.command("delete")
def delete_cron(name: str, database: Database) -> None:
    """Delete a schedule. Jobs that it has enqueued stay in the queue."""
    if not run(database, lambda operations, _: operations.delete_cron(name)):
        raise failed(f"there is no schedule {name}", EXIT_NOT_FOUND)
    typer.echo(f"{name} is deleted")


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise failed("the payload is not a JSON object", EXIT_USAGE)
    return value
