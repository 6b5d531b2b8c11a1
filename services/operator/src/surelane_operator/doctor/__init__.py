"""``surelane doctor``: find what is wrong with an installation, and say what to do.

A check that the connected role may not run is reported as unknown.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial

from pydantic import BaseModel, Field

from surelane.calls import Connection, translating
from surelane.errors import DatabaseRefused, Forbidden, NotMeasured, told
from surelane_operator.doctor import server
from surelane_operator.doctor.finding import Finding, Level
from surelane_operator.doctor.invariants import CHECKS, QUICK, ROWS, look, objects
from surelane_operator.doctor.queue import (
    backlog,
    refused_claims,
    retention,
    schedules,
    sockets,
    vacuum,
    versions,
    workers,
)
from surelane_operator.reads.events import Reads

WATCHED = (
    "encoding",
    "writes",
    "triggers",
    "logins",
    "ownership",
    "row security",
    "publications",
    "collation",
    "sequences",
)
"""What may change under a running installation, of all that Surelane needs of a database."""

__all__ = ["AGAIN", "Examination", "Examinations", "Finding", "Level", "examine", "examine_at", "verify"]

Check = Callable[[], Awaitable[Sequence[Finding]]]


async def examine_at(dsn: str) -> list[Finding]:
    """Run all checks on a connection of their own; raise DatabaseUnavailable or DatabaseRefused without one."""
    async with server.connected(dsn) as connection:
        return await examine(dsn, connection)


async def examine(dsn: str, connection: Connection) -> list[Finding]:
    """Run all checks and return their findings. Without a usable schema, its contents are not checked.

    A second connection to ``dsn`` sends a notification to the first.
    """
    reads = Reads(connection)
    schema = await _answered("schema", partial(server.schema, connection))
    outside: dict[str, Check] = {
        "notifications": partial(server.notifications, dsn, connection),
        "clock": partial(server.clock, connection),
        "certificate": partial(server.certificate, dsn),
    }
    if schema[0].level is Level.PROBLEM:
        return schema + await _all_answered(outside)
    return schema + await _all_answered(
        {"roles": partial(server.roles, connection), "needs": partial(server.needs, connection, WATCHED)}
        | {"first calls": partial(server.first_calls, connection)}
        | {"timeline": partial(server.timeline, connection)}
        | outside
        | {"foreign locks": partial(server.foreign_locks, connection)}
        | {"dead rows": partial(server.dead_rows, connection), "indexes": partial(server.indexes, connection)}
        | {"vacuum": partial(vacuum, reads), "workers": partial(workers, reads)}
        | {"versions": partial(versions, reads), "queue": partial(backlog, reads)}
        | {"refused claims": partial(refused_claims, reads)}
        | {"schedules": partial(schedules, connection), "socket mode": partial(sockets, reads)}
        | {check.name: partial(look, connection, check, QUICK) for check in CHECKS if check.quick}
        | {"history": partial(retention, connection)}
    )


async def verify(
    connection: Connection, rows: int = ROWS, progress: Callable[[str], None] = lambda _: None
) -> list[Finding]:
    """Check the schema, the timeline and every rule of the queue.

    ``rows``: how many each check looks at, at most. ``progress`` is told before each check.
    """
    schema = await _answered("schema", partial(server.schema, connection))
    if schema[0].level is Level.PROBLEM:
        return schema
    needs = ["row security", "collation", "sequences"]
    checks: dict[str, Check] = {"needs": partial(server.needs, connection, needs)}
    checks |= {"timeline": partial(server.timeline, connection), "objects": partial(objects, connection)}
    checks |= {check.name: partial(look, connection, check, rows) for check in CHECKS}
    return schema + await _all_answered(checks, progress)


async def _all_answered(
    checks: Mapping[str, Check], progress: Callable[[str], None] = lambda _: None
) -> list[Finding]:
    findings: list[Finding] = []
    for nth, (name, check) in enumerate(checks.items(), 1):
        progress(f"{nth} of {len(checks)}: {name}")
        findings += await _answered(name, check)
    return findings


async def _answered(name: str, check: Check) -> list[Finding]:
    """Run a check. If this role may not run it, the finding says so."""
    try:
        with translating():
            return list(await check())
    except NotMeasured as error:
        return [Finding(name, Level.UNKNOWN, str(error), "run it again in a moment")]
    except Forbidden as error:
        found = f"this role may not see it: {error}"
        advice = "connect as a member of agent_operator; if it is one, see what was found of row security"
        return [Finding(name, Level.UNKNOWN, found, advice)]
    except DatabaseRefused as error:  # of the other checks each may still say something
        found = f"the database refuses this look: {told(error)}"
        return [Finding(name, Level.PROBLEM, found, "mend what it names; then run it again")]


FRESH = timedelta(minutes=1)
"""For so long an examination is shown to all callers that do not ask for a new one."""
AGAIN = timedelta(seconds=5)
"""A new one is not made sooner, however often callers ask."""


class Examination(BaseModel):
    """The doctor's findings."""

    at: datetime = Field(description="when the doctor looked")
    findings: list[Finding]


class Examinations:
    """The latest examination, shared by all callers."""

    def __init__(self, dsn: str, examine: Callable[[str], Awaitable[Sequence[Finding]]] = examine_at) -> None:
        """``examine`` runs the checks on the database at ``dsn``."""
        self._dsn = dsn
        self._examine = examine
        self._last: Examination | None = None
        self._running: asyncio.Task[Examination] | None = None

    async def latest(self, age: timedelta = FRESH) -> Examination:
        """Return an examination that is at most so old."""
        if self._last is not None and datetime.now(UTC) - self._last.at < age:
            return self._last
        if self._running is None:
            self._running = asyncio.create_task(self._run())
        # A caller that goes away does not end the examination that others wait for.
        return await asyncio.shield(self._running)

    async def _run(self) -> Examination:
        try:
            findings = await self._examine(self._dsn)
            self._last = Examination(at=datetime.now(UTC), findings=list(findings))
            return self._last
        finally:
            self._running = None
