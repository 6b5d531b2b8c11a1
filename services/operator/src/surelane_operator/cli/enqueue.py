"""``surelane enqueue`` and ``surelane orchestrate``: jobs from a terminal."""

from datetime import datetime
from typing import Annotated, Any

import typer

from surelane.calls import Connection
from surelane.queue import Queue
from surelane_operator.changes import Changes
from surelane_operator.cli.output import say
from surelane_operator.cli.session import Database, Json, PriorityOption, read_json, run

DedupeKey = Annotated[str | None, typer.Option(help="Add no job while another one with this key is pending.")]


def enqueue(
    kind: Annotated[str, typer.Argument(help="The job's kind, such as agent-turn.")],
    database: Database,
    payload: Annotated[str, typer.Option(help="The job's payload, any JSON value.")] = "{}",
    run_at: Annotated[datetime | None, typer.Option(help="Run it no earlier than this local time.")] = None,
    key: Annotated[
        str | None, typer.Option(help="The job's natural key, to find, cancel or reschedule it.")
    ] = None,
    group_key: Annotated[
        str | None, typer.Option(help="The job's group. One worker at a time runs a group's jobs, in order.")
    ] = None,
    dedupe_key: DedupeKey = None,
    priority: PriorityOption = 1,
    as_json: Json = False,
) -> None:
    """Enqueue a job and print its id, or the id of the pending job with its keys."""
    _enqueue(
        database,
        kind,
        read_json(payload, "the payload is not JSON"),
        run_at=None if run_at is None else run_at.astimezone(),
        item_key=key,
        group_key=group_key,
        dedupe_key=dedupe_key,
        priority=priority,
        as_json=as_json,
    )


def orchestrate(
    goal: Annotated[str, typer.Argument(help="The goal of the plan.")],
    database: Database,
    subtask: Annotated[
        list[str] | None, typer.Option(help="A part of the plan; repeatable. Without any, a handler plans.")
    ] = None,
    dedupe_key: DedupeKey = None,
    as_json: Json = False,
) -> None:
    """Start an orchestration (plan, fan out, synthesize) and print the plan's id."""
    payload = {"goal": goal} | ({"subtasks": subtask} if subtask else {})
    _enqueue(database, "orchestrator-plan", payload, dedupe_key=dedupe_key, as_json=as_json)


def _enqueue(database: str, kind: str, payload: object, *, as_json: bool, **options: Any) -> None:  # noqa: ANN401 - Queue.enqueue has the types
    async def work(changes: Changes, connection: Connection) -> int:
        queue = Queue(connection, encryption=changes.sealing)
        return await queue.enqueue(kind, payload, enqueued_by="surelane", **options)

    identity = run(database, work)
    say(str(identity), {"id": identity}, as_json=as_json)
