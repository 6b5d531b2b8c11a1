"""The simulator shows an event's status in the queue, and works without a queue."""

import asyncio
import time
from typing import Any

from pydantic import SecretStr

from surelane.calls import Connection
from surelane.queue import Queue
from surelane_service.engine import Engine
from tests.system.slack_app import Pair, simulated


async def job(pair: Pair, event_id: str, status: str) -> dict[str, Any]:
    """Wait until the simulator shows the event's status in the queue."""
    deadline = time.monotonic() + 60
    while True:
        found = (await pair.control.request("GET", f"/control/deliveries/{event_id}"))["job"]
        if found and found["status"] == status:
            return dict(found)
        assert time.monotonic() < deadline, f"{found} did not become {status}"
        await asyncio.sleep(0.05)


async def test_an_event_is_followed_through_the_queue(database: str, connection: Connection) -> None:
    queue = Queue(connection)
    async with simulated(operator_database_url=SecretStr(database)) as pair:
        await pair.said(wait=True)
        (request,) = pair.app.received
        event_id = request.envelope["event_id"]
        identity = await queue.insert_event(request.body.decode())
        assert (await job(pair, event_id, "pending"))["id"] == identity
        (event,) = await Engine(connection).claim_events(["slack.app_mention"], 1, worker="test")
        await job(pair, event_id, "running")
        await Engine(connection).settle([(event.id, event.claim, "complete", None)])
        assert (await job(pair, event_id, "completed"))["attempts"] == 1


async def test_without_a_queue_the_rest_works_as_ever(empty_database: str) -> None:
    for url in (empty_database, "postgresql://nobody@127.0.0.1:1/none", "nonsense"):
        async with simulated(database_url=SecretStr(url)) as pair:
            asked = await pair.said(wait=True)
            await pair.web.chat_postMessage(channel=asked["channel"], thread_ts=asked["ts"], text="here")
            assert (await pair.control.reply(asked, timeout=300))["text"] == "here"
