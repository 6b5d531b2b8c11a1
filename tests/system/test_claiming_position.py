"""Which workers a notification wakes: real processes, most of them with polls so rare that none comes in a test."""

import asyncio
import signal
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast
from unittest.mock import Mock

import asyncpg
import pytest

from surelane.calls import Connection
from surelane_service.pool import CHANNEL, Listener
from surelane_worker.claiming import position
from surelane_worker.claiming.position import PASS_ON_PAUSE, Position, Side, Wakeup
from tests.databases import as_role
from tests.processes import Service, until
from tests.system.worker import claimed, claims, ended, enqueue, worker

if TYPE_CHECKING:
    from surelane.events import Event
    from surelane_worker.running.slots import Slots

NEVER = "1h"
POLL = "1s"
SLOWLY = 60.0
"""Seconds within which a busy machine does what takes milliseconds otherwise."""


async def test_a_notification_wakes_one_worker(database: str, connection: Connection) -> None:
    async with AsyncExitStack() as stack:
        workers = [
            await stack.enter_async_context(worker(database, **_named(name), SURELANE_POLL_INTERVAL=NEVER))
            for name in ("responder", "deputy", "reserve")
        ]
        for number, each in enumerate(workers[:2]):
            await _takes(each, number)
        async with asyncio.timeout(SLOWLY):
            await _answers_alone(connection, "responder", workers[1:])


async def test_a_position_moves_when_its_worker_is_killed(database: str, connection: Connection) -> None:
    """Before anyone noticed, a poll finds the event."""
    async with (
        worker(database, **_named("killed"), SURELANE_POLL_INTERVAL=POLL) as first,
        worker(database, **_named("next"), SURELANE_POLL_INTERVAL=POLL) as second,
    ):
        await _takes(first, 0)
        await _takes(second, 1)
        first.process.kill()
        assert await _handled_by(connection, "echo") == "next"
        await _takes(second, 0)


async def test_a_full_worker_passes_on_and_a_stopping_one_hands_over_at_once(
    database: str, connection: Connection
) -> None:
    settings = {"SURELANE_POLL_INTERVAL": NEVER, "SURELANE_CONCURRENCY": "1", "SURELANE_DRAIN_TIMEOUT": "60s"}
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(worker(database, **_named("full"), **settings))
        await _takes(first, 0)
        await claimed(connection, await enqueue(connection, "sleep", {"seconds": 60}))
        second = await stack.enter_async_context(worker(database, **_named("free"), **settings))
        await _takes(second, 1)
        assert await _handled_by(connection, "echo") == "free"
        await asyncio.sleep(PASS_ON_PAUSE)  # the first one was passed on before the other listened, perhaps
        assert await _handled_by(connection, "echo") == "free"
        later = await ended(connection, await enqueue(connection, "echo", run_in=2.5), SLOWLY)
        assert later["claimed_by"] == "free", "it claims an event in time that is due later"
        first.process.send_signal(signal.SIGTERM)
        await _takes(second, 0)
        assert await _handled_by(connection, "echo") == "free"
        assert first.child.exit_code is None, "it still drains"
        first.child.kill()
        await first.child.wait()


async def test_a_worker_in_reserve_answers_for_full_ones(database: str, connection: Connection) -> None:
    settings = {"SURELANE_POLL_INTERVAL": NEVER, "SURELANE_CONCURRENCY": "1", "SURELANE_DRAIN_TIMEOUT": "1s"}
    async with AsyncExitStack() as stack:
        for number, name in enumerate(("responder", "deputy")):
            each = await stack.enter_async_context(worker(database, **_named(name), **settings))
            await _takes(each, number)
            await claimed(connection, await enqueue(connection, "sleep", {"seconds": 60}))
        await stack.enter_async_context(worker(database, **_named("reserve"), **settings))
        for _ in range(3):
            await asyncio.sleep(PASS_ON_PAUSE)  # longer than a worker looks for more after a claim
            assert await _handled_by(connection, "echo") == "reserve"


async def test_a_worker_in_reserve_stops_listening_until_it_finds_an_overdue_event(
    database: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(position, "PATIENCE", 3)
    side = Side(Wakeup(), cast("Slots", SimpleNamespace(let_overtake=Mock(), full=Mock(return_value=False))))
    listener = Listener(as_role(database, "surelane_worker"), service="test", within=timedelta(seconds=10))
    other = await asyncpg.connect(database)
    for number, holder in enumerate((connection, other)):
        assert await holder.fetchval("select agent.take_position('{echo}', null)") == number
    reserve = Position([side], 600.0, True, listener, ["echo"])
    reserve.seek()
    running = asyncio.create_task(reserve.run())
    try:
        await until(lambda: listener.hears(CHANNEL), what="listening")
        for _ in range(3):
            await connection.execute("select pg_notify('agent_event', '')")
        await until(lambda: not listener.hears(CHANNEL), what="the end of listening")
        assert not reserve.answers()
        now = datetime.now(UTC)
        overdue = SimpleNamespace(vt=now + timedelta(seconds=601), prior_vt=now)
        reserve.claimed(side, [cast("Event", overdue)], 5)
        await until(lambda: listener.hears(CHANNEL), what="listening again")
        assert reserve.answers()
    finally:
        running.cancel()
        await asyncio.wait({running})
        await listener.close()
        await other.close()


async def test_those_who_answer_together_pause_between_two_answers() -> None:
    wake = Mock()
    side = Side(
        cast("Wakeup", SimpleNamespace(wake=wake)), cast("Slots", SimpleNamespace(let_overtake=Mock()))
    )
    for _ in range(100):
        side.answer(0.5)
    assert wake.call_count == 1
    await until(lambda: wake.call_count > 1, what="the answer after the pause")
    await asyncio.sleep(0.6)  # longer than the next pause
    assert wake.call_count == 2, "the others had their answer"


async def test_a_worker_that_hangs_is_stood_in_for(database: str, connection: Connection) -> None:
    """It keeps its position. A worker that finds an event which it left waiting answers the next ones as well."""
    async with worker(database, **_named("hangs"), SURELANE_POLL_INTERVAL=NEVER) as first:
        await _takes(first, 0)
        first.process.send_signal(signal.SIGSTOP)
        try:
            left = await enqueue(connection, "echo")
            await connection.execute(
                "update agent.event set vt = vt - interval '5 seconds' where id = $1", left
            )
            async with worker(database, **_named("deputy"), SURELANE_POLL_INTERVAL=NEVER) as second:
                assert (await ended(connection, left, SLOWLY))["claimed_by"] == "deputy"
                await _takes(second, 1)
                assert await _handled_by(connection, "echo") == "deputy"
        finally:
            first.process.send_signal(signal.SIGCONT)


async def test_workers_of_other_kinds_have_positions_of_their_own(
    database: str, connection: Connection
) -> None:
    other = {"SURELANE_HANDLERS": "tests.system.worker_handlers:elsewhere"}
    async with (
        worker(database, **_named("ours"), SURELANE_POLL_INTERVAL=NEVER) as ours,
        worker(database, **{**_named("theirs"), **other}, SURELANE_POLL_INTERVAL=NEVER) as theirs,
    ):
        await _takes(ours, 0)
        await _takes(theirs, 0)
        assert await _handled_by(connection, "elsewhere") == "theirs"
        assert await _handled_by(connection, "echo") == "ours"


def _named(name: str) -> dict[str, str]:
    return {"SURELANE_WORKER_NAME": name}


async def _takes(running: Service, number: int) -> None:
    def taken() -> bool:
        return any('"position taken"' in line and f'"position": {number}' in line for line in running.output)

    await until(taken, within=SLOWLY, what=f"taking position {number}")


async def _answers_alone(connection: Connection, responder: str, others: list[Service]) -> None:
    """Return after ten events in a row that the responder handled while the others claimed nothing.

    The others claim a few times first: when they begin to listen, and when a look soon after that finds an event.
    """
    alone, before = 0, [await claims(each) for each in others]
    while alone < 10:
        handled = await _handled_by(connection, "echo")
        now = [await claims(each) for each in others]
        alone = alone + 1 if handled == responder and now == before else 0
        before = now


async def _handled_by(connection: Connection, kind: str) -> str:
    row = await ended(connection, await enqueue(connection, kind), SLOWLY)
    return str(row["claimed_by"])
