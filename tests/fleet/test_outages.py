"""Databases that go away, hang or refuse writes, and networks that lose what connections carry."""

import asyncio
from typing import Any

import asyncpg
import pytest
import structlog

from surelane.testing import fleet, virtual
from surelane_dev.testing.fleets.database import Refusal
from surelane_ingest.writer import NotStored
from surelane_worker import Context, Event, Handlers
from tests.fleet.statements import statements

RECOVERY = 10
"""Seconds within which an event runs that a lost answer or a half-open connection holds up."""
RARELY = {"SURELANE_POLL_INTERVAL": "1h"}


def stepping() -> Handlers:
    """Return handlers that take as long as the payload says, and store a step then perhaps."""
    handlers = Handlers()

    @handlers.on("sleep")
    async def sleep(event: Event, ctx: Context) -> int:
        await asyncio.sleep(event.payload.get("seconds", 0))
        if event.payload.get("step"):
            await ctx.step("a step", lambda: 1)
        return ctx.attempt

    return handlers


def count(logs: list[Any], text: str, about: str | None = None) -> int:
    return len(
        [each for each in logs if text in each["event"] and each.get("waiting", each.get("resumed")) == about]
    )


@pytest.mark.parametrize("breaks", [False, True])
@virtual
async def test_a_claim_whose_answer_is_lost_is_released_by_its_own_worker(breaks: bool) -> None:
    """It committed, so the event would else wait for the rescue after five minutes."""
    lost: list[object] = []

    async def lose(wire: Any, query: str, answer: Any) -> None:
        if "claim_events" in query and answer and not lost:
            lost.append(answer)
            if breaks:
                wire.end()
                raise asyncpg.ConnectionDoesNotExistError
            await asyncio.sleep(3600)

    async with fleet(stepping()) as f:
        await f.sleep(2)
        with statements(after=lose), structlog.testing.capture_logs() as logs:
            event = await f.enqueue("sleep", group_key="g")
            assert await event.result() == 1
        assert f.now < 2 + RECOVERY
        row = await event.row()
        assert (row["outcome"], row["attempts"], len(row["claimed"])) == ("completed", 1, 2)
        assert count(logs, "whose answer was lost") == 1


@virtual
async def test_idle_workers_notice_that_their_connections_are_half_open() -> None:
    async with fleet(stepping(), workers=3) as f:
        await (await f.enqueue("sleep")).result()

        async def held_up() -> float:
            for member in f.workers:
                member.host.half_open()
            began, event = f.now, await f.enqueue("sleep")
            await event.result()
            return f.now - began

        with structlog.testing.capture_logs() as logs:
            took = [await held_up()]
            await f.sleep("30s")
        assert count(logs, "unavailable", "polls") == 3
        for _ in range(3):
            took.append(await held_up())
            await f.sleep("30s")
        assert sorted(took)[1] < RECOVERY, took


@pytest.mark.parametrize(("step", "lost"), [(False, "requests"), (True, "requests"), (False, "answers")])
@virtual
async def test_what_an_attempt_stores_is_stored_once_on_a_half_open_connection(step: bool, lost: str) -> None:
    """If only the answer is lost, the second settle is stale: that is no error, as the first one counts."""
    unanswered: list[str] = []

    async def lose(wire: Any, query: str) -> None:
        if lost == "requests" and ("settle" in query or "step" in query) and not unanswered:
            unanswered.append(query)
            wire.half_open = True

    async def keep(_: Any, query: str, __: Any) -> None:
        if lost == "answers" and "settle" in query and not unanswered:
            unanswered.append(query)
            await asyncio.sleep(3600)

    async with fleet(stepping()) as f:
        with statements(lose, keep), structlog.testing.capture_logs() as logs:
            event = await f.enqueue("sleep", {"seconds": 2, "step": step}, group_key="g")
            following = await f.enqueue("sleep", group_key="g")
            assert await event.result("20s") == 1
            await following.result()
            await f.sleep(10)
        row = await event.row()
        assert (row["attempts"], len(row["claimed"])) == (1, 1)
        assert not any(each["event"] == "stale settle" for each in logs)
        assert (count(logs, "sent twice") > 0) is (lost == "answers")
        assert unanswered


@virtual
async def test_outcomes_wait_while_the_server_is_read_only_and_an_outage_is_told_twice() -> None:
    async with fleet(stepping(), settings={"SURELANE_POLL_INTERVAL": "200ms"}) as f:
        events = [await f.enqueue("sleep", {"seconds": 2}) for _ in range(5)]
        await f.sleep(1)
        f.database.refusal = Refusal()
        with structlog.testing.capture_logs() as logs:
            await f.sleep("10s")
            assert [await event.why() for event in events] == ["running"] * 5
            f.database.refusal = None
            for event in events:
                assert await event.result() == 1
                assert len((await event.row())["claimed"]) == 1
        assert count(logs, "unavailable", "settles") == 1
        with structlog.testing.capture_logs() as logs:
            await f.restart_database("20s")
            await f.sleep("30s")
        assert [count(logs, text, "claims") for text in ("unavailable", "available again")] == [1, 1]


@virtual
async def test_handlers_stop_when_their_lease_runs_out_though_the_database_does_not_answer() -> None:
    async with fleet(stepping(), settings={"SURELANE_LEASE": "9s"}) as f:
        event = await f.enqueue("sleep", {"seconds": 600})
        (member,) = f.workers
        await f.until(lambda: member.runs(event))
        await f.sleep(3)
        with structlog.testing.capture_logs() as logs:
            f.cut_off(member, "1m")
            await f.until(lambda: count(logs, "lease lost"), "15s")


@virtual
async def test_a_claim_that_is_answered_after_its_lease_is_given_back_unspent() -> None:
    held_up: list[object] = []

    async def hold_up(_: Any, query: str, answer: Any) -> None:
        if "claim_events" in query and answer and not held_up:
            held_up.append(answer)
            await asyncio.sleep(3)

    async with fleet(stepping(), settings={"SURELANE_LEASE": "2s", **RARELY}) as f:
        with statements(after=hold_up):
            event = await f.enqueue("sleep")
            assert await event.result() == 1
        row = await event.row()
        assert (row["attempts"], len(row["claimed"])) == (1, 2)


@virtual
async def test_killed_connections_and_restarts_under_load_lose_nothing() -> None:
    async with fleet(stepping(), workers=2, settings={"SURELANE_LEASE": "20s"}) as f:
        events = []
        for number in range(60):
            events.append(await f.enqueue("sleep", {"seconds": 0.5}, group_key=f"g{number % 7}"))
            await f.sleep(0.1)
            if number % 8 == 7:
                f.net.lose_connections()
            elif number % 20 == 12:
                await f.restart_database(1)
        for event in events:
            assert await event.result() == 1


@virtual
async def test_an_event_is_refused_for_good_only_if_its_own_text_is_at_fault() -> None:
    async with fleet(Handlers(), workers=0) as f:
        f.database.refusal = Refusal("22P05", of="agent.insert_event")
        assert await f.writer.store('{"event_id": "Ev1"}', None) is NotStored.REFUSED
        f.database.refusal = None
        assert await f.writer.store('{"event_id": "\\u0000"}', None) is NotStored.UNSTORABLE
