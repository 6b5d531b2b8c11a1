"""``surelane logs`` and ``surelane tail``: follow one event, or all of them, until Ctrl-C.

A terminal that listened would be signalled for every notification, so each looks once a second, with a bounded
statement.
"""

import asyncio
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Annotated, Any

import typer
from rich.text import Text

from surelane.calls import Connection
from surelane_operator.cli.find import Key, Kinds, Statuses, filtered, found
from surelane_operator.cli.jobs import key_of, took_by, why_of
from surelane_operator.cli.output import colour_of, console, end, json_line, middle
from surelane_operator.cli.session import EXIT_NOT_FOUND, Database, Json, failed, interruptible, run
from surelane_operator.cli.story import Story
from surelane_operator.cli.times import short_clock
from surelane_operator.operations import Filter, Operations
from surelane_operator.timeline import Step, story_of

PAUSE = 1.0
"""Seconds between two looks."""
MOST = 200
"""Live and ended events of one look, each."""
LATE = timedelta(seconds=10)
"""How long after its end an event may become visible: its transaction commits later."""


def logs(key: Key, database: Database, as_json: Json = False) -> None:
    """Follow one event until it ends: its claims, failures, steps and changes. With --json, a line for each."""

    async def work(operations: Operations, _: Connection) -> None:
        job = await found(operations, key)
        if job is None:
            raise failed(f"there is no event {key}", EXIT_NOT_FOUND)
        story, told = Story(), set[Step]()
        if not as_json:
            story.begin(job)
        while job is not None:
            if as_json:
                for step in story_of(job):
                    if step not in told:
                        told.add(step)
                        print(json_line(asdict(step)), flush=True)  # noqa: T201 - the command's output
            else:
                story.tell(job)
            if job["finished_at"] is not None:
                return
            await asyncio.sleep(PAUSE)
            job = await operations.get(job["id"])

    with interruptible():
        run(database, work, within=None)


def tail(
    database: Database,
    kind: Kinds = None,
    status: Statuses = None,
    key: Annotated[
        str | None, typer.Option(help="Only events with this item key, group key or dedupe key.")
    ] = None,
    last: Annotated[int, typer.Option(min=0, max=MOST, help="Begin with the last so many.")] = 10,
    as_json: Json = False,
) -> None:
    """Follow all events as they come, run and end. With --json, a line for each."""
    which = filtered(status, kind, key, None, None)

    async def work(operations: Operations, _: Connection) -> None:
        changes = Changes(operations, which)
        for job in await changes.first(last):
            _show(job, as_json=as_json)
        while True:
            await asyncio.sleep(PAUSE)
            for job in await changes.next():
                _show(job, as_json=as_json)

    with interruptible():
        run(database, work, within=None)


class Changes:
    """The events that changed since the last look."""

    def __init__(self, operations: Operations, which: Filter) -> None:
        self._operations = operations
        self._which = which
        self._live: dict[int, tuple[str, int]] = {}
        self._ended: dict[tuple[int, datetime], None] = {}
        self._since: datetime | None = None

    async def first(self, last: int) -> list[dict[str, Any]]:
        """Return the last so many events, oldest first."""
        self._since = await self._operations.clock()
        await self.next()
        page = await self._operations.list_jobs(self._which, last) if last else []
        return sorted(page, key=moment_of)

    async def next(self) -> list[dict[str, Any]]:
        """Return the events that came, began to run or ended since the last look, in the order of time."""
        assert self._since is not None  # noqa: S101 - set by the first look
        rows = await self._operations.recent(self._which, self._since - LATE, MOST)
        live = [job for job in rows if job["finished_at"] is None]
        changed = [job for job in live if self._live.get(job["id"]) != _state(job)]
        self._live = {job["id"]: _state(job) for job in live}
        for job in rows:
            if (
                job["finished_at"] is not None
                and (place := (job["id"], job["finished_at"])) not in self._ended
            ):
                self._ended[place] = None
                changed.append(job)
                self._since = max(self._since, job["finished_at"])
        self._ended = {place: None for place in self._ended if place[1] >= self._since - LATE}
        return sorted(changed, key=moment_of)


def _state(job: dict[str, Any]) -> tuple[str, int]:
    return job["status"], job["attempts"]


def moment_of(job: dict[str, Any]) -> datetime:
    """Return when an event came into its state."""
    began: datetime = job["run_at"] if job["status"] == "running" else job["enqueued_at"]
    return job["finished_at"] or began


def _show(job: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print(json_line(job), flush=True)  # noqa: T201 - the command's output
        return
    screen = console()
    wide = max((screen.width - 39) // 2, 8)
    line = Text(f"{short_clock(moment_of(job))}  ")
    line.append(f"{job['status']:<9}", colour_of(job["status"]))
    line.append(f"  {middle(job['kind'], wide)}  {middle(key_of(job) or str(job['id']), wide)}")
    line.append(f"  {took_by(job)}".rstrip())
    screen.print(line)
    if why := why_of(job):
        screen.print(Text(f"  {end(why, screen.width - 2)}", "bright_black"))
