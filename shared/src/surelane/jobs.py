"""Jobs, schedules and workflows: what a program puts into the queue itself."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, Literal

import asyncpg
from opentelemetry import trace

from surelane.calls import Calls
from surelane.events import Inserted, Settled
from surelane.json_text import json_text
from surelane_service.telemetry.setup import traceparent_of

OnDuplicate = Literal["skip", "replace", "earliest"]
"""What becomes of a pending job when another comes under its dedupe key: it stays as it is, takes the new
payload and time, or takes the earlier of both times."""


@dataclass(frozen=True, slots=True)
class Job:
    """A job to be enqueued.

    Attributes:
        kind: what it is; a worker that handles the kind runs it.
        payload: any JSON value; the handler's ``event.payload`` when it is an object.
        dedupe_key: while a job under it was never claimed, another one is not added.
        run_at: not before; now where ``None``.
        max_attempts: attempts in total; the worker's setting where ``None``.
        group_key: its entity: jobs of one entity run one worker at a time.
        item_key: its natural key, by which it is found, cancelled and rescheduled; unique among what is live.
        enqueued_by: who asked for it, as people will read it; the database role where ``None``.
        deadline: expires when it has not begun by then.
    """

    kind: str
    payload: Any = field(default_factory=dict)
    dedupe_key: str | None = None
    run_at: datetime | None = None
    max_attempts: int | None = None
    group_key: str | None = None
    item_key: str | None = None
    enqueued_by: str | None = None
    deadline: datetime | None = None


@dataclass(frozen=True, slots=True)
class Continuation(Job):
    """The job that runs once, when every child has ended.

    Attributes:
        fails_with_children: ends as failed, without running, with the first child that does not complete;
            otherwise it is given each child's outcome, failures included.
    """

    fails_with_children: bool = False


@dataclass(frozen=True, slots=True)
class FanOutText:
    """Children and their continuation as JSON texts: sending them can no longer fail for what they hold in Python."""

    children: str
    continuation: str
    kinds: tuple[str, ...]

    @classmethod
    def of(cls, children: Sequence[Job], continuation: Job) -> "FanOutText":
        """Serialises jobs, with the current span as the one that enqueues them.

        Raises:
            TypeError, ValueError: JSON cannot hold a payload, or a time has no time zone.
        """
        kinds = tuple(job.kind for job in (*children, continuation))
        return cls(_array(children), _object(continuation), kinds)


@dataclass(frozen=True, slots=True)
class Child:
    """A child of a continuation and how it ended; ``status`` is its outcome once it has."""

    id: int
    kind: str
    item_key: str | None
    payload: Any
    status: str
    result: Any
    reason: str | None
    error: str | None


class Jobs:
    """The part of :class:`surelane.Queue` that enqueues."""

    _database: Calls

    async def enqueue(
        self,
        kind: str,
        payload: Any = None,  # noqa: ANN401 - any JSON value
        *,
        dedupe_key: str | None = None,
        run_at: datetime | None = None,
        max_attempts: int | None = None,
        group_key: str | None = None,
        item_key: str | None = None,
        enqueued_by: str | None = None,
        deadline: datetime | None = None,
        on_duplicate: OnDuplicate = "skip",
    ) -> int:
        """Enqueues one job, with :class:`Job`'s fields; returns its id, or that of the pending duplicate.

        Raises:
            InvalidInput: a field has a value that cannot be used.
            OutcomeUnknown: the job may have been stored. Enqueueing it again is safe with an ``item_key``.
        """
        job = Job(
            kind=kind,
            payload={} if payload is None else payload,
            dedupe_key=dedupe_key,
            run_at=run_at,
            max_attempts=max_attempts,
            group_key=group_key,
            item_key=item_key,
            enqueued_by=enqueued_by,
            deadline=deadline,
        )
        return (await self.enqueue_many([job], on_duplicate=on_duplicate))[0].id

    async def enqueue_many(
        self, jobs: Sequence[Job], *, on_duplicate: OnDuplicate = "skip"
    ) -> list[Inserted]:
        """Enqueues a batch in one transaction; answers in the order given."""
        rows = await self._database.fetch(
            "select id, duplicate from agent.enqueue_jobs($1, $2) order by ordinal",
            _array(jobs),
            on_duplicate,
        )
        return [Inserted(row["id"], row["duplicate"]) for row in rows]

    async def cancel(self, item_key: str) -> str | None:
        """Cancels by natural key: ``cancelled``; ``running`` (no further attempt); ``None``: not in the queue."""
        answer: str | None = await self._database.fetchval("select agent.cancel_event($1)", item_key)
        return answer

    async def reschedule(self, item_key: str, run_at: datetime) -> str | None:
        """Moves to another time by natural key: ``rescheduled``; ``None``: not in the queue.

        Nothing is changed where it is ``running``, or ``waiting`` for its children or an answer.
        """
        answer: str | None = await self._database.fetchval(
            "select agent.reschedule_event($1, $2)", item_key, run_at
        )
        return answer

    async def fan_out(self, children: Sequence[Job], continuation: Continuation) -> int:
        """Starts children and the continuation that waits for them, atomically; returns the continuation's id."""
        identity: int = await self._database.fetchval(
            "select agent.fan_out($1, $2)", _array(children), _object(continuation)
        )
        return identity

    async def continue_event(
        self,
        identity: int,
        claim: int,
        children: Sequence[Job],
        continuation: Continuation,
        result: str | None = None,
    ) -> Settled:
        """Completes a claimed event and starts its children and continuation, atomically and fenced."""
        return await self.continue_event_as(identity, claim, FanOutText.of(children, continuation), result)

    async def continue_event_as(
        self, identity: int, claim: int, jobs: FanOutText, result: str | None = None
    ) -> Settled:
        """As :meth:`continue_event`, for jobs that are serialised already."""
        answer = await self._database.fetchval(
            "select agent.continue_event($1, $2, $3, $4, $5)",
            identity,
            claim,
            jobs.children,
            jobs.continuation,
            result,
        )
        return Settled(answer)

    async def children(self, continuation: int) -> list[Child]:
        """The children of a continuation, in the order they were started."""
        rows = await self._database.fetch("select * from agent.children($1)", continuation)
        return [_child(row) for row in rows]

    async def await_event(self, identity: int, claim: int, deadline: datetime) -> Settled:
        """Parks a claimed event until its answer comes; past ``deadline`` it expires. Fenced."""
        return Settled(
            await self._database.fetchval("select agent.await_event($1, $2, $3)", identity, claim, deadline)
        )

    async def answer_event(self, identity: int, result: str) -> str:
        """Ends an event that awaits an answer: ``done``; ``running`` (try again); ``unknown`` (it awaits none)."""
        answer: str = await self._database.fetchval("select agent.answer_event($1, $2)", identity, result)
        return answer

    async def answer_dispatch(self, identity: int, agents: Sequence[str], result: str) -> str:
        """As :meth:`answer_event`, for one of these remote agents: what was dispatched to others is unknown to it."""
        answer: str = await self._database.fetchval(
            "select agent.answer_dispatch($1, $2, $3)", identity, agents, result
        )
        return answer

    async def fire_trigger(
        self, name: str, webhook_id: str, payload: str, traceparent: str | None = None
    ) -> Inserted:
        """Stores a webhook's call (JSON text) as a ``trigger-fire`` event; a repeated delivery finds the first."""
        row = await self._database.fetchrow(
            "select * from agent.fire_trigger($1, $2, $3, $4)", name, webhook_id, payload, traceparent
        )
        if row is None:
            raise LookupError("agent.fire_trigger returned no row")
        return Inserted(row["id"], row["duplicate"])


def _array(jobs: Sequence[Job]) -> str:
    return json_text([_fields(job) for job in jobs])


def _object(job: Job) -> str:
    return json_text(_fields(job))


def _fields(job: Job) -> Mapping[str, Any]:
    """A job as the SQL functions take it, with the span that enqueues it."""
    return {**asdict(job), "traceparent": traceparent_of(trace.get_current_span())}


def _child(row: asyncpg.Record) -> Child:
    return Child(
        id=row["id"],
        kind=row["kind"],
        item_key=row["item_key"],
        payload=json.loads(row["payload"]),
        status=row["status"],
        result=None if row["result"] is None else json.loads(row["result"]),
        reason=row["reason"],
        error=row["error"],
    )
