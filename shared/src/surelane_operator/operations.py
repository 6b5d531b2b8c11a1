"""The operator's client: find events, explain why one waits, requeue, cancel, pause, schedules, figures."""

import json
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

import asyncpg

from surelane.calls import Calls, Connection, Pool
from surelane.jobs import Priority
from surelane.json_text import json_text
from surelane_service.cron import CatchUp, Cron
from surelane_service.figures import Measured
from surelane_service.groups import free_groups
from surelane_service.rates import Rate, rate_text

STEP = 500
"""Events per statement of a change to many. Each step is kept when a later one fails."""
STATUSES = ("pending", "scheduled", "running", "completed", "failed", "cancelled", "expired")
_LISTED = """id, kind, status, attempts, max_attempts, locked_by, run_at, left(error, 1000) as error
, left(reason, 1000) as reason, dedupe_key
, item_key, group_key, event_ts, enqueued_at, left(enqueued_by, 200) as enqueued_by
, heartbeat_at, deadline, finished_at, finished_by, traceparent, continuation_id, waits_for, lease_until, priority"""
"""The columns of a list: a few kilobytes per event at most, and nothing that is stored out of line."""
_LINK = re.compile(r"https?://[^/]+/archives/([A-Z0-9]+)/p(\d+)(\d{6})")


@dataclass(frozen=True, slots=True)
class Filter:
    """A filter of events; a field that is ``None`` matches every event.

    Attributes:
        statuses: some of :data:`STATUSES`.
        kinds: exact kinds.
        key: an item key, a group key or a dedupe key.
        since: the event was enqueued, or ended if it has, at or after this.
        until: the event was enqueued, or ended if it has, before this.
    """

    statuses: Sequence[str] | None = None
    kinds: Sequence[str] | None = None
    key: str | None = None
    since: datetime | None = None
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Cursor:
    """The last row of a page: its id, and when it ended, if it has."""

    id: int
    finished_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Replay:
    """The answer to a replay.

    Attributes:
        answer: ``replayed``; ``live``: the event has not ended; ``unknown``: there is no such event; ``no_step``: it
            has no such step.
        id: the new event's id.
        key: the new event's natural key.
        steps: the steps that were kept; for ``no_step`` those that there are.
    """

    answer: Literal["replayed", "live", "unknown", "no_step"]
    id: int | None
    key: str | None
    steps: Sequence[str]


def words_of(text: str) -> list[str]:
    """Return what to search for: the words; of a link to a message in Slack the channel and the message's time."""
    words: list[str] = []
    for word in text.split():
        link = _LINK.match(word)
        words += (link[1], f"{link[2]}.{link[3]}") if link else (word,)
    return words


def no_step(name: str | None, replay: Replay) -> str:
    """Say that an event has no such step, and which it has."""
    there = (
        f"its steps are: {', '.join(replay.steps)}"
        if replay.steps
        else "it has none; replay it without a step"
    )
    return f"the event has no stored step {name}; {there}"


class Operations(Measured):
    """The operator's calls, one SQL function each, on connections of the role ``agent_operator``."""

    def __init__(self, database: Pool | Connection) -> None:
        self._database = Calls(database)

    async def list_jobs(
        self, which: Filter, limit: int = 20, after: Cursor | None = None
    ) -> list[dict[str, Any]]:
        """List a page of events, newest first: live ones, then ended ones.

        Rows have no payload, result, errors or changes, because these may be large. :meth:`get` has them.
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
        return [_parsed(row) for row in rows]

    async def search(self, text: str, which: Filter, limit: int = 20) -> list[dict[str, Any]]:
        """List events in which people saw all words of a text, newest first. It looks at the newest 1,000 events.

        A link to a message in Slack stands for the message's channel and time. Rows are those of :meth:`list_jobs`. Of
        the filter only the kinds and ``since`` count.
        """
        rows = await self._database.fetch(
            f"select {_LISTED} from agent.search_jobs($1, $2, $3, $4)",  # noqa: S608 - a constant
            words_of(text),
            which.kinds,
            which.since,
            limit,
        )
        return [_parsed(row) for row in rows]

    async def recent(self, which: Filter, since: datetime, limit: int) -> list[dict[str, Any]]:
        """List the newest live events, and those that ended at or after ``since``: ``limit`` of each, at most.

        Rows are those of :meth:`list_jobs`, in one statement. The filter's times do not count.
        """
        wanted = which.statuses or STATUSES
        live, ended = [
            [status for status in states if status in wanted] for states in (STATUSES[:3], STATUSES[3:])
        ]
        rows = await self._database.fetch(
            f"select {_LISTED} from agent.list_jobs($1, $3, $4, null, null, null, null, $6)"  # noqa: S608 - a constant
            f" union all select {_LISTED} from agent.list_jobs($2, $3, $4, $5, null, null, null, $6)",
            live,
            ended,
            which.kinds,
            which.key,
            since,
            limit,
        )
        return [_parsed(row) for row in rows]

    async def find(self, key: str) -> list[int]:
        """Return the ids of the events with a natural key, or with an id as text; live ones come first."""
        return [row[0] for row in await self._database.fetch("select agent.find_events($1)", key)]

    async def get(self, identity: int) -> dict[str, Any] | None:
        """Return one event. An id may have ended more than once: the answer is the live or else the latest row.

        ``claims`` is the number of claims. ``claimed`` has the moments of the last 100 only. ``steps`` are those of a
        durable handler, with its sleeps, waits and signals. ``replay_of`` is the id of the event that this one runs
        again, ``replayed_as`` the ids of those that run this one again.
        """
        row = await self._database.fetchrow(
            # An array's lower bound is lost on the way to Python, so the number of claims comes beside it.
            "select *, coalesce(array_upper(claimed, 1), 0) as claims from agent.job where id = $1"
            " order by finished_at desc nulls first limit 1",
            identity,
        )
        if row is None:
            return None
        steps = await self._database.fetchval("select agent.list_steps($1)", identity)
        job = _parsed(row)
        replay_of = [change["id"] for change in job["changes"] if change.get("action") == "replay of"]
        replayed_as = [change["id"] for change in job["changes"] if change.get("action") == "replayed as"]
        return job | {
            "steps": json.loads(steps),
            "replay_of": replay_of[0] if replay_of else None,
            "replayed_as": replayed_as,
        }

    async def why(self, identity: int) -> tuple[str, str] | None:
        """Return why an event is not running, as a word and a sentence; ``None`` when there is no such event."""
        row = await self._database.fetchrow("select * from agent.why_waiting($1)", identity)
        return None if row is None or row["reason"] is None else (row["reason"], row["detail"])

    async def requeue(self, ids: Sequence[int]) -> list[int]:
        """Move ended events back into the queue, :data:`STEP` per statement, and return the ids that moved."""
        return [
            row[0]
            for start in range(0, len(ids), STEP)
            for row in await self._database.fetch(
                "select agent.requeue_events($1)", ids[start : start + STEP]
            )
        ]

    async def requeue_all(self, which: Filter, limit: int) -> list[int]:
        """Requeue up to ``limit`` ended events that match, newest first, and return the ids that moved."""
        return [identity async for page in self._pages(which, limit) for identity in await self.requeue(page)]

    async def replay(self, identity: int, *, from_step: str | None = None, payload: Any = None) -> Replay:  # noqa: ANN401 - any JSON value
        """Run an ended event again as a new event.

        Args:
            identity: the ended event's id.
            from_step: keep the steps that were stored before this one; ``None`` keeps none. The second step of a name
                is written ``name (2)``, as in the timeline.
            payload: the new event's payload; ``None``: that of the old one.

        Raises:
            InvalidInput: the payload cannot be stored, or the event's payload is an object and this one is not.
            Conflict: another transaction has the event or its group locked; nothing was changed.
        """
        row = await self._database.fetchrow(
            "select * from agent.replay_event($1, $2, $3)",
            identity,
            from_step,
            None if payload is None else json_text(payload),
        )
        assert row is not None  # noqa: S101 - one row, always
        return Replay(row["answer"], row["replay"], row["key"], row["steps"] or ())

    async def cancel(
        self, identity: int, *, by: str | None = None, reason: str | None = None, children: bool = False
    ) -> str | None:
        """Cancel by id: ``cancelled``, ``running`` (its handler is stopped), or ``None`` (not in the queue).

        ``busy`` means that another transaction locks the event, which was not changed. With ``children``, also what a
        continuation waits for is cancelled.
        """
        answer: str | None = await self._database.fetchval(
            "select agent.cancel_job($1, $2, $3, $4)", identity, by, reason, children
        )
        return answer

    async def cancel_all(self, which: Filter, limit: int, reason: str | None = None) -> dict[int, str]:
        """Cancel up to ``limit`` live events that match, and return :meth:`cancel`'s answer to each.

        It waits for no lock. ``busy`` means that another transaction locks the event, which was not changed.
        """
        answers: dict[int, str] = {}
        async for page in self._pages(which, limit):
            rows = await self._database.fetch(
                "select id, answer from agent.cancel_jobs($1, null, $2, false)", page, reason
            )
            answers.update((row["id"], row["answer"]) for row in rows)
        return answers

    async def _pages(self, which: Filter, limit: int) -> AsyncIterator[list[int]]:
        """Yield the ids of the events that match, :data:`STEP` at a time."""
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

    async def kinds(self) -> list[str]:
        """Return the kinds of events that were ever seen."""
        return [
            row["kind"] for row in await self._database.fetch("select kind from agent.kind order by kind")
        ]

    async def stats(self) -> list[dict[str, Any]]:
        """Count events by kind and state, with the time since when the oldest pending one is visible."""
        return [dict(row) for row in await self._database.fetch("select * from agent.queue_stats()")]

    async def workers(self) -> list[dict[str, Any]]:
        """List the workers with their state: ``alive``, ``lost``, ``died`` or ``silent``.

        A worker without a session is lost, and may come back. One that did not died. One that announces itself no
        longer is silent.
        """
        return [dict(row) for row in await self._database.fetch("select * from agent.list_workers()")]

    async def list_limits(self) -> list[dict[str, Any]]:
        """List the kinds that have a limit, or whose limit an operator lifted."""
        return [_limit(row) for row in await self._database.fetch("select * from agent.list_limits()")]

    async def set_limit(
        self, kind: str, *, concurrency: int | None = None, rate: Rate | None = None, per: str | None = None
    ) -> None:
        """Change the limit of a kind until it is reset.

        Args:
            kind: the kind.
            concurrency: how many run at once; 0 lifts the bound; ``None`` leaves it.
            rate: how many begin in a period; a count of 0 lifts the bound; ``None`` leaves it.
            per: ``kind``, ``workspace``, ``channel``, ``user`` or ``given``; ``None`` leaves it.

        Raises:
            InvalidInput: a value makes no sense.
        """
        await self._database.execute(
            "select agent.set_limit($1, $2, $3, $4, $5)",
            kind,
            concurrency,
            rate.count if rate else None,
            rate.period if rate and rate.count else None,
            per,
        )

    async def reset_limit(self, kind: str) -> bool:
        """Let the limit that workers declare hold again; return false when it did."""
        reset: bool = await self._database.fetchval("select agent.reset_limit($1)", kind)
        return reset

    async def clock(self) -> datetime:
        """Return the database's time."""
        now: datetime = await self._database.fetchval("select agent.clock()")
        return now

    async def list_cron(self) -> list[dict[str, Any]]:
        """List the named schedules."""
        return [_parsed(row) for row in await self._database.fetch("select * from agent.read_cron()")]

    async def set_cron(
        self,
        name: str,
        cron: Cron,
        *,
        kind: str,
        payload: Mapping[str, Any],
        catch_up: CatchUp = "one",
        paused: bool = False,
        priority: Priority = 1,
    ) -> datetime:
        """Create or change a named schedule and return its next firing.

        Args:
            name: the schedule's name.
            cron: the cron fields and their time zone.
            kind: the kind of the jobs that it enqueues.
            payload: the jobs' payload. ``cron`` (the name) and ``scheduled_at`` are added to it.
            catch_up: which of the times that no worker fired are fired later.
            paused: fire nothing.
            priority: of its jobs.

        Raises:
            InvalidInput: a value cannot be stored.
        """
        following = cron.next_after(datetime.now(UTC))
        await self._database.execute(
            "select agent.set_cron($1, $2, $3, $4, $5, $6, $7, $8, $9)",
            name,
            kind,
            cron.schedule,
            following,
            json_text(payload),
            cron.time_zone,
            catch_up,
            paused,
            priority,
        )
        return following

    async def delete_cron(self, name: str) -> bool:
        """Delete a named schedule; return false when there is none of that name."""
        deleted: bool = await self._database.fetchval("select agent.delete_cron($1)", name)
        return deleted


def _limit(row: asyncpg.Record) -> dict[str, Any]:
    """Return a limit with its rates as text."""

    def rate(name: str, period: str) -> str | None:
        return None if row[name] is None else rate_text(row[name], row[period])

    return {
        "kind": row["kind"],
        "per": row["per"],
        "concurrency": row["concurrency"],
        "rate": rate("rate", "period"),
        "declared_concurrency": row["declared_concurrency"],
        "declared_rate": rate("declared_rate", "declared_period"),
        "set_at": row["set_at"],
        "set_by": row["set_by"],
    }


def _parsed(row: asyncpg.Record) -> dict[str, Any]:
    """Return a row as a dictionary, with its JSON parsed."""
    parsed = {"payload", "errors", "result", "changes"}
    return {
        name: json.loads(value) if name in parsed and isinstance(value, str) else value
        for name, value in row.items()
    }
