"""The queue's client: the only Python that speaks to the queue. Every method is one call of a documented SQL function.

The database owns every change of state; see ``migrations/idempotent/`` for what each function does.
"""

import time
from collections.abc import Sequence
from datetime import datetime, timedelta

import asyncpg

from surelane.calls import Calls
from surelane.events import (
    DEAD_FOR,
    DEFAULT_MAX_ATTEMPTS,
    Completion,
    Event,
    Failure,
    Inserted,
    Peek,
    Settled,
)
from surelane.figures import Measured, read_figures
from surelane.groups import free_groups
from surelane.jobs import Jobs
from surelane.pool import Connection, Pool
from surelane.schedules import Schedules
from surelane.settle import Item, settle

Row = asyncpg.Record


class Queue(Jobs, Schedules, Measured):
    """The queue behind a connection or a pool.

    On the caller's own connection, calls join the caller's transaction; on a pool, each call is its own.

    Every method raises errors of :mod:`surelane.errors` alone: :class:`OutcomeUnknown` where the call may have
    taken effect; :class:`DatabaseUnavailable` and :class:`DatabaseRefused` where it changed nothing.
    """

    def __init__(self, database: Pool | Connection) -> None:
        self._database = Calls(database)

    async def insert_event(self, event: str) -> int:
        """Stores one event (JSON text of an envelope or a bare event); returns its id, the twin's for a duplicate.

        Raises:
            InvalidInput: the text is not a JSON object that PostgreSQL can hold.
        """
        identity: int = await self._database.fetchval("select agent.insert_event($1)", event)
        return identity

    async def insert_events(
        self,
        events: Sequence[str],
        *,
        traceparents: Sequence[str | None] | None = None,
        item_keys: Sequence[str | None] | None = None,
    ) -> list[Inserted]:
        """Stores a batch in one round trip and one transaction; answers in the order given.

        Args:
            events: JSON texts of objects.
            traceparents: the span that stores each, kept on its row.
            item_keys: natural keys that override the event's own, where not ``None``.

        Raises:
            Conflict: one of them is blocked by another transaction: insert them singly.
            InvalidInput: one of them cannot be held as jsonb: insert them singly to find out which.
        """
        rows = await self._database.fetch(
            "select id, duplicate from agent.insert_events($1, $2, $3) order by ordinal",
            events,
            traceparents,
            item_keys,
        )
        return [Inserted(row["id"], row["duplicate"]) for row in rows]

    async def claim_event(
        self, max_attempts: int = DEFAULT_MAX_ATTEMPTS, invisible_for: timedelta = timedelta(minutes=10)
    ) -> Event | None:
        """Claims one visible event of any kind that is not paused, chosen at random; ``None`` when there is none."""
        row = await self._database.fetchrow(
            "select id, kind, event_ts, attempts, array_upper(claimed, 1), vt, event, null::timestamptz, item_key"
            ", group_key, max_attempts, enqueued_at, errors, traceparent, lane, notes from agent.claim_event($1, $2)",
            max_attempts,
            invisible_for,
        )
        return None if row is None else Event(*row)

    async def claim_events(
        self,
        kinds: Sequence[str],
        limit: int,
        *,
        worker: str,
        max_attempts: int | None = None,
        invisible_for: timedelta = timedelta(minutes=10),
        cursors: Sequence[datetime | None] | None = None,
        member_kinds: Sequence[str] | None = None,
        most_bytes: int | None = None,
    ) -> list[Event]:
        """Claims up to ``limit`` visible events of ``kinds`` (more when the last group is larger), groups whole.

        Args:
            worker: recorded as ``claimed_by``.
            max_attempts: for events that neither have a maximum nor are of a kind that has one.
            cursors: for each lane and kind (``lane * len(kinds) + position``), where to start scanning.
            member_kinds: the kinds of which a group may bring events along; ``kinds`` where ``None``.
            most_bytes: stops before the event whose text would exceed this, but never before the first.
        """
        rows = await self._database.fetch(
            # In the order of Event's fields: looking each up by its name takes a microsecond an event.
            "select id, kind, event_ts, attempts, claim, vt, event, prior_vt, item_key, group_key, max_attempts"
            ", enqueued_at, errors, traceparent, lane, notes"
            " from agent.claim_events($1, $2, $3, $4, $5, $6, $7, $8)",
            kinds,
            limit,
            max_attempts,
            invisible_for,
            worker,
            cursors,
            member_kinds,
            most_bytes,
        )
        return [Event(*row) for row in rows]

    async def peek_events(
        self,
        kinds: Sequence[str],
        within: timedelta,
        *,
        max_attempts: int | None = None,
        cursors: Sequence[datetime | None] | None = None,
        measure: bool = False,
    ) -> Peek:
        """Looks at what can be claimed now or will be ``within`` that time, and at named schedules; claims nothing.

        Args:
            cursors: as in :meth:`claim_events`; without them it looks at everything.
            measure: brings the queue's figures along, where there are any.
        """
        sent = time.time()
        (row,) = await self._database.fetch(
            "with peek as (select * from agent.peek_events($1, $2, $3, $4)) select now_at, vts, paused, took"
            ", case when exists (select from agent.due_cron()) then 0 else agent.next_cron() end as cron_in"
            ", case when $5 then agent.measure_queue() end as figures"  # last: its end is the statement's
            " from peek",
            kinds,
            within,
            max_attempts,
            cursors,
            measure,
        )
        text, now = row["figures"], row["now_at"]
        figures = None if text is None else read_figures(text, sent, time.time(), now.timestamp())
        return Peek(now, row["vts"], frozenset(row["paused"]), row["took"], row["cron_in"], figures)

    async def settle(self, items: Sequence[Item], max_attempts: int | None = None) -> list[Settled]:
        """Report outcomes, each fenced by its claim. Return the answers in the order given.

        Args:
            items: for each event its id, claim, outcome, and the outcome's argument as JSON text.
            max_attempts: for events that neither have a maximum nor are of a kind that has one.
        """
        return await settle(self._database, items, max_attempts)

    async def complete_events(self, items: Sequence[Completion]) -> list[Settled]:
        """Moves events to history as completed, each fenced by its claim; answers in the order given."""
        rows = await self._database.fetch(
            "select * from agent.complete_events($1, $2, $3) where answer <> 'done'",
            [item.id for item in items],
            [item.claim for item in items],
            [item.result for item in items] if any(item.result is not None for item in items) else None,
        )
        return _answers(len(items), rows)

    async def fail_events(self, items: Sequence[Failure], max_attempts: int | None = None) -> list[Settled]:
        """Records failed attempts: retried after ``retry_in``, or moved to history as failed when none remain."""
        rows = await self._database.fetch(
            "select * from agent.fail_events($1, $2, $3, $4, $5, $6, $7) where answer <> 'done'",
            [item.id for item in items],
            [item.claim for item in items],
            [item.error for item in items],
            [timedelta(seconds=item.retry_in) for item in items],
            [item.final for item in items],
            [item.reason for item in items],
            max_attempts,
        )
        return _answers(len(items), rows)

    async def snooze_event(self, identity: int, claim: int, pause: timedelta) -> Settled:
        """Puts an event off for ``pause``; the attempt is not counted."""
        return Settled(
            await self._database.fetchval("select agent.snooze_event($1, $2, $3)", identity, claim, pause)
        )

    async def extend_leases(
        self, items: Sequence[tuple[int, int]], invisible_for: timedelta = timedelta(minutes=10)
    ) -> list[Settled]:
        """Renews the leases of (id, claim) pairs; ``stale`` means that the lease is lost."""
        rows = await self._database.fetch(
            "select * from agent.extend_leases($1, $2, $3) where answer <> 'done'",
            [identity for identity, _ in items],
            [claim for _, claim in items],
            invisible_for,
        )
        return _answers(len(items), rows)

    async def note_event(self, identity: int, claim: int, notes: str) -> Settled:
        """Keeps ``notes`` (JSON text of an object) on a claimed event, for its later attempts."""
        return Settled(
            await self._database.fetchval("select agent.note_event($1, $2, $3)", identity, claim, notes)
        )

    async def release_events(self, items: Sequence[tuple[int, int]]) -> list[Settled]:
        """Gives events back at once, their attempt not counted."""
        rows = await self._database.fetch(
            "select * from agent.release_events($1, $2) where answer <> 'done'",
            [identity for identity, _ in items],
            [claim for _, claim in items],
        )
        return _answers(len(items), rows)

    async def delete_event(self, identity: int) -> None:
        """Moves an event to history as completed, whoever holds it; an unknown id does nothing."""
        await self._database.execute("select agent.delete_event($1)", identity)

    async def delete_expired_events(
        self, max_attempts: int = DEFAULT_MAX_ATTEMPTS, max_vt_age: timedelta = timedelta(hours=1)
    ) -> int:
        """Moves exhausted and too old events to history, a second's worth in each statement; returns how many."""
        expired = 0
        while moved := await self._database.fetchval(
            "select agent.delete_expired_events($1, $2)", max_attempts, max_vt_age
        ):
            expired += moved
        return expired

    async def sweep_events(
        self,
        *,
        max_attempts: int | None = None,
        max_vt_age: timedelta = timedelta(hours=1),
        kinds: Sequence[str] | None = None,
        by_age: bool = True,
        limit: int = 1000,
        mend: bool = True,
    ) -> int:
        """One bounded batch of a sweep: moves up to ``limit`` events of each sort to history; returns how many.

        Call it again until it returns 0.

        Args:
            max_attempts: for events that neither have a maximum nor are of a kind that has one; ``None``: left alone.
            max_vt_age: an event visible and unclaimed for longer is too old, where ``by_age``.
            kinds: those that may be too old; every one where ``None``.
            mend: looks at every group and continuation beforehand; once is enough for many calls in a row.
        """
        swept: int = await self._database.fetchval(
            "select agent.sweep_events($1, $2, $3, $4, $5, $6)",
            max_attempts,
            max_vt_age,
            kinds,
            by_age,
            limit,
            mend,
        )
        return swept

    async def free_groups(self) -> None:
        """Give another head to every group that waits behind one which is not claimed, in bounded steps."""
        await free_groups(self._database)

    async def rescue_events(self, dead_for: timedelta = DEAD_FOR) -> int:
        """Ends the leases of claims without a heartbeat for ``dead_for``: their worker crashed. Returns how many."""
        rescued: int = await self._database.fetchval("select agent.rescue_events($1)", dead_for)
        return rescued

    async def announce_worker(
        self,
        name: str,
        kinds: Sequence[str],
        version: str,
        clock_offset: timedelta | None = None,
        max_attempts: int | None = None,
    ) -> None:
        """A worker says that it is alive, what it handles, and how far its clock is ahead of the database's.

        Args:
            max_attempts: becomes the maximum of its kinds, for events that have none of their own.
        """
        await self._database.execute(
            *("select agent.announce_worker($1, $2, $3, $4, $5)", name, kinds, version, clock_offset),
            max_attempts,
        )

    async def retire_worker(self, name: str) -> None:
        """A worker that ends says so."""
        await self._database.execute("select agent.retire_worker($1)", name)

    async def schema_version(self) -> tuple[str, str]:
        """The database's version and the oldest version of the services it still serves."""
        row = await self._database.fetchrow("select version, min_compatible from agent.schema_version()")
        if row is None:
            raise LookupError("agent.version holds no row")
        return row["version"], row["min_compatible"]


def _answers(count: int, others: Sequence[Row]) -> list[Settled]:
    """The answers to ``count`` items in the order given. Only what is not done, which is rare, comes over the wire."""
    answers = [Settled.DONE] * count
    for row in others:
        answers[row["ordinal"] - 1] = Settled(row["answer"])
    return answers
