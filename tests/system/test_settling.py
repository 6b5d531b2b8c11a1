"""Outcomes are settled promptly, and none delays another."""

import asyncio
import gc
import json
import weakref
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta

import pytest
from structlog.testing import capture_logs

from surelane.calls import Connection
from surelane.jobs import Continuation, Job
from surelane_service.engine import MOST_MEMBERS, Engine
from surelane_service.pool import close_pool, create_pool
from surelane_worker import leasing, settling
from surelane_worker.handling.handler import Handler
from surelane_worker.handling.outcomes import COMPLETE, Complete, Discard, FanOut
from surelane_worker.leasing import Capacity, Claim, Leases, Work
from surelane_worker.observing.metrics import Metrics
from surelane_worker.observing.tracing import Observer
from surelane_worker.settling import MANY, Settler
from tests.processes import until
from tests.sql.migrations import becomes, connected


async def nothing(event: object, ctx: object) -> None:
    """Is never called here."""


class Counting(Metrics):
    """Keeps the kinds of the jobs that were stored."""

    stored: tuple[str, ...] = ()

    def sent(self, kinds: Iterable[str]) -> None:
        self.stored += tuple(kinds)


@dataclass
class Stand:
    """A running settler on a pool of its own, and its claims."""

    engine: Engine
    settler: Settler
    leases: Leases
    metrics: Counting

    async def claims(self, count: int) -> list[Claim]:
        """Claim a number of events."""
        events = await self.engine.claim_events(["echo"], count, worker="w")
        ends = asyncio.get_running_loop().time() + 600
        works = [Work(Handler("echo", ("echo",), nothing), [event], ends, 0.0) for event in events]
        for work in works:
            self.leases.add(work)
        return [work.claims[0] for work in works]


@pytest.fixture
def pace() -> dict[str, float]:
    """Return the settler's pauses that a test overrides, by the names of its constants."""
    return {}


@pytest.fixture
async def stand(
    database: str, connection: Connection, pace: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Stand]:
    for name, seconds in pace.items():
        monkeypatch.setattr(settling, name, seconds)
    await connection.execute("select agent.enqueue('echo') from generate_series(1, $1)", MANY + 1)
    pool = await create_pool(database, service="test", max_size=3, lock_timeout=60)
    engine, metrics = Engine(pool), Counting()
    leases = Leases(engine, timedelta(minutes=10), metrics, Capacity())
    settler = Settler(engine, leases, Observer(metrics))
    sending = asyncio.create_task(settler.run())
    yield Stand(engine, settler, leases, metrics)
    assert not sending.done(), "nothing ends it"
    sending.cancel()
    await close_pool(pool)


@asynccontextmanager
async def locking(database: str, identity: int) -> AsyncIterator[None]:
    """Lock an event's row in a foreign transaction for the length of the block."""
    async with connected(database) as foreign, foreign.transaction():
        await foreign.execute("select from agent.event where id = $1 for update", identity)
        yield


async def ended(connection: Connection, claims: Sequence[Claim]) -> None:
    """Wait until these events are in history."""
    ids = [claim.event.id for claim in claims]
    await becomes(connection, "select not exists (select from agent.event where id = any($1))", ids)


async def flushed(stand: Stand) -> None:
    """Wait until nothing is left to be sent."""
    async with asyncio.timeout(60):
        await stand.settler.flushed()


@pytest.mark.parametrize("pace", [{"FIRST_PAUSE": 3600.0, "LONGEST_PAUSE": 3600.0}])
async def test_a_busy_settle_delays_no_other(database: str, connection: Connection, stand: Stand) -> None:
    """It is sent again separately. If the others waited for it, they would wait for an hour."""
    busy, *others = await stand.claims(4)
    async with locking(database, busy.event.id):
        for claim in (busy, *others[:2]):
            stand.settler.put(claim, COMPLETE)
        await ended(connection, others[:2])
        await until(lambda: set(stand.leases.held) == {busy, others[2]}, what="the answers")
        stand.settler.put(others[2], COMPLETE)
        await until(lambda: list(stand.leases.held) == [busy], what="the answer")
    await ended(connection, others)


async def settle_first(connection: Connection, does: str) -> None:
    """Let each settle begin with a statement of PL/pgSQL."""
    await connection.execute(
        "create sequence public.tries; grant usage on public.tries to public;"
        "alter function agent.settle rename to quick_settle;"
        "create function agent.settle(_ids int8[], _claims int4[], _outcomes text[], _arguments jsonb[])"
        f" returns table (ordinal int4, answer text) language plpgsql security definer as $$ begin {does}"
        " return query select * from agent.quick_settle(_ids, _claims, _outcomes, _arguments); end $$"
    )


@pytest.mark.parametrize("pace", [{"LIMIT": 0.5}])
async def test_a_slow_settle_delays_no_other_of_its_batch(connection: Connection, stand: Stand) -> None:
    claims = await stand.claims(MANY + 1)
    slow = claims[3].event.id
    await settle_first(connection, f"if {slow} = any(_ids) then perform pg_advisory_xact_lock(1); end if;")
    await connection.execute("select pg_advisory_lock(1)")
    for claim in claims:
        stand.settler.put(claim, COMPLETE)
    others = [claim for claim in claims if claim is not claims[3]]
    await ended(connection, others)
    await connection.execute("select pg_advisory_unlock(1)")
    await flushed(stand)
    await ended(connection, claims)


@pytest.mark.parametrize("pace", [{"LIMIT": 0.5}])
async def test_an_outcome_that_takes_longer_than_its_bound_gets_more_time(
    connection: Connection, stand: Stand
) -> None:
    """The server may be slow: with the same bound at each try, the outcome would never be settled."""
    (claim,) = await stand.claims(1)
    await settle_first(connection, "perform pg_sleep(1.2);")
    stand.settler.put(claim, COMPLETE)
    await flushed(stand)
    assert await connection.fetchval("select outcome from agent.event_hist where id = $1", claim.event.id)


FAILING = (
    "lock_not_available",
    "query_canceled",
    "read_only_sql_transaction",
    "insufficient_privilege",
    "undefined_function",
    "io_error",
    "internal_error",
    "unique_violation",
    "check_violation",
    "index_corrupted",
    "in_failed_sql_transaction",
    "invalid_text_representation",
    "raise_exception",
)


async def test_a_settle_that_fails_for_the_servers_state_is_sent_again(
    connection: Connection, stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server may give up a statement, or be in a state in which it takes no outcome."""
    raises = " ".join(f"when {2 * nth + 1} then raise {failing};" for nth, failing in enumerate(FAILING))
    await settle_first(connection, f"case nextval('public.tries') {raises} else null; end case;")
    monkeypatch.setattr("surelane_worker.observing.readiness.STEADY", 0.01)
    for nth, (claim, failing) in enumerate(zip(await stand.claims(len(FAILING)), FAILING, strict=True), 1):
        with capture_logs() as logs:
            stand.settler.put(claim, COMPLETE, json.dumps(failing))
            await flushed(stand)
            if any(entry["event"] == "database unavailable" for entry in logs):
                await until(lambda: logs[-1]["event"] == "database available again")
        await ended(connection, [claim])
        assert await connection.fetchval("select last_value from public.tries") == 2 * nth, failing
    results = await connection.fetch("select result from agent.event_hist")
    assert {json.loads(row["result"]) for row in results} == {*FAILING}


async def test_a_connection_that_was_made_while_the_server_was_read_only_is_not_used_again(
    database: str, connection: Connection, stand: Stand
) -> None:
    """It stays read-only, as one to a standby does."""
    (claim,) = await stand.claims(1)
    name = database.partition("?")[0].rpartition("/")[2]
    its = "from pg_stat_activity where datname = current_database() and application_name = 'test'"
    await connection.execute(f"alter database {name} set default_transaction_read_only = on")
    await connection.execute(f"select pg_terminate_backend(pid) {its}")
    await becomes(connection, f"select not exists (select {its})")
    with capture_logs() as logs:
        stand.settler.put(claim, COMPLETE)
        await until(lambda: any(entry.get("waiting") == "settles" for entry in logs), what="the refusal")
    await connection.execute(f"alter database {name} reset default_transaction_read_only")
    await flushed(stand)
    await ended(connection, [claim])


async def test_a_refused_outcome_ends_beside_a_busy_one_that_is_sent_again_until_it_is_done(
    database: str, connection: Connection, stand: Stand
) -> None:
    """In a batch it answers busy, as the locked event does. Sent alone, it raises the reason."""
    locked, refused = await stand.claims(2)
    async with locking(database, locked.event.id):
        for claim in (locked, refused):
            stand.settler.put(claim, Discard("nul"), json.dumps({"error": {}, "final": True, "reason": "x"}))
        refused.outcome, refused.argument = "fan_out", json.dumps({"children": 1, "continuation": 1})
        await ended(connection, [refused])
    await flushed(stand)
    await ended(connection, [locked])
    assert (list(stand.leases.held), stand.leases.bytes) == ([], 0)
    reasons = await connection.fetch("select reason from agent.event_hist where id = $1", refused.event.id)
    assert [row["reason"] for row in reasons] == ["continuation_refused"]


async def test_what_no_settle_should_be_ends_neither_the_settler_nor_the_others(
    connection: Connection, stand: Stand
) -> None:
    """The first cannot be sent. PostgreSQL refuses the result of the second and the reason of the third."""
    claims = await stand.claims(4)
    claims[0].event.claim = 2**40
    stand.settler.put(claims[0], COMPLETE)
    stand.settler.put(claims[1], Complete("not JSON"), "not JSON")
    refused = json.dumps({"error": {}, "final": True, "reason": "a\0b\ud800"})
    stand.settler.put(claims[2], Discard("a\0b\ud800"), refused)
    stand.settler.put(claims[3], COMPLETE)
    await flushed(stand)
    await ended(connection, claims[1:])
    assert await connection.fetchval("select count(*) from agent.event_hist where outcome = 'completed'") == 2
    assert not stand.leases.held


async def test_jobs_of_a_fan_out_are_counted_only_where_it_stored_them(stand: Stand) -> None:
    stored, stale = await stand.claims(2)
    stale.event.claim += 1
    argument = '{"children": [{"kind": "part"}], "continuation": {"kind": "whole"}, "result": null}'
    for claim in (stored, stale):
        stand.settler.put(claim, FanOut([Job("part")], Continuation("whole")), argument)
    await flushed(stand)
    assert sorted(stand.metrics.stored) == ["part", "whole"]


async def test_a_deadlock_or_a_slow_event_stops_no_heartbeats(
    connection: Connection, stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims = await stand.claims(MANY + 1)
    monkeypatch.setattr(leasing, "LIMIT", 0.5)
    leases = Leases(stand.engine, timedelta(seconds=3), Metrics(), Capacity())
    for claim in claims:
        leases.add(Work(Handler("echo", ("echo",), nothing), [claim.event], claim.lease_ends, 0.0))
    await connection.execute(
        "alter function agent.extend_leases rename to quick_extend;"
        "create function agent.extend_leases(_ids int8[], _claims int4[], _for interval)"
        " returns table (ordinal int4, answer text) language plpgsql security definer as $$ begin"
        f" if {claims[3].event.id} = any(_ids) then"
        "   if cardinality(_ids) = 1 then raise deadlock_detected; end if;"
        "   perform pg_advisory_xact_lock(1); end if;"
        " return query select * from agent.quick_extend(_ids, _claims, _for); end $$"
    )
    await connection.execute("select pg_advisory_lock(1)")
    before = {claim: claim.lease_ends for claim in leases.held}
    keeping = asyncio.create_task(leases.keep())
    leases.renew_soon()
    await until(lambda: sum(claim.lease_ends != ends for claim, ends in before.items()) >= MANY, within=60)
    assert all(claim.lease_ends == ends for claim, ends in before.items() if claim.event is claims[3].event)
    keeping.cancel()


@pytest.mark.parametrize("pace", [{"GATHERING": 600}])
async def test_hurry_sends_what_is_waiting_without_gathering_more(
    connection: Connection, stand: Stand
) -> None:
    claims = await stand.claims(MANY + 1)
    for claim in claims[:MANY]:
        stand.settler.put(claim, COMPLETE)
    async with asyncio.timeout(60):
        await stand.leases.capacity.freed(within=60)
        stand.settler.put(claims[MANY], COMPLETE)
        stand.settler.hurry()
        await stand.settler.flushed()
    assert await connection.fetchval("select count(*) from agent.event_hist") == MANY + 1


async def test_what_is_settled_is_freed_without_the_garbage_collector(connection: Connection) -> None:
    await connection.execute("select agent.enqueue('echo')")
    leases = Leases(Engine(connection), timedelta(minutes=10), Metrics(), Capacity())
    (event,) = await Engine(connection).claim_events(["echo"], 1, worker="w")
    work = Work(Handler("echo", ("echo",), nothing), [event], 600.0, 0.0)
    leases.add(work)
    freed = weakref.ref(event)
    gc.disable()
    try:
        leases.drop(work.claims)
        del event, work
        assert freed() is None
    finally:
        gc.enable()


async def test_a_full_batch_of_a_group_says_that_there_may_be_more(connection: Connection) -> None:
    await connection.execute("select agent.enqueue('echo', _group_key => 'g') from generate_series(1, 250)")
    sizes = []
    while events := await Engine(connection).claim_events(["echo"], 10, worker="w"):
        sizes.append((len(events), Work(Handler("echo", ("echo",), nothing), events, 600.0, 0.0).brings_more))
        await Engine(connection).settle([(event.id, event.claim, "complete", None) for event in events])
    assert sizes == [(MOST_MEMBERS + 1, True), (MOST_MEMBERS + 1, True), (48, False)]
