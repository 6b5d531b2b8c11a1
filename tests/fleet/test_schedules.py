"""Schedules fire each due time once and on time, for any number of workers and beside unreadable schedules."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest
from structlog.testing import capture_logs

from surelane.testing import fleet, virtual
from surelane_dev.testing.fleets.virtual import EPOCH
from surelane_encryption.data_keys import DataKeys
from surelane_encryption.keys import Keyring, new_key
from surelane_encryption.sealing import Sealing
from surelane_service.cron import MISSED_AT_MOST, Cron
from surelane_service.engine import Engine
from surelane_worker import Context, Event, Handlers
from surelane_worker.duties import Scheduler
from surelane_worker.handling.handler import HandlersError
from surelane_worker.observing.metrics import Metrics
from tests.fleet.test_leasing import refusing

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


BROKEN = {
    "zone": "'x', '* * * * *', 'Mars/Base', '2026-01-01', '{}'",
    "empty zone": "'x', '* * * * *', '', '2026-01-01', '{}'",
    "fields": "'x', 'often', 'UTC', '2026-01-01', '{}'",
    "long past": "'x', '* * * * *', 'UTC', '4000-01-01 BC', '{}'",
    "always": "'x', '* * * * *', 'UTC', '-infinity', '{}'",
    "never": "'x', '* * * * *', 'UTC', 'infinity', '{}'",
    "no object": "'x', '* * * * *', 'UTC', '2026-01-01', '[1]'",
    "internal": "'surelane.close', '* * * * *', 'UTC', '2026-01-01', '{}'",
    "hook": "'surelane.failed:tick', '0 0 1 1 *', 'UTC', '2026-01-01', '{}'",
}
BY_HAND = "insert into agent.cron (name, kind, schedule, time_zone, next_at, payload) values ('a {}', {})"


@virtual
async def test_a_bad_schedule_holds_up_no_other_and_is_marked_with_its_reason() -> None:
    """The last ones are refused today. They may be there since an earlier release."""
    async with fleet(Handlers(), workers=0) as f:
        await f.sql("alter table agent.cron disable trigger cron_sound")
        for name, values in BROKEN.items():
            await f.sql(BY_HAND.format(name, values))
        await f.sql("alter table agent.cron enable trigger cron_sound")
        await set_cron(f, "bad", now(f))
        await set_cron(f, "sound", now(f))
        with capture_logs() as logs:
            async with refusing(f, "cron"):
                f.start()
                f.start()
                await f.sleep("3m")
                await set_cron(f, "later", now(f))
                await f.sleep("1m")
                stored = {row[0] for row in await f.sql("select event ->> 'cron' from agent.event")}
        assert stored >= {"sound", "later"}
        marked = dict(await f.sql("select name, problem from agent.cron where problem is not null"))
        assert marked.keys() >= {"a zone", "a empty zone", "a fields", "a internal", "a hook", "a no object"}
        assert "is not a time zone" in marked["a zone"]
        assert "by the end of an event alone" in marked["a internal"]
        assert await f.sql(
            "select from agent.cron where name in ('a hook', 'a internal') and next_at > agent.clock()"
        )
        said = [(each["schedule"], each["reason"]) for each in logs if each["event"] == "schedule failed"]
        assert len(said) <= 2 * len(set(said))
        assert any(name == "bad" and "theirs" in reason for name, reason in said)


@pytest.mark.parametrize("name", ["always", "never", "long past", "no object", "internal", "hook"])
@virtual
async def test_what_could_never_fire_is_refused_when_set(name: str) -> None:
    async with fleet(Handlers(), workers=0) as f:
        with pytest.raises(asyncpg.PostgresError, match=r"schedule|by the end of an event alone"):
            await f.sql(BY_HAND.format(name, BROKEN[name]))


@pytest.mark.parametrize(
    ("name", "kind", "payload", "told"),
    [
        ("x" * 300, "tick", {}, "its name has 1 to 200"),
        ("n", "x" * 300, {}, "its kind has 1 to 200"),
        ("n", "surelane.close", {}, "by the end of an event alone"),
        ("n", "tick", {"t": "a\0b"}, "u0000 cannot be stored"),
        ("n", "tick", {"t": object()}, "is not JSON"),
    ],
)
def test_a_schedule_that_could_never_fire_is_refused(
    name: str, kind: str, payload: dict[str, Any], told: str
) -> None:
    with pytest.raises(HandlersError, match=told):
        Handlers().cron(name, "* * * * *", kind=kind, payload=payload)
    with pytest.raises(HandlersError, match="1 to 200"):
        Handlers().on("x" * 300)(pass_by)


async def pass_by(_: Event, __: Context) -> None: ...


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
        await Sealing(DataKeys(f.connection, Keyring([new_key()])), on=True).seal_payload({})
        with capture_logs() as logs:
            f.start()
            await f.sleep(30)
        assert [entry["schedule"] for entry in logs if entry["event"] == "schedule failed"] == ["nightly"]
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
