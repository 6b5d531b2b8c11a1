"""A web page follows what an agent says: live, from any place on, and each character once, also after kill -9."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import asyncpg
import pytest
from aiohttp import web

from extensions.agents.tests.system.model_server import OURS, Desk, ModelServer, calls, says, settings
from extensions.agents.tests.system.shared import shared_desk, shared_model
from surelane.calls import Connection
from surelane.queue import Queue
from surelane_encryption.keys import new_key
from surelane_operator.api import stream
from surelane_operator.api.routes import route_of
from surelane_operator.api.stream import StreamApi
from surelane_operator.changes import Changes
from surelane_operator.console.access.guard import RequestGuard
from surelane_operator.console.access.viewer import ApiTokens
from surelane_service.probes import serving
from tests.databases import as_role
from tests.processes import Service, service
from tests.sql.migrations import connected
from tests.system import raw_http
from tests.system.operators import page, person
from tests.system.shared import shared_connection, shared_slack
from tests.system.slack_stand import Stand
from tests.system.worker import worker

TOKEN, VIEWER = "an-operators-token-0123456789", "a-viewers-token-0123456789"
ON = {"SURELANE_API_TOKEN": TOKEN, "SURELANE_API_VIEWER_TOKEN": VIEWER}
KEYS = {"SURELANE_ENCRYPTION_KEYS": new_key(), "SURELANE_ENCRYPT_EVENTS": "true"}


connection, slack, model, desk = shared_connection, shared_slack, shared_model, shared_desk


@pytest.fixture(scope="module")
async def running(shared_database: str, model: ModelServer, slack: Stand) -> AsyncIterator[Service]:
    async with worker(shared_database, **settings(model, slack, **OURS)) as started:
        yield started


@pytest.fixture(scope="module")
async def url(shared_database: str, running: Service) -> AsyncIterator[str]:  # noqa: ARG001
    async with page(as_role(shared_database, "surelane_operator"), **ON) as address:
        yield address


@dataclass
class Reader:
    """A page that follows an event, as docs/agent.md shows it. It keeps its place over connections."""

    parts: dict[int, str] = field(default_factory=dict)
    ids: list[int] = field(default_factory=list)
    begun: list[int] = field(default_factory=list)
    end: dict[str, Any] | None = None
    connected: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def text(self) -> str:
        return "|".join(text for _, text in sorted(self.parts.items()) if text)

    async def follow(self, url: str, identity: int, until: str | None = None) -> None:
        """Read until it has a text, or else until the event or the connection ends."""
        headers = {"Authorization": f"Bearer {VIEWER}"}
        if self.ids:
            headers["Last-Event-ID"] = str(self.ids[-1])
        timeout = aiohttp.ClientTimeout(total=60)
        async with (
            aiohttp.ClientSession(headers=headers, timeout=timeout) as session,
            session.get(f"{url}/v1/jobs/{identity}/stream") as response,
        ):
            assert response.status == 200, await response.text()
            self.connected.set()
            while self.end is None and (until is None or self.text != until):
                try:
                    fields = (await response.content.readuntil(b"\n\n")).decode()
                except asyncio.IncompleteReadError:
                    return
                if not fields:
                    return
                self.take(dict(line.split(": ", 1) for line in fields.strip().splitlines()))

    def take(self, fields: dict[str, str]) -> None:
        match fields.get("event"):
            case "said":
                self.ids.append(int(fields["id"]))
                told = json.loads(fields["data"])
                if told["begins"]:
                    self.begun.append(told["part"])
                    self.parts = {part: text for part, text in self.parts.items() if part < told["part"]}
                self.parts[told["part"]] = self.parts.get(told["part"], "") + told["text"]
            case "end":
                self.end = json.loads(fields["data"])


async def test_a_page_reads_live_and_goes_on_exactly_where_it_was(desk: Desk, url: str) -> None:
    pause = asyncio.Event()
    look = calls(("note", {"log": "/dev/null", "text": "x"}), text=["Let me see. "])
    answers = look, says("Blue, ", "of course.", pause=pause)
    identity = await desk.job("live", *answers, stream=True)
    reader, late = Reader(), Reader()
    await reader.follow(url, identity, until="Let me see. |Blue, ")
    assert reader.end is None
    pause.set()
    await reader.follow(url, identity)
    assert reader.text == "Let me see. |Blue, of course."
    assert reader.end is not None
    assert (reader.end["status"], reader.end["result"]["answer"]) == ("completed", "Blue, of course.")
    assert reader.ids == list(range(1, len(reader.ids) + 1))  # each batch once, over two connections
    await late.follow(url, identity)  # from history
    assert (late.text, late.end, late.ids) == (reader.text, reader.end, reader.ids)
    for place in range(1, len(reader.ids)):
        again = Reader(ids=[place])
        await again.follow(url, identity)
        assert again.ids[1:] == reader.ids[place:]
        assert again.end == reader.end
    async with person(url) as somebody:
        somebody.headers = {"Authorization": f"Bearer {VIEWER}"}
        status, text = await somebody.get(f"/v1/actions?target=event%20{identity}")
        looks = [each["action"] for each in json.loads(text)["actions"]]
    assert (status, looks) == (200, ["look at payload"] * (2 + len(reader.ids)))


@pytest.mark.parametrize("keys", [{}, KEYS], ids=["plain", "sealed"])
async def test_after_worker_and_operator_ended_the_part_is_told_anew_and_no_character_twice(
    database: str, model: ModelServer, slack: Stand, keys: dict[str, str]
) -> None:
    hang, reader, other, role = asyncio.Event(), Reader(), Reader(), as_role(database, "surelane_operator")
    given = {"SURELANE_WORKER_NAME": "mortal", "SURELANE_SESSION_GRACE": "200ms", **OURS, **keys}
    given = settings(model, slack, **given)
    async with connected(database) as own:
        answers = [says("I think it is ", "lost", pause=hang), says("It is ", "green.")]
        identity = await Desk(slack, model, own).job("kill", answers, stream=True)
        async with page(role, **ON, **keys) as url:
            async with worker(database, **given) as dying:
                await reader.follow(url, identity, until="I think it is ")
                reader.connected.clear()
                reading = asyncio.create_task(reader.follow(url, identity))
                await reader.connected.wait()
                dying.child.kill()
                await dying.child.wait()
            stored = await own.fetchval(
                "select string_agg(s::text, ' ') from agent.step as s where event_id = $1", identity
            )
            assert ("I think" in stored) == (not keys)
            assert "I think" in stored or "surelane.sealed" in stored
        await reading  # it ended with the operator
        assert (reader.text, reader.end) == ("I think it is ", None)
        another = {"DATABASE_URL": role, **ON, **keys}
        async with service("surelane_operator", another) as operator:
            async with worker(database, **given):
                await reader.follow(operator.private_url, identity)
            await other.follow(operator.private_url, identity)
    assert reader.text == other.text == "It is green."
    assert (reader.begun, other.begun) == ([1, 1], [1])  # what was said before went
    assert reader.ids == sorted(set(reader.ids))
    hang.set()


async def test_only_a_turn_that_asks_for_it_is_kept_and_slack_gets_it_as_well(desk: Desk, url: str) -> None:
    mentioned, asked = await desk.ask("both", says("Hello."))
    await desk.result(mentioned)
    both = await desk.job("both", channel=asked.channel, thread_ts=asked.ts, team="T1", stream=True)
    await desk.result(both)
    assert desk.said(asked) == ["Hello.", "Hello."]
    for identity, told in ((mentioned, ""), (both, "Hello.")):
        reader = Reader()
        await reader.follow(url, identity)
        assert reader.text == told
        assert reader.end is not None
        assert reader.end["result"]["answer"] == "Hello."


async def test_who_may_not_read_and_what_is_unknown(connection: Connection, url: str) -> None:
    queue = Queue(connection)
    silent = await queue.enqueue("unhandled")
    await queue.cancel(str(silent))
    path = f"/v1/jobs/{silent}/stream"
    async with person(url) as somebody:
        assert (await somebody.get(path))[0] == 401
        somebody.headers = {"Authorization": "Bearer wrong"}
        assert (await somebody.get(path))[0] == 401
        somebody.headers = {"Authorization": f"Bearer {VIEWER}"}
        status, text = await somebody.get("/v1/jobs/999999/stream")
        assert (status, json.loads(text)) == (404, {"error": "there is no such event"})
        for wrong in ("-1", "x", "9" * 30):
            assert (await somebody.get(path, headers={"Last-Event-ID": wrong}))[0] == 400
            assert (await somebody.get(f"{path}?after={wrong}"))[0] == 400
        status, text = await somebody.get("/v1/openapi.json")
        operation = json.loads(text)["paths"]["/v1/jobs/{id}/stream"]["get"]
        assert list(operation["responses"]["200"]["content"]) == ["text/event-stream"]
    reader = Reader()
    await reader.follow(url, silent)
    assert (reader.text, (reader.end or {}).get("status")) == ("", "cancelled")


@asynccontextmanager
async def serve(database: str, **bounds: Any) -> AsyncIterator[str]:
    """Serve the endpoint alone, with bounds of a test's."""
    pool = await asyncpg.create_pool(database, min_size=1, max_size=2)
    api = StreamApi(Changes(pool), **bounds)
    app = web.Application(
        middlewares=[RequestGuard(ApiTokens({"viewer": VIEWER, "operator": TOKEN})).middleware]
    )
    app.add_routes([route_of(each) for each in api.endpoints()])
    try:
        async with serving(app, 0, setting="none", host="127.0.0.1") as port:
            yield f"http://127.0.0.1:{port}"
            api.close()
    finally:
        pool.terminate()


async def has_place(session: aiohttp.ClientSession, address: str) -> None:
    """Wait until one more may follow."""
    async with asyncio.timeout(30):
        while True:
            async with session.get(address) as place:
                if place.status == 200:
                    return


async def test_streams_are_few_end_after_a_spell_and_show_that_they_live(
    shared_database: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "HEARTBEAT", 0.0)
    identity = await Queue(connection).enqueue("unhandled")
    headers = {"Authorization": f"Bearer {VIEWER}"}
    async with serve(shared_database, most=3, each=2) as url, AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession(headers=headers))
        address = f"{url}/v1/jobs/{identity}/stream"
        followed = [await stack.enter_async_context(session.get(address)) for _ in range(2)]
        assert await followed[0].content.readuntil(b"\n\n") == b"retry: 1000\n\n"
        assert (await followed[0].content.readuntil(b"\n\n")).startswith(b":")
        async with session.get(address) as refused:
            assert (refused.status, refused.headers["Retry-After"]) == (503, "5")
        other = {"Authorization": f"Bearer {TOKEN}"}
        await stack.enter_async_context(session.get(address, headers=other))
        async with session.get(address, headers=other) as refused:
            assert refused.status == 503
        followed[1].close()
        await has_place(session, address)
    async with (
        serve(shared_database, spell=0.0) as url,
        aiohttp.ClientSession(headers=headers) as session,
        session.get(f"{url}/v1/jobs/{identity}/stream") as short,
    ):
        assert await short.read() == b"retry: 1000\n\n"


async def test_a_reader_that_does_not_read_is_cut(
    shared_database: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "SLOWEST", 0.2)
    identity = await Queue(connection).enqueue("unhandled")
    await connection.execute(
        "insert into agent.step"
        " (event_id, name, nth, sort, event_ts, arguments, result, attempt, started_at, finished_at)"
        " select $1, 'said', -1 - n, 'step', now(), format('[1, %s]', n - 1), to_json(repeat('x', 100000))"
        ", 1, now(), now()"
        " from generate_series(1, 200) as n",
        identity,
    )
    async with serve(shared_database, most=1) as url:
        head = f"GET /v1/jobs/{identity}/stream HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {VIEWER}\r\n\r\n"
        async with (
            raw_http.connected(int(url.rpartition(":")[2]), limit=1024) as (reader, writer),
            aiohttp.ClientSession(headers={"Authorization": f"Bearer {VIEWER}"}) as session,
        ):
            writer.write(head.encode())
            await reader.readuntil(b"\r\n\r\n")
            await has_place(session, f"{url}/v1/jobs/{identity}/stream")  # it is free again once it is cut
