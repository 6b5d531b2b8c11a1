"""The worker's client of the queue. Each method is one call of a function in ``migrations/idempotent/``."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from surelane.calls import Calls, Connection, Pool, Row
from surelane.codec import ANSWER, PLAIN, Codec, Location
from surelane.events import Event
from surelane_service.compatibility import schema_version
from surelane_service.cron import Schedules
from surelane_service.durable import Durable
from surelane_service.figures import Figures, Measured, read_figures
from surelane_service.fleet import Fleet
from surelane_service.sweeping import Sweeping

CANCEL_GRACE = timedelta(seconds=10)
"""How long a handler may go on after its event was asked to be cancelled: ``agent.cancel_grace``."""
SHORTEST_RETENTION = timedelta(days=3)
"""The shortest age by which history is dropped; the database's bound, too (``agent.drop_history``)."""
DEFAULT_MAX_ATTEMPTS = 3
"""Attempts in total where neither the event nor its kind has a maximum; the database's default, too."""
LANES = 16
"""Lanes that every kind uses; the database's number, too (``agent.lane_in``). Priorities and crowds use more."""
MOST_MEMBERS = 100
"""Members of a group that a claim brings along with its head, at most; the database's number, too."""
DEAD_FOR = timedelta(minutes=5)
"""Longest time that a claim stands after its last heartbeat; then it is rescued, even within its lease.

Workers and the rescue use this one value: a worker stops a handler whose claim may have been rescued.
"""
# The columns stand in the order of Event's fields: looking each up by its name takes a microsecond per event.
# All leases of a claim end at one time. To decode a time takes 4,000 instructions.
# The driver reads no row of an answer in which a time, as written by hand, lies beyond Python's years.
_READABLE = "least(greatest({0}, '0001-01-02 00:00+00'), '9999-12-30 00:00+00')"
_CLAIM = f"""
select id, kind, {_READABLE.format("event_ts")}, attempts, claim, case ordinality when 1 then vt end, event
    , case when prior_vt is not null then {_READABLE.format("prior_vt")} end, item_key, group_key
    , max_attempts, {_READABLE.format("enqueued_at")}, errors, traceparent, lane, notes
from agent.claim_events($1, $2, $3, $4, $5, $6, $7, $8, $9) with ordinality"""  # noqa: S608 - constants
_CLAIM_APART = f"""
select (c.claimed).id, (c.claimed).kind, {_READABLE.format("(c.claimed).event_ts")}, (c.claimed).attempts
    , array_upper((c.claimed).claimed, 1), (c.claimed).vt, (c.claimed).event, null::timestamptz, (c.claimed).item_key
    , (c.claimed).group_key, c.most, {_READABLE.format("(c.claimed).enqueued_at")}, (c.claimed).errors
    , (c.claimed).traceparent, null::int4, (c.claimed).notes, c.refused, c.code, c.object
from agent.claim_apart($1, $2, $3, $4, $5, agent.clock(), $6) as c"""  # noqa: S608 - constants
_FOLLOWERS = """
select id, kind, event_ts, attempts, claim, vt, event, null::timestamptz, item_key, group_key
    , max_attempts, enqueued_at, errors, traceparent, null::int4, notes
from agent.ended_followers($1)"""


def band_of(lane: int) -> int:
    """Return the band of a lane, as the database's function of that name does."""
    return 0 if lane < LANES else (lane - 12) // 4


EMPTY = "null"
"""The answer to a request that says nothing."""
Item = tuple[int, int, str, str | None]
"""An event's id, its claim, the outcome, and the outcome's argument as JSON text (see ``agent.settle``)."""


class Settled(StrEnum):
    """The database's answer to a settle or a heartbeat of one event."""

    DONE = "done"
    STALE = "stale"
    """Another claim holds the event, or it ended already; nothing was changed."""
    BUSY = "busy"
    """Another transaction holds a lock; nothing was changed, and the lease is kept: try again."""


@dataclass(frozen=True, slots=True)
class Peek:
    """The events and schedules that a worker waits for, at one moment. What the call did not ask for is ``None``.

    Attributes:
        now: that moment, by the database's clock.
        vts: when the first event of each lane and kind is visible, lane-major, up to the highest lane in use.
        paused: the kinds that are paused; their events are not in ``vts``.
        took: the duration of the peek in the database.
        cron_in: seconds until the next named schedule is due; ``None`` where there is none.
        position_free: whether a position was free before the named one.
        announced, drained: whether the named worker is announced, and whether an operator drained it.
    """

    now: datetime
    vts: Sequence[datetime | None]
    paused: frozenset[str]
    took: timedelta
    cron_in: float | None
    figures: Figures | None = None
    position_free: bool = False
    announced: bool | None = None
    drained: bool | None = None


@dataclass(frozen=True, slots=True)
class RefusedClaim:
    """An event whose row refuses to be claimed: a trigger or a constraint that others added does, or it is damaged.

    Attributes:
        event: its id.
        sqlstate: PostgreSQL's code of the reason.
        about: the constraint, the table, or the function that raised it, where the server named one.
    """

    event: int
    sqlstate: str
    about: str | None


class Engine(Durable, Schedules, Sweeping, Measured, Fleet):
    """The functions of role ``agent_worker``. Methods raise errors of :mod:`surelane.errors` alone."""

    def __init__(self, database: Pool | Connection, codec: Codec = PLAIN) -> None:
        """``codec``: seals and opens what people wrote. An extension may call further functions by ``calls``."""
        self.calls = Calls(database, cuts=True)
        self.codec = codec

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
        passed: Sequence[int] = (),
    ) -> list[Event]:
        """Claim up to ``limit`` visible events of ``kinds``, groups whole: the last group may exceed the limit.

        Args:
            max_attempts: for events that neither have a maximum nor are of a kind that has one.
            cursors: where to start scanning each lane and kind (``lane * len(kinds) + position``).
            member_kinds: the kinds that a group's head may bring along; ``kinds`` where ``None``.
            most_bytes: the claim stops before the event whose text would exceed this, but never before the first.
            passed: the ids of events that it passes over.

        Raises:
            DatabaseRefused: one row may refuse to be claimed. :meth:`claim_apart` finds out.
        """
        bounds = max_attempts, invisible_for, worker, cursors, member_kinds, most_bytes, passed
        rows = await self.calls.fetch(_CLAIM, kinds, limit, *bounds)
        events = [Event(*row) for row in rows]
        for event in events:
            event.vt = events[0].vt
        return events

    async def claim_apart(
        self,
        kinds: Sequence[str],
        limit: int,
        *,
        worker: str,
        max_attempts: int | None,
        invisible_for: timedelta,
        passed: Sequence[int],
    ) -> tuple[list[Event], list[RefusedClaim]]:
        """Claim heads one after another, also where a row refuses its claim. Return the events, and those rows."""
        given = kinds, limit, max_attempts, invisible_for, worker, passed
        rows = [tuple(row) for row in await self.calls.fetch(_CLAIM_APART, *given)]
        refusals = [RefusedClaim(*row[-3:]) for row in rows if row[-3] is not None]
        return [Event(*row[:-3]) for row in rows if row[-3] is None], refusals

    async def peek_events(
        self,
        kinds: Sequence[str],
        within: timedelta,
        *,
        max_attempts: int | None = None,
        cursors: Sequence[datetime | None] | None = None,
        measure: bool = False,
        positions_before: int = 0,
        worker: str | None = None,
        clock_offset: timedelta | None = None,
        drains: str | None = None,
    ) -> Peek:
        """Read which events are visible now or will be ``within`` that time, and when a schedule is due.

        Args:
            cursors: as in :meth:`claim_events`; without them the whole queue is read.
            measure, positions_before, drains: also return the figures, whether a position before this one is free, and
                whether an operator drained this worker.
            worker: record that this worker is alive, and ``clock_offset``.
        """
        sent = time.time()
        (row,) = await self.calls.fetch(
            "with peek as (select * from agent.peek_lanes($1, $2, $3, $4)) select now_at, vts, paused, took"
            ", case when exists (select from agent.due_cron()) then 0 else agent.next_cron() end as cron_in"
            ", case when $7::text is not null then agent.touch_worker($7, $8) end as announced"
            ", case when $9::text is not null then agent.worker_drained($9) end as drained"
            ", case when $6::int4 > 0 then agent.position_free($1, $6) end as position_free"
            ", case when $5 then agent.measure_queue() end as figures"  # last: its end is the statement's
            " from peek",
            *(kinds, within, max_attempts, cursors, measure, positions_before, worker, clock_offset, drains),
        )
        text, now = row["figures"], row["now_at"]
        figures = None if text is None else read_figures(text, sent, time.time(), now.timestamp())
        return Peek(
            *(now, row["vts"], frozenset(row["paused"]), row["took"], row["cron_in"], figures),
            *(bool(row["position_free"]), row["announced"], row["drained"]),
        )

    async def share_kind(self, kind: str) -> timedelta | None:
        """Keep a workspace with a backlog of a kind from holding up the others, in one bounded step.

        Return the time until the next step; ``None`` where there is no crowd, or another worker sees to it.
        """
        return await self.calls.call("share_kind", kind)

    async def settle(self, items: Sequence[Item], within: float | None = None) -> list[Settled]:
        """Report outcomes in one call, each fenced by its claim. Return the answers in the order given.

        A batch of completions alone takes the database's quickest way. Arguments are stored as they are.
        ``within``: seconds for the answer.
        """
        outcomes = [item[2] for item in items]
        arguments = [item[3] for item in items]
        rows = await self.calls.fetch(
            "select * from agent.settle($1::text::int8[], $2::text::int4[], $3, $4) where answer <> 'done'",
            _array([item[0] for item in items]),
            _array([item[1] for item in items]),
            None if all(outcome == "complete" for outcome in outcomes) else outcomes,
            arguments if any(argument is not None for argument in arguments) else None,
            within=within,
        )
        return _answers(len(items), rows)

    async def extend_leases(
        self, items: Sequence[tuple[int, int]], invisible_for: timedelta = timedelta(minutes=10)
    ) -> list[Settled]:
        """Renew the leases of (id, claim) pairs; ``stale`` means that the lease is lost."""
        ids, claims = _ids_and_claims(items)
        statement = "select * from agent.extend_leases($1, $2, $3) where answer <> 'done'"
        rows = await self.calls.fetch(statement, ids, claims, invisible_for)
        return _answers(len(items), rows)

    async def note_event(self, identity: int, claim: int, notes: str) -> Settled:
        """Keep ``notes`` (JSON text of an object) on a claimed event, for its later attempts."""
        return await self._fenced("note_event", identity, claim, notes)

    async def _fenced(self, function: str, *arguments: object) -> Settled:
        return Settled(await self.calls.call(function, *arguments))

    async def answer_requests(self, items: Sequence[tuple[int, int, str]]) -> set[int]:
        """Answer the requests that wait for events: (id, claim, JSON text). Return the ids whose answer was taken."""
        answers = [
            text if text == EMPTY else await self.codec.seal(text, Location(identity, ANSWER))
            for identity, _, text in items
        ]
        ids, claims = _ids_and_claims(items)
        return set(await self.calls.call("answer_requests", ids, claims, answers))

    async def outlast(self, identity: int, claim: int, lease: timedelta) -> Settled:
        """Renew the lease of a claim that was asked to be cancelled: what it runs has not ended."""
        return await self._fenced("outlast", identity, claim, lease)

    async def gather(self, identity: int, claim: int, followers: Sequence[int]) -> tuple[str, list[int]]:
        """Note which events a claimed event's run gets beside it, unless an earlier run did.

        Return ``done``, ``stale``, ``busy`` or ``alone`` (after a lapse it was claimed without its followers), and the
        ids that were noted first.
        """
        (row,) = await self.calls.rows("gather", identity, claim, followers)
        return row["answer"], row["followers"] or []

    async def ended_followers(self, identity: int) -> list[Event]:
        """Return the events that ended with an earlier run of this one, as it was suspended."""
        events = [Event(*row) for row in await self.calls.fetch(_FOLLOWERS, identity)]
        await self.codec.open_events(events, required=True)
        return events

    async def is_live(self, identity: int) -> bool:
        """Return whether an event is in the queue."""
        return await self.calls.call("live_event", str(identity)) is not None

    async def cancel(self, identity: int, *, by: str, reason: str) -> str | None:
        """Cancel an event by its id; answers as :meth:`surelane.Queue.cancel` does."""
        return await self.calls.call("cancel_job", identity, by, reason, False)

    async def cancelled_claims(self, items: Sequence[tuple[int, int]]) -> set[int]:
        """Return the ids of those (id, claim) pairs that were asked to be cancelled."""
        return {row[0] for row in await self.calls.rows("cancelled_claims", *_ids_and_claims(items))}

    async def rescue_events(self, dead_for: timedelta = DEAD_FOR) -> int:
        """End the leases of claims without a heartbeat for ``dead_for``: their worker crashed. Return how many."""
        return await self.calls.call("rescue_events", dead_for)

    async def dead_share(self) -> float | None:
        """Return the live queue's dead rows as a share of what is worth a vacuum; ``None``: this role may not."""
        return await self.calls.call("dead_share")

    async def vacuum(self) -> None:
        """Remove the dead rows of the live queue. It waits for no lock, and excludes no one."""
        await self.calls.fetchval("vacuum (skip_locked, index_cleanup auto, truncate false) agent.event")

    async def schema_version(self) -> tuple[str, str]:
        return await schema_version(self.calls)


def _ids_and_claims(items: Sequence[tuple[int, int, *tuple[str, ...]]]) -> tuple[list[int], list[int]]:
    return [item[0] for item in items], [item[1] for item in items]


def _array(numbers: Sequence[int]) -> str:
    """Return an array as PostgreSQL writes it. asyncpg would ask of each number whether it is an array itself."""
    return "{" + ",".join(map(str, numbers)) + "}"


def _answers(count: int, others: Sequence[Row]) -> list[Settled]:
    """Return ``count`` answers in the order given. The database sends only answers that are not ``done``."""
    answers = [Settled.DONE] * count
    for row in others:
        answers[row["ordinal"] - 1] = Settled(row["answer"])
    return answers
