"""``surelane kinds``, ``limits``, ``cron``, ``enqueue`` and ``orchestrate``: change what the queue runs, and when."""

from datetime import datetime
from typing import Annotated, Any

import typer
from typer import Argument, Option

from surelane.calls import Connection
from surelane.queue import Queue
from surelane_operator.changes import Changes
from surelane_operator.cli.output import ago, clock, columns, say, show_json, show_table
from surelane_operator.cli.session import (
    Database,
    ExitCode,
    Json,
    PriorityOption,
    failed,
    known_kinds,
    read_json,
    run,
)
from surelane_service.cron import Cron, Overlap, read_catch_up
from surelane_service.durations import parse_duration, read_limit_rate

kinds = typer.Typer(help="Pause and resume kinds.", no_args_is_help=True)
limits = typer.Typer(help="List, change and reset the limits of kinds.", no_args_is_help=True)

Kind = Annotated[str, Argument(help="A kind, such as slack.app_mention.", autocompletion=known_kinds)]
_LIMITS = columns(
    *("kind", "per", "concurrency=at once", "rate"),
    *("declared_concurrency=(declared)", "declared_rate=(declared)", "set_at=set", "set_by=by"),
    cut={"kind", "set_by"},
)


@kinds.command()
def pause(kind: Kind, database: Database, as_json: Json = False) -> None:
    """Pause a kind: its waiting events are neither claimed nor expired. Running ones finish."""
    run(database, lambda changes, _: changes.pause(kind))
    say(f"{kind} is paused", {"kind": kind, "paused": True}, as_json=as_json)


@kinds.command()
def resume(kind: Kind, database: Database, as_json: Json = False) -> None:
    """Resume a kind."""
    run(database, lambda changes, _: changes.resume(kind))
    say(f"{kind} is running", {"kind": kind, "paused": False}, as_json=as_json)


@limits.command("list")
def list_limits(database: Database, as_json: Json = False) -> None:
    """List the limits that hold, and what the workers declare."""
    found = run(database, lambda changes, _: changes.list_limits())
    show_json(found) if as_json else show_table(_LIMITS, found, empty="no kind has a limit")


@limits.command("set")
def set_limit(
    kind: Kind,
    database: Database,
    concurrency: Annotated[str | None, Option(help="How many run at once, or none.")] = None,
    rate: Annotated[str | None, Option(help="How many begin in a period, such as 60/1m, or none.")] = None,
    per: Annotated[
        str | None, Option(help="What has a limit of its own: kind, workspace, channel or user.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Change the limit of a kind, until it is reset. What is not named stays as it is."""
    if concurrency is None and rate is None and per is None:
        raise failed("name --concurrency, --rate or --per", ExitCode.USAGE)
    try:
        at_once = _count(concurrency)
        in_period = None if rate is None else read_limit_rate(rate)
    except ValueError as error:
        raise failed(str(error), ExitCode.USAGE) from None
    run(database, lambda changes, _: changes.set_limit(kind, concurrency=at_once, rate=in_period, per=per))
    told = f"the limit of {kind} is changed; surelane limits reset {kind} takes that back"
    say(told, {"kind": kind, "changed": True}, as_json=as_json)


@limits.command("reset")
def reset_limit(kind: Kind, database: Database, as_json: Json = False) -> None:
    """Let the limit that the workers declare hold again."""
    if not run(database, lambda changes, _: changes.reset_limit(kind)):
        raise failed(f"no operator has changed the limit of {kind}", ExitCode.NOT_FOUND)
    told = f"the limit of {kind} is as its workers declare it"
    say(told, {"kind": kind, "changed": False}, as_json=as_json)


def _count(text: str | None) -> int | None:
    if text is None or text == "none":
        return None if text is None else 0
    if not text.isascii() or not text.isdigit() or int(text) == 0:
        raise ValueError(f"concurrency is a number above 0, or none, not {text}")
    return int(text)


schedules = typer.Typer(help="List, set and delete named schedules.", no_args_is_help=True)

_SCHEDULES = columns(
    *("name", "kind", "schedule", "time_zone=zone", "catch_up", "overlap", "paused", "next_at=next"),
    "last_at=last",
    cut={"name", "kind", "schedule", "time_zone"},
)


@schedules.command("list")
def list_cron(database: Database, as_json: Json = False) -> None:
    """List the named schedules."""
    found = run(database, lambda changes, _: changes.list_cron())
    show_json(found) if as_json else show_table(
        _SCHEDULES, found, empty="there are no schedules", note="problem"
    )


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


@schedules.command("delete")
def delete_cron(name: str, database: Database, as_json: Json = False) -> None:
    """Delete a schedule. Jobs that it has enqueued stay in the queue."""
    if not run(database, lambda changes, _: changes.delete_cron(name)):
        raise failed(f"there is no schedule {name}", ExitCode.NOT_FOUND)
    say(f"{name} is deleted", {"name": name, "deleted": True}, as_json=as_json)


DedupeKey = Annotated[str | None, Option(help="Add no job while another one with this key is pending.")]


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
    dedupe_key: DedupeKey = None,
    priority: PriorityOption = 1,
    as_json: Json = False,
) -> None:
    """Enqueue a job and print its id, or the id of the pending job with its keys."""
    value, keys = read_json(payload, "the payload is not JSON"), {"item_key": key, "group_key": group_key}
    more = {"run_at": run_at and run_at.astimezone(), "dedupe_key": dedupe_key, "priority": priority}
    _enqueue(database, kind, value, as_json=as_json, **keys, **more)


def orchestrate(
    goal: Annotated[str, Argument(help="The goal of the plan.")],
    database: Database,
    subtask: Annotated[
        list[str] | None, Option(help="A part of the plan; repeatable. Without any, a handler plans.")
    ] = None,
    dedupe_key: DedupeKey = None,
    as_json: Json = False,
) -> None:
    """Start an orchestration (plan, fan out, synthesize) and print the plan's id."""
    payload = {"goal": goal} | ({"subtasks": subtask} if subtask else {})
    _enqueue(database, "orchestrator-plan", payload, dedupe_key=dedupe_key, as_json=as_json)


def _enqueue(database: str, kind: str, payload: object, *, as_json: bool, **options: Any) -> None:  # noqa: ANN401 - Queue.enqueue has the types
    async def work(changes: Changes, connection: Connection) -> int:
        queue = Queue(connection, encryption=changes.codec)
        return await queue.enqueue(kind, payload, enqueued_by="surelane", **options)

    identity = run(database, work)
    say(str(identity), {"id": identity}, as_json=as_json)
