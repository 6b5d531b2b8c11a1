"""Workers that stop, die, stand still, and lose their connections: no event is lost, none repeated needlessly."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from surelane.testing import fleet, virtual
from surelane_dev.testing.fleets.database import Database
from surelane_operator.changes import Changes
from surelane_operator.reads.timeline import story_of
from surelane_service.engine import DEAD_FOR
from surelane_worker import Context, Event, Handlers

SOON = {"SURELANE_SESSION_GRACE": "500ms"}
CLAIM = "agent.claim_events"
DEAD = "select from agent.worker where died_at is not null"


class Running:
    """Handlers, and what they did."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.spans: list[tuple[str, str | None, int]] = []
        self.handlers = Handlers()
        for kind in ("hang-once", "sleep", "step", "short"):
            self.handlers.on(kind)(getattr(self, kind.replace("-", "_")))

    async def hang_once(self, event: Event, ctx: Context) -> str:
        """Return the second time."""
        self.log.append(f"begin {event.claim}")
        try:
            if ctx.attempt == 1:
                await asyncio.sleep(36000)
        except asyncio.CancelledError:
            self.log.append("cancelled")
            raise
        return "the second time"

    async def sleep(self, event: Event, _: Context) -> None:
        self.log.append(f"begin {event.claim}")
        await asyncio.sleep(event.payload["seconds"])

    async def step(self, event: Event, ctx: Context) -> None:
        await self.sleep(event, ctx)
        await ctx.step("a step", self.log.append, "a step")

    async def short(self, event: Event, _: Context) -> None:
        self.spans.append(("begin", event.group_key, event.id))
        await asyncio.sleep(0.03)
        self.spans.append(("end", event.group_key, event.id))


async def begun(f: Any, event: Any) -> Any:
    """Wait until a worker holds an event, and return it."""
    return await f.until(lambda: next((each for each in f.workers if each.runs(event)), None))


def break_session(member: Any) -> None:
    """Break the connections of a worker, and so its session."""
    for wire in list(member.host.wires):
        wire.end()


def said(logs: Any, text: str) -> list[Any]:
    return [entry for entry in logs if text in f"{entry}"]


# --- Stops


@virtual
async def test_a_worker_that_stops_ends_what_runs_in_time_and_releases_the_rest_unspent() -> None:
    running = Running()
    async with fleet(running.handlers, workers=0, settings={"SURELANE_DRAIN_TIMEOUT": "20s"}) as f:
        quick = [await f.enqueue("sleep", {"seconds": 10}, group_key="T:C:1") for _ in range(3)]
        long = await f.enqueue("sleep", {"seconds": 600})
        f.start()
        await begun(f, quick[0])
        await begun(f, long)
        began, draining = f.now, asyncio.create_task(f.drain())
        await f.sleep(1)
        late = await f.enqueue("sleep", {"seconds": 0})
        await draining
        assert 19 < f.now - began < 22
        row = await f.until(quick[0].ended)
        assert (row["outcome"], row["attempts"]) == ("completed", 1)
        for event in (*quick[1:], long, late):
            row = await event.row()
            assert (row["attempts"], row["claimed_by"], row["errors"]) == (0, None, [])
        assert await f.sql("select from agent.worker") == [], "it is off the list"


@virtual
async def test_rolling_restarts_lose_nothing_and_repeat_nothing() -> None:
    """Three replicas restart under a load of grouped and ungrouped events."""
    running = Running()
    async with fleet(running.handlers, workers=3, settings={"SURELANE_CONCURRENCY": "5"}) as f:

        async def load() -> None:
            for number in range(60):
                group = f"T:C:{number % 10}" if number % 2 else None
                await f.enqueue("short", group_key=group)
                await f.sleep(0.05)

        loading = asyncio.create_task(load())
        for _ in range(3):
            await f.sleep(0.8)
            await f.drain()
            f.start()
        await loading
        await f.until(lambda: len(running.spans) == 120)
        await f.sleep(5)
        rows = await f.sql("select outcome, attempts, count(*) from agent.event_hist group by 1, 2")
        assert [tuple(row) for row in rows] == [("completed", 1, 60)]
        for group in {group for _, group, _ in running.spans if group}:
            mine = [(what, each) for what, key, each in running.spans if key == group]
            ids = sorted({each for _, each in mine})
            assert mine == [(what, each) for each in ids for what in ("begin", "end")]


@virtual
async def test_an_operator_drains_a_worker_which_claims_nothing_until_it_is_resumed() -> None:
    running = Running()
    async with fleet(running.handlers) as f:
        operations = Changes(f.connection)

        async def state() -> str:
            (listed,) = await operations.workers()
            return str(listed["state"])

        first = await f.enqueue("sleep", {"seconds": 20})
        await begun(f, first)
        drain = "select agent.drain_worker($1, $2)"
        assert (await f.sql(drain, "worker-1", True))[0][0]
        assert await state() == "drained"
        await first.result()
        second = await f.enqueue("sleep", {"seconds": 0})
        await f.sleep(20)
        assert await second.why() == "no_worker"
        assert (await second.row())["claimed_by"] is None
        assert (await f.sql(drain, "worker-1", False))[0][0]
        await second.result()
        assert await state() == "alive"
        assert not (await f.sql(drain, "none", True))[0][0]


# --- Sessions


@virtual
async def test_a_killed_workers_events_run_again_within_seconds_and_operators_see_why() -> None:
    running = Running()
    async with fleet(running.handlers, workers=2, settings=SOON) as f:
        await f.sleep(10)
        operations, event = Changes(f.connection), await f.enqueue("hang-once")
        holder, killed_at = await begun(f, event), f.now
        with capture_logs() as logs:
            await f.kill(holder)
            assert await event.result() == "the second time"
        assert f.now - killed_at < 10 < DEAD_FOR.total_seconds()
        assert said(logs, "worker died")
        (dead,) = [each for each in await operations.workers() if not each["alive"]]
        assert (dead["name"], dead["state"]) == (holder.host.name, "died")
        job: Any = await operations.get(event.id)
        steps = [(step.what, step.by) for step in story_of(job)]
        assert ("died", holder.host.name) in steps
        assert ("rescued", (await event.row())["claimed_by"]) in steps
        assert "lapsed" not in [what for what, _ in steps]


@virtual
async def test_a_worker_that_could_not_end_a_claim_is_rescued() -> None:
    """Another transaction has the event's row locked as the worker stops, for longer than it waits."""
    running = Running()
    settings = {**SOON, "SURELANE_DRAIN_TIMEOUT": "100ms"}
    async with fleet(running.handlers, workers=2, settings=settings) as f:
        await f.sleep(10)
        event, foreign = await f.enqueue("hang-once"), await f.database.lend("surelane")
        holder = await begun(f, event)
        lock = f"begin; select from agent.event where id = {event.id} for update"
        await f.database.run(foreign, "execute", lock)
        with capture_logs() as logs:
            await f.drain(holder)
            await holder.host.die()
            assert said(logs, "stopped with unsettled events")
            f.database.end(foreign)
            assert await event.result() == "the second time"
        assert said(said(logs, "worker died"), holder.host.name)
        assert (await event.row())["attempts"] == 2


@virtual
async def test_a_broken_session_is_opened_again_and_its_claims_are_kept() -> None:
    """By a worker without a free slot, too: it does not claim, and so would not notice."""
    running = Running()
    async with fleet(running.handlers, workers=2, settings={"SURELANE_CONCURRENCY": "1"}) as f:
        await f.sleep(10)
        event = await f.enqueue("hang-once")
        holder = await begun(f, event)
        key = "select session from agent.worker where name = $1 and session = any(agent.open_sessions())"
        ((before,),) = await f.sql(key, holder.host.name)
        break_session(holder)
        await f.sleep(4)
        ((after,),) = await f.sql(key, holder.host.name)
        assert after != before
        await f.sleep(60)
        row = await event.row()
        assert (row["attempts"], row["claimed_by"]) == (1, holder.host.name)
        assert await f.sql(DEAD) == []


@virtual
async def test_a_worker_with_a_new_session_learns_at_once_what_it_lost() -> None:
    """Its next heartbeat would come more than a minute later."""
    running = Running()
    async with fleet(running.handlers) as f:
        event = await f.enqueue("hang-once")
        holder = await begun(f, event)
        await f.sleep(2)
        await f.sql(
            "update agent.event set claimed = claimed || agent.clock(), claimed_by = 'another',"
            " vt = agent.clock() + interval '1h'"
        )
        break_session(holder)
        await f.until(lambda: "cancelled" in running.log, "20s")


@virtual
async def test_workers_that_stand_still_are_not_dead_and_those_behind_a_pooler_have_no_session() -> None:
    """Neither one with claims, for longer than a grace, nor any that it watched."""
    running = Running()
    async with fleet(running.handlers, workers=2, settings=SOON) as f:
        await f.sleep(10)
        event = await f.enqueue("sleep", {"seconds": 3})
        holder = await begun(f, event)
        f.freeze(holder, "2s")
        await event.result()
        row = await event.row()
        assert (row["attempts"], row["claimed_by"]) == (1, holder.host.name)
        assert await f.sql(DEAD) == []
        f.start(SURELANE_NOTIFICATIONS="off")
        await f.sleep(10)
        rows = await f.sql("select name from agent.worker where session is null")
        assert [row["name"] for row in rows] == ["worker-3"]


@virtual
async def test_a_worker_is_on_the_list_with_its_kinds_before_it_claims() -> None:
    """Ingest waits for the answers of listed workers alone. A claim of another worker fails here."""
    running = Running()
    async with fleet(running.handlers, workers=0) as f:
        await f.sql(
            "create function agent.listed() returns trigger language plpgsql as $$ begin"
            " assert exists (select from agent.worker where name = new.claimed_by"
            " and new.kind = any(kinds)), 'not listed'; return new; end $$"
        )
        await f.sql(
            "create trigger listed before update of claimed_by on agent.event for each row"
            " when (new.claimed_by is not null) execute function agent.listed()"
        )
        try:
            for notifications in ("on", "off"):
                event = await f.enqueue("short")
                with capture_logs() as logs:
                    f.start(SURELANE_NOTIFICATIONS=notifications)
                    await event.result()
                    await f.drain()
                assert not said(logs, "claim failed")
                assert await f.sql("select from agent.worker") == []
        finally:
            await f.sql("drop trigger listed on agent.event")
            await f.sql("drop function agent.listed")


# --- The network and the database


@pytest.fixture
def losing(monkeypatch: pytest.MonkeyPatch) -> dict[str, Callable[[], None]]:
    """Return what to do once a statement that contains a text has run, before its answer arrives."""
    acts, run = dict[str, Callable[[], None]](), Database.run

    async def noted(self: Database, connection: Any, method: str, query: str, *given: Any) -> Any:
        answer = await run(self, connection, method, query, *given)
        for text in [text for text in acts if text in query and (answer or text != CLAIM)]:
            acts.pop(text)()
        return answer

    monkeypatch.setattr(Database, "run", noted)
    return acts


@virtual
async def test_a_claim_whose_answer_is_lost_is_released_by_its_own_worker(losing: Any) -> None:
    """The claim committed, so the event would else wait for the rescue after five minutes."""
    running = Running()
    async with fleet(running.handlers) as f:
        await (await f.enqueue("short", group_key="g")).result()
        await f.sleep(10)
        losing[CLAIM] = f.workers[0].host.half_open
        with capture_logs() as logs:
            began, event = f.now, await f.enqueue("short", group_key="g")
            await event.result()
        row = await event.row()
        assert (row["attempts"], len(row["claimed"])) == (1, 2)
        assert said(logs, "whose answer was lost")
        assert f.now - began < 30


@virtual
async def test_idle_workers_notice_that_their_connections_are_half_open() -> None:
    running = Running()
    async with fleet(running.handlers, workers=3) as f:
        await f.sleep(20)
        for each in f.workers:
            each.host.half_open()
        began = f.now
        await (await f.enqueue("short")).result()
        assert f.now - began < 20


@pytest.mark.parametrize(
    ("kind", "lost"), [("sleep", "answers"), ("sleep", "requests"), ("step", "requests")]
)
@virtual
async def test_what_an_attempt_stores_is_stored_once_although_its_connection_is_half_open(
    kind: str, lost: str, losing: Any
) -> None:
    """If only the answer is lost, the second settle is stale: that is no error, as the first one counts."""
    running = Running()
    async with fleet(running.handlers) as f:
        await (await f.enqueue("short")).result()
        event = await f.enqueue(kind, {"seconds": 5}, group_key="g")
        following = await f.enqueue("short", group_key="g")
        holder = await begun(f, event)
        with capture_logs() as logs:
            await f.sleep(2)
            if lost == "answers":
                losing["agent.settle"] = holder.host.half_open
            else:
                holder.host.half_open()
            began = f.now
            await event.result()
            assert f.now - began < 20
            await following.result()
            await f.sleep(20)
        row = await event.row()
        assert (row["attempts"], len(row["claimed"])) == (1, 1)
        assert running.log == ["begin 1"] + ["a step"] * (kind == "step")
        assert bool(said(logs, "sent twice")) is (lost == "answers")
        assert "stale settle" not in [entry["event"] for entry in logs]


@virtual
async def test_a_claim_that_is_answered_after_its_lease_is_given_back_unspent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    running = Running()
    async with fleet(running.handlers, settings={"SURELANE_LEASE": "1s"}) as f:
        event = await f.enqueue("short", run_in="10s")
        await f.sleep(9.9)
        with monkeypatch.context() as slow:
            slow.setattr(f.net, "delay", lambda: 1.5)
            await f.sleep(3)
        await event.result()
        row = await event.row()
        assert row["attempts"] == 1
        assert len(row["claimed"]) >= 2


@virtual
async def test_an_outage_is_logged_once_when_it_begins_and_once_when_it_ends() -> None:
    running = Running()
    async with fleet(running.handlers) as f:
        await f.sleep(10)
        with capture_logs() as logs:
            await f.restart_database("30s")
            await (await f.enqueue("short")).result()
            await f.sleep(20)
        begun, over = [entry["event"] for entry in logs if "claims" in entry.values()]
        assert ("unavailable" in begun, "available again" in over) == (True, True)


@virtual
async def test_outcomes_wait_while_the_server_is_read_only() -> None:
    running = Running()
    async with fleet(running.handlers) as f:
        some = [await f.enqueue("sleep", {"seconds": 2}) for _ in range(8)]
        for event in some:
            await begun(f, event)
        f.database.read_only = True
        await f.sleep(20)
        assert await f.sql("select from agent.event_hist") == []
        f.database.read_only = False
        for event in some:
            await event.result("1m")
            assert len((await event.row())["claimed"]) == 1


@virtual
async def test_handlers_stop_when_their_lease_runs_out_though_the_database_hangs() -> None:
    running = Running()
    async with fleet(running.handlers, settings={"SURELANE_LEASE": "1m"}) as f:
        holder = await begun(f, await f.enqueue("hang-once"))
        await f.sleep(1)
        f.cut_off(holder, "20m")
        await f.until(lambda: "cancelled" in running.log, "90s")
