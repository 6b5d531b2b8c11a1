"""Find the events that a command is about: by a key, or by a filter."""

import hashlib
import re
from datetime import datetime
from typing import Annotated, Any

import typer

from surelane.calls import Connection
from surelane_operator.changes import Changes
from surelane_operator.cli.session import EXIT_NOT_FOUND, EXIT_USAGE, failed, known_kinds, run
from surelane_operator.reads.events import Reads
from surelane_operator.reads.filters import STATUSES, Filter, read_tags

Key = Annotated[
    str, typer.Argument(help="An event's id or natural key: Slack's event_id, or the trigger_id of a click.")
]
Statuses = Annotated[
    list[str] | None,
    typer.Option(
        "--status",
        help=f"Only events that are {', '.join(STATUSES[:-1])} or {STATUSES[-1]}; repeatable.",
        autocompletion=lambda: list(STATUSES),
    ),
]
Kinds = Annotated[
    list[str] | None,
    typer.Option(
        "--kind", help="Only this kind, or a command such as /deploy; repeatable.", autocompletion=known_kinds
    ),
]

Tags = Annotated[
    list[str] | None,
    typer.Option("--tag", help="Only events with this tag, such as customer=acme; repeatable."),
]
Since = Annotated[
    datetime | None, typer.Option(help="Only events that were enqueued, or ended, at or after this.")
]
Until = Annotated[
    datetime | None, typer.Option(help="Only events that were enqueued, or ended, before this.")
]
Limit = Annotated[int, typer.Option(min=1, max=1000, help="Show this many at most.")]
AnyKey = Annotated[str | None, typer.Option(help="Only events with this item key, group key or dedupe key.")]

_TRIGGER = re.compile(r"\d+\.\d+\.[0-9a-f]+")


def natural_key(text: str) -> str:
    """Return the natural key that a person means: a command or a click has a hash of its ``trigger_id``."""
    if _TRIGGER.fullmatch(text):
        return f"trigger:{hashlib.sha256(text.encode()).hexdigest()}"
    return text


def find(database: str, key: str, *, texts: bool = False) -> dict[str, Any]:
    """Return the event with a key; with ``texts`` also what people wrote. A command that finds none ends."""

    async def work(changes: Changes, _: Connection) -> dict[str, Any] | None:
        return await found(changes, key, texts=texts)

    event = run(database, work)
    if event is None:
        raise failed(f"there is no event {key}", EXIT_NOT_FOUND)
    return event


async def found(reads: Reads, key: str, *, texts: bool = False) -> dict[str, Any] | None:
    """Return the event with a key; ``None`` if there is none. The look at what people wrote is kept."""
    ids = await reads.find(natural_key(key))
    read = reads.look if texts else reads.get
    return await read(ids[0]) if ids else None


def filtered(
    statuses: list[str] | None,
    kinds: list[str] | None,
    key: str | None,
    since: datetime | None,
    until: datetime | None,
    tags: list[str] | None = None,
) -> Filter:
    """Return a filter. A command with an unknown status or another tag than ``name=value`` ends."""
    for status in statuses or ():
        if status not in STATUSES:
            raise failed(f"{status} is not a status; write one of {', '.join(STATUSES)}", EXIT_USAGE)
    named = [_kind(kind) for kind in kinds or ()]
    try:
        read = read_tags(tags)
    except ValueError as error:
        raise failed(str(error), EXIT_USAGE) from None
    known = key and natural_key(key)
    return Filter(statuses or None, named or None, known, aware(since), aware(until), tags=read)


def aware(moment: datetime | None) -> datetime | None:
    """Return a time of the terminal's zone."""
    return None if moment is None else moment.astimezone()


def _kind(kind: str) -> str:
    return f"slack.command.{kind[1:]}" if kind.startswith("/") else kind
