"""``surelane cron``: named schedules."""

import json
from datetime import UTC, datetime
from typing import Annotated, Any, cast

import typer

from surelane_operator.cli.output import show_json, show_table
from surelane_operator.cli.session import EXIT_NOT_FOUND, EXIT_USAGE, Database, failed, run
from surelane_service.cron import CatchUp, Cron

app = typer.Typer(help="Named schedules.", no_args_is_help=True)


@app.command("list")
def list_cron(database: Database, as_json: Annotated[bool, typer.Option("--json")] = False) -> None:
    """The named schedules."""
    found = run(database, lambda operations, _: operations.list_cron())
    columns = ("name", "kind", "schedule", "time_zone", "catch_up", "paused", "next_at", "last_at")
    show_json(found) if as_json else show_table(columns, found, empty="there are no schedules")


@app.command("set")
def set_cron(
    name: str,
    kind: Annotated[str, typer.Argument(help="The kind of the jobs it enqueues.")],
    schedule: Annotated[str, typer.Argument(help="Five cron fields, quoted: '*/5 * * * *'.")],
    database: Database,
    payload: Annotated[str, typer.Option(help="A JSON object.")] = "{}",
    time_zone: Annotated[str, typer.Option(help="Such as Europe/Berlin.")] = "UTC",
    catch_up: Annotated[str, typer.Option(help="Of missed times, fire none, one (the last) or all.")] = "one",
    paused: Annotated[bool, typer.Option(help="Fire nothing until it is set again without this.")] = False,
) -> None:
    """Creates or changes a schedule."""
    if catch_up not in {"none", "one", "all"}:
        raise failed(f"{catch_up} is not a rule: none, one or all", EXIT_USAGE)
    body = _object(payload)
    try:
        following = Cron(schedule, time_zone).next_after(datetime.now(UTC))
    except ValueError as error:
        raise failed(str(error), EXIT_USAGE) from None
    run(
        database,
        lambda operations, _: operations.set_cron(
            name,
            kind=kind,
            schedule=schedule,
            next_at=following,
            payload=body,
            time_zone=time_zone,
            catch_up=cast("CatchUp", catch_up),
            paused=paused,
        ),
    )
    typer.echo(f"{name} fires next at {following:%Y-%m-%d %H:%M} UTC" if not paused else f"{name} is paused")


@app.command("delete")
def delete_cron(name: str, database: Database) -> None:
    """Deletes a schedule; jobs it has enqueued stay."""
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
