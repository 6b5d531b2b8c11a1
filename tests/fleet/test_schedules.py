"""Schedules fire each due time once and on time, for any number of workers and beside unreadable schedules."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from structlog.testing import capture_logs

from surelane.encryption.data_keys import DataKeys
from surelane.encryption.keys import Keyring, new_key
from surelane.encryption.sealing import Sealing
from surelane.testing import fleet, virtual
from surelane_dev.testing.fleets.virtual import EPOCH
from surelane_service.cron import MISSED_AT_MOST, Cron
from surelane_service.engine import Engine
from surelane_worker import Handlers
from surelane_worker.duties import Scheduler
from surelane_worker.observing.metrics import Metrics

NEVER = {"SURELANE_POLL_INTERVAL": "1h"}


def now(f: Any) -> datetime:
    return datetime.fromtimestamp(EPOCH + f.now, UTC)


async def set_cron(f: Any, name: str, next_at: datetime, **given: Any) -> None:
    """Store a schedule whose jobs no worker handles."""
    given = {"kind": "tick", "schedule": "0 0 1 1 *", **given}
    await Engine(f.connection).set_cron(name, next_at=next_at, **given)


async def fired(f: Any, count: int) -> list[dict[str, Any]]:
    """Wait until ``count`` jobs are enqueued. Return their payloads in the order of their scheduled times."""
    while len(rows := await f.sql("select event from agent.event")) < count:
        await f.sleep(0.1)
        assert f.now < 600
    return sorted((json.loads(row["event"]) for row in rows), key=scheduled)


def scheduled(job: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(job["scheduled_at"])


@virtual
async def test_three_workers_fire_a_schedule_once_and_on_time() -> None:
    async with fleet(Handlers(), workers=0) as f:
        await set_cron(f, "overdue", now(f) - timedelta(seconds=5))
        await set_cron(f, "ahead", now(f) + timedelta(seconds=20))
        for _ in range(3):
            f.start()
        await fired(f, 1)
        assert f.now < 10
        jobs = await fired(f, 2)
        assert 20 <= f.now < 21
        await f.sleep(10)
        assert [job["cron"] for job in jobs] == ["overdue", "ahead"]
        assert len(await fired(f, 2)) == 2
        assert len(await f.sql("select from agent.cron where next_at > agent.clock() + '1 hour'")) == 2


@virtual
async def test_a_long_outage_is_caught_up_whole_where_that_is_the_rule() -> None:
    """One firing takes at most 1,000 missed times. The scheduler does not sleep between two firings."""
    missed = MISSED_AT_MOST + 50
    async with fleet(Handlers(), workers=0, settings=NEVER) as f:
        since = now(f) - timedelta(minutes=missed)
        await set_cron(f, "often", since, schedule="* * * * *", catch_up="all")
        f.start()
        first, *rest = [scheduled(job) for job in await fired(f, missed)]
        assert f.now < 5
        assert first == since.replace(microsecond=first.microsecond)
        full_minute = since.replace(second=0, microsecond=0)
        assert rest == [full_minute + timedelta(minutes=passed) for passed in range(1, len(rest) + 1)]


@virtual
async def test_all_workers_agree_on_the_delay_of_a_schedule_with_jitter() -> None:
    """Each job has its time, without the delay."""
    async with fleet(Handlers(), workers=0) as f:
        cron = Cron("0 * * * *", jitter=timedelta(hours=1), name="spread")
        due = cron.last_until(now(f) - timedelta(hours=3))
        given: Any = {"schedule": "0 * * * *", "catch_up": 2, "jitter": cron.jitter}
        await set_cron(f, "spread", cron.fires_at(due), **given)
        for _ in range(3):
            f.start()
        jobs = await fired(f, 2)
        ((at, following),) = await f.sql("select last_at, next_at from agent.cron")
        hours = [cron.last_until(at - timedelta(hours=back)) for back in range(3, -1, -1)]
        last = [time for time in hours if cron.fires_at(time) <= at][-2:]
        assert [scheduled(job) for job in jobs] == last
        assert following == cron.next_firing(last[-1])


@virtual
async def test_a_schedule_that_cannot_be_read_holds_up_no_other() -> None:
    broken = "insert into agent.cron (name, kind, schedule, time_zone, next_at) values ($1, 'x', $2, $3, '2026-01-01')"
    async with fleet(Handlers(), workers=0) as f:
        for number, (schedule, zone) in enumerate(
            [("often", "UTC"), ("* * * * *", "Mars/Base"), ("* * * * *", "")]
        ):
            await f.sql(broken, f"a broken {number}", schedule, zone)
        await set_cron(f, "sound", now(f))
        f.start()
        assert [job["cron"] for job in await fired(f, 1)] == ["sound"]


def declaring() -> Handlers:
    handlers = Handlers()
    handlers.cron(
        "nightly", "0 3 * * *", kind="tick", payload={"n": 1}, time_zone="Europe/Berlin", catch_up="none"
    )
    return handlers


@virtual
async def test_declared_schedules_are_there_when_the_database_comes() -> None:
    async with fleet(declaring(), workers=0) as f:
        coming = asyncio.create_task(f.restart_database("20s"))
        f.start()
        await coming
        while not (rows := await f.sql("select name, time_zone, catch_up from agent.cron")):
            await f.sleep(0.1)
        assert f.now < 40
        assert [tuple(row) for row in rows] == [("nightly", "Europe/Berlin", "none")]


@virtual
async def test_a_declared_schedule_waits_for_a_key_that_can_encrypt_it() -> None:
    settings = {"SURELANE_ENCRYPTION_KEYS": new_key(), "SURELANE_ENCRYPT_EVENTS": "true"}
    async with fleet(declaring(), workers=0, settings=settings) as f:
        await Sealing(DataKeys(f.connection, Keyring([new_key()])), on=True).payload({})
        with capture_logs() as logs:
            f.start()
            await f.sleep(30)
        assert len([entry for entry in logs if entry["event"] == "schedules failed"]) > 1
        assert await f.sql("select from agent.cron") == []
        await f.sql("delete from agent.data_key")
        f.start()
        while not (rows := await f.sql("select payload from agent.cron")):
            await f.sleep(0.1)
        assert '"n"' not in rows[0][0]


class Editing(Engine):
    """Lets something happen right after the first look at when the next schedule is due."""

    edit: Callable[[], Awaitable[None]] | None = None

    async def next_cron(self) -> float | None:
        seconds = await super().next_cron()
        edit, self.edit = self.edit, None
        if edit is not None:
            await edit()
        return seconds


@virtual
async def test_an_edit_during_a_look_is_not_forgotten() -> None:
    """A worker's polls, which would notice it later, are left out."""
    async with fleet(Handlers(), workers=0) as f:
        await set_cron(f, "moved", now(f) + timedelta(days=1))
        engine = Editing(f.connection)
        scheduler = Scheduler(engine, (), Metrics())

        async def edit() -> None:
            await f.sql("update agent.cron set next_at = agent.clock()")
            scheduler.due_in(0)

        engine.edit = edit
        duty = asyncio.create_task(scheduler.run())
        assert len(await fired(f, 1)) == 1
        duty.cancel()
