"""Over Socket Mode, everything that Slack sent is in history once, through every outage."""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from itertools import count, cycle, islice

import pytest

from surelane_dev.simulator.client import SimulatorClient
from surelane_dev.simulator.posting import sender
from surelane_dev.simulator.posting.delivery import Attempt
from surelane_dev.simulator.server import serving_simulator
from surelane_dev.simulator.simulator import Simulator
from surelane_dev.simulator.simulator_settings import SimulatorSettings
from surelane_service.service_settings import load_settings
from tests.metrics import documented, documented_labels, exported, labels, ours, value
from tests.processes import Service, free_port, service, until
from tests.system.restartable import Restartable, restartable

RATE = 20
"""Messages a second."""
EVERY = timedelta(seconds=1)
"""Between two forced disconnects."""
RETRIES = (timedelta(), timedelta(seconds=2), *[timedelta(seconds=5)] * 20)
"""Slack's last retry comes minutes after the first. On a slow machine, the outages here last longer than three
short delays: more retries take the place of long ones."""


@pytest.mark.parametrize(
    ("rounds", "messages"),
    [(3, 15), pytest.param(12, 40, marks=[pytest.mark.chaos, pytest.mark.timeout(300)])],
)
async def test_everything_sent_is_in_history_once(
    rounds: int, messages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "KEPT", 100_000)
    async with restartable() as postgres, talking() as (client, simulator):
        sent: list[str] = []
        disturbed = asyncio.Event()
        saying = asyncio.create_task(say(client, sent, disturbed))
        await disturb(postgres, client, simulator, rounds, messages)
        async with ingest(postgres, client) as running:
            await delivered(simulator, messages)
            disturbed.set()
            await saying
            await until(lambda: _settled(simulator, sent), within=120, what="every delivery")
            await until(lambda: simulator.sockets.connections == 2)
            shown = await exported(running.private_url)
        deliveries = simulator.sender.deliveries
        assert not [deliveries[each] for each in sent if deliveries[each].state != "delivered"]
        told = documented("Socket Mode")
        assert {name: kind for name, kind in ours(shown).items() if "_socket_" in name} == told
        assert {name: labels(shown[name]) for name in told} == {
            name: documented_labels().get(name, set()) for name in told
        }
        assert value(shown, "surelane_ingest_socket_connections") == 2
        stored = await history(postgres)
        assert stored == Counter(sent), [deliveries[each] for each in Counter(sent) - stored]


def _settled(simulator: Simulator, sent: list[str]) -> bool:
    return all(simulator.sender.deliveries[each].state in ("delivered", "failed") for each in sent)


async def say(client: SimulatorClient, sent: list[str], disturbed: asyncio.Event) -> None:
    """Say something at a steady rate until the disturbances are over, and note the ids of the events."""
    for number in count():
        if disturbed.is_set():
            return
        said = await client.say(f"message {number}", mention=True)
        sent += [event["id"] for event in said["events"]]
        await asyncio.sleep(1 / RATE)  # the rate of the messages


async def disturb(
    postgres: Restartable, client: SimulatorClient, simulator: Simulator, rounds: int, messages: int
) -> None:
    """Kill ingest, restart the database and end connections in turn, while messages are sent."""
    for reason in islice(cycle([None, "warning", "refresh_requested"]), rounds):
        async with ingest(postgres, client) as running:
            every = EVERY.total_seconds()
            await client.request("POST", "/control/sockets/disconnect", {"reason": reason, "every": every})
            await delivered(simulator, messages)
            await postgres.restart(signal.SIGQUIT)
            await delivered(simulator, messages)
            await client.request("POST", "/control/sockets/disconnect", {"reason": None})
            postgres.freeze()
            await kill_at_work(running, simulator)
            postgres.thaw()


async def delivered(simulator: Simulator, messages: int) -> None:
    """Wait until so many further messages are delivered."""

    def number() -> int:
        return sum(each.state == "delivered" for each in simulator.sender.deliveries.values())

    enough = number() + messages
    await until(lambda: number() >= enough)


async def kill_at_work(running: Service, simulator: Simulator) -> None:
    """Kill ingest with an envelope that it cannot acknowledge, as the database is frozen. It is sent again."""
    before = set(simulator.sockets.sent)
    await until(lambda: simulator.sockets.sent.keys() - before)
    cut = len(_failed(simulator))
    os.kill(running.process.pid, signal.SIGKILL)
    await running.child.wait()
    await until(lambda: len(_failed(simulator)) > cut)


def _failed(simulator: Simulator) -> list[Attempt]:
    return [
        attempt
        for delivery in simulator.sender.deliveries.values()
        for attempt in delivery.attempts
        if attempt.problem == "connection_failed"
    ]


@asynccontextmanager
async def talking() -> AsyncIterator[tuple[SimulatorClient, Simulator]]:
    """Serve a simulator that sends over Socket Mode alone, and connect to it."""
    slack = load_settings(
        SimulatorSettings,
        port=0,
        ingest_url=f"http://127.0.0.1:{free_port()}",  # the usual address may have an ingest that is not ours
    )
    async with serving_simulator(slack) as (url, simulator), SimulatorClient(url) as client:
        simulator.sender.retry_delays = RETRIES
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
