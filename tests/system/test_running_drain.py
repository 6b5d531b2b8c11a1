"""A worker that is stopped: what only a real process shows. The rest is in tests/fleet/test_stops.py."""

import signal

import aiohttp

from surelane.calls import Connection
from surelane_service.lifecycle import EXIT_FORCED
from tests.processes import Service, until
from tests.system.worker import claimed, enqueue, live, worker


async def draining(running: Service) -> None:
    """Send SIGTERM, and wait for the drain."""
    running.process.send_signal(signal.SIGTERM)
    await until(lambda: any("draining" in line for line in running.output), what="the drain")


async def test_synchronous_handler_that_takes_too_long_keeps_no_process_alive(
    database: str, connection: Connection
) -> None:
    async with worker(database, SURELANE_DRAIN_TIMEOUT="300ms") as running:
        identity = await enqueue(connection, "sleep-in-a-thread", {"seconds": 60})
        await claimed(connection, identity)
        assert await running.child.stop(signal.SIGTERM, 30) == 0
    assert (await live(connection, identity))["attempts"] == 1, "its thread may have done something"


async def test_draining_worker_is_not_ready_and_a_second_signal_ends_it_at_once(
    database: str, connection: Connection
) -> None:
    """The drain would take thirty seconds."""
    async with worker(database) as running:
        await claimed(connection, await enqueue(connection, "sleep", {"seconds": 60}))
        await draining(running)
        async with aiohttp.ClientSession() as session, session.get(running.private_url + "/readyz") as probe:
            assert probe.status == 503
        assert await running.child.stop(signal.SIGTERM, 15) == EXIT_FORCED
