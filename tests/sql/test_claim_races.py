"""Twenty connections share thousands of events: none is lost or has two claims, and no claim deadlocks."""

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any

import asyncpg
import pytest

from surelane.calls import Connection
from tests.sql import queue_steps as do
from tests.sql.conftest import Connect
from tests.sql.queue_steps import Pair, Row, pair

pytestmark = pytest.mark.slow

WORKERS = 16
INSERTERS = 4
EVENTS = 1600
GROUPS = 25
ATTEMPTS = 1000
KIND = "slack.app_mention"
SETTLES: dict[str, Callable[..., Awaitable[list[str]]]] = {
    "c": do.complete,
    "f": partial(do.fail, max_attempts=ATTEMPTS),
    "r": do.release,
}
USERS = [f"U{number}" for number in range(5)]
AT_ONCE, BEGUN, PERIOD = 3, 25, 0.5
LIMIT = {"per": "user", "concurrency": AT_ONCE, "rate": BEGUN, "period": PERIOD}
BEGAN = """
select array_agg(extract(epoch from at)::float8 order by at) as moments
from agent.event_hist, unnest(claimed) as at group by event #>> '{event,user}'
"""
"""By the database's clock: answers are read later, and not in this order."""


class Floor:
    """The claims that stand at this moment, and the settled events."""

    def __init__(self, events: int) -> None:
        self.events = events
        self.inserted: set[int] = set()
        self.inserting = INSERTERS
        self.holder: dict[int, int] = {}
        self.group_holder: dict[str, int] = {}
        self.in_hand: Counter[tuple[int, str | None]] = Counter()
        self.handed: dict[str | None, list[int]] = defaultdict(list)
        self.completed = 0
        self.running: Counter[str] = Counter()
        self.most = 0
        """How many events of a user ran at once."""
        self.claims: Counter[Pair] = Counter()

    def take(self, worker: int, rows: Iterable[Mapping[str, Any] | Row]) -> None:
        """Record a claim. No other claim may have one of its events, or an event of its groups."""
        for row in rows:
            self.handed[row["group_key"]].append(row["id"])
            self.claims[row["id"], row["claim"]] += 1
            self.in_hand[worker, row["group_key"]] += 1
            self.running[user_of(row)] += 1
            self.most = max(self.most, self.running[user_of(row)])
            assert self.holder.setdefault(row["id"], worker) == worker, "an event has two claims"
            if row["group_key"] is not None:
                assert self.group_holder.setdefault(row["group_key"], worker) == worker, (
                    "a group in two hands"
                )

    def give(self, worker: int, rows: Iterable[Mapping[str, Any] | Row]) -> None:
        """Record a settle before it is sent, so that no other task can see it earlier."""
        for row in rows:
            del self.holder[row["id"]]
            self.in_hand[worker, row["group_key"]] -= 1
            self.running[user_of(row)] -= 1
            if row["group_key"] is not None and self.in_hand[worker, row["group_key"]] == 0:
                del self.group_holder[row["group_key"]]

    @property
    def all_done(self) -> bool:
        return self.inserting == 0 and self.completed == len(self.inserted)


def user_of(row: Mapping[str, Any] | Row) -> str:
    return str(json.loads(row["event"])["event"]["user"])


async def insert_all(
    queue: Connection, floor: Floor, inserter: int, chance: Random, *, grouped: bool
) -> None:
    """Insert this inserter's share in batches, each group's events in order, and one batch in ten twice."""
    numbers = range(inserter, floor.events, INSERTERS)
    for start in range(0, len(numbers), 20):
        batch = []
        for number in numbers[start : start + 20]:
            at = f"{1_700_000_000 + number}.000000"
            channel = {"channel": f"C{inserter}-{chance.randrange(GROUPS)}", "thread_ts": "1.1", "ts": at}
            thread = channel if grouped else {}
            batch.append(do.envelope(f"Ev{number}", event_ts=at, user=chance.choice(USERS), **thread))
        batch += chance.sample(batch, 2)
        rows = await insert_batch(queue, batch)
        assert [row["duplicate"] for row in rows] == [False] * (len(batch) - 2) + [True] * 2
        floor.inserted.update(row["id"] for row in rows)
    floor.inserting -= 1


async def insert_batch(queue: Connection, batch: list[str]) -> list[Row]:
    """Insert a batch. Try again after a lock timeout; a deadlock is an error."""
    while True:
        try:
            return list(await queue.fetch("select * from agent.insert_events($1) order by ordinal", batch))
        except asyncpg.LockNotAvailableError:
            continue


async def work(queue: Connection, floor: Floor, worker: int, chance: Random, *, failing: bool) -> None:
    """Claim batches of any size and settle them in parts, some by a failure or a release, until all events ended.

    Each third worker also makes the documented single claim now and then.
    """
    while not floor.all_done:
        if worker % 3 == 0 and chance.random() < 0.3:
            await claim_and_delete(queue, floor, worker)
        rows = await claim_batch(queue, chance.choice([1, 5, 30]))
        floor.take(worker, rows)
        rows_claimed = len(rows)
        while rows:
            size = chance.randint(1, len(rows))
            piece, rows = rows[:size], rows[size:]
            await asyncio.sleep(chance.random() * 0.005)
            floor.give(worker, piece)
            how = chance.choice("cccfr") if failing else "c"
            await do.settled(SETTLES[how], queue, *map(pair, piece))
            floor.completed += len(piece) * (how == "c")
        await asyncio.sleep(0 if rows_claimed else 0.005)


async def claim_and_delete(queue: Connection, floor: Floor, worker: int) -> None:
    row = await do.claim_one(queue, ATTEMPTS)
    if row is not None:
        rows = [{**row, "claim": len(row["claimed"])}]
        floor.take(worker, rows)
        floor.give(worker, rows)
        await queue.execute("select agent.delete_event($1)", row["id"])
        floor.completed += 1


async def claim_batch(queue: Connection, limit: int) -> list[Row]:
    """Claim as workers do: claim again after a deadlock, which no order of ours can exclude.

    If the transaction that updates a row ends at that moment, PostgreSQL waits for the updated row in spite of
    ``skip locked``.
    """
    while True:
        try:
            return await do.claim(queue, KIND, limit=limit, max_attempts=ATTEMPTS)
        except (asyncpg.DeadlockDetectedError, asyncpg.LockNotAvailableError):  # claim again, as clients do
            continue


async def headless(queue: Connection) -> set[str]:
    """Return the groups that have members and no head."""
    rows = await queue.fetch(
        "select group_key from agent.event where group_key is not null group by group_key having not bool_or(head)"
    )
    return {row["group_key"] for row in rows}


async def maintain(queue: Connection, floor: Floor) -> None:
    """Do a worker's other duties: sweep, rescue, and cancel an unknown event."""
    while not floor.all_done:
        assert not await headless(queue), "a group without a head"
        await queue.fetchval("select agent.sweep_events($1) + agent.rescue_events()", ATTEMPTS)
        await queue.fetchval("select agent.cancel_event('nobody')")
        await asyncio.sleep(0.02)


async def trespass(queue: Connection, floor: Floor, chance: Random, *, locking: bool) -> None:
    """Keep foreign transactions open for a while, which enter a group or lock rows (``locking``). Roll them back."""
    while not floor.all_done:
        transaction = queue.transaction()
        await transaction.start()
        with suppress(asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError):
            if locking:
                await queue.execute(
                    "select from agent.event tablesample bernoulli (10) where not head limit 3 for update skip locked"
                )
            else:
                group = await queue.fetchval(
                    "select group_key from agent.event where head and lane = $1 limit 1", chance.randrange(16)
                )
                if group is not None:
                    await queue.execute("select agent.enqueue($1, _group_key => $2)", KIND, group)
            await asyncio.sleep(0.05)
        await transaction.rollback()


async def run_all(
    queue: Connection, connect: Connect, *, grouped: bool, failing: bool, limited: bool
) -> Floor:
    """Run all tasks at once. A deadlock or a wrong answer ends them.

    A transaction that stays open has stored events under every limit (``limited``). Nothing waits for it.
    """
    floor, chance = Floor(EVENTS // 4 if limited else EVENTS), Random(7)
    foreign = await connect()
    await foreign.execute("begin")
    if limited:
        await queue.execute(
            "select agent.declare_limits('w', array[$1], $2)", KIND, json.dumps({KIND: LIMIT})
        )
        await insert_batch(foreign, [do.envelope(f"Ev-{user}", user=user) for user in USERS])
    connections = [await connect() for _ in range(WORKERS + INSERTERS)]
    async with asyncio.timeout(200), asyncio.TaskGroup() as tasks:
        for number, connection in enumerate(connections):
            if number < INSERTERS:
                tasks.create_task(
                    insert_all(connection, floor, number, Random(chance.random()), grouped=grouped)
                )
            else:
                tasks.create_task(work(connection, floor, number, Random(chance.random()), failing=failing))
        if grouped:
            # Claims pass over a locked member, which changes the order.
            tasks.create_task(trespass(await connect(), floor, Random(chance.random()), locking=failing))
        tasks.create_task(maintain(queue, floor))
    await foreign.execute("rollback")
    return floor


async def assert_all_ended_once(queue: Connection, floor: Floor) -> None:
    """Check that every event is in history exactly once, as completed, and that no claim was given twice."""
    rows = await queue.fetch("select id, outcome, cardinality(claimed) as claims from agent.event_hist")
    assert len(rows) == floor.events
    assert {row["id"] for row in rows} == floor.inserted
    assert {row["outcome"] for row in rows} == {"completed"}
    assert set(floor.claims.values()) == {1}
    assert sum(row["claims"] for row in rows) == floor.claims.total()
    assert await queue.fetchval("select count(*) from agent.event") == 0


@pytest.mark.parametrize(
    ("grouped", "failing", "limited"),
    [(False, True, False), (True, False, False), (True, True, False), (False, True, True)],
    ids=["ungrouped", "ordered", "failing", "limited"],
)
async def test_a_crowd_loses_nothing_shares_nothing_and_keeps_the_rules_of_groups_and_limits(
    queue: Connection, connect: Connect, grouped: bool, failing: bool, limited: bool
) -> None:
    """One worker at a time has each group. Unless some fail, it gets its events in the order in which they happened."""
    floor = await run_all(queue, connect, grouped=grouped, failing=failing, limited=limited)
    await assert_all_ended_once(queue, floor)
    if limited:
        assert floor.most == AT_ONCE
        began = await queue.fetch(BEGAN)
        assert len(began) == len(USERS)
        for (moments,) in began:
            for first, beyond in zip(moments, moments[BEGUN:], strict=False):
                assert beyond - first > PERIOD * 0.5, moments
    if not failing:
        rows = await queue.fetch("select id, event_ts from agent.event_hist")
        happened = {row["id"]: row["event_ts"] for row in rows}
        for ids in floor.handed.values():
            assert ids == sorted(ids, key=happened.__getitem__)
