"""``surelane enqueue``: store a job."""

from datetime import datetime
from typing import Annotated, Any

from typer import Argument, Option

from surelane.calls import Connection
from surelane.queue import Queue
from surelane_operator.changes import Changes
from surelane_operator.cli.output import say
from surelane_operator.cli.session import Database, Json, read_json, run


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
    priority: Annotated[int, Option(min=0, max=3, help="0 runs first, 3 last.")] = 1,
    as_json: Json = False,
) -> None:
    """Enqueue a job and print its id, or the id of the pending job with its keys."""
    value = read_json(payload, "the payload is not JSON")
    given: dict[str, Any] = {"item_key": key, "group_key": group_key, "dedupe_key": dedupe_key}
    given |= {"run_at": run_at and run_at.astimezone(), "priority": priority}

    async def work(changes: Changes, connection: Connection) -> int:
        queue = Queue(connection, encryption=changes.codec)
        return await queue.enqueue(kind, value, enqueued_by="surelane", **given)

    identity = run(database, work)
    say(str(identity), {"id": identity}, as_json=as_json)
