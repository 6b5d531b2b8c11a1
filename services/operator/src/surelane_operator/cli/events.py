"""``surelane events``: show an event, say why it waits, run again, cancel. Endpoints are the others."""

import json
from collections import Counter
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any, cast

import typer
from pydantic import ValidationError
from typer import Argument, Option

from surelane.calls import Connection
from surelane_operator.api.models import Cancelled, Which
from surelane_operator.api.queue import QueueApi
from surelane_operator.changes import Changes, ManyChange
from surelane_operator.cli.generated import KEY, answer_of
from surelane_operator.cli.output import PrintedStory, say, show_json, show_sheet
from surelane_operator.cli.session import Database, ExitCode, Json, event_named, failed, known_kinds, run
from surelane_operator.reads.dropped import DroppedDelivery
from surelane_operator.reads.events import Reads
from surelane_operator.reads.filters import STATUSES, Filter, natural_key
from surelane_operator.reads.lookup import TOLD, matches_of
from surelane_operator.reads.timeline import story_of, trace_of

Key = Annotated[str, Argument(help=KEY)]
Statuses = Annotated[
    list[str] | None,
    Option(
        "--status",
        help=f"Only events that are {', '.join(STATUSES[:-1])} or {STATUSES[-1]}; repeatable.",
        autocompletion=lambda: list(STATUSES),
    ),
]
Kinds = Annotated[
    list[str] | None,
    Option(
        "--kind", help="Only this kind, or a command such as /deploy; repeatable.", autocompletion=known_kinds
    ),
]

Since = Annotated[datetime | None, Option(help="Only events that were enqueued, or ended, at or after this.")]
Until = Annotated[datetime | None, Option(help="Only events that were enqueued, or ended, before this.")]
AnyKey = Annotated[str | None, Option(help="Only events with this item key, group key or dedupe key.")]


def find(database: str, key: str, *, texts: bool = False) -> dict[str, Any]:
    """Do as :func:`~surelane_operator.cli.session.event_named`, on a connection of its own."""
    return run(database, lambda changes, _: event_named(changes, key, texts=texts))


def filtered(**fields: Any) -> Filter:  # noqa: ANN401 - those of Which
    """Return a filter. A command with a field that cannot be read ends."""
    moments = {
        name: each.astimezone().isoformat() for name, each in fields.items() if isinstance(each, datetime)
    }
    try:
        return Which.model_validate(fields | moments).filter()
    except ValidationError as error:
        wrong = error.errors()[0]
        raise failed(f"{wrong['loc'][0]}: {wrong['msg']}", ExitCode.USAGE) from None


app = typer.Typer(
    help="Find events, see why one waits; run events again, cancel, signal.", no_args_is_help=True
)

Most = Annotated[int, Option(min=1, help="With --status: change this many at most.")]


@app.command("show")
def show(key: Key, database: Database, as_json: Json = False) -> None:
    """Show one event: its fields, payload, result, errors and history. That you looked is kept."""
    event = find(database, key, texts=True)
    show_json(event) if as_json else show_sheet(event)


@app.command("why")
def why(
    key: Annotated[
        str,
        Argument(
            help="An event's id or natural key, a link to a message, or a time such as 2026-11-28T15:04."
        ),
    ],
    database: Database,
    as_json: Json = False,
) -> None:
    """Say why an event is not running, or why what Slack delivered became no event."""
    events, dropped = run(database, lambda changes, _: _reasons(changes, natural_key(key)))
    if not events and not dropped:
        wrong = f"there is no event {key}, and no such delivery was dropped in the last day"
        raise failed(wrong, ExitCode.NOT_FOUND)
    lines = [f"{reason}: {detail}" for reason, detail in events.values()]
    if len(lines) > 1:
        lines = [f"event {identity}, {line}" for identity, line in zip(events, lines, strict=True)]
    for each in dropped:
        named = " ".join(filter(None, (each.kind, each.key)))
        lines.append(f"dropped: {named}, came {each.at:%Y-%m-%d %H:%M:%S} UTC. {each.why}")
    reason, detail = next(iter(events.values()), None) or ("dropped", dropped[0].why)
    told: dict[str, object] = {"reason": reason, "detail": detail}
    if dropped:
        told["dropped"] = [each.model_dump(mode="json") for each in dropped]
    say("\n".join(lines), told, as_json=as_json)


async def _reasons(reads: Reads, text: str) -> tuple[dict[int, tuple[str, str]], list[DroppedDelivery]]:
    """Return why each event waits or ended, as a word and a sentence, by its id; and what became no event."""
    matched = await matches_of(reads, text)
    told = {identity: await reads.why(identity) for identity in matched.ids[:TOLD]}
    return {identity: why for identity, why in told.items() if why}, matched.dropped


@app.command("history")
def history(key: Key, database: Database, as_json: Json = False) -> None:
    """Show the history of one event: its claims, failures and changes, and how it ended. That you looked is kept."""
    event = find(database, key, texts=True)
    if as_json:
        told = {name: event[name] for name in ("id", "kind", "status")} | {"trace": trace_of(event)}
        show_json(told | {"steps": [asdict(step) for step in story_of(event)]})
        return
    story = PrintedStory()
    story.begin(event)
    for step in story.news(event):
        story.tell(step)


@app.command("rerun")
def rerun(
    database: Database,
    keys: Annotated[list[str] | None, Argument(help="Ids or natural keys.")] = None,
    from_step: Annotated[
        str | None,
        Option(help="With one key: run a new event, with the steps that were stored before this one."),
    ] = None,
    payload: Annotated[
        typer.FileText | None,
        Option(
            metavar="FILE",
            encoding="utf-8",
            help="With one key: run a new event with this payload, JSON; - reads standard input.",
        ),
    ] = None,
    status: Annotated[
        list[str] | None, Option(help="Instead of keys: all events that ended with this status.")
    ] = None,
    kind: Kinds = None,
    since: Since = None,
    until: Until = None,
    limit: Most = 100,
    as_json: Json = False,
) -> None:
    """Run ended events again. All attempts of the same event begin again.

    A failed event goes on after its stored steps, a completed one begins anew. With --from-step or --payload a new
    event runs, and the old one stays in history.
    """
    if bool(keys) == bool(status):
        raise failed("give events, or --status to run all events again that ended with it", ExitCode.USAGE)
    if from_step is not None or payload is not None:
        if not keys or len(keys) > 1:
            raise failed("give one event with --from-step or --payload", ExitCode.USAGE)
        _rerun_as_new(database, keys[0], from_step, payload, as_json=as_json)
        return
    ids = [find(database, key)["id"] for key in keys or ()]
    which = filtered(status=status, kind=kind, since=since, until=until)

    async def work(changes: Changes, _: Connection) -> list[int]:
        return await changes.rerun(ids or which, limit)

    moved = run(database, work, within=None)
    named = f": {', '.join(map(str, moved))}" if 0 < len(moved) <= 100 else ""
    told = {"rerun": moved, "rerun_of": None, "key": None, "kept": []}
    say(f"{len(moved)} run again{named}", told, as_json=as_json)
    if not moved and ids:
        raise failed("the events have not ended, or their keys are live again", ExitCode.FAILED)


def _rerun_as_new(
    database: str, key: str, from_step: str | None, payload: typer.FileText | None, *, as_json: bool
) -> None:
    value = None if payload is None else _read_json(payload)
    event = find(database, key)
    done = run(
        database, lambda changes, _: changes.rerun_as_new(event["id"], from_step=from_step, payload=value)
    )
    match done.answer:
        case "unknown":
            raise failed(f"there is no event {key}", ExitCode.NOT_FOUND)
        case "live":
            wrong = f"event {event['id']} is {event['status']}: cancel it, or wait until it ends"
            raise failed(wrong, ExitCode.FAILED)
        case "no_step":
            raise failed(done.no_step(from_step), ExitCode.NOT_FOUND)
    kept = f", with the steps {', '.join(done.steps)}" if done.steps else ""
    say(
        f"event {event['id']} runs again as event {done.id} ({done.key}){kept}",
        {"rerun": [done.id], "rerun_of": event["id"], "key": done.key, "kept": done.steps},
        as_json=as_json,
    )


def _read_json(file: typer.FileText) -> object:
    try:
        value = json.load(file)
    except ValueError as error:
        raise failed(f"the payload in {file.name} is not JSON: {error}", ExitCode.USAGE) from None
    if value is None:
        raise failed("the payload is null; leave --payload out to keep the old one", ExitCode.USAGE)
    return value


@app.command("cancel")
def cancel(
    database: Database,
    key: Annotated[str | None, Argument(help="An id or a natural key.")] = None,
    status: Annotated[
        list[str] | None, Option(help="Instead of a key: all events with this status, such as pending.")
    ] = None,
    kind: Kinds = None,
    since: Since = None,
    until: Until = None,
    limit: Most = 100,
    reason: Annotated[str | None, Option(help="Why; it is kept in history.")] = None,
    children: Annotated[
        bool, Option("--children", help="With a key: also the children that the event waits for.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Cancel events. The handler of a running event is stopped, and it gets no other attempt."""
    if (key is None) == (not status):
        raise failed("give an event, or --status to cancel all events that have it", ExitCode.USAGE)
    if key is None:
        which = filtered(status=status, kind=kind, since=since, until=until)
        change = ManyChange("cancel", which, limit, reason)
        answers = run(database, lambda changes, _: changes.change_all(change), within=None)
        counted = Counter(answers.values())
        counts = {answer: counted[answer] for answer in ("cancelled", "running", "busy")}
        say(", ".join(f"{answer} {count}" for answer, count in counts.items()), counts, as_json=as_json)
        return
    event: dict[str, Any] = {"id": key, "children": children} | ({} if reason is None else {"reason": reason})
    answer = cast("Cancelled", answer_of(QueueApi.cancel_event, database, event)).status
    stopped = "running: its handler is stopped, no other attempt follows"
    say(stopped if answer == "running" else answer, {"id": event["id"], "status": answer}, as_json=as_json)
