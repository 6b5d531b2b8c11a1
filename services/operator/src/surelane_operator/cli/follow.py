"""``surelane logs`` and ``surelane tail``: follow one event, or all, until Ctrl-C, by a bounded look each second."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Annotated, Any

from rich.text import Text
from typer import Option

from surelane.calls import Connection
from surelane_operator.cli import output
from surelane_operator.cli.events import AnyKey, Key, Kinds, Statuses, filtered
from surelane_operator.cli.session import Database, Json, event_named, interruptible, run
from surelane_operator.reads.events import Reads
from surelane_operator.reads.filters import Filter
from surelane_operator.reads.timeline import key_of, took_by, why_of

PAUSE = 1.0
"""Seconds between two looks."""
MOST = 200
"""Live and ended events of one look, each."""
LATE = timedelta(seconds=10)
"""How long after its end an event may become visible: its transaction commits later."""


def logs(key: Key, database: Database, as_json: Json = False) -> None:
    """Follow one event until it ends: its claims, failures, steps and changes. With --json, a line for each.

    Errors may quote what people wrote, so the look at them is kept.
    """

    async def work(reads: Reads, _: Connection) -> None:
        event: dict[str, Any] | None
        event = began = await event_named(reads, key, texts=True)
        story = output.PrintedStory()
        if not as_json:
            story.begin(began)
        while event is not None:
            for step in story.news(event):
                output.print_line(asdict(step)) if as_json else story.tell(step)
            if event["finished_at"] is not None:
                return
            await asyncio.sleep(PAUSE)
            event = await reads.get(event["id"], texts=True)

    with interruptible():
        run(database, work, within=None)


def tail(
    database: Database,
    kind: Kinds = None,
    status: Statuses = None,
    key: AnyKey = None,
    last: Annotated[int, Option(min=0, max=MOST, help="Begin with the last so many.")] = 10,
    as_json: Json = False,
) -> None:
    """Follow all events as they come, run and end. With --json, a line for each."""
    which = filtered(status=status, kind=kind, key=key)

    async def work(reads: Reads, _: Connection) -> None:
        async for event in _news(reads, which, last):
            _show(event, as_json=as_json)

    with interruptible():
        run(database, work, within=None)


async def _news(reads: Reads, which: Filter, last: int) -> AsyncIterator[dict[str, Any]]:
    """Yield the last so many events, then those that come, begin to run or end, in the order of time."""
    since, known = await reads.clock(), None
    while True:
        rows = await reads.recent(which, since - LATE, MOST)
        states = {(row["id"], row["finished_at"], row["status"], row["attempts"]): row for row in rows}
        if known is None:
            changed = await reads.list_events(which, last) if last else []
        else:
            changed = [row for state, row in states.items() if state not in known]
        for event in sorted(changed, key=moment_of):
            yield event
        known = set(states)
        since = max([since, *(row["finished_at"] for row in rows if row["finished_at"])])
        await asyncio.sleep(PAUSE)


def moment_of(event: dict[str, Any]) -> datetime:
    """Return when an event came into its state."""
    began: datetime = event["run_at"] if event["status"] == "running" else event["enqueued_at"]
    return event["finished_at"] or began


def _show(event: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        output.print_line(event)
        return
    screen = output.console()
    wide = max((screen.width - 39) // 2, 8)
    line = Text(f"{output.short_clock(moment_of(event))}  ")
    line.append(f"{event['status']:<9}", output.colour_of(event["status"]))
    line.append(
        f"  {output.middle(event['kind'], wide)}  {output.middle(key_of(event) or str(event['id']), wide)}"
    )
    line.append(f"  {took_by(event)}".rstrip())
    screen.print(line)
    if why := why_of(event):
        screen.print(Text(f"  {output.end(output.one_line(why), screen.width - 2)}", "bright_black"))
