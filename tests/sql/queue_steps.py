"""Define the steps of the queue's tests: thin calls of its SQL functions, and reads of its tables."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any

import asyncpg

from surelane.calls import Connection
from surelane.jobs import Continuation, Job, job_text, jobs_text

Row = asyncpg.Record
Pair = tuple[int, int]
"""The fence of a settle: an event's id and the number of one of its claims."""

LIVE = "select *, vt - agent.clock() as visible_in from agent.event where id = $1"
MINUTE, TEN_MINUTES, HOUR = timedelta(minutes=1), timedelta(minutes=10), timedelta(hours=1)


def envelope(event_id: str, **inner: Any) -> str:
    """Return Slack's envelope around an ``app_mention``, changed by ``inner``."""
    event = {"type": "app_mention", "user": "U1", "text": "hi", "event_ts": "1700000000.000100", **inner}
    event = {name: value for name, value in event.items() if value is not None}
    return json.dumps({"type": "event_callback", "team_id": "T1", "event_id": event_id, "event": event})


async def insert(queue: Connection, event: str) -> int:
    """Insert an event; return its id."""
    identity: int = await queue.fetchval("select agent.insert_event($1)", event)
    return identity


async def finish(queue: Connection, event_id: str, days_ago: int) -> int:
    """Complete an event that happened days ago; return its id."""
    event_ts = await queue.fetchval(
        "select agent.from_timestamptz(agent.clock() - make_interval(days => $1))::text", days_ago
    )
    identity = await insert(queue, envelope(event_id, event_ts=event_ts))
    await queue.execute("select agent.delete_event($1)", identity)
    return identity


async def drop_history(queue: Connection, older_than: str = "90 days", limit: int = 2000) -> tuple[int, bool]:
    """Drop old history as a worker does. Return how many chunks or rows went, and whether it was blocked."""
    after: int | None = 0
    dropped, blocked = 0, False
    while after is not None:
        row = await queue.fetchrow(
            "select * from agent.drop_history($1::text::interval, $2, $3)", older_than, after, limit
        )
        assert row is not None
        after, dropped, blocked = row["next"], dropped + row["dropped"], blocked or row["blocked"]
    return dropped, blocked


async def enqueue(queue: Connection, kind: str = "job", **named: Any) -> int:
    """Enqueue a job. ``named`` are the SQL function's parameters without their underscore."""
    if "priority" in named:
        named = {"payload": "{}"} | named
    listed = "".join(f", _{name} => ${number}" for number, name in enumerate(named, start=2))
    identity: int = await queue.fetchval(f"select agent.enqueue($1{listed})", kind, *named.values())
    return identity


async def claim(
    queue: Connection,
    *kinds: str,
    limit: int = 100,
    max_attempts: int = 3,
    lease: timedelta = TEN_MINUTES,
    worker: str = "w1",
) -> list[Row]:
    """Claim a batch as a worker does. Return the rows in the order in which a worker handles them."""
    rows = await queue.fetch(
        "select * from agent.claim_events($1, $2, $3, $4, $5) order by group_key, event_ts, id",
        kinds or ("job",),
        limit,
        max_attempts,
        lease,
        worker,
    )
    return list(rows)


async def claim_one(queue: Connection, *arguments: Any) -> Row | None:
    """Call ``agent.claim_event``."""
    listed = ", ".join(f"${number}" for number in range(1, len(arguments) + 1))
    rows = await queue.fetch(f"select * from agent.claim_event({listed})", *arguments)
    assert len(rows) <= 1
    return rows[0] if rows else None


async def claim_single(queue: Connection, *arguments: Any) -> Row:
    """Call ``agent.claim_event``, which finds an event."""
    return there(await claim_one(queue, *arguments))


def there(row: Row | None) -> Row:
    """Return a row that must be there."""
    assert row is not None
    return row


def pair(row: Row) -> Pair:
    """Return the fence of a claimed row."""
    return row["id"], row["claim"]


async def settle(
    queue: Connection, pairs: Iterable[Pair], outcome: str, arguments: Sequence[str | None] | None = None
) -> list[str]:
    """Settle claims with one outcome, each with its argument in JSON; return the answers."""
    ids, claims = _columns(pairs)
    statement = "select answer from agent.settle($1, $2, $3, $4) order by ordinal"
    rows = await queue.fetch(statement, ids, claims, [outcome] * len(ids), arguments)
    return [row["answer"] for row in rows]


async def settled(
    how: Callable[..., Awaitable[list[str]]], queue: Connection, *pairs: Pair, **given: Any
) -> None:
    """Settle claims by one of the steps below until no answer is busy. All must be done."""
    left = list(pairs)
    while left:
        answers = await how(queue, *left, **given)
        assert set(answers) <= {"done", "busy"}
        left = [each for each, answer in zip(left, answers, strict=True) if answer == "busy"]


async def complete(queue: Connection, *pairs: Pair, results: Sequence[str | None] | None = None) -> list[str]:
    """Complete claims; return the answers."""
    rows = await queue.fetch(
        "select answer from agent.complete_events($1, $2, $3) order by ordinal", *_columns(pairs), results
    )
    return [row["answer"] for row in rows]


async def fail(
    queue: Connection,
    *pairs: Pair,
    errors: Sequence[str] | None = None,
    retry_in: timedelta = timedelta(0),
    final: bool = False,
    reason: str | None = None,
    max_attempts: int = 3,
) -> list[str]:
    """Fail claims, each with an error; return the answers."""
    told = [json.loads(error) for error in errors or []] or [
        {"message": f"attempt with claim {number}"} for _, number in pairs
    ]
    same = {
        "retry_in": retry_in.total_seconds(),
        "final": final,
        "reason": reason,
        "max_attempts": max_attempts,
    }
    return await settle(queue, pairs, "fail", [json.dumps({"error": error, **same}) for error in told])


async def release(queue: Connection, *pairs: Pair) -> list[str]:
    """Release claims; return the answers."""
    return await settle(queue, pairs, "release")


async def extend(queue: Connection, *pairs: Pair, lease: timedelta = TEN_MINUTES) -> list[str]:
    """Renew leases; return the answers."""
    rows = await queue.fetch(
        "select answer from agent.extend_leases($1, $2, $3) order by ordinal", *_columns(pairs), lease
    )
    return [row["answer"] for row in rows]


async def snooze(queue: Connection, item: Pair, pause: timedelta) -> str:
    """Snooze a claimed event; return the answer."""
    (answer,) = await settle(queue, [item], "snooze", [json.dumps({"pause": pause.total_seconds()})])
    return answer


async def await_answer(queue: Connection, item: Pair, deadline: datetime | None) -> str:
    """Let a claimed event await an answer; return the settle's answer."""
    (answer,) = await settle(
        queue, [item], "await", [json.dumps({"until": deadline and deadline.isoformat()})]
    )
    return answer


async def continue_with(
    queue: Connection, item: Pair, children: Sequence[Job], then: Continuation, result: str | None = None
) -> str:
    """Complete a claimed event and start its children and continuation; return the answer."""
    given = "" if result is None else f', "result": {result}'
    argument = f'{{"children": {jobs_text(children)}, "continuation": {job_text(then)}{given}}}'
    (answer,) = await settle(queue, [item], "fan_out", [argument])
    return answer


async def sweep(queue: Connection, max_attempts: int = 3, age: timedelta = timedelta(hours=1)) -> int:
    """Call ``agent.delete_expired_events``."""
    swept: int = await queue.fetchval("select agent.delete_expired_events($1, $2)", max_attempts, age)
    return swept


async def expire(queue: Connection) -> int:
    """Move exhausted and too old events to history, in statements of about a second. Return how many."""
    expired = 0
    while moved := await queue.fetchval("select agent.delete_expired_events()"):
        expired += moved
    return expired


async def advance(queue: Connection, by: timedelta) -> None:
    """Advance the queue's clock."""
    await queue.execute("update agent.test_clock set shift = shift + $1", by)


async def live(queue: Connection, identity: int) -> Row | None:
    """Return an event's row in the queue."""
    return await queue.fetchrow(LIVE, identity)


async def ended(queue: Connection, identity: int) -> Row | None:
    """Return an event's only row in history."""
    rows = await queue.fetch("select * from agent.event_hist where id = $1", identity)
    assert len(rows) <= 1
    return rows[0] if rows else None


async def ending(queue: Connection, identity: int) -> tuple[str, str | None]:
    """Return the outcome and the reason of an ended event."""
    assert await live(queue, identity) is None
    row = await history_of(queue, identity)
    return row["outcome"], row["reason"]


async def only_row(queue: Connection, statement: str, *arguments: Any) -> Row:
    """Return the first row of a statement, which has one."""
    return there(await queue.fetchrow(statement, *arguments))


async def event_of(queue: Connection, identity: int) -> Row:
    """Return the row of an event that is in the queue."""
    return there(await live(queue, identity))


async def history_of(queue: Connection, identity: int) -> Row:
    """Return the row of an event that is in history."""
    return there(await ended(queue, identity))


@asynccontextmanager
async def locked(connection: Connection, identity: int) -> AsyncIterator[None]:
    """Lock an event's row by a transaction of another session."""
    async with connection.transaction():
        await connection.execute("select from agent.event where id = $1 for update", identity)
        yield


async def heads(queue: Connection, group_key: str) -> list[int]:
    """Return the ids of a group's heads. A sound group has one."""
    rows = await queue.fetch("select id from agent.event where group_key = $1 and head", group_key)
    return [row["id"] for row in rows]


async def waits_for_lock(observer: Connection, waiting: Connection) -> None:
    """Wait until a lock blocks ``waiting``, a connection in use by another task."""
    pid = waiting.get_server_pid()
    async with asyncio.timeout(60):
        while not await observer.fetchval("select cardinality(pg_blocking_pids($1)) > 0", pid):  # noqa: ASYNC110 - nothing to listen to
            await asyncio.sleep(0.005)


async def all_done(*awaitables: Awaitable[Any]) -> list[Any]:
    """Await all within a deadline."""
    async with asyncio.timeout(90):
        return list(await asyncio.gather(*awaitables))


def _columns(pairs: Iterable[Pair]) -> tuple[list[int], list[int]]:
    listed = list(pairs)
    return [identity for identity, _ in listed], [number for _, number in listed]
