"""The simulator's control API, feed and page work over HTTP, without a queue too, and for no foreign page."""

import asyncio
import json
from typing import Any

import aiohttp
import pytest
from pydantic import SecretStr

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


async def test_a_reply_is_waited_for_and_people_edit_and_delete_only_what_is_theirs(pair: Pair) -> None:
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
    message = await pair.said(mention=False)
    where = {"channel": message["channel"], "ts": message["ts"]}
    changed = await pair.control.request("PUT", "/control/messages", where | {"text": "better"})
    assert (changed["message"]["text"], "edited" in changed["message"]) == ("better", True)
    with pytest.raises(SimulatorError, match="somebody else's"):
        await pair.control.request("DELETE", "/control/messages", where | {"user": "grace"})
    await pair.control.request("DELETE", "/control/messages", where)
    left = (await pair.control.request("GET", "/control/state"))["messages"]
    assert where["ts"] not in [each["ts"] for each in left]


async def test_the_page_has_nothing_from_elsewhere_and_its_feed_tells_of_every_change(pair: Pair) -> None:
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


JSON = {"Content-Type": "application/json"}
FORM = {"Content-Type": "application/x-www-form-urlencoded"}


async def test_only_programs_and_its_own_page_are_answered() -> None:
    """DNS rebinding shows in Host. Forms and scripts of other pages show in Origin."""
    async with simulated(hosts=frozenset({"box"})) as slack, aiohttp.ClientSession() as session:
        port = slack.url.rpartition(":")[2]

        async def ask(method: str, path: str, **headers: str) -> int:
            given = {name.replace("_", "-"): value for name, value in headers.items()}
            data = b'{"text": "forged"}' if method == "POST" else None
            async with session.request(method, slack.url + path, headers=given, data=data) as response:
                return response.status

        said = "/control/messages"
        for path in ("/", "/control/state", "/control/feed", "/page/app.js", "/api/api.test", "/livez"):
            for host in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", "", "[::1"):
                assert await ask("GET", path, Host=host) == 403, (path, host)
        for path in (said, "/api/chat.postMessage", "/response/key"):
            assert await ask("POST", path, Host="evil.example", **JSON) == 403
            for origin in ("https://evil.example", "null", "http://127.0.0.1", f"http://127.0.0.1:{port}1"):
                assert await ask("POST", path, Origin=origin, **FORM) == 403, (path, origin)
            for site in ("cross-site", "same-site"):
                assert await ask("POST", path, Sec_Fetch_Site=site, **FORM) == 403
        assert slack.app.received == []

        for host in (f"localhost:{port}", "127.0.0.1", f"[::1]:{port}", "10.1.2.3:80", "box:8090", "BOX"):
            assert await ask("GET", "/control/state", Host=host) == 200, host
        assert await ask("GET", "/", Sec_Fetch_Site="cross-site") == 200
        assert await ask("POST", said, Origin=slack.url, Sec_Fetch_Site="same-origin", **JSON) == 200
        assert await ask("POST", "/api/api.test", **JSON) == 200


@pytest.mark.parametrize("posting", [True, False])
async def test_the_environment_s_secret_is_never_used(monkeypatch: pytest.MonkeyPatch, posting: bool) -> None:
    monkeypatch.setenv("SLACK_SIGNING_SECRET", "real")
    async with simulated(posting=posting) as slack:
        assert (await slack.control.request("GET", "/control/state"))["posting"] is posting
        (event,) = (await slack.control.say("hello", mention=True, wait=True))["events"]
        if posting:
            (received,) = await slack.app.arrive(1)
            assert received.genuine, "it is signed with the demonstration's secret"
        else:
            delivery = await slack.settled(event["id"], "failed")
            assert [attempt["problem"] for attempt in delivery["attempts"]] == ["posting_is_off"]
            assert slack.app.received == []


async def test_without_a_queue_the_rest_works_as_ever(empty_database: str) -> None:
    for url in (empty_database, "postgresql://nobody@127.0.0.1:1/none", "nonsense"):
        async with simulated(database_url=SecretStr(url)) as pair:
            asked = await pair.said(wait=True)
            await pair.web.chat_postMessage(channel=asked["channel"], thread_ts=asked["ts"], text="here")
            assert (await pair.control.reply(asked, timeout=300))["text"] == "here"
