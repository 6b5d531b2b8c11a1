"""The worker's client of the queue. Each method is one call of a function in ``migrations/idempotent/``."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Any

from surelane.calls import Calls, Connection, Pool, Row
from surelane.codec import (
    ANSWER,
    ERROR,
    PLAIN,
    PROGRESS,
    SAID,
    SEALED,
    Codec,
    DamagedError,
    Location,
    at_signal,
    at_step,
    at_tag,
)
from surelane.events import Event
from surelane.jobs import Job, job_text
from surelane_service.compatibility import schema_version
from surelane_service.conversations import Conversations
from surelane_service.cron import Schedules
from surelane_service.figures import Figures, Measured, read_figures
from surelane_service.fleet import Fleet
from surelane_service.sealing import opened_end, sealed_argument
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
from agent.claim_events($1, $2, $3, $4, $5, $6, $7, $8) with ordinality"""  # noqa: S608 - constants
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


@dataclass(frozen=True, slots=True)
class ModelUse:
    """What one response of a model used, with its cost by the team's prices."""

    model: str
    input_tokens: int
    output_tokens: int
    cost: Decimal


@dataclass(frozen=True, slots=True)
class Spent:
    """Tokens, input and output, and their cost by the team's prices."""

    tokens: int
    cost: Decimal


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
class StoredStep:
    """A step that an earlier attempt stored.

    Attributes:
        nth: 1 for the first step of this name in a run, 2 for the second.
        sort: ``step``, ``sleep`` or ``wait``.
        arguments: a hash of them.
        result: JSON text. Before the step is done: its tries, its last error, the seconds left.
        done: whether it has a result, or its time is over. A step that failed has none.
        in_order: whether the handler's own task asked for it, once all that it had asked for before had ended.
    """

    name: str
    nth: int
    sort: str
    arguments: str | None
    result: str | None
    done: bool
    in_order: bool = False

    @property
    def tried(self) -> Mapping[str, Any]:
        """Of a step without a result: ``tries``, the last ``error``, seconds ``left`` to the next, and ``failed``."""
        return {} if self.done or self.sort != "step" else json.loads(self.result or "{}")

    @property
    def ended(self) -> bool:
        """Whether no later attempt runs it or waits for it again."""
        return self.done or bool(self.tried.get("failed"))

    @property
    def cut(self) -> bool:
        """Whether a timeout around it or a cancel of its task ended it."""
        if self.sort == "step":
            return self.ended and "cut" in (self.tried.get("error") or {})
        return self.done and self.result == '{"cut": true}'


class Engine(Schedules, Sweeping, Measured, Fleet, Conversations):
    """The functions of role ``agent_worker``. Methods raise errors of :mod:`surelane.errors` alone."""

    def __init__(self, database: Pool | Connection, codec: Codec = PLAIN) -> None:
        """``codec``: seals and opens what people wrote."""
        self._database = Calls(database, cuts=True)
        self._codec = codec

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
        """Claim up to ``limit`` visible events of ``kinds``, groups whole: the last group may exceed the limit.

        Args:
            max_attempts: for events that neither have a maximum nor are of a kind that has one.
            cursors: where to start scanning each lane and kind (``lane * len(kinds) + position``).
            member_kinds: the kinds that a group's head may bring along; ``kinds`` where ``None``.
            most_bytes: the claim stops before the event whose text would exceed this, but never before the first.
        """
        bounds = max_attempts, invisible_for, worker, cursors, member_kinds, most_bytes
        rows = await self._database.fetch(_CLAIM, kinds, limit, *bounds)
        events = [Event(*row) for row in rows]
        for event in events:
            event.vt = events[0].vt
        return events

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
        (row,) = await self._database.fetch(
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
        return await self._database.call("share_kind", kind)

    async def settle(self, items: Sequence[Item], within: float | None = None) -> list[Settled]:
        """Report outcomes in one call, each fenced by its claim. Return the answers in the order given.

        A batch of completions alone takes the database's quickest way. ``within``: seconds for the answer.
        """
        if self._codec.on:
            items = [await self._sealed(*item) for item in items]
        outcomes = [item[2] for item in items]
        arguments = [item[3] for item in items]
        rows = await self._database.fetch(
            "select * from agent.settle($1::text::int8[], $2::text::int4[], $3, $4) where answer <> 'done'",
            _array([item[0] for item in items]),
            _array([item[1] for item in items]),
            None if all(outcome == "complete" for outcome in outcomes) else outcomes,
            arguments if any(argument is not None for argument in arguments) else None,
            within=within,
        )
        return _answers(len(items), rows)

    async def _sealed(self, identity: int, claim: int, outcome: str, argument: str | None) -> Item:
        if argument:
            argument = await sealed_argument(self._codec, identity, outcome, argument)
        return identity, claim, outcome, argument

    async def extend_leases(
        self, items: Sequence[tuple[int, int]], invisible_for: timedelta = timedelta(minutes=10)
    ) -> list[Settled]:
        """Renew the leases of (id, claim) pairs; ``stale`` means that the lease is lost."""
        ids, claims = _ids_and_claims(items)
        statement = "select * from agent.extend_leases($1, $2, $3) where answer <> 'done'"
        rows = await self._database.fetch(statement, ids, claims, invisible_for)
        return _answers(len(items), rows)

    async def note_event(self, identity: int, claim: int, notes: str) -> Settled:
        """Keep ``notes`` (JSON text of an object) on a claimed event, for its later attempts."""
        return await self._fenced("note_event", identity, claim, notes)

    async def _fenced(self, function: str, *arguments: object) -> Settled:
        return Settled(await self._database.call(function, *arguments))

    async def answer_requests(self, items: Sequence[tuple[int, int, str]]) -> set[int]:
        """Answer the requests that wait for events: (id, claim, JSON text). Return the ids whose answer was taken."""
        answers = [
            text if text == EMPTY else await self._codec.seal(text, Location(identity, ANSWER))
            for identity, _, text in items
        ]
        ids, claims = _ids_and_claims(items)
        return set(await self._database.call("answer_requests", ids, claims, answers))

    async def store_step(
        self,
        identity: int,
        claim: int,
        name: str,
        nth: int,
        arguments: str | None,
        result: str | None,
        errors: str,
        took: timedelta,
        final: bool = False,
        in_order: bool = False,
    ) -> Settled:
        """Store a :class:`StoredStep` of a claimed event.

        Args:
            result: JSON text; ``None`` if it failed.
            errors: of its tries.
            final: whether its failure is kept: it is not run again.
        """
        arguments, result = await self.sealed_step(identity, name, nth, arguments, result)
        if self._codec.on:
            at = at_step(identity, name, nth, ERROR)
            errors = json.dumps([await self._codec.seal_error(error, at) for error in json.loads(errors)])
        step = name, nth, arguments, result, errors, took, final or result is not None, in_order
        return await self._fenced("store_step", identity, claim, *step)

    async def outlast(self, identity: int, claim: int, lease: timedelta) -> Settled:
        """Renew the lease of a claim that was asked to be cancelled: what it runs has not ended."""
        return await self._fenced("outlast", identity, claim, lease)

    async def cut_step(
        self,
        identity: int,
        claim: int,
        name: str,
        nth: int,
        sort: str,
        arguments: str | None,
        took: timedelta,
        in_order: bool,
    ) -> Settled:
        """Store that a step, a sleep or a wait of a claimed event was cut off: later attempts end it so, too."""
        given, _ = await self.sealed_step(identity, name, nth, arguments, None)
        return await self._fenced("cut_step", identity, claim, name, nth, sort, given, took, in_order)

    async def end_sleep(self, identity: int, claim: int, name: str, nth: int, in_order: bool) -> Settled:
        """Store that a sleep of a claimed event is over."""
        step = name, nth, None, None, "[]", timedelta(), True, in_order, "sleep"
        return await self._fenced("store_step", identity, claim, *step)

    async def due_waits(self, identity: int) -> set[tuple[str, int]]:
        """Return names and numbers of waits that may end now. Number 0: a signal of that name has come."""
        return {(row["name"], row["nth"]) for row in await self._database.rows("due_waits", identity)}

    async def count_usage(self, workspace: str, person: str, used: ModelUse, response: str) -> None:
        """Count what a model used for a person of a workspace. ``response`` names the response that is counted."""
        of = used.model, used.input_tokens, used.output_tokens, used.cost
        await self._database.call("count_usage", workspace, person, *of, response)

    async def read_usage(self, workspace: str, person: str) -> tuple[Spent, Spent]:
        """Return what models used today for a workspace, and for a person of it."""
        (row,) = await self._database.fetch("select * from agent.read_usage($1, $2)", workspace, person)
        return Spent(*row[:2]), Spent(*row[2:])

    async def end_sleeps(self, identity: int, claim: int) -> Settled:
        """Store that the sleeps of a claimed event whose time has passed are over."""
        return await self._fenced("end_sleeps", identity, claim)

    async def read_steps(self, identity: int, most: int | None = None) -> list[StoredStep]:
        """Return the steps that earlier attempts of an event stored, without results of more than ``most`` bytes."""
        rows = await self._database.rows("stored_steps", identity, most)
        return [await self._step(identity, StoredStep(*row)) for row in rows]

    async def _step(self, identity: int, step: StoredStep) -> StoredStep:
        if not (SEALED in (step.result or "") or SEALED in (step.arguments or "")):
            return step
        name, nth = step.name, step.nth
        arguments = step.arguments
        if arguments is not None and SEALED in arguments:
            at = at_step(identity, name, nth, "arguments")
            arguments = json.loads(await self._opened(identity, arguments, at) or "null")
        if step.tried and not step.done:
            at = replace(at_step(identity, name, nth, ERROR), rerun_of=await self.rerun_chain(identity))
            tried = {**step.tried, "error": await self._codec.show(step.tried["error"], at)}
            return replace(step, result=json.dumps(tried), arguments=arguments)
        at = at_signal(identity, name) if step.sort == "wait" else at_step(identity, name, nth)
        return replace(step, result=await self._opened(identity, step.result, at), arguments=arguments)

    async def _opened(self, identity: int, stored: str | None, at: Location) -> str | None:
        """Open what an event has. If it does not open, it may be of the events that this one runs again."""
        if stored is None or SEALED not in stored:
            return stored
        try:
            return await self._codec.open(stored, at)
        except DamagedError:
            chain = await self.rerun_chain(identity)
            return await self._codec.open(stored, replace(at, rerun_of=chain))

    async def step_result(self, identity: int, name: str, nth: int) -> str:
        """Return the result of a step that was stored, as JSON text."""
        stored = await self._database.call("step_result", identity, name, nth)
        return await self._opened(identity, stored, at_step(identity, name, nth)) or "null"

    async def store_progress(self, identity: int, claim: int, text: str) -> Settled:
        """Store how far a claimed event is, in words."""
        stored = await self._codec.seal(json.dumps(text), at_step(identity, *PROGRESS))
        return await self._fenced("open_step", identity, claim, *PROGRESS, stored, False)

    async def store_said(self, identity: int, claim: int, part: int, start: int, text: str) -> Settled:
        """Store what a claimed event says in a part, after ``start`` characters of it. At 0 the part begins anew."""
        stored = await self._codec.seal(json.dumps(text), Location(identity, SAID)) if text else None
        return await self._fenced("store_said", identity, claim, part, start, stored)

    async def offer_step(
        self, identity: int, claim: int, name: str, nth: int, token: str, in_order: bool = False
    ) -> Settled:
        """Let who has the token store a step of a claimed event, by ``agent.finish_step``."""
        step = name, nth, json.dumps({"token": token}), in_order
        return await self._fenced("open_step", identity, claim, *step)

    async def register_undo(self, identity: int, claim: int, name: str, nth: int) -> Settled:
        """Store that a claimed event has an undo, which is not run yet."""
        return await self._fenced("open_step", identity, claim, name, nth, None)

    async def begin_undo(self, identity: int, claim: int, name: str, nth: int) -> Settled:
        """Store that an undo of a claimed event begins: ``agent.undo_first`` then knows in which one workers died."""
        return await self._fenced("open_step", identity, claim, name, nth, '{"begun": true}')

    async def sealed_step(
        self, identity: int, name: str, nth: int, arguments: str | None, result: str | None
    ) -> tuple[str | None, str | None]:
        """Return a step's arguments and result as they are stored."""
        if result is not None:
            result = await self._codec.seal(result, at_step(identity, name, nth))
        if (
            arguments is not None and self._codec.on
        ):  # a hash of what was given: others could guess that by it
            at = at_step(identity, name, nth, "arguments")
            arguments = await self._codec.seal(json.dumps(arguments), at)
        return arguments, result

    async def store_tags(self, identity: int, claim: int, tags: Mapping[str, str | None]) -> Settled:
        """Set tags of a claimed event; ``None`` removes one.

        Raises:
            InvalidInput: the event would have more than 10.
        """
        stored = {
            name: None if value is None else await self._tag(identity, name, value)
            for name, value in tags.items()
        }
        return await self._fenced("store_tags", identity, claim, json.dumps(stored))

    async def _tag(self, identity: int, name: str, value: str) -> dict[str, Any]:
        if not self._codec.on:
            return {"found_by": value, "value": value}
        sealed = await self._codec.seal(json.dumps(value), at_tag(identity, name))
        return {"found_by": await self._codec.tag_key(name, value), "value": json.loads(sealed)}

    async def rerun_chain(self, identity: int) -> list[int]:
        """Return the ids of the earlier runs of an event, newest first."""
        return await self._database.call("rerun_chain", identity)

    async def gather(self, identity: int, claim: int, followers: Sequence[int]) -> tuple[str, list[int]]:
        """Note which events a claimed event's run gets beside it, unless an earlier run did.

        Return ``done``, ``stale``, ``busy`` or ``alone`` (after a lapse it was claimed without its followers), and the
        ids that were noted first.
        """
        (row,) = await self._database.rows("gather", identity, claim, followers)
        return row["answer"], row["followers"] or []

    async def ended_followers(self, identity: int) -> list[Event]:
        """Return the events that ended with an earlier run of this one, as it was suspended."""
        events = [Event(*row) for row in await self._database.fetch(_FOLLOWERS, identity)]
        await self._codec.open_events(events, required=True)
        return events

    async def take_signal(
        self, identity: int, claim: int, name: str, nth: int, seconds: float | None
    ) -> tuple[str, str | None]:
        """Take a signal for a wait of a claimed event: the answer, and the signal as JSON text if there is one."""
        within = None if seconds is None else timedelta(seconds=seconds)
        (row,) = await self._database.rows("take_signal", identity, claim, name, nth, within)
        return row["answer"], await self._opened(identity, row["signal"], at_signal(identity, name))

    async def run_child(
        self,
        identity: int,
        claim: int,
        name: str,
        arguments: str | None,
        child: Job,
        in_order: bool = False,
        if_failed: str = "cancel",
    ) -> tuple[str, str | None]:
        """Start a child of a claimed event, once, or take its end; answers as :meth:`take_signal`.

        ``if_failed``: what becomes of it if the event fails; see :meth:`Context.run` of the worker.
        """
        arguments, _ = await self.sealed_step(identity, name, 1, arguments, None)
        child = replace(child, payload=await self._codec.seal_payload(child.payload, of=identity))
        given = identity, claim, name, arguments, job_text(child), in_order, if_failed
        (row,) = await self._database.rows("run_child", *given)
        return row["answer"], row["signal"]

    async def end_children(self, identity: int, claim: int) -> list[str] | None:
        """Cancel the live children of a claimed event that is to undo, but those that are to be awaited.

        Return the names of the waits for all that live; ``None``: the claim no longer stands.
        """
        return await self._database.call("end_children", identity, claim)

    async def child_end(self, end: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return how a child ended, from the signal that :meth:`run_child` took."""
        return await opened_end(self._codec, end)

    async def send_signal(
        self, identity: int, name: str, value: str, *, once: bool, by: str
    ) -> tuple[str, str | None]:
        """Send a value, JSON text, to an event by its id; with ``once``, only the first one of a name counts.

        Return ``sent``, ``unknown``, or ``decided`` and the value that counts.
        """
        value = await self._codec.seal(value, at_signal(identity, name))
        (row,) = await self._database.rows("send_signal", identity, name, value, once, by)
        return row["answer"], await self._opened(identity, row["decided"], at_signal(identity, name))

    async def is_live(self, identity: int) -> bool:
        """Return whether an event is in the queue."""
        return await self._database.call("live_event", str(identity)) is not None

    async def cancel(self, identity: int, *, by: str, reason: str) -> str | None:
        """Cancel an event by its id; answers as :meth:`surelane.Queue.cancel` does."""
        return await self._database.call("cancel_job", identity, by, reason, False)

    async def replace_message(
        self, payload: Mapping[str, Any], key: str, step: str, *, restart: bool, by: str, reason: str
    ) -> str | None:
        """Cancel the turn of an edited or deleted message, and with ``restart`` store ``payload`` as a new event.

        Args:
            payload, key: of the new event: Slack's envelope with the message as it is now, at the time of the edit.
            step: the name of a step that each turn has.
            by, reason: who edited or deleted it, and why, both kept in history.

        It answers as :meth:`cancel`; ``None``: no turn of the message lives.
        """
        text, _ = await self._codec.seal_event(json.dumps(payload), None, payload)
        given = text, key, step, restart, by, reason
        return await self._database.call("replace_message", *given)

    async def cancelled_claims(self, items: Sequence[tuple[int, int]]) -> set[int]:
        """Return the ids of those (id, claim) pairs that were asked to be cancelled."""
        return {row[0] for row in await self._database.rows("cancelled_claims", *_ids_and_claims(items))}

    async def rescue_events(self, dead_for: timedelta = DEAD_FOR) -> int:
        """End the leases of claims without a heartbeat for ``dead_for``: their worker crashed. Return how many."""
        return await self._database.call("rescue_events", dead_for)

    async def schema_version(self) -> tuple[str, str]:
        return await schema_version(self._database)


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
