"""A worker wakes on time, by few statements, and of several workers one answers a notification."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import Mock

import pytest

from surelane.testing import fleet, virtual
from surelane_dev.testing.fleets.database import Database
from surelane_worker import Context, Event, Handlers
from surelane_worker.claiming import position
from surelane_worker.claiming.claimer import MARGIN, Side, Wakeup
from surelane_worker.claiming.position import HESITATION, PASS_ON_PAUSE, PASSED_ON

if TYPE_CHECKING:
    from surelane_worker.running.slots import Slots

NEVER = {"SURELANE_POLL_INTERVAL": "1h"}
CLAIM = "agent.claim_events"


@dataclass
class Sent:
    """The statements of all workers, which a test may slow down."""

    all: list[tuple[float, str, str]] = field(default_factory=list)
    """When each was sent, by which worker if it claims or polls, and its text."""
    slow: dict[str, float] = field(default_factory=dict)
    """How many seconds the statements take that contain a text."""

    def claims(self, *workers: str) -> int:
        """Return how many claims these workers have sent."""
        return sum(CLAIM in query and name in workers for _, name, query in self.all)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Sent:
    found, run = Sent(), Database.run

    async def noted(self: Database, connection: Any, method: str, query: str, *given: Any) -> Any:
        if connection is not self._observer:
            named = [each for each in (given or [()])[0] if str(each).startswith("worker-")]
            name = named[0] if named else "".join(given[1:])
            found.all.append((self.loop.now, name, query))
        for text, seconds in found.slow.items():
            if text in query:
                await asyncio.sleep(seconds)
        return await run(self, connection, method, query, *given)

    monkeypatch.setattr(Database, "run", noted)
    return found


class Ran:
    """Handlers, and when and where they ran."""

    def __init__(self) -> None:
        self.at: dict[int, float] = {}
        self.by = Counter[str]()
        self.now = self.most = 0
        self.handlers, self.gate = Handlers(), asyncio.Event()
        self.handlers.on("echo")(self.echo)

        @self.handlers.on("raise-once", backoff="10s")
        async def raise_once(event: Event, ctx: Context) -> None:
            await self.echo(event, ctx)
            if ctx.attempt == 1:
                raise RuntimeError("the first time")

        @self.handlers.on("hold")
        async def hold(_: Event, __: Context) -> None:
            await self.gate.wait()

        @self.handlers.on("brief")
        async def brief(_: Event, __: Context) -> None:
            self.now += 1
            self.most = max(self.most, self.now)
            await asyncio.sleep(0.05)
            self.now -= 1

    async def echo(self, event: Event, _: Context) -> None:
        self.at[event.id] = asyncio.get_running_loop().time()

    @asynccontextmanager
    async def fleet(self, workers: int = 1, **settings: str) -> AsyncIterator[Any]:
        """Run workers that have their positions, and send no more statements for their start."""
        async with fleet(self.handlers, workers=workers, settings={**NEVER, **settings}) as f:
            await f.sleep(20)
            yield f

    async def handled_by(self, f: Any, kind: str = "echo") -> str:
        """Return which worker handled a new event."""
        row = await f.until((await f.enqueue(kind)).ended)
        return str(row["claimed_by"])


def numbers(f: Any) -> list[int | None]:
    """Return the positions of all workers."""
    return [each.worker.position.number for each in f.workers]


# --- One worker


@virtual
async def test_an_idle_worker_wakes_on_time_though_it_polls_rarely() -> None:
    ran = Ran()
    async with ran.fleet() as f:
        began = f.now
        late, soon = await f.enqueue("echo", run_in="25s"), await f.enqueue("echo", run_in="15s")
        at_once, retried = await f.enqueue("echo"), await f.enqueue("raise-once")
        for event in (at_once, retried, soon, late):
            await event.result()
        assert began < ran.at[at_once.id] < began + 0.2
        assert began + 15 <= ran.at[soon.id] < began + 15.2
        assert began + 25 <= ran.at[late.id] < began + 25.2
        assert began + 9 < ran.at[retried.id] < began + 12
        f.net.lose_connections()
        await f.sleep(5)  # a lost connection is replaced at once
        assert await ran.handled_by(f) == "worker-1"
        assert f.now < began + 40


@virtual
async def test_without_notifications_the_poll_finds_events(sent: Sent) -> None:
    ran = Ran()
    async with ran.fleet(SURELANE_NOTIFICATIONS="off", SURELANE_POLL_INTERVAL="300ms") as f:
        for _ in range(3):
            began = f.now
            await (await f.enqueue("echo")).result()
            assert f.now < began + 1
        assert f.database.hearers == []
        await f.sleep(10)
        sent.all.clear()
        await f.sleep(30)
        polls = [at for at, name, _ in sent.all if name]
        assert len(polls) <= 30 / 0.3 + 1, "at most one a poll interval"


@virtual
async def test_a_burst_is_not_answered_one_notification_at_a_time(sent: Sent) -> None:
    ran = Ran()
    async with ran.fleet() as f:
        f.freeze(f.workers[0], "5s")
        some = [await f.enqueue("echo") for _ in range(50)]
        for event in some:
            await event.result()
        assert sent.claims("worker-1") < 25


@pytest.mark.parametrize("late", ["commit", "lock", "commit while claims are always on their way"])
@virtual
async def test_what_claims_passed_over_is_found_within_two_poll_intervals(late: str, sent: Sent) -> None:
    """The event is behind its lane's cursor: its transaction ended late, or another one had locked it in its turn."""
    ran, lane = Ran(), "update agent.event set lane = 3 where id = $1"

    async def in_lane_3(f: Any) -> Any:
        event = await f.enqueue("echo")
        await f.sql(lane, event.id)
        return event

    async with ran.fleet(SURELANE_POLL_INTERVAL="1s") as f:
        if "claims" in late:
            sent.slow[CLAIM] = 0.2
        holder = await f.database.lend("surelane")
        if late == "lock":
            await f.sql("select agent.pause_kind('echo')")
            passed = (await in_lane_3(f)).id
            await f.database.run(
                holder, "execute", f"begin; select from agent.event where id = {passed} for update"
            )
            await f.sql("select agent.resume_kind('echo')")
        else:
            await f.database.run(holder, "execute", "begin")
            passed = await f.database.run(holder, "fetchval", "select agent.enqueue('echo')")
            await f.database.run(holder, "execute", f"update agent.event set lane = 3 where id = {passed}")
        until = f.now + MARGIN.total_seconds() + 3
        while f.now < until:
            newer = await in_lane_3(f)
            await f.sleep(0.05 if "claims" in late else 1)
        await newer.result()
        assert passed not in ran.at
        began = f.now
        await f.database.run(holder, "execute", "commit")
        f.database.end(holder)
        await f.until(lambda: passed in ran.at, "10s")
        assert f.now < began + 2.5


@virtual
async def test_a_poll_that_takes_long_delays_no_event(sent: Sent) -> None:
    """Such a poll walks over the dead rows of a queue whose vacuum is held back."""
    ran = Ran()
    async with ran.fleet(SURELANE_POLL_INTERVAL="200ms") as f:
        sent.slow["agent.peek_lanes"] = 1.5
        await f.sleep(5)
        for _ in range(3):
            began = f.now
            await ran.handled_by(f)
            assert f.now < began + 0.5


@virtual
async def test_polls_fetch_the_queues_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = Ran()
    async with ran.fleet(SURELANE_POLL_INTERVAL="100ms") as f:
        polling = f.workers[0].worker._poller  # noqa: SLF001 - the metrics ask it
        first, again = await polling.figures(), await polling.figures()
        assert (first.fresh, again.fresh) == (True, False)
        assert {each.pending for each in first.kinds} == {0}
    monkeypatch.setattr(position, "FIGURES_WITHIN", 5)
    async with ran.fleet() as f:  # no poll brings them
        began = f.now
        polling = f.workers[0].worker._poller  # noqa: SLF001
        assert {each.pending for each in (await polling.figures()).kinds} == {0}
        assert 5 <= f.now - began < 10


@virtual
async def test_a_worker_holds_no_more_than_its_bytes() -> None:
    ran, large = Ran(), 300_000
    settings = {"SURELANE_CONCURRENCY": "20", "SURELANE_CLAIM_BYTES": str(3 * large)}
    async with fleet(ran.handlers, workers=0, settings=settings) as f:
        some = [await f.enqueue("brief", {"text": "a" * large}) for _ in range(8)]
        f.start()
        for event in some:
            await event.result()
        assert 1 <= ran.most <= 3


@virtual
async def test_priorities_and_other_workspaces_overtake_a_backlog() -> None:
    ran = Ran()
    flood = "select agent.enqueue('brief', '{\"team_id\": \"T-crowd\"}') from generate_series(1, 600)"
    waiting = "select count(*) from agent.event where event ->> 'team_id' = 'T-crowd'"
    async with fleet(ran.handlers, workers=0, settings={"SURELANE_CONCURRENCY": "1"}) as f:
        await f.sql(flood)
        behind = await f.enqueue("brief", {"team_id": "T-behind"})
        await f.sql("update agent.event set vt = vt - interval '10 seconds'")
        f.start()
        await (await f.enqueue("echo", priority=0)).result()
        await behind.result()
        assert (await f.sql(waiting))[0][0] > 600 / 4


@virtual
async def test_other_events_cost_the_interactive_slots_no_claim(sent: Sent) -> None:
    ran = Ran()
    ran.handlers.command("/echo")(ran.echo)
    async with ran.fleet(SURELANE_CONCURRENCY="1", SURELANE_INTERACTIVE_CONCURRENCY="1") as f:
        before = sent.claims("worker-1")
        for _ in range(10):
            await ran.handled_by(f)
        # One claim finds the event, and one finds no other.
        assert sent.claims("worker-1") - before <= 2 * 10 + 2


# --- Several workers


@virtual
async def test_of_several_workers_one_answers_and_the_deputy_looks_once_after_many(sent: Sent) -> None:
    ran = Ran()
    async with ran.fleet(3) as f:
        responder, deputy, reserve = [f.workers[numbers(f).index(each)].host.name for each in (0, 1, None)]
        sent.all.clear()
        for _ in range(10):
            assert await ran.handled_by(f) == responder
            await f.sleep(1)
        assert (sent.claims(deputy), sent.claims(reserve)) == (10, 0)
        looks = [name for _, name, query in sent.all if "agent.peek_lanes" in query]
        assert deputy not in looks, "a claim that finds nothing is no reason for a look"
        sent.all.clear()
        began = f.now
        for _ in range(50):
            await ran.handled_by(f)
        assert sent.claims(deputy) <= 2 * (f.now - began) / HESITATION + 1, (
            "one claim, and another if that found some"
        )


@pytest.mark.parametrize("fault", ["killed", "hangs", "full"])
@virtual
async def test_where_the_responder_does_not_answer_the_deputy_does_a_moment_later(fault: str) -> None:
    """No poll finds the events: the next one is an hour away. The scheduled one has no notification of its own."""
    ran = Ran()
    async with ran.fleet(3, SURELANE_CONCURRENCY="2") as f:
        responder, deputy = [f.workers[numbers(f).index(each)] for each in (0, 1)]
        due = await f.enqueue("echo", run_in="10s")
        await f.sleep(5)
        if fault == "killed":
            await f.kill(responder)
        elif fault == "hangs":
            f.freeze(responder, "1h")
        else:
            held = [await f.enqueue("hold") for _ in range(2)]
            await f.until(lambda: all(responder.runs(each) for each in held))
            await f.sleep(PASSED_ON)
        times = []
        for _ in range(20):
            times.append(f.now)
            await ran.handled_by(f)
        pauses = [later - earlier for earlier, later in pairwise([*times, f.now])]
        assert max(pauses) < 0.3
        assert sum(pauses[1:]) < 1.5, "once it knows, it answers at once"
        await f.until(due.ended)
        if fault == "killed":
            assert deputy.worker.position.number == 0
        ran.gate.set()


@virtual
async def test_a_busy_responder_shares_the_load() -> None:
    ran = Ran()
    async with ran.fleet(2, SURELANE_CONCURRENCY="20") as f:
        responder, deputy = [f.workers[numbers(f).index(each)] for each in (0, 1)]
        for _ in range(11):
            held = await f.enqueue("hold")
            await f.until(lambda held=held: responder.runs(held))
            await f.sleep(1)
        by = Counter([await ran.handled_by(f) for _ in range(100)])
        assert min(by[each.host.name] for each in (responder, deputy)) > 10
        ran.gate.set()


@virtual
async def test_the_deputy_polls_where_the_responder_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """And no notification comes. One in reserve would take many intervals, as in a large fleet."""
    monkeypatch.setattr(position, "RESERVE", 0.1)
    ran = Ran()
    async with ran.fleet(3, SURELANE_POLL_INTERVAL="5s") as f:
        f.database.hearers.clear()
        for responder in list(f.workers):
            if responder.worker.position.number == 0:
                f.freeze(responder, "1h")
        began = f.now
        assert await f.until((await f.enqueue("echo")).ended)
        assert f.now - began < 1.5 * 5 + 1
        began = f.now
        assert await f.until((await f.enqueue("echo")).ended)
        assert f.now - began < 1, "it answers the next ones"


@virtual
async def test_a_full_worker_passes_on_and_a_stopping_one_hands_over_at_once() -> None:
    ran = Ran()
    async with ran.fleet(SURELANE_CONCURRENCY="1", SURELANE_DRAIN_TIMEOUT="10m") as f:
        first = f.workers[0]
        held = await f.enqueue("hold")
        await f.until(lambda: first.runs(held))
        f.start()
        await f.sleep(20)
        assert numbers(f) == [0, 1]
        assert await ran.handled_by(f) == "worker-2"
        began = f.now
        later = await f.until((await f.enqueue("echo", run_in="25s")).ended, "1m")
        assert later["claimed_by"] == "worker-2"
        assert f.now < began + 25.5, "it claims an event in time that is due later"
        draining = asyncio.create_task(f.drain(first))
        await f.until(lambda: numbers(f)[1] == 0, "10s")
        assert await ran.handled_by(f) == "worker-2"
        assert not draining.done()
        ran.gate.set()
        await draining
        await held.result()


@virtual
async def test_a_worker_in_reserve_answers_for_full_ones() -> None:
    ran = Ran()
    async with ran.fleet(SURELANE_CONCURRENCY="1") as f:
        for _ in range(2):
            await f.enqueue("hold")
            await f.sleep(1)
            f.start()
            await f.sleep(20)
        assert numbers(f) == [0, 1, None]
        for _ in range(3):
            began = f.now
            assert await ran.handled_by(f) == "worker-3"
            assert f.now < began + 3
            await f.sleep(PASS_ON_PAUSE)  # longer than a worker looks for more after a claim


@virtual
async def test_a_worker_in_reserve_listens_again_at_an_overdue_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(position, "PATIENCE", 3)
    ran = Ran()
    async with ran.fleet(3, SURELANE_POLL_INTERVAL="5s") as f:
        reserve = f.workers[numbers(f).index(None)]
        others = [each for each in f.workers if each is not reserve]

        def listens() -> bool:
            return any(
                "agent_event" in each._heard  # noqa: SLF001 - its own word for it
                for each in f.database.hearers
                if each.host is reserve.host
            )

        assert listens()
        for _ in range(4):
            await ran.handled_by(f)
            await f.sleep(1)
        await f.until(lambda: not listens(), "1m")
        assert not reserve.worker.position.answers()
        for each in others:
            f.freeze(each, "20m")
        assert await ran.handled_by(f) == reserve.host.name
        assert reserve.worker.position.answers()
        await f.until(listens, "1m")
        began = f.now
        assert await ran.handled_by(f) == reserve.host.name
        assert f.now < began + 2


@virtual
async def test_those_who_answer_together_pause_between_two_answers() -> None:
    wake = Mock()
    side = Side(
        cast("Wakeup", SimpleNamespace(wake=wake)), cast("Slots", SimpleNamespace(let_overtake=Mock()))
    )
    for _ in range(100):
        side.answer(0.5)
    assert wake.call_count == 1
    await asyncio.sleep(0.6)
    assert wake.call_count == 2
    await asyncio.sleep(10)
    assert wake.call_count == 2, "the others had their answer"


@virtual
async def test_workers_of_other_kinds_have_positions_of_their_own() -> None:
    ran, other = Ran(), Handlers()

    @other.on("elsewhere")
    async def elsewhere(_: Event, __: Context) -> None: ...

    async with ran.fleet() as f:
        f.start(other)
        await f.sleep(20)
        assert numbers(f) == [0, 0]
        assert await ran.handled_by(f, "elsewhere") == "worker-2"
        assert await ran.handled_by(f) == "worker-1"
