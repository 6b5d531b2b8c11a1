"""Schedulers fire each due time once and on time, for any number of workers and beside unreadable schedules."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from surelane.calls import Connection, Pool
from surelane.encryption.data_keys import DataKeys
from surelane.encryption.keys import Keyring, SealedError, new_key
from surelane.encryption.sealing import Sealing
from surelane.errors import SurelaneError
from surelane_service.cron import MISSED_AT_MOST, Cron
from surelane_service.engine import Engine
from surelane_service.pool import close_pool, create_pool
from surelane_service.sealed_engine import SealedEngine
from surelane_worker.duties import Scheduler
from surelane_worker.handling.handler import Schedule
from surelane_worker.observing.metrics import Metrics
from tests.databases import as_role


@pytest.fixture
async def connection(shared_database: str) -> AsyncIterator[Connection]:
    connected = await asyncpg.connect(shared_database)
    await connected.execute("truncate agent.event, agent.event_hist, agent.cron")
    yield connected
    await connected.close()


@asynccontextmanager
async def firing(
    database: str,
    count: int = 1,
    declared: Sequence[Schedule] = (),
    retry: timedelta = timedelta(seconds=1),
    engine: Callable[[Pool], Engine] = Engine,
) -> AsyncIterator[None]:
    """Run the schedulers of ``count`` workers for the length of the block."""
    pool = await create_pool(as_role(database, "surelane_worker"), service="test", max_size=count)
    schedulers = [Scheduler(engine(pool), declared, Metrics(), retry=retry) for _ in range(count)]
    duties = [asyncio.create_task(scheduler.run()) for scheduler in schedulers]
    try:
        yield
        assert not any(duty.done() for duty in duties)
    finally:
        for duty in duties:
            duty.cancel()
        await asyncio.gather(*duties, return_exceptions=True)
        await close_pool(pool)


async def fired(connection: Connection, count: int) -> list[dict[str, Any]]:
    """Wait until ``count`` jobs are enqueued. Return their payloads in the order of their scheduled times."""
    async with asyncio.timeout(30):
        while await connection.fetchval("select count(*) from agent.event") < count:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    jobs = [json.loads(row["event"]) for row in await connection.fetch("select event from agent.event")]
    return sorted(jobs, key=lambda job: datetime.fromisoformat(job["scheduled_at"]))


async def set_cron(connection: Connection, name: str, next_in: timedelta, **fields: Any) -> datetime:
    next_at = datetime.now(UTC) + next_in
    chosen = {"kind": "tick", "schedule": "0 0 1 1 *", **fields}
    await Engine(connection).set_cron(name, next_at=next_at, **chosen)
    return next_at


async def test_three_workers_fire_a_schedule_once_and_on_time(
    connection: Connection, shared_database: str
) -> None:
    await set_cron(connection, "overdue", timedelta(seconds=-5))
    ahead = await set_cron(connection, "ahead", timedelta(seconds=2))
    async with firing(shared_database, 3):
        payloads = await fired(connection, 2)
        await asyncio.sleep(0.1)
    assert [payload["cron"] for payload in payloads] == ["overdue", "ahead"]
    assert await connection.fetchval("select count(*) from agent.event") == 2
    late = await connection.fetchval("select max(enqueued_at) from agent.event") - ahead
    assert timedelta(0) <= late < timedelta(seconds=10)
    assert await connection.fetchval("select count(*) from agent.cron where next_at > now() + '1 hour'") == 2


async def test_a_long_outage_is_caught_up_whole_where_that_is_the_rule(
    connection: Connection, shared_database: str
) -> None:
    """One firing takes at most 1,000 missed times. The scheduler does not sleep between two firings."""
    missed = MISSED_AT_MOST + 50
    since = await set_cron(
        connection, "often", timedelta(minutes=-missed), schedule="* * * * *", catch_up="all"
    )
    async with firing(shared_database, retry=timedelta(hours=1)):
        payloads = await fired(connection, missed)
    first, *rest = [datetime.fromisoformat(payload["scheduled_at"]) for payload in payloads]
    assert first == since.replace(microsecond=first.microsecond)
    full_minute = since.replace(second=0, microsecond=0)
    assert rest == [full_minute + timedelta(minutes=passed) for passed in range(1, len(payloads))]


async def test_all_workers_agree_on_the_delay_of_a_schedule_with_jitter(
    connection: Connection, shared_database: str
) -> None:
    """Two times are due, and the third one's delay is not over. Each job has its time, without the delay."""
    cron = Cron("0 * * * *", jitter=timedelta(hours=1), name="spread")
    due = [cron.last_until(datetime.now(UTC) - timedelta(hours=back)) for back in (3, 2)]
    await set_cron(
        connection,
        "spread",
        cron.fires_at(due[0]) - datetime.now(UTC),
        schedule="0 * * * *",
        catch_up=2,
        jitter=cron.jitter,
    )
    async with firing(shared_database, 3):
        payloads = await fired(connection, 2)
    now = await connection.fetchval("select last_at from agent.cron")
    last = [
        time
        for back in range(3, -1, -1)
        if cron.fires_at(time := cron.last_until(now - timedelta(hours=back))) <= now
    ][-2:]
    assert [datetime.fromisoformat(payload["scheduled_at"]) for payload in payloads] == last
    assert await connection.fetchval("select next_at from agent.cron") == cron.next_firing(last[-1])


async def test_an_outage_over_a_change_of_the_clocks_is_caught_up_by_the_wall(
    connection: Connection, shared_database: str
) -> None:
    """Half past two comes twice in Berlin that night and fires once. Every missed day fires."""
    since = datetime(2025, 10, 24, 0, 30, tzinfo=UTC)
    await Engine(connection).set_cron(
        "night", kind="tick", schedule="30 2 * * *", next_at=since, time_zone="Europe/Berlin", catch_up="all"
    )
    async with firing(shared_database):
        payloads = await fired(connection, 4)
    assert [payload["scheduled_at"] for payload in payloads[:4]] == [
        "2025-10-24T00:30:00+00:00",
        "2025-10-25T00:30:00+00:00",
        "2025-10-26T00:30:00+00:00",
        "2025-10-27T01:30:00+00:00",
    ]


@pytest.mark.parametrize(
    ("schedule", "time_zone"), [("often", "UTC"), ("* * * * *", "Mars/Base"), ("* * * * *", "")]
)
async def test_a_schedule_that_cannot_be_read_holds_up_no_other(
    connection: Connection, shared_database: str, schedule: str, time_zone: str
) -> None:
    await connection.execute(
        "insert into agent.cron (name, kind, schedule, time_zone, next_at)"
        " values ('broken', 'x', $1, $2, now() - interval '1 minute')",
        schedule,
        time_zone,
    )
    await set_cron(connection, "sound", timedelta(seconds=-1))
    async with firing(shared_database):
        payloads = await fired(connection, 1)
    assert [payload["cron"] for payload in payloads] == ["sound"]


class Failing(Engine):
    """Tells when it could not store a schedule."""

    failed = asyncio.Event()

    async def set_cron(self, *arguments: Any, **fields: Any) -> None:
        """Store a schedule."""
        try:
            await super().set_cron(*arguments, **fields)
        except SurelaneError:
            self.failed.set()
            raise


async def test_declared_schedules_are_there_when_the_database_comes(
    connection: Connection, shared_database: str
) -> None:
    declared = [Schedule("nightly", "0 3 * * *", "tick", {"n": 1}, "Europe/Berlin", "none")]
    arguments = "(text, text, text, timestamptz, jsonb, text, text, boolean, int4, text, interval)"
    await connection.execute(f"alter function agent.set_cron{arguments} rename to set_cron_away")
    async with firing(shared_database, declared=declared, retry=timedelta(milliseconds=50), engine=Failing):
        async with asyncio.timeout(30):
            await Failing.failed.wait()
        await connection.execute(f"alter function agent.set_cron_away{arguments} rename to set_cron")
        async with asyncio.timeout(30):
            while not (rows := await connection.fetch("select * from agent.cron")):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
    assert [(row["name"], row["time_zone"], row["catch_up"]) for row in rows] == [
        ("nightly", "Europe/Berlin", "none")
    ]


class Trying(SealedEngine):
    """Tells when it could not store a schedule."""

    failed: asyncio.Event

    async def set_cron(self, *arguments: Any, **fields: Any) -> None:
        """Store a schedule."""
        try:
            await super().set_cron(*arguments, **fields)
        except SealedError:
            self.failed.set()
            raise


async def test_a_declared_schedule_waits_for_a_key_that_can_encrypt_it(
    connection: Connection,
) -> None:
    await connection.execute("delete from agent.data_key")
    old, new = (Sealing(DataKeys(connection, Keyring([new_key()])), on=True) for _ in range(2))
    await old.payload({})
    engine, declared = Trying(connection, new), [Schedule("nightly", "0 3 * * *", "tick", {"n": 1})]
    engine.failed = asyncio.Event()
    duty = asyncio.create_task(Scheduler(engine, declared, Metrics(), retry=timedelta(milliseconds=50)).run())
    try:
        async with asyncio.timeout(60):
            for _ in range(2):  # it tries again
                await engine.failed.wait()
                engine.failed.clear()
    finally:
        duty.cancel()
        await asyncio.gather(duty, return_exceptions=True)
    assert not await connection.fetchval("select count(*) from agent.cron")
    await connection.execute("delete from agent.data_key")
    await engine.set_cron("nightly", kind="tick", schedule="0 3 * * *", payload={"n": 1})
    stored = json.loads(await connection.fetchval("select payload from agent.cron"))
    await connection.execute("delete from agent.data_key")
    assert "n" not in stored


class Editing(Engine):
    """Changes a schedule right after the first look at when the next one is due, and tells the scheduler."""

    edit: Callable[[], Awaitable[None]] | None = None

    async def next_cron(self) -> float | None:
        """Return the answer from before the change."""
        seconds = await super().next_cron()
        edit, self.edit = self.edit, None
        if edit is not None:
            await edit()
        return seconds


async def test_an_edit_during_a_look_is_not_forgotten(connection: Connection, shared_database: str) -> None:
    await set_cron(connection, "moved", timedelta(days=1))
    pool = await create_pool(as_role(shared_database, "surelane_worker"), service="test", max_size=1)
    engine = Editing(pool)
    scheduler = Scheduler(engine, (), Metrics(), retry=timedelta(milliseconds=1))

    async def edit() -> None:
        await editor.execute("update agent.cron set next_at = now()")
        scheduler.due_in(0)

    engine.edit = edit
    editor = await asyncpg.connect(shared_database)  # the test looks meanwhile
    duty = asyncio.create_task(scheduler.run())
    try:
        assert len(await fired(connection, 1)) == 1
    finally:
        duty.cancel()
        await asyncio.gather(duty, return_exceptions=True)
        await editor.close()
        await close_pool(pool)
