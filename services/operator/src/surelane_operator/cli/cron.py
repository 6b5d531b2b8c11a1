"""``surelane cron``: named schedules."""

from typing import Annotated, cast

import typer

from surelane.jobs import Priority
from surelane_operator.cli.output import Column, ago, clock, middle, say, show_json, show_table
from surelane_operator.cli.session import (
    EXIT_NOT_FOUND,
    EXIT_USAGE,
    Database,
    Json,
    PriorityOption,
    failed,
    read_json,
    run,
)
from surelane_service.cron import Cron, Overlap, read_catch_up
from surelane_service.durations import parse_duration

app = typer.Typer(help="List, set and delete named schedules.", no_args_is_help=True)

_COLUMNS = (
    Column("name", cut=middle),
    Column("kind", cut=middle),
    Column("schedule", cut=middle),
    Column("time_zone", "zone", cut=middle),
    Column("catch_up"),
    Column("overlap"),
    Column("paused"),
    Column("next_at", "next"),
    Column("last_at", "last"),
)


@app.command("list")
def list_cron(database: Database, as_json: Json = False) -> None:
    """List the named schedules."""
    found = run(database, lambda changes, _: changes.list_cron())
    show_json(found) if as_json else show_table(_COLUMNS, found, empty="there are no schedules")


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
        str, typer.Option(help="Missed times to fire: none, one (the last), a number of last ones or all.")
    ] = "one",
    paused: Annotated[
        bool, typer.Option(help="Fire nothing until it is set again without --paused.")
    ] = False,
    priority: PriorityOption = 1,
    overlap: Annotated[
        Overlap, typer.Option(help="What a firing does while an earlier job of the schedule is live.")
    ] = "allow",
    jitter: Annotated[
        str, typer.Option(help="How long after its time a firing comes at most, such as 5m.")
    ] = "0",
    as_json: Json = False,
) -> None:
    """Create or change a schedule."""
    fields = read_json(payload, "the payload is not a JSON object")
    if not isinstance(fields, dict):
        raise failed("the payload is not a JSON object", EXIT_USAGE)
    try:
        read_catch_up(catch_up)
        cron = Cron(schedule, time_zone, parse_duration(jitter), name)
    except ValueError as error:
        raise failed(str(error), EXIT_USAGE) from None
    following = run(
        database,
        lambda changes, _: changes.set_cron(
            name,
            cron,
            kind=kind,
            payload=fields,
            catch_up=catch_up,
            paused=paused,
            priority=cast("Priority", priority),
            overlap=overlap,
        ),
    )
    told = f"{name} is paused" if paused else f"{name} fires next at {clock(following)}, {ago(following)}"
    say(told, {"name": name, "next_at": following, "paused": paused}, as_json=as_json)


@app.command("delete")
def delete_cron(name: str, database: Database, as_json: Json = False) -> None:
    """Delete a schedule. Jobs that it has enqueued stay in the queue."""
    if not run(database, lambda changes, _: changes.delete_cron(name)):
        raise failed(f"there is no schedule {name}", EXIT_NOT_FOUND)
    say(f"{name} is deleted", {"name": name, "deleted": True}, as_json=as_json)
