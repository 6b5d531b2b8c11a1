"""``surelane enqueue`` and ``surelane orchestrate``: what a person puts into the queue."""

import json
from datetime import datetime
from typing import Annotated, Any

import typer

from surelane.calls import Connection
from surelane.queue import Queue
from surelane_operator.cli.session import EXIT_USAGE, Database, failed, run
from surelane_operator.operations import Operations

DedupeKey = Annotated[str | None, typer.Option(help="While a job under it is pending, no other is added.")]


def enqueue(
    kind: Annotated[str, typer.Argument(help="Such as agent-turn.")],
    database: Database,
    payload: Annotated[str, typer.Option(help="Any JSON value.")] = "{}",
    run_at: Annotated[datetime | None, typer.Option(help="Not before; local time.")] = None,
    key: Annotated[
        str | None, typer.Option(help="Its natural key, to find, cancel or reschedule it by.")
    ] = None,
    group_key: Annotated[str | None, typer.Option(help="Its entity.")] = None,
    dedupe_key: DedupeKey = None,
) -> None:
    """Enqueues a job; prints its id, or that of the pending one under its keys."""
    _enqueue(
        database,
        kind,
        _json(payload),
        run_at=None if run_at is None else run_at.astimezone(),
        item_key=key,
        group_key=group_key,
        dedupe_key=dedupe_key,
    )


def orchestrate(
    goal: Annotated[str, typer.Argument(help="What the plan is made for.")],
    database: Database,
    subtask: Annotated[list[str] | None, typer.Option(help="Given, they are the plan; repeatable.")] = None,
    dedupe_key: DedupeKey = None,
) -> None:
    """Starts an orchestration: plan, fan out, synthesize. Prints the plan's id."""
    payload = {"goal": goal} | ({"subtasks": subtask} if subtask else {})
    _enqueue(database, "orchestrator-plan", payload, dedupe_key=dedupe_key)


def _enqueue(database: str, kind: str, payload: object, **options: Any) -> None:  # noqa: ANN401 - passed on, typed there
    async def work(_: Operations, connection: Connection) -> int:
        return await Queue(connection).enqueue(kind, payload, enqueued_by="surelane", **options)

    typer.echo(run(database, work))


def _json(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        raise failed("the payload is not JSON", EXIT_USAGE) from None
