"""Find the events that a command is about: by a key, or by a filter."""

import hashlib
import re
from datetime import datetime
from typing import Annotated, Any

import typer

from surelane.calls import Connection
from surelane_operator.cli.session import EXIT_NOT_FOUND, EXIT_USAGE, failed, known_kinds, run
from surelane_operator.filters import STATUSES, Filter
from surelane_operator.operations import Operations

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

_TRIGGER = re.compile(r"\d+\.\d+\.[0-9a-f]+")


def natural_key(text: str) -> str:
    """Return the natural key that a person means: a command or a click has a hash of its ``trigger_id``."""
    if _TRIGGER.fullmatch(text):
        return f"trigger:{hashlib.sha256(text.encode()).hexdigest()}"
    return text


def find(database: str, key: str) -> dict[str, Any]:
    """Return the event with a key. A command that finds none ends."""

    async def work(operations: Operations, _: Connection) -> dict[str, Any] | None:
        return await found(operations, key)

    job = run(database, work)
    if job is None:
        raise failed(f"there is no event {key}", EXIT_NOT_FOUND)
    return job


async def found(operations: Operations, key: str) -> dict[str, Any] | None:
    """Return the event with a key; ``None`` if there is none."""
    ids = await operations.find(natural_key(key))
    return await operations.get(ids[0]) if ids else None


def filtered(
    statuses: list[str] | None,
    kinds: list[str] | None,
    key: str | None,
    since: datetime | None,
    until: datetime | None,
) -> Filter:
    """Return a filter. A command with an unknown status ends."""
    for status in statuses or ():
        if status not in STATUSES:
            raise failed(f"{status} is not a status; write one of {', '.join(STATUSES)}", EXIT_USAGE)
    named = [_kind(kind) for kind in kinds or ()]
    return Filter(statuses or None, named or None, key and natural_key(key), aware(since), aware(until))


def aware(moment: datetime | None) -> datetime | None:
    """Return a time of the terminal's zone."""
    return None if moment is None else moment.astimezone()


def _kind(kind: str) -> str:
    return f"slack.command.{kind[1:]}" if kind.startswith("/") else kind
