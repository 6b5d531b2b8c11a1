"""What operators ask and do: find events, see why one waits, requeue, cancel, pause, schedules, figures."""

import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import asyncpg

from surelane.calls import Calls, Connection, Pool
from surelane_service.figures import Measured
from surelane_service.groups import free_groups
from surelane_service.schedules import Schedules

STEP = 500
"""Events that one statement changes: many are changed in bounded steps, each kept when a later one fails."""
_LISTED = """id, kind, status, attempts, max_attempts, locked_by, run_at, left(error, 1000) as error
, left(reason, 1000) as reason, dedupe_key
, item_key, group_key, event_ts, enqueued_at, left(enqueued_by, 200) as enqueued_by
, heartbeat_at, deadline, finished_at, finished_by, traceparent, continuation_id, waits_for, lease_until"""
"""What a list shows: at most a few kilobytes an event, and nothing that is stored out of line."""
STATUSES = ("pending", "scheduled", "running", "completed", "failed", "cancelled", "expired")


@dataclass(frozen=True, slots=True)
class Filter:
    """Which events; ``None`` means any.

    Attributes:
        statuses: of :data:`STATUSES`.
        kinds: exact kinds.
        key: an item key, a group key or a dedupe key.
        since, until: by when they were enqueued, or ended, if they have.
    """

    statuses: Sequence[str] | None = None
    kinds: Sequence[str] | None = None
    key: str | None = None
    since: datetime | None = None
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where a page ended: the last row's id, and when it ended, if it has."""

    id: int
    finished_at: datetime | None = None


class Operations(Schedules, Measured):
    """The operator's queries, each one call of a SQL function. For connections of role ``agent_operator``."""

    def __init__(self, database: Pool | Connection) -> None:
        self._database = Calls(database)

    async def list_jobs(
        self, which: Filter, limit: int = 20, after: Cursor | None = None
    ) -> list[dict[str, Any]]:
        """A page of events, newest first: live ones, then ended ones.

        Rows come without payload, result, errors and changes, which may be large: :meth:`get` has them.
        """
        rows = await self._database.fetch(
            f"select {_LISTED} from agent.list_jobs($1, $2, $3, $4, $5, $6, $7, $8)",  # noqa: S608 - a constant
            which.statuses,
            which.kinds,
            which.key,
            which.since,
            which.until,
            after.finished_at if after else None,
            after.id if after else None,
            limit,
        )
        return [_job(row) for row in rows]

    async def find(self, key: str) -> list[int]:
        """The ids under a natural key or of an id as text, live ones first."""
        return [row[0] for row in await self._database.fetch("select agent.find_events($1)", key)]

    async def get(self, identity: int) -> dict[str, Any] | None:
        """One event, live or ended; of an id that ended more than once, the live or the latest."""
        row = await self._database.fetchrow(
            "select * from agent.job where id = $1 order by finished_at desc nulls first limit 1", identity
        )
        return None if row is None else _job(row)

    async def why(self, identity: int) -> tuple[str, str] | None:
        """Why an event is not running: a word and a sentence; ``None``: no such event."""
        row = await self._database.fetchrow("select * from agent.why_waiting($1)", identity)
        return None if row is None or row["reason"] is None else (row["reason"], row["detail"])

    async def children(self, identity: int) -> list[dict[str, Any]]:
        """The children of a continuation."""
        return [_job(row) for row in await self._database.fetch("select * from agent.children($1)", identity)]

    async def requeue(self, ids: Sequence[int]) -> list[int]:
        """Moves ended events back into the queue, some in each statement; returns the ids that were moved."""
        return [
            row[0]
            for start in range(0, len(ids), STEP)
            for row in await self._database.fetch(
                "select agent.requeue_events($1)", ids[start : start + STEP]
            )
        ]

    async def requeue_all(self, which: Filter, limit: int) -> list[int]:
        """Requeues up to ``limit`` ended events that the filter wants, newest first; returns the moved ids."""
        return [identity async for page in self._pages(which, limit) for identity in await self.requeue(page)]

    async def cancel(self, identity: int) -> str | None:
        """Cancels by id: ``cancelled``, ``running`` (no further attempt), or ``None``: not in the queue."""
        answer: str | None = await self._database.fetchval("select agent.cancel_job($1)", identity)
        return answer

    async def cancel_all(self, which: Filter, limit: int) -> dict[int, str]:
        """Cancels up to ``limit`` live events that the filter wants; returns :meth:`cancel`'s answer to each.

        It waits for no lock: ``busy`` says that another transaction had the event, which stays as it is.
        """
        answers: dict[int, str] = {}
        async for page in self._pages(which, limit):
            rows = await self._database.fetch("select id, answer from agent.cancel_jobs($1)", page)
            answers.update((row["id"], row["answer"]) for row in rows)
        return answers

    async def _pages(self, which: Filter, limit: int) -> AsyncIterator[list[int]]:
        """The ids of listed events, as many at a time as one statement may change."""
        after: Cursor | None = None
        while limit > 0 and (page := await self.list_jobs(which, min(limit, STEP), after)):
            yield [job["id"] for job in page]
            limit -= len(page)
            after = Cursor(page[-1]["id"], page[-1]["finished_at"])

    async def pause(self, kind: str) -> None:
        """Pause a kind: its waiting events are neither claimed nor expired."""
        await self._database.execute("select agent.pause_kind($1)", kind)
        await free_groups(self._database)

    async def resume(self, kind: str) -> None:
        """Resume a kind."""
        await self._database.execute("select agent.resume_kind($1)", kind)
        await free_groups(self._database)

    async def stats(self) -> list[dict[str, Any]]:
        """Events by kind and state, and since when the oldest pending one is visible."""
        return [dict(row) for row in await self._database.fetch("select * from agent.queue_stats()")]

    async def workers(self) -> list[dict[str, Any]]:
        """The workers, as they last announced themselves; ``alive``: lately enough to count."""
        rows = await self._database.fetch(
            "select *, agent.worker_alive(seen_at) as alive from agent.worker order by name"
        )
        return [dict(row) for row in rows]

    async def clock(self) -> datetime:
        """The database's time."""
        now: datetime = await self._database.fetchval("select agent.clock()")
        return now

    async def list_cron(self) -> list[dict[str, Any]]:
        """The named schedules."""
        return [_job(row) for row in await self._database.fetch("select * from agent.read_cron()")]


def _job(row: asyncpg.Record) -> dict[str, Any]:
    """A row of ``agent.job`` with its JSON parsed."""
    parsed = {"payload", "errors", "result", "changes"}
    return {
        name: json.loads(value) if name in parsed and isinstance(value, str) else value
        for name, value in row.items()
    }
