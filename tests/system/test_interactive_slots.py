"""Commands and interactions have slots of their own, in a fleet of real workers."""

import asyncio
from contextlib import AbstractAsyncContextManager

from surelane.calls import Connection
from tests.processes import Service, until
from tests.system.test_answers import HANDLERS
from tests.system.worker import claimed, claims, ended, enqueue, live, worker

COMMAND = """select agent.insert_event(jsonb_build_object('command', $1::text, 'trigger_id', $2::text))"""


async def announced(connection: Connection) -> None:
    """Wait until a worker has said which kinds it keeps in order."""
    while not await connection.fetchval("select bool_or(ordered) from agent.kind"):  # noqa: ASYNC110
        await asyncio.sleep(0.02)


def lone(database: str) -> AbstractAsyncContextManager[Service]:
    """Run a worker with one slot of each sort that learns of events by notifications alone."""
    return worker(
        database,
        SURELANE_HANDLERS=HANDLERS,
        SURELANE_CONCURRENCY="1",
        SURELANE_INTERACTIVE_CONCURRENCY="1",
        SURELANE_POLL_INTERVAL="10m",
        SURELANE_DRAIN_TIMEOUT="100ms",
        SURELANE_MAX_ATTEMPTS="1",
    )


async def test_responder_with_full_interactive_slots_passes_on(database: str, connection: Connection) -> None:
    async with lone(database) as first:
        await until(lambda: any("position taken" in line for line in first.output), what="the responder")
        async with lone(database) as second:
            await until(lambda: any("position taken" in line for line in second.output), what="the deputy")
            held = await connection.fetchval(COMMAND, "/hold", "1")
            by = (await claimed(connection, held))["claimed_by"]
            passed_on = await connection.fetchval(COMMAND, "/hold", "2")
            assert (await claimed(connection, passed_on))["claimed_by"] != by
            # The ordinary slots are free all the time, and are not for commands.
            waiting = await connection.fetchval(COMMAND, "/hold", "3")
            await claimed(connection, await enqueue(connection, "hold"))
            assert (await live(connection, waiting))["attempts"] == 0


async def test_ordered_command_waits_for_its_turn_in_ordinary_slots(
    database: str, connection: Connection
) -> None:
    async with lone(database) as running:
        await until(lambda: any("position taken" in line for line in running.output), what="the responder")
        await announced(connection)
        identity = await connection.fetchval(
            """select agent.insert_event('{"type": "shortcut", "trigger_id": "1", "channel": {"id": "C1"}}')"""
        )
        row = await ended(connection, identity)
        assert (row["group_key"], row["outcome"]) == ("C1", "completed")


async def test_other_events_cost_the_interactive_slots_no_claim(
    database: str, connection: Connection
) -> None:
    async with lone(database) as running:
        await until(lambda: any("position taken" in line for line in running.output), what="the responder")
        await ended(connection, await connection.fetchval(COMMAND, "/wrong", "1"))
        before = await claims(running)
        for _ in range(10):
            await ended(connection, await enqueue(connection, "nothing"))
        # One claim finds the event, and one finds no other.
        assert await claims(running) - before <= 2 * 10 + 2
