"""``surelane cron set`` and ``surelane enqueue``, which read more than their endpoints do."""

from datetime import datetime
from typing import Annotated, Any

import typer
from typer import Argument, Option

from surelane.calls import Connection
from surelane.queue import Queue
from surelane_operator.changes import Changes
from surelane_operator.cli.output import ago, clock, say
from surelane_operator.cli.session import Database, ExitCode, Json, PriorityOption, failed, read_json, run
from surelane_service.cron import Cron, Overlap, read_catch_up
from surelane_service.durations import parse_duration

schedules = typer.Typer(help="List, set and delete named schedules.", no_args_is_help=True)


@schedules.command("set")
def set_cron(
    name: str,
    kind: Annotated[str, Argument(help="The kind of the jobs that it enqueues.")],
    schedule: Annotated[str, Argument(help="Five cron fields in quotes: '*/5 * * * *'.")],
    database: Database,
    payload: Annotated[str, Option(help="The jobs' payload, a JSON object.")] = "{}",
    time_zone: Annotated[str, Option(help="The time zone of the fields, such as Europe/Berlin.")] = "UTC",
    catch_up: Annotated[
        str, Option(help="Missed times to fire: none, one (the last), a number of last ones or all.")
    ] = "one",
    paused: Annotated[bool, Option(help="Fire nothing until it is set again without --paused.")] = False,
    priority: PriorityOption = 1,
    overlap: Annotated[
        Overlap, Option(help="What a firing does while an earlier job of the schedule is live.")
    ] = "allow",
    jitter: Annotated[str, Option(help="How long after its time a firing comes at most, such as 5m.")] = "0",
    as_json: Json = False,
) -> None:
    """Create or change a schedule."""
    fields = read_json(payload, "the payload is not a JSON object")
    if not isinstance(fields, dict):
        raise failed("the payload is not a JSON object", ExitCode.USAGE)
    try:
        read_catch_up(catch_up)
        cron = Cron(schedule, time_zone, parse_duration(jitter), name)
    except ValueError as error:
        raise failed(str(error), ExitCode.USAGE) from None
    rules: dict[str, Any] = {"catch_up": catch_up, "paused": paused, "priority": priority, "overlap": overlap}
    following = run(
        database, lambda changes, _: changes.set_cron(name, cron, kind=kind, payload=fields, **rules)
    )
    told = f"{name} is paused" if paused else f"{name} fires next at {clock(following)}, {ago(following)}"
    say(told, {"name": name, "next_at": following, "paused": paused}, as_json=as_json)


def enqueue(
    kind: Annotated[str, Argument(help="The job's kind, such as agent-turn.")],
    database: Database,
    payload: Annotated[str, Option(help="The job's payload, any JSON value.")] = "{}",
    run_at: Annotated[datetime | None, Option(help="Run it no earlier than this local time.")] = None,
    key: Annotated[
        str | None, Option(help="The job's natural key, to find, cancel or reschedule it.")
    ] = None,
    group_key: Annotated[
        str | None, Option(help="The job's group. One worker at a time runs a group's jobs, in order.")
    ] = None,
    dedupe_key: Annotated[
        str | None, Option(help="Add no job while another one with this key is pending.")
    ] = None,
    priority: PriorityOption = 1,
    as_json: Json = False,
) -> None:
    """Enqueue a job and print its id, or the id of the pending job with its keys."""
    value = read_json(payload, "the payload is not JSON")
    given: dict[str, Any] = {"item_key": key, "group_key": group_key, "dedupe_key": dedupe_key}
    given |= {"run_at": run_at and run_at.astimezone(), "priority": priority}

    async def work(changes: Changes, connection: Connection) -> int:
        queue = Queue(connection, encryption=changes.sealing)
        return await queue.enqueue(kind, value, enqueued_by="surelane", **given)

    identity = run(database, work)
    say(str(identity), {"id": identity}, as_json=as_json)
