"""``surelane events``: one event's history; requeue, replay, cancel, signal."""

import json
from collections import Counter
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any

import typer

from surelane.calls import Connection
from surelane.queue import Queue
from surelane_operator.cli.find import Key, filtered, find
from surelane_operator.cli.output import say, show_json
from surelane_operator.cli.session import EXIT_FAILED, EXIT_NOT_FOUND, EXIT_USAGE, Database, Json, failed, run
from surelane_operator.cli.story import Story
from surelane_operator.operations import Operations, no_step
from surelane_operator.timeline import story_of, trace_of

app = typer.Typer(help="Show one event's history; requeue, replay and cancel events.", no_args_is_help=True)


@app.command("history")
def history(key: Key, database: Database, as_json: Json = False) -> None:
    """Show the history of one event: when it came, each claim, failure and change, and how it ended."""
    job = find(database, key)
    if as_json:
        show_json(story_json(job))
        return
    story = Story()
    story.begin(job)
    story.tell(job)


def story_json(job: dict[str, Any]) -> dict[str, Any]:
    """Return an event's history as ``--json`` prints it."""
    return {
        "id": job["id"],
        "kind": job["kind"],
        "status": job["status"],
        "trace": trace_of(job),
        "steps": [asdict(step) for step in story_of(job)],
    }


@app.command("requeue")
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
    as_json: Json = False,
) -> None:
    """Move ended events back into the queue, with all their attempts again."""
    if bool(keys) == bool(status):
        raise failed("give events, or --status to requeue all events that ended with it", EXIT_USAGE)
    ids = [find(database, key)["id"] for key in keys or ()]
    which = filtered(status, kind, None, since, until)

    async def work(operations: Operations, _: Connection) -> list[int]:
        return await (operations.requeue(ids) if ids else operations.requeue_all(which, limit))

    moved = run(database, work, within=None)
    named = f": {', '.join(map(str, moved))}" if 0 < len(moved) <= 100 else ""
    say(f"requeued {len(moved)}{named}", {"requeued": moved}, as_json=as_json)
    if not moved and ids:
        raise failed("the events have not ended, or their keys are live again", EXIT_FAILED)


@app.command("replay")
def replay(
    key: Key,
    database: Database,
    from_step: Annotated[
        str | None,
        typer.Option(help="Keep the steps that were stored before this one. Otherwise none is kept."),
    ] = None,
    payload: Annotated[
        typer.FileText | None,
        typer.Option(
            metavar="FILE", encoding="utf-8", help="Another payload, as JSON; - reads standard input."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Run an ended event again as a new event. The old one stays in history."""
    value = None if payload is None else _read_json(payload)
    job = find(database, key)
    done = run(
        database, lambda operations, _: operations.replay(job["id"], from_step=from_step, payload=value)
    )
    match done.answer:
        case "unknown":
            raise failed(f"there is no event {key}", EXIT_NOT_FOUND)
        case "live":
            raise failed(
                f"event {job['id']} is {job['status']}: cancel it, or wait until it ends", EXIT_FAILED
            )
        case "no_step":
            raise failed(no_step(from_step, done), EXIT_NOT_FOUND)
    kept = f", with the steps {', '.join(done.steps)}" if done.steps else ""
    say(
        f"event {job['id']} runs again as event {done.id} ({done.key}){kept}",
        {"id": done.id, "key": done.key, "replay_of": job["id"], "kept": done.steps},
        as_json=as_json,
    )


def _read_json(file: typer.FileText) -> object:
    try:
        value = json.load(file)
    except ValueError as error:
        raise failed(f"the payload in {file.name} is not JSON: {error}", EXIT_USAGE) from None
    if value is None:
        raise failed("the payload is null; leave --payload out to keep the old one", EXIT_USAGE)
    return value


@app.command("cancel")
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
    as_json: Json = False,
) -> None:
    """Cancel events. The handler of a running event is stopped, and it gets no other attempt."""
    if (key is None) == (not status):
        raise failed("give an event, or --status to cancel all events that have it", EXIT_USAGE)
    if key is None:
        which = filtered(status, kind, None, since, until)
        answers = run(
            database, lambda operations, _: operations.cancel_all(which, limit, reason), within=None
        )
        counted = Counter(answers.values())
        counts = {answer: counted[answer] for answer in ("cancelled", "running", "busy")}
        say(", ".join(f"{answer} {count}" for answer, count in counts.items()), counts, as_json=as_json)
        return
    job = find(database, key)
    answer = run(
        database, lambda operations, _: operations.cancel(job["id"], reason=reason, children=children)
    )
    if answer is None:
        raise failed(f"event {job['id']} has ended as {job['status']}", EXIT_FAILED)
    if answer == "busy":
        raise failed("another transaction has the event locked; try again", EXIT_FAILED)
    told = (
        "cancelled" if answer == "cancelled" else "running: its handler is stopped, no other attempt follows"
    )
    say(told, {"id": job["id"], "status": answer}, as_json=as_json)


@app.command("signal")
def signal(
    key: Key,
    name: Annotated[str, typer.Argument(help="The name that the event's handler waits for.")],
    database: Database,
    value: Annotated[str, typer.Argument(help="The value as JSON.")] = "null",
    as_json: Json = False,
) -> None:
    """Send a value to an event whose handler waits for it, now or later."""
    try:
        parsed = json.loads(value)
    except ValueError:
        raise failed(f"{value} is not JSON; quote a text twice: '\"yes\"'", EXIT_USAGE) from None
    job = find(database, key)
    answer = run(
        database,
        lambda operations, connection: Queue(connection, encryption=operations.sealing).signal_id(
            job["id"], name, parsed
        ),
    )
    if answer is None:
        raise failed(f"event {job['id']} has ended as {job['status']}", EXIT_FAILED)
    say("sent", {"id": job["id"], "status": answer}, as_json=as_json)
