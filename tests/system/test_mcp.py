"""An assistant says why a message was not answered, by the SDK's own client over HTTP and a real database."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import aiohttp
import httpx2
import pytest
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from mcp.types import TextContent

from surelane.calls import Connection
from surelane_service.pool import close_pool, create_pool
from tests.browser.console_scenes import CAUSES, CHANNEL, Scenes, Stage, link_to, mention, seed, ts_of
from tests.databases import as_role
from tests.system.operators import page
from tests.system.shared import shared_connection
from tests.unit.test_endpoints import TOOLS

OPERATOR, VIEWER = "an-operators-token-0123456789", "a-viewers-token-0123456789"
TOKENS = {"SURELANE_API_TOKEN": OPERATOR, "SURELANE_API_VIEWER_TOKEN": VIEWER}
CHANGES = {tool.name for tool in TOOLS.values() if not tool.reads}


connection = shared_connection


@dataclass
class Desk:
    """A served queue in which every reason has its event."""

    url: str
    stage: Stage
    scenes: Scenes
    database: str


@pytest.fixture(scope="module")
async def desk(shared_database: str) -> AsyncIterator[Desk]:
    pool = await create_pool(
        shared_database, service="test", max_size=2, statement_timeout=timedelta(seconds=30)
    )
    stage = Stage(pool)
    scenes = await seed(stage)
    database = as_role(shared_database, "surelane_operator")
    async with page(database, SURELANE_CONSOLE_SIGN_IN="token", SURELANE_MCP="change", **TOKENS) as url:
        yield Desk(url, stage, scenes, database)
    await close_pool(pool)


@asynccontextmanager
async def assistant(url: str, token: str = OPERATOR, mode: str = "auto") -> AsyncIterator[Client]:
    headers = {"Authorization": f"Bearer {token}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=60) as http,
        Client(streamable_http_client(f"{url}/mcp", http_client=http), mode=mode) as client,
    ):
        yield client


async def call(client: Client, tool: str, **arguments: Any) -> Any:
    return json.loads(await said(client, tool, error=False, **arguments))


async def said(client: Client, tool: str, *, error: bool = True, **arguments: Any) -> str:
    """Call a tool; return the text of its answer, which is an error or not."""
    result = await client.call_tool(tool, arguments)
    (content,) = result.content
    assert isinstance(content, TextContent)
    assert result.is_error == error, content.text
    return content.text


def post(url: str, token: str | None, body: Any = b"{}", headers: Mapping[str, str] | None = None) -> Any:
    sent = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    sent |= headers or {}
    if token is not None:
        sent["Authorization"] = f"Bearer {token}"
    return aiohttp.request("POST", f"{url}/mcp", data=body, headers=sent)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_an_assistant_says_why_each_message_was_not_answered(desk: Desk, mode: str) -> None:
    async with assistant(desk.url, VIEWER, mode) as client:
        for cause, expected in CAUSES.items():
            identity = getattr(desk.scenes, cause)
            sent = (await call(client, "get_payload", id=identity))["payload"]["event"]
            found = await call(client, "find_message", text=link_to(sent["ts"], sent.get("thread_ts")))
            assert [job["id"] for job in found["jobs"]] == [identity], cause
            assert expected in found["jobs"][0]["why"], cause
            assert "lost" not in found
            story = await call(client, "get_event", id=identity)
            assert expected in story["why"]
            assert "payload" not in story, "only get_payload shows it"
            assert "enqueued" in [step["what"] for step in story["timeline"]]


async def test_a_message_is_found_by_all_its_names_or_told_as_lost(desk: Desk) -> None:
    ts = ts_of(desk.stage.now - timedelta(minutes=40))
    payload = json.dumps(mention(900, ts))
    one, _ = [await desk.stage.calls.fetchval("select agent.insert_event($1)", payload) for _ in range(2)]
    group = [await desk.stage.queue.enqueue("report", group_key="order 7") for _ in range(2)]
    async with assistant(desk.url, VIEWER) as client:
        for text, ids in {
            **{name: [one] for name in (link_to(ts), "Ev0CONSOLE900", str(one), f"{CHANNEL} {ts}")},
            desk.scenes.thread: [desk.scenes.first],  # the message that began it
            "order 7": group,
        }.items():
            found = await call(client, "find_message", text=text)
            assert [job["id"] for job in found["jobs"]] == ids, text
        found = await call(client, "find_message", text=link_to("1700000000.000100"))
        assert found["jobs"] == []
        lost = found["lost"]
        assert (lost["channel"], lost["ts"], lost["repeated"]) == (CHANNEL, "1700000000.000100", False)
        assert "Slack did not send it." in [cause["what"] for cause in lost["causes"]]
        assert await call(client, "find_message", text="nothing-like-this") == {"jobs": [], "more": 0}


async def test_every_read_of_the_api_is_a_tool_that_answers(desk: Desk) -> None:
    given: dict[str, dict[str, Any]] = {
        "find_message": {"text": str(desk.scenes.failed)},
        "search_events": {"text": "hello"},
        "list_events": {"status": ["failed"]},
        "get_action": {"id": 1},
        **{
            name: {"id": desk.scenes.failed}
            for name in ("get_event", "get_payload", "why_waiting", "get_workflow")
        },
    }
    async with assistant(desk.url, VIEWER) as client:
        tools = (await client.list_tools()).tools
        assert {tool.name for tool in tools} == {each.name for each in TOOLS.values() if each.reads}
        await call(client, "get_payload", id=desk.scenes.failed)  # get_action shows it
        for tool in tools:
            assert tool.annotations is not None
            assert tool.annotations.read_only_hint
            assert tool.description
            assert await call(client, tool.name, **given.get(tool.name, {})) is not None, tool.name


async def test_only_get_payload_shows_what_people_wrote_and_each_look_is_kept(
    desk: Desk, connection: Connection
) -> None:
    secret = "what ada wrote"
    identity = await desk.stage.queue.enqueue("agent-turn", {"text": secret}, item_key="a key")
    await connection.execute("select agent.cancel_event('a key')")
    await connection.execute(
        "update agent.event_hist set result = $2 where id = $1", identity, json.dumps(secret)
    )
    async with assistant(desk.url, VIEWER) as client:
        for tool, arguments in (
            ("get_event", {"id": identity}),
            ("find_message", {"text": "a key"}),
            ("list_events", {"key": "a key"}),
            ("search_events", {"text": "ada wrote"}),
            ("get_overview", {}),
        ):
            assert secret not in await said(client, tool, error=False, **arguments), tool
        assert await _kept(connection, identity) == []
        assert secret in await said(client, "get_payload", error=False, id=identity)
    assert await _kept(connection, identity) == [("viewer token", "mcp", "look at payload")]


async def test_pages_are_bounded_and_go_on_at_their_cursor(desk: Desk) -> None:
    async with assistant(desk.url, VIEWER) as client:
        first = await call(client, "list_events", limit=4)
        second = await call(client, "list_events", limit=4, cursor=first["next"])
        ids = [job["id"] for job in first["jobs"] + second["jobs"]]
        assert len(ids) == len(set(ids)) == 8
        for name in ("list_events", "list_kinds", "list_actions"):
            assert "limit: ask for 50 at most" in await said(client, name, limit=51)
        for tool in (await client.list_tools()).tools:
            if "limit" in tool.input_schema["properties"]:
                assert tool.input_schema["properties"]["limit"]["maximum"] == 50


async def test_bad_input_gets_an_error_that_says_what_to_do(desk: Desk) -> None:
    async with assistant(desk.url) as client:
        assert "id: write an event's id as a whole number" in await said(client, "get_event", id="seven")
        assert "id: Field required" in await said(client, "get_event")
        assert await said(client, "get_event", id=999_999_999) == "there is no such event"
        assert "unknown arguments: payload; it takes: id" in await said(
            client, "get_event", id=1, payload=True
        )
        assert "status" in await said(client, "list_events", status=["lost"])
        assert "cursor: pass `next`" in await said(client, "list_events", cursor="%%%")
        assert "text" in await said(client, "find_message", text="a\x00b")
        with pytest.raises(MCPError, match="there is no tool drop_tables"):
            await client.call_tool("drop_tables", {})


async def _kept(connection: Connection, identity: int) -> list[tuple[str, str, str]]:
    rows = await connection.fetch(
        "select who, via, action from agent.operator_action where target = $1 and via = 'mcp' order by id",
        f"event {identity}",
    )
    return [(row["who"], row["via"], row["action"]) for row in rows]


async def test_an_operators_assistant_runs_again_and_cancels_and_both_are_kept(
    desk: Desk, connection: Connection
) -> None:
    identity = await desk.stage.queue.enqueue("report", {})
    async with assistant(desk.url) as client:
        hints = {tool.name: tool.annotations for tool in (await client.list_tools()).tools}
        assert hints["cancel_event"]
        assert hints["cancel_event"].destructive_hint
        assert hints["cancel_event"].read_only_hint is False
        answer = await call(client, "cancel_event", id=identity, reason="not needed")
        assert answer == {"status": "cancelled"}
        assert "the event has ended as cancelled" in await said(client, "cancel_event", id=identity)
        refused = await said(client, "rerun_event", id=identity, payload={})
        assert "unknown arguments: payload; it takes: id, from_step" in refused
        assert "no stored step deploy" in await said(client, "rerun_event", id=identity, from_step="deploy")
        assert await call(client, "rerun_event", id=identity) == {"id": identity, "kept": []}
    done = [("operator token", "mcp", action) for action in ("cancel", "cancel", "rerun", "rerun")]
    assert await _kept(connection, identity) == done
    headers = {"Authorization": f"Bearer {VIEWER}"}
    async with aiohttp.request("GET", f"{desk.url}/console/actions", headers=headers) as response:
        assert "by an assistant" in await response.text()
    by = await connection.fetchval("select changes::text from agent.job where id = $1", identity)
    assert "operator token" in by, "the event's own story names who acted"


async def test_only_an_operators_assistant_changes_something_and_only_where_changes_are_on(
    desk: Desk, connection: Connection
) -> None:
    async with assistant(desk.url, VIEWER) as client:
        assert not CHANGES & {tool.name for tool in (await client.list_tools()).tools}
        for tool in CHANGES:
            assert "this needs the role operator" in await said(client, tool, id=desk.scenes.failed)
    async with page(desk.database, **TOKENS, SURELANE_MCP="read") as url, assistant(url, OPERATOR) as client:
        assert not CHANGES & {tool.name for tool in (await client.list_tools()).tools}
        for tool in CHANGES:
            with pytest.raises(MCPError, match=f"{tool} is off: set SURELANE_MCP=change"):
                await client.call_tool(tool, {"id": desk.scenes.failed})
    state = await connection.fetchval("select status from agent.job where id = $1", desk.scenes.failed)
    assert state == "failed"


REFUSED: list[tuple[str | None, dict[str, str], int]] = [
    *((token, {}, 401) for token in (None, "", "wrong", "ein-schlüssel")),
    (OPERATOR, {"Origin": "https://elsewhere.example"}, 403),
    (OPERATOR, {"Origin": "null"}, 403),
    (OPERATOR, {"Host": "rebound.example:8081"}, 403),
    (OPERATOR, {"Sec-Fetch-Site": "cross-site"}, 403),
]


async def test_nothing_is_answered_without_the_token_or_to_another_site(desk: Desk) -> None:
    for token, headers, status in REFUSED:
        async with post(desk.url, token, headers=headers) as response:
            assert response.status == status, (token, headers)
            assert response.headers.get("WWW-Authenticate") == ("Bearer" if status == 401 else None)
    headers = {"Authorization": f"Bearer {VIEWER}", "Accept": "text/event-stream"}
    for method in ("GET", "DELETE"):  # no stream is opened
        async with aiohttp.request(method, f"{desk.url}/mcp", headers=headers) as response:
            assert (response.status, response.headers["Allow"]) == (405, "POST")


HOSTILE: dict[str, tuple[bytes, int]] = {
    "large": (b'{"text": "' + b"x" * 70_000 + b'"}', 413),
    "deep": (b"[" * 60_000, 400),
    "no JSON": (b"\xff\xfe", 400),
    "a batch": (b"[" + b",".join([b'{"jsonrpc":"2.0","id":1,"method":"ping"}'] * 100) + b"]", 400),
    "a large number": (b'{"jsonrpc":"2.0","id":' + b"9" * 5000 + b',"method":"ping"}', 400),
}


async def test_hostile_requests_are_refused(desk: Desk) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(80):
            yield b" " * 1024

    for version in ("2025-06-18", "2026-07-28"):
        for case, (body, status) in HOSTILE.items():
            async with post(desk.url, OPERATOR, body, {"MCP-Protocol-Version": version}) as response:
                assert response.status == status, (case, version)
        async with post(desk.url, OPERATOR, chunks()) as response:
            assert response.status == 413, "it is large, however it comes"


async def test_two_assistants_are_answered_at_once_each_as_itself(desk: Desk, connection: Connection) -> None:
    large = "x" * 300_000
    one, other = [await desk.stage.queue.enqueue("report", {"n": n, "text": large}) for n in range(2)]
    async with assistant(desk.url, VIEWER) as viewer, assistant(desk.url, OPERATOR) as operator:
        looks = [(viewer, one), (operator, other)] * 5
        shown = await asyncio.gather(*(call(client, "get_payload", id=each) for client, each in looks))
    assert [each["payload"]["n"] for each in shown] == [0, 1] * 5
    assert all(each["payload"]["text"].endswith("296,000 more characters") for each in shown)
    assert await _kept(connection, one) == [("viewer token", "mcp", "look at payload")] * 5
    assert await _kept(connection, other) == [("operator token", "mcp", "look at payload")] * 5


async def test_the_service_stops_while_an_assistant_is_connected(desk: Desk) -> None:
    served = page(desk.database, **TOKENS, SURELANE_MCP="read")
    url = await served.__aenter__()
    async with assistant(url, mode="legacy") as client:
        assert (await client.list_tools()).tools
        async with asyncio.timeout(28):  # an open stream would hold it up for 30 s
            await served.__aexit__(None, None, None)


async def test_a_database_that_is_away_is_said(desk: Desk) -> None:
    nowhere = "postgresql://somebody@127.0.0.1:1/nothing"
    async with (
        page(desk.database, SURELANE_OPERATOR_DATABASE_URL=nowhere, **TOKENS, SURELANE_MCP="read") as url,
        assistant(url) as client,
    ):
        assert await said(client, "list_events") == "the database is away"
