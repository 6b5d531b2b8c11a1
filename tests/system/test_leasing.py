"""Leases are renewed while a handler runs. If one is lost or its worker dies, another worker takes the event."""

import json
from datetime import timedelta

import pytest

from surelane.calls import Connection
from tests.processes import until
from tests.scenario import eventually
from tests.system.worker import claimed, ended, enqueue, live, worker

LEASE = "3s"
"""Short, but long enough for a worker on a busy machine to renew it."""
TAKE = "update agent.event set {} claimed_by = 'another', vt = now() + interval '1h'"
TAKEN = {
    "by the next claim": TAKE.format("claimed = claimed || now(),"),
    "after a failover that lost the claim": TAKE.format(""),
}
"""How another worker gets an event."""


async def test_leases_of_an_event_and_of_a_whole_group_are_renewed_while_their_handlers_run(
    database: str, connection: Connection
) -> None:
    renewed = """
    select count(*) = 4 and bool_and(cardinality(claimed) = 1 and vt > claimed[1] + interval '12 s') from agent.event
    """
    settings = {"SURELANE_LEASE": "10s", "SURELANE_DRAIN_TIMEOUT": "200ms"}
    async with worker(database, **settings), worker(database, **settings):
        async with connection.transaction():
            for _ in range(3):
                await enqueue(connection, "sleep", {"seconds": 60}, group_key="T:C:1")
            await enqueue(connection, "sleep", {"seconds": 60})
        await eventually(lambda: connection.fetchval(renewed), expected=True, within=60)


@pytest.mark.parametrize("taken", TAKEN.values(), ids=TAKEN)
async def test_lost_lease_cancels_the_handler_and_leaves_the_event_to_its_holder(
    database: str, connection: Connection, taken: str
) -> None:
    async with worker(database, SURELANE_LEASE=LEASE) as running:
        identity = await enqueue(connection, "sleep", {"seconds": 60})
        await claimed(connection, identity)
        await connection.execute(taken)
        await until(lambda: any("lease lost" in line for line in running.output), what="the loss")
        await ended(connection, await enqueue(connection, "echo"))
    row = await live(connection, identity)
    assert (row["claimed_by"], row["attempts"]) == ("another", 1)


@pytest.mark.parametrize("taken", TAKEN.values(), ids=TAKEN)
async def test_stale_settle_changes_nothing_and_is_logged(
    database: str, connection: Connection, taken: str
) -> None:
    async with worker(database) as running:
        identity = await enqueue(connection, "sleep", {"seconds": 3})
        await claimed(connection, identity)
        await connection.execute(taken)
        await until(lambda: any("stale settle" in line for line in running.output), what="the stale settle")
    assert (await live(connection, identity))["claimed_by"] == "another"


async def test_events_of_a_killed_worker_return_within_a_lease(database: str, connection: Connection) -> None:
    async with worker(database, SURELANE_LEASE=LEASE) as first:
        identity = await enqueue(connection, "sleep", {"seconds": 3.5})
        await claimed(connection, identity)
        first.process.kill()
        await first.child.wait()
    async with worker(database, SURELANE_LEASE=LEASE):
        row = await ended(connection, identity)
    assert (row["outcome"], row["attempts"]) == ("completed", 2)


async def test_starting_worker_frees_events_whose_heartbeats_stopped(
    database: str, connection: Connection
) -> None:
    identity = await enqueue(connection, "echo", {"text": "rescued"})
    await connection.execute("select agent.claim_events(array['echo'], 1, _claimed_by => 'dead')")
    silent = timedelta(minutes=6)
    await connection.execute("update agent.event set heartbeat_at = heartbeat_at - $1::interval", silent)
    async with worker(database):
        row = await ended(connection, identity)
    assert (json.loads(row["result"]), row["attempts"]) == ({"text": "rescued"}, 2)


async def test_last_attempt_that_lapsed_expires(database: str, connection: Connection) -> None:
    identity = await enqueue(connection, "echo", max_attempts=1)
    await connection.execute(
        "select agent.claim_events(array['echo'], 1, _claimed_by => 'dead', _invisible_for => interval '0')"
    )
    async with worker(database, SURELANE_SWEEP_INTERVAL="200ms"):
        row = await ended(connection, identity)
    assert (row["outcome"], row["reason"]) == ("expired", "attempts_exhausted")


async def test_only_old_slack_events_expire_and_only_after_claiming_for_that_age(
    database: str, connection: Connection
) -> None:
    before = await connection.fetchval("select clock_timestamp()")
    async with worker(
        database,
        SURELANE_CONCURRENCY="1",
        SURELANE_MAX_VT_AGE="3s",
        SURELANE_SWEEP_INTERVAL="200ms",
        SURELANE_DRAIN_TIMEOUT="200ms",
    ):
        await claimed(connection, await enqueue(connection, "sleep", {"seconds": 60}, max_attempts=1))
        envelope = {
            "type": "event_callback",
            "event_id": "EvOLD",
            "event": {"type": "app_mention", "ts": "1.1"},
        }
        slack = await connection.fetchval("select agent.insert_event($1)", json.dumps(envelope))
        job = await enqueue(connection, "echo")
        await connection.execute("update agent.event set vt = vt - interval '1h' where claimed_by is null")
        row = await ended(connection, slack)
        assert (row["outcome"], row["reason"]) == ("expired", "too_old")
        assert row["finished_at"] - before >= timedelta(seconds=3)
        assert (await live(connection, job))["attempts"] == 0
