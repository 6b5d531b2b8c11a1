"""With default settings, a network that loses packets without a word holds up no event for longer than 10 seconds."""

import asyncio
from contextlib import AsyncExitStack

import aiohttp
import asyncpg
import pytest

from surelane.calls import Connection
from tests.chaos.test_recovery import RECOVERY, TRIES, within
from tests.databases import as_role
from tests.processes import Service, until
from tests.system.half_open import Proxy, half_open
from tests.system.worker import ended, enqueue, worker

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(420)]


async def unready(running: Service) -> str:
    """Return why a worker is not ready; empty: it is."""
    async with aiohttp.ClientSession() as session, session.get(f"{running.private_url}/readyz") as response:
        return "" if response.status == 200 else await response.text()


async def all_ready(fleet: list[Service]) -> None:
    """Wait until every worker is ready."""
    async with asyncio.timeout(60):
        while any([await unready(each) for each in fleet]):  # noqa: ASYNC110 - no event says so
            await asyncio.sleep(0.1)


def failed_polls(running: Service) -> int:
    return sum('"database unavailable"' in line and '"polls"' in line for line in running.output)


async def lost_claim(proxy: Proxy, connection: Connection, fault: str) -> asyncpg.Record:
    """Run an event whose first claim commits and whose answer is lost, and return its row."""
    for _ in range(TRIES):  # the connection may ask for something else first
        proxy.lose_next_answer(fault)
        row = await ended(connection, await enqueue(connection, "nothing", group_key="g"), within=60)
        if len(row["claimed"]) > 1:
            return row
    pytest.fail("the answer to no claim was lost")


@pytest.mark.parametrize("fault", ["cut", "hung"])
async def test_a_lost_claim_runs_again(database: str, connection: Connection, fault: str) -> None:
    """The worker lives, so no other may end its claim. The second claim is the first to count."""
    async with half_open(as_role(database, "surelane_worker")) as proxy, worker(proxy.uri):
        await ended(connection, await enqueue(connection, "nothing", group_key="g"))

        async def claimed_again() -> float:
            row = await lost_claim(proxy, connection, fault)
            assert (row["outcome"], row["attempts"], len(row["claimed"])) == ("completed", 1, 2)
            return float((row["claimed"][1] - row["claimed"][0]).total_seconds())

        await within(RECOVERY, claimed_again)


@pytest.mark.parametrize("how", ["back", "elsewhere"])
async def test_idle_workers_with_half_open_connections_start_a_new_event_within_seconds(
    database: str, connection: Connection, how: str
) -> None:
    """The network loses everything without a word, until it is back, or there was another path at once."""
    async with half_open(as_role(database, "surelane_worker")) as proxy, AsyncExitStack() as stack:
        fleet = [await stack.enter_async_context(worker(proxy.uri)) for _ in range(3)]
        await ended(connection, await enqueue(connection, "nothing"))

        async def started() -> float:
            await all_ready(fleet)
            before = [failed_polls(each) for each in fleet]
            proxy.swallow()
            if how == "elsewhere":
                proxy.restore()
            else:
                assert all([await unready(each) for each in fleet])
                await until(
                    lambda: all(failed_polls(each) > had for each, had in zip(fleet, before, strict=True)),
                    within=60,
                    what="the failed polls",
                )
                assert all([await unready(each) for each in fleet])
                proxy.restore()
            row = await ended(connection, await enqueue(connection, "nothing"), within=60)
            assert (row["outcome"], row["attempts"]) == ("completed", 1)
            return float((row["claimed"][0] - row["enqueued_at"]).total_seconds())

        await within(RECOVERY, started)
        for each in fleet:  # they would wait for what is half-open
            each.child.kill()
            await each.child.wait()
