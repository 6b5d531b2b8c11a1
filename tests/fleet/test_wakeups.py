"""Which workers a notification wakes, and that idle ones wake in time and send few statements."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest

from surelane.testing import fleet, virtual
from surelane_service.pool import CHANNEL
from surelane_worker import Context, Event, Handlers
from surelane_worker.claiming import poller, position
from surelane_worker.claiming.claimer import MARGIN
from surelane_worker.claiming.position import PASS_ON_PAUSE, Side
from tests.fleet.statements import statements

RARELY = {"SURELANE_POLL_INTERVAL": "1h"}
OWN = "surelane"
"""The role of a foreign transaction."""


def echoing() -> Handlers:
    """Return handlers that take no time, or as long as the payload says, or fail once."""
    handlers = Handlers()

    @handlers.on("echo")
    async def echo(_: Event, __: Context) -> float:
        return asyncio.get_running_loop().time()

    @handlers.on("sleep")
    async def sleep(event: Event, _: Context) -> None:
        await asyncio.sleep(event.payload["seconds"])

    @handlers.on("raise-once", backoff="1s")
    async def once(_: Event, ctx: Context) -> float:
        if ctx.attempt == 1:
            raise RuntimeError("the first time")
        return asyncio.get_running_loop().time()

    return handlers


async def at(f: Any, number: int | None, **settings: str) -> Any:
    """Start a worker, and wait until it has a position."""
    member = f.start(**settings)
    await takes(f, member, number)
    return member


async def takes(f: Any, member: Any, number: int | None) -> None:
    await f.until(lambda: member.worker is not None and member.worker.position.number == number)
    await f.sleep(1)


async def handled_by(f: Any, kind: str = "echo") -> str:
    event, began = await f.enqueue(kind), f.now
    row = await f.until(event.ended)
    assert f.now - began < 5, "it was woken"
    return str(row["claimed_by"])


async def busy(f: Any, member: Any) -> None:
    """Fill the only slot of a worker."""
    event = await f.enqueue("sleep", {"seconds": 3000})
    await f.until(lambda: member.runs(event))


@virtual
async def test_a_notification_wakes_one_worker() -> None:
    async with fleet(echoing(), workers=0, settings=RARELY) as f:
        for number in (0, 1, None):
            await at(f, number)
        for _ in range(2):  # when the others begin to listen they claim
            await handled_by(f)
        await f.sleep(5)
        with statements() as sent:
            assert {await handled_by(f) for _ in range(10)} == {"worker-1"}
        assert {host for host, query in sent if "claim_events" in query} == {"worker-1"}


@virtual
async def test_a_full_worker_passes_on_and_a_stopping_one_hands_over_at_once() -> None:
    one = {"SURELANE_CONCURRENCY": "1", "SURELANE_DRAIN_TIMEOUT": "60s", **RARELY}
    async with fleet(echoing(), workers=0, settings=one) as f:
        full = await at(f, 0)
        await busy(f, full)
        free = await at(f, 1)
        for _ in range(2):
            assert await handled_by(f) == "worker-2"
            await f.sleep(PASS_ON_PAUSE)
        later = await f.enqueue("echo", run_in="30s")
        due = f.now + 30
        assert await later.result() == pytest.approx(due, abs=1), "it claims in time what is due later"
        full.stop.set()
        await takes(f, free, 0)
        assert await handled_by(f) == "worker-2"
        assert not full.task.done(), "it still drains"


@virtual
async def test_a_worker_in_reserve_answers_for_full_ones() -> None:
    one = {"SURELANE_CONCURRENCY": "1", **RARELY}
    async with fleet(echoing(), workers=0, settings=one) as f:
        for number in (0, 1):
            await busy(f, await at(f, number))
        await at(f, None)
        for _ in range(3):
            await f.sleep(PASS_ON_PAUSE)  # longer than a worker looks for more after a claim
            assert await handled_by(f) == "worker-3"


@virtual
async def test_a_worker_in_reserve_stops_listening_until_it_finds_an_overdue_event(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(position, "PATIENCE", 3)
    async with fleet(echoing(), workers=0, settings=RARELY) as f:
        first, second, reserve = [await at(f, number) for number in (0, 1, None)]
        for _ in range(4):
            await handled_by(f)
        await f.until(lambda: not reserve.worker.position.listener.hears(CHANNEL))
        assert not reserve.worker.position.answers()
        for member in (first, second):
            f.freeze(member, "2m")
        left = await f.enqueue("echo")
        await f.sleep(5)
        reserve.worker.position.wake()  # as its next poll does
        assert (await f.until(left.ended))["claimed_by"] == "worker-3"
        await f.sleep(1)
        assert await handled_by(f) == "worker-3", "it stands in for those that hang"


@virtual
async def test_workers_of_other_kinds_have_positions_of_their_own() -> None:
    other = Handlers()

    @other.on("elsewhere")
    async def elsewhere(_: Event, __: Context) -> None: ...

    async with fleet(echoing(), workers=0, settings=RARELY) as f:
        await at(f, 0)
        await takes(f, f.start(other), 0)
        assert [await handled_by(f, kind) for kind in ("elsewhere", "echo")] == ["worker-2", "worker-1"]


@virtual
async def test_events_run_when_they_come_or_are_due_though_no_poll_comes() -> None:
    async with fleet(echoing(), settings=RARELY) as f:
        await f.sleep(5)
        began = f.now
        late, soon = [await f.enqueue("echo", run_in=run_in) for run_in in ("25s", "15s")]
        now, again = await f.enqueue("echo"), await f.enqueue("raise-once")
        ran = [await event.result() - began for event in (now, again, soon, late)]
        assert ran == [pytest.approx(expected, abs=1) for expected in (0.5, 1.5, 15.5, 25.5)]
        f.net.lose_connections()
        await f.sleep(5)
        assert await handled_by(f) == "worker-1"


@virtual
async def test_without_notifications_the_poll_finds_events() -> None:
    settings = {"SURELANE_NOTIFICATIONS": "false", "SURELANE_POLL_INTERVAL": "300ms"}
    async with fleet(echoing(), settings=settings) as f:
        for _ in range(3):
            await handled_by(f)
        assert f.database.hearers == []
        assert [row["session"] for row in await f.sql("select session from agent.worker")] == [None]


@virtual
async def test_an_idle_worker_sends_at_most_one_statement_a_poll_and_answers_a_burst_at_once() -> None:
    async with fleet(echoing(), settings={"SURELANE_POLL_INTERVAL": "400ms"}) as f:
        await f.sleep(5)
        with statements() as sent:
            await f.sleep(8)
        assert 8 < len([host for host, _ in sent if host == "worker-1"]) <= 21
        f.freeze(f.workers[0], "5s")
        burst = [await f.enqueue("echo") for _ in range(30)]
        with statements() as sent:
            for event in burst:
                await event.result()
        assert len([query for _, query in sent if "claim_events" in query]) < 15


async def in_lane_3(f: Any, connection: Any) -> Any:
    """Store an event, whose transaction stays open."""
    run = f.database.run
    await run(connection, "execute", "begin")
    identity = await run(connection, "fetchval", "select agent.enqueue('echo', '{}')")
    await run(connection, "execute", f"update agent.event set lane = 3 where id = {identity}")
    return identity


async def committed(f: Any, connection: Any) -> Any:
    """Store an event."""
    identity = await in_lane_3(f, connection)
    await f.database.run(connection, "execute", "commit")
    return await f.stored(identity)


@pytest.mark.parametrize("late", ["commit", "lock", "commit, while claims are always on their way"])
@virtual
async def test_what_claims_passed_over_is_found_within_two_poll_intervals(
    late: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event is behind its lane's cursor: its transaction ended late, or another one had locked it in its turn."""
    async with fleet(echoing(), settings={"SURELANE_POLL_INTERVAL": "2s"}) as f:
        await handled_by(f)
        holder, other = [await f.database.lend(OWN) for _ in range(2)]
        if late == "lock":
            await f.sql("select agent.pause_kind('echo')")
            passed = (await committed(f, other)).id
            await f.database.run(holder, "execute", "begin")
            await f.database.run(holder, "execute", f"select from agent.event where id = {passed} for update")
            await f.sql("select agent.resume_kind('echo')")
        else:
            passed = await in_lane_3(f, holder)

        async def trickle() -> None:
            monkeypatch.setattr(f.net, "delay", lambda: 0.1)
            while True:
                await committed(f, other)
                await asyncio.sleep(0.05)

        trickling = asyncio.create_task(trickle()) if "always" in late else None
        await f.sleep(MARGIN.total_seconds() + 6)  # only time moves the cursor beyond the event
        if trickling is None:
            await (await committed(f, other)).result()
        await f.database.run(holder, "execute", "commit")
        await (await f.stored(passed)).result(within="8s")
        if trickling is not None:
            trickling.cancel()


@virtual
async def test_a_poll_that_takes_long_delays_no_event() -> None:
    """Such a poll walks over the dead rows of a queue whose vacuum is held back."""
    polling: list[str] = []

    async def slowly(_: object, query: str) -> None:
        if "peek_lanes" in query or "peek_events" in query:
            polling.append(query)
            try:
                await asyncio.sleep(4)
            finally:
                polling.clear()

    async with fleet(echoing(), settings={"SURELANE_POLL_INTERVAL": "10ms"}) as f:
        with statements(before=slowly):
            for _ in range(2):
                await f.until(lambda: polling)
                assert await handled_by(f) == "worker-1"
                assert polling, "it is still at it"
                await f.sleep(4)


@pytest.mark.parametrize("patience", [600, 0.1])
@virtual
async def test_polls_bring_the_queues_figures_or_else_they_are_asked_for(
    monkeypatch: pytest.MonkeyPatch, patience: float
) -> None:
    monkeypatch.setattr(poller, "PATIENCE", patience)
    async with fleet(echoing(), settings={"SURELANE_POLL_INTERVAL": "20s"}) as f:
        await f.sleep(1)
        (member,) = f.workers
        assert member.worker is not None
        began, watch = f.now, member.worker.watch
        with statements() as sent:
            await watch.read()
        assert watch.figures is not None
        assert (f.now < began + 5) is (patience < 1)
        asked = [query for _, query in sent if "peek" not in query]
        assert bool(asked) is (patience < 1)


@virtual
async def test_a_deputy_watches_the_others_while_the_responder_hangs() -> None:
    one = {"SURELANE_CONCURRENCY": "1", **RARELY}
    async with fleet(echoing(), workers=0, settings=one) as f:
        responder, _, reserve = members = [await at(f, number) for number in (0, 1, None)]
        for _ in members:
            await f.enqueue("sleep", {"seconds": 3000})
        await f.until(lambda: all(member.worker.leases.known() for member in members))
        f.freeze(responder, "3m")
        await f.sleep(1)
        await f.kill(reserve)
        await f.sleep("1m")
        dead = await f.sql("select name from agent.worker where died_at is not null")
        assert [row["name"] for row in dead] == ["worker-3"]


@virtual
async def test_those_who_answer_together_pause_between_two_answers() -> None:
    side = Side(cast("Any", SimpleNamespace(wake=(wake := Mock()))), cast("Any", Mock()))
    for _ in range(100):
        side.answer(0.5)
    assert wake.call_count == 1
    for _ in range(2):
        await asyncio.sleep(0.6)
        assert wake.call_count == 2, "the others had their answer"
