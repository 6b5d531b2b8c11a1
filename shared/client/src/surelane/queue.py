"""The queue's clients for programs and handlers. Each method is one call of a documented SQL function."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from surelane.codec import PLAIN, RESULT, Codec, Location, SealedError, at_signal
from surelane.drivers import AsyncDatabase, async_driver
from surelane.errors import EncryptionFailed, InvalidInput
from surelane.events import Inserted
from surelane.jobs import Child, Continuation, Job, OnDuplicate, Priority, Unopened, job_text, jobs_text
from surelane.json_text import json_text, read_json

OnStored = Callable[[Sequence[str]], None]
"""Takes the kinds of the jobs that a call stored, one for each job. Duplicates are not among them."""
LimitKeyOf = Callable[[Job], str | None]
"""Returns the key with which the limit of its kind counts a job; ``None`` where the database derives it."""


# The JSON of arguments and answers is text: the caller may have taught the connection another way to read jsonb.
_CHILDREN = (
    "select id, kind, item_key, payload::text as payload, status, result::text as result, reason, error"
    " from agent.children($1::int8)"
)


_INSERT = "select agent.insert_event($1::text::jsonb)"
_INSERT_KEYED = "select id from agent.insert_events(array[$1::text::jsonb], null, array[$2::text])"


class Queue:
    """Put jobs into the queue, change them, and read the children of a workflow.

    On the caller's connection or session, calls join the caller's transaction. On a pool, each call is its own
    transaction. ``surelane_drivers.SyncQueue`` has the same methods for synchronous connections.

    Every method raises errors of :mod:`surelane.errors` alone. :class:`OutcomeUnknown` means that the call may have
    taken effect. After :class:`DatabaseUnavailable` and :class:`DatabaseRefused` it changed nothing.
    """

    _driver_of = staticmethod(async_driver)  # SyncQueue has another one

    def __init__(
        self,
        database: AsyncDatabase,
        on_stored: OnStored | None = None,
        limit_key_of: LimitKeyOf | None = None,
        encryption: Codec | None = None,
    ) -> None:
        """Use a connection or a pool.

        Args:
            database: an asyncpg connection or pool; with ``surelane-drivers`` also a psycopg ``AsyncConnection``, or
                an ``AsyncConnection`` or ``AsyncSession`` of SQLAlchemy.
            on_stored: is called after each call that stored jobs, to count them.
            limit_key_of: is called for each job that has no ``limit_key``, before it is stored.
            encryption: seals what is stored: payloads, events, signals and answers. The extension
                ``surelane-encryption`` has one, ``Encryption``.

        Raises:
            UnsupportedConnection: it is something else.
        """
        self._database = self._driver_of(database)
        self._on_stored = on_stored
        self._limit_key_of = limit_key_of
        self._codec = PLAIN if encryption is None else encryption

    async def insert_event(self, event: str) -> int:
        """Store one event (JSON text of an envelope or a bare event) and return its id.

        A duplicate returns the id of the event that was stored before.

        Raises:
            InvalidInput: the text is not a JSON object that PostgreSQL can hold.
        """
        key = None
        if self._codec.on:
            payload = _parsed(event)
            if not isinstance(payload, dict):
                raise InvalidInput("an event is a JSON object")
            event, key = await self._codec.seal_event(event, None, payload)
        insert, arguments = (_INSERT, (event,)) if key is None else (_INSERT_KEYED, (event, key))
        return await self._value(insert, *arguments)

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
        priority: Priority = 1,
        limit_key: str | None = None,
    ) -> int:
        """Enqueue one job, with :class:`Job`'s fields, and return its id, or the id of the pending duplicate.

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
            priority=priority,
            limit_key=limit_key,
        )
        return (await self.enqueue_many([job], on_duplicate=on_duplicate))[0].id

    async def enqueue_many(
        self, jobs: Sequence[Job], *, on_duplicate: OnDuplicate = "skip"
    ) -> list[Inserted]:
        """Enqueue a batch in one transaction and return the answers in the order given."""
        rows = await self._database.fetch(
            "select id, duplicate from agent.enqueue_jobs($1::text::jsonb, $2) order by ordinal",
            jobs_text(await self._ready(jobs)),
            on_duplicate,
        )
        answers = [Inserted(row["id"], row["duplicate"]) for row in rows]
        self._stored([job.kind for job, answer in zip(jobs, answers, strict=True) if not answer.duplicate])
        return answers

    async def cancel(
        self, item_key: str, *, by: str | None = None, reason: str | None = None, children: bool = False
    ) -> str | None:
        """Cancel an event by its natural key, or its id as text.

        Args:
            by: who asks for it; by default the database's role.
            reason: why, kept in history.
            children: cancel also the children that a continuation waits for.

        Returns:
            ``cancelled``; ``running``: its handler is stopped; ``busy``: locked, try again; ``None``: not in the
            queue.
        """
        return await self._value("select agent.cancel_live($1, $2, $3, $4)", item_key, by, reason, children)

    async def signal(self, key: str, name: str, value: Any = None) -> str | None:  # noqa: ANN401 - any JSON value
        """Send a value to a live event, for its ``ctx.wait_for(name)``. It may come before the wait.

        Args:
            key: the event's natural key, or its id as text.
            value: any JSON value of at most a million bytes.

        Returns:
            ``sent``; ``None``: not in the queue.

        Raises:
            Conflict: another transaction has the event locked; nothing was sent.
        """
        text = await self._codec.seal(json_text(value), at_signal(None, name))
        return await self._value("select agent.signal($1, $2, $3::text::jsonb)", key, name, text)

    async def signal_id(self, identity: int, name: str, value: Any = None) -> str | None:  # noqa: ANN401 - any JSON value
        """Send a value as :meth:`signal` does, to the event with this id."""
        text = await self._codec.seal(json_text(value), at_signal(identity, name))
        return await self._value(
            "select agent.signal_event($1::int8, $2, $3::text::json)", identity, name, text
        )

    async def reschedule(self, item_key: str, run_at: datetime) -> str | None:
        """Move to another time by natural key: ``rescheduled``; ``None``: not in the queue.

        A job that is ``running``, or ``waiting`` for its children or an answer, is not changed.

        Raises:
            InvalidInput: the time has no time zone.
        """
        if run_at.tzinfo is None:  # some drivers would take the session's time zone
            raise InvalidInput(f"{run_at!r} has no time zone")
        return await self._value("select agent.reschedule_event($1, $2)", item_key, run_at)

    async def fan_out(self, children: Sequence[Job], continuation: Continuation) -> int:
        """Start children and the continuation that waits for them, atomically; return the continuation's id."""
        identity: int = await self._value(
            "select agent.fan_out($1::text::jsonb, $2::text::jsonb)",
            jobs_text(await self._ready(children)),
            job_text(*await self._ready([continuation])),
        )
        self._stored([job.kind for job in (*children, continuation)])
        return identity

    async def children(self, continuation: int) -> list[Child]:
        """Return the children of a continuation, in the order in which they were started.

        A payload or a result that cannot be opened raises why only as it is read.
        """
        rows = await self._database.fetch(_CHILDREN, continuation)
        # The columns stand in the order of its fields.
        return [await self._opened_child(Child(*row.values())) for row in rows]

    async def _opened_child(self, stored: Child) -> Child:
        payload = await self._opened(stored.payload)
        result = stored.result and await self._opened(stored.result, Location(stored.id, RESULT))
        return replace(stored, payload=payload, result=result)

    async def _opened(self, text: str, at: Location | None = None) -> Any:  # noqa: ANN401 - any JSON value
        try:
            return read_json(text if self._codec is PLAIN else await self._codec.open(text, at))
        except (SealedError, EncryptionFailed) as error:
            return Unopened(error)

    async def answer_event(self, identity: int, result: str) -> str:
        """End an event that awaits an answer: ``done``; ``running`` (try again); ``unknown`` (it awaits none)."""
        if self._codec.on:
            _parsed(result)
            result = await self._codec.seal(result, Location(identity, RESULT))
        return await self._value("select agent.answer_event($1::int8, $2::text::jsonb)", identity, result)

    async def _value(self, query: str, *arguments: object) -> Any:  # noqa: ANN401 - any SQL type
        """Return the one value of a query's one row."""
        (row,) = await self._database.fetch(query, *arguments)
        (value,) = row.values()
        return value

    async def _ready(self, jobs: Sequence[Job]) -> Sequence[Job]:
        """Return the jobs as they are stored: with their limit keys, and sealed."""
        if self._limit_key_of is not None:
            jobs = [replace(job, limit_key=self._limit_key_of(job)) for job in jobs]
        if self._codec.on:
            jobs = [replace(job, payload=await self._codec.seal_payload(job.payload)) for job in jobs]
        return jobs

    def _stored(self, kinds: Sequence[str]) -> None:
        if self._on_stored is not None:
            self._on_stored(kinds)


def _parsed(text: str) -> Any:  # noqa: ANN401 - any JSON value
    """Return a JSON text's value, or raise ``InvalidInput``. The database checks only what is not encrypted."""
    try:
        text.encode()
        return json.loads(text, parse_constant=_not_json)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"it is not JSON: {type(error).__name__}") from None


def _not_json(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
