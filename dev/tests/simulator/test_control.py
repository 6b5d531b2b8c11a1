"""The simulator's control API, feed and page work over HTTP."""

import asyncio
import json
from typing import Any

import aiohttp
import pytest

from surelane_dev.simulator.client import SimulatorClient, SimulatorError
from tests.system.slack_app import Pair, simulated


async def test_a_request_that_makes_no_sense_is_explained(pair: Pair) -> None:
    body: dict[str, Any]
    for path, body, message in (
        ("messages", {"text": ""}, "text"),
        ("messages", {"text": "x", "colour": "red"}, "colour"),
        ("messages", {"text": "x", "channel": "nowhere"}, "no channel nowhere"),
        ("messages", {"text": "x", "user": "nobody"}, "no person nobody"),
        ("messages", {"text": "x", "user": "surelane"}, "no person"),
        ("messages", {"text": "x", "thread_ts": "1.1"}, "no thread"),
        ("messages", {"text": "x", "channel": "D0ADA00001", "user": "grace"}, "not in"),
        ("reactions", {"channel": "general", "ts": "1.1", "name": "eyes"}, "no message"),
        ("commands", {"command": "deploy"}, "command"),
        ("faults", {"kind": "explode"}, "kind"),
        ("faults", {"kind": "slow", "methods": ["chat.shout"]}, "chat.shout"),
        ("views/V1", {"values": {}}, "not open"),
        ("deliveries/Ev1/resend", {}, "no such event"),
    ):
        with pytest.raises(SimulatorError, match=message):
            await pair.control.request("POST", f"/control/{path}", body)
    async with aiohttp.request("POST", f"{pair.url}/control/messages", data='{"text": "x"}') as response:
        assert response.status == 400, "a foreign page cannot post a form"
        assert "application/json" in (await response.json())["error"]


async def test_people_edit_and_delete_only_what_is_theirs(pair: Pair) -> None:
    message = await pair.said(mention=False)
    where = {"channel": message["channel"], "ts": message["ts"]}
    changed = await pair.control.request("PUT", "/control/messages", where | {"text": "better"})
    assert (changed["message"]["text"], "edited" in changed["message"]) == ("better", True)
    with pytest.raises(SimulatorError, match="somebody else's"):
        await pair.control.request("DELETE", "/control/messages", where | {"user": "grace"})
    await pair.control.request("DELETE", "/control/messages", where)
    assert (await pair.control.request("GET", "/control/state"))["messages"] == []


async def test_a_reply_is_waited_for_and_a_stream_until_it_ends(pair: Pair) -> None:
    asked = await pair.said()
    waiting = asyncio.create_task(pair.control.reply(asked, timeout=300))
    thread = {"channel": asked["channel"], "thread_ts": asked["ts"]}
    person = {"recipient_team_id": "T0SURELANE", "recipient_user_id": "U0ADA00001"}
    stream = await pair.web.chat_stream(**thread, **person, buffer_size=1)
    await stream.append(markdown_text="half")
    await stream.stop(markdown_text=" and whole")
    assert (await waiting)["text"] == "half and whole"
    with pytest.raises(SimulatorError, match="no reply within"):
        await pair.control.reply(await pair.said(), timeout=0.05)


async def test_the_feed_tells_of_every_change_in_order(pair: Pair) -> None:
    async with aiohttp.ClientSession() as session, session.get(f"{pair.url}/control/feed") as feed:
        assert feed.content_type == "text/event-stream"
        asked = await pair.said(wait=True)
        await pair.web.reactions_add(channel=asked["channel"], timestamp=asked["ts"], name="eyes")
        kinds: list[tuple[str, str]] = []
        async with asyncio.timeout(60):
            while ("call", "reactions.add") not in kinds:
                kinds.append(await _next(feed))
    assert kinds[:2] == [("message", asked["ts"]), ("delivery", "sending")]
    assert ("delivery", "delivered") in kinds


async def _next(feed: aiohttp.ClientResponse) -> tuple[str, str]:
    """Return the next item's kind, and the value that identifies it."""
    kind = ""
    while True:
        line = (await feed.content.readline()).decode().strip()
        if line.startswith("event: "):
            kind = line.removeprefix("event: ")
        elif line.startswith("data: "):
            item = json.loads(line.removeprefix("data: "))
            return kind, item.get("state") or item.get("method") or item.get("ts") or ""


async def test_it_ends_at_once_although_a_page_is_open_and_somebody_waits_for_a_reply() -> None:
    async with aiohttp.ClientSession() as session, SimulatorClient("") as patient, asyncio.timeout(60):
        async with simulated() as pair:
            feed = await session.get(f"{pair.url}/control/feed")
            asked, patient.url = await pair.said(), pair.url
            waiting = asyncio.create_task(patient.reply(asked, timeout=600))
            await asyncio.sleep(0)
        feed.close()
        with pytest.raises(SimulatorError):
            await waiting


async def test_the_page_is_served_with_nothing_from_elsewhere(pair: Pair) -> None:
    async with aiohttp.ClientSession() as session:
        async with session.get(f"{pair.url}/") as response:
            page = await response.text()
            assert response.content_type == "text/html"
            assert "default-src 'self'" in response.headers["Content-Security-Policy"]
        assert "http://" not in page
        assert "https://" not in page
        async with session.get(f"{pair.url}/page/app.js") as script:
            assert script.content_type in {"text/javascript", "application/javascript"}
        async with session.get(f"{pair.url}/livez") as alive:
            assert alive.status == 200
