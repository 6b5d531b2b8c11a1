"""Over Socket Mode, everything that Slack sent is in history once, through every outage."""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from itertools import cycle

import pytest

from surelane_dev.simulator.client import SimulatorClient
from surelane_dev.simulator.server import serving_simulator
from surelane_dev.simulator.settings import SimulatorSettings
from surelane_dev.simulator.simulator import Simulator
from surelane_service.settings import load_settings
from tests.metrics import documented, documented_labels, exported, labels, ours, value
from tests.processes import Service, service, until
from tests.system.restartable import Restartable, restartable

RATE = 20
"""Messages a second."""
EVERY = timedelta(seconds=2)
"""Between two forced disconnects."""


@pytest.mark.parametrize(
    "seconds", [8, pytest.param(60, marks=[pytest.mark.chaos, pytest.mark.timeout(300)])]
)
async def test_everything_sent_is_in_history_once(seconds: int) -> None:
    async with restartable() as postgres, talking() as (client, simulator):
        sent: list[str] = []
        saying = asyncio.create_task(say(client, seconds, sent))
        await disturb(postgres, client, saying)
        async with ingest(postgres, client) as running:
            await say(client, 1, sent)
            await until(lambda: _settled(simulator, sent))
            shown = await exported(running.private_url)
        failed = [each for each in sent if simulator.sender.deliveries[each].state != "delivered"]
        repeated = sum(len(simulator.sender.deliveries[each].attempts) > 1 for each in sent)
        assert not failed
        told = documented("Socket Mode")
        assert {name: kind for name, kind in ours(shown).items() if "_socket_" in name} == told
        assert {name: labels(shown[name]) for name in told} == {
            name: documented_labels().get(name, set()) for name in told
        }
        assert value(shown, "surelane_ingest_socket_connections") == 2
        assert repeated, "nothing was disturbed"
        stored = await history(postgres)
        missing = [simulator.sender.deliveries[each] for each in Counter(sent) - stored]
        assert stored == Counter(sent), missing


def _settled(simulator: Simulator, sent: list[str]) -> bool:
    return all(simulator.sender.deliveries[each].state in ("delivered", "failed") for each in sent)


async def say(client: SimulatorClient, seconds: int, sent: list[str]) -> None:
    """Say something at a steady rate, and note the ids of the events."""
    for number in range(seconds * RATE):
        said = await client.say(f"message {number}", mention=True)
        sent += [event["id"] for event in said["events"]]
        await asyncio.sleep(1 / RATE)


async def disturb(postgres: Restartable, client: SimulatorClient, saying: asyncio.Task[None]) -> None:
    """Kill ingest, restart the database and end connections in turn, while messages are sent."""
    for reason in cycle([None, "warning", "refresh_requested"]):
        async with AsyncExitStack() as stack:
            running = await stack.enter_async_context(ingest(postgres, client))
            every = EVERY.total_seconds()
            await client.request("POST", "/control/sockets/disconnect", {"reason": reason, "every": every})
            await asyncio.wait([saying], timeout=every)
            await postgres.restart(signal.SIGQUIT)
            await asyncio.wait([saying], timeout=every)
            os.kill(running.process.pid, signal.SIGKILL)
            await running.child.wait()
        if saying.done():
            break
    await saying
    await client.request("POST", "/control/sockets/disconnect", {"reason": None})


@asynccontextmanager
async def talking() -> AsyncIterator[tuple[SimulatorClient, Simulator]]:
    """Serve a simulator, and connect to it."""
    slack = load_settings(SimulatorSettings, port=0, retry_delays=("0s", "2s", "15s"))
    async with serving_simulator(slack) as (url, simulator), SimulatorClient(url) as client:
        yield client, simulator


@asynccontextmanager
async def ingest(postgres: Restartable, client: SimulatorClient) -> AsyncIterator[Service]:
    """Run ingest with Socket Mode alone."""
    env = {
        "DATABASE_URL": postgres.uri("surelane_ingest"),
        "SLACK_APP_TOKEN": "xapp-1-A1-2-0a",
        "SLACK_API_URL": f"{client.url}/api/",
    }
    async with service("surelane_ingest", env) as running:
        yield running


async def history(postgres: Restartable) -> Counter[str]:
    """Finish all events; return how often each is in history."""
    async with postgres.connected() as connection:
        while claimed := await connection.fetchval("select id from agent.claim_event()"):
            await connection.execute("select agent.delete_event($1)", claimed)
        rows = await connection.fetch("select item_key from agent.event_hist")
        assert await connection.fetchval("select count(*) from agent.event") == 0
        return Counter(row["item_key"] for row in rows)
