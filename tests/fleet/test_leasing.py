"""Leases are renewed while a handler runs. If one is lost or its worker dies, another worker takes the event."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import structlog

from surelane.testing import fleet, virtual
from surelane_worker import Context, Event, Handlers

TAKE = "update agent.event set {} claimed_by = 'another', vt = agent.clock() + interval '1h'"
TAKEN = {
    "by the next claim": TAKE.format("claimed = claimed || agent.clock(),"),
    "after a failover that lost the claim": TAKE.format(""),
}
"""How another worker gets an event."""


def sleeping(ended: list[int]) -> Handlers:
    """Return a handler that takes as long as the payload says."""
    handlers = Handlers()

    @handlers.on("sleep")
    async def sleep(event: Event, _: Context) -> int:
        try:
            await asyncio.sleep(event.payload.get("seconds", 0))
        finally:
            ended.append(event.claim)
        return event.claim

    return handlers


@virtual
async def test_leases_of_an_event_and_of_a_whole_group_are_renewed_while_their_handlers_run() -> None:
    settings = {"SURELANE_LEASE": "10s"}
    async with fleet(sleeping([]), workers=2, settings=settings) as f:
        grouped = [await f.enqueue("sleep", {"seconds": 35}, group_key="T:C:1") for _ in range(3)]
        alone = await f.enqueue("sleep", {"seconds": 35})
        await f.sleep("30s")
        rows = await f.sql("select cardinality(claimed) = 1 and vt > agent.clock() as held from agent.event")
        assert [row["held"] for row in rows] == [True] * 4
        assert [await event.result() for event in (*grouped, alone)] == [1] * 4


@asynccontextmanager
async def refusing(f: Any, table: str) -> AsyncIterator[None]:
    """Let each row of a table with the word "bad" refuse updates, for the length of the block."""
    await f.sql(
        r"""create function public.refuse() returns trigger language plpgsql as $$ begin
        if old::text ~ '\mbad\M' then raise check_violation using message = 'theirs'; end if; return new; end $$"""
    )
    trigger = f"create trigger theirs before update on agent.{table}"
    await f.sql(f"{trigger} for each row execute function public.refuse()")
    try:
        yield
    finally:
        await f.sql("drop function public.refuse() cascade")


@virtual
async def test_a_row_that_refuses_heartbeats_keeps_no_other_from_them() -> None:
    ended: list[int] = []
    async with fleet(sleeping(ended), settings={"SURELANE_LEASE": "10s"}) as f:
        (good, bad) = [await f.enqueue("sleep", {"seconds": 35, "is": word}) for word in ("good", "bad")]
        await f.until(lambda: all(f.workers[0].runs(event) for event in (good, bad)))
        async with refusing(f, "event"):
            assert await good.result() == 1
            assert (await bad.row())["attempts"] == 1
        assert len(ended) == 2


@pytest.mark.parametrize("taken", TAKEN.values(), ids=TAKEN)
@virtual
async def test_a_lost_lease_cancels_the_handler_and_its_settle_changes_nothing(taken: str) -> None:
    ended: list[int] = []
    async with fleet(sleeping(ended), settings={"SURELANE_LEASE": "1m"}) as f:  # a heartbeat each 20 s
        events = [await f.enqueue("sleep", {"seconds": seconds}) for seconds in (600, 2)]
        await f.until(lambda: all(f.workers[0].runs(event) for event in events))
        await f.sql(taken)
        with structlog.testing.capture_logs() as logs:
            await f.until(lambda: any("stale settle" in each["event"] for each in logs), "20s")
            assert ended == [1]
            await f.until(lambda: len(ended) == 2, "30s")
        assert any("lease lost" in each["event"] for each in logs)
        assert await (await f.enqueue("sleep")).result() == 1
        rows = [await event.row() for event in events]
        assert [(row["claimed_by"], row["attempts"]) for row in rows] == [("another", 1)] * 2


@virtual
async def test_events_of_dead_workers_return_to_others() -> None:
    async with fleet(sleeping([])) as f:
        event = await f.enqueue("sleep", {"seconds": 30})
        await f.until(lambda: f.workers[0].runs(event))
        await f.kill(noticed=10_000)  # its machine is gone, and nothing tells the server
        f.start()
        assert await event.result("20m") == 2
        assert 300 < f.now < 600
        assert (await event.row())["attempts"] == 2
        last = await f.enqueue("sleep", {"seconds": 600}, max_attempts=1)
        await f.until(lambda: f.workers[0].runs(last))
        await f.kill()
        f.start(SURELANE_SWEEP_INTERVAL="1s")
        row = await f.until(last.ended)
        assert (row["outcome"], row["reason"]) == ("expired", "attempts_exhausted")


@virtual
async def test_only_old_slack_events_expire_and_only_after_claiming_for_that_age() -> None:
    handlers = sleeping([])

    @handlers.on("slack.app_mention")
    async def mentioned(_: Event, __: Context) -> None: ...

    settings = {"SURELANE_CONCURRENCY": "1", "SURELANE_MAX_VT_AGE": "30s", "SURELANE_SWEEP_INTERVAL": "1s"}
    async with fleet(handlers, settings=settings) as f:
        busy = await f.enqueue("sleep", {"seconds": 600}, max_attempts=1)
        await f.until(lambda: f.workers[0].runs(busy))
        mention, job = await f.mention("hello"), await f.enqueue("sleep")
        await f.sql("update agent.event set vt = vt - interval '1h' where claimed_by is null")
        row = await f.until(mention.ended)
        assert (row["outcome"], row["reason"]) == ("expired", "too_old")
        assert 30 <= f.now < 60
        assert (await job.row())["attempts"] == 0


@virtual
async def test_the_outcome_of_a_locked_event_is_sent_again() -> None:
    async with fleet(sleeping([])) as f:
        event = await f.enqueue("sleep", {"seconds": 1})
        await f.until(lambda: f.workers[0].runs(event))
        foreign = await f.database.lend("surelane")
        for statement in ("begin", "select from agent.event for update"):
            await f.database.run(foreign, "execute", statement)
        await f.sleep(5)
        f.database.end(foreign)
        assert await event.result("1m") == 1
