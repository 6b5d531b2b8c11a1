"""``surelane logs`` and ``surelane tail``: follow one event, or all of them, until Ctrl-C.

A terminal that listened would be signalled for every notification, so each looks once a second, with a bounded
statement.
"""

import asyncio
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Annotated, Any

from rich.text import Text
from typer import Option

from surelane.calls import Connection
from surelane_operator.cli import output
from surelane_operator.cli.events import AnyKey, Key, Kinds, Statuses, filtered, found
from surelane_operator.cli.session import Database, Json, interruptible, run
from surelane_operator.reads.events import Reads
from surelane_operator.reads.filters import Filter

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
        event = began = await found(reads, key, texts=True)
        story = output.Story()
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
    which = filtered(status, kind, key, None, None)

    async def work(reads: Reads, _: Connection) -> None:
        news = News(reads, which)
        for event in await news.first(last):
            _show(event, as_json=as_json)
        while True:
            await asyncio.sleep(PAUSE)
            for event in await news.next():
                _show(event, as_json=as_json)

    with interruptible():
        run(database, work, within=None)


class News:
    """The events that changed since the last look."""

    def __init__(self, reads: Reads, which: Filter) -> None:
        self._reads = reads
        self._which = which
        self._live: dict[int, tuple[str, int]] = {}
        self._ended: set[tuple[int, datetime]] = set()
        self._since: datetime | None = None

    async def first(self, last: int) -> list[dict[str, Any]]:
        """Return the last so many events, oldest first."""
        self._since = await self._reads.clock()
        await self.next()
        page = await self._reads.list_events(self._which, last) if last else []
        return sorted(page, key=moment_of)

    async def next(self) -> list[dict[str, Any]]:
        """Return the events that came, began to run or ended since the last look, in the order of time."""
        assert self._since is not None  # noqa: S101 - set by the first look
        rows = await self._reads.recent(self._which, self._since - LATE, MOST)
        live = [event for event in rows if event["finished_at"] is None]
        changed = [event for event in live if self._live.get(event["id"]) != _state(event)]
        self._live = {event["id"]: _state(event) for event in live}
        ended = {(event["id"], event["finished_at"]): event for event in rows if event["finished_at"]}
        changed += [event for place, event in ended.items() if place not in self._ended]
        self._ended |= ended.keys()
        self._since = max([self._since, *(moment for _, moment in self._ended)])
        self._ended = {place for place in self._ended if place[1] >= self._since - LATE}
        return sorted(changed, key=moment_of)


def _state(event: dict[str, Any]) -> tuple[str, int]:
    return event["status"], event["attempts"]


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
        f"  {output.middle(event['kind'], wide)}  {output.middle(output.key_of(event) or str(event['id']), wide)}"
    )
    line.append(f"  {output.took_by(event)}".rstrip())
    screen.print(line)
    if why := output.why_of(event):
        screen.print(Text(f"  {output.end(why, screen.width - 2)}", "bright_black"))
